"""From torch to ONNX, and the proof that both compute the same.

The graph has two inputs, input_ids and attention_mask, int64 (batch, sequence), and one output, token_embeddings,
float32 (batch, sequence, hidden); both axes are free. Pooling stays outside: it is three lines of numpy, and later
notebooks need the token vectors.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.encode.attention import expand, functions, named_attention
from helpers.encode.encoder import session
from helpers.encode.graph import add_metadata
from helpers.encode.quiet import quiet
from helpers.errors import InputError

if TYPE_CHECKING:
    import onnx
    import torch
    from transformers import PreTrainedModel

INPUTS, OUTPUT = ["input_ids", "attention_mask"], "token_embeddings"
LARGEST = 1.9e9  # bytes of weights; protobuf, the format of .onnx files, ends at 2 GB


def export(
    model: PreTrainedModel, path: str | Path, opset: int = 23, *, banded: bool = True, banded_from: int | None = None
) -> Path:
    """Write an encoder as one ONNX file, whole or not at all.

    torch's exporter (torch.onnx.export with dynamo=True) is used; where it fails, optimum's older one steps in at its
    own opset and a warning says so.

    Parameters
    ----------
    model
        An encoder in float32, such as `load_torch` returns.
    path
        The file to write; its folder is made if need be.
    opset
        23 is the first with Attention and RotaryEmbedding as operators of their own; below it nothing is banded.
    banded
        Let a ModernBERT's local layers compute only what they look at (`helpers.encode.attention`). The answers are
        the same as with False.
    banded_from
        Tokens from which they do; default: more than two windows.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    InputError
        If the model is too large for one file.
    RuntimeError
        If neither exporter can do it.
    """
    path = Path(path)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if size > LARGEST:
        raise InputError(f"export: {size / 1e9:.1f} GB of weights do not fit into one ONNX file: take a smaller model")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
        part = Path(folder) / "model.onnx"
        config = model.config
        # only sdpa's masks and attention can be named: other ways to attend add up their own
        named = config.model_type == "modernbert" and config._attn_implementation == "sdpa" and opset >= 23
        try:
            beside = _export_dynamo(model, Path(folder) / "beside.onnx", opset, named)
        except Exception as error:  # torch raises whatever its many stages raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"torch could not export at opset {opset} ({reason}): optimum does it instead, no layer is banded",
                stacklevel=2,
            )
            _export_optimum(model, part)
        else:
            made = []
            if named:
                sizes = config.num_attention_heads, config.hidden_size, config.local_attention
                made = functions(*sizes, opset, banded, banded_from)
            _join(beside, part, made)
        name = model.config.name_or_path  # a hub name, or a folder that is nobody else's business
        name = Path(name).name if Path(name).is_dir() else name or model.config.model_type
        add_metadata(part, {"model": name, "vocabulary": str(model.config.vocab_size)})
        part.replace(path)
    return path


def _export_dynamo(model: PreTrainedModel, path: Path, opset: int, named: bool) -> Path:
    """The graph with its weights in a file beside it, attention by name if `named`."""
    import torch

    modern = model.config.model_type == "modernbert"
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
    ids = torch.randint(5, 1000, (2, 40))
    mask = torch.ones_like(ids)
    mask[1, 30:] = 0
    shapes = ({0: batch, 1: sequence},) * 2
    with quiet(), named_attention() if named else contextlib.nullcontext():
        program = torch.onnx.export(
            _wrapped(model, modern), (ids, mask), dynamo=True, opset_version=opset, input_names=INPUTS,
            output_names=[OUTPUT], dynamic_shapes=shapes, verbose=False,
        )  # fmt: skip
        program.save(path, external_data=True)
    return path


def _join(beside: Path, path: Path, made: list[onnx.FunctionProto]) -> None:
    """Put a graph, with `made` written out, and the weights beside it into one file, a tensor at a time.

    Written in pieces that the reader merges, as in `add_metadata`. Written at once, model, message and its bytes
    would stand in memory together: 5.6 GB for mmBERT-base.
    """
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    model = expand(onnx.load(beside, load_external_data=False), made)
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        for tensor in tensors:
            piece = onnx.ModelProto()
            weights = piece.graph.initializer.add()
            weights.CopyFrom(tensor)
            if uses_external_data(weights):
                load_external_data_for_tensor(weights, str(beside.parent))
                weights.data_location = onnx.TensorProto.DEFAULT
                del weights.external_data[:]
            file.write(piece.SerializeToString())


def _wrapped(model: PreTrainedModel, modern: bool) -> torch.nn.Module:
    """The model as a function of ids and mask alone."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            more = {}
            if modern:
                # ModernBERT makes positions (1, sequence); opset 23's RotaryEmbedding wants one row for each of the
                # batch, and the graph would run at batch 1 only.
                rows, columns = input_ids.shape
                more["position_ids"] = torch.arange(columns)[None].expand(rows, columns)
            return self.model(input_ids=input_ids, attention_mask=attention_mask, **more).last_hidden_state

    return Wrapped().eval()


