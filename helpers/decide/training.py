"""Ways to teach an encoder from few texts, each by the library that is made for it.

`adapt` (setfit) and `finetune` (transformers) need labels, `denoised` (sentence-transformers) only texts. None of them
changes the model that it is given: they train a copy.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from helpers.encode.encoder import checked
from helpers.encode.quiet import quiet
from helpers.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from setfit import SetFitModel
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

HEAD_RATE = 10  # times the encoder's rate: a head that begins at random has further to go


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    Attributes
    ----------
    steps
        Batches.
    rate
        The learning rate at its highest: it rises over the first tenth of the steps, then falls linearly to 0.
    batch
        Pairs a batch for `adapt`, texts for the others.
    max_tokens
        Where texts are cut while training.
    seed
        Of everything drawn.

    Raises
    ------
    InputError
        If a number is not above 0.
    """

    steps: int = 150
    rate: float = 1e-4
    batch: int = 16
    max_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or not 0 < self.rate < np.inf or self.max_tokens < 3:
            raise InputError(
                f"schedule: steps={self.steps}, batch={self.batch}, rate={self.rate}, max_tokens={self.max_tokens}: "
                "give 1, 1, more than 0 and 3 at least"
            )


class Pairs(NamedTuple):
    """How many pairs there are, and how many of them are read."""

    alike: int
    unlike: int
    read: int

    def __str__(self) -> str:
        return f"{self.alike:,} pairs of one class, {self.unlike:,} of two: {self.read:,} are read"


