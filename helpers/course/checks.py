"""Exercises that answer "is mine right?".

A notebook has a cell `answer = ...` and a cell `checks.start_1(answer)`. Its last line shows what came out: "not tried
yet" for `...`, "right", or what is off. The notebook passes its own measurements along, so what counts as right
depends on the reader's machine, never on a number typed in here.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.course import results
from helpers.encode.chunking import spans
from helpers.encode.cpu import available_cores
from helpers.encode.encoder import OnnxEncoder
from helpers.encode.graph import linear_layers, read_model
from helpers.encode.quantize import quantize
from helpers.encode.recipe import Recipe
from helpers.errors import InputError, QuantizationError

if TYPE_CHECKING:
    import pandas as pd


class WrongAnswer(AssertionError):
    """Raised instead of shown when COURSE_STRICT=1: a solution that fails its own check must stop the run."""


@dataclass(frozen=True)
class Outcome:
    """What a check found. `state` is "right", "off" or "not tried"; a notebook shows the one line."""

    state: str
    message: str

    def __repr__(self) -> str:
        return self.message

    __str__ = __repr__


EXERCISES: dict[str, Callable[..., Outcome]] = {}


def exercise(kind: type | tuple[type, ...], form: str) -> Callable[[Callable[..., str | None]], Callable[..., Outcome]]:
    """Make a check out of a function that returns what is off with an answer, or None if it is right.

    Parameters
    ----------
    kind
        The type or types an answer may have; anything else is off before the function sees it. numpy scalars are
        made plain first, and a bool is no int.
    form
        The same in words, to finish the sentence "the answer should be ...".
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)

    def register(function: Callable[..., str | None]) -> Callable[..., Outcome]:
        name = function.__name__

        @functools.wraps(function)
        def check(answer: Any, *args: Any, **kwargs: Any) -> Outcome:
            if answer is ...:
                return _finish(name, "not tried", "not tried yet: put your answer in place of the ...")
            if getattr(answer, "shape", None) == ():
                answer = answer.item()
            if not isinstance(answer, kinds) or (isinstance(answer, bool) and bool not in kinds):
                return _finish(name, "off", f"off: the answer should be {form}, not {answer!r}")
            # NaN is not far from anything, and an int without end is no float
            if isinstance(answer, int | float) and not abs(answer) < sys.float_info.max:
                return _finish(name, "off", f"off: the answer should be {form}, and finite")
            wrong = function(answer, *args, **kwargs)
            return _finish(name, "off", f"off: {wrong}") if wrong else _finish(name, "right", "right")

        EXERCISES[name] = check
        return check

    return register


def _finish(name: str, state: str, text: str) -> Outcome:
    message = f"{name}: {text}"
    results.exercise(name, state)
    if state == "off" and os.environ.get("COURSE_STRICT") == "1":
        raise WrongAnswer(message)
    return Outcome(state, message)


@exercise(int, "a whole number")
def start_1(answer: int, cores: int | None = None) -> str | None:
    """How many worker processes of one thread each fit this machine? cores: default, those we may use."""
    cores = available_cores() if cores is None else cores
    if answer > cores:
        return f"{answer} workers would share {cores} cores and wait for each other"
    if answer < cores:
        return f"{answer} workers leave cores idle: this process may use {cores}"
    return None


@exercise(int, "a whole number")
def start_2(answer: int, frame: pd.DataFrame) -> str | None:
    """On how many independent units does an accuracy on the test side rest?"""
    test = frame[frame.split == "test"]
    if answer == len(test):
        return f"{answer} is the number of rows; rows of one block are near copies"
    if answer != test.cluster.nunique():
        return f"{answer} is not it: count what stands on one side of the split only, on the test side"
    return None


@exercise((str, type(None)), "a file's name in quotes (or None if no file keeps within the bound)")
def quantize_1(answer: str | None, files: Mapping[str, Mapping[str, float]], bound: float) -> str | None:
    """Which is the smallest file whose macro-F1 loss stays within `bound`?

    files: name -> {"mb": size in MB, "f1_loss": macro-F1 lost against fp32, 0.01 = one point}.
    """
    fitting = {name: file["mb"] for name, file in files.items() if file["f1_loss"] <= bound}
    if answer is None:
        return f"{len(fitting)} of the files keep within {bound:g}" if fitting else None
    if answer not in files:
        return f"there is no file {answer!r}: choose one of {', '.join(files)}"
    if answer not in fitting:
        return f"{answer} loses {files[answer]['f1_loss']:.4f} macro-F1, more than {bound:g}"
    if fitting[answer] > min(fitting.values()):
        return f"{answer} keeps within {bound:g}, but so does a smaller file"
    return None


