"""A smaller vocabulary: the pieces of a Unigram tokenizer that a corpus uses.

Kudo 2018, arXiv:1804.10959: a Unigram tokenizer scores each piece on its own, so pieces can be taken out without
training anew; text without them is segmented as before.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}


def prune(spec: dict, texts: Iterable[str], size: int) -> dict:
    """The tokenizer's JSON with about `size` pieces: the most frequent in `texts`, characters seen twice, special ones.

    Parameters
    ----------
    spec : a tokenizers JSON with a Unigram model.
    texts : the corpus whose pieces are counted.
    size : how many of the most frequent pieces stay.
    """
    texts = list(texts)
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    vocabulary = spec["model"]["vocab"]
    counts: collections.Counter[int] = collections.Counter()
    for start in range(0, len(texts), 4096):
        for encoding in tokenizer.encode_batch_fast(texts[start : start + 4096], add_special_tokens=False):
            counts.update(encoding.ids)
    characters = collections.Counter(character for text in texts for character in text)
    special = set(SPECIAL.values())
    keep = {i for i, _ in counts.most_common(size)}
    for i, (piece, _) in enumerate(vocabulary):
        bare = piece.removeprefix("▁")
        if piece in special or piece == "▁" or (len(bare) == 1 and characters[bare] >= 2):
            keep.add(i)
    pruned = json.loads(json.dumps(spec))
    pruned["model"]["vocab"] = [vocabulary[i] for i in sorted(keep)]
    ids = {piece: i for i, (piece, _) in enumerate(pruned["model"]["vocab"])}
    pruned["model"]["unk_id"] = ids[SPECIAL["unk"]]
    for added in pruned["added_tokens"]:
        added["id"] = ids[added["content"]]
    _renumber(pruned["post_processor"], ids)
    return pruned


def fast_tokenizer(spec: dict, max_length: int) -> PreTrainedTokenizerFast:
    """A transformers tokenizer without token types, which ModernBERT refuses."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    )


def _renumber(node: object, ids: dict[str, int]) -> None:
    """The post-processor names the special tokens with their old numbers."""
    if isinstance(node, dict):
        if "ids" in node and "tokens" in node:
            node["ids"] = [ids[token] for token in node["tokens"]]
        for value in node.values():
            _renumber(value, ids)
    elif isinstance(node, list):
        for value in node:
            _renumber(value, ids)
