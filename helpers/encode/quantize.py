"""Smaller weights: INT8 for the linear layers, INT4 for the table of token embeddings.

onnxruntime's quantisers skip silently what they do not recognise, so nothing here trusts the call: the nodes are
counted afterwards, the size is compared with what the recipe must give, and a file that fails is never left on disk.
"""

from __future__ import annotations

import collections
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.encode.cpu import cpu_flags, has_vnni
from helpers.encode.export import LARGEST, _note
from helpers.encode.quiet import quiet
from helpers.errors import InputError, QuantizationError

if TYPE_CHECKING:
    import onnx
    import pandas as pd

POLICY = {"batch": 1, "padding": False}
"""How a quantised file should be served: one text a run. With dynamic INT8 an answer depends on its batch mates."""


@dataclass(frozen=True)
class Recipe:
    """What to quantise, and how.

    Attributes
    ----------
    name
        How the course calls it.
    int8_linear
        Weights of the linear layers in 8 bits, activations quantised on the fly (MatMulInteger).
    per_channel
        One scale for each output channel instead of one for the whole matrix.
    reduce_range
        Weights use 7 of the 8 bits. None: as this CPU needs it. Without VNNI, pairs of products are added in 16 bits
        and overflow if weights use all 8.
    int4_embedding
        The embedding table in 4 bits with a scale for each `block_size` numbers of a row (GatherBlockQuantized).
    block_size
        A power of two, 16 at least, no more than the hidden size.
    symmetric
        Blocks of the table have no zero point.
    """

    name: str
    int8_linear: bool = True
    per_channel: bool = True
    reduce_range: bool | None = None
    int4_embedding: bool = True
    block_size: int = 32
    symmetric: bool = True

    def settled(self) -> Recipe:
        """The recipe with `reduce_range` decided for this CPU (False if nothing is INT8)."""
        if not self.int8_linear:
            return replace(self, reduce_range=False)
        return replace(self, reduce_range=needs_reduced_range() if self.reduce_range is None else self.reduce_range)


INT8 = Recipe("int8", int4_embedding=False)
INT4_EMBEDDING = Recipe("int4-embedding", int8_linear=False)
INT8_INT4 = Recipe("int8+int4")


@dataclass(frozen=True)
class Report:
    """What `quantize` did: sizes in MB (10^6 bytes), `ratio` how many times smaller, `nodes` type -> number."""

    path: Path
    recipe: Recipe
    source_mb: float
    mb: float
    ratio: float
    nodes: Mapping[str, int]
    seconds: float

    def __str__(self) -> str:
        made = [f"{self.nodes[op]} {op}" for op in (*INT8_NODES, INT4_NODE) if self.nodes.get(op)]
        bits = ""
        if self.recipe.int8_linear:
            vnni = "has" if has_vnni() else "lacks"
            bits = f", weights in {'7' if self.recipe.reduce_range else '8'} bits (this CPU {vnni} VNNI)"
        return (
            f"{self.recipe.name}: {self.source_mb:.1f} -> {self.mb:.1f} MB, {self.ratio:.2f}x smaller, "
            f"{', '.join(made)}{bits}, {self.seconds:.0f} s"
        )


INT8_NODES = ("MatMulInteger", "DynamicQuantizeMatMul")
INT4_NODE = "GatherBlockQuantized"


def needs_reduced_range() -> bool:
    """Would full-range INT8 weights overflow on this CPU? True on x86 without VNNI; Arm kernels add in 32 bits."""
    return not has_vnni() and "asimd" not in cpu_flags()


