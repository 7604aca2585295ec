"""Both encoders: the same answers, in order, independent of neighbours, and clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.encode.encoder import OnnxEncoder, TorchEncoder, pad, pool
from helpers.encode.load import MINI
from helpers.errors import InputError

TEXTS = [
    "Turn on the kitchen light",
    "Schalte bitte alle Lichter im Wohnzimmer und im Flur aus, aber lass die Stehlampe an",
    "Quelle est la température ?",
    "stop",
]


@pytest.fixture(scope="module")
def fp32(mini_onnx: Path) -> OnnxEncoder:
    return OnnxEncoder(mini_onnx, MINI / "tokenizer.json")


@pytest.fixture(scope="module")
def batches_of_three(mini_onnx: Path) -> OnnxEncoder:
    return OnnxEncoder(mini_onnx, MINI / "tokenizer.json", batch_size=3)


def test_torch_and_onnx_agree(mini_torch, fp32: OnnxEncoder) -> None:
    expected, got = TorchEncoder(*mini_torch).encode(TEXTS), fp32.encode(TEXTS)
    assert got.dtype == np.float32 and got.shape == (4, 256)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_pooling_is_the_mean_of_valid_tokens(mini_torch) -> None:
    import torch

    model, tokenizer = mini_torch
    found = tokenizer(TEXTS[:2], padding=True, return_tensors="pt")
    with torch.inference_mode():
        tokens, mask = model(**found).last_hidden_state, found["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1)).numpy()
    np.testing.assert_allclose(TorchEncoder(model, tokenizer, batch_size=2).encode(TEXTS[:2]), mean, atol=1e-5)


def test_padding_cannot_reach_the_mean() -> None:
    tokens = np.ones((2, 3, 4), dtype=np.float32)
    tokens[1, 1:] = np.nan
    _, mask = pad([[5, 6, 7], [5]])
    np.testing.assert_allclose(pool(tokens, mask), 0.5)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*TEXTS, "a", "light " * 40]), min_size=1, max_size=8))
def test_batches_keep_order_and_values(fp32: OnnxEncoder, batches_of_three: OnnxEncoder, texts: list[str]) -> None:
    np.testing.assert_allclose(batches_of_three.encode(texts), fp32.encode(texts), atol=1e-5)


def test_int8_answers_depend_on_batch_mates_but_not_at_batch_1(mini_report) -> None:
    alone = OnnxEncoder(mini_report.path, MINI / "tokenizer.json")
    np.testing.assert_array_equal(alone.encode(TEXTS)[0], alone.encode(TEXTS[:1])[0])
    together = OnnxEncoder(mini_report.path, MINI / "tokenizer.json", batch_size=4)
    assert np.abs(together.encode(TEXTS)[0] - together.encode(TEXTS[:1])[0]).max() > 1e-4
    assert (alone.policy["batch"], together.policy["batch"]) == (1, 4)


def test_policy_names_what_an_answer_depends_on(mini_torch, mini_report) -> None:
    quantised = OnnxEncoder(mini_report.path, mini_torch[1], threads=1, max_tokens=64).policy
    assert quantised == {
        "batch": 1, "max_tokens": 64, "provider": "CPUExecutionProvider", "recipe": "int8+int4", "threads": 1,
        "reduce_range": mini_report.recipe.reduce_range,
    }  # fmt: skip
    assert TorchEncoder(*mini_torch).policy.keys() == quantised.keys()


@pytest.mark.parametrize("empty", ["", "  \n\t"])
def test_empty_text_is_refused_with_its_row(fp32: OnnxEncoder, empty: str) -> None:
    with pytest.raises(InputError, match="row 1 is empty"):
        fp32.encode(["fine", empty])


def test_what_is_no_text_is_refused(fp32: OnnxEncoder) -> None:
    with pytest.raises(InputError, match="row 0 is float"):
        fp32.encode([float("nan")])
    with pytest.raises(InputError, match="list of texts"):
        fp32.encode("one text")
    assert fp32.encode([]).shape == (0, 256)


def test_a_very_long_text_is_cut_quickly(fp32: OnnxEncoder, capfd: pytest.CaptureFixture) -> None:
    began = time.perf_counter()
    long = fp32.encode(["licence " * 100_000])
    assert time.perf_counter() - began < 10
    assert len(fp32.tokenize(["licence " * 100_000])[0]) == fp32.max_tokens
    np.testing.assert_allclose(long, fp32.encode(["licence " * 600]), atol=1e-5)
    assert capfd.readouterr() == ("", "")


def test_bad_settings(mini_torch, mini_onnx: Path, tmp_path: Path) -> None:
    for wrong in ({"batch_size": 0}, {"max_tokens": 2}):
        with pytest.raises(InputError, match="at least"):
            TorchEncoder(*mini_torch, **wrong)
    with pytest.raises(InputError, match="no model file"):
        OnnxEncoder(tmp_path / "none.onnx", mini_torch[1])
    with pytest.raises(InputError, match="no tokenizer file"):
        OnnxEncoder(mini_onnx, tmp_path / "none.json")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"bad\.onnx cannot be run") as error:
        OnnxEncoder(tmp_path / "bad.onnx", mini_torch[1])
    assert "\n" not in str(error.value)


def fresh(code: str, *args: object) -> str:
    """What a fresh Python prints; args are its sys.argv[1:]."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_measure_load_sees_the_smaller_file(mini_onnx: Path, mini_report) -> None:
    code = "import sys, json, helpers.encode.encoder as e; print(json.dumps(e.measure_load(sys.argv[1])))"
    large, small = (json.loads(fresh(code, path)) for path in (mini_onnx, mini_report.path))
    assert large["rss_mb"] > 1.5 * small["rss_mb"] > 0
    assert all(0 < one["ms"] < 10_000 and one["load_seconds"] > 0 for one in (large, small))


def test_measure_load_counts_no_imports_for_torch() -> None:
    code = """if True:
        import json, sys
        from helpers.encode import encoder, load
        usual = load.random_model

        def watched(config):
            before = set(sys.modules)
            model = usual(config)
            print(json.dumps([name for name in sys.modules if name not in before and "modernbert" in name]))
            return model

        load.random_model = watched
        load._SIZES["tiny"] = {"hidden_size": 16, "num_attention_heads": 1}
        print(json.dumps(encoder.measure_load("torch:tiny", n_tokens=8)))"""
    late, found = map(json.loads, fresh(code).splitlines())
    assert late == []
    assert 10 < found["rss_mb"] < 150 and 0 < found["load_seconds"] < 5  # 21 MB; the imports are several times that


def test_serving_needs_neither_torch_nor_transformers(mini_report) -> None:
    code = """if True:
        import sys
        from helpers.encode import OnnxEncoder
        OnnxEncoder(*sys.argv[1:3]).encode(["on"])
        print("torch" in sys.modules, "transformers" in sys.modules)"""
    assert fresh(code, mini_report.path, MINI / "tokenizer.json").split() == ["False", "False"]
