"""Deciding from a few examples of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.sparse import csr_array, issparse
from sklearn.metrics import accuracy_score

from helpers.decide.evaluate import macro_f1
from helpers.decide.probe import C, fit_probe
from helpers.errors import InputError

Matrix = np.ndarray | csr_array


def examples(labels: Sequence[str] | np.ndarray, per_class: int | None, seed: int) -> np.ndarray:
    """Row numbers of `per_class` random rows of each class, in order; a class with fewer gives all it has.

    Parameters
    ----------
    labels : (n,) class of each row.
    per_class : how many of each; None for every row.
    seed : of the draw.

    Raises
    ------
    InputError : if per_class is below 1.
    """
    labels = np.asarray(labels)
    if per_class is None:
        return np.arange(len(labels))
    if per_class < 1:
        raise InputError(f"examples: per_class={per_class}: give 1 or more, or None for every row")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    rank = pd.Series(labels[order]).groupby(labels[order]).cumcount().to_numpy()
    return np.sort(order[rank < per_class])


def learning_curve(
    features: Mapping[str, tuple[Matrix, Matrix]],
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    sizes: Sequence[int | None],
    seeds: Sequence[int],
    c: Mapping[str, float] | None = None,
) -> tuple[pd.DataFrame, dict[tuple[str, int | None], np.ndarray]]:
    """Logistic regression on frozen features, every kind of feature on the same examples.

    Parameters
    ----------
    features : name -> (training rows (n, d), test rows (m, d)).
    train_labels, test_labels : (n,) and (m,).
    sizes : examples a class; None for all rows, which is fitted once, since no draw is in it.
    seeds : one draw of examples each.
    c : name -> C of its logistic regression (see `choose_c`); a name that is missing takes `probe.C`.

    Returns
    -------
    (scores, predictions) : scores has columns features, size ("all" for None), seed, accuracy, macro_f1; predictions
    holds the (m,) answers of each (name, size) at the first seed, for paired comparisons.

    Raises
    ------
    InputError : if a size is below 1, the examples are all of one class, features and labels differ in number, a
        feature is no finite number, a label is missing, or `c` names no feature.
    """
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    _check(features, train_labels, test_labels)
    if unknown := set(c or {}) - set(features):
        raise InputError(f"learning_curve: C for {sorted(unknown)}: the features are {list(features)}")
    rows, predictions = [], {}
    for size in sizes:
        for seed in seeds if size else seeds[:1]:
            chosen = examples(train_labels, size, seed)
            for name, (train, test) in features.items():
                strength = (c or {}).get(name, C)
                answer = fit_probe(train[chosen], train_labels[chosen], seed, strength).predict(test)
                predictions.setdefault((name, size), answer)
                accuracy, macro = accuracy_score(test_labels, answer), macro_f1(test_labels, answer)
                rows.append((name, size or "all", seed, accuracy, macro))
    return pd.DataFrame(rows, columns=["features", "size", "seed", "accuracy", "macro_f1"]), predictions


def _check(features: Mapping[str, tuple[Matrix, Matrix]], *labels: np.ndarray) -> None:
    """Raise InputError unless no label is missing, and each kind of features has a row of finite numbers for each."""
    for side, of_side in zip(("training", "test"), labels, strict=True):
        if not len(of_side) or pd.isna(of_side).any():
            raise InputError(f"learning_curve: {side} labels are missing: give one for each row, and one row at least")
    for name, matrices in features.items():
        for side, of_side, matrix in zip(("training", "test"), labels, matrices, strict=True):
            if matrix.shape[0] != len(of_side):
                raise InputError(f"learning_curve: {name}: {matrix.shape[0]} {side} rows, {len(of_side)} labels")
            if not np.isfinite(matrix.data if issparse(matrix) else matrix).all():
                raise InputError(f"learning_curve: {name}: a {side} row is not finite: drop it, or encode it anew")


def choose_c(
    features: Mapping[str, tuple[Matrix, Matrix]],
    train_labels: np.ndarray,
    validation_labels: np.ndarray,
    per_class: int | None,
    seeds: Sequence[int],
    grid: Sequence[float] = (1, 2, 5, 10, 50, 250, 1000),
) -> dict[str, float]:
    """For each kind of features the C of `grid` with the best mean macro-F1 on validation rows.

    Kinds of features differ in how far their rows lie apart, so one C for all would favour the kind it happens to suit.

    Parameters
    ----------
    features : name -> (training rows (n, d), validation rows (m, d)).
    train_labels, validation_labels, per_class, seeds : as in `learning_curve`; never give it test rows.
    grid : what is tried; the smallest of equally good ones is taken.

    Raises
    ------
    InputError : as `learning_curve`; and if the grid is empty.
    """
    if not len(grid) or not len(seeds):
        raise InputError("choose_c: the grid or the seeds are empty: give one value of C and one seed at least")
    found = {}
    for strength in sorted(grid):
        every = dict.fromkeys(features, strength)
        curve, _ = learning_curve(features, train_labels, validation_labels, [per_class], seeds, every)
        found[strength] = curve.groupby("features").macro_f1.mean()
    return pd.DataFrame(found).idxmax(axis=1).loc[list(features)].to_dict()
