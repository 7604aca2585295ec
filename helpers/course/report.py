"""One page with everything a run measured: python -m helpers.course.report writes build/report.html."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jinja2
import nbformat

from helpers import ROOT
from helpers.course import os_error_line, results, write_whole
from helpers.errors import InputError

_WORDS = {"ok": "in range", "out": "OUT OF RANGE", "missing": "NOT RECORDED", "no range": "HAS NO RANGE"}
LAST, EARLIER, SESSION = "the last run", "an earlier run", "an interactive or stopped session"


def build(out_dir: Path = ROOT / "build", ranges_path: Path = ROOT / "tests" / "ranges.toml") -> Path:
    """Write out_dir/report.html from out_dir/results and out_dir/executed; returns its path.

    The page holds its pictures itself and loads nothing. It says of each notebook which run its figures are from, and
    judges those of a session in JupyterLab not at all: nobody promised that its cells were run in order, or to the end.
    Raises InputError if the ranges cannot be read.
    """
    found, ranges = results.read(out_dir / "results"), results.load_ranges(ranges_path)
    came = origins(found)
    problems = {
        origin: results.check(out_dir / "results", ranges_path, [name for name in found if came[name] == origin])
        for origin in (LAST, EARLIER)
        if origin in came.values()
    }
    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.ChainableUndefined, trim_blocks=True)
    page = environment.from_string(template).render(
        made=time.strftime("%Y-%m-%d %H:%M"),
        notebooks=found,
        machines=_machines(found),
        origins=came,
        session=SESSION,
        figures=[
            figure
            for name, content in found.items()
            for figure in _figures(name, content, ranges.get(name, {}), judged=came[name] != SESSION)
        ],
        problems=problems,
        pages={path.stem for path in (out_dir / "html").glob("*.html")},
        pictures={name: pictures(out_dir / "executed" / f"{name}.ipynb") for name in found},
    )
    return write_whole(out_dir / "report.html", page)


def origins(found: dict[str, dict]) -> dict[str, str]:
    """Where each notebook's results are from: `LAST`, `EARLIER` or `SESSION`.

    Only the runner writes when a notebook finished, and when the run began that it belonged to.
    """
    runs = {name: content.get("run", "") for name, content in found.items() if "finished" in content}
    last = max(runs.values(), default="")
    return {name: SESSION if name not in runs else LAST if runs[name] == last else EARLIER for name in found}


def pictures(notebook: Path) -> list[dict[str, str]]:
    """PNG outputs of an executed notebook, each {"png": base64, "alt": text}; empty if it was not executed."""
    if not notebook.exists():
        return []
    found = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            png = output.get("data", {}).get("image/png")
            if png:
                alt = output.metadata.get("image/png", {}).get("alt", f"Picture of {notebook.stem}")
                found.append({"png": "".join(png.split()), "alt": alt})
    return found


def _figures(notebook: str, content: dict, entries: dict[str, dict], *, judged: bool) -> list[dict[str, object]]:
    """Rows of the table of figures: recorded ones and, if the notebook is judged, those that should have been."""
    rows, fast = [], bool(content.get("fast", True))
    for name in dict.fromkeys([*(entries if judged else ()), *content["metrics"]]):
        value, entry = content["metrics"].get(name), entries.get(name)
        verdict = results.judge(value, entry, fast=fast, own=bool(content.get("own"))) if judged else "not judged"
        low, high = results.limits(entry, fast=fast) if entry else (None, None)
        rows.append(
            {
                "notebook": notebook,
                "name": name,
                "value": "" if value is None else f"{value:.6g}",
                "range": f"{low:g} .. {high:g}" if entry else "",
                "verdict": _WORDS.get(verdict, verdict),
                "bad": verdict in ("out", "missing", "no range"),
                "note": entry["note"] if entry else "",
            }
        )
    return rows


def _machines(found: dict[str, dict]) -> list[tuple[dict, list[str]]]:
    """Machines with the notebooks measured on them: normally one, but a results folder may be carried about."""
    machines: dict[str, tuple[dict, list[str]]] = {}
    for name, content in found.items():
        key = json.dumps(content["machine"], sort_keys=True)
        machines.setdefault(key, (content["machine"], []))[1].append(name)
    return list(machines.values())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: 0, or 2 with one line about what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m helpers.course.report", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder with results/ and executed/")
    parser.add_argument("--ranges", type=Path, default=ROOT / "tests" / "ranges.toml", help="ranges of the figures")
    options = parser.parse_args(argv)
    try:
        print(build(options.out, options.ranges))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(os_error_line(error, options.out), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
