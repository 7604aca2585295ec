"""Timing and memory, measured so that two figures can be compared.

Machines drift while they are measured (turbo, neighbours, heat), so things to compare are timed in turns and compared
round by round. Memory is measured in a fresh process, because a used one never gives all of it back.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from helpers import ROOT
from helpers.course import machine
from helpers.encode.cpu import available_cores
from helpers.encode.encoder import session, session_options, timing_call
from helpers.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


REST = 0.02  # seconds


class Ratio(NamedTuple):
    """How many times faster than the baseline: median of the rounds, and an interval for that median."""

    median: float
    low: float
    high: float
    confidence: float  # that the interval covers the true median: at least .95 from 6 rounds on


@dataclass(frozen=True)
class Timing:
    """Seconds of every round. `seconds[name][i]` and `seconds[other][i]` were measured one right after the other."""

    seconds: Mapping[str, list[float]]
    baseline: str

    def median(self, name: str) -> float:
        """Median seconds of one call."""
        return statistics.median(self.seconds[name])

    def speedup(self, name: str) -> Ratio:
        """How many times faster than the baseline `name` is, paired round by round.

        The interval is between order statistics of the paired ratios (the sign test turned round), which assumes
        nothing about their distribution but that rounds are independent. Source: Conover, Practical Nonparametric
        Statistics, ch. 3.
        """
        pairs = zip(self.seconds[self.baseline], self.seconds[name], strict=True)
        return rank_interval([slow / fast for slow, fast in pairs])

    def table(self) -> pd.DataFrame:
        """One row a name: median milliseconds (ms), speedup, its interval (low, high) and its confidence."""
        import pandas as pd

        rows = {
            name: {"ms": self.median(name) * 1e3, "speedup": r.median, "low": r.low, "high": r.high,
                   "confidence": r.confidence}
            for name in self.seconds
            for r in [self.speedup(name)]
        }  # fmt: skip
        return pd.DataFrame.from_dict(rows, orient="index")


def rank_interval(values: list[float], confidence: float = 0.95) -> Ratio:
    """Median and distribution-free interval of it: the narrowest pair of order statistics that is sure enough.

    With fewer than 6 values even minimum to maximum is less sure than 95 %; then these are returned, and
    `confidence` says how sure they are.
    """
    ordered, n = sorted(values), len(values)

    def covers(k: int) -> float:
        """How sure the interval is with k values cut off at each end: each value is above the median by a coin toss."""
        return 1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n

    k = 0
    while k + 1 < n / 2 and covers(k + 1) >= confidence:
        k += 1
    return Ratio(statistics.median(ordered), ordered[k], ordered[n - 1 - k], covers(k))


def interleave(
    funcs: Mapping[str, Callable[[], object]], rounds: int = 7, warmup: int = 2, baseline: str | None = None,
    rest: float = REST,
) -> Timing:  # fmt: skip
    """Time functions in turns, so that whatever slows the machine slows all of them.

    Each round starts with another one, A B C, B C A, ...: to stand first is everybody's turn.

    Parameters
    ----------
    funcs
        Name -> function without arguments.
    rounds, warmup
        Timed turns, and turns before them that are thrown away.
    baseline
        The name speedups refer to; default the first.
    rest
        Seconds of sleep before each call: threads that the one before left spinning (OpenMP's, TBB's) fall asleep, and
        do not take a core from this one.

    Raises
    ------
    InputError
        If there is nothing to time, no round, or no such baseline.
    """
    baseline = next(iter(funcs), None) if baseline is None else baseline
    if baseline not in funcs:
        raise InputError(f"interleave: baseline {baseline!r} is not timed: choose one of {list(funcs)}")
    if rounds < 1 or warmup < 0 or rest < 0:
        raise InputError(
            f"interleave: {rounds} rounds, {warmup} before them to warm up, {rest} s of rest: give 1, 0 and 0 or more"
        )
    names = list(funcs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmup + rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            function = funcs[name]
            time.sleep(rest)
            began = time.perf_counter()
            function()
            passed = time.perf_counter() - began
            if turn >= warmup:
                seconds[name].append(passed)
    return Timing(seconds, baseline)


def copy_gbps(threads: int | None = None, megabytes: int = 256, rounds: int = 5) -> float:
    """Memory bandwidth in GB/s (10^9 bytes): an array far larger than the caches copied by all threads at once.

    Counted are bytes read plus bytes written, 2 x `megabytes` a round; the best round is returned, since everything
    that disturbs a copy makes it slower. It bounds how fast weights can be read, whatever the arithmetic.
    """
    threads = threads or available_cores()
    source = np.ones(megabytes * 10**6, dtype=np.uint8)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:  # numpy lets go of the interpreter lock while it copies

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))

        timing = interleave({"copy": copy}, rounds=rounds, warmup=1)
    return 2 * source.nbytes / min(timing.seconds["copy"]) / 1e9


def fp32_gflops(threads: int | None = None, size: int = 1024, rounds: int = 7) -> float:
    """10^9 floating-point operations a second of onnxruntime's float32 MatMul.

    Counted are 2 * m * n * k operations (a multiplication and an addition) for m = n = k = `size`; median of rounds.
    """
    run = product("fp32", size, size, size, threads)
    return 2 * size**3 / interleave({"fp32": run}, rounds=rounds).median("fp32") / 1e9


def int8_gops(threads: int | None = None, size: int = 1024, rounds: int = 7) -> float:
    """10^9 operations a second of onnxruntime's MatMulInteger, uint8 times int8 into int32.

    Counted as in `fp32_gflops`, 2 * m * n * k, so the two can be divided: how much faster INT8 can be at best.
    """
    run = product("int8", size, size, size, threads)
    return 2 * size**3 / interleave({"int8": run}, rounds=rounds).median("int8") / 1e9


def product(
    kind: Literal["fp32", "int8"], rows: int, inner: int, columns: int, threads: int | None = None
) -> Callable[[], object]:
    """A call of one matrix product with a constant right side, as in a linear layer, in a session of its own.

    Parameters
    ----------
    kind
        "fp32" (MatMul) or "int8" (MatMulInteger, uint8 times int8 into int32).
    rows, inner, columns
        (rows, inner) times (inner, columns); `rows` are a linear layer's tokens.
    threads
        Default: the cores this process may use.
    """
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    if kind == "int8":
        left = rng.integers(0, 255, (rows, inner), dtype=np.uint8)
        right = rng.integers(-63, 63, (inner, columns), dtype=np.int8)  # 7 bits: no saturation on any CPU
        op, left_type, out_type = "MatMulInteger", TensorProto.UINT8, TensorProto.INT32
    else:
        left, right = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, inner), (inner, columns)))
        op, left_type, out_type = "MatMul", TensorProto.FLOAT, TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op, ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", left_type, [rows, inner])],
        [helper.make_tensor_value_info("c", out_type, [rows, columns])],
        [numpy_helper.from_array(right, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    made = ort.InferenceSession(model.SerializeToString(), session_options(threads), providers=["CPUExecutionProvider"])
    return lambda: made.run(None, {"a": left})


def profile_nodes(path: str | Path, tokens: int, runs: int = 5, threads: int | None = None) -> pd.DataFrame:
    """Where the time of one text goes, by type of operator, from onnxruntime's own profiler.

    Parameters
    ----------
    path
        An .onnx file of the course.
    tokens
        Length of the text; its ids are random.
    runs
        Runs that are averaged, after one that is not.
    threads
        Default: the cores this process may use.

    Returns
    -------
    pandas.DataFrame
        One row a type, the slowest first: ms (a run), share (of all operators), calls (a run). The branches (If) are
        left out: what runs inside them is counted. Profiling itself takes time, so the sum is more than a run takes.
    """
    import pandas as pd

    with tempfile.TemporaryDirectory() as folder:
        watched = session(path, threads=threads, profile=Path(folder) / "nodes")
        call = timing_call(watched, tokens)
        for _ in range(runs + 1):
            call()
        events = json.loads(Path(watched.end_profiling()).read_text(encoding="utf-8"))
    whole = [event for event in events if event.get("name") == "model_run"]
    begins = sorted(event["ts"] for event in whole)[1]  # the first run allocates and is not counted
    rows = [
        (event["args"]["op_name"], event["dur"] / 1000)
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= begins
    ]
    frame = pd.DataFrame(rows, columns=["operator", "ms"]).query("operator != 'If'").groupby("operator").ms
    table = pd.DataFrame({"ms": frame.sum() / runs, "calls": frame.size() / runs})
    table.insert(1, "share", table.ms / table.ms.sum())
    return table.sort_values("ms", ascending=False)


def peak_rss(target: str, **kwargs: Any) -> dict[str, Any]:
    """Run a helper function in a fresh Python process and measure its time and memory there.

    Parameters
    ----------
    target
        "package.module:function". It must be importable: a function of a notebook is not.
    **kwargs
        Its arguments; they travel as JSON, so plain values only (pass paths as str).

    Returns
    -------
    dict
        seconds (the call alone, without imports), base_mb (resident before the call, modules imported), rss_mb
        (resident after it, its result still alive), grown_mb (the difference), peak_mb (highest resident of the
        process), value (the result if JSON can hold it, else None). MB are 10^6 bytes.

    Raises
    ------
    InputError
        If the target cannot be found, an argument is not plain, or the function refuses its input.
    RuntimeError
        If the function fails otherwise; the message is its last line.
    """
    try:
        order = json.dumps({"target": target, "kwargs": kwargs})
    except TypeError as error:
        raise InputError(f"peak_rss({target!r}): {error}: pass plain values (paths as str)") from None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "helpers.course.bench"],
        input=order, capture_output=True, text=True, encoding="utf-8", env=environment, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    if done.returncode == 2 and lines:
        raise InputError(json.loads(lines[-1])["error"])
    last = (done.stderr.strip().splitlines() or [f"process ended with {done.returncode}"])[-1]
    raise RuntimeError(f"{target} failed in a fresh process: {last}")


def _measure(target: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The other side of `peak_rss`."""
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"peak_rss({target!r}): {error}: write it as 'package.module:function'") from None
    base = machine.resident_mb()
    began = time.perf_counter()
    result = function(**kwargs)  # kept alive until memory is read
    seconds = time.perf_counter() - began
    resident = machine.resident_mb()
    answer = {
        "seconds": seconds,
        "base_mb": base,
        "rss_mb": resident,
        "grown_mb": resident - base,
        "peak_mb": max(machine.peak_mb(), resident),  # the kernel updates its high-water mark now and then only
    }
    try:
        json.dumps(result)
    except (TypeError, ValueError):
        result = None
    return {**answer, "value": result}


def _child() -> int:
    order = json.loads(sys.stdin.read())
    # Whatever the function prints, in Python or in C, goes to stderr: stdout carries the answer and nothing else.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        try:
            print(json.dumps(_measure(order["target"], order["kwargs"])), file=answer)
        except InputError as error:
            print(json.dumps({"error": str(error)}), file=answer)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(_child())
