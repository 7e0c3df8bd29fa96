"""A decoder's weights as arrays, for the compiled steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from grammarlab.compiled.functions import GELU, GELU_TANH, RELU, SWIGLU, Array
from grammarlab.config import FeedForwardName, Norm, NormOrder, Positions
from grammarlab.model import Block, Decoder, rotation

_ACTIVATIONS = {
    FeedForwardName.gelu: GELU,
    FeedForwardName.gelu_tanh: GELU_TANH,
    FeedForwardName.relu: RELU,
    FeedForwardName.swiglu: SWIGLU,
}


class Linear(NamedTuple):
    weight: Array  # (out, in)
    bias: Array  # (out,)


class Scale(NamedTuple):
    """Of a norm; empty where there is none."""

    weight: Array  # (n,)
    bias: Array  # (n,)


class Layer(NamedTuple):
    """A block's weights. A norm stands after the sum that it is taken of, whichever block it belongs to."""

    qkv: Linear
    query_norm: Scale
    key_norm: Scale
    out: Linear
    after_attention: Scale
    up: Linear
    down: Linear
    after_feedforward: Scale


class Options(NamedTuple):
    heads: int
    qk_norm: bool
    centred: bool  # layer norm, not RMS norm
    post: bool  # the norm replaces the sum
    activation: int


class Places(NamedTuple):
    """What tells positions; empty where the model has no such thing."""

    embedding: Array  # (N, C), added to the tokens'
    bias: Array  # (H, N) by distance, added to the scores
    cos: Array  # (N, D / 2), by which queries and keys are turned
    sin: Array


class Weights(NamedTuple):
    embedding: Array  # (V, C)
    places: Places
    first: Scale  # norm_order=pre: of the first block
    layers: tuple[Layer, ...]
    head: Linear
    logit_mask: Array  # (V,)


def options_of(model: Decoder) -> Options:
    config = model.config
    return Options(
        heads=config.heads,
        qk_norm=config.qk_norm,
        centred=config.norm == Norm.layer,
        post=config.norm_order == NormOrder.post,
        activation=_ACTIVATIONS[config.feedforward],
    )


def weights_of(model: Decoder) -> Weights:
    """The weights themselves where they lie, not a copy."""
    config = model.config
    embedding = _array(model.token_embedding.weight)
    nothing = embedding[:0, 0]
    none = Scale(nothing, nothing)
    blocks: list[Any] = list(model.blocks)
    post = config.norm_order == NormOrder.post

    def linear(module: Any) -> Linear:
        weight, bias = _array(module.weight), module.bias
        return Linear(weight, np.zeros(len(weight), weight.dtype) if bias is None else _array(bias))

    def scale(module: nn.Module) -> Scale:
        if isinstance(module, nn.Identity):
            return none
        weight: Any = module.weight
        bias: Any = getattr(module, "bias", None)
        return Scale(_array(weight), np.zeros(len(weight), embedding.dtype) if bias is None else _array(bias))

    def layer(index: int, block: Block) -> Layer:
        following = blocks[index + 1].attention_norm if index + 1 < len(blocks) else model.final_norm
        attention, feedforward = block.attention, block.feedforward
        return Layer(
            qkv=linear(attention.qkv),
            query_norm=scale(attention.query_norm),
            key_norm=scale(attention.key_norm),
            out=linear(attention.out),
            after_attention=scale(block.attention_norm if post else block.feedforward_norm),
            up=linear(feedforward.up),
            down=linear(feedforward.down),
            after_feedforward=scale(block.feedforward_norm if post else following),
        )

    return Weights(
        embedding=embedding,
        places=_places_of(model),
        first=none if post else scale(blocks[0].attention_norm),
        layers=tuple(layer(index, block) for index, block in enumerate(blocks)),
        head=linear(model.head),
        logit_mask=_array(model.logit_mask),
    )


def _places_of(model: Decoder) -> Places:
    config, dtype = model.config, model.token_embedding.weight.dtype
    none = torch.empty(0, 0, dtype=dtype)
    embedding, cos, sin = none, none, none
    if config.positions == Positions.learned:
        embedding = model.position_embedding.weight
    elif config.positions == Positions.sinusoidal:
        embedding = model.position_table
    elif config.positions == Positions.rotary:
        cos, sin = rotation(torch.arange(config.context), config.width // config.heads)
    bias = model.distance_bias(torch.arange(config.context))
    bias = torch.empty(config.heads, 0) if bias is None else bias
    return Places(*(_array(each.to(dtype)) for each in (embedding, bias, cos, sin)))


def _array(tensor: Tensor) -> Array:
    return tensor.detach().contiguous().numpy()
