"""Members of the family as others wrote them: the same logits, biases and numbers of parameters.

Random small weights, nothing downloaded. transformers computes norms, softmax and rotary angles in float32 whatever the
model's type; `exact_transformers` tells it that float32 is float64, so that all can be compared to 1e-10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from conftest import ROOT
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PretrainedConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from grammarlab import cli
from grammarlab.config import FeedForwardName, ModelConfig, Norm, NormOrder, Positions, TrainConfig
from grammarlab.model import Decoder, alibi_slopes, relative_bucket

VOCABULARY, CONTEXT, WIDTH, HEADS, DEPTH, INNER = 37, 23, 24, 6, 3, 41
LLAMA: dict[str, Any] = {
    "positions": Positions.rotary,
    "norm": Norm.rms,
    "norm_order": NormOrder.pre,
    "feedforward": FeedForwardName.swiglu,
    "bias": False,
}
NO_PADDING = -1


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@contextmanager
def exact_transformers() -> Iterator[None]:
    """Where float32 is float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def randomise(model: nn.Module) -> None:
    """Weights of every kind, none as it begins."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.requires_grad_(False).named_parameters():
        parameter.normal_(std=0.3, generator=generator)
        if "norm" in name or ".ln_" in name:
            parameter += 1


def theirs_and_logits(
    kind: Callable[[Any], nn.Module], config: PretrainedConfig, tokens: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """The state dict of a model with random weights, and its logits."""
    with exact_transformers():
        model = kind(config).eval()
        randomise(model)
        return model.state_dict(), model(tokens).logits


def words() -> Tensor:
    return torch.randint(VOCABULARY, (5, CONTEXT), generator=torch.Generator().manual_seed(2))


def decoder(state: dict[str, Tensor], pad_id: int = NO_PADDING, **options: Any) -> Decoder:
    sizes: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "depth": DEPTH, "context": CONTEXT}
    config = ModelConfig(**(sizes | {"feedforward_multiple": INNER / WIDTH} | options))
    model = Decoder(config, vocabulary_size=VOCABULARY, pad_id=pad_id).eval().requires_grad_(False)
    model.load_state_dict(state)
    return model


def from_llama(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of LLaMA, Mistral and Qwen 3 to ours."""
    ours = {
        "token_embedding.weight": theirs["model.embed_tokens.weight"],
        "final_norm.weight": theirs["model.norm.weight"],
        "head.weight": theirs["lm_head.weight"],
    }
    for i in range(DEPTH):
        block, layer = f"blocks.{i}", f"model.layers.{i}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        ours |= {
            f"{block}.attention.qkv.weight": torch.cat([theirs[f"{attention}.{name}_proj.weight"] for name in "qkv"]),
            f"{block}.attention.out.weight": theirs[f"{attention}.o_proj.weight"],
            f"{block}.attention_norm.weight": theirs[f"{layer}.input_layernorm.weight"],
            f"{block}.feedforward.up.weight": torch.cat(
                [theirs[f"{mlp}.gate_proj.weight"], theirs[f"{mlp}.up_proj.weight"]]
            ),
            f"{block}.feedforward.down.weight": theirs[f"{mlp}.down_proj.weight"],
            f"{block}.feedforward_norm.weight": theirs[f"{layer}.post_attention_layernorm.weight"],
        }
        for ours_name, name in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            if f"{attention}.{name}.weight" in theirs:
                ours[f"{block}.attention.{ours_name}.weight"] = theirs[f"{attention}.{name}.weight"]
    return ours


def renamed(theirs: dict[str, Tensor], top: dict[str, str], block: str, parts: dict[str, str]) -> dict[str, Tensor]:
    """Their tensors by our names; GPT's linear maps, kept with inputs first, turned round."""
    names = top | {f"{block}.{i}.{part}": f"blocks.{i}.{ours}" for i in range(DEPTH) for part, ours in parts.items()}
    ours = {}
    for name, tensor in theirs.items():
        stem, part = name.rsplit(".", 1)
        ours[f"{names[stem]}.{part}"] = tensor.t() if re.search(r"\.c_(attn|proj|fc)\.", name) else tensor
    return ours


