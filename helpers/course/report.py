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

from helpers.course import ROOT, results, write_whole
from helpers.errors import InputError

_WORDS = {"ok": "in range", "out": "OUT OF RANGE", "missing": "NOT RECORDED", "no range": "HAS NO RANGE"}


def build(out_dir: Path = ROOT / "build", ranges_path: Path = ROOT / "tests" / "ranges.toml") -> Path:
    """Write out_dir/report.html from out_dir/results and out_dir/executed; returns its path.

    The page holds its pictures itself and loads nothing. Raises InputError if the ranges cannot be read.
    """
    found, ranges = results.read(out_dir / "results"), results.load_ranges(ranges_path)
    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.ChainableUndefined, trim_blocks=True)
    page = environment.from_string(template).render(
        made=time.strftime("%Y-%m-%d %H:%M"),
        notebooks=found,
        machines=_machines(found),
        figures=[figure for name, content in found.items() for figure in _figures(name, content, ranges.get(name, {}))],
        problems=results.check(out_dir / "results", ranges_path),
        pages={path.stem for path in (out_dir / "html").glob("*.html")},
        pictures={name: pictures(out_dir / "executed" / f"{name}.ipynb") for name in found},
    )
    return write_whole(out_dir / "report.html", page)


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


def _figures(notebook: str, content: dict, entries: dict[str, dict]) -> list[dict[str, object]]:
    """Rows of the table of figures: recorded ones and those that should have been."""
    rows = []
    for name in dict.fromkeys([*entries, *content["metrics"]]):
        value, entry = content["metrics"].get(name), entries.get(name)
        verdict = results.judge(value, entry, fast=bool(content.get("fast", True)), own=bool(content.get("own")))
        rows.append(
            {
                "notebook": notebook,
                "name": name,
                "value": "" if value is None else f"{value:.6g}",
                "range": f"{entry['low']:g} .. {entry['high']:g}" if entry else "",
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
