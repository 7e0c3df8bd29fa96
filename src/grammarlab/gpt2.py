"""A decoder as GPT-2 of the library transformers, and back: the model, and a folder with it, its words and its run.

GPT-2 is one member of the decoder's family: what the others have and it has not is refused, never dropped. Its logits
are the decoder's, apart from those of the tokens that are never generated, which it has to be told not to draw: its
`generation_config.json` does.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from torch import Tensor, nn

from grammarlab.config import ConfigError, FeedForwardName, ModelConfig, Norm, NormOrder, Positions
from grammarlab.language import BEGIN, END, PAD
from grammarlab.model import Decoder
from grammarlab.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

RUN = "grammarlab.yaml"  # the run's own options, in the folder

# The decoder's options that GPT-2 has no choice in. Its sizes, activation and dropout are free, its heads of keys and
# values as many as of queries.
FIXED: dict[str, Any] = {
    "causal": True,
    "window": None,
    "positions": Positions.learned,
    "uniform_attention": False,
    "qk_norm": False,
    "norm": Norm.layer,
    "norm_order": NormOrder.pre,
    "bias": True,
    "tied_embeddings": True,
}
ACTIVATIONS = {FeedForwardName.gelu: "gelu", FeedForwardName.gelu_tanh: "gelu_new", FeedForwardName.relu: "relu"}

# GPT-2's options that the decoder has no choice in; `reorder_and_upcast_attn` is the same function in other digits.
GPT2_FIXED: dict[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
    "attn_pdrop": 0.0,
}

# Our layers and GPT-2's. Those of a block are Conv1D there, whose matrices are (in, out): the transposes.
LAYERS = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "blocks.*.attention_norm": "transformer.h.*.ln_1",
    "blocks.*.attention.qkv": "transformer.h.*.attn.c_attn",
    "blocks.*.attention.out": "transformer.h.*.attn.c_proj",
    "blocks.*.feedforward_norm": "transformer.h.*.ln_2",
    "blocks.*.feedforward.up": "transformer.h.*.mlp.c_fc",
    "blocks.*.feedforward.down": "transformer.h.*.mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
}

# ---- the model -----------------------------------------------------------------------------------------------------


def to_gpt2(model: Decoder, *, begin_id: int | None = None, end_id: int | None = None) -> GPT2LMHeadModel:
    """A copy with the same logits, that draws as the decoder does: from its own distribution, as far as it can see.

    Raises `ConfigError` that names every option which GPT-2 has not.
    """
    _check(model.config)
    with _transformers() as transformers:
        config, ids = model.config, {"bos_token_id": begin_id, "eos_token_id": end_id, "pad_token_id": model.pad_id}
        with torch.random.fork_rng(devices=[]):
            gpt2 = transformers.GPT2LMHeadModel(
                transformers.GPT2Config(
                    vocab_size=model.token_embedding.num_embeddings,
                    n_positions=config.context,
                    n_embd=config.width,
                    n_layer=config.depth,
                    n_head=config.heads,
                    n_inner=config.feedforward_width,
                    activation_function=ACTIVATIONS[config.feedforward],
                    resid_pdrop=config.dropout,
                    embd_pdrop=config.dropout,
                    **ids,
                    **GPT2_FIXED,
                )
            )
        gpt2.generation_config = transformers.GenerationConfig(
            **ids,
            do_sample=True,
            top_k=0,  # else the 50 likeliest alone
            max_length=config.context + 1,  # the last token is never read
            suppress_tokens=model.logit_mask.isneginf().nonzero().flatten().tolist() or None,
        )
    weights = {_gpt2_name(name): _turned(name, weight) for name, weight in model.state_dict().items()}
    _like(gpt2, model.token_embedding.weight).load_state_dict(weights)
    return gpt2.train(model.training)


def from_gpt2(gpt2: GPT2LMHeadModel, *, pad_id: int, never_generated: Sequence[int] = ()) -> Decoder:
    """A copy with the same logits, but −inf at `never_generated`.

    Raises `ConfigError` that names every option which the decoder has not. `attn_pdrop`, of training alone, is one of
    them: say `gpt2.config.attn_pdrop = 0` to do without it.
    """
    with torch.random.fork_rng(devices=[]):
        model = Decoder(
            model_config(gpt2.config),
            vocabulary_size=gpt2.config.vocab_size,
            pad_id=pad_id,
            never_generated=never_generated,
        )
    theirs = gpt2.state_dict()
    weights = {name: _turned(name, theirs[_gpt2_name(name)]) for name in model.state_dict()}
    _like(model, gpt2.transformer.wte.weight).load_state_dict(weights)
    return model.train(gpt2.training)


def _check(config: ModelConfig) -> None:
    """Raises `ConfigError` that names every option which GPT-2 has not, its value, and what GPT-2 has."""
    wrong = {name: value for name, value in FIXED.items() if getattr(config, name) != value}
    if config.kv_heads not in (None, config.heads):
        wrong["kv_heads"] = None
    if config.feedforward not in ACTIVATIONS:
        wrong["feedforward"] = " or ".join(ACTIVATIONS)
    _refuse(wrong, config, "model.", "GPT-2")


def model_config(config: GPT2Config) -> ModelConfig:
    """The decoder's options. Raises `ConfigError` that names every option of GPT-2 which it has not."""
    activations = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    wrong = {name: value for name, value in GPT2_FIXED.items() if getattr(config, name) != value}
    if config.activation_function not in activations:
        wrong["activation_function"] = " or ".join(activations)
    if config.embd_pdrop != config.resid_pdrop:
        wrong["embd_pdrop"] = f"resid_pdrop={config.resid_pdrop}"
    _refuse(wrong, config, "", "grammarlab's decoder")
    return ModelConfig(
        width=config.n_embd,
        heads=config.n_head,
        depth=config.n_layer,
        context=config.n_positions,
        feedforward=activations[config.activation_function],
        feedforward_multiple=4 if config.n_inner is None else config.n_inner / config.n_embd,
        dropout=config.resid_pdrop,
        **FIXED,
    )


