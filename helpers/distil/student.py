"""mmbert-mini: mmBERT's architecture, small, its token table begun from the teacher.

mmBERT: Marone et al. 2025, arXiv:2509.06888. ModernBERT: Warner et al. 2024, arXiv:2412.13663.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.decomposition import PCA
from transformers import ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 256, 6, 4, 512, 8192


def student_config(tokenizer: PreTrainedTokenizerFast) -> ModernBertConfig:
    """mmBERT's choices (alternating attention, RoPE 160,000, no bias) at 6 layers of width 256."""
    return ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INTERMEDIATE,
        max_position_embeddings=POSITIONS,
        global_attn_every_n_layers=3,
        local_attention=128,
        global_rope_theta=160_000,
        local_rope_theta=160_000,
        attn_implementation="sdpa",
        reference_compile=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )


def piece_texts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Each piece of the vocabulary as a text of its own, in the order of its ids."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [piece.replace("▁", " ").strip() or piece for piece in pieces]


def new_student(tokenizer: PreTrainedTokenizerFast, pieces: np.ndarray, seed: int) -> ModernBertModel:
    """A student whose token embeddings are the teacher's opinion of each piece alone, cut to HIDDEN dimensions.

    The residual stream carries them to the output, so mean pooling means something before the first step; that
    lets it learn from little text.

    Parameters
    ----------
    pieces : (vocabulary, d) float32, the teacher's embeddings of `piece_texts`.
    seed : of the other weights.
    """
    torch.manual_seed(seed)
    model = ModernBertModel(student_config(tokenizer))
    reduced = PCA(HIDDEN, svd_solver="covariance_eigh").fit_transform(pieces - pieces.mean(0))
    with torch.no_grad():
        weight = torch.from_numpy((reduced * (0.5 / reduced.std())).astype(np.float32))
        model.embeddings.tok_embeddings.weight.copy_(weight)
    return model