def _export_optimum(model: PreTrainedModel, path: Path) -> None:
    import onnx
    from optimum.exporters.onnx import onnx_export_from_model

    with tempfile.TemporaryDirectory(dir=path.parent) as folder, quiet():
        onnx_export_from_model(model, Path(folder), task="feature-extraction", do_validation=False)
        proto = onnx.load(Path(folder) / "model.onnx")
    old = proto.graph.output[0].name
    proto.graph.output[0].name = OUTPUT
    for node in proto.graph.node:
        node.output[:] = [OUTPUT if name == old else name for name in node.output]
        node.input[:] = [OUTPUT if name == old else name for name in node.input]
    onnx.save(proto, path)


def parity(
    model: PreTrainedModel, path: str | Path, lengths: Sequence[int] = (5, 64, 127, 128, 129, 300),
    batches: Sequence[int] = (1, 4), tolerance: float = 1e-4, seed: int = 0,
) -> float:  # fmt: skip
    """Largest difference between torch and the ONNX file over random inputs; valid tokens only.

    The usual lengths stand on both sides of a local window of 128 tokens and of the 257 from which it is banded. In a
    batch, row i has its own length and the rest is padding; what a model computes on padding is nobody's business, so
    it is not compared.

    Parameters
    ----------
    model, path
        The torch model, and the file made from it.
    lengths, batches
        Every length is run in every batch size.
    tolerance
        Largest difference allowed, in units of the token vectors (whose entries are of size 1).
    seed
        Of the token ids.

    Returns
    -------
    float
        The largest absolute difference found.

    Raises
    ------
    RuntimeError
        If it is above the tolerance, or at once where it is no finite number; the message names length and batch.
    """
    import torch

    rng, run = np.random.default_rng(seed), session(path)
    worst, where = 0.0, ""
    for length in lengths:
        for batch in batches:
            ids = rng.integers(5, model.config.vocab_size, (batch, length))
            valid = np.maximum(1, length - np.arange(batch) * length // batch)  # full, 3/4, 1/2, 1/4
            mask = (np.arange(length) < valid[:, None]).astype(np.int64)
            ids = np.where(mask, ids, model.config.pad_token_id or 0)
            with torch.inference_mode():
                expected = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
            got = run.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            gap = np.abs(got - expected.last_hidden_state.numpy())[mask.astype(bool)].max()
            if not np.isfinite(gap):  # at once: NaN is not above anything, and a later number would hide it
                raise RuntimeError(
                    f"{Path(path).name} or the model gives no finite numbers ({gap} apart) at length {length}, batch "
                    f"{batch}: check the weights, or use another opset"
                )
            if gap > worst:
                worst, where = float(gap), f"length {length}, batch {batch}"
    if worst > tolerance:
        raise RuntimeError(
            f"{Path(path).name} does not compute what the model does: {worst:.2g} apart at {where}, allowed are "
            f"{tolerance:.0e}: export it again, or use another opset"
        )
    return worst
