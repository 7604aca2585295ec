"""How the embedded model is made: each step on real texts, with a student small enough to train in a second."""

import json
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import ModernBertModel

from helpers import data
from helpers.data.translations import translations
from helpers.distil import card, corpus
from helpers.distil.student import new_student, piece_texts, student_config
from helpers.distil.teacher import batches, mean_pool, pad
from helpers.distil.train import Schedule, Source, loss_terms, train
from helpers.distil.vocabulary import fast_tokenizer, prune
from helpers.encode import load_torch
from helpers.encode.load import MINI

SCHEDULE = Schedule(steps=8, tokens_per_batch=256, rows_per_batch=16, warmup=2, checkpoint_every=4)


@pytest.fixture(scope="module")
def texts():
    frame = data.commands(languages=("en", "de", "ko"))
    return frame[frame.split == "train"].groupby("cluster").head(1).text.tolist()[:300]


@pytest.fixture(scope="module")
def spec():
    return json.loads((MINI / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer(spec, texts):
    return fast_tokenizer(prune(spec, texts, 900), 8192)


def test_pruning_keeps_the_segmentation(spec, texts, tokenizer):
    before, after = fast_tokenizer(spec, 8192), tokenizer
    assert len(after) < len(before) / 10
    assert [after.tokenize(text) for text in texts] == [before.tokenize(text) for text in texts]


def test_a_pruned_vocabulary_knows_its_special_tokens(tokenizer):
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("turn on the light")["input_ids"])
    assert tokens[0] == "<s>" and tokens[-1] == "</s>"
    assert tokenizer.unk_token_id in tokenizer("ᚠ")["input_ids"]
    assert set(tokenizer("x")) == {"input_ids", "attention_mask"}


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 200), st.integers(1, 9))
def test_batches_hold_every_row_once_and_keep_to_their_size(lengths, tokens, most):
    ids = [[7] * length for length in lengths]
    found = list(batches(ids, tokens, most=most))
    assert sorted(np.concatenate(found)) == list(range(len(ids)))
    for rows in found:
        assert len(rows) <= most
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= tokens


def test_padding_does_not_count_in_the_mean():
    tokens, mask = pad([[5, 6, 7], [8]], value=1)
    assert tokens.tolist() == [[5, 6, 7], [8, 1, 1]]
    assert mean_pool(tokens.unsqueeze(-1).double(), mask).ravel().tolist() == [6, 8]


def test_the_loss_of_the_right_answer_is_nothing_and_of_a_wrong_one_is_more():
    targets = torch.nn.functional.normalize(torch.randn(6, 20, generator=torch.Generator().manual_seed(0)), dim=1)
    cosine, contrast = loss_terms(targets * 3, targets, torch.arange(6), 0.05)
    wrong = loss_terms(targets.roll(1, 0), targets, torch.arange(6), 0.05)
    assert cosine.abs() < 1e-6 and contrast < 1e-3
    assert wrong[0] > 0.5 and wrong[1] > 5


def test_texts_with_the_same_target_are_no_negatives():
    targets = torch.eye(4)[[0, 0, 1]]
    _, contrast = loss_terms(targets, targets, torch.tensor([0, 0, 1]), 0.05)
    assert contrast < 1e-3
    _, contrast = loss_terms(targets, targets, torch.tensor([0, 1, 2]), 0.05)
    assert contrast > 0.4


def tiny(tokenizer):
    config = student_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_hidden_layers = 32, 48, 2, 2
    torch.manual_seed(0)
    return ModernBertModel(config)


@pytest.fixture(scope="module")
def task(tokenizer, texts):
    vectors = np.random.default_rng(0).normal(size=(len(texts), 24))
    targets = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    rows = np.arange(len(texts))
    return [Source("commands", tokenizer(texts)["input_ids"], {"teacher": targets}, rows, 200)]


def test_training_lowers_the_loss(tokenizer, task, tmp_path):
    history = train(tiny(tokenizer), task, replace(SCHEDULE, steps=80), tmp_path)
    assert history.contrast[-8:].mean() < history.contrast[:8].mean()


