"""Smaller weights: INT8 for the linear layers, INT4 for the table of token embeddings.

onnxruntime's quantisers skip silently what they do not recognise, so nothing here trusts the call: the nodes are
counted afterwards, the size is compared with what the recipe must give, the answers may be compared with float32's, and
a file that fails is never left on disk.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.encode.cpu import has_vnni
from helpers.encode.encoder import MAX_TOKENS, OnnxEncoder
from helpers.encode.export import LARGEST
from helpers.encode.graph import (
    BLOCK_NODE,
    INT8_NODES,
    TABLE_NODE,
    add_metadata,
    count_nodes,
    embedding_table,
    linear_layers,
    read_model,
    sha256,
)
from helpers.encode.quiet import quiet
from helpers.encode.recipe import INT8_INT4, Recipe, refuse_saturation
from helpers.encode.rewrite import split_weights
from helpers.errors import InputError, QuantizationError

if TYPE_CHECKING:
    import onnx

POLICY = {"batch": 1, "padding": False}
"""How a quantised file should be served: one text a run. With dynamic INT8 an answer depends on its batch mates."""


@dataclass(frozen=True)
class Gate:
    """What a quantised model must keep of the float32 one before `quantize` hands it over.

    Attributes
    ----------
    texts
        What both are asked, one text a run: unlabelled texts of the kind that will be served.
    tokenizer
        As for `OnnxEncoder`.
    bound
        The least agreement allowed, from 0 to 1.
    answers
        Embeddings (n, hidden) -> n answers, such as a classifier's `predict`; agreement is then the share of equal
        answers. None: the mean cosine of a text's two embeddings.
    max_tokens
        Where texts are cut: as they will be when served.

    Raises
    ------
    InputError
        If there is no text, the bound is not from 0 to 1, or (from `agreement`) there is not one answer a text.
    """

    texts: Sequence[str]
    tokenizer: Any
    bound: float = 0.98
    answers: Callable[[np.ndarray], Sequence[Any]] | None = None
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        if isinstance(self.texts, str) or not len(self.texts) or not 0 <= self.bound <= 1:
            raise InputError(f"gate: bound={self.bound}: give a list with a text or more, and a bound from 0 to 1")

    def agreement(self, source: str | Path, quantised: str | Path) -> float:
        """How far the two files agree on the texts, 0 to 1 (a cosine can be lower still); NaN if either gives NaN."""
        a, b = (
            OnnxEncoder(path, self.tokenizer, max_tokens=self.max_tokens, allow_saturation=True).encode(self.texts)
            for path in (source, quantised)
        )
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return float("nan")  # a classifier answers to NaN too, and to both alike
        if self.answers is None:
            return float((a * b).sum(axis=1).mean())
        before, after = (np.asarray(self.answers(embeddings)) for embeddings in (a, b))
        if before.shape != (len(a),) or after.shape != before.shape:
            raise InputError(f"gate: {len(a)} texts got answers of shape {before.shape}: give one answer a text")
        return float(np.mean(before == after))


@dataclass(frozen=True)
class Report:
    """What `quantize` did: sizes in MB (10^6 bytes), `ratio` how many times smaller, `nodes` type -> number.

    `agreement` is what the gate measured, None without a gate.
    """

    path: Path
    recipe: Recipe
    source_mb: float
    mb: float
    ratio: float
    nodes: Mapping[str, int]
    seconds: float
    agreement: float | None = None

    def __str__(self) -> str:
        made = [f"{self.nodes[op]} {op}" for op in (*INT8_NODES, BLOCK_NODE, TABLE_NODE) if self.nodes.get(op)]
        bits = ""
        if self.recipe.linear == "int8":
            vnni = "has" if has_vnni() else "lacks"
            bits = f", weights in {'7' if self.recipe.reduce_range else '8'} bits (this CPU {vnni} VNNI)"
        agreed = "" if self.agreement is None else f", agreement with fp32 {self.agreement:.4f}"
        return (
            f"{self.recipe.name}: {self.source_mb:.1f} -> {self.mb:.1f} MB, {self.ratio:.2f}x smaller, "
            f"{', '.join(made)}{bits}{agreed}, {self.seconds:.0f} s"
        )


def quantize(
    src: str | Path, dst: str | Path, recipe: Recipe = INT8_INT4, *, gate: Gate | None = None,
    allow_saturation: bool = False,
) -> Report:  # fmt: skip
    """Quantise an exported encoder, check that it happened, and write it whole or not at all.

    Parameters
    ----------
    src
        A float32 .onnx file that `export` wrote.
    dst
        The file to write. Its metadata carry the recipe, the source's SHA-256, the serving policy and, if there was a
        gate, the agreement.
    recipe
        What to do; `INT8`, `INT4_TABLE`, `INT8_INT4` and `INT4_INT4` are ready.
    gate
        What must stay the same.
    allow_saturation
        Make the file even if its sums overflow on this CPU: to look at the damage, or for another CPU.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        If the source is missing or quantised already, the recipe is none or names what the model does not have, or
        `dst` cannot be written.
    QuantizationError
        If the recipe would overflow on this CPU, nodes that it names were not quantised, the file is not as small as it
        must be, or the gate is not passed. `dst` is then as it was before.
    """
    import onnx

    began, src, dst = time.perf_counter(), Path(src), Path(dst)
    if not isinstance(recipe, Recipe):
        raise InputError(
            f"recipe is of type {type(recipe).__name__}: give a Recipe, such as INT8 of helpers.encode.recipe"
        )
    recipe = recipe.settled()
    if not allow_saturation:
        refuse_saturation(recipe)
    if dst.resolve() == src.resolve():
        raise InputError(f"{dst.name} is the float32 file itself: give another file to write")
    model = read_model(src, weights=True)
    if not count_nodes(model).keys().isdisjoint((*INT8_NODES, BLOCK_NODE, TABLE_NODE)):
        raise InputError(f"{src.name} is quantised already: start from the float32 file")
    table, layers = embedding_table(model, src.name), linear_layers(model)
    if recipe.table and recipe.table_block > table.dims[1]:
        raise InputError(f"table_block={recipe.table_block}: give no more than the hidden size {table.dims[1]}")
    chosen = [layers[name].name for name in recipe.chosen(list(layers))]
    least = _least_ratio(model, table, chosen, recipe)
    if recipe.linear == "int8" and recipe.per_channel:  # each column has its scale: parts give the same numbers
        chosen = split_weights(model, chosen)
    with _folder_beside(dst) as folder:
        part = Path(folder) / "model.onnx"
        if recipe.linear == "int8":
            model = _int8(model, table, chosen, recipe, part)
        elif recipe.linear:
            bits = 4 if recipe.linear == "int4-block" else 8
            model = _blocks(model, "MatMul", chosen, recipe.linear_block, recipe.symmetric, bits)
        if recipe.table:
            reader = [node.name for node in model.graph.node if table.name in node.input]
            model = _blocks(model, "Gather", reader, recipe.table_block, recipe.table_symmetric)
        if model.ByteSize() > LARGEST:
            raise InputError(f"{dst.name} would be over 2 GB, more than one ONNX file can hold: take a smaller model")
        onnx.save(model, part)
        ratio, nodes = src.stat().st_size / part.stat().st_size, count_nodes(part)
        _refuse_no_op(recipe, len(chosen), nodes, ratio, least)
        agreement = gate and _pass(gate, src, part, recipe, list(layers))
        notes = {"recipe": asdict(recipe), "policy": {**POLICY, "reduce_range": recipe.reduce_range}}
        if gate:
            notes["agreement"] = {"share" if gate.answers else "cosine": agreement, "texts": len(gate.texts)}
        add_metadata(part, {**{k: json.dumps(v) for k, v in notes.items()}, "source_sha256": sha256(src)})
        part.replace(dst)
    before, after = (path.stat().st_size for path in (src, dst))
    seconds = time.perf_counter() - began
    return Report(dst, recipe, before / 1e6, after / 1e6, before / after, nodes, seconds, agreement)


def _folder_beside(dst: Path) -> tempfile.TemporaryDirectory[str]:
    """An empty folder on the disk of `dst`, asked for before the work: from there the whole file moves in one step."""
    try:
        if dst.is_dir():
            raise InputError(f"{dst} is a folder: give the file to write, such as {dst / 'model.onnx'}")
        dst.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=dst.parent, prefix=f".{dst.stem}-")
    except OSError as error:
        raise InputError(f"{dst} cannot be written ({error.strerror}): give a file in a folder of yours") from error


def _int8(
    model: onnx.ModelProto, table: onnx.TensorProto, chosen: Sequence[str], recipe: Recipe, part: Path
) -> onnx.ModelProto:
    """INT8 for the MatMul of these names."""
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
            model, part, op_types_to_quantize=["MatMul"], nodes_to_quantize=list(chosen),
            per_channel=recipe.per_channel, reduce_range=recipe.reduce_range,
            weight_type=QuantType.QInt8 if recipe.weights == "int8" else QuantType.QUInt8,
            extra_options={"MatMulConstBOnly": True, "WeightSymmetric": recipe.symmetric},
        )  # fmt: skip
    done = onnx.load(part)
    next(tensor for tensor in done.graph.initializer if tensor.name == aside.name).CopyFrom(aside)
    return done


def _blocks(
    model: onnx.ModelProto, kind: str, chosen: Sequence[str], block: int, symmetric: bool, bits: int = 4
) -> onnx.ModelProto:
    """Blocks with a scale each for the nodes of this kind and these names."""
    kept = {node.name for node in model.graph.node if node.op_type == kind}.difference(chosen)
    with quiet():
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        config = DefaultWeightOnlyQuantConfig(
            block_size=block, is_symmetric=symmetric, bits=bits, op_types_to_quantize=(kind,),
            accuracy_level=4 if kind == "MatMul" else None,  # 4: multiply in 8 bits; else weights are unpacked to fp32
        )  # fmt: skip
        quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=kept, algo_config=config)
        # A block of zeros (the row of the padding token) has scale 0; its 0 / 0 is replaced by 0 one step later.
        with np.errstate(invalid="ignore", divide="ignore"):
            quantizer.process()
    return quantizer.model.model


def _bytes_a_weight(kind: str | None, block: int, symmetric: bool) -> float:
    """Stored bytes for one number, scales and zero points of blocks included."""
    if kind in (None, "int8"):
        return 4 if kind is None else 1
    bits = 4 if kind.startswith("int4") else 8
    return bits / 8 + (4 + (0 if symmetric else bits / 8)) / block


def _least_ratio(model: onnx.ModelProto, table: onnx.TensorProto, chosen: Iterable[str], recipe: Recipe) -> float:
    """How many times smaller the file must get if the recipe was followed, less 15 % for scales and the graph."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    weight_of = {node.name: node.input[1] for node in model.graph.node if node.op_type == "MatMul"}
    linear, embedding = sum(sizes[weight_of[name]] for name in chosen), sizes[table.name]
    whole = model.ByteSize()
    after = whole - linear * (4 - _bytes_a_weight(recipe.linear, recipe.linear_block, recipe.symmetric))
    after -= embedding * (4 - _bytes_a_weight(recipe.table, recipe.table_block, recipe.table_symmetric))
    return 1 + 0.85 * (whole / after - 1)


