"""Distillation of sentence embeddings over languages.

Reimers and Gurevych 2020, arXiv:2004.09813: the student's embedding of a text and of its translations should be the
teacher's embedding of the English. Added here: InfoNCE over the batch (van den Oord et al. 2018, arXiv:1807.03748), so
that what is near but not the same is told apart.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm
from transformers import ModernBertModel

from helpers.distil.teacher import batches, mean_pool, pad


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; `tokens_per_batch` counts padding."""

    steps: int = 6000
    tokens_per_batch: int = 3072
    rows_per_batch: int = 192
    learning_rate: float = 1e-3
    embedding_rate: float = 2e-3
    warmup: int = 100
    temperature: float = 0.05
    contrast: float = 0.3
    seed: int = 0
    checkpoint_every: int = 100


@dataclass(frozen=True)
class Source:
    """Texts of one kind as token lists, the row of its target for each, and how many of them a round takes."""

    name: str
    ids: Sequence[list[int]]
    target: np.ndarray
    per_round: int


def loss_terms(predicted: torch.Tensor, target: torch.Tensor, rows: torch.Tensor, temperature: float):
    """Cosine loss and InfoNCE of predictions (b, d) against unit targets (b, d); equal `rows` (b,) are no negatives."""
    predicted = F.normalize(predicted, dim=1)
    cosine = 1 - (predicted * target).sum(1).mean()
    scores = predicted @ target.T / temperature
    same = (rows[:, None] == rows[None, :]) & ~torch.eye(len(rows), dtype=torch.bool)
    return cosine, F.cross_entropy(scores.masked_fill(same, -math.inf), torch.arange(len(rows)))


def train(
    model: ModernBertModel, sources: Sequence[Source], targets: np.ndarray, schedule: Schedule, folder: Path
) -> pd.DataFrame:
    """Train in place; gives back the history (step, source of the batch, cosine, contrast, seconds).

    A checkpoint is written every `schedule.checkpoint_every` steps; a run of the same schedule in the same folder goes
    on from it.

    Parameters
    ----------
    model : the student; its mean-pooled output is mapped to the targets by a matrix that is thrown away.
    sources : what to read; a round takes `per_round` texts of each, in batches of similar length.
    targets : (m, d) float32 unit vectors.
    folder : for the checkpoint and the history.
    """
    torch.manual_seed(schedule.seed)
    projection = torch.nn.Linear(model.config.hidden_size, targets.shape[1], bias=False)
    modules = torch.nn.ModuleDict({"model": model, "projection": projection})
    table = model.embeddings.tok_embeddings.weight
    rest = [p for p in modules.parameters() if p is not table]
    peaks = (schedule.embedding_rate, schedule.learning_rate)
    optimiser = torch.optim.AdamW([{"params": [table]}, {"params": rest}], weight_decay=0.01, fused=True)
    folder.mkdir(parents=True, exist_ok=True)
    history = _resume(modules, optimiser, folder, schedule)
    start, began = len(history), time.perf_counter() - (history[-1]["seconds"] if history else 0)
    target_of = torch.from_numpy(targets)
    model.train()
    stream = itertools.islice(_stream(sources, schedule), schedule.steps)
    for step, (source, ids, rows) in enumerate(tqdm(stream, total=schedule.steps, desc="train")):
        if step < start:
            continue
        tokens, mask = pad(ids, model.config.pad_token_id)
        predicted = projection(mean_pool(model(input_ids=tokens, attention_mask=mask).last_hidden_state, mask))
        cosine, contrast = loss_terms(predicted, target_of[rows], torch.from_numpy(rows), schedule.temperature)
        rate = min((step + 1) / schedule.warmup, 1) * (1 - step / schedule.steps)
        for group, peak in zip(optimiser.param_groups, peaks, strict=True):
            group["lr"] = rate * peak
        optimiser.zero_grad()
        (cosine + schedule.contrast * contrast).backward()
        torch.nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
        optimiser.step()
        history.append(
            {
                "step": step,
                "source": source,
                "cosine": round(cosine.item(), 5),
                "contrast": round(contrast.item(), 5),
                "texts": len(rows),
                "tokens": int(mask.sum()),
                "seconds": round(time.perf_counter() - began, 2),
            }
        )
        if (step + 1) % schedule.checkpoint_every == 0 or step + 1 == schedule.steps:
            _checkpoint(modules, optimiser, history, folder, schedule)
    model.eval()
    return pd.DataFrame(history)


def _stream(sources: Sequence[Source], schedule: Schedule) -> Iterator[tuple[str, list[list[int]], np.ndarray]]:
    """Batches without end: each round draws afresh from every source, sorts by length in windows, shuffles batches."""
    for round_ in itertools.count():
        rng = np.random.default_rng([schedule.seed, round_])
        parts = []
        for number, source in enumerate(sources):
            rows = rng.permutation(len(source.ids))
            rows = np.resize(rows, source.per_round)  # a small source comes more than once a round
            window = 24 * schedule.rows_per_batch
            for first in range(0, len(rows), window):
                chunk = rows[first : first + window]
                for batch in batches(source.ids, schedule.tokens_per_batch, chunk, schedule.rows_per_batch):
                    parts.append((number, batch))
        for i in rng.permutation(len(parts)):
            number, batch = parts[i]
            source = sources[number]
            yield source.name, [source.ids[row] for row in batch], source.target[batch]


def _checkpoint(modules, optimiser, history: list[dict], folder: Path, schedule: Schedule) -> None:
    """Weights and optimiser state as tensors (no pickle), history and schedule as JSON; each file written whole."""
    state = {f"weight.{name}": p.detach() for name, p in modules.named_parameters()}
    for name, p in modules.named_parameters():
        for key, value in optimiser.state[p].items():
            state[f"optimiser.{key}.{name}"] = value
    save_file(state, folder / "checkpoint.part")
    (folder / "history.part").write_text(json.dumps({"schedule": asdict(schedule), "history": history}))
    (folder / "checkpoint.part").replace(folder / "checkpoint.safetensors")
    (folder / "history.part").replace(folder / "history.json")


def _resume(modules, optimiser, folder: Path, schedule: Schedule) -> list[dict]:
    if not (folder / "history.json").is_file():
        return []
    saved = json.loads((folder / "history.json").read_text())
    if saved["schedule"] != asdict(schedule):
        return []
    state = load_file(folder / "checkpoint.safetensors")
    for name, p in modules.named_parameters():
        with torch.no_grad():
            p.copy_(state[f"weight.{name}"])
        optimiser.state[p] = {
            key.split(".")[1]: value
            for key, value in state.items()
            if key.startswith("optimiser.") and key.split(".", 2)[2] == name
        }
    return saved["history"]