@exercise((int, float), "a number of MB")
def quantize_2(answer: float, rows: int, width: int, block: int = 32) -> str | None:
    """How many MB (10^6 bytes) does a table of rows x width numbers take in INT4, with a float32 scale a block?"""
    bits, scales = rows * width / 2 / 1e6, 4 * rows * width / block / 1e6
    if abs(answer - bits) <= 0.01 * bits:
        return f"{answer:.0f} MB are the 4-bit numbers; each block of {block} has a float32 scale besides"
    if abs(answer - bits - scales) > 0.01 * (bits + scales):
        return f"{answer:.0f} MB is not it: half a byte a number, and 4 bytes for each block of {block}"
    return None


@exercise(Recipe, "a Recipe")
def quantize_3(answer: Recipe, source: Path, budget: float) -> str | None:
    """Does the recipe bring the float32 file within `budget` MB (10^6 bytes), its linear layers in INT8?"""
    names = list(linear_layers(read_model(source)))
    try:
        if answer.linear != "int8" or answer.chosen(names) != names:
            return "all linear layers should stay in INT8: what else takes room?"
        if answer.table is None:
            return "the table is most of the file: store it in INT4"
        with tempfile.TemporaryDirectory() as folder:
            mb = quantize(source, Path(folder) / "answer.onnx", answer).mb
    except (InputError, QuantizationError) as refusal:
        return str(refusal)
    return None if mb <= budget else f"{mb:.1f} MB: look at what besides the 4-bit numbers the table stores"


