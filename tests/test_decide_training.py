"""Each way to train an encoder teaches a copy what it should, and says in a line what it cannot use."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_softmax
from setfit.sampler import ContrastiveDataset

from helpers import data
from helpers.decide.fewshot import examples
from helpers.decide.probe import fit_probe
from helpers.decide.training import (
    Schedule,
    _deleted,
    adapt,
    count_pairs,
    denoised,
    encoder_of,
    finetune,
    measure_adapt,
)
from helpers.encode import INT8_INT4, OnnxEncoder, TorchEncoder
from helpers.encode.fakequant import fake_quantized
from helpers.encode.recipe import Recipe
from helpers.errors import InputError

CLASSES = ["HassTurnOn", "HassTurnOff", "HassLightSet", "HassGetState"]
QUICK = Schedule(steps=30, rate=2e-4, batch=8, max_tokens=32)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    frame = data.commands(seed=0)
    return frame[frame.label.isin(CLASSES)]


@pytest.fixture(scope="module")
def taught(frame) -> pd.DataFrame:
    train = frame[frame.split == "train"]
    return train.iloc[examples(train.label, 8, seed=0)]


@pytest.fixture(scope="module")
def asked(frame) -> pd.DataFrame:
    return frame[frame.split == "validation"].sample(200, random_state=0)


@pytest.fixture(scope="module")
def setfit(mini_torch, taught):
    before = {name: value.clone() for name, value in mini_torch[0].state_dict().items()}
    model = adapt(*mini_torch, taught.text, taught.label, QUICK)
    after = mini_torch[0].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)  # a copy was trained
    return model


def spread(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Mean cosine within a class less that between two."""
    same = labels[:, None] == labels[None, :]
    cosine = vectors @ vectors.T
    return cosine[same & ~np.eye(len(labels), dtype=bool)].mean() - cosine[~same].mean()


def test_pairs_are_counted_as_setfit_makes_them() -> None:
    labels = ["a"] * 4 + ["b"] * 3 + ["c"]
    made = ContrastiveDataset([str(row) for row in range(8)], labels, False, sampling_strategy="unique")
    pairs = count_pairs(labels, Schedule(steps=3, batch=5))
    assert pairs[:2] == (made.len_pos_pairs, made.len_neg_pairs) and pairs.read == 15
    assert str(pairs) == "17 pairs of one class, 19 of two: 15 are read"


def test_setfit_draws_classes_apart(setfit, mini_torch, taught, asked) -> None:
    tokenizer = mini_torch[1]
    vectors = [TorchEncoder(model, tokenizer).encode(asked.text) for model in (mini_torch[0], encoder_of(setfit))]
    labels = asked.label.to_numpy()
    assert spread(vectors[1], labels) > 1.5 * spread(vectors[0], labels)
    own = fit_probe(TorchEncoder(encoder_of(setfit), tokenizer).encode(taught.text), taught.label)
    assert np.mean(own.predict(vectors[1]) == setfit.predict(asked.text.tolist())) > 0.98  # setfit runs batches, we one


