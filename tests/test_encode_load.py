"""Where models come from, and one clear line for each way in which they don't."""

from __future__ import annotations

import http.server
import json
import pickle
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file
from transformers import AutoTokenizer

from helpers.encode.encoder import TorchEncoder
from helpers.encode.load import (
    MINI,
    PINNED,
    ModelSource,
    configuration,
    english_encoder,
    load_torch,
    random_model,
    resolve,
)
from helpers.errors import InputError

SMALL = "jhu-clsp/mmBERT-small"


def one_line(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def count(size: str) -> tuple[int, int]:
    with torch.device("meta"):
        model = random_model(configuration(size))
    return sum(p.numel() for p in model.parameters()), model.embeddings.tok_embeddings.weight.numel()


def test_mmbert_sizes_are_exact() -> None:
    assert count("mmbert-small") == (140_493_696, 98_304_000)
    assert count("mmbert-base") == (306_939_648, 196_608_000)


def test_mmbert_layers_alternate_and_random_weights_follow_the_seed() -> None:
    config = configuration("mmbert-small")
    assert (config.local_attention, config.global_attn_every_n_layers, config.max_position_embeddings) == (128, 3, 8192)
    assert config.global_rope_theta == config.local_rope_theta == 160_000
    config.num_hidden_layers, config.vocab_size = 2, 100
    first, again, other = (random_model(config, seed).layers[1].mlp.Wi.weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert float(first.detach().std()) == pytest.approx(0.02, rel=0.01)
    with pytest.raises(InputError, match="mmbert-small, mmbert-base"):
        configuration("mmbert-huge")


def test_mini_loads_in_float32_without_token_type_ids(mini_torch) -> None:
    model, tokenizer = mini_torch
    assert resolve("mini") == resolve("mmbert-mini") == ModelSource("mmbert-mini", str(MINI), None, "mini")
    assert model.dtype == torch.float32 and not model.training
    assert set(tokenizer("turn it on")) == {"input_ids", "attention_mask"}


def test_hub_names_are_pinned() -> None:
    assert resolve(SMALL).revision == PINNED[SMALL] and len(PINNED[SMALL]) == 40
    assert resolve(f"{SMALL}@v2").revision == "v2"
    assert resolve("some/other") == ModelSource("some/other", "some/other", None, "hub")


@pytest.mark.parametrize("name", ["", "mmbert", "a/b/c", "a b/c", "owner/name@", "C:\\models\\x"])
def test_unknown_model_lists_what_is_possible(name: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(name)
    assert all(word in one_line(error) for word in (repr(name), "mmbert-mini", "folder", "owner/name"))


@pytest.mark.parametrize(
    "name",
    [".", "./x", "../x", "/no/such", "~/no-such-folder", "~nouser/x", "x/../y", "a--b/c", "\\\\host\\x", "own/x@../y"],
)
def test_what_looks_like_a_path_is_no_hub_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no such folder|has no config") as error:
        resolve(name)
    assert ("has no config" in one_line(error)) == (name == ".")


def test_existing_folders_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a--b").symlink_to(MINI)
    monkeypatch.chdir(tmp_path)
    assert resolve("a--b").kind == resolve("./a--b").kind == "folder"
    assert resolve("owner/name@fix--x").revision == "fix--x"


def test_names_that_are_too_long_or_that_the_hub_forbids(cache: Path) -> None:
    for name in ("x" * 5000, "own/" + "x" * 5000 + " ", "~" + "x" * 5000, "/" + "x" * 5000):
        with pytest.raises(InputError) as error:
            resolve(name)
        assert len(one_line(error)) < 400
    for name in ("own/" + "x" * 97, "own/" + "x" * 5000, "-own/name", "own/name.git"):
        with pytest.raises(InputError, match="model ") as error:
            load_torch(name)
        one_line(error)


def test_unknown_model_suggests_the_owner() -> None:
    with pytest.raises(InputError, match=r"Did you mean jhu-clsp/mmBERT-small\?"):
        resolve("mmbert-small")


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model.safetensors"])
def test_folder_that_lacks_a_file(tmp_path: Path, lost: str) -> None:
    for file in MINI.iterdir():
        if file.is_file() and file.name != lost:
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps("never read"))
    with pytest.raises(InputError, match=lost.replace("model.safetensors", "weights")) as error:
        resolve(str(tmp_path))
    one_line(error)


def copy_mini(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in MINI.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path: Path) -> None:
    config = json.loads((copy_mini(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 7}))
    with pytest.raises(InputError, match=r"weights are missing.*layers\.6") as error:
        load_torch(str(tmp_path))
    one_line(error)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:1000], lambda b: b[:-1000], lambda b: b"", lambda _: random.Random(0).randbytes(5000)]
)
def test_damaged_weights(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    weights = copy_mini(tmp_path) / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(InputError, match=r"weights for this config\.json cannot be loaded") as error:
        load_torch(str(tmp_path))
    one_line(error)


@pytest.mark.parametrize(("name", "part"), [("config.json", r"config\.json"), ("tokenizer.json", "tokenizer")])
@pytest.mark.parametrize("content", [b"no JSON", b"", b"\xff\xfe\x00", b"[]", b"{}", b'{"model_type": "none such"}'])
def test_damaged_json(tmp_path: Path, name: str, part: str, content: bytes) -> None:
    (copy_mini(tmp_path) / name).write_bytes(content)
    with pytest.raises(InputError, match=f": {part} cannot be loaded") as error:
        load_torch(str(tmp_path))
    assert len(one_line(error)) < 400  # not the names of all models that transformers knows


def test_tokenizer_with_more_tokens_than_the_table_has_rows(mini_torch, tmp_path: Path) -> None:
    copy_mini(tmp_path)
    rows = mini_torch[0].config.vocab_size
    tokenizer = AutoTokenizer.from_pretrained(MINI)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"ids up to {rows}.* {rows} rows") as error:
        load_torch(str(tmp_path))
    one_line(error)


