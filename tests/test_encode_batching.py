"""Batches: every text once, padding counted right, and timed in as many processes as asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.encode import OnnxEncoder
from helpers.encode.batching import batches, padding, time_batches
from helpers.encode.cpu import available_cores
from helpers.encode.encoder import pad
from helpers.encode.workers import Layout
from helpers.errors import InputError

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=120)


@given(LENGTHS, st.integers(1, 40), st.booleans())
def test_batches_hold_every_text_once(lengths: list[int], size: int, by_length: bool) -> None:
    parts = batches(lengths, size, by_length)
    rows = np.concatenate(parts)
    assert sorted(rows) == list(range(len(lengths)))
    assert all(len(part) == size for part in parts[:-1]) and 1 <= len(parts[-1]) <= size
    if by_length:
        assert [lengths[row] for row in rows] == sorted(lengths, reverse=True)
    else:
        assert rows.tolist() == sorted(rows)


@given(LENGTHS, st.integers(1, 40), st.booleans())
def test_padding_is_what_the_mask_hides(lengths: list[int], size: int, by_length: bool) -> None:
    parts = batches(lengths, size, by_length)
    masks = [pad([[7] * lengths[row] for row in part])[1] for part in parts]
    hidden, computed = sum(int((mask == 0).sum()) for mask in masks), sum(mask.size for mask in masks)
    assert padding(lengths, parts) == pytest.approx(hidden / computed)
    assert padding(lengths, batches(lengths, 1)) == 0
    assert padding(lengths, batches(lengths, size, True)) <= padding(lengths, batches(lengths, len(lengths)))


@pytest.mark.parametrize("layout", [Layout(1), pytest.param((2, 1), id="two workers")])
def test_each_text_has_its_batchs_time(mini_report, mini_encoder: OnnxEncoder, layout) -> None:
    if isinstance(layout, tuple):
        if available_cores() < 2:
            pytest.skip("two workers need two cores")
        layout = Layout(*layout)
    ids = mini_encoder.tokenize(["stop", "as is, without warranty of any kind " * 40, "Turn on the kitchen light"] * 8)
    parts = batches([len(row) for row in ids], 6)
    run = time_batches(mini_report.path, ids, parts, layout)
    assert run.latencies.shape == (24,) and (run.latencies > 0).all()
    assert all(len(set(run.latencies[part])) == 1 for part in parts)
    assert len(set(run.latencies)) == len(parts)
    assert run.seconds >= max(run.latencies) and sum(run.latencies[part[0]] for part in parts) <= (
        run.seconds * layout.workers
    )
    assert run.worker_mb > 20


def test_what_cannot_be_timed_is_refused(mini_report) -> None:
    for call, words in (
        (lambda: batches([3, 4], 0), "size=0"),
        (lambda: padding([], []), "no batch"),
        (lambda: padding([0, 0], [np.array([0, 1])]), "without tokens"),
        (lambda: padding([3], [np.array([0]), np.array([], dtype=int)]), "an empty batch"),
        (lambda: time_batches(mini_report.path, [[1, 2]] * 3, [np.array([0, 1])], Layout(1)), "each of the 3 texts"),
        (lambda: time_batches(mini_report.path, [[1, 2]], [np.array([0, 0])], Layout(1)), "each of the 1 texts once"),
    ):
        with pytest.raises(InputError, match=words):
            call()
