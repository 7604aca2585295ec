"""The runner: notebooks that are really executed, by papermill, in a real kernel."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import notebook_factory as factory
import pytest

from helpers import ROOT
from helpers.course import machine, report
from helpers.course import run as runner
from helpers.course.slides import external_references
from helpers.errors import InputError

PICTURE = """
import matplotlib.pyplot as plt
plt.plot([1, 2]);
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """One successful run of two notebooks, looked at by several tests."""
    base = tmp_path_factory.mktemp("course")
    notebooks = base / "notebooks"
    facts = """
import os, sys
from pathlib import Path
print("FACTS", FAST, EXTRA, sys.executable, Path.cwd().name, os.environ["TOKENIZERS_PARALLELISM"])
ballast = bytearray(200_000_000)
results.record("answer", 42)
"""
    exercise = ["answer = ...", "from helpers.course import checks\nchecks.start_1(answer)"]
    solution = "answer = checks.available_cores()\nchecks.start_1(answer)"
    factory.write(
        notebooks,
        "00_first",
        facts,
        nbformat.v4.new_markdown_cell("## A line that rises"),
        PICTURE,
        *exercise,
        factory.cell(solution, "solution"),
        parameters=factory.PARAMETERS + "\nEXTRA = 1",
    )
    factory.write(notebooks, "A1_appendix", "results.record('never', 1)")
    ranges = base / "ranges.toml"
    ranges.write_text("[00_first]\nanswer = [40, 44]\n")
    out = base / "build"
    code = runner.main(
        f"--notebooks {notebooks} --out {out} --ranges {ranges} --full --skip A1 -p EXTRA=[2,'x']".split()
    )
    return {"code": code, "out": out, "base": base}


def test_success_leaves_notebook_page_results_and_report(course: dict) -> None:
    out = course["out"]
    assert course["code"] == 0
    written = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert written == {"executed/00_first.ipynb", "html/00_first.html", "results/00_first.json", "report.html"}


def test_parameters_environment_and_interpreter_reach_the_kernel(course: dict) -> None:
    nb = nbformat.read(course["out"] / "executed" / "00_first.ipynb", as_version=4)
    text = "".join(o.text for c in nb.cells for o in c.get("outputs", []) if o.output_type == "stream")
    assert f"FACTS False [2, 'x'] {sys.executable} notebooks false" in text


def test_results_have_seconds_and_the_kernels_memory(course: dict) -> None:
    content = json.loads((course["out"] / "results" / "00_first.json").read_text())
    assert content["metrics"] == {"answer": 42}
    assert content["exercises"] == {"start_1": "right"}
    assert content["model"] == "mini" and content["fast"] is False
    assert content["seconds"] > 0.5
    assert 230 < content["peak_mb"] < 2000, "the kernel held 200 MB of ballast beside Python itself"
    assert content["machine"]["cores"] >= 1


def test_report_and_page_hold_their_pictures_and_load_nothing(course: dict) -> None:
    for page in ("report.html", "html/00_first.html"):
        text = (course["out"] / page).read_text()
        assert "data:image/png;base64," in text
        assert 'alt="Picture: A line that rises"' in text
        assert external_references(text) == []
    report = (course["out"] / "report.html").read_text()
    assert "answer" in report and "40 .. 44" in report and "in range" in report


@pytest.fixture
def go(tmp_path: Path):
    """Run the command line on notebooks of this test; returns the exit code."""

    def call(*arguments: str, ranges: str = "") -> int:
        (tmp_path / "ranges.toml").write_text(ranges)
        places = ["--notebooks", tmp_path / "nb", "--out", tmp_path / "build", "--ranges", tmp_path / "ranges.toml"]
        return runner.main([*map(str, places), *arguments])

    return call


def test_a_failing_cell_stops_the_run_and_is_named(tmp_path: Path, go, capsys: pytest.CaptureFixture) -> None:
    factory.write(tmp_path / "nb", "00_bad", "x = 1", "print('before')\nx / 0", "print('never')")
    factory.write(tmp_path / "nb", "01_next", "print('never')")
    assert go() == 1
    error = capsys.readouterr().err
    # title, parameters, setup, x = 1: the division is the fifth cell of the notebook in the repository
    assert "00_bad failed in cell 5" in error and "    x / 0" in error and "ZeroDivisionError" in error
    assert "\x1b[" not in error
    executed = tmp_path / "build" / "executed"
    assert [p.name for p in executed.iterdir()] == ["00_bad.failed.ipynb"], "kept to look at; 01 never started"
    assert "before" in (executed / "00_bad.failed.ipynb").read_text()


def test_figures_are_checked_and_bad_input_in_a_cell_is_one_line(tmp_path: Path, go, capsys) -> None:
    factory.write(tmp_path / "nb", "00_figures", "results.record_many({'high': 3, 'strange': 1})")
    assert go(ranges="[00_figures]\nhigh = [1, 2]\nmissing = [0, 1]\n") == 1
    error = capsys.readouterr().err
    assert "00_figures: high = 3 is outside 1 .. 2" in error
    assert "00_figures: missing was not recorded" in error
    assert "00_figures: strange = 1 has no range" in error
    assert "OUT OF RANGE" in (tmp_path / "build" / "report.html").read_text()

    factory.write(tmp_path / "nb", "00_figures", "results.record('ratio', float('nan'))")
    assert go() == 1
    error = capsys.readouterr().err
    assert "results.record('ratio'): nan is not finite" in error and "Traceback" not in error