# --- the hub, without a hub ---------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def snapshot(cache: Path, repo: str, commit: str, branch: str | None = None) -> Path:
    """A folder of the hub's cache, as a download leaves it."""
    top = cache / f"models--{repo.replace('/', '--')}"
    if branch:
        (top / "refs").mkdir(parents=True)
        (top / "refs" / branch).write_text(commit)
    return copy_mini(top / "snapshots" / commit)


def test_offline_and_not_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as error:
        load_torch(SMALL)
    assert all(word in one_line(error) for word in (SMALL, "HF_HUB_OFFLINE", "MODEL=mmbert-mini"))


def test_hub_that_cannot_be_reached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    began = time.perf_counter()
    with pytest.raises(InputError) as error:
        load_torch(SMALL)
    assert time.perf_counter() - began < 15
    assert all(word in one_line(error) for word in (SMALL, "not reached", "MODEL=mmbert-mini"))


@pytest.mark.parametrize(
    ("code", "word"),
    [("RepoNotFound", "not on the hub"), ("RevisionNotFound", "no revision"), ("GatedRepo", "account")],
)
def test_what_the_hub_says_is_passed_on(cache: Path, monkeypatch: pytest.MonkeyPatch, code: str, word: str) -> None:
    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403 if code == "GatedRepo" else 404)
            self.send_header("X-Error-Code", code)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(InputError, match=word) as error:
            load_torch("no/such@thing")
        server.shutdown()
    assert "no/such" in one_line(error)


def test_pinned_model_in_the_cache_needs_no_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    snapshot(cache, "some/model", "a" * 40)
    model, tokenizer = load_torch(f"some/model@{'a' * 40}")
    assert model.config.hidden_size == 256 and tokenizer.model_input_names == ["input_ids", "attention_mask"]


def test_offline_model_without_a_pin_tells_its_commit(cache, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot(cache, "some/model", "b" * 40, branch="main")
    load_torch("some/model")
    assert f"MODEL=some/model@{'b' * 40}" in capsys.readouterr().out


def test_mmbert_itself_is_a_pytorch_file_read_without_running_code(cache: Path, tmp_path: Path) -> None:
    folder = snapshot(cache, SMALL, PINNED[SMALL])
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({f"model.{name}": tensor for name, tensor in tensors.items()}, folder / "pytorch_model.bin")
    model, _ = load_torch(SMALL)
    assert torch.equal(model.final_norm.weight, tensors["final_norm.weight"].float())

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model.final_norm.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_torch(SMALL)
    assert not (tmp_path / "ran").exists()


def test_a_configuration_can_have_fewer_layers() -> None:
    cut = configuration("mmbert-small", layers=3)
    assert (cut.num_hidden_layers, cut.hidden_size, cut.global_attn_every_n_layers) == (3, 384, 3)
    assert configuration("mmbert-small").num_hidden_layers == 22
    for layers in (0, 23):
        with pytest.raises(InputError, match="give 1 to 22"):
            configuration("mmbert-small", layers=layers)


def test_an_encoder_of_english_comes_with_a_package() -> None:
    model, tokenizer = load_torch(str(english_encoder()))
    vectors = TorchEncoder(model, tokenizer).encode(["turn on the light", "switch the lamp on", "the licence is void"])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
