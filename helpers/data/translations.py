"""Short strings of the home domain in many languages, from the wheels of Home Assistant (Apache-2.0)."""

from __future__ import annotations

import collections
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from helpers.data.commands import LANGUAGES

HA_CODE = {"zh-CN": "zh-Hans"}
"""Our language code -> the file name in the wheel, where they differ."""

_CORE = re.compile(r"homeassistant/components/([^/]+)/translations/([^/]+)\.json$")
_FRONTEND = re.compile(r"hass_frontend/static/translations/(?:([a-z-]+)/)?([A-Za-z-]+)-[0-9a-f]{32}\.json$")


def translations(
    wheels: Iterable[Path], languages: tuple[str, ...] = LANGUAGES, fewest: int = 3, longest: int = 160
) -> pd.DataFrame:
    """Every string with its English: columns `english`, `language`, `text`; the English itself is a row too.

    Parameters
    ----------
    wheels : paths of the homeassistant wheel and, for more text (and nearly all of the Arabic), of its frontend's.
    languages : the course's codes.
    fewest : English strings with fewer translations than this are left out: product names, units, placeholders.
    longest : characters; longer strings are help texts, which cost the teacher most and say least about commands.
    """
    ours = {HA_CODE.get(code, code): code for code in languages}
    strings: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                match = _CORE.match(name) or _FRONTEND.match(name)
                if match and match[2] in ours:
                    for key, value in _flat(json.loads(archive.read(name))):
                        if 2 <= len(text := _clean(value)) <= longest:
                            strings[f"{match.re.pattern[:4]}.{match[1]}.{key}"][ours[match[2]]] = text
    by_english: dict[str, dict[tuple[str, str], None]] = collections.defaultdict(dict)
    for group in strings.values():
        if english := group.get("en"):
            by_english[english].update({(code, text): None for code, text in group.items() if text != english})
    rows = [
        (english, code, text)
        for english, others in by_english.items()
        if len({code for code, _ in others}) >= fewest
        for code, text in [("en", english), *others]
    ]
    return pd.DataFrame(rows, columns=["english", "language", "text"])


def _flat(node: dict, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield prefix + key, value


def _clean(text: str) -> str:
    """Without Markdown marks and link targets in placeholders, white space collapsed."""
    return re.sub(r"\s+", " ", re.sub(r"[*_`#\[\]]|\(\{?[a-z_]+\}?\)", "", text)).strip()