@exercise(str, "the name of a group, in quotes")
def quantize_4(answer: str, alone: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> str | None:
    """Which of `parts` costs most when it alone is quantised? alone: group -> {"cosine": to fp32, ...}."""
    if answer not in parts:
        return f"{answer!r} is none of {', '.join(parts)}"
    if alone[answer]["cosine"] > min(alone[part]["cosine"] for part in parts):
        return f"{answer} costs {1 - alone[answer]['cosine']:.5f} of cosine, another one costs more"
    return None


@exercise((int, float), "a number")
def quantize_5(answer: float, path: Path, tokenizer: Any, texts: Sequence[str]) -> str | None:
    """By how much does an entry of the first text's embedding move at most when all texts share a batch?"""
    alone, together = (OnnxEncoder(path, tokenizer, batch_size=n).encode(texts)[0] for n in (1, len(texts)))
    gap = float(abs(alone - together).max())
    if not abs(answer - gap) <= 0.01 * gap:
        return f"{answer:.2g} is not it: the largest absolute difference, batch_size={len(texts)} against 1, first row"
    return None


@exercise(int, "a whole number")
def chunks_1(answer: int, tokens: int, size: int, overlap: float, special: int = 2) -> str | None:
    """How many windows does a text of so many tokens of its own take?"""
    room = size - special
    right = len(spans(tokens, room, int(overlap * room)))
    if answer == right:
        return None
    if answer == len(spans(tokens, size, int(overlap * size))):
        return f"{answer} forgets that {special} of each window's {size} tokens are special ones"
    if answer == len(spans(tokens, room)):
        return f"{answer} windows do not overlap yet: after the first, each brings fewer new tokens"
    return f"{answer} is not it: how many new tokens does each window after the first bring?"


@exercise(int, "a window in tokens")
def chunks_2(answer: int, ms: Mapping[int, float], accuracy: Mapping[int, float], bound: float) -> str | None:
    """Which is the cheapest window whose accuracy is at most `bound` below the best?

    ms, accuracy: window -> what a document costs, and its share of right answers.
    """
    enough = {window: ms[window] for window, share in accuracy.items() if share >= max(accuracy.values()) - bound}
    if answer not in ms:
        return f"there is no window of {answer}: choose one of {', '.join(map(str, ms))}"
    if answer not in enough:
        return f"{answer} tokens are right in {accuracy[answer]:.3f}, more than {bound:g} below the best"
    if ms[answer] > min(enough.values()):
        return f"{answer} tokens are within {bound:g} of the best, but so is a cheaper window"
    return None


@exercise(int, "a length in tokens, 0 for none of them")
def workers_1(answer: int, ratios: Mapping[int, float]) -> str | None:
    """Up to which length does a batch of equally long texts take no longer than the same texts one by one?

    ratios: length -> how many times as fast the batch is, 1 for as fast.
    """
    right = max((length for length, ratio in ratios.items() if ratio >= 1), default=0)
    if answer == right:
        return None
    if answer not in (0, *ratios):
        return f"{answer} was not measured: choose one of {', '.join(map(str, sorted(ratios)))}, or 0 for none of them"
    if answer < right:
        return f"at {right} tokens, which is longer, the batch is {ratios[right]:.2f} times as fast"
    return f"at {answer} tokens the batch is {ratios[answer]:.2f} times as fast: below 1 it hurts"


@exercise(tuple, "(workers, threads), two whole numbers")
def workers_2(answer: tuple[int, int], cores: int, mb: float, worker_mb: float, quickest: str) -> str | None:
    """Which layout uses all cores of a container and fits into its memory?

    mb: what the container has, less what the calling process holds. worker_mb: of a worker with its model.
    quickest: "workers" or "threads": of what this machine's measurement says to take as many as fit. If no layout
    fits, no answer is right.
    """
    answer = tuple(part.item() if getattr(part, "shape", None) == () else part for part in answer)
    if len(answer) != 2 or any(type(part) is not int or part < 1 for part in answer):
        return f"{answer!r} is not (workers, threads): two whole numbers, 1 or more"
    workers, threads = answer
    fitting = [n for n in range(1, cores + 1) if cores % n == 0 and n * worker_mb <= mb]
    if workers * threads > cores:
        return f"{workers} x {threads} threads would share {cores} cores"
    if not fitting:
        return f"one worker takes {worker_mb:.0f} MB, {mb:.0f} are free: no layout fits"
    if workers * worker_mb > mb:
        return f"{workers} workers take {workers * worker_mb:.0f} MB, {mb:.0f} are free"
    if workers * threads < cores:
        return f"{workers} x {threads} leaves {cores - workers * threads} of {cores} cores idle"
    if workers != (max(fitting) if quickest == "workers" else min(fitting)):
        return f"{workers} x {threads} fits, but here {quickest} bring more: look at the contest again"
    return None


@exercise(tuple, "(pairs of one class, pairs of two), two whole numbers")
def fewshot_1(answer: tuple[int, int], classes: int, each: int) -> str | None:
    """How many pairs does setfit make of `each` examples of each of `classes` classes?"""
    alike, unlike = classes * each * (each + 1) // 2, classes * (classes - 1) // 2 * each * each
    if len(answer) != 2:
        return f"{answer!r} is not (pairs of one class, pairs of two)"
    if answer[0] == classes * each * (each - 1) // 2:
        return f"{answer[0]} leaves out that setfit pairs each text with itself, too"
    if answer[0] != alike:
        return f"{answer[0]} is not the number of pairs of one class: count them within a class, then times {classes}"
    if answer[1] == 2 * unlike:
        return f"{answer[1]} counts each pair twice: (a, b) and (b, a) are one"
    if answer[1] != unlike:
        return f"{answer[1]} is not the number of pairs of two classes: {each} x {each} for each two classes"
    return None


@exercise((int, type(None)), "a number of examples a class (or None if none of them is enough)")
def fewshot_2(answer: int | None, frozen: Mapping[int, float], goal: float) -> str | None:
    """With how few examples a class does a frozen encoder reach the macro-F1 `goal`?

    frozen: examples a class -> macro-F1.
    """
    right = min((size for size, score in frozen.items() if score >= goal), default=None)
    if answer == right:
        return None
    if answer is None:
        return f"{right} examples a class reach {frozen[right]:.3f}, which is {goal:.3f} or more"
    if answer not in frozen:
        return f"{answer} was not measured: choose one of {', '.join(map(str, sorted(frozen)))}, or None"
    if frozen[answer] < goal:
        return f"{answer} examples a class reach {frozen[answer]:.3f}, less than {goal:.3f}"
    return f"{answer} examples a class are enough, but so are fewer"


@exercise((int, float), "a number between 0 and 1")
def mini_1(answer: float, labels: Sequence[str]) -> str | None:
    """What accuracy does always answering the commonest label have on `labels`?"""
    share = Counter(labels).most_common(1)[0][1] / len(labels)
    if not 0 <= answer <= 1:
        return f"{answer:g} is no share: give a number between 0 and 1"
    if abs(answer - share) > 0.005:
        return f"{answer:.3f} is not the share of the commonest label: count its rows and divide by {len(labels)}"
    return None
