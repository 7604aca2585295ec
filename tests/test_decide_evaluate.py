"""Intervals: against the libraries they rest on, and against simulation."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from helpers.decide import evaluate
from helpers.decide.evaluate import _counts, _f1, clustered_mean, macro_f1, paired_f1_difference, wilson
from helpers.decide.probe import fit_probe
from helpers.errors import InputError


def data(seed: int, clusters: int = 60, per: int = 8, classes: int = 5):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(clusters), per)
    y = rng.integers(0, classes, clusters)[groups]
    a, b = (np.where(rng.random(len(y)) < p, y, rng.integers(0, classes, len(y))) for p in (0.8, 0.7))
    return y, a, b, groups


def test_wilson() -> None:
    # Wilson 1927: (k + z^2/2 -+ z sqrt(k(n-k)/n + z^2/4)) / (n + z^2)
    z2 = 1.959964**2
    assert wilson(0, 10) == pytest.approx((0.0, z2 / (10 + z2)), abs=1e-6)
    low, high = wilson(45, 50)
    assert 0 < low < 0.9 < high < 1
    for k, n in ((0, 0), (-1, 5), (6, 5), (0.9, 1), (1, 2.9), (1, np.inf), (np.nan, 5)):
        with pytest.raises(InputError, match="at least one row"):
            wilson(k, n)


def test_clustered_mean_is_wider_when_rows_of_a_cluster_agree() -> None:
    rng = np.random.default_rng(0)
    per_cluster = rng.random(50)
    x, groups = np.repeat(per_cluster, 20), np.repeat(np.arange(50), 20)
    mean, low, high = clustered_mean(x, [f"block {g}" for g in groups])
    one_each = clustered_mean(per_cluster, np.arange(50))
    assert mean == pytest.approx(per_cluster.mean())
    assert high - low == pytest.approx(one_each.high - one_each.low, rel=0.05)  # copies are worth nothing
    naive = clustered_mean(x, np.arange(len(x)))
    assert high - low > 4 * (naive.high - naive.low)


def test_clusters_that_agree_by_chance_are_no_certainty() -> None:
    groups = np.repeat(np.arange(40), 4)
    equal = np.tile([0.0, 1, 1, 1], 40)  # each cluster's mean is 0.75
    almost = np.where(np.arange(160) == 0, 1, equal)
    wider = stats.t.ppf(0.975, 39) / stats.t.ppf(0.975, 159)  # 40 clusters, not 160 rows, say how sure the spread is
    for x in (equal, almost, equal * 3 - 7):
        found = clustered_mean(x, groups)
        by_row = sm.OLS(x, np.ones(160)).fit().conf_int()[0]
        assert found.estimate == pytest.approx(x.mean()) == pytest.approx((found.low + found.high) / 2)
        assert found.high - found.low == pytest.approx(wider * (by_row[1] - by_row[0]))


def test_where_rows_of_a_cluster_agree_the_interval_is_statsmodels() -> None:
    y, a, _, groups = data(1)
    right = (y == a) - 0.5 + np.random.default_rng(2).standard_normal(60)[groups]
    fit = sm.OLS(right, np.ones(len(right))).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    assert clustered_mean(right, groups) == pytest.approx((right.mean(), *fit.conf_int()[0]))


def test_what_has_not_one_dimension_is_refused() -> None:
    y, a, b, groups = data(0)
    pairs = np.column_stack([groups, groups])
    for call, words in (
        (lambda: clustered_mean(np.column_stack([y, y]), groups), r"x has shape \(480, 2\): give one number"),
        (lambda: clustered_mean(y.reshape(-1, 1), groups), r"x has shape \(480, 1\)"),
        (lambda: clustered_mean(0.5, [1]), r"x has shape \(\)"),
        (lambda: clustered_mean(y, pairs), r"clusters have shape \(480, 2\): give one name"),
        (lambda: clustered_mean(y, "one"), r"clusters have shape \(\)"),
        (lambda: paired_f1_difference(y, a, b, pairs, n_boot=10), r"clusters have shape \(480, 2\)"),
    ):
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)


def test_clusters_are_checked() -> None:
    y, a, b, groups = data(0)
    for call in (lambda g: clustered_mean(y, g), lambda g: paired_f1_difference(y, a, b, g, n_boot=10)):
        with pytest.raises(InputError, match="1 cluster"):
            call(np.zeros(len(y)))
        with pytest.raises(InputError, match="one for each row"):
            call(groups[:-1])
        with pytest.warns(UserWarning, match="only 6 clusters"):
            call(groups % 6)
    with pytest.raises(InputError, match="row 0"):
        clustered_mean(np.where(groups == groups[2], np.nan, y)[2:], groups[2:])
    with pytest.raises(InputError, match="one for each row"):
        paired_f1_difference(y, a[:-1], b, groups)
    with pytest.raises(InputError, match="n_boot=0"):
        paired_f1_difference(y, a, b, groups, n_boot=0)


@pytest.mark.parametrize("missing", [None, float("nan"), np.datetime64("NaT"), pd.NA])
def test_rows_without_a_cluster_are_refused(missing: object) -> None:
    y, a, b, groups = data(0)
    for names in ([f"block {g}" for g in groups], groups.tolist()):
        names[4] = missing
        for clusters in (names, pd.Series(names, dtype=object)):
            with pytest.raises(InputError, match="row 4 has no cluster"):
                clustered_mean(y, clusters)
            with pytest.raises(InputError, match="row 4 has no cluster"):
                paired_f1_difference(y, a, b, clusters, n_boot=10)


def test_interval_of_shares_has_a_width_and_stays_inside() -> None:
    groups = np.repeat(np.arange(40), 5)
    assert clustered_mean(np.ones(200), groups) == (1, *wilson(40, 40))  # 40 clusters, not 200 rows
    assert clustered_mean(np.zeros(200, dtype=bool), groups) == (0, *wilson(0, 40))
    almost = clustered_mean(np.arange(200) != 7, groups)
    assert almost.estimate == pytest.approx(0.995) and 0.98 < almost.low < almost.high == 1
    assert clustered_mean(np.arange(200) == 7, groups).low == 0
    assert clustered_mean((np.arange(200) != 7) * 1.5, groups).high > 1.5  # no share: not cut off


def test_difference_of_shares_may_lie_on_both_sides_of_nothing() -> None:
    """No row of the sample is below 0, and yet the true difference may be."""
    groups = np.repeat(np.arange(40), 5)
    high = wilson(0, 40)[1]
    assert clustered_mean(np.zeros(200), groups, signed=True) == (0, -high, high)
    once = (np.arange(200) == 7).astype(float)
    assert clustered_mean(once, groups, signed=True).low < 0 == clustered_mean(once, groups).low
    assert clustered_mean(-once, groups, signed=True).high > 0
    with pytest.raises(InputError, match=r"x reaches 1\.5"):
        clustered_mean(once * 1.5, groups, signed=True)


@given(st.integers(0, 1000))
def test_difference_is_sklearns(seed: int) -> None:
    y, a, b, groups = data(seed, clusters=31)
    found = paired_f1_difference(y, a, b, groups, n_boot=20, seed=seed)
    expected = [f1_score(y, p, labels=np.unique(y), average="macro") for p in (a, b)]
    assert found.estimate == pytest.approx(expected[0] - expected[1])
    assert macro_f1(y, a) == pytest.approx(expected[0])


def test_draws_are_those_of_resampled_rows() -> None:
    """The weighted counts give what scoring the repeated rows gives."""
    y, a, _, groups = data(3, clusters=10, per=4, classes=3)
    draw = np.random.default_rng(1).multinomial(10, np.full(10, 0.1))
    rows = np.concatenate([np.repeat(np.flatnonzero(groups == g), n) for g, n in enumerate(draw)])
    classes, truth = np.unique(y, return_inverse=True)
    got = _f1(draw[None].astype(float), *_counts(groups, 10, classes, truth, a))[0]
    assert got == pytest.approx(f1_score(y[rows], a[rows], labels=np.unique(y[rows]), average="macro"))


def test_chunks_change_memory_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    y, a, b, groups = data(5, clusters=20_000, per=1)
    tracemalloc.start()
    found = paired_f1_difference(y, a, b, groups, n_boot=300, seed=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * 20_000 * 8  # less than all draws once
    for chunk in (7, 300):
        monkeypatch.setattr(evaluate, "_CHUNK", chunk)
        assert paired_f1_difference(y, a, b, groups, n_boot=300, seed=2) == found


def test_several_times_are_averaged_and_drawn_too() -> None:
    y, a, b, groups = data(1)
    other = data(2)[1]
    once = paired_f1_difference(y, a, b, groups, n_boot=200, seed=3)
    assert paired_f1_difference(y, a[None], b[None], groups, n_boot=200, seed=3) == once
    same = paired_f1_difference(y, np.stack([a, a]), np.stack([b, b]), groups, n_boot=200, seed=3)
    assert same == pytest.approx(once)  # two equal times say no more than one
    two = paired_f1_difference(y, np.stack([a, other]), np.stack([b, b]), groups, n_boot=200, seed=3)
    expected = np.mean([macro_f1(y, a), macro_f1(y, other)]) - macro_f1(y, b)
    assert two.estimate == pytest.approx(expected)
    assert two.high - two.low > 2 * (once.high - once.low)  # the times differ more than the clusters do
    for wrong in (np.stack([a, a, a]), a, np.empty((0, len(y))), a[:, None]):
        with pytest.raises(InputError, match="one for each row"):
            paired_f1_difference(y, wrong, np.stack([b, b]), groups)


def test_interval_over_times_and_clusters_covers() -> None:
    """No true difference, but every time has a luck of its own, the same for all its rows."""
    covered, clusters_only = 0, 0
    for seed in range(60):
        y, _, _, groups = data(seed)
        rng = np.random.default_rng(seed + 2000)

        def answers(rng=rng, y=y):
            right = rng.normal(0.75, 0.08, 8).clip(0, 1)
            return np.stack([np.where(rng.random(len(y)) < p, y, rng.integers(0, 5, len(y))) for p in right])

        a, b = answers(), answers()
        low, high = paired_f1_difference(y, a, b, groups, n_boot=300, seed=seed)[1:]
        covered += low <= 0 <= high
        low, high = paired_f1_difference(y, a[0], b[0], groups, n_boot=300, seed=seed)[1:]
        clusters_only += low <= 0 <= high
    assert covered >= 50 > clusters_only


def test_interval_covers_and_is_repeatable() -> None:
    """No true difference: 95 % intervals hold 0 most of the time; labels may be text, predictions unknown ones."""
    covered = 0
    for seed in range(60):
        y, a, _, groups = data(seed)
        rng = np.random.default_rng(seed + 1000)
        b = np.where(rng.random(len(y)) < 0.8, y, rng.integers(0, 5, len(y)))
        low, high = paired_f1_difference(y, a, b, groups, n_boot=300, seed=seed)[1:]
        covered += low <= 0 <= high
    assert covered >= 50
    y, a, b, groups = data(0)
    names = np.array(list("vwxyz"))
    other = np.where(np.arange(len(y)) % 7 == 0, "never seen", names[b])
    one, two = (paired_f1_difference(names[y], names[a], other, groups, n_boot=50, seed=1) for _ in range(2))
    assert one == two and one.low <= one.estimate <= one.high


def test_probe_learns_and_repeats() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3, 8))
    labels = rng.integers(0, 3, 300)
    points = centres[labels] + 0.3 * rng.standard_normal((300, 8))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    names = np.array(["a", "b", "c"])[labels]
    one, two = (fit_probe(points[:200], names[:200], seed=1).predict(points[200:]) for _ in range(2))
    assert (one == two).all() and (one == names[200:]).mean() > 0.9


def test_labels_of_two_kinds_are_refused() -> None:
    """0 is not "0", so every answer would be wrong, and two pipelines equally so."""
    numbers, texts = np.arange(40) % 2, np.array(["0", "1"] * 20)
    with pytest.raises(InputError, match="some are text"):
        paired_f1_difference(numbers, texts, texts, np.arange(40), n_boot=10)
    assert paired_f1_difference(numbers, numbers, numbers.astype(float), np.arange(40), n_boot=10).estimate == 0
