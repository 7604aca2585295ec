"""The plainest classifier on embeddings: what they know without any training of the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from helpers.encode.chunking import pool_documents, vote
from helpers.errors import InputError

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

    from helpers.encode.chunking import Chunks


C = 50
"""Default inverse strength of the penalty. Embeddings have length 1, and scikit-learn's 1 would hold the weights so
small that classes could hardly be told apart. `fewshot.choose_c` finds another."""


def fit_probe(
    embeddings: np.ndarray, labels: Sequence[str], seed: int = 0, c: float = C, weights: np.ndarray | None = None
) -> LogisticRegression:
    """Logistic regression on frozen embeddings.

    Parameters
    ----------
    embeddings
        Float32 (n, hidden), rows of length 1.
    labels
        n labels.
    seed
        Passed on; the solver used needs no chance.
    c
        scikit-learn's C: smaller holds the weights smaller.
    weights
        How much each row counts, (n,); default 1.

    Raises
    ------
    InputError
        If the labels are not of 2 classes at least, or c is not above 0.
    """
    from sklearn.linear_model import LogisticRegression

    if not 0 < c < np.inf:
        raise InputError(f"fit_probe: C={c}: give a number above 0")
    classes = len(np.unique(np.asarray(labels)))
    if classes < 2:
        found = "only one class" if classes else "no class"
        raise InputError(f"fit_probe: {found} in {len(labels)} training rows: choose rows of 2 classes at least")
    return LogisticRegression(C=c, max_iter=1000, random_state=seed).fit(embeddings, labels, weights)


def answer_documents(
    chunks: Chunks, labels: Sequence[str], learn: np.ndarray, how: str = "mean", seed: int = 0, c: float = C
) -> np.ndarray:
    """A class for each document, from a head on its chunks.

    Parameters
    ----------
    chunks
        Vectors of all chunks of all n documents.
    labels
        (n,) classes; those of documents to learn from are used, the others are not looked at.
    learn
        (n,) bool: which documents to learn from.
    how
        "first", "mean" or "max": the head is trained on one vector a document (`pool_documents`). "vote": it is
        trained on chunks, each under its document's label, all documents counting the same, and asked about each chunk
        (`vote`).
    seed, c
        As in `fit_probe`.

    Returns
    -------
    numpy.ndarray
        (n,) classes, of the documents learned from too.

    Raises
    ------
    InputError
        If there is not one label and one entry of learn a document; or as `fit_probe` and `pool_documents`.
    """
    labels, learn = np.asarray(labels), np.asarray(learn)
    count = int(chunks.documents[-1]) + 1 if len(chunks.documents) else 0
    if not len(labels) == len(learn) == count or learn.dtype != bool:
        raise InputError(
            f"answer_documents: {count} documents, {len(labels)} labels, {len(learn)} entries of learn: give a label "
            "and True or False for each"
        )
    if how != "vote":
        pooled = pool_documents(chunks, how)
        return fit_probe(pooled[learn], labels[learn], seed, c).predict(pooled)
    of = chunks.documents
    taught = learn[of]
    weights = (1 / np.bincount(of))[of]
    head = fit_probe(chunks.vectors[taught], labels[of[taught]], seed, c, weights[taught])
    return head.classes_[vote(head.predict_proba(chunks.vectors), of)]