def quantize(src: str | Path, dst: str | Path, recipe: Recipe = INT8_INT4) -> Report:
    """Quantise an exported encoder, check that it happened, and write it whole or not at all.

    Parameters
    ----------
    src
        A float32 .onnx file that `export` wrote.
    dst
        The file to write. Its metadata carry the recipe, the source's SHA-256 and the serving policy.
    recipe
        What to do; `INT8`, `INT4_EMBEDDING` and `INT8_INT4` are ready.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        If the source is missing or quantised already, or the recipe asks for nothing or a block size that cannot be.
    QuantizationError
        If nodes that the recipe names were not quantised, or the file is not as small as it must be. `dst` is then as
        it was before.
    """
    import onnx

    began, src, dst = time.perf_counter(), Path(src), Path(dst)
    if not src.is_file():
        raise InputError(f"no model file {src}: export one first")
    if not (recipe.int8_linear or recipe.int4_embedding):
        raise InputError(f"recipe {recipe.name!r} quantises nothing: set int8_linear or int4_embedding")
    recipe = recipe.settled()
    try:
        model = onnx.load(src)
    except Exception as error:  # protobuf's DecodeError is not exported under a stable name
        raise InputError(f"{src.name} is no ONNX file: export one first") from error
    before = _count(model)
    if any(before.get(op) for op in (*INT8_NODES, INT4_NODE)):
        raise InputError(f"{src.name} is quantised already: start from the float32 file")
    table = _embedding(model, src.name)
    if recipe.int4_embedding:
        _check_block(recipe.block_size, table.dims[1])
    linear, least = len(_linear(model)), _least_ratio(model, table, recipe)
    dst.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dst.parent, prefix=f".{dst.stem}-") as folder:
        part = Path(folder) / "model.onnx"
        if recipe.int8_linear:
            model = _int8(model, table, recipe, part)
        if recipe.int4_embedding:
            model = _int4(model, recipe)
        if model.ByteSize() > LARGEST:
            raise InputError(f"{dst.name} would be over 2 GB, more than one ONNX file can hold: take a smaller model")
        onnx.save(model, part)
        notes = {"recipe": asdict(recipe), "policy": {**POLICY, "reduce_range": recipe.reduce_range}}
        _note(part, {**{k: json.dumps(v) for k, v in notes.items()}, "source_sha256": sha256(src)})
        ratio = src.stat().st_size / part.stat().st_size
        nodes = count_nodes(part)
        _refuse_no_op(recipe, linear, nodes, ratio, least)
        part.replace(dst)
    return Report(
        dst, recipe, src.stat().st_size / 1e6, dst.stat().st_size / 1e6, ratio, nodes, time.perf_counter() - began
    )


