"""Licence notices and full texts with the category of their licence, from licensedcode-data (CC-BY-4.0)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pandas as pd
import yaml

from helpers.data.cache import cached
from helpers.data.splits import FRACTIONS, assign, drop_repeated

CLASSES = {
    "Permissive": "permissive",
    "Copyleft": "copyleft",
    "Copyleft Limited": "copyleft-limited",
    "Public Domain": "public-domain",
    "Source-available": "source-available",
    "Free Restricted": "free-restricted",
    "Commercial": "proprietary",
    "Proprietary Free": "proprietary",
}
"""ScanCode category -> the course's label. Someone who clears a component decides the same on both proprietary ones.
Left out: contributor agreements, patent licences and "unstated", which are not an answer to "may I use this?"."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cached
def licences(rows_per_key: int = 100, min_words: int = 3, seed: int = 0) -> pd.DataFrame:
    """English licence notices and full licence texts with their category, split by licence key.

    Parameters
    ----------
    rows_per_key : the most texts of one licence key. Without it four keys (GPL-2.0, MIT, BSD, "proprietary") would be
        a quarter of the rows, and one side of the split.
    min_words : shorter notices ("GPL") say less than the file name they stand in.
    seed : of the split and of the texts kept for a crowded key.

    Returns
    -------
    DataFrame of strings: `text`, `label` (see `CLASSES`), `language` ("en"), `cluster` (licence key), `template`
    (file the text comes from), `kind` (notice or text), `split` (train, calibration, validation, test).
    """
    folder = Path(importlib.util.find_spec("licensedcode").submodule_search_locations[0]) / "data"
    category, rows = {}, []
    for path in sorted((folder / "licenses").glob("*.LICENSE")):
        about, text = _read(path)
        if about.get("is_deprecated") or about.get("language", "en") != "en" or about["category"] not in CLASSES:
            continue
        category[about["key"]] = CLASSES[about["category"]]
        rows.append((text, about["key"], path.name, "text"))
    for path in sorted((folder / "rules").glob("*.RULE")):
        raw = path.read_text(encoding="utf-8")
        if "is_license_notice: yes" not in raw and "is_license_text: yes" not in raw:
            continue
        about, text = _parse(raw)
        if about.get("is_deprecated") or about.get("is_false_positive") or about.get("language", "en") != "en":
            continue
        kind = "notice" if about.get("is_license_notice") else "text"
        rows.append((text, about["license_expression"], path.name, kind))
    frame = pd.DataFrame(rows, columns=["text", "cluster", "template", "kind"])
    frame["label"] = frame.cluster.map(category)  # NaN for an expression of several licences: no single answer
    frame = frame[frame.label.notna() & (frame.text.str.split().str.len() >= min_words)]
    frame = drop_repeated(frame.assign(language="en"))
    frame = frame.sample(frac=1, random_state=seed).groupby("cluster", sort=False).head(rows_per_key).sort_index()
    frame = frame.reset_index(drop=True)
    frame["split"] = assign(frame, FRACTIONS, seed)
    return frame[["text", "label", "language", "cluster", "template", "kind", "split"]]


def _read(path: Path) -> tuple[dict, str]:
    return _parse(path.read_text(encoding="utf-8"))


def _parse(raw: str) -> tuple[dict, str]:
    """Front matter and body of a ScanCode file; {{double braces}}, ScanCode's mark for words that must match, go."""
    _, front, body = re.split(r"^---[ \t]*$", raw, maxsplit=2, flags=re.MULTILINE)
    return yaml.load(front, Loader=_LOADER) or {}, re.sub(r"\{\{(.*?)\}\}", r"\1", body, flags=re.DOTALL).strip()
