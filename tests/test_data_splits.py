"""Splits, licences, and the cache."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import data
from helpers.data import cache
from helpers.data.licences import CLASSES
from helpers.errors import InputError

ROWS = st.lists(st.tuples(st.text("aAbBé ", min_size=1), st.sampled_from("xyz"), st.integers(0, 40)), min_size=1)


@given(ROWS, st.integers(0, 5))
def test_a_cluster_is_never_divided(rows, seed):
    frame = pd.DataFrame(rows, columns=["text", "label", "cluster"])
    split = data.assign(frame, seed=seed)
    assert split.isin(list(data.FRACTIONS)).all()
    assert split.groupby(frame.cluster).nunique().max() == 1


@given(ROWS)
def test_repeated_texts_are_kept_once_and_contradictions_not_at_all(rows):
    frame = pd.DataFrame(rows, columns=["text", "label", "cluster"])
    kept = data.drop_repeated(frame)
    key, kept_key = data.normalise(frame.text), data.normalise(kept.text)
    assert not kept_key.duplicated().any()
    agreed = frame.groupby(key).label.nunique() == 1
    assert set(kept_key) == set(agreed.index[agreed])


@given(st.integers(4, 400), st.integers(0, 20))
def test_shares_are_as_asked(clusters, seed):
    frame = pd.DataFrame({"label": "x", "cluster": range(clusters)})
    got = data.assign(frame, seed=seed).value_counts()
    for name, share in data.FRACTIONS.items():
        assert abs(got.get(name, 0) - share * clusters) <= (1 if clusters > 6 else 2)


@given(st.integers(4, 60), st.integers(0, 50))
def test_a_label_with_a_cluster_for_each_split_is_in_every_split(clusters, seed):
    frame = pd.DataFrame({"label": "x", "cluster": range(clusters)})
    assert set(data.assign(frame, seed=seed)) == set(data.FRACTIONS)


def test_a_label_with_few_clusters_is_trained_on_first():
    for clusters in (1, 2, 3):
        frame = pd.DataFrame({"label": "x", "cluster": range(clusters)})
        assert "train" in set(data.assign(frame, seed=clusters))


def test_shares_that_do_not_add_up_are_refused():
    with pytest.raises(InputError, match=r"add up to 0\.900"):
        data.assign(pd.DataFrame({"label": ["x"], "cluster": ["a"]}), {"train": 0.5, "test": 0.4})


@pytest.fixture(scope="module")
def papers():
    return data.licences()


def test_licences_are_split_by_key(papers):
    assert papers.groupby("cluster").split.nunique().max() == 1
    assert not data.normalise(papers.text).duplicated().any()
    assert papers.groupby("cluster").label.nunique().max() == 1


def test_licences_have_the_classes_we_say(papers):
    assert set(papers.label) == set(CLASSES.values())
    assert (papers.groupby("label").split.nunique() == 4).all()
    assert papers.cluster.nunique() > 800
    assert papers.groupby("cluster").size().max() <= 100


def test_licences_have_a_long_tail(papers):
    words = papers.text.str.split().str.len()
    assert words.min() >= 3
    assert words.quantile(0.99) > 3_000
    assert not papers.text.str.contains("{{", regex=False).any()


def test_the_cache_gives_back_what_was_made(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    calls = []

    @cache.cached
    def frame(seed: int = 0) -> pd.DataFrame:
        calls.append(seed)
        return pd.DataFrame({"text": [f"été {seed}"]})

    assert frame().equals(frame(0)) and frame(seed=1).text[0] == "été 1"
    assert calls == [0, 1]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".parquet"] * 2


def test_a_broken_cache_file_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    make = cache.cached(lambda: pd.DataFrame({"text": ["a"]}))
    make()
    next(tmp_path.iterdir()).write_bytes(b"PAR1 cut off")
    assert make().text.tolist() == ["a"]
