"""Thin helpers for the course: text flows data -> encode -> decide -> act; course runs the notebooks."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository: the package is installed editable, never copied."""
