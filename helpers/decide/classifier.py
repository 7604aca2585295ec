"""A finished classifier is one folder: everything that an answer depends on, and nothing that could run by itself.

    encoder.onnx       the encoder, its recipe in its metadata
    tokenizer.json
    head.safetensors   weights (classes, hidden) and biases (classes,) of the head
    classifier.json    labels in the order of the head's rows, serving policy, hashes of the files, what it was taught

No pickle: safetensors and JSON hold numbers and text only, so a folder from a stranger can be wrong, but not run code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.encode.encoder import OnnxEncoder
from helpers.encode.graph import sha256
from helpers.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.linear_model import LogisticRegression
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

FORMAT = 1
_FILES = ("encoder.onnx", "tokenizer.json", "head.safetensors")
_CARD = "classifier.json"
_HEAD = {"weights": 2, "biases": 1}  # name -> number of dimensions
_OWN = ("threads",)  # of a policy: what each machine chooses for itself, since no answer depends on it


@dataclass(frozen=True)
class Head:
    """A linear head: softmax(embeddings @ weights.T + biases).

    Attributes
    ----------
    weights, biases
        Float64 (classes, hidden) and (classes,).
    labels
        The class of each row.

    Raises
    ------
    InputError
        If shapes and labels do not fit together, a label stands twice, there are fewer than 2, or a number is not
        finite.
    """

    weights: np.ndarray
    biases: np.ndarray
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            raise InputError(f"head: labels {', '.join(map(str, self.labels))}: give 2 or more, each once")
        if self.weights.ndim != 2 or len(self.weights) != len(self.labels) or self.biases.shape != (len(self.labels),):
            raise InputError(
                f"head: weights {self.weights.shape} and biases {self.biases.shape} for {len(self.labels)} labels: "
                "give one row and one bias for each label"
            )
        if not (np.isfinite(self.weights).all() and np.isfinite(self.biases).all()):
            raise InputError("head: a weight or bias is not finite: fit it again")

    @classmethod
    def of(cls, fitted: LogisticRegression) -> Head:
        """From scikit-learn's logistic regression, whose single row for two classes becomes two."""
        weights, biases = fitted.coef_, fitted.intercept_
        if len(fitted.classes_) == 2:  # sigmoid(z) = softmax(0, z)
            weights, biases = np.vstack([np.zeros_like(weights), weights]), np.append(0.0, biases)
        return cls(np.array(weights, float, order="C"), np.array(biases, float), tuple(map(str, fitted.classes_)))

    def predict_proba(self, embeddings: np.ndarray) -> np.ndarray:
        """Float64 (n, classes), rows that sum to 1, columns in the order of `labels`."""
        from scipy.special import softmax

        return softmax(np.asarray(embeddings, dtype=float) @ self.weights.T + self.biases, axis=1)


@dataclass(frozen=True)
class Classifier:
    """Texts to classes: an encoder and the head that was fitted on what this very encoder answers.

    Attributes
    ----------
    encoder
        As it is served; its policy is part of the classifier.
    head
        The head.
    about
        What classifier.json says besides: data, scores, model.
    """

    encoder: OnnxEncoder
    head: Head
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """Classes, in the order of the columns of `predict_proba`."""
        return self.head.labels

    @property
    def policy(self) -> dict[str, Any]:
        """What an answer depends on besides the files."""
        return serving_policy(self.encoder)

    def predict_proba(self, texts: Sequence[str]) -> np.ndarray:
        """Float64 (n, classes); raises InputError if a text is empty or none."""
        return self.head.predict_proba(self.encoder.encode(texts))

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """The likeliest class of each text, (n,)."""
        return np.array(self.labels)[self.predict_proba(texts).argmax(axis=1)]


def serving_policy(encoder: OnnxEncoder) -> dict[str, Any]:
    """The encoder's policy without what each machine chooses for itself."""
    return {key: value for key, value in encoder.policy.items() if key not in _OWN}


def fingerprint(rows: pd.DataFrame) -> str:
    """SHA-256 over the texts and labels of some rows, in hexadecimal; their order does not count."""
    pairs = sorted(zip(map(str, rows.text), map(str, rows.label), strict=True))
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()


