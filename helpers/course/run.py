"""Run the course headlessly: python -m helpers.course.run [--only 01] [--full] [--model ID] [--data PATH].

Executes the notebooks in order with papermill, stops at the first failure, checks every recorded figure against its
range and writes build/: executed notebooks, HTML pages, results, report.html.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import nbformat
import psutil
from tqdm import tqdm

from helpers import ROOT
from helpers.course import os_error_line, report, results, write_whole
from helpers.errors import InputError

# A1 makes the embedded model: it downloads about 150 MB, and its result is committed already. A full run of it replaces
# that result, so there it comes before the notebooks that measure the model.
MAKES_THE_MODEL = "A1"
LEFT_OUT = (MAKES_THE_MODEL,)
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # its threads do not survive a fork
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONHASHSEED": "0",  # the order of sets must not differ from run to run
    "COURSE_STRICT": "1",  # a solution that fails its own check stops the run
}
_NO_LITERAL = object()  # a default that is computed: equal to nothing that can be given
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class NotebookFailed(RuntimeError):
    """A notebook stopped. The message names notebook and cell and holds the cell's source and its error."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns 0, or 1 (a notebook failed, a figure is out of range), 2 (bad input), 130 (Ctrl-C)."""
    parser = argparse.ArgumentParser(prog="python -m helpers.course.run", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="01", help="run these notebooks only: numbers or names, with commas between")
    parser.add_argument("--skip", metavar="A1", help="leave these out: numbers or names, with commas between")
    parser.add_argument("--all", action="store_true", help=f"run {', '.join(LEFT_OUT)} too")
    parser.add_argument("--full", action="store_true", help="full-size work (FAST = False) and every notebook")
    parser.add_argument("--model", metavar="ID", help="another encoder: a hub id or a folder")
    parser.add_argument("--data", metavar="PATH", help="your own texts: a CSV or parquet file with text,label")
    parser.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="any declared parameter")
    parser.add_argument("--notebooks", type=Path, default=ROOT / "notebooks", help="folder of the notebooks")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder to write to")
    parser.add_argument("--ranges", type=Path, default=ROOT / "tests" / "ranges.toml", help="ranges of the figures")
    options = parser.parse_args(argv)
    try:
        problems = run(
            only=options.only,
            skip=options.skip,
            everything=options.all,
            full=options.full,
            model=options.model,
            data=options.data,
            parameters=_assignments(options.p),
            notebooks_dir=options.notebooks,
            out_dir=options.out,
            ranges_path=options.ranges,
        )
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except NotebookFailed as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(os_error_line(error, options.out), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; what was finished is kept", file=sys.stderr)
        return 130
    print(f"report: {options.out / 'report.html'}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def run(
    *,
    only: str | None = None,
    skip: str | None = None,
    everything: bool = False,
    full: bool = False,
    model: str | None = None,
    data: str | None = None,
    parameters: Mapping[str, str] | None = None,
    notebooks_dir: Path = ROOT / "notebooks",
    out_dir: Path = ROOT / "build",
    ranges_path: Path = ROOT / "tests" / "ranges.toml",
) -> list[str]:
    """Execute notebooks in order and check what they recorded; returns the lines of `results.check`.

    Everything that can be known to be wrong is refused before the first notebook starts.

    Parameters
    ----------
    only, skip
        Numbers or names of notebooks ("01", "00,01", "01_quantize_mmbert"); default all but `LEFT_OUT`.
    everything
        Include `LEFT_OUT`. So do `full` and naming it in `only`.
    full
        FAST = False.
    model, data, parameters
        MODEL, DATA and further parameters, all as typed; each goes to the notebooks that declare it.

    Raises
    ------
    InputError
        Unknown notebook or parameter, a notebook without parameters cell, a MODEL or DATA that cannot be used.
    NotebookFailed
        A cell raised, or the kernel died. The notebook so far is in out_dir/executed/<name>.failed.ipynb.
    OSError
        out_dir cannot be written.
    """
    first = MAKES_THE_MODEL if full else None
    notebooks = select(find(notebooks_dir), only=only, skip=skip, everything=everything or full, first=first)
    given = {name: value for name, value in (("MODEL", model), ("DATA", data)) if value is not None}
    assign(notebooks, given, parameters, fast=not full)  # refuses what costs nothing to refuse
    embedded = True
    if model is not None:
        given["MODEL"], embedded = _checked_model(model)
    if data is not None:
        given["DATA"] = _checked_data(data)
    passed = assign(notebooks, given, parameters, fast=not full)
    usual = {"FAST", "MODEL"} if embedded else {"FAST"}  # the embedded model has two names, and is nobody's own
    own = {n.stem: differs(passed[n.stem], declared(n), but=usual) for n in notebooks}
    results.load_ranges(ranges_path)  # a mistake in there should not wait for the last notebook

    out_dir, started = out_dir.resolve(), time.strftime("%Y-%m-%d %H:%M:%S%z")
    (out_dir / "report.html").unlink(missing_ok=True)  # an old report must not speak for a run that fails
    with tqdm(notebooks, unit="notebook", desc="course") as bar:
        for notebook in bar:
            bar.set_postfix_str(notebook.stem)
            content = execute(notebook, passed[notebook.stem], out_dir, own=own[notebook.stem], run=started)
            bar.write(f"{notebook.stem}: {content['seconds']:.0f} s, {content['peak_mb']:.0f} MB", file=sys.stdout)
    problems = results.check(out_dir / "results", ranges_path, [notebook.stem for notebook in notebooks])
    report.build(out_dir, ranges_path)
    return problems


def find(notebooks_dir: Path) -> list[Path]:
    """The course's notebooks in order: 00 .. 09, then the appendices A1, A2."""
    found = sorted(path for path in notebooks_dir.glob("*.ipynb") if re.match(r"(\d\d|A\d)_", path.name))
    if not found:
        raise InputError(f"no notebook in {notebooks_dir}: expected files like 00_start_here.ipynb")
    return found


def select(
    notebooks: Sequence[Path], *, only: str | None = None, skip: str | None = None, everything: bool = False,
    first: str | None = None,
) -> list[Path]:  # fmt: skip
    """Choose notebooks by number or name, in the course's order; an unknown one is refused with the known ones.

    The one with the number `first`, if it is chosen, comes before the others.
    """

    def named(text: str, option: str) -> set[Path]:
        chosen = set()
        for word in filter(None, (word.strip().removesuffix(".ipynb") for word in text.split(","))):
            hits = {n for n in notebooks if word.lower() in (n.stem.lower(), n.stem.split("_")[0].lower())}
            if not hits:
                known = ", ".join(n.stem for n in notebooks)
                raise InputError(f"{option} {word}: no such notebook: choose from {known}")
            chosen |= hits
        return chosen

    if only is not None:
        chosen = named(only, "--only")
    else:
        chosen = {n for n in notebooks if everything or n.stem.split("_")[0] not in LEFT_OUT}
    if skip is not None:
        chosen -= named(skip, "--skip")
    if not chosen:
        raise InputError(f"nothing to run: --only {only} --skip {skip} leaves no notebook: name at least one")
    return sorted((n for n in notebooks if n in chosen), key=lambda n: n.stem.split("_")[0] != first)


def declared(notebook: Path) -> dict[str, object]:
    """What the cell tagged `parameters` assigns: name -> default, `_NO_LITERAL` for a default that is computed.

    Raises InputError if the file is no notebook, or has no such cell (papermill would only warn and change nothing).
    """
    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except (ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        raise InputError(f"{notebook.name}: not a readable notebook ({type(error).__name__}): save it again") from None
    for cell in cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            break
    else:
        raise InputError(f"{notebook.name}: no code cell is tagged 'parameters': add the tag to the one with FAST")
    try:
        statements = ast.parse(cell.source).body
    except SyntaxError as error:
        raise InputError(f"{notebook.name}: line {error.lineno} of the parameters cell is not Python: fix it") from None
    defaults: dict[str, object] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = _literal(statement.value, _NO_LITERAL) if statement.value else _NO_LITERAL
            defaults.update({target.id: value for target in targets if isinstance(target, ast.Name)})
    return defaults


def assign(
    notebooks: Sequence[Path], values: Mapping[str, object], typed: Mapping[str, str] | None = None, *, fast: bool
) -> dict[str, dict[str, object]]:
    """Which notebook gets which parameters: FAST all of them, the others those that declare them.

    Parameters
    ----------
    values
        Parameters as the notebooks get them.
    typed
        Parameters as they were typed: the text itself where a notebook's default is a text (SENTENCE=12 is a
        sentence), else the Python literal that it can be read as, else the text.

    Raises
    ------
    InputError
        For a parameter that no selected notebook declares, and for a notebook without FAST.
    """
    defaults, typed = {notebook.stem: declared(notebook) for notebook in notebooks}, typed or {}
    known = set().union(*defaults.values())
    for name in [*typed, *values]:
        if name not in known:
            raise InputError(f"{name}: no selected notebook has this parameter; they have {', '.join(sorted(known))}")
    passed = {}
    for stem, declares in defaults.items():
        if "FAST" not in declares:
            raise InputError(f"{stem}: its parameters cell does not set FAST: add FAST = True")
        read = {
            name: text if isinstance(declares[name], str) else _literal(text, text)
            for name, text in typed.items()
            if name in declares
        }
        _refuse_seed(read)
        passed[stem] = {"FAST": fast, **read, **{name: v for name, v in values.items() if name in declares}}
    return passed


def _refuse_seed(parameters: Mapping[str, object]) -> None:
    """Raise InputError for a SEED that numpy would refuse minutes later, in the middle of a notebook."""
    seed = parameters.get("SEED", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"-p SEED={seed}: give a whole number, 0 or more")


def differs(parameters: Mapping[str, object], defaults: Mapping[str, object], *, but: Collection[str]) -> bool:
    """Whether a notebook gets any parameter, `but` apart, with another value than its own cell gives it."""
    return any(value != defaults[name] for name, value in parameters.items() if name not in but)


def execute(
    notebook: Path, parameters: Mapping[str, object], out_dir: Path, *, own: bool = False, run: str = ""
) -> dict:
    """Execute one notebook; returns the content of its results file. Raises NotebookFailed.

    own: it runs on another MODEL, DATA or parameter than its defaults, where some ranges do not hold.
    run: when the run that it belongs to began; the report tells by it which notebooks were run together.
    Writes out_dir/executed/<name>.ipynb, out_dir/html/<name>.html and out_dir/results/<name>.json.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError

    name, executed, figures = notebook.stem, out_dir / "executed", out_dir / "results"
    done, failed, running = (executed / f"{name}{end}.ipynb" for end in ("", ".failed", ".running"))
    page = out_dir / "html" / f"{name}.html"
    executed.mkdir(parents=True, exist_ok=True)
    figures.mkdir(parents=True, exist_ok=True)
    for stale in (done, failed, page, figures / f"{name}.json"):
        stale.unlink(missing_ok=True)  # an old success must not stand in for a new failure

    variables = {
        **_ENVIRONMENT,
        "COURSE_NOTEBOOK": name,
        "COURSE_RESULTS": str(figures),
        "COURSE_OWN": "1" if own else "",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    began, finished = time.perf_counter(), False
    try:
        with _environment(variables), PeakMemory() as memory:
            papermill.execute_notebook(
                str(notebook),
                str(running),
                parameters=dict(parameters),
                cwd=str(notebook.parent),
                kernel_name="python3",
                kernel_manager_class=_kernel_manager(),
                # cells of the running notebook below the bar over notebooks, but not in a log file
                progress_bar={"desc": name, "leave": False, "position": 1} if sys.stderr.isatty() else False,
                start_timeout=120,
            )
        finished = True
    except papermill.exceptions.PapermillExecutionError as error:
        raise NotebookFailed(_failure(name, error, running, failed)) from None
    except DeadKernelError:
        cell = _running_cell(running)
        raise NotebookFailed(
            f"{name} failed: the kernel died in cell {cell} (out of memory?)\nkept: {failed}"
        ) from None
    finally:
        if running.exists():
            running.replace(done if finished else failed)

    content = results.finish(
        name,
        figures,
        seconds=time.perf_counter() - began,
        peak_mb=memory.peak_mb,
        fast=bool(parameters["FAST"]),
        own=own,
        run=run,
        finished=time.strftime("%Y-%m-%d %H:%M:%S%z"),
    )
    nb = nbformat.read(done, as_version=4)
    describe_pictures(nb)
    write_whole(done, nbformat.writes(nb))
    write_whole(page, _html(nb, name))
    return content


class PeakMemory:
    """Highest sum of resident memory of this process's children and theirs, in MB (10^6 bytes), while inside `with`.

    Pages that several processes share count once for each, so the sum is never below what is really used.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self.peak_mb = 0.0
        self._interval, self._stop = interval, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        runner = psutil.Process()
        while not self._stop.wait(self._interval):
            total = 0
            for child in runner.children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it may end between the two questions
                    total += child.memory_info().rss
            self.peak_mb = max(self.peak_mb, total / 1e6)


def describe_pictures(nb: nbformat.NotebookNode) -> None:
    """Give every PNG an alternative text, in the output's metadata where the pages and the report look for it.

    It is the cell's metadata `alt` if the author wrote one, else the heading above the picture.
    """
    heading = "Picture"
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            for match in re.finditer(r"^#+\s+(.+)$", cell.source, re.MULTILINE):
                heading = match.group(1).strip()
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                text = cell.metadata.get("alt") or f"Picture: {heading}"
                output.metadata.setdefault("image/png", {})["alt"] = text


def _failure(name: str, error: Exception, running: Path, failed: Path) -> str:
    """What a person needs to see: notebook, cell, its source, the error. An InputError is only its one line."""
    cell = error.cell_index + 1
    tags = [cell.metadata.get("tags", []) for cell in nbformat.read(running, as_version=4).cells]
    tags = [t for t in tags if "papermill-error-cell-tag" not in t]
    # papermill adds a cell with the parameters: count as the reader does, in the notebook that is in the repository
    cell -= sum("injected-parameters" in t for t in tags[: error.cell_index])
    if error.ename in {cls.__name__ for cls in (InputError, *InputError.__subclasses__())}:
        told = error.evalue
    else:
        told = _COLOURS.sub("", "\n".join(error.traceback)) or f"{error.ename}: {error.evalue}"
    source = "\n".join(f"    {line}" for line in error.source.splitlines())
    return f"{name} failed in cell {cell} (In [{error.exec_count}]):\n{source}\n{told}\nkept: {failed}"


def _running_cell(running: Path) -> int | str:
    """Number of the cell that was being executed, counted as in the repository's notebook."""
    if running.exists():
        cells = nbformat.read(running, as_version=4).cells
        cells = [cell for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]
        started = [n for n, cell in enumerate(cells, 1) if cell.metadata.get("papermill", {}).get("start_time")]
        if started:
            return started[-1]  # papermill calls it completed, like every cell after it
    return "unknown"


def _html(nb: nbformat.NotebookNode, name: str) -> str:
    """The executed notebook as one page that loads nothing from anywhere."""
    from nbconvert import HTMLExporter

    from helpers.course.slides import without_widgets

    exporter = HTMLExporter(extra_template_basedirs=[str(ROOT / "slides")], template_name="page")
    body, _ = exporter.from_notebook_node(without_widgets(nb), {"metadata": {"name": name}})
    return body


def _kernel_manager() -> type:
    """A kernel manager that starts ipykernel with this very interpreter.

    The kernelspec called python3 may be anybody's: a user-wide one wins over the environment's. Without folders to
    look in, jupyter_client falls back to the native spec, which is the running interpreter.
    """
    import zmq
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager

    class ThisInterpreter(AsyncKernelManager):
        def _kernel_spec_manager_default(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])

        def _transport_encryption_default(self) -> str:
            return "auto" if zmq.has("curve") else "disabled"  # else every kernel warns that others may listen

    return ThisInterpreter


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, which kernels inherit, and put the old ones back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _assignments(texts: Sequence[str]) -> dict[str, str]:
    """Every NAME=VALUE from the command line, as name -> text; one name twice is a mistake, not an order."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"-p {text}: write it as NAME=VALUE")
        if name in ("FAST", "MODEL", "DATA"):
            instead = {"FAST": "--full", "MODEL": "--model", "DATA": "--data"}[name]
            raise InputError(f"-p {text}: use {instead}")
        if name in found:
            raise InputError(f"-p {text}: {name} is given already, as {found[name]}: give it once")
        found[name] = value
    return found


def _literal(source: str | ast.expr, otherwise: object) -> object:
    """The value of a Python literal, or `otherwise`. Not all that parses has a value: {[]: 1} has none."""
    try:
        return ast.literal_eval(source)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return otherwise


def _checked_model(model: str) -> tuple[str, bool]:
    """MODEL as the notebooks get it, and whether it is the embedded one.

    Raises InputError if it is not to be had. The hub may be out of reach and a folder's weights may be broken, so the
    model is loaded once, here, before minutes of notebooks depend on it; a hub model is in the cache from then on.
    """
    from helpers.encode.load import load_torch, resolve

    source = resolve(model)
    if source.kind == "mini":
        return source.name, True  # one name for it: A1 keeps what it trains only under the name that others look for
    load_torch(source)
    # notebooks run in their own folder, so a relative folder would point elsewhere there
    return str(Path(source.path_or_repo).resolve()) if source.kind == "folder" else model, False


def _checked_data(data: str) -> str:
    """DATA as an absolute path; raises InputError if the file is missing or not usable."""
    from helpers.data import own

    advice = "give the path of a CSV or parquet file with text,label"
    try:
        path = Path(data).expanduser().resolve()
        there = path.is_file()
    except (OSError, RuntimeError) as error:  # a name too long, the home of a user who does not exist
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        shown = data if len(data) <= 80 else f"{data[:80]}..."
        raise InputError(f"DATA {shown}: {reason}: {advice}") from None
    if not there:
        raise InputError(f"DATA {data}: no such file: {advice}")
    own(path)
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
