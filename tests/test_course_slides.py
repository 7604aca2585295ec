"""Slides load nothing from the network, and show what they should."""

from __future__ import annotations

from pathlib import Path

import nbformat
import notebook_factory as factory
import pytest

from helpers.course import slides
from helpers.errors import InputError


@pytest.fixture(scope="module")
def decks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("slides")
    shown = nbformat.v4.new_output(
        "display_data", {"image/png": "iVBORw0KGgo="}, metadata={"image/png": {"alt": "Bars"}}
    )
    widget = nbformat.v4.new_output(
        "display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}, "text/plain": "PROGRESS BAR"}
    )
    picture = factory.cell("hidden_code()", "hide-input")
    picture.outputs = [widget, shown]
    link = nbformat.v4.new_markdown_cell("[Further reading](https://example.org/paper), costs $5 and $6, `$x$`")
    path = factory.write(base / "nb", "00_first", picture, link, factory.cell("secret_solution()", "solution"))
    nb = nbformat.read(path, as_version=4)
    nb.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}, "version_major": 2}}
    factory.write(base / "nb", "01_second", "print('committed')")
    (base / "build" / "executed").mkdir(parents=True)
    nb.cells[0].source = "# An executed <title>"
    nbformat.write(nb, base / "build" / "executed" / "00_first.ipynb")
    assert slides.main(["--notebooks", str(base / "nb"), "--out", str(base / "build")]) == 0
    return base / "build" / "slides"


def test_nothing_is_loaded_from_elsewhere_and_all_else_is_there(decks: Path) -> None:
    pages = sorted(decks.glob("*.html"))
    assert [p.name for p in pages] == ["00_first.slides.html", "01_second.slides.html", "index.html"]
    for page in pages:
        text = page.read_text()
        assert slides.external_references(text) == []
        for loaded in ("dist/reveal.js", "dist/reveal.css", "dist/theme/white.css", "plugin/notes/notes.js"):
            assert page.name == "index.html" or f'"reveal.js/{loaded}"' in text
            assert (decks / "reveal.js" / loaded).exists()
    for style in (decks / "reveal.js").rglob("*.css"):
        assert slides._styles(style.read_text()) == []


def test_tags_decide_what_is_on_the_slides(decks: Path) -> None:
    text = (decks / "00_first.slides.html").read_text()
    for hidden in ("hidden_code", "secret_solution", "PROGRESS BAR", "SEED"):
        assert hidden not in text
    assert 'alt="Bars"' in text
    assert 'href="https://example.org/paper"' in text, "a link to click is no load"
    assert "Reveal.initialize" in text and "require(" not in text and "MathJax" not in text
    assert "committed" in (decks / "01_second.slides.html").read_text()


def test_the_index_lists_the_decks_with_their_titles(decks: Path) -> None:
    text = (decks / "index.html").read_text()
    assert '<a href="00_first.slides.html">An executed &lt;title&gt;</a>' in text
    assert '<a href="01_second.slides.html">Title of 01_second</a>' in text


@pytest.mark.parametrize(
    "bad",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//cdn.example/x.css">',
        "<style>@import url('http://cdn.example/x.css');</style>",
        "<style>a { background: url(https://cdn.example/x.png) }</style>",
        '<p style="background: url(https://cdn.example/x.png)">',
        '<img srcset="a.png 1x, https://cdn.example/b.png 2x">',
        '<section data-background-image="https://cdn.example/x.png">',
        "<script type='module'>import mermaid from 'https://cdn.example/m.mjs'</script>",
        "<script>const x = await import('https://cdn.example/m.mjs')</script>",
    ],
)
def test_external_references_are_found(bad: str) -> None:
    (found,) = slides.external_references(f"<html><body>{bad}</body></html>")
    assert "cdn.example" in found


def test_what_loads_nothing_is_fine() -> None:
    fine = '<a href="https://example.org">x</a><img src="data:image/png;base64,//8=">'
    assert slides.external_references(fine + '<script src="reveal.js/dist/reveal.js"></script>// http://x') == []


@pytest.mark.parametrize("formula", ["$$x^2$$", "so $x^2$ is", r"\(x\)", r"\[x\]"])
def test_formulas_are_refused_since_nothing_would_render_them(formula: str) -> None:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(f"# Title\n{formula}")])
    with pytest.raises(InputError, match="00_x: cell 1 has a formula"):
        slides.deck(nb, "00_x")


@pytest.mark.parametrize("version", ["6.0.1", None])
def test_another_reveal_is_refused(tmp_path: Path, monkeypatch, version: str | None) -> None:
    package = tmp_path / "sphinx_revealjs"
    (package / "_static" / "revealjs" / "dist").mkdir(parents=True)
    (package / "__init__.py").touch()
    if version:
        (package / "_static" / "revealjs" / "dist" / "reveal.js").write_text(f"/*!\n* reveal.js {version}\n*/")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "sphinx_revealjs", raising=False)
    with pytest.raises(InputError, match=r"5\.x is needed"):
        slides.reveal_source()
