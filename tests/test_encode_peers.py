"""The other libraries' encoders say what the model says, and are what they claim to be."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.encode import TorchEncoder, count_nodes, peers
from helpers.encode.cpu import has_vnni

TEXTS = ["Turn off the light", "Bitte mach das Licht in der Küche aus", "as is, without warranty of any kind " * 20]
OPENVINO = "the extra 'peers' is not installed"


@pytest.fixture(scope="module")
def first_layers(mini_torch):
    """mmbert-mini cut to a global and a local layer, so that each library exports it in seconds."""
    model, tokenizer = mini_torch
    cut = copy.deepcopy(model)
    cut.layers = cut.layers[:2]
    cut.config.num_hidden_layers = 2
    return cut, tokenizer


def _close(encoder, first_layers) -> np.ndarray:
    found, exact = encoder.encode(TEXTS), TorchEncoder(*first_layers).encode(TEXTS)
    assert found.dtype == np.float32 and np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    return (found * exact).sum(axis=1)


def test_torch_dynamic(first_layers) -> None:
    encoder = peers.TorchDynamicEncoder(*first_layers)
    exact = sum(p.numel() * 4 for p in first_layers[0].parameters()) / 1e6
    table = first_layers[0].embeddings.tok_embeddings.weight.numel() * 4 / 1e6
    assert table < encoder.mb < exact  # the table stays in float32, the linear layers do not
    close = _close(encoder, first_layers)
    assert 0.98 < close.min() < 1 - 1e-6


def test_optimum_and_sentence_transformers(first_layers, tmp_path: Path) -> None:
    """Both use the same preset, so their files and their answers agree."""
    optimum = peers.OptimumEncoder(*first_layers, tmp_path / "optimum")
    file = tmp_path / "optimum" / "model_quantized.onnx"
    assert count_nodes(file)["MatMulInteger"] >= 8 and optimum.mb == file.stat().st_size / 1e6
    assert optimum.mb < 0.3 * (tmp_path / "optimum" / "model.onnx").stat().st_size / 1e6
    stale = tmp_path / "sentence-transformers" / "onnx" / "model.onnx"  # as an earlier run leaves it
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another model")
    sentence = peers.SentenceTransformerEncoder(*first_layers, tmp_path / "sentence-transformers")
    assert sentence.mb == pytest.approx(optimum.mb, rel=0.01)
    assert _close(optimum, first_layers).min() > 0.98 and _close(sentence, first_layers).min() > 0.98
    assert np.allclose(sentence.encode(TEXTS), optimum.encode(TEXTS), atol=1e-3)


def test_openvino(first_layers, tmp_path: Path) -> None:
    pytest.importorskip("nncf", reason=OPENVINO)
    encoder = peers.OpenVinoEncoder(*first_layers, tmp_path, TEXTS * 10)
    assert 0.9 < _close(encoder, first_layers).min() < 1 - 1e-6
    assert encoder.mb < 20


def test_sentence_transformers_on_openvino(first_layers, tmp_path: Path) -> None:
    pytest.importorskip("optimum.intel", reason=OPENVINO)
    encoder = peers.SentenceTransformerEncoder(*first_layers, tmp_path, backend="openvino")
    assert _close(encoder, first_layers).min() > 0.9999


def test_a_missing_library_is_named(first_layers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None in sys.modules is how Python marks a module that cannot be imported."""
    for module in ("nncf", "optimum.intel", "optimum.intel.openvino"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match="nncf"):
        peers.OpenVinoEncoder(*first_layers, tmp_path, TEXTS)
    with pytest.raises(ImportError, match=r"optimum\.intel"):
        peers.SentenceTransformerEncoder(*first_layers, tmp_path, backend="openvino")
    assert not list(tmp_path.iterdir())


def test_preset_fits_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    assert peers.preset() in {"arm64", "avx512_vnni" if has_vnni() else "avx2"}
    for machine, vnni, name in (("arm64", True, "arm64"), ("x86_64", True, "avx512_vnni"), ("AMD64", False, "avx2")):
        monkeypatch.setattr(peers.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(peers, "has_vnni", lambda vnni=vnni: vnni)
        assert peers.preset() == name and hasattr(AutoQuantizationConfig, name)
