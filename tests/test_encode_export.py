"""The ONNX graph computes what torch computes, and the check would notice if it did not."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.encode.encoder import session
from helpers.encode.export import export, parity
from helpers.encode.graph import count_nodes, linear_layers, metadata
from helpers.encode.recipe import PARTS
from helpers.errors import InputError


class Changed:
    """The torch model with something wrong, for negative controls."""

    def __init__(self, model, **config) -> None:
        self.model = copy.deepcopy(model)
        for name, value in config.items():
            setattr(self.model.config, name, value)
        self.config = self.model.config

    def __call__(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


class NoMask(Changed):
    def __call__(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=torch.ones_like(attention_mask))


def test_parity_on_both_sides_of_the_window_batched_and_padded(mini_torch, mini_onnx: Path) -> None:
    assert parity(mini_torch[0], mini_onnx) < 1e-5


def test_parity_notices_a_forgotten_padding_mask(mini_torch, mini_onnx: Path) -> None:
    broken = NoMask(mini_torch[0])
    assert parity(broken, mini_onnx, lengths=(64,), batches=(1,)) < 1e-5  # nothing is padded
    with pytest.raises(RuntimeError, match="length 64, batch 4"):
        parity(broken, mini_onnx, lengths=(64,))


def test_parity_notices_a_window_off_by_one(mini_torch, mini_onnx: Path) -> None:
    narrow = Changed(mini_torch[0], local_attention=126)
    assert parity(narrow, mini_onnx, lengths=(64,)) < 1e-5  # shorter than the window: no difference to see
    with pytest.raises(RuntimeError, match="does not compute what the model does"):
        parity(narrow, mini_onnx, lengths=(129,))


def test_parity_notices_nan(mini_torch, mini_onnx: Path) -> None:
    broken = Changed(mini_torch[0])
    torch.nn.init.constant_(broken.model.final_norm.weight, float("nan"))
    with pytest.raises(RuntimeError, match="nan apart"):
        parity(broken, mini_onnx, lengths=(5,), batches=(1,))


def test_parity_notices_nan_that_finite_numbers_follow(mini_torch, mini_onnx: Path, monkeypatch) -> None:
    class OnceNan:
        def __init__(self, path: Path) -> None:
            self.session = session(path)

        def run(self, outputs: None, feed: dict) -> list:
            found = self.session.run(outputs, feed)
            return [found[0] * np.nan] if feed["input_ids"].shape == (1, 9) else found

    monkeypatch.setattr("helpers.encode.export.session", OnceNan)
    with pytest.raises(RuntimeError, match=r"nan apart.* length 9, batch 1"):
        parity(mini_torch[0], mini_onnx, lengths=(5, 9, 12), batches=(1, 2))


LONG = (256, 257, 320, 321, 700)
"""Around the length from which texts count as long, around whole blocks of 64, and several blocks."""


@pytest.fixture(scope="module")
def plain_onnx(mini_torch, tmp_path_factory) -> Path:
    """mmbert-mini with the masked product at any length."""
    return export(mini_torch[0], tmp_path_factory.mktemp("plain") / "plain.onnx", banded_from=None)


@pytest.fixture(scope="module")
def banded_onnx(mini_torch, tmp_path_factory) -> Path:
    """mmbert-mini that takes every text for a long one."""
    return export(mini_torch[0], tmp_path_factory.mktemp("banded") / "banded.onnx", banded_from=1)


def test_long_texts_are_computed_exactly(mini_torch, mini_onnx: Path, banded_onnx: Path) -> None:
    assert parity(mini_torch[0], mini_onnx, lengths=LONG) < 1e-5
    assert parity(mini_torch[0], banded_onnx, lengths=(1, 2, 63, 64, 65, 127, 128, 129, 257)) < 1e-5


def test_parity_notices_a_wrong_band(mini_torch, mini_onnx: Path) -> None:
    for window in (126, 130):
        with pytest.raises(RuntimeError, match="length 300"):
            parity(Changed(mini_torch[0], local_attention=window), mini_onnx, lengths=(300,), batches=(1,))


def test_parity_notices_a_forgotten_mask_in_a_long_batch(mini_torch, mini_onnx: Path) -> None:
    with pytest.raises(RuntimeError, match="length 300, batch 4"):
        parity(NoMask(mini_torch[0]), mini_onnx, lengths=(300,))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=3), st.integers(0, 2**16))
@settings(max_examples=15, deadline=None)
def test_any_lengths_in_any_batch_give_what_each_gives_alone(plain_onnx, banded_onnx, lengths, seed) -> None:
    ids = np.random.default_rng(seed).integers(5, 40_000, (len(lengths), max(lengths)))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    plain, banded = session(plain_onnx), session(banded_onnx)
    together = banded.run(None, {"input_ids": ids * mask, "attention_mask": mask})[0]
    for row, length in enumerate(lengths):
        feed = {"input_ids": ids[row : row + 1, :length], "attention_mask": mask[row : row + 1, :length]}
        np.testing.assert_allclose(together[row, :length], plain.run(None, feed)[0][0], atol=2e-5)


def test_a_row_of_nothing_but_padding_harms_nobody(banded_onnx: Path) -> None:
    ids, mask = np.full((2, 300), 7), np.ones((2, 300), dtype=np.int64)
    mask[1] = 0
    found = session(banded_onnx).run(None, {"input_ids": ids, "attention_mask": mask})[0]
    assert np.isfinite(found).all()


def test_linear_layers_have_the_names_that_recipes_use(mini_onnx: Path) -> None:
    assert list(linear_layers(onnx.load(mini_onnx))) == [f"{layer}.{part}" for layer in range(6) for part in PARTS]


def test_graph_has_native_operators_and_two_free_inputs(mini_onnx: Path, plain_onnx: Path) -> None:
    nodes = count_nodes(mini_onnx)
    # one for short texts in each of 6 layers, one more for long texts in each of 4 local and 2 global layers
    assert (nodes["Attention"], nodes["MultiHeadAttention"], nodes["RotaryEmbedding"], nodes["Gather"]) == (
        10,
        2,
        12,
        1,
    )
    assert nodes["MatMul"] == 25 and nodes["If"] == 8
    plain = count_nodes(plain_onnx)
    assert plain["Attention"] == 6 and not {"If", "MultiHeadAttention"} & set(plain)
    assert sum(plain.values()) < 170
    graph = onnx.load(mini_onnx).graph
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask"]
    assert all(size.dim_param for value in graph.input for size in value.type.tensor_type.shape.dim)
    assert metadata(mini_onnx)["model"] == "mmbert-mini"  # a name, not a folder of this machine


def test_optimum_steps_in_and_says_so(mini_torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError("no such operator")

    monkeypatch.setattr("helpers.encode.export._export_dynamo", fail)
    with pytest.warns(UserWarning, match="no such operator.*optimum"):
        path = export(mini_torch[0], tmp_path / "old.onnx")
    assert parity(mini_torch[0], path, lengths=(5, 129)) < 1e-4
    assert [file.name for file in tmp_path.iterdir()] == ["old.onnx"]


def test_too_large_a_model_is_refused_before_any_work(tmp_path: Path) -> None:
    with torch.device("meta"):
        large = torch.nn.Linear(30_000, 30_000)
    with pytest.raises(InputError, match=r"3\.6 GB"):
        export(large, tmp_path / "large.onnx")
    assert not list(tmp_path.iterdir())