def _refuse_no_op(recipe: Recipe, chosen: int, nodes: Mapping[str, int], ratio: float, least: float) -> None:
    """Raise if the file is not what the recipe says; `chosen` is the number of linear layers that it names.

    Other MatMul (attention's two, if the graph writes it out) have no weights and stay float32 by right.
    """
    kinds = INT8_NODES if recipe.linear == "int8" else (BLOCK_NODE,)
    made, left = sum(nodes.get(op, 0) for op in kinds), nodes.get("MatMul", 0)
    wrong = None
    if recipe.linear and made == 0:
        wrong = f"no MatMul was quantised, all {left} are still float32"
    elif recipe.linear and made != chosen:
        wrong = f"{made} of {chosen} MatMul with constant weights were quantised"
    elif recipe.table and nodes.get(TABLE_NODE, 0) != 1:
        wrong = f"{nodes.get(TABLE_NODE, 0)} tables were quantised, not the 1 of the token embeddings"
    elif ratio < least:
        wrong = f"the file is only {ratio:.2f} times smaller, at least {least:.2f} expected"
    if wrong:
        raise QuantizationError(
            f"recipe {recipe.name!r} did not work: {wrong}: nothing was written; install the versions of "
            f"requirements.txt (this is onnxruntime {version('onnxruntime')}), or take another recipe"
        )


