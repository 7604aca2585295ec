"""Quantising: what was asked for happened, can be read from the file, and is refused otherwise."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization import quantize_dynamic
from transformers import ModernBertConfig

from helpers.encode import cpu, quantize, recipe, rewrite
from helpers.encode.encoder import OnnxEncoder, session
from helpers.encode.export import _export_optimum
from helpers.encode.graph import add_metadata, count_nodes, linear_layers, metadata, sha256, size_report
from helpers.encode.load import MINI, random_model
from helpers.encode.quantize import Gate
from helpers.encode.recipe import INT4_INT4, INT4_TABLE, INT8, INT8_INT4, Recipe
from helpers.errors import InputError

TEXTS = ["Turn on the kitchen light", "Mach die Rollos im Schlafzimmer zu", "Quelle est la température ?", "stop"]


PRODUCTS = 6 * (3 + 1 + 2 + 1)
"""Of mmbert-mini in INT8: in each of 6 layers query, key and value, attention's output, GeGLU's halves, the output."""


def cosine(path: Path, other: Path) -> float:
    a, b = (OnnxEncoder(file, MINI / "tokenizer.json").encode(TEXTS) for file in (path, other))
    return float((a * b).sum(1).min())


def test_every_linear_layer_and_the_table_were_quantised(mini_report) -> None:
    nodes = count_nodes(mini_report.path)
    assert (nodes["MatMulInteger"], nodes["GatherBlockQuantized"]) == (PRODUCTS, 1)
    assert nodes["MatMul"] == 1 and "Gather" not in nodes  # the one left makes the rotary angles
    assert mini_report.nodes == nodes
    assert 5 < mini_report.ratio < 6
    assert mini_report.mb == pytest.approx(mini_report.path.stat().st_size / 1e6)


def test_weights_cut_into_columns_give_the_same_answers(mini_onnx: Path, tmp_path: Path) -> None:
    """In float32, and quantised with a scale for each column: to the last bit what the whole product gives."""
    whole, split = onnx.load(mini_onnx), onnx.load(mini_onnx)
    names = [node.name for node in linear_layers(whole).values()]
    made = rewrite.split_weights(split, names)
    assert len(made) == len(set(made)) == PRODUCTS and count_nodes(split).get("Split", 0) == 0
    assert count_nodes(whole)["Split"] == 12
    assert rewrite.split_weights(split, made) == made, "nothing is left to cut"
    for model, name in ((whole, "whole"), (split, "split")):
        onnx.save(model, tmp_path / f"{name}.onnx")
        quantize_dynamic(model, tmp_path / f"{name}-int8.onnx", ["MatMul"], True,
                         extra_options={"MatMulConstBOnly": True, "WeightSymmetric": True})  # fmt: skip
    ids = np.random.default_rng(0).integers(5, 1000, (2, 300))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for suffix in ("", "-int8"):
        a, b = (session(tmp_path / f"{name}{suffix}.onnx").run(None, feed)[0] for name in ("whole", "split"))
        assert np.abs(a - b).max() < 1e-5 and np.abs(a).max() > 1


def test_only_a_split_of_the_columns_is_cut() -> None:
    """Parts of unequal size, parts of another axis, and products that something else reads stay whole."""
    kernel = onnx.numpy_helper.from_array(np.ones((4, 6), dtype=np.float32), "w")

    def products(split: str, more: str = "", unnamed: bool = False) -> list[str]:
        graph = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 6, 4] x) => (float[1, 6, 6] y) <float[1, 6, 6] p> {{
                p = MatMul (x, w)
                {split}
                y = Identity (a){more}
            }}""")
        graph.graph.initializer.append(kernel)
        if unnamed:
            graph.graph.value_info[0].type.tensor_type.shape.dim[0].Clear()
        graph.graph.node[0].name = "product"
        return rewrite.split_weights(graph, ["product"])

    assert products("a, b = Split <axis = 2, num_outputs = 2> (p)") == ["product_part_0", "product_part_1"]
    assert products("a, b = Split <axis = -1, num_outputs = 2> (p)") == ["product_part_0", "product_part_1"]
    assert products("a, b = Split <axis = 1, num_outputs = 2> (p)") == ["product"]
    assert products("a, b, c, d = Split <axis = 2, num_outputs = 4> (p)") == ["product"]
    assert products("a, b = Split <axis = 2, num_outputs = 2> (p)", " z = Neg (p)") == ["product"]
    assert products("a = Relu (p)") == ["product"]
    assert products("a, b = Split <axis = 2, num_outputs = 2> (p)", unnamed=True) == ["product"]
    inside = "c = Shape (x) d = Size (c) e = Cast <to = 9> (d)"
    one, other = (f"{n} () => (float[1, 6, 6] {n}) {{ {n} = {op} (p) }}" for n, op in (("r", "Neg"), ("s", "Abs")))
    taken = f" {inside} z = If (e) <then_branch = {one}, else_branch = {other}>"
    assert products("a, b = Split <axis = 2, num_outputs = 2> (p)", taken) == ["product"], "a branch reads it too"


