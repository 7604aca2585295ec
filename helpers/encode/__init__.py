"""Encode: text in, one vector a text out, fast on a CPU (load, export, quantise, run)."""

import importlib
import os

# The tokenizer's own thread pool fights with the session's threads and warns (or hangs) after a fork. It reads this
# once, when it is imported, so it is set here, before any module of this package can import it.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_HOMES = {
    "load": ("ModelSource", "configuration", "load_torch", "random_model", "resolve"),
    "encoder": ("Encoder", "OnnxEncoder", "TorchEncoder"),
    "export": ("parity",),
    "graph": ("count_nodes", "size_report"),
    "quantize": ("Gate",),
    "recipe": ("INT4_INT4", "INT4_TABLE", "INT8", "INT8_INT4", "Recipe"),
    "store": ("random_file",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = [*_HOME]


def __getattr__(name: str) -> object:
    """Import a name when it is first used: a process that only serves ONNX files never loads torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
