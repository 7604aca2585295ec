"""ModernBERT's attention as ONNX operators, for texts of any length.

Two layers of three look at `local_attention` tokens only (Warner et al. 2024, arXiv:2412.13663), yet a masked product
computes all pairs and throws most away: at 8192 tokens, 98 of 100. The graph written here decides while it runs:

- a local layer of a long text is cut into blocks; the queries of each see its own keys and those of the two blocks
  beside it (banded attention: Beltagy et al. 2020, Longformer, arXiv:2004.05150). A short text takes the masked
  product, which is quicker there;
- a global layer of a long text without padding needs no mask, so onnxruntime's tiled kernel can run it, which never
  holds all pairs in memory. With padding it takes the masked product.

While a model is exported, `named_attention` leaves operators of our own in the graph; `expand` then puts `functions` in
their place. They are written in ONNX's text format (onnx, docs/Syntax.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx
    import torch

DOMAIN = "attention"

SHORT_WINDOWS = 2
"""A text of up to so many windows is short. There the masked product is as quick: notebook 01 measures it."""


def functions(
    heads: int, width: int, window: int, opset: int, banded: bool = True, banded_from: int | None = None
) -> list[onnx.FunctionProto]:
    """What the operators GlobalMask, LocalMask, GlobalAttention and LocalAttention do.

    Masks take the text's mask, int64 (batch, tokens); attention takes query, key and value, float32 (batch, tokens,
    width), and its kind of mask, which is added to the scores.

    Parameters
    ----------
    heads, width : attention heads, and the hidden size they share.
    window : tokens that a local layer looks at, half of them on each side; a block has as many queries as one side.
    opset : of the graph.
    banded : False for the masked product at any length.
    banded_from : tokens from which a text counts as long; default from SHORT_WINDOWS.
    """
    import onnx

    side = window // 2
    banded_from = SHORT_WINDOWS * window + 1 if banded_from is None else banded_from

    head = f'<domain: "{DOMAIN}", opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    made = []
    for name, (inputs, condition, long, usual) in _bodies(heads, width, side, banded_from).items():
        body = f"{usual} out = Identity (result)"
        if banded and side:  # a window of one token has no blocks
            branches = (
                f"then_branch = long () => (float[] result) {{ {long} }}, "
                f"else_branch = usual () => (float[] result) {{ {usual} }}"
            )
            body = f"{condition} out = If (condition) <{branches}>"
        made.append(onnx.parser.parse_function(f"{head} {name} ({inputs}) => (out) {{ {body} }}"))
    return made


def _bodies(heads: int, width: int, side: int, banded_from: int) -> dict[str, tuple[str, str, str, str]]:
    """Operator -> its inputs, the condition of the branch for long texts, that branch, and the usual one."""
    attention = f"Attention <q_num_heads = {heads}, kv_num_heads = {heads}>"
    masked = f"result = {attention} (query, key, value, mask)"

    def is_long(text: str, answer: str = "condition") -> str:
        return f"""
            text_length = Shape <start = 1, end = 2> ({text})
            limit = Constant <value_ints = [{banded_from}]> ()
            at_least = GreaterOrEqual (text_length, limit)
            {answer} = Squeeze (at_least)"""

    scores = f"""
        allowed_score = Constant <value = float {{0.0}}> ()
        forbidden_score = Constant <value = float {{{float(np.finfo(np.float32).min)!r}}}> ()
        result = Where (allowed, allowed_score, forbidden_score)"""  # not -inf: rows of padding alone would be NaN

    def near(first: str, end: str, keys: str) -> str:
        """Is the query at first..end within reach of the key at 0..keys?"""
        return f"""
            zero = Constant <value_int = 0> ()
            one = Constant <value_int = 1> ()
            reach = Constant <value_int = {side}> ()
            query_at = Range ({first}, {end}, one)
            key_at = Range (zero, {keys}, one)
            column = Constant <value_ints = [1]> ()
            query_row = Unsqueeze (query_at, column)
            apart = Sub (query_row, key_at)
            distance = Abs (apart)
            near = LessOrEqual (distance, reach)"""

    def valid(mask: str) -> str:
        return f"""
            valid_2d = Cast <to = 9> ({mask})
            between = Constant <value_ints = [1, 2]> ()
            valid = Unsqueeze (valid_2d, between)"""

    def blocks(text: str) -> str:
        """A text of `tokens` lacks `lack` of whole blocks; one block more on each side stands for the neighbours."""
        return f"""
            tokens = Shape <start = 1, end = 2> ({text})
            none = Constant <value_ints = [0]> ()
            block = Constant <value_ints = [{side}]> ()
            two_blocks = Constant <value_ints = [{2 * side}]> ()
            along_text = Constant <value_ints = [1]> ()
            negative = Neg (tokens)
            lack = Mod (negative, block)
            behind = Add (lack, block)
            whole = Add (tokens, lack)
            whole_1 = Add (whole, block)
            whole_2 = Add (whole, two_blocks)"""

    def seen(x: str) -> str:
        """What the queries of each block see of x: the block before, their own, the block after."""
        return f"""
            {x}_from_0 = Slice ({x}_padded, none, whole, along_text)
            {x}_from_1 = Slice ({x}_padded, block, whole_1, along_text)
            {x}_from_2 = Slice ({x}_padded, two_blocks, whole_2, along_text)
            {x}_before = Reshape ({x}_from_0, block_shape)
            {x}_own = Reshape ({x}_from_1, block_shape)
            {x}_after = Reshape ({x}_from_2, block_shape)
            {x}_seen = Concat <axis = 1> ({x}_before, {x}_own, {x}_after)"""

    banded_mask = f"""{blocks("text")}
        around = Concat <axis = 0> (none, block, none, behind)
        text_padded = Pad (text, around)
        block_shape = Constant <value_ints = [-1, {side}]> (){seen("text")}{valid("text_seen")}
        query_from = Constant <value_int = {side}> ()
        query_end = Constant <value_int = {2 * side}> ()
        key_end = Constant <value_int = {3 * side}> (){near("query_from", "query_end", "key_end")}
        allowed = And (valid, near){scores}"""
    sliding_mask = f"""{valid("text")}
        start = Constant <value_int = 0> ()
        text_size = Shape <start = 1, end = 2> (text)
        end = Squeeze (text_size){near("start", "end", "end")}
        allowed = And (valid, near){scores}"""
    full_mask = f"""{valid("text")}
        batch = Shape <start = 0, end = 1> (text)
        size = Shape <start = 1, end = 2> (text)
        heads = Constant <value_ints = [1]> ()
        shape = Concat <axis = 0> (batch, heads, size, size)
        allowed = Expand (valid, shape){scores}"""
    banded = f"""{blocks("query")}
        filled = Concat <axis = 0> (none, none, none, none, lack, none)
        around = Concat <axis = 0> (none, block, none, none, behind, none)
        query_padded = Pad (query, filled)
        key_padded = Pad (key, around)
        value_padded = Pad (value, around)
        block_shape = Constant <value_ints = [-1, {side}, {width}]> ()
        query_blocks = Reshape (query_padded, block_shape){seen("key")}{seen("value")}
        out_blocks = {attention} (query_blocks, key_seen, value_seen, mask)
        batch = Shape <start = 0, end = 1> (query)
        last = Constant <value_ints = [{width}]> ()
        joined_shape = Concat <axis = 0> (batch, whole, last)
        joined = Reshape (out_blocks, joined_shape)
        result = Slice (joined, none, tokens, along_text)"""
    needs_no_mask = f"""{is_long("text", "is_long")}
        least = ReduceMin <keepdims = 0> (text)
        unpadded = Cast <to = 9> (least)
        condition = And (is_long, unpadded)"""
    no_mask = "result = Constant <value = float[0] {}> ()"
    has_no_mask = """
        mask_size = Size (mask)
        is_masked = Cast <to = 9> (mask_size)
        condition = Not (is_masked)"""
    unmasked = f"result = com.microsoft.MultiHeadAttention <num_heads = {heads}> (query, key, value)"
    return {
        "GlobalMask": ("text", needs_no_mask, no_mask, full_mask),
        "LocalMask": ("text", is_long("text"), banded_mask, sliding_mask),
        "GlobalAttention": ("query, key, value, mask", has_no_mask, unmasked, masked),
        "LocalAttention": ("query, key, value, mask", is_long("query"), banded, masked),
    }


@contextlib.contextmanager
def named_attention() -> Iterator[None]:
    """While this is open, a ModernBERT is exported with the operators of `functions` in place of its attention.

    The exporter would write attention out, twenty operators a layer, or, where it finds Attention and RotaryEmbedding
    by itself, leave transposes and slices around each.
    """
    from transformers.models.modernbert import modeling_modernbert

    functions, model = modeling_modernbert.MODERNBERT_ATTENTION_FUNCTION, modeling_modernbert.ModernBertModel
    usual = functions["sdpa"], model._update_attention_mask
    functions["sdpa"], model._update_attention_mask = _attention, _masks
    try:
        yield
    finally:
        functions["sdpa"], model._update_attention_mask = usual


def _operator(name: str, inputs: tuple[torch.Tensor, ...], like: torch.Tensor, shape: tuple) -> torch.Tensor:
    import torch

    return torch.onnx.ops.symbolic(f"{DOMAIN}::{name}", inputs, dtype=like.dtype, shape=shape, version=1)


def _masks(self: Any, attention_mask: torch.Tensor, output_attentions: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The masks of global and of local layers. Their true shapes depend on the text; `expand` takes back those here."""
    like = self.embeddings.tok_embeddings.weight
    return tuple(_operator(name, (attention_mask,), like, ()) for name in ("GlobalMask", "LocalMask"))


