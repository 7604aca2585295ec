"""Text in, vectors out: one interface for torch and for onnxruntime.

Both tokenise, run, average the token vectors (padding left out) and scale the average to length 1. By default they run
one text at a time, unpadded: with dynamic INT8 the scale of the activations spans the batch, so in a batch an answer
would depend on its mates. Importing this module loads neither torch nor transformers; serving needs only onnxruntime.
"""

from __future__ import annotations

import json
import numbers
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from helpers.encode.cpu import available_cores
from helpers.encode.recipe import Recipe, refuse_saturation
from helpers.errors import InputError

if TYPE_CHECKING:
    import onnxruntime as ort
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MAX_TOKENS = 512
"""Default cut of an input. The model can read 8192 tokens (max_tokens=8192); its global layers' cost grows with the
square."""

TOKENIZING = threading.RLock()
"""Held while a tokenizer is set up and used: its settings are its own, not a call's, and threads may share it."""

_HALF = re.compile("[\ud800-\udfff]")
_BLOCK = 1024  # texts tokenised at a time: enough to be quick, few enough to need no memory


class Encoder(Protocol):
    """What the rest of the course relies on."""

    policy: dict[str, Any]
    hidden: int

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:
        """Float32 array (n, hidden), rows of length 1, in the order of the texts."""


class _Base:
    """Everything but the run itself, which is the only difference between torch and onnxruntime."""

    hidden: int
    vocabulary: int | None = None  # None if the model does not say

    def __init__(self, tokenizer: PreTrainedTokenizerFast | Tokenizer, batch_size: int, max_tokens: int) -> None:
        if batch_size < 1 or max_tokens < 3:
            raise InputError(f"encoder: batch_size={batch_size}, max_tokens={max_tokens}: give at least 1 and 3")
        self.tokenizer = read_tokenizer(tokenizer)
        self.batch_size, self.max_tokens = batch_size, max_tokens

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with the special tokens, cut to max_tokens; not padded.

        Raises
        ------
        InputError
            If a text is empty or no text at all; the message names its row, counted from 0.
        """
        return tokenize(self.tokenizer, texts, self.max_tokens)

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:
        """Encode texts.

        Parameters
        ----------
        texts
            n texts. Longer ones than max_tokens are cut there, silently: chunk them first if their end matters.
        progress
            Show a progress bar.

        Returns
        -------
        numpy.ndarray
            Float32, shape (n, hidden), rows of length 1, in the order of the texts.

        Raises
        ------
        InputError
            If a text is empty or no text; the message names its row.
        """
        return self.encode_ids(self.tokenize(texts), progress)

    def encode_ids(self, ids: Sequence[Sequence[int]], progress: bool = False) -> np.ndarray:
        """As `encode`, for token ids with their special tokens, of any length that the model can read.

        Raises
        ------
        InputError
            As `checked_ids`.
        """
        ids = checked_ids(ids, self.vocabulary)
        out = np.empty((len(ids), self.hidden), dtype=np.float32)
        for rows in self._batches(ids, progress):
            batch, mask = pad([ids[row] for row in rows])
            out[rows] = pool(self.run(batch, mask), mask)
        return out

    def _batches(self, ids: Sequence[Sequence[int]], progress: bool) -> Iterator[list[int]]:
        """Rows of each batch; neighbours in length share one, so little is padded."""
        order = range(len(ids)) if self.batch_size == 1 else sorted(range(len(ids)), key=lambda row: len(ids[row]))
        steps = range(0, len(ids), self.batch_size)
        if progress:
            from tqdm.auto import tqdm

            steps = tqdm(steps, desc="encode", unit="batch")
        for start in steps:
            yield list(order[start : start + self.batch_size])

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """Token vectors, float32 (batch, tokens, hidden), for int64 ids and mask (batch, tokens)."""
        raise NotImplementedError


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    """Token ids of each text with the special tokens, cut to max_tokens; not padded.

    Raises
    ------
    InputError
        If max_tokens is no whole number or below 3, or as `checked`.
    """
    if not isinstance(max_tokens, numbers.Integral) or max_tokens < 3:
        raise InputError(f"encoder: max_tokens={max_tokens}: give a whole number, 3 or more: two are special tokens'")
    texts = checked(texts)
    ids: list[list[int]] = []
    with TOKENIZING:
        tokenizer.no_padding()
        tokenizer.enable_truncation(int(max_tokens))
        for start in range(0, len(texts), _BLOCK):
            ids += [found.ids for found in tokenizer.encode_batch_fast(texts[start : start + _BLOCK])]
    return ids


def checked(texts: Sequence[str]) -> list[str]:
    """The texts as a list.

    Raises
    ------
    InputError
        If a text is empty or no text at all; the message names its row, counted from 0.
    """
    if isinstance(texts, str):
        raise InputError("encode takes a list of texts, not one text: write encode([text])")
    if texts is None or isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise InputError(f"encode takes a list of texts, not {type(texts).__name__}: give one column, as frame.text")
    texts = list(texts)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text in row {row} is {type(text).__name__}, not text: drop the row or fill it")
        if not text.strip():
            raise InputError(f"text in row {row} is empty: drop the row or fill it")
        if not text.isascii() and _HALF.search(text):
            raise InputError(f"text in row {row} holds half a character (a lone surrogate): read its file as UTF-8")
    return texts


def checked_ids(ids: Sequence[Sequence[int]], vocabulary: int | None = None) -> list[np.ndarray]:
    """Token ids of each text, int32 (tokens,).

    Raises
    ------
    InputError
        If a row has no token, is no list of whole numbers, or an id is not in the vocabulary, for which INT4 tables
        would give a vector all the same; the message names the row.
    """
    if ids is None or isinstance(ids, str | Mapping):
        raise InputError(f"encode takes lists of token ids, one for each text, not {type(ids).__name__}")
    found, most = [], vocabulary or 2**31
    for row, given in enumerate(ids):
        try:
            array = np.asarray(given)
        except ValueError:  # lists of different lengths in one another
            array = np.empty((0, 0))
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise InputError(f"token ids in row {row}: give a list of whole numbers, one or more, for each text")
        if array.min() < 0 or array.max() >= most:
            wrong = array[(array < 0) | (array >= most)][0]
            raise InputError(
                f"token id {wrong} in row {row} is none of the model's {most:,}: use the tokenizer that belongs to it"
            )
        found.append(array.astype(np.int32, copy=False))
    return found


def pad(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask of a batch, int64 (batch, longest). Padding has id 0: the mask hides it, so its value is nothing."""
    lengths = np.array([len(row) for row in ids])
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    batch = np.zeros_like(mask)
    batch[mask.astype(bool)] = np.concatenate([np.asarray(row, dtype=np.int64) for row in ids])
    return batch, mask


