"""Frames that take seconds to make are kept in build/data, under a key that changes with whatever made them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "data"
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
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        frame.to_parquet(part, index=False)
        part.replace(path)
        return frame

    return wrapper


def _fingerprint(call: str) -> str:
    digest = hashlib.sha256(call.encode())
    digest.update(" ".join(f"{name}=={version(name)}" for name in SOURCES).encode())
    for path in (*sorted(Path(__file__).parent.glob("*.py")), ROOT / "data" / "home.yaml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
