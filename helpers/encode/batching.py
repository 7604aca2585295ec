"""Batches: which texts share a run, how much of a run is padding, and how long each way of feeding a CPU takes.

The course serves one text a run (`workers.encode_many`). This module is for measuring what the other ways would cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from helpers.encode.encoder import checked_ids, pad
from helpers.encode.workers import Layout, worker_encoder
from helpers.errors import InputError

_TASKS = 4  # tasks a worker gets: enough to even out the end, few enough that sending them costs nothing


class Run(NamedTuple):
    """How long texts took.

    Attributes
    ----------
    seconds
        From the first text's start to the last one's end, all workers together.
    latencies
        Float (n,): seconds that each text's run took. Texts of one batch are ready together, so they have the same.
    worker_mb
        Resident memory of the largest worker after its last run (10^6 bytes). With one worker it is this process's
        own, with everything else that it holds.
    """

    seconds: float
    latencies: np.ndarray
    worker_mb: float


def batches(lengths: Sequence[int], size: int, by_length: bool = False) -> list[np.ndarray]:
    """Row numbers of each batch of `size` texts (the last may have fewer).

    by_length: neighbours in length share a batch, the longest first; otherwise texts are taken as they come.

    Raises
    ------
    InputError
        If size is below 1.
    """
    if size < 1:
        raise InputError(f"batches: size={size}: give 1 or more")
    lengths = np.asarray(lengths, dtype=int)
    order = np.argsort(-lengths, kind="stable") if by_length else np.arange(len(lengths))
    return [order[start : start + size] for start in range(0, len(order), size)]


def padding(lengths: Sequence[int], parts: Sequence[np.ndarray]) -> float:
    """Share of all positions that the batches compute which hold no token: 0 is no waste, .75 is three of four.

    Raises
    ------
    InputError
        If there is no batch, a batch is empty, or a text has no token.
    """
    lengths = np.asarray(lengths, dtype=int)
    if not len(parts) or not all(len(rows) for rows in parts) or (lengths < 1).any():
        raise InputError("padding: no batch, an empty batch or a text without tokens: give one of each at least")
    computed = sum(len(rows) * int(lengths[rows].max()) for rows in parts)
    return 1 - sum(int(lengths[rows].sum()) for rows in parts) / computed


def time_batches(path: str | Path, ids: Sequence[Sequence[int]], parts: Sequence[np.ndarray], layout: Layout) -> Run:
    """Run batches through the layout's workers and time them.

    Workers of an earlier call are used again; the first call with a file or a layout starts them and loads the model,
    so call it once before you believe it. With one worker all runs in this process.

    Parameters
    ----------
    path
        The .onnx file.
    ids
        Token ids of n texts.
    parts
        What `batches` returned; a batch is padded to its longest text.
    layout
        Processes, and threads of each.

    Raises
    ------
    InputError
        If the batches do not hold each text once, or the file cannot be run.
    """
    from joblib import Parallel, delayed

    ids = checked_ids(ids)
    rows = np.concatenate(parts) if len(parts) else np.array([], dtype=int)
    if not np.array_equal(np.sort(rows), np.arange(len(ids))) or not all(len(part) for part in parts):
        raise InputError(f"time_batches: the batches do not hold each of the {len(ids)} texts once, one at least each")
    count = min(layout.workers * _TASKS, len(parts))
    tasks = [parts[at::count] for at in range(count)]
    path = str(Path(path).resolve())
    began = time.perf_counter()
    done = Parallel(n_jobs=layout.workers, batch_size=1, pre_dispatch="all")(
        delayed(_run_batches)(path, layout.threads, [[ids[row] for row in part] for part in task]) for task in tasks
    )
    seconds = time.perf_counter() - began
    latencies = np.empty(len(ids))
    for task, (times, _) in zip(tasks, done, strict=True):
        for part, taken in zip(task, times, strict=True):
            latencies[part] = taken
    return Run(seconds, latencies, max((resident for _, resident in done), default=0.0))


def _run_batches(path: str, threads: int, parts: Sequence[Sequence[np.ndarray]]) -> tuple[list[float], float]:
    """Seconds of each batch's run, and this process's resident memory after the last (10^6 bytes)."""
    import psutil

    encoder = worker_encoder(path, threads)
    seconds = []
    for part in parts:
        began = time.perf_counter()
        encoder.run(*pad(part))
        seconds.append(time.perf_counter() - began)
    return seconds, psutil.Process().memory_info().rss / 1e6
