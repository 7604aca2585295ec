"""Choosing among recipes that were measured: which ones are worth a look, and which is the smallest that will do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING

from helpers.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def pareto_front(measured: pd.DataFrame, costs: Sequence[str]) -> pd.Series:
    """Which rows no other row beats: at most as costly in everything, and cheaper in something.

    Parameters
    ----------
    measured
        One row a recipe.
    costs
        Columns where less is better.

    Returns
    -------
    pandas.Series
        True or False for each row; of rows that are equal in all costs, each is on the front.

    Raises
    ------
    InputError
        If a column is missing or holds something that cannot be compared (NaN).
    """
    import pandas as pd

    values = _costs(measured, costs)
    beaten = [
        bool(((values <= row).all(axis=1) & (values < row).any(axis=1)).any()) for row in values.to_numpy(dtype=float)
    ]
    return ~pd.Series(beaten, index=measured.index, dtype=bool)


def smallest_within(measured: pd.DataFrame, bound: float, loss: str = "high", size: str = "mb") -> str:
    """Name of the smallest row whose loss is at most `bound`.

    Parameters
    ----------
    measured
        One row a recipe, named by the index.
    bound
        The most that may be lost, in units of the column `loss`.
    loss
        By default the upper end of the loss's interval: a row that truly loses just the bound looks better than that
        half the time.
    size
        What to make small.

    Raises
    ------
    InputError
        If the bound is no number, or no row is within it; the message names the nearest.
    """
    if isinstance(bound, bool) or not isinstance(bound, Real) or math.isnan(bound):
        raise InputError(f"smallest_within: bound={bound!r} is no number: give the most that may be lost")
    _costs(measured, [loss, size])
    fitting = measured[measured[loss] <= bound]
    if fitting.empty:
        nearest = measured[loss].idxmin()
        raise InputError(
            f"no recipe loses at most {bound:g}: the nearest is {nearest!r} with {measured[loss][nearest]:.4f}; "
            "measure on more texts, or allow more"
        )
    return str(fitting[size].idxmin())


def _costs(measured: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    missing = [name for name in columns if name not in measured]
    if missing or measured.empty:
        raise InputError(f"recipes: no column {missing[0]!r}" if missing else "recipes: no row, measure one first")
    values = measured[list(columns)]
    if values.isna().any(axis=None):
        name = values.isna().any(axis=1).idxmax()
        raise InputError(f"recipes: {name!r} was not measured in everything: measure it, or leave it out")
    return values
