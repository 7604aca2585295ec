"""How sure a figure is: intervals for shares, for means of clustered rows, and for the difference of two pipelines.

Rows of one cluster (sentences from one template, notices of one licence) are near copies, so n rows are worth far fewer
independent ones. An interval that forgets this is several times too narrow.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from helpers.errors import InputError

_CHUNK = 100  # draws held in memory at a time: 80 MB for 100,000 clusters
FEW_CLUSTERS = 30  # below this, intervals that treat clusters as the sample are known to be too narrow


class Interval(NamedTuple):
    """A figure and its 95 % interval."""

    estimate: float
    low: float
    high: float


def wilson(k: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval (low, high) for the share k / n of independent rows.

    Raises
    ------
    InputError
        Unless n >= 1 and 0 <= k <= n.
    """
    from statsmodels.stats.proportion import proportion_confint

    if not math.isfinite(n) or n < 1 or not 0 <= k <= n or k != int(k) or n != int(n):
        raise InputError(f"wilson(k={k}, n={n}): needs counts, at least one row and 0 <= k <= n")
    low, high = proportion_confint(int(k), int(n), method="wilson")  # its default is the normal approximation
    return float(low), float(high)


def clustered_mean(x: ArrayLike, clusters: ArrayLike, *, signed: bool = False) -> Interval:
    """Mean of x, shape (n,), with an interval that allows rows of one cluster to agree.

    x may be shares (0 or 1 a row, or between), or any numbers. Differences of two shares are `signed`: they lie between
    -1 and 1, which x does not show where no row of the sample is below 0.

    The interval is a t interval with (number of clusters - 1) degrees of freedom around a regression on a constant,
    with cluster-robust standard errors. Source: Cameron & Miller 2015, "A Practitioner's Guide to Cluster-Robust
    Inference", J. Human Resources 50(2).

    Where the clusters' means lie closer together than those of independent rows would, at the extreme are all equal
    although rows differ, the robust standard error is too small, or 0. That is chance: near copies do not balance each
    other. The rows' own standard error, s / sqrt(n), is then the larger one and is taken. Source: Angrist & Pischke
    2009, Mostly Harmless Econometrics, ch. 8, who advise the larger of the two.

    Where all values lie in [0, 1], as right and wrong do, the interval is cut off at 0 and 1. Where all are 0 or all
    are 1, there is no spread to regress on and the t interval would have no width: Wilson's interval for as many rows
    as there are clusters is given instead; to both sides of 0 where x is signed. For other values that are all the same
    it has no width.

    Raises
    ------
    InputError
        If x or clusters are not of one dimension, lengths differ, a value is not finite or, signed, not between -1 and
        1, a row has no cluster, or there are fewer than 2 clusters. Under 30 clusters it warns.
    """
    import statsmodels.api as sm
    from scipy import stats

    values = np.asarray(x, dtype=float)
    if values.ndim != 1:
        raise InputError(f"clustered_mean: x has shape {values.shape}: give one number for each row")
    groups, n_groups = _groups(clusters, len(values), "clustered_mean")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(f"clustered_mean: row {row} of x is no finite number: drop or fill it")
    if signed and np.abs(values).max() > 1:
        raise InputError(f"clustered_mean: x reaches {np.abs(values).max():g}: a signed share is between -1 and 1")
    if values[0] in (0, 1) and (values == values[0]).all():
        low, high = wilson(n_groups * int(values[0]), n_groups)
        return Interval(float(values[0]), -high if signed and not values[0] else low, high)
    fit = sm.OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    error = max(fit.bse[0], values.std(ddof=1) / math.sqrt(len(values)))
    low, high = fit.params[0] + error * stats.t.ppf([0.025, 0.975], n_groups - 1)
    if signed or (values.min() >= 0 and values.max() <= 1):
        low, high = max(low, -1 if signed else 0), min(high, 1)
    return Interval(float(fit.params[0]), float(low), float(high))


def macro_f1(y: ArrayLike, predicted: ArrayLike) -> float:
    """Macro-F1 over the classes that occur in y."""
    from sklearn.metrics import f1_score

    return float(f1_score(y, predicted, labels=np.unique(np.asarray(y)), average="macro", zero_division=0))