def _embedding(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    """The table of token embeddings: what the Gather on input_ids reads, and what the INT4 quantiser may touch."""
    tables = {tensor.name: tensor for tensor in model.graph.initializer}
    found = [
        n for n in model.graph.node if n.op_type == "Gather" and n.input[1] == "input_ids" and n.input[0] in tables
    ]
    if len(found) != 1:
        raise QuantizationError(
            f"{name}: {len(found)} tables are read with input_ids, 1 expected: the graph is not one that export writes"
        )
    return tables[found[0].input[0]]


def _int8(model: onnx.ModelProto, table: onnx.TensorProto, recipe: Recipe, part: Path) -> onnx.ModelProto:
    """INT8 for every MatMul with a constant right side."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # The table is no MatMul, but two thirds of the file, which the quantiser writes and reads several times: it steps
    # aside, and a table of one row holds its place.
    place = next(i for i, tensor in enumerate(model.graph.initializer) if tensor.name == table.name)
    aside = onnx.TensorProto()
    aside.CopyFrom(table)
    row = np.zeros((1, table.dims[1]), dtype=np.float32)
    model.graph.initializer[place].CopyFrom(onnx.numpy_helper.from_array(row, aside.name))
    for shape in [info for info in model.graph.value_info if info.name == aside.name]:
        model.graph.value_info.remove(shape)  # torch's exporter writes down the shapes of constants too
    with quiet():
        quantize_dynamic(
            model, part, op_types_to_quantize=["MatMul"], per_channel=recipe.per_channel,
            reduce_range=recipe.reduce_range, weight_type=QuantType.QInt8, extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
    done = onnx.load(part)
    next(tensor for tensor in done.graph.initializer if tensor.name == aside.name).CopyFrom(aside)
    return done


def _int4(model: onnx.ModelProto, recipe: Recipe) -> onnx.ModelProto:
    """INT4 for the embedding table and for no other Gather."""
    with quiet():
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        others = [n.name for n in model.graph.node if n.op_type == "Gather" and n.input[1] != "input_ids"]
        config = DefaultWeightOnlyQuantConfig(
            block_size=recipe.block_size, is_symmetric=recipe.symmetric, op_types_to_quantize=("Gather",)
        )
        quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=others, algo_config=config)
        # A block of zeros (the row of the padding token) has scale 0; its 0 / 0 is replaced by 0 one step later.
        with np.errstate(invalid="ignore", divide="ignore"):
            quantizer.process()
    return quantizer.model.model


def _check_block(block: int, width: int) -> None:
    if block < 16 or block & (block - 1) or block > width:
        raise InputError(f"block_size={block}: give a power of two from 16 to the hidden size {width}")


def _linear(model: onnx.ModelProto) -> list[int]:
    """The linear layers, which are the MatMul with a constant right side: how many numbers each multiplies with."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    return [sizes[n.input[1]] for n in model.graph.node if n.op_type == "MatMul" and n.input[1] in sizes]


def _least_ratio(model: onnx.ModelProto, table: onnx.TensorProto, recipe: Recipe) -> float:
    """How many times smaller the file must get if the recipe was followed, less 15 % for scales and the graph."""
    linear, embedding = 4 * sum(_linear(model)), 4 * int(np.prod(table.dims))
    whole = model.ByteSize()
    after = whole - linear - embedding
    after += linear / 4 if recipe.int8_linear else linear
    scales = 4 / recipe.block_size * (1 if recipe.symmetric else 1.125)
    after += embedding / 4 * (0.5 + scales) if recipe.int4_embedding else embedding
    return 1 + 0.85 * (whole / after - 1)


def _refuse_no_op(recipe: Recipe, linear: int, nodes: Mapping[str, int], ratio: float, least: float) -> None:
    """Raise if the file is not what the recipe says; `linear` is the number of linear layers before.

    Other MatMul (attention's two, if the graph writes it out) have no weights and stay float32 by right.
    """
    made = sum(nodes.get(op, 0) for op in INT8_NODES)
    left = nodes.get("MatMul", 0)
    wrong = None
    if recipe.int8_linear and made == 0:
        wrong = f"no MatMul was quantised, all {left} are still float32"
    elif recipe.int8_linear and made < 0.95 * linear:
        wrong = f"only {made} of {linear} MatMul with constant weights were quantised"
    elif recipe.int4_embedding and nodes.get(INT4_NODE, 0) != 1:
        wrong = f"{nodes.get(INT4_NODE, 0)} tables were quantised, not the 1 of the token embeddings"
    elif ratio < least:
        wrong = f"the file is only {ratio:.2f} times smaller, at least {least:.2f} expected"
    if wrong:
        raise QuantizationError(
            f"recipe {recipe.name!r} did not work: {wrong}: nothing was written; export the model again"
        )


def count_nodes(path: str | Path) -> dict[str, int]:
    """Operators of an .onnx file: type -> number of nodes, most frequent first. The weights are not kept."""
    import onnx

    return _count(onnx.load(path, load_external_data=False))


def _count(model: onnx.ModelProto) -> dict[str, int]:
    return dict(collections.Counter(node.op_type for node in model.graph.node).most_common())


def metadata(path: str | Path) -> dict[str, object]:
    """What `export` and `quantize` noted in the file: model, recipe, source_sha256, policy."""
    import onnx

    notes = {note.key: note.value for note in onnx.load(path, load_external_data=False).metadata_props}
    return {key: json.loads(value) if value.startswith("{") else value for key, value in notes.items()}


def sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_report(paths: Mapping[str, str | Path]) -> pd.DataFrame:
    """Compare files: name -> path, the first is what ratios refer to.

    Returns
    -------
    pandas.DataFrame
        One row a file: mb (10^6 bytes), ratio (times smaller than the first), nodes, and the numbers of float MatMul,
        INT8 MatMul and INT4 tables.
    """
    import pandas as pd

    if not paths:
        raise InputError("size_report: no files given")
    lost = [str(path) for path in paths.values() if not Path(path).is_file()]
    if lost:
        raise InputError(f"size_report: no file {lost[0]}: export or quantise it first")
    first = Path(next(iter(paths.values()))).stat().st_size
    rows = {}
    for name, path in paths.items():
        size, nodes = Path(path).stat().st_size, count_nodes(path)
        rows[name] = {
            "mb": size / 1e6,
            "ratio": first / size,
            "nodes": sum(nodes.values()),
            "float MatMul": nodes.get("MatMul", 0),
            "INT8 MatMul": sum(nodes.get(op, 0) for op in INT8_NODES),
            "INT4 tables": nodes.get(INT4_NODE, 0),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
