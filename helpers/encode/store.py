"""Exported and quantised files that take a minute to make, kept in build/models under a key of what made them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from helpers.encode.export import export
from helpers.encode.load import ROOT, configuration, random_model
from helpers.encode.quantize import Recipe, quantize

FOLDER = ROOT / "build" / "models"
_MAKERS = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")


def random_file(size: str, recipe: Recipe | None = None, seed: int = 0, folder: Path = FOLDER) -> Path:
    """A file of mmBERT's exact size with random weights: for speed, size and memory, never for accuracy.

    Made once and found again as long as the recipe (as settled for this CPU), the seed, the packages and this code stay
    the same.

    Parameters
    ----------
    size
        "mmbert-small" or "mmbert-base".
    recipe
        How to quantise; None for float32.
    seed, folder
        Of the weights, and where to keep the files.

    Returns
    -------
    Path
        An .onnx file of 0.1 to 1.2 GB.

    Raises
    ------
    InputError
        If there is no such size; and whatever `export` and `quantize` raise.
    """
    config = configuration(size)
    settled = recipe and recipe.settled()
    key = _fingerprint({"config": config.to_dict(), "recipe": settled and asdict(settled), "seed": seed})
    path = folder / f"{size}-{recipe.name if recipe else 'fp32'}-{key}.onnx"
    if path.is_file():
        return path
    if settled:
        quantize(random_file(size, None, seed, folder), path, settled)
    else:
        export(random_model(config, seed), path)
    return path


def _fingerprint(what: dict) -> str:
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode())
    digest.update(" ".join(version(name) for name in _MAKERS).encode())
    for name in ("export.py", "load.py", "quantize.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:12]