def pool(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean of the token vectors that the mask keeps, scaled to length 1: (batch, tokens, hidden) -> (batch, hidden)."""
    # Zeroed by where, not by a product: what stands on padding may be anything, and NaN times 0 is NaN.
    kept = np.where(mask[..., None].astype(bool), tokens, 0)
    mean = kept.sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32, copy=False)


class TorchEncoder(_Base):
    """The model as torch runs it: the reference that everything else is compared with.

    Parameters
    ----------
    model, tokenizer
        What `load_torch` returned.
    batch_size
        Texts a run; more than 1 sorts them by length and pads.
    max_tokens
        Where texts are cut, special tokens included.
    threads
        Default: the cores this process may use. torch keeps one number for the whole process.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | Tokenizer, *, batch_size: int = 1,
        max_tokens: int = MAX_TOKENS, threads: int | None = None,
    ) -> None:  # fmt: skip
        import torch

        super().__init__(tokenizer, batch_size, max_tokens)
        self.model, self.hidden, self.vocabulary = model, model.config.hidden_size, model.config.vocab_size
        threads = threads or available_cores()
        torch.set_num_threads(threads)
        self.policy = {
            "batch": batch_size, "max_tokens": max_tokens, "provider": "torch", "recipe": "fp32", "threads": threads,
            "reduce_range": False,
        }  # fmt: skip

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            found = self.model(input_ids=torch.from_numpy(input_ids), attention_mask=torch.from_numpy(attention_mask))
        return found.last_hidden_state.numpy()


