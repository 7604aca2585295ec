"""The one exception that means: what the user gave is wrong, and the message says what to do."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input, told in one clear line: what is wrong, where, and what to do about it.

    Command lines print the line and exit with 2; nobody should need the traceback.
    """


class QuantizationError(InputError, RuntimeError):
    """A quantiser reported success and did not do what the recipe says; told in one line like any bad input."""
