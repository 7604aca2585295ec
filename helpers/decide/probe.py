"""The plainest classifier on embeddings: what they know without any training of the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import InputError

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression


C = 50
"""Default inverse strength of the penalty. Embeddings have length 1, and scikit-learn's 1 would hold the weights so
small that classes could hardly be told apart. `fewshot.choose_c` finds another."""


def fit_probe(embeddings: np.ndarray, labels: Sequence[str], seed: int = 0, c: float = C) -> LogisticRegression:
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
    return LogisticRegression(C=c, max_iter=1000, random_state=seed).fit(embeddings, labels)
