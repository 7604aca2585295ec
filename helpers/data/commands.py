"""Spoken commands for a home, sampled from the sentence templates of home-assistant-intents (Apache-2.0).

A *block* is one entry of an intent's data in one language: a handful of sentence templates that mean the same thing
under the same conditions. Sentences of one block are near copies of each other, so the block, not the row, is what the
course splits by and what its standard errors are clustered by.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping

import home_assistant_intents
import numpy as np
import pandas as pd
import yaml
from hassil.expression import Alternative, Expression, Group, ListReference, Permutation, RuleReference, TextChunk
from hassil.intents import Intents, RangeSlotList, SlotList, TextSlotList
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from helpers import ROOT
from helpers.data.cache import cached
from helpers.data.splits import FRACTIONS, assign, drop_repeated
from helpers.errors import InputError

HOME = ROOT / "data" / "home.yaml"

LANGUAGES = (
    "ar", "cs", "da", "de", "el", "en", "es", "fi", "fr", "hu", "it", "ko", "nl", "pl", "pt-BR", "ro", "ru", "sv", "uk",
    "zh-CN",
)  # fmt: skip

UNKNOWN_INTENTS = (
    "HassBroadcast",
    "HassClimateSetFanMode",
    "HassGetCurrentDate",
    "HassGetWeather",
    "HassVacuumCleanArea",
)
"""Intents no classifier of the course ever sees in training: what the system must notice that it does not know."""

ROWS_PER_BLOCK = {"train": 20, "calibration": 20, "validation": 44, "test": 20, "unknown": 20}
"""At most this many distinct sentences of a block, by split; validation needs 50,000 rows to see a loss of 0.005."""


@functools.cache
def home() -> dict:
    """The home that commands speak of (data/home.yaml): floors, areas, devices and free phrases by language."""
    return yaml.safe_load(HOME.read_text(encoding="utf-8"))


@cached
def commands(
    languages: tuple[str, ...] = LANGUAGES, rows_per_block: Mapping[str, int] = ROWS_PER_BLOCK, seed: int = 0
) -> pd.DataFrame:
    """Commands in about twenty languages with their intent, split by template block.

    Parameters
    ----------
    languages : codes from `LANGUAGES`.
    rows_per_block : the most distinct sentences drawn from a block, by split.
    seed : of the split and of the sentences drawn.

    Returns
    -------
    DataFrame of strings: `text`, `label` (intent), `language`, `cluster` (block), `template` (the sentence template
    the text was drawn from), `split` (train, calibration, validation, test, or unknown for `UNKNOWN_INTENTS`). No
    cluster and no text stands in two splits, no text twice, no text under two labels.

    Raises
    ------
    InputError : a language that data/home.yaml does not speak.
    """
    if strange := set(languages) - set(LANGUAGES):
        raise InputError(
            f"commands: data/home.yaml does not speak {sorted(strange)}; choose from {', '.join(LANGUAGES)}"
        )
    blocks = pd.concat([_blocks(language) for language in languages], ignore_index=True)
    unknown = blocks.label.isin(UNKNOWN_INTENTS)
    # a known intent's block that shares a template with an unknown intent would teach what must stay unknown
    blocks = blocks[unknown | ~blocks.cluster.isin(blocks.cluster[unknown])].reset_index(drop=True)
    blocks["split"] = assign(blocks[~blocks.label.isin(UNKNOWN_INTENTS)], FRACTIONS, seed).reindex(blocks.index)
    blocks["split"] = blocks.split.fillna("unknown")
    rows = [
        (text, block.label, block.language, block.cluster, template, block.split)
        for block in blocks.itertuples()
        for text, template in _sentences(block.block, block.language, rows_per_block[block.split], seed)
    ]
    frame = pd.DataFrame(rows, columns=["text", "label", "language", "cluster", "template", "split"])
    return drop_repeated(frame)


@functools.cache
def _intents(language: str) -> Intents:
    return Intents.from_dict(home_assistant_intents.get_intents(language))


def _blocks(language: str) -> pd.DataFrame:
    """Blocks of a language: label, language, cluster, block. Blocks that share a template share a cluster."""
    blocks = [(name, block) for name, intent in _intents(language).intents.items() for block in intent.data]
    templates = [[_template(sentence) for sentence in block.sentence_texts] for _, block in blocks]
    columns = {template: j for j, template in enumerate(sorted({t for block in templates for t in block}))}
    i = [i for i, block in enumerate(templates) for _ in block]
    j = [columns[template] for block in templates for template in block]
    shares = coo_array((np.ones(len(i)), (i, j)), shape=(len(blocks), len(columns))).tocsr()
    _, component = connected_components(shares @ shares.T, directed=False)
    return pd.DataFrame(
        {
            "label": [name for name, _ in blocks],
            "language": language,
            "cluster": [f"{language}-{c:03d}" for c in component],
            "block": range(len(blocks)),
        }
    )


def _template(sentence: str) -> str:
    return re.sub(r"\s+", " ", sentence).strip()


def _sentences(block: int, language: str, most: int, seed: int) -> Iterator[tuple[str, str]]:
    """Distinct (text, template) pairs of one block, at most `most`; a poor block gives fewer."""
    intents = _intents(language)
    data = [data for intent in intents.intents.values() for data in intent.data][block]
    rng = random.Random(f"{seed} {language} {block}")
    lists = _home_lists(language, _domains(data))
    rules = {**intents.expansion_rules, **data.expansion_rules}
    sentences = list(zip(data.sentences, map(_template, data.sentence_texts), strict=True))
    seen: set[str] = set()
    for _ in range(6 * most):
        sentence, template = rng.choice(sentences)
        text = _template(_draw(sentence.expression, rng, {**intents.slot_lists, **data.slot_lists, **lists}, rules))
        if text and text not in seen:
            seen.add(text)
            yield text, template
        if len(seen) == most:
            return


def _draw(node: Expression, rng: random.Random, lists: Mapping[str, SlotList | list[str]], rules: Mapping) -> str:
    """One sentence of a hassil expression, every choice drawn uniformly (hassil.sample lists them all, in order)."""
    match node:
        case TextChunk():
            return node.original_text
        case Alternative():
            return _draw(rng.choice(node.items), rng, lists, rules)
        case Permutation():
            return " ".join(_draw(item, rng, lists, rules) for item in rng.sample(node.items, len(node.items)))
        case Group():
            return "".join(_draw(item, rng, lists, rules) for item in node.items)
        case RuleReference():
            return _draw(rules[node.rule_name].expression, rng, lists, rules)
        case ListReference():
            values = lists[node.list_name]
            if isinstance(values, RangeSlotList):
                return str(rng.choice(list(values.get_numbers())))
            if isinstance(values, TextSlotList):
                return _draw(rng.choice(values.values).text_in, rng, lists, rules)
            return rng.choice(values)
    raise TypeError(f"commands: hassil gave a {type(node).__name__}, which this version of the course does not know")


def _domains(data) -> set[str]:
    """Kinds of device a block's {name} may stand for; empty when it does not say."""
    domains = set()
    for source in (data.slots, data.requires_context):
        value = source.get("domain", []) if source else []
        value = value.get("value", []) if isinstance(value, dict) else value
        domains |= {value} if isinstance(value, str) else set(value)
    return domains


def _home_lists(language: str, domains: set[str]) -> dict[str, list[str]]:
    """Values of the lists that templates leave to the home; names of the block's kinds of device if there are any."""
    spec = home()
    names = [d["names"][language] for d in spec["devices"].values() if d["domain"] in domains]
    things = [
        d["names"][language] for d in spec["devices"].values() if d["domain"] not in {"person", "weather", "todo"}
    ]
    return {
        "name": names or things,
        "area": [area["names"][language] for area in spec["areas"].values()],
        "floor": [floor[language] for floor in spec["floors"].values()],
        **{phrase: values[language] for phrase, values in spec["phrases"].items()},
    }
