"""Texts to decide on: commands, licences, and the reader's own; each row knows its cluster and its split."""

from helpers.data.commands import LANGUAGES, UNKNOWN_INTENTS, commands, home
from helpers.data.licences import licences
from helpers.data.own import own
from helpers.data.splits import FRACTIONS, assign, drop_repeated, normalise

__all__ = [
    "FRACTIONS",
    "LANGUAGES",
    "UNKNOWN_INTENTS",
    "assign",
    "commands",
    "drop_repeated",
    "home",
    "licences",
    "normalise",
    "own",
]