def _refuse(wrong: Mapping[str, Any], config: ModelConfig | GPT2Config, prefix: str, whose: str) -> None:
    """`wrong`: the options at fault and what each has to be."""
    if wrong:
        are = ", ".join(f"{prefix}{name}={_written(getattr(config, name))}" for name in wrong)
        must = ", ".join(f"{name}={_written(value)}" for name, value in wrong.items())
        raise ConfigError(f"{are}: {whose} has {must}")


def _written(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _gpt2_name(name: str) -> str:
    """Of one of our parameters."""
    layer, _, kind = name.rpartition(".")
    index = re.search(r"\d+", layer)
    found = LAYERS[re.sub(r"\d+", "*", layer)]
    return f"{found.replace('*', index[0]) if index else found}.{kind}"


def _turned(name: str, weight: Tensor) -> Tensor:
    """A weight of our name as the other side has it."""
    return weight.T if name.startswith("blocks.") and weight.ndim == 2 else weight


def _like(module: nn.Module, weight: Tensor) -> nn.Module:
    return module.to(weight.device, weight.dtype)


# ---- the folder ----------------------------------------------------------------------------------------------------


def write(folder: Path, model: Decoder, vocabulary: Vocabulary, run: Mapping[str, Any]) -> None:
    """What `transformers` loads, and `run`, the options that the model was trained with, as plain containers.

    Raises `ConfigError` as `to_gpt2`, with nothing written, and `OSError`.
    """
    gpt2 = to_gpt2(model, begin_id=vocabulary.begin_id, end_id=vocabulary.end_id)
    folder.mkdir(parents=True, exist_ok=True)
    # First, so that what an interrupted export leaves is known as an export.
    (folder / RUN).write_text(yaml.safe_dump(dict(run), sort_keys=False, allow_unicode=True), encoding="utf-8")
    with _transformers():
        new_tokenizer(vocabulary, model.config.context).save_pretrained(folder)
        gpt2.save_pretrained(folder)


def new_tokenizer(vocabulary: Vocabulary, context: int) -> PreTrainedTokenizerFast:
    """Words between blanks to their ids, begin in front.

    It raises an `Exception` for an unknown word, without its name: the library has no other kind.
    """
    with _transformers() as transformers:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors  # type: ignore[import-untyped]

        ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        # The token for unknown words has a blank, as no word has: there is none, so that they are refused.
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token="no word"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, vocabulary.begin_id)]
        )
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=BEGIN,
            eos_token=END,
            pad_token=PAD,
            padding_side="left",  # where a prompt must be padded to go on from
            model_max_length=context,
            model_input_names=["input_ids", "attention_mask"],  # GPT-2 would add the embeddings of token_type_ids
            split_special_tokens=True,  # else a word such as `x<end>y` would be three
            clean_up_tokenization_spaces=False,  # `a .` stays two words
        )


