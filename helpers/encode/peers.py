"""Other libraries' ways to a small, quick encoder on a CPU, behind this course's interface: for one fair race.

Every class takes a torch model with its tokenizer, makes its library's file in `folder`, and has `encode(texts)` and
`mb`, the size of what it would serve from (10^6 bytes). All of them use the cores that this process may use. OpenVINO's
two need `pip install -e .[peers]`, and raise ImportError without it.
"""

from __future__ import annotations

import io
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from helpers.encode.cpu import available_cores, has_vnni
from helpers.encode.encoder import OnnxEncoder, TorchEncoder, _Base, session_options
from helpers.encode.quiet import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def preset() -> str:
    """The name that optimum and sentence-transformers give to their INT8 preset for this CPU."""
    if platform.machine().lower() in {"arm64", "aarch64"}:
        return "arm64"
    return "avx512_vnni" if has_vnni() else "avx2"


class TorchDynamicEncoder(TorchEncoder):
    """torch's own dynamic quantisation of the linear layers.

    torch announces that it moves to torchao; torchao's INT8 needs a compiler on the reader's machine, so this is what a
    CPU gets without one.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        import torch

        with quiet():
            small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
        super().__init__(small, tokenizer)
        torch.save(small.state_dict(), written := io.BytesIO())
        self.mb = written.tell() / 1e6


class OptimumEncoder(OnnxEncoder):
    """optimum's export and its INT8 preset, run by onnxruntime. Source: optimum's documentation, "Quantization"."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
        from optimum.onnxruntime import ORTQuantizer
        from optimum.onnxruntime.configuration import AutoQuantizationConfig

        optimum_export(model, folder)
        with quiet():
            quantizer = ORTQuantizer.from_pretrained(folder, file_name="model.onnx")
            quantizer.quantize(getattr(AutoQuantizationConfig, preset())(is_static=False), save_dir=folder)
        super().__init__(path := folder / "model_quantized.onnx", tokenizer)
        self.mb = path.stat().st_size / 1e6


class SentenceTransformerEncoder:
    """sentence-transformers with its ONNX backend and INT8 preset, or with its OpenVINO backend in float32.

    Source: its documentation, "Speeding up Inference". Its INT8 for OpenVINO takes its calibration texts from a model
    hub; `OpenVinoEncoder` does the same with ours.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path,
        backend: Literal["onnx", "openvino"] = "onnx",
    ) -> None:  # fmt: skip
        from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

        if backend == "openvino":
            import optimum.intel.openvino  # noqa: F401  (sentence-transformers would raise a bare Exception)
        for made in ("onnx", "openvino"):  # an earlier run's export would be loaded in place of this model's
            shutil.rmtree(folder / made, ignore_errors=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        settings = {
            "onnx": {"provider": "CPUExecutionProvider", "session_options": session_options()},
            "openvino": {"ov_config": _openvino_settings()},
        }[backend]
        with quiet():
            self.model = SentenceTransformer(str(folder), backend=backend, model_kwargs=settings, local_files_only=True)
            self.model.save_pretrained(str(folder))
            if backend == "onnx":
                export_dynamic_quantized_onnx_model(self.model, preset(), str(folder))
                settings["file_name"] = next((folder / "onnx").glob("model_*int8_*.onnx")).name
                self.model = SentenceTransformer(
                    str(folder), backend=backend, model_kwargs=settings, local_files_only=True
                )
        files = folder.glob(f"onnx/{settings['file_name']}" if backend == "onnx" else "openvino/*")
        self.mb = sum(file.stat().st_size for file in files) / 1e6

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return self.model.encode(list(texts), batch_size=1, normalize_embeddings=True, show_progress_bar=False)


class OpenVinoEncoder(_Base):
    """OpenVINO with NNCF's static INT8: the scales of activations are measured once on `texts`, not at every run.

    Source: NNCF's documentation, "Post-Training Quantization".
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, texts: Sequence[str]
    ) -> None:
        import nncf
        import openvino as ov

        super().__init__(tokenizer, batch_size=1, max_tokens=512)
        path, core = folder / "openvino.xml", ov.Core()
        exported = core.read_model(optimum_export(model, folder))
        ids = [np.array([row]) for row in self.tokenize(texts)]
        feeds = [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in ids]
        with quiet():
            small = nncf.quantize(exported, nncf.Dataset(feeds), model_type=nncf.ModelType.TRANSFORMER)
        ov.save_model(small, path)
        self.compiled = core.compile_model(path, "CPU", _openvino_settings())
        self.hidden = model.config.hidden_size
        self.mb = sum(file.stat().st_size for file in folder.glob("openvino.*")) / 1e6

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        return self.compiled({"input_ids": input_ids, "attention_mask": attention_mask})[0]


def _openvino_settings() -> dict[str, str]:
    return {"INFERENCE_NUM_THREADS": str(available_cores()), "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}


def optimum_export(model: PreTrainedModel, folder: Path) -> Path:
    """model.onnx, float32, as optimum exports it, whose operators every library knows."""
    from optimum.exporters.onnx import onnx_export_from_model

    with quiet():
        onnx_export_from_model(model, folder, task="feature-extraction", do_validation=False)
    return folder / "model.onnx"
