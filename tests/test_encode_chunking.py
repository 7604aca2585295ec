"""Chunks: token-exact, nothing lost or doubled, and pooled back to documents."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.encode import OnnxEncoder, chunking
from helpers.encode.chunking import Chunks, chunk_ids, cut, encode_chunks, pool_documents, spans, vote
from helpers.encode.encoder import read_tokenizer
from helpers.encode.load import MINI
from helpers.errors import InputError

TOKENIZER = read_tokenizer(MINI / "tokenizer.json")
WORDS = ["Licensed", "under", "the", "Apache", "License,", "Version", "2.0", "Wohnzimmer", "灯を消して", "(it);"]


@given(st.integers(0, 5000), st.integers(1, 600), st.integers(0, 599))
def test_spans_cover_every_token_and_share_what_they_should(tokens: int, size: int, overlap: int) -> None:
    if overlap >= size:
        with pytest.raises(InputError, match="less overlap than size"):
            spans(tokens, size, overlap)
        return
    found = spans(tokens, size, overlap)
    assert found[0][0] == 0 and found[-1][1] == tokens
    assert all(end - start == size for start, end in found[:-1]) and found[-1][1] - found[-1][0] <= size
    assert all(before[1] - after[0] == overlap for before, after in pairwise(found))
    assert tokens == 0 or all(end > start for start, end in found)
    if len(found) > 1:
        assert found[-1][1] > found[-2][1], "no window lies inside the one before"


@settings(deadline=None, max_examples=60)
@given(st.text(min_size=1, max_size=300), st.integers(3, 40), st.sampled_from([0, 1 / 8, 0.5]))
def test_concatenated_chunks_give_back_the_tokens(text: str, size: int, overlap: float) -> None:
    TOKENIZER.no_truncation()
    whole, bare = TOKENIZER.encode(text).ids, TOKENIZER.encode(text, add_special_tokens=False).ids
    chunks = chunk_ids(TOKENIZER, text, size, overlap)
    assert all(len(chunk) <= size for chunk in chunks)
    shared = int(overlap * (size - 2))
    body = chunks[0][1:-1]
    for before, chunk in pairwise(chunks):
        assert before[-1 - shared : -1] == chunk[1 : 1 + shared]
        body += chunk[1 + shared : -1]
    assert body == bare
    assert [chunks[0][0], *body, chunks[0][-1]] == whole, "special tokens are those that the tokenizer adds itself"


def test_chunks_do_not_depend_on_a_cut_that_somebody_set_before() -> None:
    text = " ".join(WORDS * 20)
    expected = chunk_ids(TOKENIZER, text, 64)
    TOKENIZER.enable_truncation(10)
    TOKENIZER.enable_padding(length=400)
    assert chunk_ids(TOKENIZER, text, 64) == expected and len(expected) > 3


def test_a_hundred_thousand_words_and_a_single_token(mini_encoder: OnnxEncoder) -> None:
    long, one = " ".join(WORDS[n % len(WORDS)] for n in range(100_000)), "stop"
    ids = chunk_ids(TOKENIZER, long, 8192)
    assert sum(len(chunk) - 2 for chunk in ids) == len(TOKENIZER.encode(long, add_special_tokens=False).ids)
    found = encode_chunks(mini_encoder, [one, " ".join(WORDS * 30), one], size=64)
    assert found.documents.tolist() == sorted(found.documents) and set(found.documents) == {0, 1, 2}
    alone = mini_encoder.encode([one])[0]
    assert np.allclose(found.vectors[0], alone, atol=1e-6) and np.allclose(found.vectors[-1], alone, atol=1e-6)


def test_chunks_are_encoded_as_texts_of_their_own_would_be(mini_encoder: OnnxEncoder) -> None:
    text = " ".join(WORDS * 10)
    found = encode_chunks(mini_encoder, [text], size=32, overlap=0.25)
    ids = chunk_ids(TOKENIZER, text, 32, 0.25)
    assert found.tokens.tolist() == [len(chunk) for chunk in ids]
    assert np.array_equal(found.vectors, mini_encoder.encode_ids(ids))


def test_cut_is_chunk_ids_of_every_text_in_order() -> None:
    texts = ["stop", " ".join(WORDS * 10), "go"]
    pieces, documents = cut(TOKENIZER, texts, 32, 0.25)
    each = [chunk_ids(TOKENIZER, text, 32, 0.25) for text in texts]
    assert pieces == [piece for of_text in each for piece in of_text] and documents.tolist() == [
        0,
        *[1] * len(each[1]),
        2,
    ]
    nothing, of = cut(TOKENIZER, [], 32)
    assert nothing == [] and of.shape == (0,)


def test_what_cannot_be_cut_is_refused_in_one_line(mini_encoder: OnnxEncoder) -> None:
    for call, words in (
        (lambda: chunk_ids(TOKENIZER, "a", 2), "more than the 2 special tokens"),
        (lambda: chunk_ids(TOKENIZER, "a", 64, 1.0), "share below 1"),
        (lambda: encode_chunks(mini_encoder, ["a", " "]), "row 1 is empty"),
        (lambda: encode_chunks(mini_encoder, "a"), "list of texts"),
        (lambda: pool_documents(CHUNKS, "median"), "choose one of first, mean, max"),
        (lambda: vote(np.eye(3), np.array([0, 1, 0])), "without a gap"),
        (lambda: vote(np.eye(3), np.array([0, 0, 2])), "without a gap"),
        (lambda: vote(np.eye(3), np.array([0, 1])), "3 rows of probabilities, 2 chunks"),
    ):
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)
    assert encode_chunks(mini_encoder, []).vectors.shape == (0, mini_encoder.hidden)


CHUNKS = Chunks(
    np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, -0.6]], dtype=np.float32),
    np.array([0, 0, 1, 2]),
    np.array([3, 1, 9, 9]),
)


def test_pooling_by_hand() -> None:
    assert np.array_equal(pool_documents(CHUNKS, "first"), CHUNKS.vectors[[0, 2, 3]])
    assert np.allclose(pool_documents(CHUNKS, "mean"), [np.array([3, 1]) / 10**0.5, [0.6, 0.8], [0.8, -0.6]])
    assert np.allclose(pool_documents(CHUNKS, "max"), [np.array([1, 1]) / 2**0.5, [0.6, 0.8], [0.8, -0.6]])
    assert all(np.allclose(np.linalg.norm(pool_documents(CHUNKS, how), axis=1), 1) for how in chunking.POOLINGS)


def test_most_chunks_win_and_probability_decides_a_draw() -> None:
    chunks = np.array([[0.4, 0.6, 0], [0.4, 0.6, 0], [1, 0, 0], [0.9, 0.1, 0], [0.3, 0.7, 0], [0.2, 0.2, 0.6]])
    assert vote(chunks, np.array([0, 0, 0, 1, 1, 2])).tolist() == [1, 0, 2]


def test_pieces_that_do_not_belong_together_are_refused() -> None:
    vectors, documents, tokens = np.eye(3, dtype=np.float32), np.array([0, 0, 1]), np.array([4, 4, 4])
    for chunks, words in (
        (Chunks(np.eye(4, dtype=np.float32), documents, tokens), "4 vectors, 3 documents, 3 tokens"),
        (Chunks(np.full((3, 3), np.nan, np.float32), documents, tokens), "not finite"),
        (Chunks(np.array([[1.0], [-1.0], [1.0]]), documents, tokens), "cancel each other"),
    ):
        with pytest.raises(InputError, match=words):
            pool_documents(chunks)
    with pytest.raises(InputError, match="not finite"):
        vote(np.full((3, 2), np.nan), documents)
    assert vote([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], documents).tolist() == [0, 1]  # lists will do
    assert len(vectors) == 3


def test_a_window_is_cut_with_either_librarys_tokenizer(mini_torch) -> None:
    texts = ["one two three four five six seven eight nine ten " * 3]
    found = [cut(tokenizer, texts, 16) for tokenizer in (mini_torch[1], str(MINI / "tokenizer.json"))]
    assert found[0][0] == found[1][0] and len(found[0][0]) > 1
