"""Exercises say "not tried yet", "right" or what is off; a headless run stops on a wrong answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from helpers.course import checks, results
from helpers.encode.cpu import available_cores
from helpers.encode.encoder import OnnxEncoder
from helpers.encode.load import MINI
from helpers.encode.recipe import INT4_INT4, INT8_INT4, Recipe

MATES = ["stop", "Please close all the blinds in the bedroom before it gets hot"]
ROWS = pd.DataFrame({"split": ["test"] * 5 + ["train"] * 2, "cluster": list("aabbcdd")})
FILES = {
    "fp32": {"mb": 560, "f1_loss": 0.0},
    "int8": {"mb": 430, "f1_loss": 0.002},
    "int8+int4": {"mb": 105, "f1_loss": 0.004},
    "int4": {"mb": 90, "f1_loss": 0.05},
}
CASES = {  # exercise -> (further arguments, right answer, [(wrong answer, what the line says)])
    "start_1": (
        (),
        available_cores(),
        [
            (available_cores() + 1, "share"),
            (available_cores() - 1, "idle"),
            ("two", "whole number"),
            (2.0, "whole number"),
            (True, "whole number"),
        ],
    ),
    "start_2": ((ROWS,), 3, [(5, "number of rows"), (4, "test side"), ("3", "whole number")]),
    "fewshot_1": (
        (3, 4),
        (30, 48),
        [
            ((18, 48), "with itself"),
            ((31, 48), "within a class"),
            ((30, 96), "(b, a)"),
            ((30, 47), "4 x 4"),
            ((30,), "is not (pairs"),
            (78, "two whole numbers"),
        ],
    ),
    "fewshot_2": (
        ({2: 0.3, 8: 0.5, 32: 0.7}, 0.5),
        8,
        [(2, "less than 0.5"), (32, "so are fewer"), (4, "choose one of 2, 8, 32"), (None, "8 examples a class reach")],
    ),
    "mini_1": (
        (["on", "on", "off", "on"],),
        0.75,
        [(0.5, "not the share"), (75, "between 0 and 1"), ("75 %", "number")],
    ),
    "quantize_1": (
        (FILES, 0.01),
        "int8+int4",
        [("int8", "so does a smaller"), ("int4", "loses 0.05"), ("fp16", "choose one of"), (None, "3 of"), (3, "name")],
    ),
    "quantize_2": (
        (500_000, 768),
        240,
        [(192, "scale besides"), (384.0, "is not it"), ("240 MB", "a number of MB")],
    ),
    "quantize_3": (
        lambda mini: (mini.fp32, 11.0),
        Recipe("x", table_block=128),
        [
            (INT8_INT4, "what besides the 4-bit numbers"),
            (INT4_INT4, "stay in INT8"),
            (Recipe("x", table_block=512), "hidden size"),
            (Recipe("x", table_block=128, keep=("0.*",)), "stay in INT8"),
            (Recipe("x", table=None), "store it in INT4"),
            (Recipe("x", keep=("nothing",)), "fits no linear layer"),
            ("table_block=128", "a Recipe"),
        ],
    ),
    "quantize_4": (
        ({"a": {"cosine": 0.99}, "b": {"cosine": 0.97}}, ["a", "b"]),
        "b",
        [("a", "another one costs more"), ("c", "none of a, b"), (0.97, "in quotes")],
    ),
    "quantize_5": (
        lambda mini: (mini.int8_int4, MINI / "tokenizer.json", MATES),
        lambda mini: _moved(mini.int8_int4),
        [(0.5, "is not it"), ("a little", "a number")],
    ),
    "chunks_1": (
        (30_000, 256, 1 / 8),
        135,
        [(134, "special ones"), (119, "do not overlap"), (7, "new tokens"), (135.0, "whole number")],
    ),
    "chunks_2": (
        ({64: 1.0, 256: 2.0, 8192: 9.0}, {64: 0.6, 256: 0.7, 8192: 0.71}, 0.02),
        256,
        [(64, "below the best"), (8192, "cheaper"), (100, "choose one of 64, 256, 8192"), ("256", "in tokens")],
    ),
    "workers_1": (
        ({8: 1.4, 16: 0.9, 32: 1.1, 64: 0.8},),
        32,
        [(8, "at 32 tokens"), (64, "0.80 times"), (0, "at 32 tokens"), (33, "8, 16, 32, 64"), ("32", "a length")],
    ),
    "workers_2": (
        (4, 850.0, 250.0, "workers"),
        (2, 2),
        [
            ((4, 1), "1000 MB, 850"),
            ((1, 4), "workers bring more"),
            ((3, 1), "leaves 1 of 4"),
            ((2, 4), "share 4 cores"),
            ((2,), "two whole numbers"),
            ((2, True), "two whole numbers"),
            ((np.int64(4), 1), "1000 MB, 850"),
            (4, "two whole numbers"),
        ],
    ),
}


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path))
    monkeypatch.delenv("COURSE_NOTEBOOK", raising=False)
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    monkeypatch.setattr(results, "_now", {})
    results.start("nb", model="mini", fast=True)
    return tmp_path / "nb.json"


def test_every_exercise_has_a_case_here() -> None:
    assert CASES.keys() == checks.EXERCISES.keys()


@pytest.fixture
def mini(mini_onnx: Path, mini_report) -> SimpleNamespace:
    """Files of mmbert-mini, for cases that measure."""
    return SimpleNamespace(fp32=mini_onnx, int8_int4=mini_report.path)


def _moved(path: Path) -> float:
    alone, together = (OnnxEncoder(path, MINI / "tokenizer.json", batch_size=n).encode(MATES)[0] for n in (1, 2))
    return np.abs(alone - together).max()


@pytest.mark.parametrize("name", CASES)
def test_not_tried_off_and_right(name: str, started: Path, monkeypatch: pytest.MonkeyPatch, mini) -> None:
    more, right, wrongs = CASES[name]
    more, right = (case(mini) if callable(case) else case for case in (more, right))
    check = checks.EXERCISES[name]

    def kept() -> str:
        return json.loads(started.read_text())["exercises"][name]

    monkeypatch.setenv("COURSE_STRICT", "1")
    assert repr(check(..., *more)).startswith(f"{name}: not tried yet")
    assert kept() == "not tried"
    for wrong, says in wrongs:
        monkeypatch.delenv("COURSE_STRICT", raising=False)
        outcome = check(wrong, *more)
        assert outcome.state == "off" and says in str(outcome) and "\n" not in str(outcome)
        monkeypatch.setenv("COURSE_STRICT", "1")
        with pytest.raises(checks.WrongAnswer, match=f"{name}: off"):
            check(wrong, *more)
        assert kept() == "off"
    assert check(right, *more).state == "right"
    assert kept() == "right"


def test_numpy_answers_count_and_none_may_be_right() -> None:
    assert checks.start_1(np.int64(3), cores=3).state == "right"
    assert checks.quantize_1(None, FILES, -1).state == "right"


def test_the_layout_and_the_length_asked_for_follow_the_measurement() -> None:
    assert checks.workers_1(0, {8: 0.9, 64: 0.5}).state == "right"
    assert checks.workers_2((4, 1), 4, 1000.0, 250.0, "workers").state == "right"
    assert checks.workers_2((1, 4), 4, 850.0, 250.0, "threads").state == "right"


@pytest.mark.parametrize("answer", [float("nan"), np.float64("nan"), float("inf"), 10**400])
def test_what_is_no_finite_number_is_never_right(answer: object) -> None:
    found = checks.quantize_2(answer, 500_000, 768)
    assert found.state == "off" and "finite" in found.message


def test_a_check_outside_a_notebook_keeps_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_now", {})
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "none"))
    assert checks.start_1(1, cores=1).state == "right"
    assert not (tmp_path / "none").exists()
