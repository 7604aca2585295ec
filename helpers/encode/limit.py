"""How fast could it be: the arithmetic that a text needs, over what this machine can do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

from helpers.errors import InputError

if TYPE_CHECKING:
    from transformers import ModernBertConfig


@dataclass(frozen=True)
class Work:
    """What one text costs, in 10^9 operations (a multiplication and an addition are two).

    Attributes
    ----------
    linear
        The linear layers, which quantising turns into INT8.
    attention
        Scores and weighted sums, which stay float32.
    weights
        Numbers of the linear layers, in 10^9: each is read once a run.
    """

    linear: float
    attention: float
    weights: float

    def seconds(self, linear_gops: float, attention_gflops: float) -> float:
        """The least time, if nothing but this arithmetic took any. Rates in 10^9 operations a second.

        Raises
        ------
        InputError
            If a rate is no finite number above 0.
        """
        for name, rate in (("linear_gops", linear_gops), ("attention_gflops", attention_gflops)):
            if not isinstance(rate, Real) or not 0 < rate < math.inf:  # NaN is not above 0 either
                raise InputError(f"seconds: {name}={rate!r}: give a rate above 0, as bench measures it")
        return self.linear / linear_gops + self.attention / attention_gflops


def work(config: ModernBertConfig, tokens: int, banded: bool = False) -> Work:
    """Count the operations for one text of `tokens` tokens.

    `banded`: local layers compute only the pairs they look at (the exact number; blocks compute half as many again),
    otherwise all pairs.

    Raises
    ------
    InputError
        If tokens is no whole number, or below 1.
    """
    if isinstance(tokens, bool) or not isinstance(tokens, Integral) or tokens < 1:
        raise InputError(f"work: tokens={tokens!r}: give a whole number, 1 or more")
    tokens = int(tokens)  # numpy's would overflow without a word
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    weights = layers * (3 * hidden * hidden + hidden * hidden + 2 * hidden * inner + inner * hidden)
    side = config.local_attention // 2
    near = sum(min(at, side) + min(tokens - 1 - at, side) + 1 for at in range(tokens)) if banded else tokens**2
    global_layers = -(-layers // config.global_attn_every_n_layers)
    pairs = global_layers * tokens**2 + (layers - global_layers) * near
    return Work(2 * weights * tokens / 1e9, 4 * hidden * pairs / 1e9, weights / 1e9)
