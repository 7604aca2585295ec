"""Frames that take seconds to make are kept in build/data, under a key that changes with whatever made them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from helpers import ROOT

FOLDER = ROOT / "build" / "data"
KEPT = 6  # frames of one kind: with other arguments, or of earlier code
SOURCES = ("home-assistant-intents", "licensedcode-data", "hassil", "pandas")


def cached(make: Callable[..., pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """Keep the frame that `make` returns as parquet; made again when arguments, code, home or packages changed."""

    @functools.wraps(make)
    def wrapper(*args, **kwargs) -> pd.DataFrame:
        call = inspect.signature(make).bind(*args, **kwargs)
        call.apply_defaults()
        path = FOLDER / f"{make.__name__}-{_fingerprint(repr(sorted(call.arguments.items())))}.parquet"
        if path.is_file():
            with contextlib.suppress(OSError, ValueError):  # a broken file is made again
                return pd.read_parquet(path)
        frame = make(*args, **kwargs)
        try:
            _keep(frame, path)
        except OSError as error:
            warnings.warn(f"{path.name} is not kept: {error.strerror or error}", stacklevel=2)
        return frame

    return wrapper


def _keep(frame: pd.DataFrame, path: Path) -> None:
    """Write the file whole, and drop what earlier code made of it long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        frame.to_parquet(part, index=False)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    name = path.name.rpartition("-")[0]
    kept = sorted(path.parent.glob(f"{name}-*.parquet"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in kept[KEPT:]:
        old.unlink(missing_ok=True)


def _fingerprint(call: str) -> str:
    digest = hashlib.sha256(call.encode())
    digest.update(" ".join(f"{name}=={version(name)}" for name in SOURCES).encode())
    for path in (*sorted(Path(__file__).parent.glob("*.py")), ROOT / "data" / "home.yaml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
