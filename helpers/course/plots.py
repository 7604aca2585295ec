"""One look for every picture: colours that colour-blind people can tell apart, letters a back row can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Okabe & Ito (2008), "Color Universal Design". Yellow is left out: on white, nobody sees it through a projector.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def use_style() -> None:
    """Set matplotlib's defaults for the course; call it once, in the setup cell."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=PALETTE),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "figure.figsize": (9, 5),  # fits a slide without scaling
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
            "font.size": 15,
            "axes.titlesize": 17,
            "legend.frameon": False,
            "lines.linewidth": 2.5,
            "lines.markersize": 8,
        }
    )


def heat(ax: Axes, frame: pd.DataFrame, form: str = "{:.3f}", *, by_column: bool = False) -> Axes:
    """Draw a table as a heat map with its numbers in it, darker for more.

    Parameters
    ----------
    ax
        Axes to draw on.
    frame
        Numbers; rows and columns keep their names.
    form
        How a number is written.
    by_column
        Each column has a scale of its own: for columns in different units.
    """
    values = frame.to_numpy(dtype=float)
    low, high = (f(values, axis=0 if by_column else None) for f in (np.nanmin, np.nanmax))
    shades = (values - low) / np.where(high > low, high - low, 1)
    ax.imshow(shades, cmap="cividis_r", vmin=0, vmax=1, aspect="auto")
    ax.set_xticks(range(frame.shape[1]), frame.columns)
    ax.set_yticks(range(frame.shape[0]), frame.index)
    ax.grid(False)
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if shades[row, column] > 0.55 else "black"
        ax.text(column, row, form.format(value), ha="center", va="center", color=colour, fontsize=12)
    return ax


def intervals(ax: Axes, rows: Sequence[tuple[str, float, float, float]], *, reference: float | None = None) -> Axes:
    """Draw figures with their intervals as dots on lines, first row on top.

    Parameters
    ----------
    ax
        Axes to draw on.
    rows
        (label, value, low, high) each; low <= value <= high, any unit.
    reference
        Where to draw a dashed line, such as 1 for ratios.
    """
    labels, values, lows, highs = zip(*rows, strict=True)
    heights = range(len(rows))
    # a bootstrap interval need not hold its estimate, and matplotlib refuses a negative length
    errors = [
        [max(v - lo, 0) for v, lo in zip(values, lows, strict=True)],
        [max(h - v, 0) for v, h in zip(values, highs, strict=True)],
    ]
    ax.errorbar(values, heights, xerr=errors, fmt="o", capsize=5)
    ax.set_yticks(heights, labels)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    if reference is not None:
        ax.axvline(reference, linestyle="--", color="#666666", linewidth=1.5)
    return ax
