"""Documents decided in two places: balanced, independent between clusters, and about what they say."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from helpers import data
from helpers.data.clauses import OTHERS, TOPICS, paragraphs, two_clauses
from helpers.errors import InputError


@pytest.fixture(scope="module")
def licences() -> pd.DataFrame:
    return data.licences()


@pytest.fixture(scope="module")
def documents(licences: pd.DataFrame) -> pd.DataFrame:
    return two_clauses(licences, each=2)


def test_a_paragraph_is_about_one_topic_or_none(licences: pd.DataFrame) -> None:
    found = paragraphs(licences)
    assert set(found.topic) == {*TOPICS, "filler"}
    assert found.text.str.split().str.len().between(40, 200).all()
    for topic, word in TOPICS.items():
        others = [w for t, w in TOPICS.items() if t != topic]
        texts = found[found.topic == topic].text.str.lower()
        assert (texts.str.count(word) >= 3).all() and not texts.str.contains("|".join(others)).any()
    assert not found[found.topic == "filler"].text.str.contains(OTHERS, case=False).any()
    assert not data.normalise(found.text).duplicated().any()


def test_every_bundle_has_the_four_combinations_equally_often(documents: pd.DataFrame) -> None:
    counts = documents.groupby(["cluster", "patent", "export"]).size()
    assert (counts == 2).all() and len(counts) == 4 * documents.cluster.nunique()
    assert (documents.both == (documents.patent & documents.export)).all()
    assert documents.groupby("split").cluster.nunique().min() >= 20


def test_a_document_says_what_its_label_says_where_it_should(documents: pd.DataFrame) -> None:
    for text, patent, export in documents[["text", "patent", "export"]].itertuples(index=False):
        parts = re.split(r"\n\n", text)
        assert len(parts) == 10
        assert ("patent" in text.lower()) == ("patent" in parts[1].lower()) == patent
        assert bool(re.search(r"\bexport", text.lower())) == bool(re.search(r"\bexport", parts[-2].lower())) == export


def test_bundles_share_no_paragraph(documents: pd.DataFrame) -> None:
    """What makes a bundle a cluster: nothing in one tells anything about another."""
    parts = documents.assign(part=documents.text.str.split("\n\n")).explode("part")
    assert (parts.groupby("part").cluster.nunique() == 1).all()


def test_seeds(licences: pd.DataFrame, documents: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(two_clauses(licences, each=2), documents)
    assert not two_clauses(licences, each=2, seed=1).text.equals(documents.text)


def test_what_cannot_be_built_is_refused(licences: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="each=0, length=10: give 1 and 4 or more"):
        two_clauses(licences, each=0)
    plain = licences[~licences.text.str.contains("export", case=False)]
    with pytest.raises(InputError, match="no paragraph about export"):
        two_clauses(plain)
