"""What the student reads: parallel strings, commands and licences of the training side, never a label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from transformers import PreTrainedTokenizerFast

from helpers import data
from helpers.distil.teacher import Teacher
from helpers.distil.train import Source

LICENCE_WORDS = 150
LICENCE_WINDOWS = 4
LEXICAL_SIZE = 256


def training_commands(seed: int = 0) -> pd.DataFrame:
    """Commands of the training side: text, language and the template that each was made from, no label."""
    frame = data.commands(seed=seed)
    return frame.loc[frame.split == "train", ["text", "language", "template"]].reset_index(drop=True)


def licence_windows(seed: int = 0, words: int = LICENCE_WORDS, most: int = LICENCE_WINDOWS) -> list[str]:
    """Of each training-side licence text its first `words` words and at most `most` - 1 later windows, drawn."""
    rng = np.random.default_rng(seed)
    windows = []
    frame = data.licences(seed=seed)
    for text in frame[frame.split == "train"].text:
        tokens = text.split()
        # a tail shorter than a third of a window says too little of its text
        starts = np.arange(words, len(tokens) - words // 3, words)
        drawn = np.sort(rng.permutation(starts)[: most - 1])
        windows += [" ".join(tokens[start : start + words]) for start in (0, *drawn)]
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
    return normalize(embeddings - embeddings.mean(0))


def lexical(texts: Sequence[str], size: int = LEXICAL_SIZE, seed: int = 0) -> np.ndarray:
    """Which words a text has: latent semantic analysis of word TF-IDF, (n, size) float32, unit vectors.

    Deerwester et al. 1990, "Indexing by latent semantic analysis". A sentence encoder passes over the rare words that
    tell one licence from the next; this second target asks for them.
    """
    counts = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=min(3, len(texts))).fit_transform(texts)
    size = min(size, min(counts.shape) - 1)
    return normalize(TruncatedSVD(size, random_state=seed).fit_transform(counts)).astype(np.float32)


def group_means(embeddings: np.ndarray, groups: Sequence[int]) -> np.ndarray:
    """(n, d) and (n,) group numbers 0..g-1 -> (g, d) mean of each group, as unit vectors."""
    sums = np.zeros((max(groups) + 1, embeddings.shape[1]), embeddings.dtype)
    np.add.at(sums, groups, embeddings)
    return normalize(sums)


def sources(
    tokenizer: PreTrainedTokenizerFast,
    teacher: Teacher,
    parallel: pd.DataFrame,
    commands: pd.DataFrame,
    licences: Sequence[str],
    folder: Path,
    parallel_per_round: int = 90_000,
) -> list[Source]:
    """Token lists with what they aim at.

    A translation aims at the teacher's embedding of its English; a command at the mean of its template's commands,
    which is what stays when names and rooms change; a licence window at its own embedding and, apart from that, at its
    words (`lexical`).
    """
    english = parallel.english.drop_duplicates().tolist()
    # each kind around its own mean: licences would otherwise all point the same way
    of_english, of_commands, of_licences = (
        centred(embed_cached(teacher, texts, folder)) for texts in (english, commands.text.tolist(), list(licences))
    )
    row_of = {text: row for row, text in enumerate(english)}
    template = commands.groupby(["language", "template"], sort=False).ngroup().to_numpy()
    parallel_ids, command_ids, licence_ids = (
        _tokens(tokenizer, texts) for texts in (parallel.text, commands.text, licences)
    )
    return [
        Source(
            "parallel",
            parallel_ids,
            {"teacher": of_english},
            parallel.english.map(row_of).to_numpy(),
            min(parallel_per_round, len(parallel)),
        ),
        Source("commands", command_ids, {"teacher": group_means(of_commands, template)}, template, len(commands)),
        Source(
            "licences",
            licence_ids,
            {"teacher": of_licences, "words": lexical(licences)},
            np.arange(len(licences)),
            -(-len(licences) // 2),  # long texts: half of them take as many tokens as all commands
        ),
    ]


def _tokens(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer(list(texts), truncation=True, max_length=256, return_attention_mask=False)["input_ids"]
