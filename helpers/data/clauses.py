"""Documents whose class is decided in two places far apart, put together from paragraphs of licence texts.

The licences as they are speak of their category all along. These documents do not: a paragraph about patents near the
start, or none, and one about export near the end, or none, among paragraphs about neither.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from helpers.data.splits import normalise
from helpers.errors import InputError

TOPICS = {"patent": r"patent", "export": r"\bexport"}
"""Topic -> the word that a paragraph about it has three times or more."""

OTHERS = r"patent|\bexport|trademark|court|jurisdiction|government|privacy|\bfees?\b"
"""What filler does not mention, so that it is about none of a licence's other special clauses either."""

_WORDS = (40, 200)  # of a paragraph
_SIDES = {"train": "train", "validation": "validation", "calibration": "test", "test": "test"}


def paragraphs(licences: pd.DataFrame) -> pd.DataFrame:
    """Paragraphs of 40 to 200 words about exactly one topic of `TOPICS`, or about none of `OTHERS` ("filler").

    Parameters
    ----------
    licences : what `helpers.data.licences` returns.

    Returns
    -------
    DataFrame of strings: `text`, `topic`, `cluster` (licence key), `split`. A paragraph that several texts share is
    kept once, on the side of the first.
    """
    frame = licences.assign(text=licences.text.str.split(r"\n[ \t]*\n", regex=True)).explode("text")
    frame = frame[frame.text.str.split().str.len().between(*_WORDS)]
    lower = normalise(frame.text)
    frame = frame[~lower.duplicated()]
    lower = lower[~lower.duplicated()]
    counts = pd.DataFrame({topic: lower.str.count(word) for topic, word in TOPICS.items()})
    others = lower.str.count(OTHERS) - counts.sum(axis=1)
    about = (counts >= 3) & (counts > 0).sum(axis=1).eq(1).to_numpy()[:, None] & others.eq(0).to_numpy()[:, None]
    filler = ~lower.str.contains(OTHERS)
    frame["topic"] = np.where(filler, "filler", np.where(about.any(axis=1), about.idxmax(axis=1), ""))
    return frame.loc[frame.topic != "", ["text", "topic", "cluster", "split"]].reset_index(drop=True)


def two_clauses(licences: pd.DataFrame, each: int = 3, length: int = 10, seed: int = 0) -> pd.DataFrame:
    """Documents with or without a patent paragraph near the start and an export paragraph near the end.

    The licence keys of a side are dealt into as many bundles as there are keys with an export paragraph, and a document
    takes all its paragraphs from one bundle. So documents of different bundles share nothing, and the bundle is the
    cluster.

    Parameters
    ----------
    licences : what `helpers.data.licences` returns. Its calibration and test sides serve as test.
    each : documents of each of the four combinations in each bundle.
    length : paragraphs of a document; the second is the patent paragraph's place, the last but one the export's.
    seed : of everything drawn.

    Returns
    -------
    DataFrame: `text`, `patent`, `export`, `both` (bool), `cluster`, `split` (train, validation, test).

    Raises
    ------
    InputError : if each is below 1, length below 4, or a side lacks paragraphs on a topic.
    """
    if each < 1 or length < 4:
        raise InputError(f"two_clauses: each={each}, length={length}: give 1 and 4 or more")
    rng, rows = np.random.default_rng(seed), []
    found = paragraphs(licences)
    for side, frame in found.groupby(found.split.map(_SIDES), sort=True):
        for number, pools in enumerate(_bundles(frame, side, rng)):
            for patent, export in [(False, False), (False, True), (True, False), (True, True)] * each:
                parts = [_draw(pools["filler"], rng) for _ in range(length)]
                if patent:
                    parts[1] = _draw(pools["patent"], rng)
                if export:
                    parts[-2] = _draw(pools["export"], rng)
                rows.append(("\n\n".join(parts), patent, export, patent and export, f"{side}-{number}", side))
    return pd.DataFrame(rows, columns=["text", "patent", "export", "both", "cluster", "split"])


Pools = dict[str, list[list[str]]]


def _bundles(frame: pd.DataFrame, side: str, rng: np.random.Generator) -> list[Pools]:
    """For each bundle: topic -> the texts of each of its keys."""
    keys = {topic: rng.permutation(frame[frame.topic == topic].cluster.unique()) for topic in (*TOPICS, "filler")}
    rarest = min(keys, key=lambda topic: len(keys[topic]))
    count = len(keys[rarest])
    if not count:
        raise InputError(f"two_clauses: no paragraph about {rarest} on the {side} side: give more texts")
    # A key with paragraphs on several topics goes where its rarest topic was dealt, so that bundles share no key.
    home: dict[str, int] = {}
    for topic in sorted(keys, key=lambda topic: len(keys[topic])):
        taken = {home[key] for key in keys[topic] if key in home}
        free = [number for number in range(count) if number not in taken]
        new = [key for key in keys[topic] if key not in home]
        home.update(zip(new, [*free, *(at % count for at in range(len(new)))], strict=False))
    pools: list[Pools] = [{topic: [] for topic in keys} for _ in range(count)]
    for (key, topic), group in frame.groupby(["cluster", "topic"], sort=True):
        pools[home[key]][topic].append(group.text.tolist())
    return [bundle for bundle in pools if all(bundle.values())]


def _draw(pool: list[list[str]], rng: np.random.Generator) -> str:
    """A paragraph: first a key, so that one long licence does not fill the documents, then one of its texts."""
    texts = pool[rng.integers(len(pool))]
    return texts[rng.integers(len(texts))]