def test_two_kinds_of_target_are_learnt_each_through_its_own_matrix(tokenizer, task, tmp_path):
    (source,) = task
    words = np.random.default_rng(1).normal(size=(len(source.ids), 12)).astype(np.float32)
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    both = replace(source, targets={**source.targets, "words": words})

    def closeness(steps: int) -> dict[str, float]:
        student = tiny(tokenizer)
        train(student, [both], replace(SCHEDULE, steps=steps), tmp_path / str(steps))
        tokens, mask = pad(source.ids, tokenizer.pad_token_id)
        with torch.inference_mode(), safe_open(tmp_path / str(steps) / "checkpoint.safetensors", "pt") as saved:
            pooled = mean_pool(student.eval()(input_ids=tokens, attention_mask=mask).last_hidden_state, mask)
            found = {name: pooled @ saved.get_tensor(f"weight.projections.{name}.weight").T for name in both.targets}
        unit = {name: torch.nn.functional.normalize(x, dim=1).numpy() for name, x in found.items()}
        return {name: float((unit[name] * target).sum(1).mean()) for name, target in both.targets.items()}

    before, after = closeness(4), closeness(120)
    assert after["teacher"] > before["teacher"] + 0.03 and after["words"] > before["words"] + 0.03


def test_a_stopped_run_goes_on_where_it_was(tokenizer, task, tmp_path):
    whole = tiny(tokenizer)
    train(whole, task, SCHEDULE, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(module, inputs):
        calls.append(1)
        if len(calls) == 7:  # after the checkpoint at step 4
            raise Stop

    calls: list[int] = []
    first = tiny(tokenizer)
    first.register_forward_pre_hook(stop)
    with pytest.raises(Stop):
        train(first, task, SCHEDULE, tmp_path / "stopped")
    second = tiny(tokenizer)
    history = train(second, task, SCHEDULE, tmp_path / "stopped")
    assert history.step.tolist() == list(range(8))
    for (name, a), b in zip(whole.named_parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


def test_a_finished_run_is_not_run_again(tokenizer, task, tmp_path):
    train(tiny(tokenizer), task, SCHEDULE, tmp_path)
    again = tiny(tokenizer)
    again.register_forward_pre_hook(lambda *_: pytest.fail("it trained again"))
    assert len(train(again, task, SCHEDULE, tmp_path)) == SCHEDULE.steps


def test_another_run_does_not_go_on_from_it(tokenizer, task, tmp_path):
    (source,) = task
    train(tiny(tokenizer), [source], SCHEDULE, tmp_path)
    turned = {"teacher": -source.targets["teacher"]}
    for other in replace(source, ids=source.ids[::-1]), replace(source, targets=turned):
        runs = []
        again = tiny(tokenizer)
        again.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        train(again, [other], SCHEDULE, tmp_path)
        assert len(runs) == SCHEDULE.steps
    runs = []
    again = tiny(tokenizer)
    again.register_forward_pre_hook(lambda *_: runs.append(1))
    train(again, [source], SCHEDULE, tmp_path, resume=False)
    assert len(runs) == SCHEDULE.steps


def test_the_student_starts_from_the_teachers_table(tokenizer):
    pieces = np.random.default_rng(0).normal(size=(len(piece_texts(tokenizer)), 300)).astype(np.float32)
    pieces[10] = pieces[11]
    weight = new_student(tokenizer, pieces, 0).embeddings.tok_embeddings.weight
    assert torch.equal(weight[10], weight[11]) and not torch.equal(weight[11], weight[12])
    assert abs(weight.std().item() - 0.5) < 0.01


def test_a_model_is_saved_whole_and_in_half_precision(tokenizer, task, tmp_path):
    student = tiny(tokenizer)
    history = train(student, task, SCHEDULE, tmp_path / "run")
    folder = tmp_path / "model"
    card.save_model(student, tokenizer, history, SCHEDULE, {"pieces": len(tokenizer)}, folder)
    assert {path.name for path in folder.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
    }
    assert not list(tmp_path.glob("*.part"))
    loaded, _ = load_torch(str(folder))
    for a, b in zip(student.parameters(), loaded.parameters(), strict=True):
        assert b.dtype == torch.float32
        torch.testing.assert_close(a.detach().half().float(), b.detach())


def test_translations_are_grouped_by_their_english(tmp_path):
    path = tmp_path / "x.whl"
    strings = {"en": "**Turn** off", "de": "Ausschalten", "fr": "Éteindre", "it": "Spegni"}
    with zipfile.ZipFile(path, "w") as archive:
        for code, text in strings.items():
            content = json.dumps({"a": {"b": text, "c": "x" * 500}})
            archive.writestr(f"homeassistant/components/light/translations/{code}.json", content)
    frame = translations([path])
    assert set(frame.english) == {"Turn off"}
    assert dict(zip(frame.language, frame.text, strict=True)) == {**strings, "en": "Turn off"}


def test_commands_of_one_template_aim_at_their_mean():
    embeddings = np.array([[1, 0], [0, 1], [3, 4]], np.float32)
    means = corpus.group_means(embeddings, np.array([0, 0, 1]))
    np.testing.assert_allclose(means, [[0.5**0.5, 0.5**0.5], [0.6, 0.8]], rtol=1e-6)


def test_texts_that_share_their_rare_words_are_near_in_the_lexical_target():
    texts = [f"permission to use is granted by the {name} licence" for name in ("zlib", "artistic") for _ in range(4)]
    vectors = corpus.lexical(texts, size=2)
    assert vectors.shape == (8, 2) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[4] + 0.1


def test_windows_of_a_licence_do_not_overlap(monkeypatch):
    numbered = " ".join(map(str, range(1000)))
    papers = pd.DataFrame({"text": [numbered, "a b", numbered], "split": ["train", "train", "test"]})
    monkeypatch.setattr(data, "licences", lambda seed: papers)
    first, *others, short = corpus.licence_windows(words=90, most=4)
    assert first.split() == [str(n) for n in range(90)] and short == "a b" and len(others) == 3
    starts = [int(window.split()[0]) for window in others]
    assert starts == sorted(set(starts)) and all(start % 90 == 0 and 90 <= start <= 900 for start in starts)
    assert all(window.split() == [str(n) for n in range(s, s + 90)] for s, window in zip(starts, others, strict=True))


def test_what_each_kind_of_text_aims_at(tokenizer, tmp_path):
    """The wiring, with a teacher whose embedding of a text is drawn from its length."""

    class Stub:
        def encode(self, texts, progress):
            return np.stack([np.random.default_rng(len(text)).normal(size=6) for text in texts]).astype(np.float32)

    parallel = pd.DataFrame({"english": ["on", "on", "off now"], "text": ["an", "on", "aus"], "language": list("abc")})
    commands = pd.DataFrame(
        {"text": ["lamp on", "the fan on", "stop"], "language": ["en"] * 3, "template": ["{name} on"] * 2 + ["stop"]}
    )
    windows = ["to use and copy", "to use and modify", "to use and sell it all", "no warranty to use"]
    found = {s.name: s for s in corpus.sources(tokenizer, Stub(), parallel, commands, windows, tmp_path)}
    assert found["parallel"].row.tolist() == [0, 0, 1]
    assert found["commands"].row.tolist() == [0, 0, 1] and found["commands"].per_round == 3
    own = corpus.centred(Stub().encode(commands.text, False))
    np.testing.assert_allclose(
        found["commands"].targets["teacher"][0], corpus.group_means(own[:2], [0, 0])[0], atol=1e-6
    )
    assert found["licences"].targets.keys() == {"teacher", "words"} and found["licences"].per_round == 2
    for source in found.values():
        for target in source.targets.values():
            np.testing.assert_allclose(np.linalg.norm(target, axis=1), 1, rtol=1e-5)
            assert len(target) == source.row.max() + 1


def test_the_student_reads_the_training_side_only():
    commands = data.commands()
    other = set(commands.text[commands.split != "train"])
    commands = corpus.training_commands()
    assert other.isdisjoint(commands.text)
    assert set(commands) == {"text", "language", "template"}, "a label has no business here"
    papers = data.licences()
    allowed = [" ".join(text.split()) for text in papers.text[papers.split == "train"]]
    windows = corpus.licence_windows()
    for window in windows[:: max(len(windows) // 60, 1)]:
        assert any(window in text for text in allowed)


def test_a_score_frame_keeps_every_block():
    frame = data.commands()
    for fast in (True, False):
        train_rows, test_rows = card.score_frames(frame, fast)
        for rows, split in ((train_rows, "train"), (test_rows, "test")):
            assert rows.cluster.nunique() == frame.cluster[frame.split == split].nunique()


def test_the_committed_model_is_what_its_card_says():
    training = json.loads((MINI / "training.json").read_text(encoding="utf-8"))
    text = (MINI / "README.md").read_text(encoding="utf-8")
    assert f"{training['steps']:,} steps" in text and "Limits" in text
    assert (MINI / "model.safetensors").stat().st_size < 40e6
    scores = pd.read_json(MINI / "scores.json", orient="index")
    assert all(f"{value:.3f}" in text for value in scores.mini)
