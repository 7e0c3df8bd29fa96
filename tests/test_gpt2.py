"""GPT-2 in and out: the same function on both sides, and a folder that keeps all of a run."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT, Ended, small_config
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from grammarlab import gpt2, parts
from grammarlab.config import ConfigError, ExportConfig, FeedForwardName, ModelConfig, Norm, NormOrder, Positions
from grammarlab.generation import How, Sampling, generate
from grammarlab.model import Decoder
from grammarlab.run import train
from grammarlab.vocabulary import Vocabulary

Command = Callable[..., Ended]
PAD, BEGIN, END = 0, 1, 2
NEVER = (PAD, BEGIN)
PRE = {"norm_order": NormOrder.pre, "tied_embeddings": True}
SIZES: list[dict[str, Any]] = [
    {"width": 10, "heads": 5, "depth": 2, "context": 11, "feedforward_multiple": 3},
    {"width": 21, "heads": 3, "depth": 3, "context": 7, "feedforward_multiple": 1.7, "kv_heads": 3},
    {"width": 13, "heads": 1, "depth": 1, "context": 17},
]
# More of them than the 50 from which transformers draws when nothing else is said.
WORDS = [
    "a",
    "b",
    ".",
    "don't",
    "x<end>y",
    "-<end>-",
    "<<pad>>",
    "<unk>",
    "[UNK]",
    '"',
    "日本",
    "é",
    "e\u0301",
    "$A",
    "a:0",
]
VOCABULARY = Vocabulary(WORDS + [f"w{i}" for i in range(47)])


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tried: list[object] = []

    def refuse(*arguments: object) -> None:
        tried.append(arguments)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not tried


def decoder(
    seed: int = 1, vocabulary: int = len(VOCABULARY), dtype: torch.dtype = torch.float64, **options: Any
) -> Decoder:
    """With no weight of the kind that it begins with, and large matrices."""
    config = ModelConfig(**(SIZES[0] | PRE | options))
    model = Decoder(config, vocabulary_size=vocabulary, pad_id=PAD, never_generated=NEVER).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.requires_grad_(False).named_parameters():
        parameter.normal_(std=0.5 if parameter.ndim == 2 else 0.2, generator=generator)
        if name.endswith("norm.weight"):
            parameter += 1
    return model.eval()


def random_gpt2(seed: int = 1, **options: Any) -> GPT2LMHeadModel:
    sizes = {"vocab_size": 19, "n_positions": 11, "n_embd": 10, "n_layer": 2, "n_head": 5, "attn_pdrop": 0}
    model = GPT2LMHeadModel(GPT2Config(**(sizes | {"bos_token_id": BEGIN, "eos_token_id": END} | options)))
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.requires_grad_(False).parameters():
        parameter.normal_(std=0.5, generator=generator)
    return model.double().eval()


def tokens_of(model: Decoder, batch: int = 3, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, model.token_embedding.num_embeddings, (batch, model.config.context), generator=generator)
    tokens[:, 0] = BEGIN
    return tokens


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == weight.dtype and torch.equal(found[name], weight), name


# ---- the model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feedforward", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gpt2_has_the_decoders_logits(sizes: dict[str, Any], feedforward: str) -> None:
    model = decoder(**sizes, feedforward=FeedForwardName(feedforward))
    tokens = tokens_of(model)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        ours = model.to(dtype)(tokens)
        theirs = gpt2.to_gpt2(model)(tokens).logits
        assert theirs.dtype == dtype
        assert_close(theirs[..., END:], ours[..., END:], rtol=0, atol=tolerance)
        assert ours[..., :END].isneginf().all()
    assert ours[..., END:].std() > 0.5  # weights that say something


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("options", [{}, {"n_inner": 7}, {"n_layer": 3, "n_head": 2}], ids=str)
def test_the_decoder_has_gpt2s_logits(options: dict[str, Any], activation: str) -> None:
    theirs = random_gpt2(activation_function=activation, **options)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = gpt2.from_gpt2(theirs.to(dtype), pad_id=PAD, never_generated=(PAD,))
        tokens = tokens_of(model)
        assert_close(model(tokens)[..., 1:], theirs(tokens).logits[..., 1:], rtol=0, atol=tolerance)
        assert model(tokens)[..., 0].isneginf().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_there_and_back_is_exact(sizes: dict[str, Any], dtype: torch.dtype) -> None:
    model = decoder(**sizes, dtype=dtype, dropout=0.1)
    there = gpt2.to_gpt2(model)
    back = gpt2.from_gpt2(there, pad_id=PAD, never_generated=NEVER)
    assert_same_weights(back.state_dict(), model.state_dict())
    assert not there.training and not back.training
    assert back.head.weight is back.token_embedding.weight
    assert torch.equal(back.logit_mask, model.logit_mask)
    assert back.config == dataclasses.replace(
        model.config, kv_heads=None, feedforward_multiple=model.config.feedforward_width / model.config.width
    )
    again = gpt2.to_gpt2(back)
    assert_same_weights(again.state_dict(), there.state_dict())
    assert again.config.to_dict() == there.config.to_dict()


def test_every_parameter_and_every_option_is_accounted_for() -> None:
    names = [gpt2._gpt2_name(name) for name in decoder(depth=11).state_dict()]
    assert sorted(names) == sorted(random_gpt2(n_layer=11).state_dict())
    free = {"width", "heads", "kv_heads", "depth", "context", "feedforward", "feedforward_multiple", "dropout"}
    assert gpt2.FIXED.keys() | free == {field.name for field in dataclasses.fields(ModelConfig)}


def test_dropout_falls_on_the_same_places() -> None:
    model = decoder(dropout=0.4, vocabulary=19).train()
    tokens = tokens_of(model)
    outputs = []
    for each in (model, gpt2.to_gpt2(model), gpt2.from_gpt2(gpt2.to_gpt2(model), pad_id=PAD)):
        assert each.training
        torch.manual_seed(5)
        logits = each(tokens)
        outputs.append((logits if isinstance(logits, Tensor) else logits.logits)[..., END:])
    assert_close(outputs[1], outputs[0], rtol=0, atol=1e-10)
    assert_close(outputs[2], outputs[0], rtol=0, atol=1e-10)
    assert not torch.equal(model(tokens), model(tokens))


def test_a_copy_shares_nothing_and_draws_no_random_number() -> None:
    model = decoder()
    before, state = model(tokens_of(model)), torch.get_rng_state()
    there = gpt2.to_gpt2(model)
    back = gpt2.from_gpt2(there, pad_id=PAD)
    assert torch.equal(torch.get_rng_state(), state)
    for copy in (there, back):
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.zero_()
    assert torch.equal(model(tokens_of(model)), before)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"causal": False}, "model.causal=false: GPT-2 has causal=true"),
    ({"window": 5}, "model.window=5: GPT-2 has window=null"),
    ({"positions": Positions.alibi}, "model.positions=alibi: GPT-2 has positions=learned"),
    ({"uniform_attention": True}, "model.uniform_attention=true: GPT-2 has uniform_attention=false"),
    ({"qk_norm": True}, "model.qk_norm=true: GPT-2 has qk_norm=false"),
    ({"norm": Norm.rms}, "model.norm=rms: GPT-2 has norm=layer"),
    ({"bias": False}, "model.bias=false: GPT-2 has bias=true"),
    ({"kv_heads": 1}, "model.kv_heads=1: GPT-2 has kv_heads=null"),
    (
        {"feedforward": FeedForwardName.swiglu},
        "model.feedforward=swiglu: GPT-2 has feedforward=gelu or gelu_tanh or relu",
    ),
    (
        {"norm_order": NormOrder.post, "tied_embeddings": False},
        "model.norm_order=post, model.tied_embeddings=false: GPT-2 has norm_order=pre, tied_embeddings=true",
    ),
]


@pytest.mark.parametrize("options, message", REFUSED, ids=[message.split(":")[0] for _, message in REFUSED])
def test_what_gpt2_has_not_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gpt2.to_gpt2(decoder(**options))
    assert str(refused.value) == message


GPT2_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scale_attn_weights": False}, "scale_attn_weights=false: grammarlab's decoder has scale_attn_weights=true"),
    (
        {"scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 1e-6},
        "scale_attn_by_inverse_layer_idx=true, layer_norm_epsilon=1e-06: grammarlab's decoder has "
        "scale_attn_by_inverse_layer_idx=false, layer_norm_epsilon=1e-05",
    ),
    ({"add_cross_attention": True}, "add_cross_attention=true: grammarlab's decoder has add_cross_attention=false"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=false: grammarlab's decoder has tie_word_embeddings=true"),
    ({"attn_pdrop": 0.1}, "attn_pdrop=0.1: grammarlab's decoder has attn_pdrop=0.0"),
    ({"embd_pdrop": 0.3}, "embd_pdrop=0.3: grammarlab's decoder has embd_pdrop=resid_pdrop=0.1"),
    (
        {"activation_function": "silu"},
        "activation_function=silu: grammarlab's decoder has activation_function=gelu or gelu_new or relu",
    ),
]


@pytest.mark.parametrize("options, message", GPT2_REFUSED, ids=[message.split(":")[0] for _, message in GPT2_REFUSED])
def test_what_the_decoder_has_not_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gpt2.from_gpt2(random_gpt2(**options), pad_id=PAD)
    assert str(refused.value) == message


def test_what_is_only_in_other_digits_is_taken() -> None:
    assert gpt2.from_gpt2(random_gpt2(reorder_and_upcast_attn=True), pad_id=PAD) is not None


# ---- words ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    gpt2.write(folder, decoder(), VOCABULARY, {})
    return folder


def sentences(words: Sequence[str], count: int = 5) -> list[list[str]]:
    generator = torch.Generator().manual_seed(1)
    return [
        [words[i] for i in torch.randint(len(words), (length,), generator=generator)] for length in range(count)
    ] + [list(words)]


def test_the_tokenizer_of_the_folder_gives_our_ids_and_the_words_back(written: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(written)
    assert tokenizer.get_vocab() == {token: index for index, token in enumerate(VOCABULARY.tokens)}
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD, BEGIN, END)
    tokenizer.model_max_length = 99  # no remark on the long one
    for words in sentences(VOCABULARY.tokens[3:]):
        encoded = tokenizer(" ".join(words))
        assert encoded["input_ids"] == [BEGIN, *VOCABULARY.word_ids(words)]
        assert encoded.keys() == {"input_ids", "attention_mask"}
        row = [PAD, PAD, *encoded["input_ids"], END]
        assert tokenizer.decode(row, skip_special_tokens=True) == " ".join(words)
    padded = tokenizer(["a b", ""], padding=True)
    assert padded["input_ids"] == [[BEGIN, 3, 4], [PAD, PAD, BEGIN]]
    assert padded["attention_mask"] == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize("word", ["c", "ab", "A", "a<end>", "no word", "<mask>"])
def test_an_unknown_word_raises(written: Path, word: str) -> None:
    with pytest.raises(Exception, match=r"Missing \[UNK\] token"):
        AutoTokenizer.from_pretrained(written)(f"a {word}")


ODD = st.text(min_size=1).filter(lambda word: word.split() == [word] and word not in ("<pad>", "<begin>", "<end>"))


@given(st.lists(ODD, min_size=1, max_size=6, unique=True))
@settings(max_examples=60, deadline=None)
def test_whatever_a_word_is_made_of(words: list[str]) -> None:
    vocabulary = Vocabulary(words)
    tokenizer = gpt2.new_tokenizer(vocabulary, 99)
    ids = tokenizer(" ".join(words))["input_ids"]
    assert ids == [BEGIN, *vocabulary.word_ids(words)]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " ".join(words)


# ---- generating ----------------------------------------------------------------------------------------------------


def test_transformers_generates_what_we_generate(written: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(written), AutoTokenizer.from_pretrained(written)
    prompts = [" ".join(words) for words in sentences(VOCABULARY.tokens[3:40], 11)[:-1]]
    rows = [[BEGIN, *VOCABULARY.word_ids(prompt.split())] for prompt in prompts]
    ours = generate(decoder(), rows, end_id=END, how=How(sampling=Sampling(temperature=0))).tokens
    seen = set()
    for prompt, expected in zip(prompts, ours, strict=True):
        (found,) = model.generate(**tokenizer(prompt, return_tensors="pt"), do_sample=False)
        kept = [token for token in expected.tolist() if token != PAD]
        assert found.tolist() == kept
        seen |= set(kept)
    assert len(seen) > 20
    together = model.generate(**tokenizer(prompts[:4], return_tensors="pt", padding=True), do_sample=False)
    for found, expected in zip(tokenizer.batch_decode(together, skip_special_tokens=True), ours, strict=False):
        assert " ".join(VOCABULARY.decode(expected.tolist())).startswith(found) and found


def test_transformers_draws_from_our_distribution(written: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(written), AutoTokenizer.from_pretrained(written)
    inputs = tokenizer("a b", return_tensors="pt")
    drawn = model.generate(**inputs, output_scores=True, return_dict_in_generate=True)
    ours = decoder()(drawn.sequences[:, :-1])[0, inputs["input_ids"].shape[1] - 1 :]
    scores = torch.stack(drawn.scores)[:, 0]
    assert_close(scores.log_softmax(-1), ours.float().log_softmax(-1), rtol=0, atol=1e-5)
    assert (scores > -torch.inf).sum() == len(scores) * (len(VOCABULARY) - 2)


# ---- a run's folder --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(small_config(model=ModelConfig(width=12, heads=3, **PRE)), folder, progress_bar=False)
    return folder / "checkpoints" / "last.ckpt"


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("exported") / "into"
    assert parts.export(ExportConfig(checkpoint=str(checkpoint), into=str(into))) == into
    return into


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """One of its own, to be spoilt."""
    return Path(shutil.copytree(exported, tmp_path / "folder"))


def change(path: Path, **changes: Any) -> None:
    text = path.read_text()
    content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    path.write_text(json.dumps(content | changes))


def test_the_folder_keeps_the_whole_run(checkpoint: Path, exported: Path) -> None:
    config, weights = parts.load_checkpoint(str(checkpoint))
    found, found_weights = parts.load_checkpoint(str(exported))
    assert found == config
    assert_same_weights(found_weights, weights)
    assert {path.name for path in exported.iterdir()} == {
        "config.json",
        "generation_config.json",
        "grammarlab.yaml",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_precision_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    model = decoder(dtype=dtype)
    gpt2.write(tmp_path, model, VOCABULARY, {})
    assert_same_weights(gpt2.read_weights(tmp_path, model.config, VOCABULARY), model.state_dict())


def test_evaluate_and_generate_take_the_folder(command: Command, checkpoint: Path, exported: Path) -> None:
    for name, options in (("evaluate", []), ("generate", ["samples=5", "prompt='a photo'"])):
        ours, theirs = (command(name, f"checkpoint={path}", *options, "json=true") for path in (checkpoint, exported))
        assert (theirs.status, theirs.err) == (0, "")
        assert theirs.out == ours.out != ""


def test_the_command_says_where_and_nothing_else(tmp_path: Path, checkpoint: Path) -> None:
    shutil.copy(checkpoint, tmp_path / "best.ckpt")
    done = subprocess.run(
        [sys.executable, str(ROOT / "src" / "export.py"), "checkpoint=best.ckpt"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == ["best-gpt2"]
    assert "AutoModelForCausalLM.from_pretrained" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-gpt2", "best.ckpt"]


def test_an_export_is_exported_and_replaced(
    command: Command, exported: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for options, into in (([], f"{folder}-gpt2"), (["into=."], ".")):
        ended = command("export", "checkpoint=.", *options)
        assert (ended.status, ended.err, ended.last_line) == (0, "", into)
        assert_same_weights(parts.load_checkpoint(into)[1], parts.load_checkpoint(str(exported))[1])


def test_a_users_folder_is_not_written_over(command: Command, checkpoint: Path) -> None:
    Path("mine").mkdir()
    assert command("export", f"checkpoint={checkpoint}", "into=mine").status == 0
    Path("mine/grammarlab.yaml").unlink()
    Path("file").write_text("kept")
    for into in ("mine", "file"):
        ended = command("export", f"checkpoint={checkpoint}", f"into={into}")
        said = f"error: into={into}: is there, and not an export to replace; name another folder\n"
        assert (ended.status, ended.err) == (1, said)
    assert not Path("mine/grammarlab.yaml").exists()


def test_a_model_that_gpt2_has_not_leaves_nothing(command: Command, tmp_path: Path) -> None:
    train(small_config(), tmp_path / "run", progress_bar=False)
    ended = command("export", "checkpoint=run/checkpoints/last.ckpt")
    assert ended.status == 1
    assert ended.err == (
        "error: model.norm_order=post, model.tied_embeddings=false: GPT-2 has norm_order=pre, tied_embeddings=true\n"
    )
    assert not Path("run/checkpoints/last-gpt2").exists()


def test_training_does_not_go_on_from_it(command: Command, exported: Path) -> None:
    ended = command("train", f"checkpoint={exported}", "trainer.max_steps=9")
    said = "an export has no state of the optimizer to go on from; last.ckpt of its run has"
    assert (ended.status, ended.err) == (1, f"error: checkpoint={exported}: {said}\n")
    config, _ = parts.load_checkpoint(str(exported))
    with pytest.raises(ConfigError, match=said):
        train(dataclasses.replace(config, checkpoint=str(exported)), Path("run"))


def test_without_transformers_one_line_says_what_to_install(
    command: Command, checkpoint: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name, path in (("export", checkpoint), ("evaluate", exported)):
        ended = command(name, f"checkpoint={path}")
        assert ended.status == 1
        assert 'pip install "grammarlab[gpt2]"' in ended.err
        assert ended.err.count("\n") == 1
    assert not checkpoint.with_name("last-gpt2").exists()
    assert "no state of the optimizer" in command("train", f"checkpoint={exported}").err


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def of_another_kind(folder: Path) -> None:
    change(folder / "config.json", model_type="llama")


def without_run(folder: Path) -> None:
    (folder / "grammarlab.yaml").unlink()


def broken_run(folder: Path) -> None:
    (folder / "grammarlab.yaml").write_text("a: [")


def other_run(folder: Path) -> None:
    change(folder / "grammarlab.yaml", learning=1)


def deeper_run(folder: Path) -> None:
    change(folder / "grammarlab.yaml", model={**PRE, "width": 12, "heads": 3, "depth": 2})


def untied_run(folder: Path) -> None:
    change(folder / "grammarlab.yaml", model={"width": 12, "heads": 3, "norm_order": "pre"})


def more_words(folder: Path) -> None:
    change(folder / "grammarlab.yaml", language={"start": "S", "grammar": "S -> 'a' | 'b'"})


def other_words(folder: Path) -> None:
    path = folder / "grammarlab.yaml"
    path.write_text(path.read_text().replace("'circle'", "'disc'"))


def deeper_gpt2(folder: Path) -> None:
    change(folder / "config.json", n_layer=2)


def wider_gpt2(folder: Path) -> None:
    change(folder / "config.json", n_embd=15)


def scaled_gpt2(folder: Path) -> None:
    change(folder / "config.json", scale_attn_by_inverse_layer_idx=True)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 99)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (without_config, "is a folder without a readable config.json, so not a GPT-2 of src/export.py"),
        (of_another_kind, "its config.json has model_type=llama; only gpt2 can be read"),
        (
            without_run,
            "is a GPT-2 without grammarlab.yaml, so its language is not known: copy that of its export, or in code "
            "use grammarlab.gpt2.from_gpt2\n",
        ),
        (broken_run, "its grammarlab.yaml cannot be read as YAML"),
        (other_run, "its grammarlab.yaml is not a run's configuration: Key 'learning' not in 'TrainConfig'\n"),
        (deeper_run, "its grammarlab.yaml has model.depth=2, but its GPT-2 has 1"),
        (untied_run, "its grammarlab.yaml has model.tied_embeddings=false, but its GPT-2 has true"),
        (more_words, "the language of grammarlab.yaml has 5 tokens, but config.json has vocab_size=12"),
        (other_words, "the language of grammarlab.yaml has other words, or another order of them, than tokenizer.json"),
        (deeper_gpt2, "its weights are not those of its config.json: transformer.h.1.attn.c_attn.bias\n"),
        (wider_gpt2, "its weights are not those of its config.json: transformer.h.0.attn.c_attn.bias\n"),
        (scaled_gpt2, "scale_attn_by_inverse_layer_idx=true: grammarlab's decoder has"),
        (without_weights, "transformers cannot read it: "),
        (cut_weights, "transformers cannot read it: "),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    command: Command, folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder)
    ended = command("evaluate", "checkpoint=folder")
    assert ended.status == 1
    assert ended.err.startswith(f"error: checkpoint=folder: {message}")
    assert ended.err.count("\n") == 1


def test_a_runs_folder_names_its_checkpoint(command: Command, checkpoint: Path) -> None:
    run = checkpoint.parent.parent
    ended = command("generate", f"checkpoint={run}")
    assert ended.err == f"error: checkpoint={run}: is a run's folder; its last checkpoint is {checkpoint}\n"
