"""The arithmetic of an encoder, against what torch counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.encode.limit import Work, work
from helpers.encode.load import configuration
from helpers.errors import InputError


@pytest.mark.parametrize("tokens", [40, 200])
def test_operations_are_those_that_torch_counts(mini_torch, tokens: int) -> None:
    model, ids = mini_torch[0], torch.full((1, tokens), 7)
    # torch does not count inside its tiled kernel; the plain one shows its products
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    counts = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    attention = counts["aten.bmm"]  # and the angles of the rotary embedding, far below one hundredth of it
    linear = sum(n for op, n in counts.items() if op in ("aten.mm", "aten.addmm"))
    found = work(model.config, tokens)
    assert found.linear == pytest.approx(linear / 1e9)
    assert found.attention == pytest.approx(attention / 1e9, rel=0.01)


def test_a_band_is_all_of_a_short_text_and_little_of_a_long_one() -> None:
    config = configuration("mmbert-small")
    assert work(config, 65, banded=True) == work(config, 65)
    one, long = work(config, 66, banded=True), work(config, 8192, banded=True)
    assert one.attention < work(config, 66).attention
    # 8 of 22 layers are global; the others see 129 of 8192 tokens at most
    assert long.attention / work(config, 8192).attention == pytest.approx(8 / 22 + 14 / 22 * 129 / 8192, rel=0.01)
    assert long.linear == work(config, 8192).linear


def test_the_least_time_adds_both_kinds() -> None:
    assert Work(linear=20, attention=3, weights=1).seconds(linear_gops=10, attention_gflops=6) == 2.5


@pytest.mark.parametrize("tokens", [0, -5, float("nan"), 2.5, 64.0, None, "64", True])
def test_what_is_no_number_of_tokens_is_refused(tokens: object) -> None:
    with pytest.raises(InputError, match=rf"tokens={tokens!r}: give a whole number, 1 or more$"):
        work(configuration("mmbert-small"), tokens)


def test_a_count_may_be_numpys() -> None:
    config = configuration("mmbert-small")
    assert work(config, np.int32(8192)) == work(config, 8192)  # whose products pass 2^31


@pytest.mark.parametrize("rate", [0, -1, 0.0, float("nan"), float("inf"), None, "10"])
def test_what_is_no_rate_is_refused(rate: object) -> None:
    one = Work(linear=20, attention=3, weights=1)
    with pytest.raises(InputError, match=f"linear_gops={rate!r}: give a rate above 0"):
        one.seconds(rate, 6)
    with pytest.raises(InputError, match=f"attention_gflops={rate!r}: give a rate above 0"):
        one.seconds(10, rate)
