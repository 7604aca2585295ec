"""Many texts through several processes: one session a process, packets of equal work, results in order.

Built on joblib: its processes (loky) are started afresh, not forked, on every system, so they work from JupyterLab, a
script or pytest; and the same call runs on a cluster under `joblib.parallel_config(backend="dask")`.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.encode.cpu import available_cores
from helpers.encode.encoder import MAX_TOKENS, OnnxEncoder, checked_ids, read_tokenizer, tokenize
from helpers.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PACKET_TOKENS = 8192
"""Tokens of a packet: long enough that sending it costs nothing beside running it, short enough to even out the end."""

PACKETS_EACH = 4
"""A worker gets as many packets at least, however few the texts are, or some would have nothing to do."""

ATTEMPTS = 3
"""How often workers may be lost over the same packet before `encode_many` gives up."""


_ONE_CALL = threading.RLock()
"""joblib has one set of workers a process: two threads that ask it for different ones would wait for each other for
ever, and an error in one call would end the other's workers. So calls of one process wait for each other."""


class WorkersLost(RuntimeError):
    """Workers died again and again. `vectors` is what was done, (n, hidden), NaN in the rows that were not."""

    def __init__(self, message: str, vectors: np.ndarray) -> None:
        super().__init__(message)
        self.vectors = vectors


@dataclass(frozen=True)
class Layout:
    """How many processes, and how many threads each session has.

    Raises
    ------
    InputError
        If either is no whole number or below 1, or together they are more than the cores that this process may use.
    """

    workers: int
    threads: int = 1

    def __post_init__(self) -> None:
        cores = available_cores()
        _check_whole(self.workers, self.threads)
        if self.workers * self.threads > cores:
            raise InputError(
                f"layout: {self.workers} workers x {self.threads} threads = {self.workers * self.threads} would share "
                f"{cores} cores and wait for each other: give at most {cores} together"
            )


def _check_whole(workers: int, threads: int) -> None:
    for number in (workers, threads):
        if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number < 1:
            raise InputError(f"layout: workers={workers!r}, threads={threads!r}: give whole numbers, 1 or more of each")


def packets(lengths: Sequence[int], tokens: int = PACKET_TOKENS) -> list[np.ndarray]:
    """Row numbers of each packet: the longest texts first, about `tokens` tokens in each.

    A packet ends with the text that reaches `tokens`. With the longest first, what is left at the end is short, and no
    worker waits long for another's last text.

    Raises
    ------
    InputError
        If tokens is below 1.
    """
    if tokens < 1:
        raise InputError(f"packets: tokens={tokens}: give 1 or more")
    lengths = np.asarray(lengths, dtype=int)
    order = np.argsort(-lengths, kind="stable")
    before = np.cumsum(lengths[order]) - lengths[order]  # tokens in front of each text
    number = before // tokens
    return [part for part in np.split(order, np.flatnonzero(np.diff(number)) + 1) if len(part)]


def encode_many(
    texts: Sequence[str], path: str | Path, tokenizer: PreTrainedTokenizerFast | Tokenizer | str | Path, *,
    workers: int | None = None, threads: int = 1, max_tokens: int = MAX_TOKENS, packet_tokens: int = PACKET_TOKENS,
    progress: bool = False,
) -> np.ndarray:  # fmt: skip
    """Encode texts in several processes, each text alone and unpadded: what `OnnxEncoder` answers, in the same order.

    Parameters
    ----------
    texts
        n texts.
    path
        The .onnx file.
    tokenizer
        transformers' or tokenizers' tokenizer, or the path of a tokenizer.json. Ids travel to the workers, so only this
        process needs it.
    max_tokens
        Where texts are cut. For longer texts, cut them with `chunking.cut` and use `encode_ids_many`.
    workers, threads, packet_tokens, progress
        As in `encode_ids_many`.

    Returns
    -------
    numpy.ndarray
        Float32 (n, hidden), rows of length 1, in the order of the texts.

    Raises
    ------
    InputError
        If a text is empty or none, a file is missing or cannot be run, or the layout does not fit the cores.
    QuantizationError, WorkersLost
        As in `encode_ids_many`.
    """
    ids = tokenize(read_tokenizer(tokenizer), texts, max_tokens)
    return encode_ids_many(ids, path, workers=workers, threads=threads, packet_tokens=packet_tokens, progress=progress)