def count_pairs(labels: Sequence[str], schedule: Schedule) -> Pairs:
    """Pairs that setfit makes of n labelled texts, a text with itself among those of one class, and the cap's."""
    counts = np.unique(np.asarray(labels), return_counts=True)[1]
    alike, n = int((counts * (counts + 1) // 2).sum()), int(counts.sum())
    return Pairs(alike, n * (n + 1) // 2 - alike, schedule.steps * schedule.batch)


def adapt(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], labels: Sequence[str],
    schedule: Schedule, *, loss: type | None = None, c: float | None = None,
    within: Callable[[PreTrainedModel], AbstractContextManager[Any]] | None = None, progress: bool = False,
) -> SetFitModel:  # fmt: skip
    """SetFit: teach a copy of the encoder by pairs of texts, then fit a logistic regression on what it says of them.

    Source: Tunstall et al. 2022, arXiv:2209.11055; the training is setfit's own Trainer.

    Parameters
    ----------
    model, tokenizer
        What `load_torch` returned.
    texts, labels
        n texts and their classes.
    schedule
        Its steps cap the pairs (`count_pairs`).
    loss
        A loss of sentence-transformers over pairs with a label of 0 or 1, as setfit takes it; default
        CosineSimilarityLoss.
    c
        scikit-learn's C of the head; default as in `fit_probe`.
    within
        Makes a context from the copy in which it is trained, such as `helpers.encode.fakequant.fake_quantized`.
    progress
        Show setfit's progress bar.

    Returns
    -------
    setfit.SetFitModel
        With `predict_proba` and `predict` for texts. `encoder_of` gives the encoder in it.

    Raises
    ------
    InputError
        If a text is empty or no text, there is not one label a text, or there are fewer than 2 classes.
    """
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
    from setfit import SetFitModel, Trainer, TrainingArguments
    from sklearn.linear_model import LogisticRegression

    from helpers.decide.probe import C

    texts, labels = _labelled("adapt", texts, labels)
    head = LogisticRegression(C=C if c is None else c, max_iter=1000, random_state=schedule.seed)
    with tempfile.TemporaryDirectory() as folder, quiet(), _no_bars_of_datasets():
        body = sentence_transformer(model, tokenizer, schedule.max_tokens)
        taught = SetFitModel(model_body=body, model_head=head)
        arguments = TrainingArguments(
            output_dir=folder, batch_size=schedule.batch, max_steps=schedule.steps, seed=schedule.seed,
            body_learning_rate=schedule.rate, loss=loss or CosineSimilarityLoss, report_to="none", save_strategy="no",
            logging_strategy="no", logging_first_step=False, show_progress_bar=progress,
        )  # fmt: skip
        trainer = Trainer(taught, arguments, train_dataset=_dataset(texts, labels))
        _show(trainer, progress)  # setfit hands its own setting on to the head's training only
        with within(encoder_of(taught)) if within else contextlib.nullcontext():
            trainer.train()
    encoder_of(taught).eval()
    return taught


def measure_adapt(
    model: str, texts: Sequence[str], labels: Sequence[str], steps: int, rate: float, max_tokens: int = 64
) -> dict[str, float]:
    """What one `adapt` costs; meant for a fresh process (`helpers.course.bench.peak_rss`).

    Parameters
    ----------
    model
        A name for `load_torch`.
    texts, labels, steps, rate, max_tokens
        As in `adapt` and `Schedule`.

    Returns
    -------
    dict
        seconds and cpu_seconds of the training (all threads together), without imports and loading.
    """
    import time

    from helpers.encode.load import load_torch

    loaded = load_torch(model)
    adapt(*loaded, texts, labels, Schedule(steps=1, max_tokens=max_tokens))  # imports, and warms up
    began, cpu = time.perf_counter(), time.process_time()
    adapt(*loaded, texts, labels, Schedule(steps=steps, rate=rate, max_tokens=max_tokens))
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}


def encoder_of(taught: SetFitModel) -> PreTrainedModel:
    """The encoder in a SetFit model, ready for `TorchEncoder` and `export`."""
    return taught.model_body[0].auto_model


def sentence_transformer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_tokens: int
) -> SentenceTransformer:
    """A copy of the encoder as sentence-transformers has it: mean over tokens, scaled to length 1."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    with _saved(model, tokenizer) as folder:
        body = Transformer(str(folder), max_seq_length=max_tokens)
    pooling = Pooling(model.config.hidden_size, pooling_mode="mean")
    return SentenceTransformer(modules=[body, pooling, Normalize()], device="cpu")


@dataclass(frozen=True)
class FineTuned:
    """An encoder and its head, trained together. Made by `finetune`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    labels: np.ndarray
    max_tokens: int

    def predict(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """The likeliest class of each text, (n,)."""
        import torch

        texts, answers = checked(texts), []
        with torch.inference_mode():
            for start in range(0, len(texts), batch_size):
                batch = self.tokenizer(
                    texts[start : start + batch_size], truncation=True, max_length=self.max_tokens, padding=True,
                    return_tensors="pt",
                )  # fmt: skip
                answers += self.model(**batch).logits.argmax(dim=1).tolist()
        return self.labels[answers]


def finetune(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], labels: Sequence[str],
    schedule: Schedule, *, progress: bool = False,
) -> FineTuned:  # fmt: skip
    """Ordinary fine-tuning: a copy of the encoder and a new head on its mean are trained together by cross-entropy.

    transformers' Trainer with AutoModelForSequenceClassification. The head begins at random and learns `HEAD_RATE`
    times as fast as the encoder.

    Parameters and errors are those of `adapt`.
    """
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        get_linear_schedule_with_warmup,
        set_seed,
    )

    texts, labels = _labelled("finetune", texts, labels)
    names, numbers = np.unique(labels, return_inverse=True)
    set_seed(schedule.seed)
    with _saved(model, tokenizer) as folder, quiet():
        pooled = {"classifier_pooling": "mean"} if model.config.model_type == "modernbert" else {}
        copy = AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=len(names), local_files_only=True, **pooled
        )
    kept = {id(parameter) for parameter in copy.base_model.parameters()}
    groups = [
        {"params": [p for p in copy.parameters() if id(p) in kept], "lr": schedule.rate},
        {"params": [p for p in copy.parameters() if id(p) not in kept], "lr": HEAD_RATE * schedule.rate},
    ]
    rows = [
        {**tokenizer(text, truncation=True, max_length=schedule.max_tokens), "labels": int(number)}
        for text, number in zip(texts, numbers, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups)
    falling = get_linear_schedule_with_warmup(optimizer, schedule.steps // 10, schedule.steps)
    with tempfile.TemporaryDirectory() as folder, quiet():
        arguments = TrainingArguments(
            folder, max_steps=schedule.steps, per_device_train_batch_size=schedule.batch, seed=schedule.seed,
            report_to="none", save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=not progress,
        )  # fmt: skip
        trainer = Trainer(copy, arguments, DataCollatorWithPadding(tokenizer), rows, optimizers=(optimizer, falling))
        _show(trainer, progress)
        trainer.train()
    return FineTuned(copy.eval(), tokenizer, names, schedule.max_tokens)


def denoised(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], schedule: Schedule, *,
    share: float = 0.3, progress: bool = False,
) -> PreTrainedModel:  # fmt: skip
    """Domain adaptation without labels: a copy of the encoder learns to find a text's other half among a batch's.

    Two copies of each text lose words at random, and their vectors should be nearer to each other than to those of the
    other texts in the batch. Source: Gao et al. 2021, arXiv:2104.08821 (the objective), and Wang et al. 2021,
    arXiv:2104.06979 (deletion as noise); the training is sentence-transformers' own.

    Parameters
    ----------
    model, tokenizer, schedule, progress
        As in `adapt`; a step reads `batch` texts.
    texts
        Unlabelled texts of the kind that will be served; never test texts.
    share
        Of the words that a copy loses, above 0 and below 1; of a text with fewer than three words, of its characters.

    Returns
    -------
    The adapted encoder.

    Raises
    ------
    InputError
        If a text is empty or no text, or the share is not between 0 and 1.
    """
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    if not 0 < share < 1:
        raise InputError(f"denoised: share={share}: give a number above 0 and below 1")
    texts, rng = checked(texts), np.random.default_rng(schedule.seed)
    drawn = rng.choice(len(texts), schedule.steps * schedule.batch)  # as many as are read
    copies = {side: [_deleted(texts[row], share, rng) for row in drawn] for side in ("one", "other")}
    with tempfile.TemporaryDirectory() as folder, quiet(), _no_bars_of_datasets():
        body = sentence_transformer(model, tokenizer, schedule.max_tokens)
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=schedule.steps, per_device_train_batch_size=schedule.batch, learning_rate=schedule.rate,
            warmup_ratio=0.1, seed=schedule.seed, report_to="none", save_strategy="no", logging_strategy="no",
            use_cpu=True, disable_tqdm=not progress,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            body, arguments, Dataset.from_dict(copies), loss=MultipleNegativesRankingLoss(body)
        )
        _show(trainer, progress)
        trainer.train()
    return body[0].auto_model.eval()


