"""Exported and quantised files that take a minute to make, kept in build/models under a key of what made them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import ROOT
from helpers.encode.export import export
from helpers.encode.load import configuration, random_model
from helpers.encode.quantize import quantize
from helpers.encode.recipe import Recipe

if TYPE_CHECKING:
    from transformers import ModernBertConfig

FOLDER = ROOT / "build" / "models"
_MAKERS = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")


def random_file(
    size: str, recipe: Recipe | None = None, seed: int = 0, folder: Path = FOLDER, *, layers: int | None = None,
    banded: bool = True, banded_from: int | None = None,
) -> Path:  # fmt: skip
    """A file of mmBERT's exact size with random weights: for speed, size and memory, never for accuracy.

    Made once and found again as long as the recipe (as settled for this CPU), the seed, the packages and this code stay
    the same. Its length is part of its name, so a file that was cut off is noticed and made again. Files of the same
    size, recipe and seed that other packages or older code made are deleted once the new one is there: they are up to
    1.2 GB each.

    Parameters
    ----------
    size
        "mmbert-small" or "mmbert-base".
    recipe
        How to quantise; None for float32.
    seed, folder
        Of the weights, and where to keep the files.
    layers
        As in `configuration`.
    banded, banded_from
        As in `export`.

    Returns
    -------
    Path
        An .onnx file, 0.1 to 1.2 GB with all layers.

    Raises
    ------
    InputError
        If there is no such size; and whatever `export` and `quantize` raise.
    """
    config = configuration(size, layers)
    settled = recipe and recipe.settled()
    # What was asked for, and what makes it: only the second may differ in a file that the new one replaces.
    graph = {"layers": layers, "banded": banded, "banded_from": banded_from}
    asked = _digest({"size": size, "recipe": settled and asdict(settled), "seed": seed, **graph})
    name = f"{size}-{recipe.name if recipe else 'fp32'}-{asked}"
    stem = f"{name}-{_digest(config.to_dict(), *_makers())}"
    for file in _files(folder, re.escape(stem) + r"-\d+"):
        if file.stem.rpartition("-")[2] == str(file.stat().st_size):
            return file
    part = folder / f"{stem}.onnx"
    if settled:
        _apart(quantize, random_file(size, None, seed, folder, **graph), part, settled)
    else:
        _apart(_export_random, config, seed, part, banded, banded_from)
    path = part.replace(folder / f"{stem}-{part.stat().st_size}.onnx")
    for file in _files(folder, re.escape(name) + r"-[0-9a-f]{8}(-\d+)?"):
        if file != path:
            with contextlib.suppress(OSError):  # somebody has it open: it can go another time
                file.unlink()
    return path


def _export_random(config: ModernBertConfig, seed: int, path: Path, banded: bool, banded_from: int | None) -> None:
    export(random_model(config, seed), path, banded=banded, banded_from=banded_from)


def _apart(function: Callable[..., object], *arguments: object) -> None:
    """Call in a fresh process: mmBERT-base takes 4 GB to export, and a process that goes on keeps much of it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(function, *arguments).result()


def _files(folder: Path, pattern: str) -> list[Path]:
    """The .onnx files of a folder (none if there is no folder) whose names without the ending fit a pattern."""
    return [file for file in folder.glob("*.onnx") if re.fullmatch(pattern, file.stem)]


def _makers() -> Iterator[bytes]:
    """Everything but the request that a file depends on: the packages' versions and our own code."""
    yield " ".join(version(name) for name in _MAKERS).encode()
    for name in ("attention.py", "export.py", "graph.py", "load.py", "quantize.py", "recipe.py", "rewrite.py"):
        yield Path(__file__).with_name(name).read_bytes()


def _digest(what: dict, *more: bytes) -> str:
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode())
    for part in more:
        digest.update(part)
    return digest.hexdigest()[:8]
