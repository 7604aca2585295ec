"""A saved classifier answers as the one that was fitted, and a folder that is not what was saved is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from helpers import data
from helpers.decide.classifier import Head, fingerprint, load, save, serving_policy
from helpers.decide.fewshot import examples
from helpers.decide.probe import fit_probe
from helpers.encode import OnnxEncoder, TorchEncoder
from helpers.encode.graph import sha256
from helpers.errors import InputError


@pytest.fixture(scope="module")
def taught() -> pd.DataFrame:
    frame = data.commands(seed=0).query("split == 'train' and language == 'en'")
    frame = frame[frame.label.isin(["HassTurnOn", "HassTurnOff", "HassLightSet", "HassGetState"])]
    return frame.iloc[examples(frame.label, 8, seed=0)]


@pytest.fixture(scope="module")
def asked() -> list[str]:
    return data.commands(seed=0).query("split == 'test' and language == 'en'").text.iloc[:60].tolist()


@pytest.fixture(scope="module")
def made(taught, mini_report, mini_torch, tmp_path_factory) -> SimpleNamespace:
    """A saved classifier, and the scikit-learn head that it was made of."""
    encoder = OnnxEncoder(mini_report.path, mini_torch[1])
    fitted = fit_probe(encoder.encode(taught.text.tolist()), taught.label)
    folder = tmp_path_factory.mktemp("saved") / "classifier"
    saved = save(folder, mini_report.path, mini_torch[1], Head.of(fitted), taught, scores={"macro_f1": 0.5}, model="m")
    return SimpleNamespace(folder=folder, encoder=encoder, fitted=fitted, saved=saved)


@pytest.fixture
def copy(made, tmp_path: Path) -> Path:
    return shutil.copytree(made.folder, tmp_path / "copy")


def test_it_answers_as_the_head_that_was_fitted(made, taught, asked) -> None:
    expected = made.fitted.predict_proba(made.encoder.encode(asked))
    for classifier in (made.saved, load(made.folder, threads=1)):
        np.testing.assert_allclose(classifier.predict_proba(asked), expected, atol=1e-6)
        assert classifier.labels == tuple(made.fitted.classes_)
        assert (classifier.predict(asked) == made.fitted.predict(made.encoder.encode(asked))).all()
    assert made.saved.about["data"] == {"rows": len(taught), "sha256": fingerprint(taught[::-1])}
    assert made.saved.about["scores"] == {"macro_f1": 0.5} and made.saved.about["model"] == "m"


def test_before_quantisation_it_answers_as_torch_does(taught, asked, mini_onnx, mini_torch, tmp_path: Path) -> None:
    torch_encoder = TorchEncoder(*mini_torch)
    fitted = fit_probe(torch_encoder.encode(taught.text.tolist()), taught.label)
    found = save(tmp_path / "fp32", mini_onnx, mini_torch[1], Head.of(fitted), taught).predict(asked)
    assert (found == fitted.predict(torch_encoder.encode(asked))).all()


def test_two_classes_and_a_small_folder_without_pickle(made, taught, asked) -> None:
    two = taught[taught.label.isin(["HassTurnOn", "HassTurnOff"])]
    fitted = fit_probe(made.encoder.encode(two.text.tolist()), two.label)
    vectors = made.encoder.encode(asked)
    np.testing.assert_allclose(Head.of(fitted).predict_proba(vectors), fitted.predict_proba(vectors), atol=1e-6)
    files = list(made.folder.iterdir())
    assert {path.suffix for path in files} == {".onnx", ".json", ".safetensors"}
    assert sum(path.stat().st_size for path in files) < 20e6


def rewrite(folder: Path, **changes) -> None:
    """Change classifier.json as somebody with an editor would."""
    card = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
    (folder / "classifier.json").write_text(json.dumps({**card, **changes}), encoding="utf-8")


def card(folder: Path) -> dict:
    return json.loads((folder / "classifier.json").read_text(encoding="utf-8"))


def other_head(folder: Path) -> None:
    """A head for vectors of another width, with its hash put right."""
    head = load_file(folder / "head.safetensors")
    labels = {"labels": json.dumps(card(folder)["labels"])}
    save_file({**head, "weights": head["weights"][:, :5].copy()}, folder / "head.safetensors", metadata=labels)
    rewrite(folder, files={**card(folder)["files"], "head.safetensors": sha256(folder / "head.safetensors")})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda f: (f / "classifier.json").unlink(), "give a folder that save wrote"),
        (lambda f: (f / "classifier.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "encoder.onnx").open("ab").write(b"\0"), "encoder.onnx was changed"),
        (lambda f: rewrite(f, labels=card(f)["labels"][::-1]), "in another order"),
        (lambda f: rewrite(f, policy={**card(f)["policy"], "batch": 32}), None),
        (
            lambda f: rewrite(f, policy={**card(f)["policy"], "recipe": "int4+int4"}),
            "recipe='int4\\+int4', this machine",
        ),
        (lambda f: rewrite(f, policy={"max_tokens": 512}), "no batch in its policy"),
        (lambda f: rewrite(f, format=2), "not of format 1"),
        (lambda f: rewrite(f, files=[]), "has no files"),
        (other_head, "vectors of 5 numbers, the encoder gives 256"),
    ],
)
def test_a_folder_that_was_changed_is_refused_in_one_line(copy: Path, change, message: str | None) -> None:
    change(copy)
    if message is None:  # another batch size is served as the folder says, and refused to who asks for the first
        assert load(copy).policy["batch"] == 32
        message = "made with batch=32, you ask for it with batch=1"
    with pytest.raises(InputError, match=message) as error:
        load(copy, policy={"batch": 1})
    assert "\n" not in str(error.value)


def test_save_replaces_a_classifier_and_nothing_else(made, copy: Path, taught, mini_torch, tmp_path: Path) -> None:
    arguments = (copy / "encoder.onnx", mini_torch[1], made.saved.head, taught)
    again = save(tmp_path / "again", *arguments, max_tokens=64)
    assert again.policy["max_tokens"] == 64
    assert save(tmp_path / "again", *arguments).policy == serving_policy(made.encoder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(InputError, match="is no classifier"):
        save(tmp_path / "mine", *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "copy", "mine"]


@pytest.mark.parametrize(
    ("weights", "labels", "message"),
    [
        (np.zeros((2, 4)), ("a",), "2 or more"),
        (np.zeros((2, 4)), ("a", "a"), "each once"),
        (np.zeros((3, 4)), ("a", "b"), "one row and one bias"),
        (np.full((2, 4), np.nan), ("a", "b"), "not finite"),
    ],
)
def test_what_is_no_head(weights: np.ndarray, labels: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Head(weights, np.zeros(len(weights)), labels)