def test_answers_stay_close(mini_onnx: Path, mini_report) -> None:
    assert cosine(mini_onnx, mini_report.path) > 0.99


def test_recipe_source_and_policy_travel_with_the_file(mini_onnx: Path, mini_report) -> None:
    notes = metadata(mini_report.path)
    assert Recipe.read(notes["recipe"]) == mini_report.recipe == INT8_INT4.settled()
    assert notes["recipe"].keys() == asdict(INT8_INT4).keys(), "what is left out would follow tomorrow's defaults"
    assert notes["source_sha256"] == sha256(mini_onnx)
    assert notes["policy"] == {"batch": 1, "padding": False, "reduce_range": mini_report.recipe.reduce_range}
    assert notes["model"] == "mmbert-mini"
    assert str(mini_onnx.parent) not in json.dumps(notes)


def test_int8_alone_and_int4_alone(mini_onnx: Path, tmp_path: Path) -> None:
    int8 = quantize.quantize(mini_onnx, tmp_path / "a.onnx", INT8)
    int4 = quantize.quantize(mini_onnx, tmp_path / "b.onnx", INT4_TABLE)
    assert "GatherBlockQuantized" not in int8.nodes and "MatMulInteger" not in int4.nodes
    assert int4.ratio > int8.ratio > 1.15  # three quarters of this model are its table
    table = size_report({"fp32": mini_onnx, "int8": int8.path, "int4": int4.path})
    assert table["INT8 MatMul"].tolist() == [0, PRODUCTS, 0] and table["INT4 tables"].tolist() == [0, 0, 1]
    assert table.ratio["fp32"] == 1 and table.ratio["int4"] == pytest.approx(int4.ratio)


def test_seven_bits_where_the_cpu_would_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, reduced in (
        ({"avx2"}, True), ({"avx512f", "avx512_vnni"}, False), ({"avx_vnni"}, False), ({"asimd"}, False), (set(), True)
    ):  # fmt: skip
        monkeypatch.setattr(recipe, "cpu_flags", lambda f=flags: frozenset(f))
        monkeypatch.setattr(recipe, "has_vnni", lambda f=flags: not cpu.DOT_PRODUCT_FLAGS.isdisjoint(f))
        assert INT8.settled().reduce_range is reduced
        assert Recipe("8", reduce_range=False).saturates() is reduced
        assert not any(r.saturates() for r in (INT8, INT4_TABLE, INT4_INT4, Recipe("u", weights="uint8")))
    assert INT4_TABLE.settled().reduce_range is False
    assert Recipe("u", weights="uint8").settled().reduce_range is False
    assert Recipe("x", reduce_range=True).settled().reduce_range is True


def test_weights_keep_to_the_range(mini_onnx: Path, tmp_path: Path) -> None:
    for reduced, most in ((True, 64), (False, 127)):
        asked = Recipe("x", reduce_range=reduced)
        path = quantize.quantize(mini_onnx, tmp_path / "x.onnx", asked, allow_saturation=True).path
        weights = [t for t in onnx.load(path).graph.initializer if t.name.endswith("_quantized")]
        found = [onnx.numpy_helper.to_array(t).astype(int) for t in weights if len(t.dims) == 2]
        assert len(found) == PRODUCTS and max(np.abs(w).max() for w in found) == most


