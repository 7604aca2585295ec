"""Kept files: made once, made again if damaged or outdated, and the old ones go."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.encode import store
from helpers.encode.recipe import INT8, INT8_INT4, Recipe


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stems of files made, in order; stubs make them, for what a file holds is not the store's business."""
    made: list[str] = []

    def make(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * (1000 + len(made)))
        made.append(path.stem)

    # in this process, where the stubs are
    monkeypatch.setattr(store, "_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(store, "random_model", lambda config, seed: None)
    monkeypatch.setattr(store, "export", lambda model, path, **graph: make(path))
    monkeypatch.setattr(store, "quantize", lambda source, path, recipe: make(path))
    return made


def test_a_file_is_made_once(made: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "models"
    first = store.random_file("mmbert-small", INT8, folder=folder)
    assert first == store.random_file("mmbert-small", INT8, folder=folder)
    assert [name[:18] for name in made] == ["mmbert-small-fp32-", "mmbert-small-int8-"]
    assert first in folder.iterdir() and len(list(folder.iterdir())) == 2


def test_graphs_and_depths_are_kept_apart(made: list[str], tmp_path: Path) -> None:
    asked = ({}, {"layers": 3}, {"banded": False}, {"banded_from": 100, "layers": 3})
    assert len({store.random_file("mmbert-small", folder=tmp_path, **one) for one in asked}) == len(asked)
    assert len(made) == len(asked)


def test_a_damaged_file_is_made_again(made: list[str], tmp_path: Path) -> None:
    path = store.random_file("mmbert-small", folder=tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    again = store.random_file("mmbert-small", folder=tmp_path)
    assert len(made) == 2 and again.stat().st_size == 1001
    assert list(tmp_path.iterdir()) == [again]


def test_files_of_older_code_go_and_no_others(made: list[str], tmp_path: Path, monkeypatch) -> None:
    """Other seeds, sizes and recipes stay, even those whose name begins alike: somebody may hold their paths."""
    asked = (
        ("mmbert-small", INT8, 0), ("mmbert-small", INT8_INT4, 0), ("mmbert-small", Recipe("int8-x"), 0),
        ("mmbert-small", Recipe("int8", per_channel=False, table=None), 0), ("mmbert-base", INT8, 0),
        ("mmbert-small", INT8, 1),
    )  # fmt: skip
    paths = [store.random_file(*one, folder=tmp_path) for one in asked]
    assert len(set(paths)) == len(asked) and all(path.exists() for path in paths)
    (tmp_path / "mine.onnx").write_text("somebody else's")
    before = len(list(tmp_path.iterdir()))
    monkeypatch.setattr(store, "_makers", lambda: [b"newer"])
    new = store.random_file(*asked[0], folder=tmp_path)
    assert new != paths[0] and [path.exists() for path in paths] == [False] + 5 * [True]
    assert len(list(tmp_path.iterdir())) == before
