"""The embedded model, loaded and exported once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.encode.export import export
from helpers.encode.load import load_torch
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
def plain_onnx(mini_torch, tmp_path_factory) -> Path:
    """mmbert-mini as a float32 .onnx file with the masked product at any length."""
    return export(mini_torch[0], tmp_path_factory.mktemp("plain") / "plain.onnx", banded=False)


@pytest.fixture(scope="session")
def mini_report(mini_onnx) -> Report:
    """mmbert-mini in INT8 with an INT4 table: what quantize said about it (the file is its `path`)."""
    return quantize(mini_onnx, mini_onnx.with_name("int8_int4.onnx"), INT8_INT4)