GPT_PARTS = {
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "ln_1": "attention_norm",
    "mlp.c_fc": "feedforward.up",
    "mlp.c_proj": "feedforward.down",
    "ln_2": "feedforward_norm",
}
MPT_PARTS = {
    "attn.Wqkv": "attention.qkv",
    "attn.out_proj": "attention.out",
    "norm_1": "attention_norm",
    "ffn.up_proj": "feedforward.up",
    "ffn.down_proj": "feedforward.down",
    "norm_2": "feedforward_norm",
}
TORCH_PARTS = {
    "self_attn.in_proj": "attention.qkv",
    "self_attn.out_proj": "attention.out",
    "norm1": "attention_norm",
    "linear1": "feedforward.up",
    "linear2": "feedforward.down",
    "norm2": "feedforward_norm",
}

LLAMA_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("tied", [False, True])
def test_llama(kv_heads: int, tied: bool) -> None:
    config = LlamaConfig(**LLAMA_SIZES, num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    theirs, logits = theirs_and_logits(LlamaForCausalLM, config, words())
    ours = decoder(from_llama(theirs), **LLAMA, kv_heads=kv_heads, tied_embeddings=tied)
    assert_close(ours(words()), logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("window", [1, 2, 5, CONTEXT - 1, CONTEXT, None])
def test_mistral(window: int | None) -> None:
    config = MistralConfig(**LLAMA_SIZES, num_key_value_heads=2, sliding_window=window)
    theirs, logits = theirs_and_logits(MistralForCausalLM, config, words())
    ours = decoder(from_llama(theirs), **LLAMA, kv_heads=2, window=window)
    assert_close(ours(words()), logits, rtol=0, atol=1e-10)
    if window is not None and window < CONTEXT:
        wider = decoder(from_llama(theirs), **LLAMA, kv_heads=2, window=window + 1)
        assert not torch.allclose(wider(words()), logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_qwen3(kv_heads: int) -> None:
    config = Qwen3Config(**LLAMA_SIZES, num_key_value_heads=kv_heads, tie_word_embeddings=False)
    theirs, logits = theirs_and_logits(Qwen3ForCausalLM, config, words())
    ours = decoder(from_llama(theirs), **LLAMA, kv_heads=kv_heads, qk_norm=True)
    assert_close(ours(words()), logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("activation", "feedforward"),
    [("gelu_new", FeedForwardName.gelu_tanh), ("gelu", FeedForwardName.gelu), ("relu", FeedForwardName.relu)],
)
def test_gpt2(activation: str, feedforward: FeedForwardName) -> None:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=DEPTH,
        n_head=HEADS,
        n_inner=INNER,
        activation_function=activation,
        attn_implementation="eager",
    )
    theirs, logits = theirs_and_logits(GPT2LMHeadModel, config, words())
    top = {
        "transformer.wte": "token_embedding",
        "transformer.wpe": "position_embedding",
        "transformer.ln_f": "final_norm",
        "lm_head": "head",
    }
    options = {"norm_order": NormOrder.pre, "feedforward": feedforward, "tied_embeddings": True}
    ours = decoder(renamed(theirs, top, "transformer.h", GPT_PARTS), **options)
    assert_close(ours(words()), logits, rtol=0, atol=1e-10)


def test_gpt1() -> None:
    config = OpenAIGPTConfig(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=DEPTH, n_head=HEADS, afn="gelu"
    )  # what they call gelu is gelu_new
    theirs, logits = theirs_and_logits(OpenAIGPTLMHeadModel, config, words())
    top = {
        "transformer.tokens_embed": "token_embedding",
        "transformer.positions_embed": "position_embedding",
        "lm_head": "head",
    }
    options = {"feedforward": FeedForwardName.gelu_tanh, "feedforward_multiple": 4, "tied_embeddings": True}
    ours = decoder(renamed(theirs, top, "transformer.h", GPT_PARTS), **options)
    assert_close(ours(words()), logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("heads", [1, 2, 4, 8])  # MPT has an order of its own where no power of 2
def test_mpt(heads: int) -> None:
    config = MptConfig(vocab_size=VOCABULARY, max_seq_len=CONTEXT, d_model=WIDTH, n_layers=DEPTH, n_heads=heads)
    theirs, logits = theirs_and_logits(MptForCausalLM, config, words())
    top = {"transformer.wte": "token_embedding", "transformer.norm_f": "final_norm", "lm_head": "head"}
    options: dict[str, Any] = {"positions": Positions.alibi, "norm_order": NormOrder.pre, "feedforward_multiple": 4}
    ours = decoder(
        renamed(theirs, top, "transformer.blocks", MPT_PARTS), heads=heads, bias=False, tied_embeddings=True, **options
    )
    assert_close(ours(words()), logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("feedforward", [FeedForwardName.gelu, FeedForwardName.relu])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("causal", [True, False])
def test_encoder_of_torch(causal: bool, norm_order: NormOrder, bias: bool, feedforward: FeedForwardName) -> None:
    """Both directions, with padding, and what the head reads."""
    pre = norm_order == NormOrder.pre
    kind = {"activation": feedforward.value, "norm_first": pre, "bias": bias, "dropout": 0.0, "batch_first": True}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, **kind)
    final = nn.LayerNorm(WIDTH, bias=bias) if pre else None
    encoder = nn.TransformerEncoder(layer, DEPTH, final, enable_nested_tensor=False)
    head, embedding = nn.Linear(WIDTH, VOCABULARY, bias=bias), nn.Embedding(VOCABULARY, WIDTH)
    whole = nn.ModuleDict({"encoder": encoder, "head": head, "embedding": embedding})
    randomise(whole)
    theirs = {name.replace("in_proj_", "in_proj."): tensor for name, tensor in whole.state_dict().items()}
    top = {"embedding": "token_embedding", "encoder.norm": "final_norm", "head": "head"}
    state = renamed(theirs, top, "encoder.layers", TORCH_PARTS)
    options = {"positions": Positions.none, "norm_order": norm_order, "bias": bias, "feedforward": feedforward}
    ours = decoder(state, causal=causal, pad_id=0, **options)

    tokens = words().clamp(min=1)
    for row, length in enumerate((1, 7, CONTEXT, 12, CONTEXT - 1)):
        tokens[row, length:] = 0
    real = tokens != 0
    later = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1) if causal else None
    hidden = encoder(embedding(tokens), mask=later, src_key_padding_mask=~real)
    assert_close(ours.hidden(tokens)[real], hidden[real], rtol=0, atol=1e-10)
    assert_close(ours(tokens)[real], head(hidden)[real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_relative_buckets_are_those_of_t5(causal: bool) -> None:
    distance = torch.arange(0 if causal else -300, 301)
    theirs = T5Attention._relative_position_bucket(-distance, bidirectional=not causal)  # theirs: key less query
    assert torch.equal(relative_bucket(distance, causal=causal), theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_the_relative_bias_of_a_head_is_that_of_t5(causal: bool) -> None:
    config = T5Config(d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, is_decoder=causal)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    randomise(theirs)
    ours = Decoder(
        ModelConfig(width=WIDTH, heads=HEADS, positions=Positions.relative, causal=causal),
        vocabulary_size=VOCABULARY,
        pad_id=NO_PADDING,
    ).requires_grad_(False)
    ours.relative_bias.load_state_dict(theirs.relative_attention_bias.state_dict())
    place = torch.arange(200)
    bias, expected = ours.distance_bias(place[:, None] - place), theirs.compute_bias(200, 200)[0]
    assert bias is not None
    if causal:  # what a token may not see has any bias
        bias, expected = bias.tril(), expected.tril()
    assert torch.equal(bias, expected)


@pytest.mark.parametrize("heads", range(1, 21))
def test_alibi_slopes_are_those_of_bloom(heads: int) -> None:
    with exact_transformers():
        bias = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float64)
    assert_close(alibi_slopes(heads), bias[:, 0, 1], rtol=1e-13, atol=0)  # what the key one place later gains


# ---- published numbers of parameters -----------------------------------------------------------------------


def parameters(config: ModelConfig, vocabulary: int) -> int:
    with torch.device("meta"):
        model = Decoder(config, vocabulary_size=vocabulary, pad_id=NO_PADDING)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "vocabulary", "count"),
    [
        ("gpt1", 40_478, 116_534_784),  # openai-gpt on huggingface.co
        ("gpt2", 50_257, 124_439_808),  # gpt2, the same
        ("gpt2-medium", 50_257, 354_823_168),  # the same
        ("gpt3-small", 50_257, 125_226_240),  # gpt2 and 1,024 positions of 768 more: Brown et al. 2020 say 125 M
        ("llama-like", 32_000, 15_191_712),  # stories15M of llama2.c
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, vocabulary: int, count: int) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = cli.to_config(compose("train", [f"model={name}"]), TrainConfig).model
    assert parameters(config, vocabulary) == count


def test_tinyllama_has_1100048384_parameters() -> None:
    # TinyLlama/TinyLlama-1.1B on huggingface.co.
    sizes: dict[str, Any] = {"width": 2048, "depth": 22, "heads": 32, "kv_heads": 4, "context": 2048}
    assert parameters(ModelConfig(**sizes, **LLAMA, feedforward_multiple=5632 / 2048), 32_000) == 1_100_048_384