def encode_ids_many(
    ids: Sequence[Sequence[int]], path: str | Path, *, workers: int | None = None, threads: int = 1,
    packet_tokens: int = PACKET_TOKENS, progress: bool = False,
) -> np.ndarray:  # fmt: skip
    """As `encode_many`, for token ids with their special tokens, of any length that the model can read.

    A worker that dies is replaced and what it had not finished is done again. If the caller is interrupted, or an error
    is raised, the workers are ended too; after success joblib keeps them for some minutes, so that the next call need
    not start them and load the model again. Calls from several threads wait for each other.

    Parameters
    ----------
    ids
        n sequences, such as `chunking.cut` returns.
    path
        The .onnx file. On a cluster every machine must have this package and the .onnx file, at the same path and the
        same in content.
    workers, threads
        As in `Layout`; workers default to as many as the cores allow. Under another joblib backend than loky, workers
        default to what that backend has, and are not checked against this machine's cores. On Dask a worker that dies
        is replaced too; but if all that read the same packet die, Dask gives it up, and joblib waits for it in vain:
        Dask's log says so ("marked as failed").
    packet_tokens
        As in `packets`; less where a worker would not get `PACKETS_EACH` packets.
    progress
        Show a progress bar, in texts.

    Returns
    -------
    numpy.ndarray
        Float32 (n, hidden), rows of length 1, in order.

    Raises
    ------
    InputError
        If the file is missing, cannot be run or is written anew meanwhile, ids are not the model's (`checked_ids`), the
        layout does not fit the cores, or joblib's backend gives no results before the end.
    QuantizationError
        If the file was quantised for another kind of CPU, and sums would overflow on this one.
    WorkersLost
        If workers die `ATTEMPTS` times over the same packet; what was done until then is in it.
    """
    from joblib import effective_n_jobs
    from joblib.externals.loky.process_executor import BrokenProcessPool

    jobs = _jobs(workers, threads)
    path = Path(path).resolve()
    state = _state(path)
    hidden, vocabulary = _size(path, state)  # says what is wrong before any process starts
    ids = checked_ids(ids, vocabulary)
    out = np.full((len(ids), hidden), np.nan, dtype=np.float32)
    lengths = [len(row) for row in ids]
    fair = sum(lengths) // (effective_n_jobs(jobs) * PACKETS_EACH)
    left = dict(enumerate(packets(lengths, min(packet_tokens, max(1, fair)))))
    lost, suspect = 0, None
    with _ONE_CALL, _bar(len(ids), progress) as bar:
        while left:
            try:
                # Closed before it is through, it ends the workers.
                with contextlib.closing(_run(left, ids, jobs, (str(path), threads))) as done:
                    for number, vectors in done:
                        rows = left.pop(number)
                        out[rows] = vectors
                        bar.update(len(rows))
            except BrokenProcessPool as error:
                # Packets go out in order, so one that kills its worker is soon the first that is left, and stays it.
                first = next(iter(left))
                lost, suspect = (lost + 1 if first == suspect else 1), first
                if lost == ATTEMPTS:
                    row = left[first][0]
                    raise WorkersLost(
                        f"workers died {lost} times with {len(left)} packets to go, the next one with row {row} of "
                        f"{len(ids[row])} tokens: take fewer workers if memory is short, or a smaller max_tokens",
                        out,
                    ) from error
    if _state(path) != state:
        raise InputError(f"{path.name} was written anew while texts were encoded with it: encode them again")
    return out


def _jobs(workers: int | None, threads: int) -> int:
    """joblib's n_jobs, checked against the cores if they are ours."""
    from joblib.parallel import DEFAULT_BACKEND, get_active_backend

    backend, jobs = get_active_backend()
    _check_whole(1 if workers is None else workers, threads)
    name = type(backend).__name__.removesuffix("Backend")
    if name.lower().startswith(DEFAULT_BACKEND):
        return Layout(max(1, available_cores() // threads) if workers is None else workers, threads).workers
    if not backend.supports_return_generator:
        raise InputError(f"joblib's backend {name} gives no results before the end: use loky, threading or dask")
    return workers if workers is not None else jobs or -1


def _run(
    left: dict[int, np.ndarray], ids: Sequence[np.ndarray], jobs: int, settings: tuple[str, int]
) -> Generator[tuple[int, np.ndarray]]:
    """(packet's number, vectors) of each packet, as they come."""
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, batch_size=1, pre_dispatch="2*n_jobs", return_as="generator_unordered")
    # a list, since `left` gets shorter while the packets are being sent
    yield from parallel(
        delayed(_encode_packet)(number, [ids[row] for row in rows], *settings) for number, rows in [*left.items()]
    )


def _encode_packet(number: int, ids: Sequence[np.ndarray], path: str, threads: int) -> tuple[int, np.ndarray]:
    """What a worker does."""
    return number, worker_encoder(path, threads).encode_ids(ids)


def worker_encoder(path: str, threads: int) -> OnnxEncoder:
    """This process's encoder, made at its first packet, anew if the file changed; given ids, it tokenises nothing."""
    return _encoder(path, _state(path), threads)


@functools.lru_cache(maxsize=1)
def _encoder(path: str, state: tuple[int, ...] | None, threads: int) -> OnnxEncoder:
    return OnnxEncoder(path, None, threads=threads)


@functools.lru_cache(maxsize=8)
def _size(path: Path, state: tuple[int, ...] | None) -> tuple[int, int | None]:
    """Width of the model's vectors, and its vocabulary. It is loaded once to see that it can be, and not kept."""
    encoder = OnnxEncoder(path, None, threads=1)
    return encoder.hidden, encoder.vocabulary


def _state(path: str | Path) -> tuple[int, ...] | None:
    """What changes when a file is written anew; None if there is none, which loading it then says."""
    try:
        file = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return file.st_mtime_ns, file.st_size, file.st_ino


def _bar(total: int, shown: bool):
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="encode", unit="text", disable=not shown)
