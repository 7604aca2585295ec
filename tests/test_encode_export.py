"""The ONNX graph computes what torch computes, and the check would notice if it did not."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ModernBertConfig

from helpers.encode.attention import expand, functions
from helpers.encode.encoder import session
from helpers.encode.export import export, parity
from helpers.encode.graph import count_nodes, linear_layers, metadata
from helpers.encode.load import random_model
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
@settings(max_examples=8, deadline=None)
def test_any_lengths_in_any_batch_give_what_each_gives_alone(plain_onnx, banded_onnx, lengths, seed) -> None:
    ids = np.random.default_rng(seed).integers(5, 40_000, (len(lengths), max(lengths)))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    plain, banded = session(plain_onnx), session(banded_onnx)
    together = banded.run(None, {"input_ids": ids * mask, "attention_mask": mask})[0]
    for row, length in enumerate(lengths):
        feed = {"input_ids": ids[row : row + 1, :length], "attention_mask": mask[row : row + 1, :length]}
        np.testing.assert_allclose(together[row, :length], plain.run(None, feed)[0][0], atol=2e-5)


def run(path: Path, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return session(path).run(None, {"input_ids": ids, "attention_mask": mask})[0]


def test_a_row_of_nothing_but_padding_harms_nobody(mini_onnx: Path) -> None:
    ids = np.random.default_rng(0).integers(5, 40_000, (2, 300))
    mask = np.ones_like(ids)
    mask[1] = 0
    found = run(mini_onnx, ids, mask)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0], run(mini_onnx, ids[:1], mask[:1])[0], atol=2e-5)


def test_full_batches_and_masks_with_holes(mini_torch, mini_onnx: Path) -> None:
    ids = np.random.default_rng(0).integers(5, 40_000, (4, 300))
    full = np.ones_like(ids)  # no padding in a batch: global layers run without a mask
    holes = full.copy()
    holes[0, :70], holes[1, 100:260], holes[2, 299] = 0, 0, 0
    for mask in (full, holes):
        with torch.inference_mode():
            expected = mini_torch[0](input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
        gap = np.abs(run(mini_onnx, ids, mask) - expected.last_hidden_state.numpy())[mask.astype(bool)]
        assert gap.max() < 1e-5


def test_onnx_finds_nothing_to_complain_about(mini_onnx: Path, plain_onnx: Path) -> None:
    for path in (mini_onnx, plain_onnx):
        onnx.checker.check_model(onnx.load(path), full_check=True)


@pytest.mark.parametrize("window", [1, 2, 6, 16, 600])
def test_any_window_is_banded_right(window: int) -> None:
    """The operators alone, against a softmax written out; 600 is wider than the text."""
    tokens, heads, width = 70, 2, 8
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(3, tokens, width)).astype(np.float32) for _ in range(3))
    mask = np.ones((3, tokens), dtype=np.int64)
    mask[1, 50:], mask[2, :9] = 0, 0
    near = np.abs(np.arange(tokens)[:, None] - np.arange(tokens)) <= window // 2
    allowed = {"Local": near & mask[:, None].astype(bool), "Global": np.repeat(mask[:, None] > 0, tokens, 1)}
    vector = f"float[b, t, {width}]"
    for kind, pairs in allowed.items():
        graph = onnx.parser.parse_graph(
            f"""g ({vector} q, {vector} k, {vector} v, int64[b, t] m) => ({vector} o)
            {{ mask = attention.{kind}Mask (m) o = attention.{kind}Attention (q, k, v, mask) }}"""
        )
        opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("attention", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        model = expand(model, functions(heads, width, window, 23, banded_from=1))
        onnx.checker.check_model(model, full_check=True)
        feed = {"q": query, "k": key, "v": value, "m": mask}
        made = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        found = made.run(None, feed)[0]
        q, k, v = (x.reshape(3, tokens, heads, -1).swapaxes(1, 2) for x in (query, key, value))
        scores = np.where(pairs[:, None], q @ k.swapaxes(2, 3) / np.sqrt(width / heads), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e9))
        weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
        expected = (weights @ v).swapaxes(1, 2).reshape(found.shape)
        valid = pairs.any(-1)
        np.testing.assert_allclose(found[valid], expected[valid], atol=1e-5)


def test_attention_that_cannot_be_named_is_exported_as_it_is(tmp_path: Path) -> None:
    config = ModernBertConfig(
        vocab_size=1000, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        pad_token_id=0, eos_token_id=1, bos_token_id=2, cls_token_id=1, sep_token_id=1, reference_compile=False,
        attn_implementation="eager",
    )  # fmt: skip
    model = random_model(config)
    path = export(model, tmp_path / "eager.onnx")
    assert "If" not in count_nodes(path)
    assert parity(model, path, lengths=(5, 300)) < 1e-4


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
