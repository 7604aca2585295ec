"""The figures a notebook measured: recorded, kept as JSON, and checked against tests/ranges.toml.

A notebook calls `start` in its setup cell and `record` wherever it measured something worth keeping. Every call
writes build/results/<notebook>.json whole, so a notebook that fails half-way leaves what it had.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import time
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from helpers import ROOT
from helpers.course import machine, write_whole
from helpers.errors import InputError

_RANGE_KEYS = {"low", "high", "full", "full_only", "default_input", "note"}
_now: dict[str, object] = {}  # the notebook being run in this process, empty before start()
_began = time.perf_counter()


def start(notebook: str, *, model: str, fast: bool, data: str | None = None) -> None:
    """Say which notebook this is and what it runs on; forgets what an earlier run of it recorded.

    Parameters
    ----------
    notebook
        File name without the ending, such as "01_quantize_mmbert".
    model, fast, data
        The notebook's MODEL, FAST and (if it has one) DATA.

    Raises
    ------
    InputError
        If the runner executes another notebook than the name says (a copied setup cell).
    """
    global _began
    running = os.environ.get("COURSE_NOTEBOOK")
    if running and running != notebook:
        raise InputError(f"results.start({notebook!r}) in notebook {running}: put the notebook's own name there")
    _began = time.perf_counter()
    _now.clear()
    _now.update(
        notebook=notebook, metrics={}, exercises={}, model=str(model), fast=bool(fast), data=data and Path(data).name
    )
    _write()


def record(name: str, value: float) -> float:
    """Record one figure and return it as a plain int or float.

    Raises
    ------
    InputError
        If the name is no plain name, the value is no finite number, or `start` was not called.
    """
    record_many({name: value})
    return _now["metrics"][name]


def record_many(figures: Mapping[str, float]) -> None:
    """Record several figures (name -> number); all of them or, if one is bad, none. Raises like `record`."""
    if not _now:
        raise InputError("results.record before results.start(notebook, model=MODEL, fast=FAST): call start first")
    _now["metrics"].update({_name(name): _number(name, value) for name, value in figures.items()})
    _write()


def exercise(name: str, state: str) -> None:
    """Note the state of an exercise: "right", "off" or "not tried". Outside a started notebook nothing is kept."""
    if _now:  # a reader may play with a check anywhere; only a notebook's own run is worth a record
        _now["exercises"][name] = state
        _write()


def folder() -> Path:
    """Where results are written: the runner's folder (COURSE_RESULTS), else build/results of the repository."""
    return Path(os.environ.get("COURSE_RESULTS") or ROOT / "build" / "results")


def finish(notebook: str, results_dir: Path, *, seconds: float, peak_mb: float, **more: object) -> dict:
    """Put the runner's measurements (whole notebook, all its processes) into the notebook's file; returns its content.

    A notebook that recorded nothing gets a file too, so that the report can list it.
    """
    path = results_dir / f"{notebook}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"metrics": {}, "exercises": {}}
    content.setdefault("machine", machine.describe())
    content.update(notebook=notebook, seconds=round(seconds, 2), peak_mb=round(peak_mb, 1), **more)
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False))
    return content