def test_the_same_seed_gives_the_same_model(mini_torch, taught, capfd) -> None:
    short = Schedule(steps=2, batch=8)
    one, two = (encoder_of(adapt(*mini_torch, taught.text, taught.label, short)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    printed = capfd.readouterr()
    assert not printed.out and "it/s" not in printed.err and "examples/s" not in printed.err


def test_the_fake_is_nearer_to_the_quantised_file_than_float32_is(mini_torch, mini_report, asked) -> None:
    model, tokenizer = mini_torch
    texts = asked.text.tolist()[:60]
    served = OnnxEncoder(mini_report.path, tokenizer).encode(texts)
    plain = TorchEncoder(model, tokenizer).encode(texts)
    with fake_quantized(model, INT8_INT4):
        fake = TorchEncoder(model, tokenizer).encode(texts)
    far, near = (1 - (vectors * served).sum(axis=1).mean() for vectors in (plain, fake))
    assert near < far / 10
    np.testing.assert_array_equal(TorchEncoder(model, tokenizer).encode(texts), plain)  # and it leaves no trace


def test_gradients_pass_the_rounding_and_float32_weights_are_trained(mini_torch, taught) -> None:
    before = {name: value.clone() for name, value in mini_torch[0].state_dict().items()}
    model = encoder_of(adapt(*mini_torch, taught.text, taught.label, Schedule(steps=3, batch=8), within=fake_quantized))
    after = model.state_dict()
    assert after.keys() == before.keys()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert {"layers.0.attn.Wqkv.weight", "layers.5.mlp.Wo.weight", "embeddings.tok_embeddings.weight"} <= set(moved)
    weight = after["layers.0.mlp.Wi.weight"]
    scale = weight.abs().amax(1, keepdim=True) / 127
    assert ((weight / scale).round() * scale - weight).abs().max() > 1e-5  # not the rounded ones


@pytest.mark.parametrize("change", [{"linear": "int8-block"}, {"weights": "uint8"}, {"keep": ("0.*",)}])
def test_what_cannot_be_faked(mini_torch, change) -> None:
    with pytest.raises(InputError, match="symmetric int8"), fake_quantized(mini_torch[0], Recipe("x", **change)):
        pass


def test_fine_tuning_learns(mini_torch, taught, asked) -> None:
    found = finetune(*mini_torch, taught.text, taught.label, Schedule(steps=60, rate=1e-4, batch=8, max_tokens=32))
    assert np.mean(found.predict(asked.text) == asked.label) > 2 / len(CLASSES)  # chance: one of four
    assert set(found.labels) == set(CLASSES)


def test_denoising_finds_a_text_again_after_words_were_deleted(mini_torch, frame) -> None:
    model, tokenizer = mini_torch
    texts = frame[frame.split == "train"].text.sample(400, random_state=0)
    adapted = denoised(model, tokenizer, texts, Schedule(steps=30, rate=2e-4, batch=16, max_tokens=32))
    rng = np.random.default_rng(1)
    unseen = frame[frame.split == "validation"].text.drop_duplicates().sample(200, random_state=0)
    copies = [[_deleted(text, 0.5, rng) for text in unseen] for _ in range(2)]

    def loss(encoder) -> float:
        """Cross-entropy of finding a text's other copy, as it is trained on: cosines times 20."""
        one, other = (TorchEncoder(encoder, tokenizer).encode(copy) for copy in copies)
        return -log_softmax(20 * one @ other.T, axis=1).diagonal().mean()

    assert loss(adapted) < loss(model) - 0.02


@pytest.mark.parametrize("text", ["one two three four", "打开灯", "a b", "word"])
def test_deletion_leaves_something_in_order(text: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        left = _deleted(text, 0.9, rng)
        assert left and all(part in text for part in left.split()) and len(left) <= len(text)


def test_the_cost_of_training_is_measured() -> None:
    spent = measure_adapt("mmbert-mini", ["turn on", "switch on", "turn off"], ["on", "on", "off"], 2, 1e-4)
    assert spent["seconds"] > 0 and spent["cpu_seconds"] > 0


@pytest.mark.parametrize("way", [adapt, finetune])
def test_bad_examples_are_refused_in_a_line(way, mini_torch) -> None:
    for texts, labels, message in (
        (["a", "b"], ["x"], "2 texts, 1 labels"),
        (["a", "b"], ["x", "x"], "1 class in 2 examples"),
        (["a", " "], ["x", "y"], "row 1 is empty"),
    ):
        with pytest.raises(InputError, match=message) as error:
            way(*mini_torch, texts, labels, QUICK)
        assert "\n" not in str(error.value)


def test_bad_settings_are_refused(mini_torch) -> None:
    for wrong in ({"steps": 0}, {"rate": 0}, {"rate": float("inf")}, {"batch": 0}, {"max_tokens": 2}):
        with pytest.raises(InputError, match="give 1, 1, more than 0 and 3"):
            Schedule(**wrong)
    with pytest.raises(InputError, match="share=1"):
        denoised(*mini_torch, ["a"], QUICK, share=1)
