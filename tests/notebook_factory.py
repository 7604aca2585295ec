"""Tiny notebooks for the tests of the runner, the report and the slides."""

from __future__ import annotations

from pathlib import Path

import nbformat

PARAMETERS = "FAST = True\nSEED = 0\nMODEL = 'mini'"


def setup(name: str) -> str:
    """Source of a setup cell, as every notebook of the course has one."""
    return f"from helpers.course import results\nresults.start({name!r}, model=MODEL, fast=FAST)"


def cell(source: str, *tags: str, **metadata: object) -> nbformat.NotebookNode:
    """A code cell with tags and metadata."""
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags), **metadata})


def write(folder: Path, name: str, *cells: str | nbformat.NotebookNode, parameters: str | None = PARAMETERS) -> Path:
    """Write a notebook: a title, a parameters cell (unless None), a setup cell and the given cells."""
    nb = nbformat.v4.new_notebook()
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nb.cells = [nbformat.v4.new_markdown_cell(f"# Title of {name}")]
    if parameters is not None:
        nb.cells.append(cell(parameters, "parameters"))
    nb.cells.append(cell(setup(name)))
    nb.cells += [cell(c) if isinstance(c, str) else c for c in cells]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    nbformat.write(nb, path)
    return path
