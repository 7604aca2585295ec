"""Sentences that are computed from the run, shown as text rather than as printed output."""

from __future__ import annotations

from IPython.display import Markdown, display


def say(*sentences: str) -> None:
    """Show Markdown; several sentences are joined by a space, list items ("- ...") by a line break."""
    text = ""
    for sentence in sentences:
        text += ("\n" if sentence.startswith("- ") else " ") + sentence
    display(Markdown(text.strip()))
