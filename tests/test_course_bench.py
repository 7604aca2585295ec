"""Timing in turns, memory in a fresh process, and what the machine is said to be."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.course import bench, machine, plots
from helpers.encode import cpu, encoder
from helpers.errors import InputError


def test_interleave_takes_turns() -> None:
    calls: list[str] = []
    timing = bench.interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=2)
    assert calls == ["a", "b", "b", "a"] * 2 + ["a", "b"], "each round starts with another one"
    assert timing.baseline == "a" and {n: len(s) for n, s in timing.seconds.items()} == {"a": 3, "b": 3}


def test_speedups_are_paired_round_by_round() -> None:
    # the machine halves its speed from round to round; b stays twice as fast throughout
    slow = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    timing = bench.Timing({"a": slow, "b": [s / 2 for s in slow]}, "a")
    assert timing.speedup("b") == pytest.approx((2, 2, 2, 0.984375))
    assert timing.speedup("a")[:3] == (1, 1, 1)
    table = timing.table()
    assert list(table.columns) == ["ms", "speedup", "low", "high", "confidence"] and table.loc["b", "ms"] == 4000


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_rank_interval_holds_the_median_and_says_how_sure_it_is(values: list[float]) -> None:
    ratio = bench.rank_interval(values)
    assert min(values) <= ratio.low <= ratio.median <= ratio.high <= max(values)
    assert ratio.median == statistics.median(values)
    assert ratio.confidence >= 0.95 or (len(values) < 6 and (ratio.low, ratio.high) == (min(values), max(values)))


@pytest.mark.parametrize("options", [{"baseline": "c"}, {"rounds": 0}, {"warmup": -1}])
def test_interleave_refuses_what_it_cannot_time(options: dict) -> None:
    with pytest.raises(InputError, match="interleave: "):
        bench.interleave({"a": int}, **options)


def test_the_machines_figures_are_figures() -> None:
    assert bench.copy_gbps(megabytes=16, rounds=2) > 0.1
    assert bench.fp32_gflops(threads=1, size=128, rounds=3) > 0.1
    assert bench.int8_gops(threads=1, size=128, rounds=3) > 0.1


def test_a_profile_names_the_operators_and_counts_what_runs_in_branches(mini_onnx, mini_report) -> None:
    table = bench.profile_nodes(mini_report.path, tokens=300, runs=2)
    assert table.share.sum() == pytest.approx(1) and (table.ms.diff().dropna() <= 0).all()
    assert "If" not in table.index and table.calls["Attention"] == 4 and table.calls["MultiHeadAttention"] == 2
    short = bench.profile_nodes(mini_onnx, tokens=20, runs=1)
    assert short.calls["Attention"] == 6 and "MultiHeadAttention" not in short.index


def test_runs_are_measured_one_by_one(mini_report) -> None:
    found = encoder.measure_runs(str(mini_report.path), n_tokens=50, runs=2)
    assert len(found["seconds"]) == 2 and len(found["rss_mb"]) == 3 and min(found["rss_mb"]) > 10


def test_a_call_to_time_runs_as_many_sequences_as_asked(mini_report) -> None:
    running = encoder.session(mini_report.path)
    assert encoder.timing_call(running, 7)()[0].shape == (1, 7, 256)
    assert encoder.timing_call(running, 5, batch=3)()[0].shape == (3, 5, 256)


def test_a_heat_map_writes_each_number_and_scales_by_column() -> None:
    frame = pd.DataFrame({"a": [0.0, 1.0], "b": [100.0, 300.0]}, index=["x", "y"])
    _, (left, right) = plt.subplots(1, 2)
    plots.heat(left, frame, "{:.0f}")
    plots.heat(right, frame, "{:.0f}", by_column=True)
    assert [t.get_text() for t in left.texts] == ["0", "100", "1", "300"]
    assert left.images[0].get_array()[1, 0] < 0.01 and right.images[0].get_array()[1, 0] == 1
    plt.close()


def test_peak_rss_measures_another_process() -> None:
    found = bench.peak_rss("numpy:ones", shape=[25_000_000])
    assert 195 < found["grown_mb"] < 215, "25 million float64 are 200 MB"
    assert found["peak_mb"] >= found["rss_mb"] > found["base_mb"] and found["seconds"] > 0 and found["value"] is None
    # this process is far larger than a bare Python; its own peak must not leak into the other one's
    big = bytearray(300_000_000)
    assert bench.peak_rss("os:getcwd")["peak_mb"] < 200 < len(big) / 1e6
    assert bench.peak_rss("os:getcwd")["value"] == os.getcwd()  # noqa: PTH109 the very call made there


def test_peak_rss_refuses_in_one_line() -> None:
    for target in ("numpy:no_such", "no_such_module:f", "numpy"):
        with pytest.raises(InputError, match=r"write it as 'package\.module:function'"):
            bench.peak_rss(target)
    with pytest.raises(InputError, match="plain values"):
        bench.peak_rss("numpy:ones", shape=Path())
    with pytest.raises(RuntimeError, match="failed in a fresh process: TypeError"):
        bench.peak_rss("numpy:ones", shape="x")


def test_the_machine_in_one_line() -> None:
    found = machine.describe()
    assert found["cores"] == cpu.available_cores() and found["memory_gb"] > 0.5
    assert found["vnni"] == cpu.has_vnni() and set(found["flags"]) <= cpu.cpu_flags()
    assert found["versions"]["onnxruntime"] in machine.line() and "\n" not in machine.line()
    assert machine.resident_mb() > 1 and machine.peak_mb() > 1


@pytest.mark.parametrize(
    ("proc", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        # a limit on the group above binds too
        ("0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "400000 100000"}, 1.0),
        (
            "4:memory:/x\n1:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/../outside\n", {}, None),
        (None, {}, None),
    ],
)
def test_cpu_quota_of_containers(tmp_path: Path, proc: str | None, files: dict, expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / "cg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cg" / name).write_text(text + "\n")
    if proc is not None:
        (tmp_path / "cgroup").write_text(proc)
    assert cpu.cgroup_quota(tmp_path / "cgroup", tmp_path / "cg") == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pinning to cores exists on Linux only")
def test_available_cores_counts_those_we_may_use() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpu.available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_intervals_are_drawn_first_row_on_top() -> None:
    plots.use_style()
    _, ax = plt.subplots()
    plots.intervals(ax, [("int8", 2.0, 1.5, 2.5), ("int4", 1.0, 0.9, 1.1)], reference=1)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["int8", "int4"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    plt.close("all")