def test_a_quantiser_that_does_nothing_is_refused(mini_onnx: Path, tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "out" / "q.onnx"
    target.parent.mkdir()
    target.write_text("what was here before")

    def nothing(model: onnx.ModelProto, path: Path, **_: object) -> None:
        onnx.save(model, path)

    monkeypatch.setattr("onnxruntime.quantization.quantize_dynamic", nothing)
    with pytest.raises(RuntimeError, match="no MatMul was quantised, all 43 are still float32") as error:
        quantize.quantize(mini_onnx, target, INT8_INT4)
    assert "\n" not in str(error.value)
    assert [file.name for file in target.parent.iterdir()] == ["q.onnx"]
    assert target.read_text() == "what was here before"


def test_weights_the_quantiser_cannot_see_are_refused(mini_onnx: Path, tmp_path: Path) -> None:
    """Weights behind a Mul are no constants to onnxruntime, which leaves them alone without a word."""
    model = onnx.load(mini_onnx)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "one"))
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in [n for n in model.graph.node if n.op_type == "MatMul" and n.input[1] in constants]:
        model.graph.node.insert(0, onnx.helper.make_node("Mul", [node.input[1], "one"], [f"{node.name}_hidden"]))
        node.input[1] = f"{node.name}_hidden"
    onnx.save(model, tmp_path / "hidden.onnx")
    with pytest.raises(RuntimeError, match="no MatMul has constant weights"):
        quantize.quantize(tmp_path / "hidden.onnx", tmp_path / "q.onnx", INT8)
    assert [file.name for file in tmp_path.iterdir()] == ["hidden.onnx"]


def test_a_table_the_quantiser_cannot_see_is_refused(mini_onnx: Path, tmp_path: Path) -> None:
    model = onnx.load(mini_onnx)
    gather = next(n for n in model.graph.node if n.op_type == "Gather")
    model.graph.node.insert(0, onnx.helper.make_node("Identity", [gather.input[0]], ["table"]))
    gather.input[0] = "table"
    onnx.save(model, tmp_path / "hidden.onnx")
    with pytest.raises(RuntimeError, match="0 tables are read with input_ids"):
        quantize.quantize(tmp_path / "hidden.onnx", tmp_path / "q.onnx", INT4_TABLE)
    assert [file.name for file in tmp_path.iterdir()] == ["hidden.onnx"]


@pytest.mark.parametrize("recipe", [INT8, INT8_INT4], ids=lambda recipe: recipe.name)
def test_a_graph_of_optimum_can_be_quantised(optimum_onnx: Path, tmp_path: Path, recipe: Recipe) -> None:
    """It writes attention out: two MatMul a layer, and those of the rotary angles, have no weights to quantise."""
    assert count_nodes(optimum_onnx)["MatMul"] == 20
    report = quantize.quantize(optimum_onnx, tmp_path / "q.onnx", recipe)
    assert (report.nodes["MatMulInteger"], report.nodes["MatMul"]) == (12, 8)
    feed = {"input_ids": np.full((1, 5), 7), "attention_mask": np.ones((1, 5), dtype=np.int64)}
    a, b = (session(path).run(None, feed)[0].ravel() for path in (optimum_onnx, report.path))
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.98


