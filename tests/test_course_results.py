"""Recording figures, and checking them against ranges."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import ROOT
from helpers.course import results
from helpers.errors import InputError


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test writes into build/, and none sees what another one started."""
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path))
    monkeypatch.delenv("COURSE_NOTEBOOK", raising=False)
    monkeypatch.setattr(results, "_now", {})
    return tmp_path


def content(folder: Path, name: str = "01_x") -> dict:
    return json.loads((folder / f"{name}.json").read_text())


def test_record_writes_the_whole_file_each_time(own_folder: Path) -> None:
    results.start("01_x", model="mini", fast=True, data="somewhere/mine.csv")
    assert results.record("ratio", np.float32(1.5)) == 1.5
    results.record_many({"n": np.int64(7), "share": np.array([0.25])})
    found = content(own_folder)
    assert found["metrics"] == {"ratio": 1.5, "n": 7, "share": 0.25}
    assert (found["model"], found["fast"], found["data"]) == ("mini", True, "mine.csv")
    assert found["seconds"] >= 0 and found["peak_mb"] > 1 and found["machine"]["cores"] >= 1
    assert [p.name for p in own_folder.iterdir()] == ["01_x.json"], "no temporary file stays"
    results.start("01_x", model="mini", fast=False)
    assert content(own_folder)["metrics"] == {}, "a new run forgets the old one's figures"


BAD = [math.nan, math.inf, -math.inf, np.nan, "3", None, True, np.bool_(True), 1j, [1.0], np.array([1, 2])]


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_what_is_no_finite_number_is_refused(own_folder: Path, value: object) -> None:
    results.start("01_x", model="mini", fast=True)
    with pytest.raises(InputError, match=r"results\.record\('ratio'\)") as error:
        results.record_many({"good": 1, "ratio": value})
    assert "\n" not in str(error.value)
    assert content(own_folder)["metrics"] == {}, "all or none"


def test_unnamed_and_unstarted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="call start first"):
        results.record("ratio", 1)
    results.start("01_x", model="mini", fast=True)
    for name in ("", "two words", 3):
        with pytest.raises(InputError, match="is no name"):
            results.record(name, 1)
    monkeypatch.setenv("COURSE_NOTEBOOK", "02_y")
    with pytest.raises(InputError, match="in notebook 02_y"):
        results.start("01_x", model="mini", fast=True)


def judged(tmp_path: Path, ranges: str, metrics: dict, **more: object) -> list[str]:
    """Problems that check finds for one notebook called nb."""
    folder = tmp_path / "results"
    folder.mkdir(exist_ok=True)
    (folder / "nb.json").write_text(json.dumps({"metrics": metrics, "fast": True, "own": False, **more}))
    (tmp_path / "ranges.toml").write_text("[nb]\n" + ranges)
    return results.check(folder, tmp_path / "ranges.toml")


def test_check_names_what_is_wrong(own_folder: Path) -> None:
    assert judged(own_folder, "a = [1, 2]", {"a": 2}) == []
    table = 'a = {low = 1, high = 2, note = "why"}'
    assert judged(own_folder, table, {"a": 2.5}) == ["nb: a = 2.5 is outside 1 .. 2 (why)"]
    assert judged(own_folder, "a = [1, 2]", {}) == ["nb: a was not recorded, but ranges.toml has a range for it"]
    assert judged(own_folder, "", {"a": 1}) == ["nb: a = 1 has no range: add it to ranges.toml"]
    (line,) = judged(own_folder, "", {}, exercises={"start_1": "right", "quantize_1": "not tried"})
    assert "exercise quantize_1 ended 'not tried'" in line


def test_full_only_and_default_input(own_folder: Path) -> None:
    full = "a = {low = 1, high = 2, full_only = true}"
    assert judged(own_folder, full, {}) == []
    assert len(judged(own_folder, full, {}, fast=False)) == 1
    assert len(judged(own_folder, full, {"a": 3})) == 1, "recorded in fast mode all the same: then the range counts"
    default = "a = {low = 1, high = 2, default_input = true}"
    assert len(judged(own_folder, default, {"a": 3})) == 1
    assert judged(own_folder, default, {"a": 3}, own=True) == [], "another model may leave the range"
    assert len(judged(own_folder, "a = [1, 2]", {"a": 3}, own=True)) == 1, "speed holds for any input"


def test_a_full_run_may_have_a_range_of_its_own(own_folder: Path) -> None:
    table = "n = {low = 5, high = 100, full = [50, 100]}"
    assert judged(own_folder, table, {"n": 7}) == []
    assert judged(own_folder, table, {"n": 7}, fast=False) == ["nb: n = 7 is outside 50 .. 100"]
    assert judged(own_folder, table, {"n": 50}, fast=False) == []
    rows = results.load_ranges(ROOT / "tests" / "ranges.toml")["01_quantize_mmbert"]["n_validation"]
    assert results.judge(49_999, rows, fast=False, own=False) == "out", "the course promises 50,000 rows"


def test_a_notebook_that_left_no_file_has_missed_its_figures(own_folder: Path) -> None:
    judged(own_folder, "a = [1, 2]", {"a": 1})
    (own_folder / "results" / "nb.json").unlink()
    problems = results.check(own_folder / "results", own_folder / "ranges.toml", ["nb"])
    assert problems == ["nb: a was not recorded, but ranges.toml has a range for it"]


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(value=numbers, low=numbers, high=numbers)
def test_a_figure_is_ok_exactly_inside_its_range(value: float, low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    entry = results._range("a", [low, high])
    verdict = results.judge(value, entry, fast=True, own=False)
    assert verdict == ("ok" if low <= value <= high else "out")


@pytest.mark.parametrize(
    "text",
    [
        "[nb]\na = 3",
        "[nb]\na = [2, 1]",
        "[nb]\na = [1, 2, 3]",
        "[nb]\na = {low = 1}",
        "a = [1, 2]",
        "[nb",
        "[nb]\na = [1, nan]",
        "[nb]\na = {low = 1, high = 2, hihg = 3}",
        '[nb]\na = ["1", 2]',
        '[nb]\na = {low = 1, high = 2, full_only = "no"}',
        "[nb]\na = {low = 1, high = 2, default_input = 1}",
        "[nb]\na = {low = 1, high = 2, note = 3}",
        "[nb]\na = {low = 1, high = 2, full = 3}",
        "[nb]\na = {low = 1, high = 2, full = [3, 2]}",
    ],
)
def test_ranges_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError, match="ranges: ") as error:
        results.load_ranges(tmp_path / "r.toml")
    assert "\n" not in str(error.value)


def test_ranges_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    for path, says in ((tmp_path, "cannot be read"), (tmp_path / "latin.toml", "not UTF-8 at byte 2")):
        with pytest.raises(InputError, match=says) as error:
            results.load_ranges(path)
        assert "\n" not in str(error.value)


def test_the_courses_ranges_can_be_read_and_name_its_notebooks() -> None:
    path = ROOT / "tests" / "ranges.toml"
    assert results.load_ranges(path).keys() == tomllib.loads(path.read_text()).keys()
    for name in results.load_ranges(path):
        if list((ROOT / "notebooks").glob(f"{name.split('_')[0]}_*.ipynb")):
            assert (ROOT / "notebooks" / f"{name}.ipynb").exists(), f"{name} in ranges.toml is no notebook"
