"""The ONNX graph computes what torch computes, and the check would notice if it did not."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from helpers.encode.encoder import session
from helpers.encode.export import export, parity
from helpers.encode.quantize import count_nodes, metadata
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


def test_graph_has_native_operators_and_two_free_inputs(mini_onnx: Path) -> None:
    nodes = count_nodes(mini_onnx)
    assert (nodes["Attention"], nodes["RotaryEmbedding"], nodes["Gather"]) == (6, 12, 1)
    assert nodes["MatMul"] == 25 and sum(nodes.values()) < 160
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