@pytest.fixture(scope="module")
def optimum_onnx(tmp_path_factory) -> Path:
    """Three layers of ModernBERT as optimum, the fallback, exports them."""
    config = ModernBertConfig(
        vocab_size=2000, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=2,
        pad_token_id=0, eos_token_id=1, bos_token_id=2, cls_token_id=1, sep_token_id=1, reference_compile=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    path = tmp_path_factory.mktemp("optimum") / "fp32.onnx"
    _export_optimum(random_model(config), path)
    return path


def test_a_size_that_cannot_be_is_refused() -> None:
    nodes = {"MatMulInteger": 24, "GatherBlockQuantized": 1}
    with pytest.raises(RuntimeError, match=r"only 1\.10 times smaller, at least 4\.50"):
        quantize._refuse_no_op(INT8_INT4, 24, nodes, 1.1, 4.5)
    with pytest.raises(RuntimeError, match="22 of 24"):
        quantize._refuse_no_op(INT8_INT4, 24, {**nodes, "MatMulInteger": 22}, 5, 4.5)
    with pytest.raises(RuntimeError, match="2 tables"):
        quantize._refuse_no_op(INT8_INT4, 24, {**nodes, "GatherBlockQuantized": 2}, 5, 4.5)


def test_bad_input(mini_onnx: Path, mini_report, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    for source, asked, words in (
        (tmp_path / "none.onnx", INT8, "no model file"),
        (tmp_path / "bad.onnx", INT8, "no ONNX file"),
        (mini_report.path, INT8, "quantised already"),
        (mini_onnx, Recipe("wide", table_block=512), "hidden size 256"),
        (mini_onnx, Recipe("typing error", keep=("*.Wqk",)), r"keep='\*\.Wqk' fits no linear layer"),
        (mini_onnx, Recipe("everything", keep=("*",)), "keeps every linear layer"),
    ):
        with pytest.raises(InputError, match=words) as error:
            quantize.quantize(source, out, asked)
        assert "\n" not in str(error.value) and not out.exists()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("what was here before")
    for source, target, asked, words in (
        (mini_onnx, out, "int8", "recipe is of type str: give a Recipe"),
        (mini_onnx, out, None, "recipe is of type NoneType: give a Recipe"),
        (tmp_path, out, INT8, "is a folder, no ONNX file"),
        (mini_onnx, tmp_path / "folder", INT8, "folder is a folder: give the file to write"),
        (mini_onnx, mini_onnx, INT8, "is the float32 file itself"),
        (mini_onnx, tmp_path / "file" / "q.onnx", INT8, r"q\.onnx cannot be written \("),
        (mini_onnx, tmp_path / "file" / "deeper" / "q.onnx", INT8, r"q\.onnx cannot be written \(Not a directory\)"),
        (mini_onnx, tmp_path / f"{'long' * 64}.onnx", INT8, r"cannot be written \("),
    ):
        with pytest.raises(InputError, match=words) as error:
            quantize.quantize(source, target, asked)
        assert "\n" not in str(error.value) and not out.exists()
    assert not list((tmp_path / "folder").iterdir()) and (tmp_path / "file").read_text() == "what was here before"
    with pytest.raises(InputError, match="no files"):
        size_report({})
    with pytest.raises(InputError, match="no file"):
        size_report({"x": out})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is a folder"),
        (b"", "holds no graph"),
        (b"\x0a\x03abc", "holds no graph"),  # a message to protobuf, but not ONNX's
        (b"no model at all", "no ONNX file"),
        (bytes(range(256)) * 20, "no ONNX file"),
    ],
)
def test_what_is_no_model_file_is_refused_by_name(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "broken.onnx"
    path.mkdir() if content is None else path.write_bytes(content)
    for read in (
        count_nodes, metadata, lambda file: size_report({"x": file}),
        lambda file: quantize.quantize(file, tmp_path / "q.onnx"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=rf"broken\.onnx.*{words}") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_a_cut_off_model_file_is_refused(mini_report, tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(mini_report.path.read_bytes()[:-100])
    for read in (count_nodes, metadata):
        with pytest.raises(InputError, match=r"cut\.onnx.*not a whole one: export it again"):
            read(path)
        with pytest.raises(InputError, match="no model file"):
            read(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"linear": None, "table": None}, "quantises nothing"),
        ({"table_block": 24}, "power of two"),
        ({"linear_block": 8}, "power of two"),
        ({"linear": "int5"}, "choose one of"),
        ({"keep": "*.mlp.Wo"}, "give a tuple"),
        ({"only": None}, "give a tuple"),
        ({"only": (1,)}, "give a tuple"),
        ({"linear_block": 512}, "from 16 to 256"),
        ({"linear_block": "32"}, "power of two"),
        ({"reduce_range": "no"}, "True or False"),
        ({"symmetric": None}, "True or False"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_when_it_is_made(wrong: dict, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        Recipe("x", **wrong)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="another version"):
        Recipe.read({"name": "x", "int8_linear": True})
    with pytest.raises(InputError, match="no name"):
        Recipe.read({})


@given(st.sets(st.sampled_from(recipe.PARTS)), st.sets(st.integers(0, 5)))
def test_patterns_choose_layers(parts: set[str], layers: set[int]) -> None:
    names = [f"{layer}.{part}" for layer in range(6) for part in recipe.PARTS]
    keep = tuple(f"*.{part}" for part in parts) + tuple(f"{layer}.*" for layer in layers)
    left = [n for n in names if n.partition(".")[2] not in parts and int(n[0]) not in layers]
    if left:
        assert Recipe("x", keep=keep).chosen(names) == left
        if keep:
            assert Recipe("x", only=keep).chosen(names) == [n for n in names if n not in left]
    else:
        with pytest.raises(InputError, match="keeps every"):
            Recipe("x", keep=keep).chosen(names)


def test_a_part_alone_and_everything_else(mini_onnx: Path, tmp_path: Path) -> None:
    one = quantize.quantize(mini_onnx, tmp_path / "one.onnx", Recipe("one", only=("*.mlp.Wo",), table=None))
    rest = quantize.quantize(mini_onnx, tmp_path / "rest.onnx", Recipe("rest", keep=("*.mlp.Wo",), table=None))
    assert (one.nodes["MatMulInteger"], rest.nodes["MatMulInteger"]) == (6, PRODUCTS - 6)
    left = {path: set(linear_layers(onnx.load(path))) for path in (one.path, rest.path)}
    assert left[rest.path] == {f"{layer}.mlp.Wo" for layer in range(6)} and len(left[one.path]) == 18


@pytest.mark.parametrize(
    ("asked", "node", "close"),
    [
        (INT4_INT4, "MatMulNBits", 0.95),
        (Recipe("int8-block", linear="int8-block"), "MatMulNBits", 0.99),
        (Recipe("uint8", weights="uint8"), "MatMulInteger", 0.99),
        (Recipe("asymmetric", symmetric=False, table_symmetric=False), "MatMulInteger", 0.99),
        (Recipe("tensor", per_channel=False, table_block=128), "MatMulInteger", 0.9),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_every_choice_is_made_and_stays_near(mini_onnx: Path, tmp_path: Path, asked, node, close) -> None:
    report = quantize.quantize(mini_onnx, tmp_path / "q.onnx", asked)
    whole = asked.linear != "int8" or not asked.per_channel  # only columns with scales of their own can be shared out
    assert report.nodes[node] == (24 if whole else PRODUCTS) and report.nodes["GatherBlockQuantized"] == 1
    assert Recipe.read(metadata(report.path)["recipe"]) == asked.settled()
    assert cosine(mini_onnx, report.path) > close


@pytest.mark.parametrize("asked", [INT8_INT4, INT4_INT4], ids=lambda asked: asked.name)
def test_long_texts_go_through_the_branches_of_a_quantised_file(plain_onnx, mini_onnx, tmp_path, asked) -> None:
    files = [
        quantize.quantize(source, tmp_path / f"{n}.onnx", asked).path
        for n, source in enumerate((mini_onnx, plain_onnx))
    ]
    for tokens in (300, 700):
        ids = np.random.default_rng(tokens).integers(5, 40_000, (1, tokens))
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        exact, banded, masked = (session(path).run(None, feed)[0][0] for path in (mini_onnx, *files))
        # rounding activations to 8 bits makes much of a last bit's difference in a token, less of it in their mean
        assert row_cosine(banded, masked).mean() > 0.99
        pooled = [x.mean(axis=0, keepdims=True) for x in (banded, masked, exact)]
        assert row_cosine(pooled[0], pooled[1]) > 0.999 and row_cosine(pooled[0], pooled[2]) > 0.97


def row_cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_a_file_made_for_another_cpu_is_not_served(mini_onnx: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(recipe, "needs_reduced_range", lambda: False)
    path = quantize.quantize(mini_onnx, tmp_path / "q.onnx", INT8).path
    assert OnnxEncoder(path, MINI / "tokenizer.json").policy["reduce_range"] is False
    monkeypatch.setattr(recipe, "needs_reduced_range", lambda: True)
    with pytest.raises(RuntimeError, match="this CPU has no VNNI"):
        OnnxEncoder(path, MINI / "tokenizer.json")
    assert OnnxEncoder(path, MINI / "tokenizer.json", allow_saturation=True).policy["recipe"] == "int8"


def test_two_layers_of_one_name_are_refused(mini_onnx: Path) -> None:
    for wrong in ("/model/layers.0/attn/Wqkv/MatMul", ""):
        model = onnx.load(mini_onnx)
        for node in linear_layers(model).values():
            node.name = wrong
            del node.metadata_props[:]
        with pytest.raises(RuntimeError, match="no name of its own"):
            linear_layers(model)


def test_overflow_is_refused_before_any_work(mini_onnx: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(recipe, "needs_reduced_range", lambda: True)
    asked = Recipe("8-bit", reduce_range=False)
    with pytest.raises(RuntimeError, match=r"no VNNI.*reduce_range=None") as error:
        quantize.quantize(mini_onnx, tmp_path / "q.onnx", asked)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
    assert (
        quantize.quantize(mini_onnx, tmp_path / "q.onnx", asked, allow_saturation=True).nodes["MatMulInteger"]
        == PRODUCTS
    )


def test_the_gate_lets_through_what_agrees_and_says_so(mini_onnx: Path, tmp_path: Path) -> None:
    report = quantize.quantize(mini_onnx, tmp_path / "q.onnx", gate=Gate(TEXTS, MINI / "tokenizer.json", 0.97))
    assert 0.97 < report.agreement < 1
    assert metadata(report.path)["agreement"] == {"cosine": report.agreement, "texts": len(TEXTS)}
    assert f"{report.agreement:.4f}" in str(report)
    texts = OnnxEncoder(mini_onnx, MINI / "tokenizer.json").encode(TEXTS)
    nearest = Gate(TEXTS, MINI / "tokenizer.json", 1, answers=lambda embeddings: (embeddings @ texts.T).argmax(axis=1))
    report = quantize.quantize(mini_onnx, tmp_path / "q.onnx", gate=nearest)
    assert metadata(report.path)["agreement"] == {"share": 1, "texts": len(TEXTS)}


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        (Recipe("tensor", per_channel=False), "per_channel=True"),
        (INT4_INT4, "linear='int8'"),
        (INT8_INT4, "each alone with only"),
        (Recipe("block", linear="int8-block"), "each alone with only"),
        (Recipe("one", only=("0.mlp.Wo",), table=None), "float32 for what"),
        (INT4_TABLE, "table_block=16, or table=None"),
        (Recipe("small", linear=None, table_block=16), "float32 for what"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_gate_refuses_and_says_what_to_try(mini_onnx: Path, tmp_path: Path, asked: Recipe, advice: str) -> None:
    out = tmp_path / "q.onnx"
    out.write_text("what was here before")
    with pytest.raises(RuntimeError, match="agree with fp32 on 4 texts, at least 1 asked") as error:
        quantize.quantize(mini_onnx, out, asked, gate=Gate(TEXTS, MINI / "tokenizer.json", 1))
    assert advice in str(error.value) and "\n" not in str(error.value)
    assert out.read_text() == "what was here before" and list(tmp_path.iterdir()) == [out]


def test_the_gate_knows_an_overflow(mini_onnx: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(recipe, "needs_reduced_range", lambda: True)
    gate, asked = Gate(TEXTS, MINI / "tokenizer.json", 1), Recipe("8-bit", reduce_range=False)
    with pytest.raises(RuntimeError, match="reduce_range=None"):
        quantize.quantize(mini_onnx, tmp_path / "q.onnx", asked, gate=gate, allow_saturation=True)


def test_no_number_is_no_agreement_whatever_a_classifier_makes_of_it(mini_onnx: Path, tmp_path: Path) -> None:
    model = onnx.load(mini_onnx)
    scale = next(tensor for tensor in model.graph.initializer if tensor.dims == [256])
    scale.CopyFrom(onnx.numpy_helper.from_array(np.full(256, np.nan, dtype=np.float32), scale.name))
    onnx.save(model, broken := tmp_path / "broken.onnx")
    for answers in (None, lambda embeddings: embeddings.argmax(axis=1)):
        gate = Gate(TEXTS, MINI / "tokenizer.json", 0, answers)
        with pytest.raises(RuntimeError, match="nothing was written"):
            quantize.quantize(broken, tmp_path / "q.onnx", gate=gate)


def test_what_is_no_gate_is_refused(mini_onnx: Path) -> None:
    for texts, bound in (([], 0.9), (TEXTS, 98), ("one text", 0.9)):
        with pytest.raises(InputError, match="gate"):
            Gate(texts, MINI / "tokenizer.json", bound)
    scores = Gate(TEXTS, MINI / "tokenizer.json", answers=lambda embeddings: embeddings[:, :3])
    with pytest.raises(InputError, match="one answer a text"):
        scores.agreement(mini_onnx, mini_onnx)


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=20), min_size=1), st.text(max_size=5))
def test_metadata_can_be_added_to_a_file_without_reading_it(tmp_path_factory, notes: dict[str, str], name: str) -> None:
    path = tmp_path_factory.mktemp("note") / "m.onnx"
    graph = onnx.helper.make_graph([], name, [], [])
    onnx.save(onnx.helper.make_model(graph), path)
    add_metadata(path, notes)
    model = onnx.load(path)
    assert {p.key: p.value for p in model.metadata_props} == notes and model.graph.name == name
