"""What a full run leaves behind: the model's folder, its scores, and the card that is written from them."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from transformers import ModernBertModel, PreTrainedTokenizerFast

from helpers.distil.train import Schedule


def save_model(
    student: ModernBertModel,
    tokenizer: PreTrainedTokenizerFast,
    history: pd.DataFrame,
    schedule: Schedule,
    about: dict,
    folder: Path,
) -> None:
    """Weights in half precision (safetensors), tokenizer and training.json; the folder appears whole or not at all.

    Parameters
    ----------
    history : what `train` gave back.
    about : what else a reader should know of the run, for training.json: data counts, versions, machine.
    folder : replaced.
    """
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    copy.deepcopy(student).half().save_pretrained(part)
    tokenizer.save_pretrained(part)
    loss = history.groupby(history.step // 100).agg(cosine=("cosine", "mean"), contrast=("contrast", "mean")).round(4)
    training = {
        "schedule": asdict(schedule),
        "steps": len(history),
        "texts": int(history.texts.sum()),
        "tokens": int(history.tokens.sum()),
        "minutes": round(float(history.seconds.iloc[-1]) / 60),
        "loss_per_100_steps": loss.to_dict("list"),
        **about,
    }
    (part / "training.json").write_text(json.dumps(training, indent=1), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def score_frames(frame: pd.DataFrame, fast: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows of the commands; in fast mode two of a training block and three of a test block.

    Every block stays in, so that fast scores are noisier but of the same thing.
    """
    train, test = frame[frame.split == "train"], frame[frame.split == "test"]
    if fast:
        train, test = (part.groupby("cluster", sort=False).head(n) for part, n in ((train, 2), (test, 3)))
    return train.reset_index(drop=True), test.reset_index(drop=True)


CARD = Path(__file__).with_name("card.md")
"""The model card with {names} that `write` fills."""


def write(folder: Path, scores: pd.DataFrame, seeds: int) -> None:
    """README.md and scores.json in the model's folder, from a full run's scores and training.json.

    Parameters
    ----------
    scores : one row a task, as the notebook shows it.
    seeds : how many draws of examples a score is the mean of.
    """
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    known = {key: value for key, value in training.items() if isinstance(value, str | int | float)}
    known |= {"seeds": seeds, "contrast": training["schedule"]["contrast"]}
    text = CARD.read_text(encoding="utf-8").format(**known, scores=_table(scores))
    for name, content in (("README.md", text), ("scores.json", scores.to_json(orient="index", indent=1))):
        (part := folder / f"{name}.part").write_text(content, encoding="utf-8")
        part.replace(folder / name)


def _table(scores: pd.DataFrame) -> str:
    """Three decimals, and nothing where nothing was measured."""
    return scores.map(lambda score: "" if pd.isna(score) else f"{score:.3f}").to_markdown(disable_numparse=True)