def save(
    folder: str | Path, path: str | Path, tokenizer: PreTrainedTokenizerFast | Tokenizer, head: Head,
    rows: pd.DataFrame, *, scores: Mapping[str, float] | None = None, model: str = "", max_tokens: int | None = None,
) -> Classifier:  # fmt: skip
    """Write a classifier's folder, whole or not at all, and load it back.

    Parameters
    ----------
    folder
        Where to; a classifier that is there already is replaced, anything else is left alone and refused.
    path
        The encoder's .onnx file.
    tokenizer
        The model's tokenizer.
    head
        Fitted on what this encoder answers, one text a run.
    rows
        What the head was taught: `text` and `label`. Only their number and fingerprint are kept.
    scores
        Figures of the classifier, such as {"macro_f1": .81}.
    model
        What the encoder was made of.
    max_tokens
        Where texts are cut; default as the encoder's.

    Raises
    ------
    InputError
        If the folder holds something else, or the head does not fit the encoder.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and ((folder / _CARD).is_file() or not any(folder.iterdir()))):
        raise InputError(f"classifier: {folder} exists and is no classifier: give another folder")
    encoder = OnnxEncoder(path, tokenizer, **({"max_tokens": max_tokens} if max_tokens else {}))
    _check_fit(encoder, head, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as place:
        made = Path(place) / "made"
        made.mkdir()
        shutil.copyfile(path, made / "encoder.onnx")
        encoder.tokenizer.save(str(made / "tokenizer.json"))
        # safetensors writes an array's memory as it lies there, whatever its strides say.
        arrays = {"weights": np.ascontiguousarray(head.weights), "biases": np.ascontiguousarray(head.biases)}
        save_file(arrays, made / "head.safetensors", metadata={"labels": json.dumps(head.labels)})
        card = {
            "format": FORMAT,
            "model": model,
            "labels": head.labels,
            "policy": serving_policy(encoder),
            "data": {"rows": len(rows), "sha256": fingerprint(rows)},
            "scores": dict(scores or {}),
            "files": {name: sha256(made / name) for name in _FILES},
        }
        (made / _CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), encoding="utf-8")
        if folder.exists():
            folder.replace(Path(place) / "old")
        made.replace(folder)
    return load(folder)


def load(folder: str | Path, *, threads: int | None = None, policy: Mapping[str, Any] | None = None) -> Classifier:
    """Read a classifier's folder and check that it is whole.

    Parameters
    ----------
    folder
        What `save` wrote.
    threads
        Of its session; default the cores this process may use.
    policy
        How the caller is going to serve it (some or all of batch, max_tokens, recipe, reduce_range, provider). It must
        be how it was made: in another way the same text may get another answer.

    Raises
    ------
    InputError
        If a file is missing, was changed, or belongs to another one; the labels' order differs between files; or the
        policy, or this machine's, is another one.
    QuantizationError
        If its sums would overflow on this CPU.
    """
    folder = Path(folder)
    card = _read_card(folder)
    for name in _FILES:
        if not (folder / name).is_file():
            raise InputError(f"classifier: {folder.name} has no {name}: copy the whole folder")
        if sha256(folder / name) != card["files"].get(name):
            raise InputError(f"classifier: {folder.name}/{name} was changed after it was saved: save it again")
    head = _read_head(folder, card["labels"])
    settings = card["policy"]
    encoder = OnnxEncoder(
        folder / "encoder.onnx", folder / "tokenizer.json", batch_size=settings["batch"],
        max_tokens=settings["max_tokens"], threads=threads,
    )  # fmt: skip
    _check_fit(encoder, head, folder)
    for what, found in (("this machine serves it", serving_policy(encoder)), ("you ask for it", policy or {})):
        if other := {key: value for key, value in found.items() if settings.get(key) != value}:
            made = {key: settings.get(key) for key in other}
            raise InputError(
                f"classifier: {folder.name} was made with {_words(made)}, {what} with {_words(other)}: answers would "
                "differ, serve it as it was made or make it again"
            )
    return Classifier(encoder, head, {key: card[key] for key in ("model", "data", "scores")})


def _read_card(folder: Path) -> dict[str, Any]:
    try:
        card = json.loads((folder / _CARD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"classifier: {folder} has no {_CARD}: give a folder that save wrote") from None
    except (OSError, ValueError) as error:
        raise InputError(f"classifier: {folder.name}/{_CARD} cannot be read ({error}): save it again") from None
    kinds = {"model": str, "labels": list, "policy": dict, "data": dict, "scores": dict, "files": dict}
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise InputError(f"classifier: {folder.name}/{_CARD} is not of format {FORMAT}: save it again")
    for key, kind in kinds.items():
        if not isinstance(card.get(key), kind):
            raise InputError(f"classifier: {folder.name}/{_CARD} has no {key}: save it again")
    for key in ("batch", "max_tokens"):
        if type(card["policy"].get(key)) is not int:
            raise InputError(f"classifier: {folder.name}/{_CARD} has no {key} in its policy: save it again")
    return card


def _read_head(folder: Path, labels: list[str]) -> Head:
    from safetensors import SafetensorError, safe_open

    path = folder / "head.safetensors"
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            own = json.loads((file.metadata() or {}).get("labels", "null"))
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"classifier: {folder.name}/{path.name} cannot be read ({error}): save it again") from None
    if {name: array.ndim for name, array in arrays.items()} != _HEAD:
        raise InputError(f"classifier: {folder.name}/{path.name} holds {sorted(arrays)}: it is no head, save it again")
    if own != labels:
        raise InputError(
            f"classifier: {folder.name}: {_CARD} names other labels, or in another order, than the head has: an answer "
            "would get another's name, save it again"
        )
    return Head(arrays["weights"], arrays["biases"], tuple(labels))


def _check_fit(encoder: OnnxEncoder, head: Head, folder: Path) -> None:
    if encoder.hidden != head.weights.shape[1]:
        raise InputError(
            f"classifier: {folder.name}: the head reads vectors of {head.weights.shape[1]} numbers, the encoder gives "
            f"{encoder.hidden}: fit the head on this encoder"
        )


def _words(policy: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in policy.items())
