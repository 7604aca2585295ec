"""What the student reads: parallel strings, commands and licences of the training side, never a label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerFast

from helpers import data
from helpers.distil.teacher import Teacher
from helpers.distil.train import Source

COMMANDS_PER_BLOCK = 12
LICENCE_WORDS = 90


def training_commands(seed: int = 0, per_block: int = COMMANDS_PER_BLOCK) -> list[str]:
    """Commands of the training side, fewer of a block than the classifiers get: the teacher reads each one."""
    frame = data.commands(seed=seed)
    frame = frame[frame.split == "train"]
    return frame.groupby("cluster", sort=False).head(per_block).text.tolist()


def licence_windows(seed: int = 0, words: int = LICENCE_WORDS) -> list[str]:
    """Of each training-side licence text its first `words` words and, where it is longer, one window from inside."""
    rng = np.random.default_rng(seed)
    windows = []
    frame = data.licences(seed=seed)
    for text in frame[frame.split == "train"].text:
        tokens = text.split()
        windows.append(" ".join(tokens[:words]))
        if len(tokens) > 2 * words:
            start = rng.integers(words, len(tokens) - words + 1)
            windows.append(" ".join(tokens[start : start + words]))
    return list(dict.fromkeys(windows))


def home_words() -> list[str]:
    """Names and phrases of data/home.yaml, so that none of them is an unknown piece."""
    home = data.home()
    named = [entry["names"] for kind in ("areas", "devices") for entry in home[kind].values()]
    words = [name for names in (*named, *home["floors"].values()) for name in names.values()]
    return words + [
        phrase for languages in home["phrases"].values() for phrases in languages.values() for phrase in phrases
    ]


def embed_cached(teacher: Teacher, texts: Sequence[str], folder: Path) -> np.ndarray:
    """The teacher's embeddings (n, d) float32, kept in `folder` under a hash of the texts: the slow half of a run."""
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    path = folder / f"teacher-{key}.npy"
    if path.is_file():
        return np.load(path, allow_pickle=False)
    embeddings = teacher.encode(list(texts), progress=True)
    folder.mkdir(parents=True, exist_ok=True)
    with (part := path.with_suffix(".part")).open("wb") as file:
        np.save(file, embeddings, allow_pickle=False)
    part.replace(path)
    return embeddings


def centred(embeddings: np.ndarray) -> np.ndarray:
    """Unit vectors around their mean: e5's cosines all lie between .7 and 1, which teaches little."""
    shifted = embeddings - embeddings.mean(0)
    return shifted / np.linalg.norm(shifted, axis=1, keepdims=True)


def sources(
    tokenizer: PreTrainedTokenizerFast,
    teacher: Teacher,
    parallel: pd.DataFrame,
    commands: Sequence[str],
    licences: Sequence[str],
    folder: Path,
    parallel_per_round: int = 90_000,
) -> tuple[list[Source], np.ndarray]:
    """Token lists with their targets: a translation aims at its English, a command and a licence at themselves.

    Returns
    -------
    (sources, targets) : for `train`; targets (m, 384) float32, centred unit vectors.
    """
    english = parallel.english.drop_duplicates().tolist()
    raw = [embed_cached(teacher, texts, folder) for texts in (english, commands, licences)]
    # each kind around its own mean: licences would otherwise all point the same way
    targets = np.concatenate([centred(part) for part in raw]).astype(np.float32)
    row_of = {text: row for row, text in enumerate(english)}
    tokens = [_tokens(tokenizer, texts) for texts in (parallel.text.tolist(), commands, licences)]
    first, second = len(english), len(english) + len(commands)
    return [
        Source("parallel", tokens[0], parallel.english.map(row_of).to_numpy(), min(parallel_per_round, len(parallel))),
        Source("commands", tokens[1], np.arange(first, second), len(commands)),
        Source("licences", tokens[2], np.arange(second, second + len(licences)), len(licences)),
    ], targets


def _tokens(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer(list(texts), truncation=True, max_length=256, return_attention_mask=False)["input_ids"]
