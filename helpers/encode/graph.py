"""Reading an .onnx file: its operators, its linear layers by name, its notes, its size."""

from __future__ import annotations

import collections
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.errors import InputError, QuantizationError

if TYPE_CHECKING:
    import onnx
    import pandas as pd

INT8_NODES = ("MatMulInteger", "DynamicQuantizeMatMul")
BLOCK_NODE = "MatMulNBits"
TABLE_NODE = "GatherBlockQuantized"

_PLACE = re.compile(r"layers[./](\d+)[./](attn|mlp)[./](Wqkv|Wo|Wi)\b")


def read_model(path: str | Path, weights: bool = False) -> onnx.ModelProto:
    """The model in a file, with what lies in files beside it only if asked for the weights.

    Raises
    ------
    InputError
        If there is no such file, it cannot be read, or it holds no model.
    """
    import onnx

    path = Path(path)
    if not path.is_file():
        wrong = f"{path} is a folder, no ONNX file" if path.is_dir() else f"no model file {path}"
        raise InputError(f"{wrong}: give the file that export wrote")
    try:
        model = onnx.load(path, load_external_data=weights)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    except Exception as error:  # protobuf's DecodeError is not exported under a stable name
        raise InputError(f"{path} is no ONNX file, or not a whole one: export it again") from error
    if not model.HasField("graph"):  # to protobuf an empty file is a message, and so is some junk
        raise InputError(f"{path} is no ONNX file, it holds no graph: export it again")
    return model


def count_nodes(source: str | Path | onnx.ModelProto) -> dict[str, int]:
    """Operators of a model, those inside branches (If) too: type -> number of nodes, most frequent first."""
    import onnx

    model = source if isinstance(source, onnx.ModelProto) else read_model(source)
    counts = collections.Counter(node.op_type for graph in with_branches(model.graph) for node in graph.node)
    return dict(counts.most_common())


def with_branches(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph, and the graphs inside it (the branches of If), however deep."""
    import onnx

    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from with_branches(attribute.g)


def linear_layers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """The linear layers, which are the MatMul with a constant right side, by name: "0.attn.Wqkv", "0.attn.Wo" ...

    The exporters note each node's place in the torch model, one in its metadata, the other in its name. A linear layer
    that is none of ModernBERT's keeps its node's name.

    Raises
    ------
    QuantizationError
        If two have the same name, or one has none: a recipe could not tell them apart.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            notes = [node.name, *(note.value for note in node.metadata_props)]
            match = next(filter(None, map(_PLACE.search, notes)), None)
            name = f"{match[1]}.{match[2]}.{match[3]}" if match else node.name
            if not name or name in found:
                raise QuantizationError(
                    f"linear layer {name!r} has no name of its own: the graph is not one that export writes"
                )
            found[name] = node
    return found


def embedding_table(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    """The table of token embeddings: what the Gather on input_ids reads, and what the INT4 quantiser may touch.

    Raises
    ------
    QuantizationError
        If there is not exactly one; the message starts with `name`.
    """
    tables = {tensor.name: tensor for tensor in model.graph.initializer}
    found = [
        n for n in model.graph.node if n.op_type == "Gather" and n.input[1] == "input_ids" and n.input[0] in tables
    ]
    if len(found) != 1:
        raise QuantizationError(
            f"{name}: {len(found)} tables are read with input_ids, 1 expected: the graph is not one that export writes"
        )
    return tables[found[0].input[0]]


def metadata(path: str | Path) -> dict[str, object]:
    """What `export` and `quantize` noted in the file: model, recipe, source_sha256, policy, agreement."""
    notes = {note.key: note.value for note in read_model(path).metadata_props}
    return {key: json.loads(value) if value.startswith("{") else value for key, value in notes.items()}


def add_metadata(path: Path, notes: Mapping[str, str]) -> None:
    """Put key and value pairs into the file's metadata.

    A protobuf message may be written in pieces that its reader merges: a small piece with the metadata goes to the end,
    and a gigabyte of weights need not be read and written again.
    """
    import onnx

    piece = onnx.ModelProto()
    onnx.helper.set_model_props(piece, dict(notes))
    with path.open("ab") as file:
        file.write(piece.SerializeToString())


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
        INT8 MatMul, block MatMul and INT4 tables.
    """
    import pandas as pd

    if not paths:
        raise InputError("size_report: no files given")
    lost = [str(path) for path in paths.values() if not Path(path).exists()]
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
            "block MatMul": nodes.get(BLOCK_NODE, 0),
            "INT4 tables": nodes.get(TABLE_NODE, 0),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
