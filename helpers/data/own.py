"""A reader's own texts: one CSV or parquet file."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.data.splits import FRACTIONS, assign, drop_repeated, normalise
from helpers.errors import InputError

SOME = 8  # clusters of one class: each side then gets one, and two classes make two
COLUMNS = "text, label, and if you have them cluster and language"


def own(path: str | Path, seed: int = 0) -> pd.DataFrame:
    """A CSV (UTF-8, comma) or parquet file with columns text, label and optionally cluster, language.

    Returns
    -------
    DataFrame as `commands` gives it: `text`, `label`, `language` ("und" when the file names none), `cluster` (each
    distinct text its own when the file names none), `template`, `split`. A text that stands several times is kept
    once, a text under several labels not at all; `frame.attrs["dropped"]` counts those rows.

    Raises
    ------
    InputError : one line naming the file, the column and the row (counted as in a spreadsheet, blank rows too).
    """
    path = Path(path)
    frame = _read(path)
    for column in ("text", "label"):
        if column not in frame.columns:
            raise InputError(
                f"{path.name}: no column '{column}'; found {', '.join(map(str, frame.columns))}; needed: {COLUMNS}"
            )
    if len(double := frame.columns[frame.columns.duplicated()]):
        raise InputError(f"{path.name}: column '{double[0]}' stands twice; rename one of them")
    if frame.empty:
        raise InputError(f"{path.name}: no rows below the header")
    for column in [c for c in ("text", "label", "cluster", "language") if c in frame.columns]:
        if (
            strange := frame[column].map(lambda cell: isinstance(cell, (list, tuple, dict, set, bytes, np.ndarray)))
        ).any():
            kind = type(frame[column][strange].iloc[0]).__name__
            raise InputError(f"{path.name}: column '{column}' holds {kind}, not text; write one text in each cell")
        frame[column] = frame[column].astype("string").str.strip()
        empty = frame[column].isna() | (frame[column] == "")
        if empty.any():
            where = frame.index[empty]
            more = f" (and {len(where) - 1} more)" if len(where) > 1 else ""
            raise InputError(
                f"{path.name}: column '{column}' is empty in row {where[0] + 2}{more}; fill it or drop the row"
            )
        frame[column] = frame[column].astype(str)
    if "language" not in frame.columns:
        frame["language"] = "und"
    if "cluster" not in frame.columns:
        frame["cluster"] = normalise(frame.text)
    kept = drop_repeated(frame.assign(template=frame.cluster)[["text", "label", "language", "cluster", "template"]])
    if kept.empty:
        raise InputError(
            f"{path.name}: no rows are left: every text stands under several labels; give each text one label"
        )
    if kept.label.nunique() < 2:
        raise InputError(
            f"{path.name}: column 'label' has one class ('{kept.label.iloc[0]}') after repeated texts are dropped; "
            "a decision needs at least two"
        )
    kept["split"] = assign(kept, FRACTIONS, seed)
    _check_sides(path, kept)
    kept.attrs["dropped"] = len(frame) - len(kept)
    return kept


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(f"DATA={path}: no such file")
    try:
        if path.suffix.lower() == ".csv":
            return _csv(path)
        if path.suffix.lower() in {".parquet", ".pq"}:
            return pd.read_parquet(path).reset_index(drop=True)  # a row's number is its place, whatever the index
    except InputError:
        raise
    except (pd.errors.ParserError, pd.errors.EmptyDataError, OSError, ValueError) as error:
        raise InputError(f"{path.name}: cannot be read: {' '.join(str(error).split())}") from None
    raise InputError(f"{path.name}: ends in '{path.suffix}'; give a .csv or .parquet file with columns {COLUMNS}")


def _csv(path: Path) -> pd.DataFrame:
    """Every cell as text; read without a header first, for pandas renames a column that stands twice."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            # pandas takes the number of columns from the first row that it reads: that must be the header
            blank = sum(1 for _ in takewhile(lambda line: not line.strip(" \t\n,"), lines))
            lines.seek(0)
            rows = pd.read_csv(
                lines,
                dtype=str,
                header=None,
                skiprows=blank,  # skipped by pandas, whose messages then count them
                keep_default_na=False,
                na_values=[""],
                skip_blank_lines=False,
            )
    except UnicodeDecodeError:
        raise InputError(f"{path.name}: not UTF-8 at {_not_utf8(path.read_bytes())}; save it as 'CSV UTF-8'") from None
    rows.index += blank
    rows = rows.dropna(how="all")  # blank lines; the index still counts them, so a row keeps the spreadsheet's number
    if rows.empty:
        raise pd.errors.EmptyDataError("all rows are blank")
    return rows.iloc[1:].set_axis(rows.iloc[0].astype(str).str.strip(), axis=1).rename(index=lambda row: row - 1)


def _not_utf8(content: bytes) -> str:
    """Place of the first byte that is not UTF-8; pandas reads in blocks and counts from the start of its block."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} (line {len(content[: error.start + 1].splitlines())})"
    return "an unknown byte"  # somebody has mended the file meanwhile


def _check_sides(path: Path, frame: pd.DataFrame) -> None:
    """Refuse what is too small to train on, calibrate, and test with an interval."""
    clusters = frame.groupby("split").cluster.nunique().reindex(list(FRACTIONS), fill_value=0)
    classes = frame.label[frame.split == "train"].nunique()
    if clusters.min() < 2 or classes < 2:
        sides = ", ".join(f"{side} {n}" for side, n in clusters.items())
        raise InputError(
            f"{path.name}: too few texts to split: {frame.cluster.nunique()} clusters give {sides}, with {classes} "
            f"classes to train on; a side needs 2 clusters, training 2 classes: {SOME} distinct texts a class will do"
        )
