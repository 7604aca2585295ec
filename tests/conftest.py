"""The embedded model, loaded and exported once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.encode.attention import functions
from helpers.encode.encoder import OnnxEncoder
from helpers.encode.export import _export_dynamo, _join, export
from helpers.encode.load import MINI, load_torch
from helpers.encode.quantize import Report, quantize
from helpers.encode.recipe import INT8_INT4


@pytest.fixture(scope="session")
def mini_torch():
    """(model, tokenizer) of mmbert-mini."""
    return load_torch("mmbert-mini")


@pytest.fixture(scope="session")
def mini_onnx(mini_torch, tmp_path_factory) -> Path:
    """mmbert-mini as a float32 .onnx file."""
    return export(mini_torch[0], tmp_path_factory.mktemp("mini") / "fp32.onnx")


@pytest.fixture(scope="session")
def named_onnx(mini_torch, tmp_path_factory) -> Path:
    """What torch's exporter wrote of mmbert-mini, attention still by name: half of an export, done once."""
    return _export_dynamo(mini_torch[0], tmp_path_factory.mktemp("named") / "beside.onnx", 23, named=True)


def _finished(named: Path, mini_torch, **graph) -> Path:
    config, path = mini_torch[0].config, named.with_name(f"{'-'.join(graph)}.onnx")
    sizes = (config.num_attention_heads, config.hidden_size, config.local_attention)
    _join(named, path, functions(*sizes, 23, **graph))
    return path


@pytest.fixture(scope="session")
def plain_onnx(mini_torch, named_onnx) -> Path:
    """mmbert-mini as a float32 .onnx file with the masked product at any length."""
    return _finished(named_onnx, mini_torch, banded=False)


@pytest.fixture(scope="session")
def banded_onnx(mini_torch, named_onnx) -> Path:
    """mmbert-mini as a float32 .onnx file that takes every text for a long one."""
    return _finished(named_onnx, mini_torch, banded_from=1)


@pytest.fixture(scope="session")
def mini_report(mini_onnx) -> Report:
    """mmbert-mini in INT8 with an INT4 table: what quantize said about it (the file is its `path`)."""
    return quantize(mini_onnx, mini_onnx.with_name("int8_int4.onnx"), INT8_INT4)


@pytest.fixture(scope="session")
def mini_encoder(mini_report) -> OnnxEncoder:
    """mmbert-mini as it is served: INT8 with an INT4 table, one text a run."""
    return OnnxEncoder(mini_report.path, MINI / "tokenizer.json")
