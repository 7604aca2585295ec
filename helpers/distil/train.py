"""Distillation of sentence embeddings over languages.

Reimers and Gurevych 2020, arXiv:2004.09813: the student's embedding of a text and of its translations should be the
teacher's embedding of the English. Added here: InfoNCE over the batch (van den Oord et al. 2018, arXiv:1807.03748), so
that what is near but not the same is told apart.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from tqdm.auto import tqdm
from transformers import ModernBertModel

from helpers.distil.teacher import batches, mean_pool, pad


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; `tokens_per_batch` counts padding."""

    steps: int = 11_500
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
    """Texts of one kind as token lists, what they aim at, and how many of them a round takes.

    `targets` names one matrix or several, each (m, d) float32 unit vectors; `row` (n,) is the row that text i aims at.
    Targets of one name are reached through one projection, so they must be of one width in all sources.
    """

    name: str
    ids: Sequence[list[int]]
    targets: Mapping[str, np.ndarray]
    row: np.ndarray
    per_round: int


def loss_terms(predicted: torch.Tensor, target: torch.Tensor, rows: torch.Tensor, temperature: float):
    """Cosine loss and InfoNCE of predictions (b, d) against unit targets (b, d); equal `rows` (b,) are no negatives."""
    predicted = F.normalize(predicted, dim=1)
    cosine = 1 - (predicted * target).sum(1).mean()
    scores = predicted @ target.T / temperature
    same = (rows[:, None] == rows[None, :]) & ~torch.eye(len(rows), dtype=torch.bool)
    return cosine, F.cross_entropy(scores.masked_fill(same, -math.inf), torch.arange(len(rows)))


def train(
    model: ModernBertModel,
    sources: Sequence[Source],
    schedule: Schedule,
    folder: Path,
    resume: bool = True,
) -> pd.DataFrame:
    """Train in place; gives back the history (step, source of the batch, cosine, contrast, seconds).

    A checkpoint is written every `schedule.checkpoint_every` steps; the same run in the same folder goes on from it.

    Parameters
    ----------
    model : the student; its mean-pooled output is mapped to each kind of target by a matrix that is thrown away.
    sources : what to read; a round takes `per_round` texts of each, in batches of similar length.
    folder : for the checkpoint.
    resume : False to begin anew whatever the folder holds.
    """
    torch.manual_seed(schedule.seed)
    sizes = {name: target.shape[1] for source in sources for name, target in source.targets.items()}
    projections = torch.nn.ModuleDict(
        {name: torch.nn.Linear(model.config.hidden_size, size, bias=False) for name, size in sizes.items()}
    )
    modules = torch.nn.ModuleDict({"model": model, "projections": projections})
    table = model.embeddings.tok_embeddings.weight
    rest = [p for p in modules.parameters() if p is not table]
    peaks = (schedule.embedding_rate, schedule.learning_rate)
    optimiser = torch.optim.AdamW([{"params": [table]}, {"params": rest}], weight_decay=0.01, fused=True)
    folder.mkdir(parents=True, exist_ok=True)
    path, mark = folder / CHECKPOINT, fingerprint(model, sources, schedule)
    history = _resume(modules, optimiser, path, mark) if resume else []
    start, began = len(history), time.perf_counter() - (history[-1]["seconds"] if history else 0)
    model.train()
    stream = itertools.islice(_stream(sources, schedule), schedule.steps)
    for step, (source, batch) in enumerate(tqdm(stream, total=schedule.steps, desc="train")):
        if step < start:
            continue
        tokens, mask = pad([source.ids[i] for i in batch], model.config.pad_token_id)
        pooled = mean_pool(model(input_ids=tokens, attention_mask=mask).last_hidden_state, mask)
        rows = torch.from_numpy(source.row[batch])
        terms = []
        for name, target in source.targets.items():
            aim = torch.from_numpy(target)[rows]
            terms.append(torch.stack(loss_terms(projections[name](pooled), aim, rows, schedule.temperature)))
        cosine, contrast = torch.stack(terms).sum(0)
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
                "source": source.name,
                "cosine": round(cosine.item() / len(terms), 5),
                "contrast": round(contrast.item() / len(terms), 5),
                "texts": len(batch),
                "tokens": int(mask.sum()),
                "seconds": round(time.perf_counter() - began, 2),
            }
        )
        if (step + 1) % schedule.checkpoint_every == 0 or step + 1 == schedule.steps:
            _checkpoint(modules, optimiser, history, path, mark)
    model.eval()
    return pd.DataFrame(history)


def _stream(sources: Sequence[Source], schedule: Schedule) -> Iterator[tuple[Source, np.ndarray]]:
    """Batches without end: each round draws afresh from every source, sorts by length in windows, shuffles batches."""
    for round_ in itertools.count():
        rng = np.random.default_rng([schedule.seed, round_])
        parts = []
        for source in sources:
            rows = rng.permutation(len(source.ids))
            rows = np.resize(rows, source.per_round)  # a small source comes more than once a round
            window = 24 * schedule.rows_per_batch
            for first in range(0, len(rows), window):
                chunk = rows[first : first + window]
                for batch in batches(source.ids, schedule.tokens_per_batch, chunk, schedule.rows_per_batch):
                    parts.append((source, batch))
        yield from (parts[i] for i in rng.permutation(len(parts)))


CHECKPOINT = "checkpoint.safetensors"


def fingerprint(model: ModernBertModel, sources: Sequence[Source], schedule: Schedule) -> str:
    """SHA-256 of what a run is made of: sizes, tokens, targets, schedule. The first weights follow from its texts."""
    sizes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    digest = hashlib.sha256(json.dumps([sizes, asdict(schedule)]).encode())
    for source in sources:
        digest.update(f"{source.name} {source.per_round}".encode())
        digest.update(np.fromiter(itertools.chain.from_iterable(source.ids), np.int64).tobytes())
        digest.update(np.asarray(source.row, np.int64).tobytes())
        for name, target in source.targets.items():
            digest.update(name.encode() + np.ascontiguousarray(target).tobytes())
    return digest.hexdigest()


def _checkpoint(modules, optimiser, history: list[dict], path: Path, mark: str) -> None:
    """Weights, optimiser state and history in one file without pickle, written whole."""
    state = {f"weight.{name}": p.detach() for name, p in modules.named_parameters()}
    for name, p in modules.named_parameters():
        for key, value in optimiser.state[p].items():
            state[f"optimiser.{key}.{name}"] = value
    part = path.with_suffix(".part")
    save_file(state, part, metadata={"fingerprint": mark, "history": json.dumps(history)})
    part.replace(path)


def _resume(modules, optimiser, path: Path, mark: str) -> list[dict]:
    """History of the checkpoint, its state put in place; empty if there is none, or it is of another run."""
    if not path.is_file():
        return []
    with safe_open(path, "pt") as saved:
        about = saved.metadata()
        if about.get("fingerprint") != mark:
            return []
        names = list(saved.keys())
        for name, p in modules.named_parameters():
            with torch.no_grad():
                p.copy_(saved.get_tensor(f"weight.{name}"))
            for key in names:
                kind, _, rest = key.removeprefix("optimiser.").partition(".")
                if key.startswith("optimiser.") and rest == name:
                    optimiser.state[p][kind] = saved.get_tensor(key)
    return json.loads(about["history"])