def _deleted(text: str, share: float, rng: np.random.Generator) -> str:
    """The text without about `share` of its words, at least one of which stays."""
    parts, between = (text.split(), " ") if len(text.split()) > 2 else (list(text), "")
    kept = [part for part in parts if rng.random() >= share and part.strip()]
    return between.join(kept) or max(parts, key=len)


def _show(trainer: Any, progress: bool) -> None:
    """A progress bar or nothing: transformers picks one of three ways to print, by where it runs."""
    from transformers import PrinterCallback, ProgressCallback
    from transformers.utils.notebook import NotebookProgressCallback

    for way in (PrinterCallback, ProgressCallback, NotebookProgressCallback):
        trainer.remove_callback(way)
    if progress:
        trainer.add_callback(ProgressCallback)


def _dataset(texts: list[str], labels: list[str]) -> Dataset:
    from datasets import Dataset

    return Dataset.from_dict({"text": texts, "label": labels})


@contextlib.contextmanager
def _no_bars_of_datasets() -> Iterator[None]:
    """A progress bar for each conversion, which takes a millisecond, says nothing."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _labelled(where: str, texts: Sequence[str], labels: Sequence[str]) -> tuple[list[str], list[str]]:
    texts, labels = checked(texts), [str(label) for label in labels]
    if len(texts) != len(labels):
        raise InputError(f"{where}: {len(texts)} texts, {len(labels)} labels: give one for each")
    if len(set(labels)) < 2:
        raise InputError(f"{where}: {len(set(labels))} class in {len(texts)} examples: give examples of 2 at least")
    return texts, labels


@contextlib.contextmanager
def _saved(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Iterator[Path]:
    """A folder that transformers reads model and tokenizer from: the way to a copy that every library understands."""
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
        yield Path(name)
