"""Slides from the notebooks: python -m helpers.course.slides.

Writes build/slides/<notebook>.slides.html, a copy of reveal.js beside them and an index. Nothing in there comes from
the network: a deck that needs a CDN is blank in a room without one.
"""

from __future__ import annotations

import argparse
import copy
import html
import importlib.util
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from helpers import ROOT
from helpers.course import os_error_line, write_whole
from helpers.errors import InputError

_WIDGET = "application/vnd.jupyter.widget-view+json"
# Formulas: $$..$$, \[..\], \(..\), or $..$ with no space inside the signs (so that "$5 and $6" is money).
_MATHS = re.compile(r"\$\$|\\\[|\\\(|(?<![\\\w$])\$[^\s$](?:[^$\n]*[^\s$\\])?\$(?!\w)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def build(notebooks_dir: Path = ROOT / "notebooks", out_dir: Path = ROOT / "build") -> list[Path]:
    """Build one deck a notebook, from the executed notebook if there is one, else from the committed one.

    Parameters
    ----------
    notebooks_dir
        Folder of the committed notebooks.
    out_dir
        The runner's folder: reads executed/, writes slides/.

    Returns
    -------
    list of Path
        The decks, in the notebooks' order; slides/index.html links them.

    Raises
    ------
    InputError
        No notebook, reveal.js missing or not 5.x, formulas (nothing renders them offline), or a deck that would load
        something from the network.
    """
    from helpers.course.run import find

    slides_dir = out_dir / "slides"
    notebooks = find(notebooks_dir)
    copy_reveal(slides_dir / "reveal.js")
    decks, titles = [], {}
    for notebook in notebooks:
        executed = out_dir / "executed" / notebook.name
        nb = nbformat.read(executed if executed.exists() else notebook, as_version=4)
        page = deck(nb, notebook.stem)
        outside = external_references(page)
        if outside:
            raise InputError(f"{notebook.name}: its slides would load {outside[0]}: put the file into the notebook")
        decks.append(write_whole(slides_dir / f"{notebook.stem}.slides.html", page))
        titles[decks[-1].name] = _title(nb) or notebook.stem
    write_whole(slides_dir / "index.html", _index(titles))
    return decks


def deck(nb: nbformat.NotebookNode, name: str, reveal: str = "reveal.js") -> str:
    """One notebook as a reveal.js page; `reveal` is the path of reveal.js relative to the page.

    Tags: hide-input keeps the output and hides the code; solution, parameters and remove-cell leave the slides.
    """
    from nbconvert import SlidesExporter
    from traitlets.config import Config

    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_input_tags = {"hide-input"}
    config.TagRemovePreprocessor.remove_cell_tags = {
        "solution", "parameters", "injected-parameters", "remove-cell", "papermill-error-cell-tag",
    }  # fmt: skip
    exporter = SlidesExporter(
        config=config,
        extra_template_basedirs=[str(ROOT / "slides")],
        template_name="deck",
        reveal_url_prefix=reveal,
        reveal_theme="white",
        reveal_number="c/t",
    )
    nb = without_widgets(nb)
    for number, cell in enumerate(nb.cells, 1):
        if cell.cell_type == "markdown" and _MATHS.search(_CODE.sub("", cell.source)):
            raise InputError(f"{name}: cell {number} has a formula, and slides have no maths: write it as text or code")
    body, _ = exporter.from_notebook_node(nb, {"metadata": {"name": name}})
    return body


def without_widgets(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy without interactive widgets (progress bars): outside Jupyter a page would fetch code to show them."""
    nb = copy.deepcopy(nb)
    nb.metadata.pop("widgets", None)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    return nb


def external_references(page: str) -> list[str]:
    """Everything an HTML page would load from another host: src, srcset, href of <link>, poster, data-background-*,
    @import, url(...) in styles and import in scripts. Links a reader may click (<a href>) load nothing and are fine.
    """
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page, "html.parser")
    found: list[str] = []
    for tag in soup.find_all(True):
        for name, value in tag.attrs.items():
            text = " ".join(value) if isinstance(value, list) else str(value)
            loads = name in ("src", "srcset", "poster", "data", "data-src") or name.startswith("data-background")
            if loads or (name in ("href", "xlink:href") and tag.name not in ("a", "area")):
                if "data:" not in text[:5]:
                    found += re.findall(r"(?:https?:)?//[^\s\"',)]+", text)
            elif name == "style":
                found += _styles(text)
        if tag.name == "style":
            found += _styles(tag.get_text())
        elif tag.name == "script":
            found += re.findall(r"(?:\bfrom|\bimport)[\s(]*[\"']((?:https?:)?//[^\"']+)", tag.get_text())
    return found


def _styles(css: str) -> list[str]:
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    return re.findall(r"(?:@import\s*[\"']?|url\(\s*[\"']?)((?:https?:)?//[^\"')\s;]+)", css)


def reveal_source() -> Path:
    """Folder of the reveal.js that the installed package sphinx-revealjs carries.

    Raises InputError if it is missing or not version 5: 6.x lost the files that nbconvert's pages load, and such a
    deck is blank.
    """
    spec = importlib.util.find_spec("sphinx_revealjs")  # found, not imported: it would import sphinx
    if spec is None or spec.origin is None:
        raise InputError("slides: package sphinx-revealjs is not installed: pip install -r requirements.txt")
    source = Path(spec.origin).parent / "_static" / "revealjs"
    script = source / "dist" / "reveal.js"
    version = re.search(r"reveal\.js (\d+)\.[\d.]+", script.read_text("utf-8")[:400]) if script.exists() else None
    if version is None or version.group(1) != "5":
        found = version.group(0) if version else "no reveal.js"
        raise InputError(f"slides: sphinx-revealjs carries {found}, 5.x is needed: pip install 'sphinx-revealjs>=3,<4'")
    return source


def copy_reveal(target: Path) -> Path:
    """Copy what the decks load: script, styles, the white theme with its fonts, speaker notes, the licence."""
    source = reveal_source()
    for part in ("LICENSE", "dist/reveal.js", "dist/reveal.css", "dist/reset.css", "dist/theme/white.css"):
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / part, target / part)
    for folder in ("dist/theme/fonts", "plugin/notes"):
        shutil.copytree(source / folder, target / folder, dirs_exist_ok=True)
    return target


def _title(nb: nbformat.NotebookNode) -> str | None:
    """The first heading of a notebook."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and (match := re.search(r"^#\s+(.+)$", cell.source, re.MULTILINE)):
            return match.group(1).strip()
    return None


def _index(titles: dict[str, str]) -> str:
    links = [f'<a href="{html.escape(file)}">{html.escape(title)}</a>' for file, title in titles.items()]
    rows = "\n".join(f"<li>{link}</li>" for link in links)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Slides</title><style>body {{ font: 1.3rem/1.6 sans-serif; max-width: 45rem; margin: 2rem auto; padding: 0 1rem }}
</style></head><body><main><h1>Slides</h1>
<p>Arrow keys or space go on, Esc shows all slides, S opens the speaker's view.</p>
<ol start="0">
{rows}
</ol></main></body></html>
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: 0, or 2 with one line about what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m helpers.course.slides", description=__doc__.splitlines()[0])
    parser.add_argument("--notebooks", type=Path, default=ROOT / "notebooks", help="folder of the notebooks")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder of executed/, and to write slides/ to")
    options = parser.parse_args(argv)
    try:
        decks = build(options.notebooks, options.out)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(os_error_line(error, options.out), file=sys.stderr)
        return 2
    print(f"{len(decks)} decks: {options.out / 'slides' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