def test_a_kernel_that_dies_is_told_apart(tmp_path: Path, go, capsys: pytest.CaptureFixture) -> None:
    factory.write(tmp_path / "nb", "00_dies", "import os\nos._exit(9)")
    assert go() == 1
    assert "00_dies failed: the kernel died in cell 4" in capsys.readouterr().err


REFUSALS = {
    "unknown notebook": (["--only", "07"], "--only 07: no such notebook: choose from 00_a, 01_b, A1_c"),
    "unknown parameter": (
        ["-p", "WRONG=1"],
        "WRONG: no selected notebook has this parameter; they have DATA, EXTRA, FAST",
    ),
    "data nobody takes": (["--data", "{here}/t.csv", "--only", "00"], "DATA: no selected notebook has this parameter"),
    "missing data file": (["--data", "nowhere.csv", "--only", "01"], "DATA nowhere.csv: no such file"),
    "data without labels": (["--data", "{here}/t.csv", "--only", "01"], "label"),
    "unknown model": (["--model", "no-such-model"], "no-such-model"),
    "model out of reach": (["--model", "nobody/has-this-model"], "nobody/has-this-model"),
    "folder without model": (["--model", "{here}"], "config.json"),
    "no name=value": (["-p", "EXTRA"], "-p EXTRA: write it as NAME=VALUE"),
    "home of nobody": (["--data", "~no-such-user/t.csv", "--only", "01"], "DATA ~no-such-user/t.csv: "),
    "name too long": (["--data", "x" * 5000, "--only", "01"], "File name too long"),
    "model of nobody": (["--model", "~no-such-user/x"], "~no-such-user/x"),
    "model too long": (["--model", "x" * 5000], "MODEL="),
    "one name twice": (["-p", "EXTRA=1", "-p", "EXTRA=2"], "-p EXTRA=2: EXTRA is given already, as 1"),
    "model by -p": (["-p", "MODEL=x"], "use --model"),
    "nothing left": (["--only", "00", "--skip", "00"], "nothing to run"),
    "an empty choice": (["--only", ""], "nothing to run"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_in_one_line_before_anything_runs(tmp_path: Path, go, capsys, monkeypatch, case: str) -> None:
    for name in ("00_a", "01_b", "A1_c"):
        more = "EXTRA = 1\nDATA = None" if name == "01_b" else "EXTRA = 1"
        factory.write(tmp_path / "nb", name, parameters=f"{factory.PARAMETERS}\n{more}")
    (tmp_path / "t.csv").write_text("text,lable\nhello,greeting\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    arguments, expected = REFUSALS[case]
    assert go(*(a.format(here=tmp_path) for a in arguments)) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
    assert not (tmp_path / "build").exists()


def test_a_notebook_without_parameters_cell_is_refused(tmp_path: Path) -> None:
    path = factory.write(tmp_path, "00_a", parameters=None)
    with pytest.raises(InputError, match=r"00_a\.ipynb: no code cell is tagged 'parameters'"):
        runner.declared(path)
    factory.write(tmp_path, "00_a", parameters="SEED = 0")
    with pytest.raises(InputError, match="does not set FAST"):
        runner.assign([path], {}, fast=True)
    path.write_text("{}")
    with pytest.raises(InputError, match="not a readable notebook"):
        runner.declared(path)


def test_a_value_is_read_as_the_notebook_declares_it(tmp_path: Path) -> None:
    more = f"{factory.PARAMETERS}\nNUMBER = 1"
    path = factory.write(tmp_path, "00_a", parameters=f"{more}\nTEXT = 'a'\nMADE = len('ab')")
    other = factory.write(tmp_path, "01_b", parameters=f"{more}\nTEXT = 1")
    typed = {"TEXT": "12", "NUMBER": "{[]:1}", "MADE": "(" * 500}
    passed = runner.assign([path, other], {}, typed, fast=True)
    assert passed["00_a"] == {"FAST": True, "TEXT": "12", "NUMBER": "{[]:1}", "MADE": "(" * 500}
    assert passed["01_b"] == {"FAST": True, "TEXT": 12, "NUMBER": "{[]:1}"}
    for seed in ("abc", "-1", "1.5", "", "None", "True"):
        with pytest.raises(InputError, match="give a whole number, 0 or more"):
            runner.assign([path], {}, {"SEED": seed}, fast=True)
    assert runner.assign([path], {}, {"SEED": "3"}, fast=True)["00_a"]["SEED"] == 3


def test_the_embedded_model_has_one_name_in_a_run() -> None:
    """A1 keeps what it trained only under that name."""
    assert runner._checked_model("mini") == runner._checked_model("mmbert-mini") == ("mmbert-mini", True)


def test_own_is_said_of_each_notebook_by_itself(tmp_path: Path, go) -> None:
    factory.write(tmp_path / "nb", "00_a", "results.record('x', 5)", parameters=f"{factory.PARAMETERS}\nEXTRA = 1")
    factory.write(tmp_path / "nb", "01_b", "results.record('x', 5)")
    ranges = "".join(f"[{name}]\nx = {{low = 0, high = 1, default_input = true}}\n" for name in ("00_a", "01_b"))

    def own() -> list[bool]:
        return [json.loads((tmp_path / "build" / "results" / f"{n}.json").read_text())["own"] for n in ("00_a", "01_b")]

    assert go("-p", "EXTRA=2", ranges=ranges) == 1, "01_b never heard of EXTRA: its range holds"
    assert own() == [True, False]


@pytest.mark.parametrize(
    ("given", "but", "expected"),
    [
        ({"FAST": False}, {"FAST", "MODEL"}, False),
        ({"FAST": True, "MODEL": "mini"}, {"FAST", "MODEL"}, False),
        ({"FAST": True, "MODEL": "a/b"}, {"FAST"}, True),
        ({"FAST": True, "DATA": "/t.csv"}, {"FAST", "MODEL"}, True),
        ({"FAST": True, "SEED": 0}, {"FAST", "MODEL"}, False),
        ({"FAST": True, "MADE": 2}, {"FAST", "MODEL"}, True),
    ],
)
def test_what_differs_from_the_defaults(tmp_path: Path, given: dict, but: set, expected: bool) -> None:
    path = factory.write(
        tmp_path, "00_a", parameters=f"{factory.PARAMETERS}\nDATA: str | None = None\nMADE = 1 + len('a')"
    )
    assert runner.differs(given, runner.declared(path), but=but) is expected


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, go, capsys: pytest.CaptureFixture) -> None:
    factory.write(tmp_path / "nb", "00_a")
    (tmp_path / "build").write_text("a file")
    assert go() == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith(f"{tmp_path / 'build'}") and ": Not a directory" in error
    assert report.main(["--out", str(tmp_path / "build"), "--ranges", str(tmp_path / "ranges.toml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_report_says_which_run_each_notebook_is_from(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    old, new = (
        {"finished": "x", "run": "2026-01-01 10:00:00+0000"},
        {"finished": "x", "run": "2026-01-02 10:00:00+0000"},
    )
    for name, more in {"00_a": old, "01_b": {}, "02_c": new}.items():
        content = {"metrics": {"x": 1 if name == "02_c" else 5}, "exercises": {"e": "right" if more else "not tried"}}
        content |= {"machine": machine.describe(), "seconds": 1, "peak_mb": 1, "fast": True, **more}
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(content))
    ranges = tmp_path / "ranges.toml"
    ranges.write_text("".join(f"[{name}]\nx = [0, 1]\n" for name in ("00_a", "01_b", "02_c")))
    text = report.build(tmp_path, ranges).read_text()
    assert 'Notebooks of the last run: <strong class="good">Every figure' in text
    assert 'Notebooks of an earlier run: <strong class="bad">1 of the figures' in text
    assert "00_a: x = 5 is outside 0 .. 1" in text and "01_b: " not in text
    assert "From an interactive or stopped session, shown below and not judged:\n01_b." in text
    assert text.count("OUT OF RANGE") == 1 and text.count("not judged<") == 1


@pytest.mark.skipif(not shutil.which("make"), reason="no make on this machine")
def test_make_takes_options_from_its_command_line_only() -> None:
    def options(*arguments: str, **exported: str) -> list[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))} | exported
        command = ["make", "-n", "run", *arguments]
        made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in made.splitlines() if "-m helpers.course.run" in line]
        return shlex.split(line)[3:]

    assert options(MODEL="a/b", DATA="t.csv", ONLY="01", FULL="1") == []
    assert options("MODEL=a/b", "ONLY=00,01", "FULL=1") == ["--full", "--only=00,01", "--model=a/b"]
    assert options("DATA=it's my $file (1).csv", MODEL="a/b") == ["--data=it's my $file (1).csv"]
    for word in ("0", "no", "false", "off", "False", ""):
        assert options(f"FULL={word}") == []


def test_order_and_choice(tmp_path: Path) -> None:
    for name in ("A1_mini", "09_whole", "00_start", "A2_more"):
        factory.write(tmp_path, name)
    (tmp_path / "scratch.ipynb").write_text("")
    found = runner.find(tmp_path)
    assert [n.stem for n in found] == ["00_start", "09_whole", "A1_mini", "A2_more"]

    def chosen(**options: object) -> list[str]:
        return [n.stem.split("_")[0] for n in runner.select(found, **options)]

    assert chosen() == ["00", "09", "A2"]
    assert chosen(everything=True) == ["00", "09", "A1", "A2"]
    assert chosen(only="a1") == ["A1"]
    assert chosen(only="09,00_start.ipynb") == ["00", "09"]
    assert chosen(everything=True, skip="A1,A2") == ["00", "09"]
    assert chosen(everything=True, first="A1") == ["A1", "00", "09", "A2"]
    assert chosen(first="A1") == ["00", "09", "A2"]
