"""Few examples of each class: what is drawn, what is scored, and what cannot be."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers.decide.evaluate import macro_f1
from helpers.decide.fewshot import choose_c, examples, learning_curve
from helpers.decide.probe import answer_documents, fit_probe
from helpers.encode.chunking import Chunks
from helpers.errors import InputError

LABELS = np.array(["a"] * 20 + ["b"] * 10 + ["c"] * 3)
POINTS = np.eye(3)[np.repeat(np.arange(3), [20, 10, 3])]


def test_examples_of_each_class() -> None:
    rows = examples(LABELS, 5, seed=0)
    assert np.unique(LABELS[rows], return_counts=True)[1].tolist() == [5, 5, 3]
    assert (rows == examples(LABELS, 5, seed=0)).all() and (rows != examples(LABELS, 5, seed=1)).any()
    assert examples(LABELS, None, seed=0).tolist() == list(range(33))
    for wrong in (0, -2):
        with pytest.raises(InputError, match=f"per_class={wrong}"):
            examples(LABELS, wrong, seed=0)


def test_curve_is_scored_as_everything_else_is() -> None:
    """Class c is predicted and never true: it counts for no class, as in evaluate.macro_f1."""
    test, truth = POINTS[[0, 1, 20, 30]], np.array(["a", "a", "b", "b"])
    scores, answers = learning_curve({"x": (POINTS, test)}, LABELS, truth, [2, None], seeds=[0, 1])
    assert scores["size"].tolist() == [2, 2, "all"] and scores.accuracy.tolist() == [0.75] * 3
    assert answers["x", None].tolist() == ["a", "a", "b", "c"]
    assert scores.macro_f1.tolist() == pytest.approx([macro_f1(truth, answers["x", None])] * 3)
    assert scores.macro_f1[0] == pytest.approx((1 + 2 / 3) / 2)
    with pytest.raises(InputError, match="per_class=0"):
        learning_curve({"x": (POINTS, test)}, LABELS, truth, [0], seeds=[0])


def test_one_class_is_nothing_to_learn() -> None:
    with pytest.raises(InputError, match="only one class in 20 training rows") as error:
        fit_probe(POINTS[:20], LABELS[:20].tolist())
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="no class in 0"):
        fit_probe(POINTS[:0], [])
    with pytest.raises(InputError, match="only one class"):
        learning_curve({"x": (POINTS[:20], POINTS)}, LABELS[:20], LABELS, [4], seeds=[0])


def test_c_is_chosen_for_each_kind_of_features_on_validation_rows() -> None:
    """The same points at two scales: the smaller ones need the larger C, or everything is the commoner class."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b"], [120, 40])
    points = np.c_[np.where(labels == "a", 2.0, -2.0) + rng.normal(size=160), rng.normal(size=(160, 60))]
    train, validation = points[::2], points[1::2]
    kinds = {"large": (train, validation), "small": (train / 100, validation / 100)}
    found = choose_c(kinds, labels[::2], labels[1::2], None, [0], grid=(1e5, 0.1, 1e-5, 1e3))
    assert list(found) == ["large", "small"] and found["small"] > found["large"]

    scores = {}
    for c in (1e-5, 0.1):
        curve, _ = learning_curve(kinds, labels[::2], labels[1::2], [None], [0], {"large": c})
        scores[c] = curve.set_index("features").macro_f1
    assert scores[1e-5]["large"] < scores[0.1]["large"] and scores[1e-5]["small"] == scores[0.1]["small"]
    with pytest.raises(InputError, match="are empty"):
        choose_c(kinds, labels[::2], labels[1::2], None, [0], grid=())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": LABELS[:20]}, "33 training rows, 20 labels"),
        ({"test_labels": LABELS[:5]}, "33 test rows, 5 labels"),
        ({"features": {"x": (POINTS * np.nan, POINTS)}}, "a training row is not finite"),
        ({"test_labels": np.array([*LABELS[1:], None], dtype=object)}, "test labels are missing"),
        ({"c": {"y": 3.0}}, r"C for \['y'\]"),
        ({"c": {"x": -1}}, "C=-1: give a number above 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict, message: str) -> None:
    right = {"features": {"x": (POINTS, POINTS)}, "train_labels": LABELS, "test_labels": LABELS, "sizes": [None]}
    with pytest.raises(InputError, match=message):
        learning_curve(**{**right, **change}, seeds=[0])


def test_labels_may_be_a_series_whatever_its_index() -> None:
    features = {"x": (POINTS, POINTS)}
    plain, _ = learning_curve(features, LABELS, LABELS, [2], [0])
    series = pd.Series(LABELS, index=np.arange(len(LABELS))[::-1])
    turned, _ = learning_curve(features, series, series, [2], [0])
    assert plain.accuracy[0] == turned.accuracy[0] == 1
    found = choose_c(features, series, series, 2, [0], grid=np.logspace(0, 2, 3))
    assert found["x"] in (1, 10, 100)


def chunked(seed: int = 0, n: int = 60) -> tuple[Chunks, np.ndarray]:
    """n documents of 1 to 5 chunks that show their class along the first axis, all of them; the rest is noise."""
    rng = np.random.default_rng(seed)
    labels, counts = np.resize(["no", "yes"], n), rng.integers(1, 6, n)
    of = np.repeat(np.arange(n), counts)
    vectors = np.c_[np.where(labels[of] == "yes", 1.0, -1.0), rng.normal(0, 0.5, (len(of), 4))]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Chunks(vectors.astype(np.float32), of, rng.integers(3, 65, len(of))), labels


@pytest.mark.parametrize("how", ["first", "mean", "max", "vote"])
def test_documents_are_answered_from_their_chunks_and_only_what_is_taught_is_looked_at(how: str) -> None:
    chunks, labels = chunked()
    learn = np.arange(60) < 40
    found = answer_documents(chunks, labels, learn, how)
    assert (found == labels)[~learn].mean() > 0.9
    spoilt = np.where(learn, labels, "yes")
    assert np.array_equal(answer_documents(chunks, spoilt, learn, how), found)


def test_a_vote_counts_documents_and_not_chunks_when_it_learns() -> None:
    """One document of 30 chunks says "no" where four of one chunk say "yes": by chunks, "no" would be learned."""
    vectors = np.tile(np.array([[1, 0]], dtype=np.float32), (34, 1))
    other = np.tile(np.array([[0, 1]], dtype=np.float32), (1, 1))
    chunks = Chunks(np.r_[vectors, other], np.r_[np.zeros(30, int), 1, 2, 3, 4, 5], np.full(35, 9))
    labels = np.array(["no", "yes", "yes", "yes", "yes", "no"])
    assert answer_documents(chunks, labels, np.ones(6, dtype=bool), "vote")[1] == "yes"


def test_documents_need_a_label_each() -> None:
    chunks, labels = chunked()
    for wrong in ((labels[:-1], np.ones(60, dtype=bool)), (labels, np.ones(60))):
        with pytest.raises(InputError, match="60 documents"):
            answer_documents(chunks, *wrong)
