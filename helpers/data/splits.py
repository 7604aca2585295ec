"""Splits by cluster: rows of one cluster are near copies, so a cluster stands on one side only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers.errors import InputError

FRACTIONS: Mapping[str, float] = {"train": 0.40, "calibration": 0.15, "validation": 0.30, "test": 0.15}
"""Share of the clusters in each split."""


def normalise(text: pd.Series) -> pd.Series:
    """Texts as compared for identity: Unicode NFKC, case folded, white space collapsed."""
    return text.str.normalize("NFKC").str.casefold().str.replace(r"\s+", " ", regex=True).str.strip()


def assign(frame: pd.DataFrame, fractions: Mapping[str, float] = FRACTIONS, seed: int = 0) -> pd.Series:
    """A split name for each row, constant within a cluster, every label in every split if it has a cluster for each.

    A label with fewer clusters than splits serves the largest splits first.

    Parameters
    ----------
    frame : rows with `label` and `cluster`; a cluster with several labels is counted under its most frequent.
    fractions : share of a label's clusters by split name; adds up to 1.
    seed : of the order in which clusters are dealt.

    Returns
    -------
    Series of split names on the frame's index.
    """
    if abs(sum(fractions.values()) - 1) > 1e-9:
        raise InputError(f"split: fractions add up to {sum(fractions.values()):.3f}, not 1")
    rng = np.random.default_rng(seed)
    counts = frame.groupby(["cluster", "label"], sort=True).size().reset_index(name="rows")
    main = counts.sort_values(["cluster", "rows", "label"], ascending=[True, False, True]).drop_duplicates("cluster")
    names, bounds = list(fractions), np.cumsum(list(fractions.values()))
    split_of: dict[str, str] = {}
    for _, group in main.groupby("label", sort=True):
        clusters = rng.permutation(group.cluster.to_numpy())
        # systematic sampling: a random start keeps the shares right on average
        at = (np.arange(len(clusters)) + rng.random()) / len(clusters)
        sides = np.minimum(np.searchsorted(bounds, at, side="right"), len(names) - 1)
        if len(clusters) * min(fractions.values()) < 1:  # its steps could skip the smallest split: one each instead
            sides = np.resize(np.argsort([-share for share in fractions.values()], kind="stable"), len(clusters))
        split_of.update(zip(clusters, (names[side] for side in rng.permutation(sides)), strict=True))
    return frame.cluster.map(split_of)


def drop_repeated(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep each text once. A text under several labels goes altogether: no answer to it would be right.

    Two texts are the same when they are equal after `normalise`. Which copy stays does not depend on chance: the first.
    """
    key = normalise(frame.text)
    labels = frame.groupby(key).label.transform("nunique")
    return frame[(labels == 1) & ~key.duplicated()].reset_index(drop=True)
