"""Quantisation simulated in torch, so that a model can be trained with the errors that it will have when it is served.

Numbers are rounded on the way forward and gradients pass as if they had not been (the straight-through estimator).
Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", arXiv:1712.05877; the rounding is onnxruntime's, as `quantize` uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.nn.utils import parametrize

from helpers.encode.recipe import INT8_INT4, Recipe
from helpers.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextlib.contextmanager
def fake_quantized(model: PreTrainedModel, recipe: Recipe = INT8_INT4) -> Iterator[PreTrainedModel]:
    """Within the context, a model computes nearly what its quantised file would; afterwards it has float32 weights.

    Simulated are the weights and the activations of all linear layers (8 bits, or 7 if the recipe or this CPU asks for
    it) and the token table's blocks (4 bits). Training within the context changes the float32 weights behind them.

    Parameters
    ----------
    model
        An encoder in float32 whose table is `get_input_embeddings`.
    recipe
        "int8" linear layers with symmetric int8 weights, and a symmetric "int4" table or none.

    Raises
    ------
    InputError
        If the recipe is of another kind, or the table's width is no multiple of its block.
    """
    recipe = recipe.settled()
    known = recipe.linear == "int8" and recipe.weights == "int8" and recipe.symmetric and recipe.table_symmetric
    if not known or recipe.only != ("*",) or recipe.keep:
        raise InputError(f"fake_quantized: recipe {recipe.name!r}: give one with all linear layers in symmetric int8")
    table = model.get_input_embeddings()
    if recipe.table and table.weight.shape[1] % recipe.table_block:
        raise InputError(
            f"fake_quantized: a table of width {table.weight.shape[1]} has no whole blocks of {recipe.table_block}"
        )
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    weights = _Weights(64 if recipe.reduce_range else 127, recipe.per_channel)
    hooks = [module.register_forward_pre_hook(_activations) for module in linear]
    if recipe.table:
        hooks.append(table.register_forward_hook(lambda _, __, rows: _blocks(rows, recipe.table_block)))
    for module in linear:
        parametrize.register_parametrization(module, "weight", weights)
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()
        for module in linear:
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


class _Weights(torch.nn.Module):
    """(out, in) weights rounded to -most..most, with a scale for each output or one for all."""

    def __init__(self, most: int, per_channel: bool) -> None:
        super().__init__()
        self.most, self.per_channel = most, per_channel

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        size = weight.detach().abs()
        scale = (size.amax(1, keepdim=True) if self.per_channel else size.amax()).clamp_min(1e-12) / self.most
        return _through(weight, (weight.detach() / scale).round() * scale)


def _activations(_: torch.nn.Module, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """One scale and zero point for the whole tensor, as DynamicQuantizeLinear has them."""
    x = arguments[0].detach()
    low, high = x.amin().clamp_max(0), x.amax().clamp_min(0)
    scale = ((high - low) / 255).clamp_min(1e-12)
    zero = (-low / scale).round()
    return (_through(arguments[0], ((x / scale).round() + zero).clamp(0, 255).sub(zero) * scale),)


def _blocks(rows: torch.Tensor, block: int) -> torch.Tensor:
    """Rows of the table, each block scaled so that its largest number becomes -8."""
    x = rows.detach().unflatten(-1, (-1, block))
    largest = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    scale = torch.where(largest == 0, 1, largest / -8)
    return _through(rows, ((x / scale).round().clamp(-8, 7) * scale).flatten(-2))


def _through(x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """`rounded` on the way forward, `x` on the way back."""
    return x + (rounded - x.detach())
