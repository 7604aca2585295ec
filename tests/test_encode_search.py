"""Choosing among measured recipes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.encode.search import pareto_front, smallest_within
from helpers.errors import InputError

MEASURED = pd.DataFrame(
    {"mb": [100, 50, 50, 20, 120], "ms": [10, 6, 7, 9, 11], "high": [0.0, 0.004, 0.004, 0.03, 0.001]},
    index=["fp32", "int8", "slow int8", "int4", "worse fp32"],
)


def test_the_front_holds_what_nothing_beats() -> None:
    front = pareto_front(MEASURED, ["mb", "ms", "high"])
    assert MEASURED.index[front].tolist() == ["fp32", "int8", "int4"]


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_each_row_is_on_the_front_or_beaten_by_one_that_is(rows: list[tuple[int, int, int]]) -> None:
    frame = pd.DataFrame(rows, columns=list("abc"))
    front = pareto_front(frame, list("abc")).to_numpy()
    values = frame.to_numpy()
    for row, on_front in zip(values, front, strict=True):
        beats = (values <= row).all(axis=1) & (values < row).any(axis=1)
        assert on_front != beats.any()
        assert on_front or (beats & front).any()
    assert front.any()


def test_the_smallest_that_will_do() -> None:
    assert smallest_within(MEASURED, 0.005) == "int8"
    assert smallest_within(MEASURED, 0.05) == "int4"
    assert smallest_within(MEASURED, 0.0) == "fp32"
    assert smallest_within(MEASURED, np.float32(0.005)) == smallest_within(MEASURED, np.inf, size="ms") == "int8"
    assert smallest_within(MEASURED, 0.05, size="ms") == "int8"


def test_what_cannot_be_chosen_from_is_refused_in_one_line() -> None:
    for call, words in (
        (lambda: smallest_within(MEASURED, -0.1), "nearest is 'fp32' with 0.0000"),
        (lambda: smallest_within(MEASURED, None), "bound=None is no number"),
        (lambda: smallest_within(MEASURED, float("nan")), "bound=nan is no number"),
        (lambda: smallest_within(MEASURED, np.float32("nan")), r"bound=np\.float32\(nan\) is no number"),
        (lambda: smallest_within(MEASURED, "0.01"), r"bound='0\.01' is no number"),
        (lambda: smallest_within(MEASURED, True), "bound=True is no number"),
        (lambda: smallest_within(MEASURED.drop(columns="high"), 0), "no column 'high'"),
        (lambda: pareto_front(MEASURED[:0], ["mb"]), "no row"),
        (lambda: pareto_front(MEASURED.assign(ms=[1, 2, np.nan, 4, 5]), ["mb", "ms"]), "'slow int8' was not measured"),
    ):
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)
