"""The machine and the versions a figure was measured with: without them no figure means anything."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import sys
from pathlib import Path

import psutil

from helpers.encode.cpu import available_cores, cpu_flags, cpu_name, has_vnni

# What decides the speed of this course's arithmetic; the other ninety flags do not.
FLAGS_THAT_MATTER = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm")
LIBRARIES = (
    "torch", "transformers", "sentence-transformers", "setfit", "onnxruntime", "onnx", "scikit-learn", "numpy",
    "mapie", "langgraph",
)  # fmt: skip


@functools.cache
def _describe() -> dict[str, object]:
    return {
        "cpu": cpu_name(),
        "cores": available_cores(),
        "flags": [flag for flag in FLAGS_THAT_MATTER if flag in cpu_flags()],
        "vnni": has_vnni(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in LIBRARIES if (version := _version(name))},
    }


def describe() -> dict[str, object]:
    """This machine as plain values, ready for JSON.

    Returns
    -------
    dict
        cpu (name), cores (those we may use), flags (list, only those that matter), vnni (bool), memory_gb
        (10^9 bytes), os, python, versions (library -> version, installed ones only).
    """
    return dict(_describe())


def line() -> str:
    """CPU, memory and versions in one line: what every notebook prints below its parameters."""
    m = describe()
    flags = " ".join(m["flags"]) or "no known vector flags"
    cores = f"{m['cores']} core" + ("s" if m["cores"] != 1 else "")
    int8 = "int8 dot product (VNNI or like)" if m["vnni"] else "no VNNI"
    names = {"torch": "torch", "transformers": "transformers", "onnxruntime": "onnxruntime"}
    versions = ", ".join(f"{label} {m['versions'][name]}" for name, label in names.items() if name in m["versions"])
    return (
        f"{m['cpu']}, {cores}, {flags}, {int8}, {m['memory_gb']:.0f} GB | {m['os']} | Python {m['python']}, {versions}"
    )


def peak_mb() -> float:
    """Highest resident memory of this process so far, in MB (10^6 bytes).

    On Linux this is VmHWM and not getrusage's ru_maxrss: the latter survives exec, so a small process started by a
    large one would report the large one's peak.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for row in status.read_text().splitlines():
            if row.startswith("VmHWM:"):
                return int(row.split()[1]) * 1024 / 1e6
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 1e6
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # bytes on macOS, KiB elsewhere


def resident_mb() -> float:
    """Resident memory of this process now, in MB (10^6 bytes)."""
    return psutil.Process().memory_info().rss / 1e6


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