class OnnxEncoder(_Base):
    """The model as onnxruntime runs it, from a file that `export` or `quantize` wrote.

    Parameters
    ----------
    path
        The .onnx file.
    tokenizer
        transformers' or tokenizers' tokenizer, or the path of a tokenizer.json.
    batch_size, max_tokens, threads
        As in `TorchEncoder`; threads are this session's own.
    spin
        As in `session`.
    allow_saturation
        Run the file even if its recipe overflows on this CPU.

    Raises
    ------
    InputError
        If a file is missing or onnxruntime cannot load it.
    QuantizationError
        If it was quantised for another kind of CPU, and sums would overflow on this one.
    """

    def __init__(
        self, path: str | Path, tokenizer: PreTrainedTokenizerFast | Tokenizer | str | Path, *, batch_size: int = 1,
        max_tokens: int = MAX_TOKENS, threads: int | None = None, spin: bool = True, allow_saturation: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(tokenizer, batch_size, max_tokens)
        self.threads = threads or available_cores()
        self.session = session(path, threads=self.threads, spin=spin)
        self.hidden = self.session.get_outputs()[0].shape[-1]
        notes = self.session.get_modelmeta().custom_metadata_map
        self.vocabulary = int(notes["vocabulary"]) if "vocabulary" in notes else None
        recipe = Recipe.read(json.loads(notes["recipe"])) if "recipe" in notes else None
        if recipe and not allow_saturation:
            refuse_saturation(recipe)
        self.policy = {
            "batch": batch_size, "max_tokens": max_tokens, "provider": self.session.get_providers()[0],
            "recipe": recipe.name if recipe else "fp32", "threads": self.threads,
            "reduce_range": bool(recipe and recipe.reduce_range),
        }  # fmt: skip

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        return self.session.run(None, {"input_ids": input_ids, "attention_mask": attention_mask})[0]


def session_options(threads: int | None = None, spin: bool = True) -> ort.SessionOptions:
    """One graph at a time, its operators spread over `threads` (default: the cores this process may use).

    spin: as in `session`.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or available_cores()
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def session(
    path: str | Path, *, threads: int | None = None, spin: bool = True, profile: Path | None = None
) -> ort.InferenceSession:
    """An onnxruntime session on the CPU: one graph at a time, its operators spread over `threads`.

    spin: within a run, waiting threads keep their core busy, which is quicker while the cores are ours. Turn it off
    where sessions share cores with other work. They always stop when the run ends: threads that wait for nothing would
    take a core from whatever comes next, such as the session that this one is compared with.
    profile: where onnxruntime's profiler writes, without the ending; None for no profile.

    Raises
    ------
    InputError
        If the file is missing or is no model that this onnxruntime can run.
    """
    import onnxruntime as ort

    path = Path(path)
    if not path.is_file():
        raise InputError(f"no model file {path}: export or quantise one first")
    options = session_options(threads, spin)
    options.log_severity_level = 3
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        raise InputError(f"{path.name} cannot be run: {str(error).strip().splitlines()[0]}") from error


def read_tokenizer(tokenizer: PreTrainedTokenizerFast | Tokenizer | str | Path) -> Tokenizer:
    """The Rust tokenizer, from the path of its tokenizer.json or from inside transformers' own.

    The Rust one gives the same tokens without several Python objects a text.

    Raises
    ------
    InputError
        If there is no such file, or it is no tokenizer's.
    """
    if not isinstance(tokenizer, str | Path):
        return getattr(tokenizer, "backend_tokenizer", tokenizer)
    from tokenizers import Tokenizer

    if not Path(tokenizer).is_file():
        raise InputError(f"no tokenizer file {tokenizer}: give the path of a tokenizer.json")
    try:
        return Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # tokenizers raises a bare Exception
        raise InputError(f"{Path(tokenizer).name} is no tokenizer ({error}): give a tokenizer.json") from None


def timing_call(session: ort.InferenceSession, tokens: int, seed: int = 0, batch: int = 1) -> Callable[[], object]:
    """A function without arguments that runs `batch` sequences of `tokens` random ids each: what timings call."""
    ids = np.random.default_rng(seed).integers(5, 1000, (batch, tokens), dtype=np.int64)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return lambda: session.run(None, feed)


def measure_runs(
    path: str, n_tokens: int, runs: int = 3, threads: int | None = None, batch: int = 1
) -> dict[str, list[float]]:
    """Load a model file and run it several times; meant for a fresh process (`helpers.course.bench.peak_rss`).

    Parameters
    ----------
    path, threads
        As in `measure_load`, .onnx files only.
    n_tokens, batch, runs
        Length of a sequence, how many share a run, and how many times it is run.

    Returns
    -------
    dict
        seconds of each run, and rss_mb, resident memory (10^6 bytes) after loading and after each run.
    """
    import psutil

    process = psutil.Process()
    call = timing_call(session(path, threads=threads), n_tokens, batch=batch)
    seconds, resident = [], [process.memory_info().rss / 1e6]
    for _ in range(runs):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
        resident.append(process.memory_info().rss / 1e6)
    return {"seconds": seconds, "rss_mb": resident}


def measure_load(path: str, n_tokens: int = 256, threads: int | None = None) -> dict[str, float]:
    """Load a model file and run it three times; meant for a fresh process (`helpers.course.bench.peak_rss`).

    Parameters
    ----------
    path
        An .onnx file; or "torch:mmbert-small" or "torch:mmbert-base" for torch with random weights of that size.
    n_tokens
        Length of the one sequence.
    threads
        Default: the cores this process may use.

    Returns
    -------
    dict
        load_seconds, without imports; for torch it is the time to draw random weights, not to read a file. rss_mb, what
        loading and running added to this process's resident memory (10^6 bytes), imports left out. ms, the quicker of
        the last two runs. The process's peak is what `peak_rss` itself reports.
    """
    import psutil

    process, threads = psutil.Process(), threads or available_cores()
    if path.startswith("torch:"):
        import torch
        from transformers import ModernBertModel  # noqa: F401  (as below; random_model would import it in our time)

        from helpers.encode.load import configuration, random_model

        torch.set_num_threads(threads)
        config = configuration(path.removeprefix("torch:"))
        before, began = process.memory_info().rss, time.perf_counter()
        model = random_model(config)
        loaded = time.perf_counter() - began
        ids = torch.randint(5, 1000, (1, n_tokens))

        def call() -> object:
            with torch.inference_mode():
                return model(input_ids=ids, attention_mask=torch.ones_like(ids))
    else:
        import onnxruntime  # noqa: F401  (its own size is no part of the model's)

        before, began = process.memory_info().rss, time.perf_counter()
        call = timing_call(session(path, threads=threads), n_tokens)
        loaded = time.perf_counter() - began
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    added = process.memory_info().rss - before
    return {"load_seconds": loaded, "rss_mb": added / 1e6, "ms": min(times[1:]) * 1e3}
