"""Long texts in pieces: windows of tokens that a model can read, and one vector or answer a document from its pieces.

Everything counts tokens, special tokens included, for a window's cost and a model's limit are in tokens. No token is
lost; with an overlap, the tokens shared by two windows are in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from helpers.encode.encoder import TOKENIZING, checked, read_tokenizer
from helpers.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from helpers.encode.encoder import OnnxEncoder, TorchEncoder

POOLINGS = ("first", "mean", "max")


class Chunks(NamedTuple):
    """Vectors of all chunks of all documents, in order.

    Attributes
    ----------
    vectors
        Float32 (chunks, hidden), rows of length 1.
    documents
        Int (chunks,): which document each chunk is of, counted from 0.
    tokens
        Int (chunks,): its tokens, special ones included.
    """

    vectors: np.ndarray
    documents: np.ndarray
    tokens: np.ndarray


def spans(tokens: int, size: int, overlap: int = 0) -> list[tuple[int, int]]:
    """Windows over `tokens` tokens: (start, end) of each, `size` long but for the last, `overlap` shared by neighbours.

    A text of no tokens has one window, which is empty.

    Raises
    ------
    InputError
        If size is below 1, or overlap is not from 0 to size - 1.
    """
    if tokens < 0 or size < 1 or not 0 <= overlap < size:
        raise InputError(f"spans: size={size}, overlap={overlap}: give a size of 1 or more, and less overlap than size")
    starts = range(0, max(1, tokens - overlap), size - overlap)
    return [(start, min(start + size, tokens)) for start in starts]


def special_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after a text. It pads and cuts nothing from now on."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    if not bare:
        raise InputError(
            "chunks: the tokenizer has no token for a plain letter: give the one that belongs to the model"
        )
    at = next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    return whole[:at], whole[at + len(bare) :]


def chunk_ids(tokenizer: Tokenizer, text: str, size: int, overlap: float = 0) -> list[list[int]]:
    """Token ids of each window of a text, each with the special tokens around it.

    Parameters
    ----------
    tokenizer
        transformers' or tokenizers' tokenizer, or the path of a tokenizer.json; an encoder has one as `tokenizer`. Its
        padding and truncation are turned off.
    text
        Of any length.
    size
        Tokens of a window, special ones included.
    overlap
        Share of a window's own tokens that the next one repeats, 0 to less than 1.

    Raises
    ------
    InputError
        If no token of the text fits beside the special ones, or overlap is out of range.
    """
    tokenizer = read_tokenizer(tokenizer)
    with TOKENIZING:
        before, after = special_tokens(tokenizer)
        room = size - len(before) - len(after)
        if room < 1 or not 0 <= overlap < 1:
            raise InputError(
                f"chunks: size={size}, overlap={overlap}: give more than the {len(before) + len(after)} special "
                "tokens, and a share below 1"
            )
        body = tokenizer.encode(text, add_special_tokens=False).ids
    return [[*before, *body[start:end], *after] for start, end in spans(len(body), room, int(overlap * room))]


def cut(
    tokenizer: Tokenizer, texts: Sequence[str], size: int, overlap: float = 0
) -> tuple[list[list[int]], np.ndarray]:
    """All windows of all texts: their ids, in order, and int (chunks,) which text each is of, counted from 0.

    For `workers.encode_ids_many`. Ids take far less room than vectors, so unlike `encode_chunks` it holds all of them.

    Raises
    ------
    InputError
        As `chunk_ids`, or if a text is empty or none.
    """
    tokenizer = read_tokenizer(tokenizer)
    pieces = [chunk_ids(tokenizer, text, size, overlap) for text in checked(texts)]
    documents = np.repeat(np.arange(len(pieces)), [len(of_text) for of_text in pieces])
    return [piece for of_text in pieces for piece in of_text], documents


def encode_chunks(
    encoder: OnnxEncoder | TorchEncoder,
    texts: Sequence[str],
    size: int = 256,
    overlap: float = 0,
    progress: bool = False,
) -> Chunks:
    """Encode every chunk of every text.

    One text is cut at a time and one chunk is run at a time (as the encoder's batch_size says), so memory grows with
    the number of chunks' vectors and the longest text, not with all texts.

    Parameters
    ----------
    encoder
        A `TorchEncoder` or `OnnxEncoder`; its max_tokens is not looked at.
    texts, progress
        As for its `encode`.
    size, overlap
        As in `chunk_ids`.

    Raises
    ------
    InputError
        If a text is empty or none, or size or overlap are out of range.
    """
    vectors, documents, tokens = [], [], []
    for document, text in enumerate(_progress(checked(texts), progress)):
        pieces = chunk_ids(encoder.tokenizer, text, size, overlap)
        vectors.append(encoder.encode_ids(pieces))
        documents += [document] * len(pieces)
        tokens += [len(piece) for piece in pieces]
    stacked = np.concatenate(vectors) if vectors else np.empty((0, encoder.hidden), dtype=np.float32)
    return Chunks(stacked, np.array(documents, dtype=int), np.array(tokens, dtype=int))


def pool_documents(chunks: Chunks, how: Literal["first", "mean", "max"] = "mean") -> np.ndarray:
    """One vector a document, float32 (documents, hidden), rows of length 1.

    "first": the first chunk's. "mean": the chunks' mean, each weighted by its tokens, so that a last chunk of ten
    tokens does not count as much as a full one. "max": in each dimension the largest of the chunks'.

    Raises
    ------
    InputError
        If `how` is none of these, there is not one vector and number of tokens a chunk, a vector is not finite, vectors
        cancel each other, or documents are not in order or lack chunks.
    """
    if how not in POOLINGS:
        raise InputError(f"pool_documents: how={how!r}: choose one of {', '.join(POOLINGS)}")
    if not len(chunks.vectors) == len(chunks.documents) == len(chunks.tokens):
        raise InputError(
            f"pool_documents: {len(chunks.vectors)} vectors, {len(chunks.documents)} documents, {len(chunks.tokens)} "
            "tokens: give one of each for each chunk"
        )
    starts = _starts(chunks.documents)
    if how == "first":
        return chunks.vectors[starts]
    if how == "max":
        pooled = np.maximum.reduceat(chunks.vectors, starts)
    else:
        pooled = np.add.reduceat(chunks.vectors * chunks.tokens[:, None], starts)
    length = np.linalg.norm(pooled, axis=1, keepdims=True)
    if not (np.isfinite(length) & (length > 0)).all():
        raise InputError("pool_documents: a vector is not finite, or a document's cancel each other: encode them anew")
    return (pooled / length).astype(np.float32)


def vote(probabilities: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """The class that most chunks of a document take for the likeliest; of equally many, the one of larger probability.

    Parameters
    ----------
    probabilities
        (chunks, classes), as a head's `predict_proba` gives them.
    documents
        (chunks,), as in `Chunks`.

    Returns
    -------
    numpy.ndarray
        Int (documents,): the class's column.

    Raises
    ------
    InputError
        If there is not one row a chunk, a probability is not finite, or documents are not in order or lack chunks.
    """
    probabilities = np.asarray(probabilities, dtype=float)
    if not np.isfinite(probabilities).all():
        raise InputError("vote: a probability is not finite: fit the head again")
    if len(probabilities) != len(documents):
        raise InputError(
            f"vote: {len(probabilities)} rows of probabilities, {len(documents)} chunks: give one for each"
        )
    starts = _starts(documents)
    ballots = probabilities == probabilities.max(axis=1, keepdims=True)
    # A document's mean probability is below 1, so it decides among equal numbers of votes and nothing else.
    counts = np.diff([*starts, len(documents)])[:, None]
    sums = np.add.reduceat(probabilities, starts) / (counts + 1)
    return (np.add.reduceat(ballots, starts, dtype=float) + sums).argmax(axis=1)


def _starts(documents: np.ndarray) -> np.ndarray:
    """Where each document's chunks start."""
    steps = np.diff(documents, prepend=-1)
    if not np.isin(steps, (0, 1)).all() or (len(steps) and steps[0] != 1):
        raise InputError("chunks: documents are not 0, 0, ..., 1, ... without a gap: keep all chunks, in order")
    return np.flatnonzero(steps)


def _progress(items: Sequence[Any], shown: bool) -> Iterator[Any]:
    if not shown:
        return iter(items)
    from tqdm.auto import tqdm

    return iter(tqdm(items, desc="encode", unit="text"))
