"""What to quantise and how, as a value that can be compared, stored in a file and read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from helpers.encode.cpu import cpu_flags, has_vnni
from helpers.errors import InputError, QuantizationError

PARTS = ("attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo")
"""The linear layers of each ModernBERT layer: attention in and out, feed-forward (FFN) in and out."""

_CHOICES = {
    "linear": ("int8", "int8-block", "int4-block", None),
    "weights": ("int8", "uint8"),
    "table": ("int4", None),
}


@dataclass(frozen=True)
class Recipe:
    """One way to quantise an encoder.

    Attributes
    ----------
    name
        How the course calls it.
    linear
        What becomes of the linear layers' weights. "int8": 8 bits, activations quantised on the fly with one scale for
        the whole input (MatMulInteger). "int8-block" and "int4-block": a scale for each `linear_block` numbers, and
        activations in blocks too (MatMulNBits, which computes in 8 bits). None: float32.
    only, keep
        Patterns over the names of linear layers, which are "0.attn.Wqkv", "0.attn.Wo", "0.mlp.Wi", "0.mlp.Wo",
        "1.attn.Wqkv" and so on: `only` these are quantised, and of these the ones in `keep` stay float32.
        "*.mlp.Wo" is every FFN output, "3.*" all of layer 3.
    per_channel
        One scale for each output channel instead of one for the whole matrix ("int8" only).
    weights
        "int8" or "uint8" ("int8" linear layers only).
    symmetric
        Weights have no zero point of their own.
    reduce_range
        Weights use 7 of the 8 bits. None: as this CPU needs it. Without VNNI, pairs of products of uint8 activations
        and int8 weights are added in 16 bits and overflow if weights use all 8; uint8 weights take a slower way that
        does not.
    linear_block
        Numbers that share a scale in "int8-block" and "int4-block": a power of two from 16 to 256.
    table
        "int4": the embedding table in 4 bits (GatherBlockQuantized). None: float32.
    table_block
        Numbers of a table row that share a scale: a power of two, 16 at least, no more than the hidden size.
    table_symmetric
        Blocks of the table have no zero point.

    Raises
    ------
    InputError
        If a choice is not one of these, or nothing is to be quantised.
    """

    name: str
    linear: Literal["int8", "int8-block", "int4-block"] | None = "int8"
    only: tuple[str, ...] = ("*",)
    keep: tuple[str, ...] = ()
    per_channel: bool = True
    weights: Literal["int8", "uint8"] = "int8"
    symmetric: bool = True
    reduce_range: bool | None = None
    linear_block: int = 32
    table: Literal["int4"] | None = "int4"
    table_block: int = 32
    table_symmetric: bool = True

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            if (value := getattr(self, field)) not in choices:
                raise InputError(f"recipe {self.name!r}: {field}={value!r}: choose one of {choices}")
        for field in ("only", "keep"):
            patterns = getattr(self, field)
            if isinstance(patterns, str):
                raise InputError(f"recipe {self.name!r}: {field}={patterns!r}: give a tuple, ({patterns!r},)")
            if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
                raise InputError(f"recipe {self.name!r}: {field}={patterns!r}: give a tuple of patterns")
            object.__setattr__(self, field, tuple(patterns))  # JSON gives lists
        for field in ("linear_block", "table_block"):
            block = getattr(self, field)
            most = 256 if field == "linear_block" else 2**16  # the table's is held against the hidden size
            if type(block) is not int or not 16 <= block <= most or block & (block - 1):
                raise InputError(f"recipe {self.name!r}: {field}={block!r}: give a power of two from 16 to {most}")
        for field in ("per_channel", "symmetric", "table_symmetric", "reduce_range"):
            flag = getattr(self, field)
            if not isinstance(flag, bool) and not (flag is None and field == "reduce_range"):
                raise InputError(f"recipe {self.name!r}: {field}={flag!r}: give True or False")
        if self.linear is None and self.table is None:
            raise InputError(f"recipe {self.name!r} quantises nothing: set linear or table")

    @classmethod
    def read(cls, note: dict[str, Any]) -> Recipe:
        """The recipe that `asdict` wrote into a file's metadata; names it does not know are refused."""
        unknown = set(note) - {field.name for field in fields(cls)}
        if unknown:
            raise InputError(f"a recipe has no {sorted(unknown)}: the file is of another version, quantise it again")
        if "name" not in note:
            raise InputError("the recipe in the file has no name: quantise it again")
        return cls(**note)

    def settled(self) -> Recipe:
        """The recipe with `reduce_range` decided for this CPU (False where it changes nothing)."""
        if self.linear != "int8":
            return replace(self, reduce_range=False)
        if self.reduce_range is not None:
            return self
        return replace(self, reduce_range=self.weights == "int8" and needs_reduced_range())

    def saturates(self) -> bool:
        """Would its sums overflow on this CPU?"""
        settled = self.settled()
        return self.linear == "int8" and self.weights == "int8" and not settled.reduce_range and needs_reduced_range()

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Which of these linear layers it quantises.

        Raises
        ------
        InputError
            If a pattern fits none of them, or nothing is left to quantise.
        QuantizationError
            If there are none: weights that are computed from others are no linear layers to a quantiser.
        """
        if self.linear is None:
            return []
        if not names:
            raise QuantizationError(
                f"recipe {self.name!r}: no MatMul has constant weights to quantise: export the model again"
            )
        for field in ("only", "keep"):
            for pattern in getattr(self, field):
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise InputError(
                        f"recipe {self.name!r}: {field}={pattern!r} fits no linear layer; they are called "
                        f"{', '.join(names[:4])} ..."
                    )
        found = [
            name
            for name in names
            if any(fnmatchcase(name, p) for p in self.only) and not any(fnmatchcase(name, p) for p in self.keep)
        ]
        if not found:
            raise InputError(f"recipe {self.name!r} keeps every linear layer that it names: drop keep, or linear=None")
        return found


INT8 = Recipe("int8", table=None)
INT4_TABLE = Recipe("int4-table", linear=None)
INT8_INT4 = Recipe("int8+int4")
INT4_INT4 = Recipe("int4+int4", linear="int4-block")
"""4 bits for the linear layers too: the smallest file, slower than INT8."""


def needs_reduced_range() -> bool:
    """Would full-range INT8 weights overflow on this CPU? True on x86 without VNNI; Arm kernels add in 32 bits."""
    return not has_vnni() and "asimd" not in cpu_flags()


def refuse_saturation(recipe: Recipe) -> None:
    """Raise QuantizationError for a recipe whose sums would overflow on this CPU."""
    if recipe.saturates():
        raise QuantizationError(
            f"recipe {recipe.name!r} gives INT8 weights all 8 bits, and this CPU has no VNNI: sums would overflow; "
            "quantise here with reduce_range=None, or weights='uint8' (allow_saturation=True to see the damage)"
        )
