"""Rewriting a graph so that it computes the same with fewer operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from helpers.encode.graph import with_branches

if TYPE_CHECKING:
    import onnx


def split_weights(model: onnx.ModelProto, names: Sequence[str]) -> list[str]:
    """Where a product with constant weights is cut apart by a Split, cut the weights instead.

    ModernBERT computes query, key and value as one product, and the two halves of its gated feed-forward layer (GeGLU)
    as another, then copies the parts out. With weights cut into columns each part is a product of its own, nothing is
    copied, and a quantiser still quantises their common input once.

    Parameters
    ----------
    model
        Changed in place.
    names
        Names of MatMul nodes with constant right sides. Those that no Split into equal parts follows stay as they are.

    Returns
    -------
    list of str
        Names of the MatMul nodes that now stand for them.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {info.name: info.type.tensor_type.shape.dim for info in graph.value_info}
    users, ours = _users(graph), {output for node in graph.node for output in node.output}  # not those of branches
    nodes, dead, made = [], set(), []
    for node in graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        kernel, cut = weights[node.input[1]], _cut(node, users, shapes)
        if (
            not cut or len(kernel.dims) != 2 or kernel.dims[1] % len(cut[-1].output) or len(users[kernel.name]) > 1
            or cut[-1].output[0] not in ours or f"{node.name}_part_0" in weights
        ):  # fmt: skip
            nodes.append(node)
            made.append(node.name)
            continue
        dead |= {kernel.name, *(gone.output[0] for gone in cut)}
        pieces = np.split(numpy_helper.to_array(kernel), len(cut[-1].output), axis=1)
        for part, (piece, output) in enumerate(zip(pieces, cut[-1].output, strict=True)):
            name = f"{node.name}_part_{part}"
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(piece), name))
            nodes.append(helper.make_node("MatMul", [node.input[0], name], [output], name))
            nodes[-1].metadata_props.extend(node.metadata_props)  # its place in the model
            made.append(name)
    # What a dead Split gave comes from a product now, so nodes go by identity of the operator, not by what they give.
    kept = [node for node in nodes if node.op_type not in ("Reshape", "Split") or node.output[0] not in dead]
    del graph.node[:]
    graph.node.extend(kept)
    for at in reversed(range(len(graph.initializer))):  # a list of the others would hold a gigabyte twice
        if graph.initializer[at].name in dead:
            del graph.initializer[at]
    return made


def _users(graph: onnx.GraphProto) -> Mapping[str, list[onnx.NodeProto | str]]:
    """Tensor -> the nodes that read it, in the branches of an If too, and "output" if the graph hands it out."""
    users = defaultdict(list)
    for inner in with_branches(graph):
        for node in inner.node:
            for name in node.input:
                users[name].append(node)
        for output in inner.output:
            users[output.name].append("output")
    return users


def _cut(
    product: onnx.NodeProto, users: Mapping[str, Sequence[onnx.NodeProto | str]], shapes: Mapping[str, Sequence]
) -> list[onnx.NodeProto]:
    """What stands between a product and its parts: the Split, before it perhaps reshapes that change nothing at last.

    Empty if there is no Split, it cuts another axis than the last of three or into unequal parts, or something else
    needs what is in between.
    """
    chain, name = [], product.output[0]
    while len(users[name]) == 1 and getattr(users[name][0], "op_type", None) in ("Reshape", "Split"):
        chain.append(users[name][0])
        name = chain[-1].output[0]
        if chain[-1].op_type == "Split":
            break
    if not chain or chain[-1].op_type != "Split" or len(chain[-1].input) > 1:
        return []
    if any(attribute.name == "split" for attribute in chain[-1].attribute):  # before opset 13 sizes stood here
        return []
    before, after = (
        [dim.dim_param or dim.dim_value for dim in shapes.get(name, ())]
        for name in (product.output[0], chain[-1].input[0])
    )
    axis = next((attribute.i for attribute in chain[-1].attribute if attribute.name == "axis"), 0)
    known = len(before) == 3 and all(before)  # two sizes that the file does not name need not be the same
    return chain if known and before == after and axis in (2, -1) else []
