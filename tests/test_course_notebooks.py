"""The committed notebooks keep the course's form."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from helpers import ROOT
from helpers.course import run

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


@pytest.fixture
def nb(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def test_valid_with_ids_kernel_and_no_outputs(nb: nbformat.NotebookNode) -> None:
    nbformat.validate(nb)
    assert (nb.nbformat, nb.nbformat_minor >= 5) == (4, True), "cell ids exist from 4.5 on"
    assert len({cell.id for cell in nb.cells}) == len(nb.cells)
    assert nb.metadata.kernelspec.name == "python3"
    assert "widgets" not in nb.metadata and "papermill" not in nb.metadata
    for cell in nb.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, f"cell {cell.id}: commit without outputs"


def test_first_code_cell_declares_the_parameters(nb: nbformat.NotebookNode, path: Path) -> None:
    first = next(cell for cell in nb.cells if cell.cell_type == "code")
    assert "parameters" in first.metadata.get("tags", [])
    assert {"FAST", "SEED", "MODEL"} <= run.declared(path).keys()


def test_opens_with_a_title_and_starts_its_results(nb: nbformat.NotebookNode, path: Path) -> None:
    assert nb.cells[0].cell_type == "markdown" and nb.cells[0].source.startswith("# ")
    code = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    assert any("results.start(" in source and path.stem in source for source in code)


def test_cells_are_short(nb: nbformat.NotebookNode) -> None:
    for cell in nb.cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 15, f"cell {cell.id}: at most 15 lines; move the rest to a helper"


def test_every_exercise_has_its_solution(nb: nbformat.NotebookNode) -> None:
    tagged = [cell.source for cell in nb.cells if "solution" in cell.metadata.get("tags", [])]
    asked = sum(cell.source.strip().endswith("= ...") for cell in nb.cells if cell.cell_type == "code")
    assert len(tagged) == asked
    assert all("checks." in source for source in tagged), "a solution passes its own check"