def paired_f1_difference(
    y: ArrayLike, a: ArrayLike, b: ArrayLike, clusters: ArrayLike, n_boot: int = 2000, seed: int = 0
) -> Interval:
    """Macro-F1 of predictions a minus that of b on the same rows, with a 95 % interval.

    Clusters are drawn with replacement and both pipelines are scored on the same draw, so what is hard for both
    cancels out. The interval runs from the 2.5th to the 97.5th percentile of the differences.
    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 8 and 13.

    Pipelines that were trained several times, on draws of examples, say, are given with one row of predictions for each
    time; row i of a and of b belong together. The figure is then the mean over the rows, and rows are drawn with
    replacement like the clusters, independently of them. Source: Owen 2007, "The pigeonhole bootstrap", Annals of
    Applied Statistics 1(2). Of s times, their part of the variance comes out (s - 1) / s of what it should be: with 3
    it is a third too small, with 5 a fifth.

    Parameters
    ----------
    y
        True labels, shape (n,).
    a, b
        The two pipelines' predictions, shape (n,) or both (times, n).
    clusters
        Cluster of each row, shape (n,).
    n_boot, seed
        Number of draws and their seed.

    Raises
    ------
    InputError
        If lengths differ, there is no draw, a row has no cluster, or there are fewer than 2 clusters. Under 30
        clusters it warns.
    """
    y, a, b = (np.asarray(labels) for labels in (y, a, b))
    if a.shape != b.shape or a.ndim not in (1, 2) or not a.size or a.shape[-1:] != y.shape:
        raise InputError(
            f"paired_f1_difference: labels {y.shape}, predictions {a.shape} and {b.shape}: give one for each row, and "
            "as many times of each pipeline"
        )
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    if len({labels.dtype.kind in "biufc" for labels in (y, a, b)}) > 1:
        raise InputError("paired_f1_difference: some labels are numbers and some are text: no two would ever be equal")
    if n_boot < 1:
        raise InputError(f"paired_f1_difference: n_boot={n_boot}: needs at least 1 draw")
    groups, n_groups = _groups(clusters, len(y), "paired_f1_difference")
    classes, truth = np.unique(y, return_inverse=True)
    rng = np.random.default_rng(seed)
    times = len(a)
    counts = [
        [_counts(groups, n_groups, classes, truth, predicted) for predicted in pair] for pair in zip(a, b, strict=True)
    ]

    def difference(draws: np.ndarray, of_times: np.ndarray) -> np.ndarray:
        draws = draws.astype(float)
        found = np.column_stack([_f1(draws, *one) - _f1(draws, *other) for one, other in counts])
        return (found * of_times).sum(axis=1) / times

    estimate = difference(np.ones((1, n_groups)), np.ones((1, times)))[0]  # every cluster once is the sample itself
    shares, differences = np.full(n_groups, 1 / n_groups), np.empty(n_boot)
    drawn_times = rng.spawn(1)[0].multinomial(times, np.full(times, 1 / times), size=n_boot)
    for start in range(0, n_boot, _CHUNK):  # the draws come one after another: the chunk's size changes none of them
        part = differences[start : start + _CHUNK]
        draws = rng.multinomial(n_groups, shares, size=len(part))
        part[:] = difference(draws, drawn_times[start : start + _CHUNK])
    low, high = np.quantile(differences, [0.025, 0.975])
    return Interval(float(estimate), float(low), float(high))


def _counts(
    groups: np.ndarray, n_groups: int, classes: np.ndarray, truth: np.ndarray, predicted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of each class that each cluster has, that were found, and that were claimed; each (clusters, classes)."""
    at = np.searchsorted(classes, predicted).clip(max=len(classes) - 1)
    known = classes[at] == predicted  # a class that y does not have is wrong, and counted for no class

    def count(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        table = np.zeros((n_groups, len(classes)))
        np.add.at(table, (groups[rows], labels[rows]), 1)
        return table

    return count(np.ones(len(truth), dtype=bool), truth), count(known & (at == truth), truth), count(known, at)


def _f1(draws: np.ndarray, support: np.ndarray, hits: np.ndarray, claimed: np.ndarray) -> np.ndarray:
    """Macro-F1 of every draw, (draws,): how often each cluster is in it, (draws, clusters), weights the counts."""
    support, hits, claimed = draws @ support, draws @ hits, draws @ claimed
    with np.errstate(invalid="ignore"):  # a class that a draw lacks counts for nothing, not as 0
        f1 = np.where(support > 0, 2 * hits / (support + claimed), np.nan)
    return np.nanmean(f1, axis=1)


def _groups(clusters: ArrayLike, rows: int, where: str) -> tuple[np.ndarray, int]:
    """Clusters as 0, 1, 2, ... and their number, checked."""
    import pandas as pd

    # Asked of objects: beside text, numpy would make a word of NaN, and all rows without a cluster would be one.
    missing = np.asarray(pd.isna(np.asarray(clusters, dtype=object)))
    if missing.ndim != 1:
        raise InputError(f"{where}: clusters have shape {missing.shape}: give one name for each row")
    if len(missing) != rows:
        raise InputError(f"{where}: {rows} rows but {len(missing)} clusters given: give one for each row")
    if missing.any():
        raise InputError(f"{where}: row {missing.argmax()} has no cluster: fill it or drop the row")
    names, groups = np.unique(np.asarray(clusters), return_inverse=True)
    if len(names) < 2:
        raise InputError(f"{where}: {len(names)} cluster: an interval needs 2 at least, better {FEW_CLUSTERS}")
    if len(names) < FEW_CLUSTERS:
        warnings.warn(f"{where}: only {len(names)} clusters, the interval is too narrow", stacklevel=3)
    return groups, len(names)