def _pass(gate: Gate, source: Path, quantised: Path, recipe: Recipe, layers: Sequence[str]) -> float:
    """The agreement, or QuantizationError with what to try if it is under the gate's bound (or no number)."""
    agreement = gate.agreement(source, quantised)
    if agreement >= gate.bound:
        return agreement
    what = "of answers" if gate.answers else "mean cosine"
    raise QuantizationError(
        f"recipe {recipe.name!r}: {agreement:.4f} {what} agree with fp32 on {len(gate.texts)} texts, at least "
        f"{gate.bound} asked: nothing was written; try {_advice(recipe, layers)}"
    )


def _advice(recipe: Recipe, layers: Sequence[str]) -> str:
    """What to change in a recipe that loses too much: the likeliest first, and only what changes it."""
    if recipe.saturates():
        return "reduce_range=None: this CPU has no VNNI and sums overflow"
    if recipe.linear == "int8" and not recipe.per_channel:
        return "per_channel=True"
    if recipe.linear == "int4-block":
        return "linear='int8'"
    if recipe.linear and len(recipe.chosen(layers)) > 1:
        return "keep=(...,) for the linear layers that cost most; to find them, quantise each alone with only=(...,)"
    if recipe.table and recipe.table_block > 16:
        return f"table_block={recipe.table_block // 2}, or table=None"
    return "float32 for what this recipe quantises"