def read(results_dir: Path) -> dict[str, dict]:
    """All results of a folder: notebook -> content of its file, in the notebooks' order."""
    files = sorted(results_dir.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def load_ranges(path: Path) -> dict[str, dict[str, dict]]:
    """Read ranges.toml: notebook -> figure -> {low, high, full, full_only, default_input, note}.

    An entry is `name = [low, high]` or a table. full: [low, high] that replaces the range without FAST. full_only:
    measured only without FAST. default_input: the range holds only for the course's own model and data, so another
    MODEL or DATA may leave it.

    Raises
    ------
    InputError
        If the file is missing or cannot be read, is no TOML, or has an entry that is no range.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"ranges: {path} does not exist: give the path of ranges.toml") from None
    except OSError as error:
        raise InputError(f"ranges: {path} cannot be read ({error.strerror}): give the path of ranges.toml") from None
    except UnicodeDecodeError as error:
        raise InputError(f"ranges: {path.name} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"ranges: {path.name} is not valid TOML ({error}): correct that line") from None
    ranges: dict[str, dict[str, dict]] = {}
    for notebook, entries in tables.items():
        if not isinstance(entries, dict):
            raise InputError(f"ranges: {path.name} has {notebook!r} outside a table: put it under [notebook]")
        ranges[notebook] = {name: _range(f"[{notebook}] {name}", entry) for name, entry in entries.items()}
    return ranges


def limits(entry: Mapping, *, fast: bool) -> tuple[float, float]:
    """The range that holds in this mode."""
    low, high = entry["low"], entry["high"]
    return (low, high) if fast or entry["full"] is None else tuple(entry["full"])


def judge(value: float | None, entry: Mapping | None, *, fast: bool, own: bool) -> str:
    """One figure against its range: "ok", "out", "missing", "no range", "other input" or "only in full".

    own: the run had another MODEL, DATA or parameter than the notebooks' defaults.
    """
    if entry is None:
        return "no range"
    if value is None:
        if entry["full_only"] and fast:
            return "only in full"
        return "other input" if own and entry["default_input"] else "missing"
    low, high = limits(entry, fast=fast)
    if low <= value <= high:
        return "ok"
    return "other input" if own and entry["default_input"] else "out"


def check(results_dir: Path, ranges_path: Path, notebooks: Iterable[str] | None = None) -> list[str]:
    """Compare recorded figures with their ranges; returns one line for each thing wrong, empty if all is well.

    Wrong is: a figure outside its range, a figure with a range that was not recorded, a recorded figure without a
    range, and an exercise whose own solution did not pass. `notebooks` are the ones to look at (default: those that
    left a file); one without a file counts as having recorded nothing.
    """
    ranges, found = load_ranges(ranges_path), read(results_dir)
    problems = []
    for notebook in found if notebooks is None else notebooks:
        content = found.get(notebook, {})
        metrics, entries = content.get("metrics", {}), ranges.get(notebook, {})
        fast, own = bool(content.get("fast", True)), bool(content.get("own", False))
        for name in dict.fromkeys([*entries, *metrics]):
            value, entry = metrics.get(name), entries.get(name)
            verdict = judge(value, entry, fast=fast, own=own)
            if verdict == "out":
                (low, high), note = limits(entry, fast=fast), f" ({entry['note']})" if entry["note"] else ""
                problems.append(f"{notebook}: {name} = {value:.6g} is outside {low} .. {high}{note}")
            elif verdict == "missing":
                problems.append(f"{notebook}: {name} was not recorded, but {ranges_path.name} has a range for it")
            elif verdict == "no range":
                problems.append(f"{notebook}: {name} = {value:.6g} has no range: add it to {ranges_path.name}")
        problems += [
            f"{notebook}: exercise {name} ended {state!r}: its solution cell must set the answer and pass the check"
            for name, state in content.get("exercises", {}).items()
            if state != "right"
        ]
    return problems


def _write() -> None:
    content = {
        **_now,
        "own": bool(os.environ.get("COURSE_OWN")),
        "seconds": round(time.perf_counter() - _began, 2),
        "peak_mb": round(machine.peak_mb(), 1),
        "machine": machine.describe(),
    }
    write_whole(folder() / f"{_now['notebook']}.json", json.dumps(content, indent=1, ensure_ascii=False))


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"results.record: {name!r} is no name for a figure: use letters, digits and underscores")
    return name


def _number(name: str, value: object) -> int | float:
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()  # numpy and torch scalars
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        kind = type(value).__name__
        raise InputError(f"results.record({name!r}): a {kind} is no number: record one int or float")
    if not math.isfinite(value):
        raise InputError(f"results.record({name!r}): {value} is not finite: look at what was divided or averaged")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _range(where: str, entry: object) -> dict:
    if isinstance(entry, list) and len(entry) == 2:
        entry = {"low": entry[0], "high": entry[1]}
    if not isinstance(entry, dict) or not {"low", "high"} <= entry.keys() <= _RANGE_KEYS:
        raise InputError(f"ranges: {where} is no range: write [low, high] or a table of {sorted(_RANGE_KEYS)}")
    entry = {"full": None, "full_only": False, "default_input": False, "note": "", **entry}
    full = entry["full"]
    if full is not None and not (isinstance(full, list) and len(full) == 2):
        raise InputError(f"ranges: {where} has full = {full!r}: write [low, high]")
    for low, high in [(entry["low"], entry["high"]), *([full] if full else [])]:
        if any(isinstance(x, bool) or not isinstance(x, int | float) for x in (low, high)) or not low <= high:
            raise InputError(f"ranges: {where} goes from {low!r} to {high!r}: low must be a number and not above high")
    for key, kind, name in (
        ("full_only", bool, "true or false"),
        ("default_input", bool, "true or false"),
        ("note", str, "a text"),
    ):
        if not isinstance(entry[key], kind):
            raise InputError(f"ranges: {where} has {key} = {entry[key]!r}: write {name}")
    return entry