def read_run(folder: Path) -> Any:
    """The options of the run, as plain containers. Raises `ConfigError` for a folder that is not of `write`."""
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        raise ConfigError("is a folder without a readable config.json, so not a GPT-2 of src/export.py") from None
    if kind != "gpt2":
        raise ConfigError(f"its config.json has model_type={kind}; only gpt2 can be read")
    try:
        return yaml.safe_load((folder / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"is a GPT-2 without {RUN}, so its language is not known: copy that of its export, or in code use "
            "grammarlab.gpt2.from_gpt2"
        ) from None
    except (OSError, ValueError, yaml.YAMLError):
        raise ConfigError(f"its {RUN} cannot be read as YAML") from None


def read_weights(folder: Path, config: ModelConfig, vocabulary: Vocabulary) -> dict[str, Tensor]:
    """The decoder's state dict. Raises `ConfigError` where the folder's GPT-2 or words are not those of the run."""
    with _transformers() as transformers:
        try:
            gpt2, info = transformers.GPT2LMHeadModel.from_pretrained(
                folder,
                dtype="auto",
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # said below, in one line
            )
        except Exception as error:  # of many kinds, for files that are missing or cut short
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ConfigError(f"transformers cannot read it: {reason}") from error
    resized = (name for name, *_ in info["mismatched_keys"])
    if wrong := sorted({*info["missing_keys"], *info["unexpected_keys"], *resized}):
        raise ConfigError(f"its weights are not those of its config.json: {wrong[0]}")
    _check_fit(model_config(gpt2.config), config)
    tokens = {token: index for index, token in enumerate(vocabulary.tokens)}
    if gpt2.config.vocab_size != len(tokens):
        raise ConfigError(
            f"the language of {RUN} has {len(tokens)} tokens, but config.json has vocab_size={gpt2.config.vocab_size}"
        )
    if (folder / "tokenizer.json").exists() and _tokens(folder / "tokenizer.json") != tokens:
        raise ConfigError(f"the language of {RUN} has other words, or another order of them, than tokenizer.json")
    return from_gpt2(gpt2, pad_id=vocabulary.pad_id).state_dict()


def _check_fit(found: ModelConfig, config: ModelConfig) -> None:
    multiple = config.feedforward_width / config.width
    same = dataclasses.replace(config, kv_heads=None, feedforward_multiple=multiple)  # said in one way of several
    for field in dataclasses.fields(ModelConfig):
        ours, theirs = getattr(same, field.name), getattr(found, field.name)
        if ours != theirs:
            raise ConfigError(
                f"its {RUN} has model.{field.name}={_written(ours)}, but its GPT-2 has {_written(theirs)}"
            )


def _tokens(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    except (ValueError, KeyError, TypeError):
        return None


@contextmanager
def _transformers() -> Iterator[Any]:
    """The library, without its progress bars and remarks. Raises `ConfigError` where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(f'GPT-2 needs transformers ({error}): pip install "grammarlab[gpt2]"') from None
    library: Any = transformers  # half of it has no types
    logging = library.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield library
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