def _attention(
    module: Any, qkv: torch.Tensor, attention_mask: torch.Tensor, sliding_window_mask: torch.Tensor,
    position_ids: torch.Tensor, local_attention: tuple[int, int], dim: int, **_: Any,
) -> tuple[torch.Tensor]:  # fmt: skip
    """ModernBERT's attention in operators, (batch, tokens, width) throughout."""
    import torch

    heads, half = module.num_heads, module.head_dim // 2
    query, key, value = qkv.flatten(2).split(dim, dim=-1)
    # The model repeats the half-width angles for its own way of rotating; the operator wants them once.
    cos, sin = (angles[..., :half] for angles in module.rotary_emb(qkv, position_ids=position_ids))
    query, key = (torch.onnx.ops.rotary_embedding(x, cos, sin, num_heads=heads) for x in (query, key))
    local = local_attention != (-1, -1)
    name, mask = ("LocalAttention", sliding_window_mask) if local else ("GlobalAttention", attention_mask)
    return (_operator(name, (query, key, value, mask), query, query.shape),)


def expand(model: onnx.ModelProto, made: list[onnx.FunctionProto]) -> onnx.ModelProto:
    """The model with `functions` written out where `named_attention` left their names; other models stay as they are.

    The weights need not be loaded.
    """
    import onnx.inliner

    known = {entry.domain for entry in model.opset_import}
    if DOMAIN not in known:
        return model
    if "com.microsoft" not in known:
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    masks = {node.output[0] for node in model.graph.node if node.domain == DOMAIN and node.op_type.endswith("Mask")}
    for info in [info for info in model.graph.value_info if info.name in masks]:
        model.graph.value_info.remove(info)
    model.functions.extend(made)
    return onnx.inliner.inline_local_functions(model)
