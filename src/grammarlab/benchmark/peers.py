"""One of our models, and models of other libraries that compute the same with its weights.

Each gives a function from (B, T) prompts and a number of tokens to the (B, T + new) rows of its own greedy generation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grammarlab import gpt2
from grammarlab.config import ConfigError, FeedForwardName, ModelConfig, Norm, NormOrder, Positions
from grammarlab.generation import How, Sampling, generate
from grammarlab.model import Decoder

Greedy = Callable[[Tensor, int], Tensor]

# The options that each library has, at any size.
GPT: dict[str, Any] = {"positions": Positions.learned, "norm_order": NormOrder.pre, "tied_embeddings": True}
LLAMA: dict[str, Any] = {
    "positions": Positions.rotary,
    "norm": Norm.rms,
    "norm_order": NormOrder.pre,
    "feedforward": FeedForwardName.swiglu,
    "bias": False,
}


def new_model(config: ModelConfig, vocabulary: int, seed: int, std: float = 0.3) -> Decoder:
    """Matrices large enough that the most probable token changes from place to place; no bias is in the way of a peer
    without it."""
    torch.manual_seed(seed)
    model = Decoder(config, vocabulary_size=vocabulary, pad_id=0).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.normal_(std=std)
        else:
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    return model


@contextmanager
def _peer(library: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        try:
            yield
        except ImportError:
            raise ConfigError(f"benchmark=generation: needs {library}, which the extra `dev` installs") from None


def greedy_of(model: Decoder, *, cache: bool | None = None) -> Greedy:
    """Ours."""

    def greedy(prompts: Tensor, new: int) -> Tensor:
        how = How(sampling=Sampling(temperature=0), max_new_tokens=new, cache=cache)
        return generate(model, prompts.tolist(), end_id=-1, how=how).tokens  # no token ends a row

    return greedy


def transformers_greedy(model: Decoder) -> Greedy:
    """`generate` of a GPT2LMHeadModel, cached."""
    peer: Any = gpt2.to_gpt2(model)
    peer.generation_config = type(peer.generation_config)(do_sample=False, pad_token_id=0)  # no token ends a row

    def greedy(prompts: Tensor, new: int) -> Tensor:
        return peer.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new)

    return greedy


def x_transformers_greedy(model: Decoder) -> Greedy:
    """`generate` of an AutoregressiveWrapper, cached."""
    config = model.config
    with _peer("x-transformers"):
        from x_transformers import AutoregressiveWrapper, TransformerWrapper
        from x_transformers import Decoder as Layers
    layers = Layers(
        dim=config.width,
        depth=config.depth,
        heads=config.heads,
        attn_dim_head=config.width // config.heads,
        ff_mult=config.feedforward_multiple,
        attn_flash=True,
    )
    vocabulary = len(model.token_embedding.weight)
    net = TransformerWrapper(
        num_tokens=vocabulary, max_seq_len=config.context, tie_embedding=config.tied_embeddings, attn_layers=layers
    )
    state = model.state_dict()
    weights = {
        "token_emb.emb.weight": state["token_embedding.weight"],
        "pos_emb.emb.weight": state["position_embedding.weight"] * config.width**0.5,  # which it divides by
        "attn_layers.final_norm.gamma": state["final_norm.weight"],
    }
    for i in range(config.depth):
        ours, attention, feedforward = f"blocks.{i}", f"attn_layers.layers.{2 * i}", f"attn_layers.layers.{2 * i + 1}"
        weights[f"{attention}.0.0.gamma"] = state[f"{ours}.attention_norm.weight"]
        for letter, part in zip("qkv", state[f"{ours}.attention.qkv.weight"].chunk(3), strict=True):
            weights[f"{attention}.1.to_{letter}.weight"] = part
        weights[f"{attention}.1.to_out.weight"] = state[f"{ours}.attention.out.weight"]
        weights[f"{feedforward}.0.0.gamma"] = state[f"{ours}.feedforward_norm.weight"]
        for place, name in (("0.0", "up"), ("2", "down")):
            for kind in ("weight", "bias"):
                weights[f"{feedforward}.1.ff.{place}.{kind}"] = state[f"{ours}.feedforward.{name}.{kind}"]
    for name, weight in weights.items():
        if name.endswith("gamma"):  # some norms count from 1
            weights[name] = weight - float(net.get_submodule(name.removesuffix(".gamma")).unit_offset)
    net.load_state_dict(weights)
    peer = AutoregressiveWrapper(net.to(model.token_embedding.weight)).eval()

    def greedy(prompts: Tensor, new: int) -> Tensor:
        return torch.cat([prompts, peer.generate(prompts, new, temperature=0.0, cache_kv=True)], dim=1)

    return greedy


def litgpt_greedy(model: Decoder, batch: int) -> Greedy:
    """`generate`, for several rows `batched_generate_fn`, of a GPT with a cache for `batch` rows."""
    config = model.config
    with _peer("litgpt"):
        from litgpt.config import Config
        from litgpt.generate.base import batched_generate_fn, generate
        from litgpt.model import GPT as LitGPT
    vocabulary = len(model.token_embedding.weight)
    peer = LitGPT(
        Config(
            block_size=config.context,
            vocab_size=vocabulary,
            padded_vocab_size=vocabulary,
            n_layer=config.depth,
            n_head=config.heads,
            n_embd=config.width,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            norm_eps=1e-5,
            mlp_class_name="LLaMAMLP",
            intermediate_size=config.feedforward_width,
        )
    )
    state = model.state_dict()
    weights = {
        "lm_head.weight": state["head.weight"],
        "transformer.wte.weight": state["token_embedding.weight"],
        "transformer.ln_f.weight": state["final_norm.weight"],
    }
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        gate, value = state[f"{ours}.feedforward.up.weight"].chunk(2)
        weights |= {
            f"{theirs}.norm_1.weight": state[f"{ours}.attention_norm.weight"],
            f"{theirs}.attn.qkv.weight": state[f"{ours}.attention.qkv.weight"],
            f"{theirs}.attn.proj.weight": state[f"{ours}.attention.out.weight"],
            f"{theirs}.norm_2.weight": state[f"{ours}.feedforward_norm.weight"],
            f"{theirs}.mlp.fc_1.weight": gate,
            f"{theirs}.mlp.fc_2.weight": value,
            f"{theirs}.mlp.proj.weight": state[f"{ours}.feedforward.down.weight"],
        }
    peer.load_state_dict(weights)
    weight = model.token_embedding.weight
    peer.to(weight.device, weight.dtype).eval()
    peer.set_kv_cache(batch_size=batch, device=weight.device, dtype=weight.dtype)

    @torch.inference_mode()
    def greedy(prompts: Tensor, new: int) -> Tensor:
        limit = prompts.shape[1] + new
        if batch == 1:
            return generate(peer, prompts[0], limit, temperature=0.0, top_p=0.0)[None]
        tokens = batched_generate_fn(
            peer, prompts, limit, sample_args={"temperature": 0.0, "top_p": 0.0}, include_prompt=False, include_eos=True
        )
        return torch.cat([prompts, torch.stack([torch.cat(row) for row in tokens], dim=1)], dim=1)

    return greedy
