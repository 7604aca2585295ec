"""Running the course: execute notebooks, record figures, time things, check exercises, write report and slides."""

from __future__ import annotations

import os
from pathlib import Path


def os_error_line(error: OSError, place: Path) -> str:
    """What the system refused (a read-only folder, a full disk), as one line for a command line to print.

    place: where we were writing, for errors that name no file.
    """
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return f"{error.filename or place}: {reason}"


def write_whole(path: Path, text: str) -> Path:
    """Write a text file whole: under a temporary name first, then renamed, so no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
