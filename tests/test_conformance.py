"""One function, however it is computed: with and without a cache, compiled or not, alone or in a batch.

Over the whole family, in float64: logits within 1e-10, tokens equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from grammarlab import compiled
from grammarlab.compiled import Step, likeliest
from grammarlab.compiled.functions import error_function, exponentials
from grammarlab.config import BY_DISTANCE, FeedForwardName, ModelConfig, Norm, NormOrder, Positions
from grammarlab.generation import How, Sampling, generate, row_uniforms, stream_tokens
from grammarlab.model import Decoder

PAD, BEGIN, END, VOCABULARY, CONTEXT = 0, 1, 2, 13, 17
PROMPTS = [[BEGIN, *range(3, 3 + length - 1)] for length in (1, 3, 7)] + [[BEGIN, *range(3, 13), 5]]
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_k=9, top_p=0.97, min_p=0.001)
FILLINGS = {"whole": [12], "chunks": [5, 5, 2], "one by one": [1] * 12}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def decoder(seed: int = 1, **options: Any) -> Decoder:
    """With large matrices and no weight of the kind that it begins with, so that what is drawn hangs on all before."""
    sizes: dict[str, Any] = {"width": 16, "heads": 4, "depth": 2, "context": CONTEXT, "feedforward_multiple": 2}
    config = ModelConfig(**(sizes | options))
    model = Decoder(config, vocabulary_size=VOCABULARY, pad_id=PAD, never_generated=(PAD, BEGIN))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.requires_grad_(False).named_parameters():
        parameter.normal_(std=0.7 if parameter.ndim == 2 else 0.2, generator=generator)
        if name.endswith("norm.weight"):
            parameter += 1
    return model.eval()


POSITIONS: list[dict[str, Any]] = [{"positions": positions} for positions in Positions]
POSITIONS.append({"positions": Positions.learned, "uniform_attention": True})
FAMILY = [
    places | {"causal": causal, "kv_heads": kv_heads, "window": window}
    for places, causal, kv_heads, window in product(POSITIONS, (True, False), (None, 2, 1), (None, 4))
]
CAUSAL = [options for options in FAMILY if options["causal"]]


def words(batch: int, length: int = CONTEXT, seed: int = 1) -> Tensor:
    tokens = torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] = BEGIN
    return tokens


def naive(model: Decoder, prompt: Sequence[int], sampling: Sampling, seed: int, row: int) -> list[int]:
    """Token by token, everything computed anew, and drawn by adding up."""
    uniforms = row_uniforms(seed, [row], CONTEXT + 1)[0].tolist()
    tokens = list(prompt)
    while tokens[-1] != END and len(tokens) <= CONTEXT:
        probs = sampling.log_probs(model(torch.tensor([tokens]))[0, -1]).exp().tolist()
        below = accumulate(probs)
        target = uniforms[len(tokens)] if sampling.temperature else 0.5
        tokens.append(next(token for token, mass in enumerate(below) if mass > target))
    return tokens


def rows_of(model: Decoder, prompts: Sequence[Sequence[int]], how: How, rows: Sequence[int] | None = None) -> Any:
    tokens = generate(model, prompts, end_id=END, how=how, rows=rows).tokens.tolist()
    return [row[: max(i + 1 for i, token in enumerate(row) if token != PAD)] for row in tokens]


# ---- logits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CAUSAL, ids=str)
def test_logits_do_not_depend_on_the_cache_nor_on_how_it_was_filled(options: dict[str, Any]) -> None:
    model = decoder(**options)
    for batch, (filling, chunks) in product((3, 19), FILLINGS.items()):  # few rows and many
        tokens = words(batch)
        full = model(tokens)
        cache, end = model.new_cache(batch), 0
        for chunk in chunks:
            logits = model(tokens[:, end : end + chunk], cache)
            assert_close(logits, full[:, end : end + chunk], rtol=0, atol=1e-10, msg=filling)
            end += chunk
        step = Step(model, batch, CONTEXT)
        step.load(cache)
        for position in range(12, CONTEXT):
            new = tokens[:, position : position + 1]
            assert_close(model(new, cache)[:, 0], full[:, position], rtol=0, atol=1e-10)
            assert_close(step(new[:, 0].contiguous().numpy()), full[:, position], rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", CAUSAL, ids=str)
@pytest.mark.parametrize("batch", [1, 5, 16, 33])
def test_compiled_steps_from_the_first_token_on(options: dict[str, Any], batch: int) -> None:
    model, tokens = decoder(**options), words(batch)
    full, step = model(tokens), Step(model, batch, CONTEXT)
    for position in range(CONTEXT):
        assert step.length == position
        logits = step(tokens[:, position].contiguous().numpy())
        assert_close(logits, full[:, position], rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", FAMILY, ids=str)
def test_a_changed_token_moves_no_earlier_logit_if_and_only_if_causal(options: dict[str, Any]) -> None:
    model, tokens = decoder(**options), words(1, 9)
    changed = tokens.clone()
    changed[0, 6] = 3 + (int(tokens[0, 6]) - 2) % 10
    same = (model(tokens) == model(changed)).all(-1)[0].tolist()
    reach = 9 if options["window"] is None else 2 * (options["window"] - 1)  # through two layers
    assert same[:6] == [options["causal"] or 6 - position > reach for position in range(6)]
    assert not same[6]


CONFIGURATIONS = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(Positions),
        "uniform_attention": st.booleans(),
        "qk_norm": st.booleans(),
        "heads": st.sampled_from([1, 2, 3, 6]),
        "head_width": st.sampled_from([2, 4, 6, 10]),
        "group": st.sampled_from([1, 2, 3]),
        "depth": st.integers(1, 3),
        "window": st.none() | st.integers(1, 12),
        "norm": st.sampled_from(Norm),
        "norm_order": st.sampled_from(NormOrder),
        "feedforward": st.sampled_from(FeedForwardName),
        "feedforward_multiple": st.sampled_from([0.5, 1, 2.5]),
        "bias": st.booleans(),
        "tied_embeddings": st.booleans(),
    }
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(options=CONFIGURATIONS, batch=st.integers(1, 20), prompt=st.integers(1, 9), chunk=st.integers(1, 4))
def test_any_configuration(options: dict[str, Any], batch: int, prompt: int, chunk: int) -> None:
    heads, head_width, group = (options.pop(name) for name in ("heads", "head_width", "group"))
    if options["uniform_attention"]:
        options["qk_norm"] = False
        if options["positions"] in BY_DISTANCE:
            options["positions"] = Positions.none
    kv_heads = heads // group if heads % group == 0 else None
    model = decoder(context=10, width=heads * head_width, heads=heads, kv_heads=kv_heads, **options)
    tokens = words(batch, 10)
    full, cache = model(tokens), model.new_cache(batch, prompt)
    for start in range(0, prompt, chunk):
        part = slice(start, min(start + chunk, prompt))
        assert_close(model(tokens[:, part], cache), full[:, part], rtol=0, atol=1e-10)
    step = Step(model, batch, 10)
    step.load(cache)
    for position in range(prompt, 10):
        logits = step(tokens[:, position].contiguous().numpy())
        assert_close(logits, full[:, position], rtol=0, atol=1e-10)


@pytest.mark.parametrize("batch", [3, 19])
@pytest.mark.parametrize("window", [None, 4])
def test_what_stands_in_unused_slots_of_a_compiled_step_changes_nothing(batch: int, window: int | None) -> None:
    model, tokens = decoder(window=window), words(batch)
    clean, poisoned = Step(model, batch, CONTEXT), Step(model, batch, CONTEXT)
    poisoned._keys.fill(np.nan)
    poisoned._values.fill(np.nan)
    for position in range(CONTEXT):
        new = tokens[:, position].contiguous().numpy()
        assert torch.equal(clean(new), poisoned(new))


def fresh(**options: Any) -> Decoder:
    """As training begins with it: no rounding error grows on its way."""
    torch.manual_seed(1)
    config = ModelConfig(width=16, heads=4, depth=2, context=CONTEXT, **options)
    return Decoder(config, vocabulary_size=VOCABULARY, pad_id=PAD).eval().requires_grad_(False)


@pytest.mark.parametrize("options", CAUSAL, ids=str)
def test_16_bits_are_near(options: dict[str, Any]) -> None:
    """bfloat16 has 8 bits: with weights as training begins with, cached and uncached logits are 0.1 off at most."""
    exact = fresh(**options)
    tokens = words(5)
    reference = exact(tokens)
    model = exact.to(torch.bfloat16)
    cache = model.new_cache(5)
    parts = [model(tokens[:, :7], cache), *(model(tokens[:, i : i + 1], cache) for i in range(7, CONTEXT))]
    for logits in (torch.cat(parts, 1), model(tokens)):
        assert logits.dtype == torch.bfloat16
        assert_close(logits.double(), reference, rtol=0, atol=0.1)
    assert not compiled.supports(model)


@pytest.mark.parametrize("options", CAUSAL[::5], ids=str)
@pytest.mark.parametrize("batch", [3, 19])
@pytest.mark.parametrize("feedforward", list(FeedForwardName))
def test_compiled_steps_in_float32(options: dict[str, Any], batch: int, feedforward: FeedForwardName) -> None:
    model = fresh(feedforward=feedforward, **options)
    tokens = words(batch)
    full = model(tokens)
    step = Step(model.float(), batch, CONTEXT)
    for position in range(CONTEXT):
        logits = step(tokens[:, position].contiguous().numpy())
        assert logits.dtype == torch.float32
        assert_close(logits.double(), full[:, position], rtol=0, atol=5e-6)


# ---- tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", FAMILY, ids=str)
def test_tokens_are_those_of_the_naive_loop(options: dict[str, Any], sampling: Sampling) -> None:
    model = decoder(**options)
    expected = [naive(model, prompt, sampling, 7, row) for row, prompt in enumerate(PROMPTS)]
    ways: list[dict[str, Any]] = [{"cache": False}, {}]
    if options["causal"]:
        ways += [{"compile": False}, {"compile": False, "chunk": 2}, {"compile": True, "chunk": 1}]
    for way in ways:
        assert rows_of(model, PROMPTS, How(sampling=sampling, seed=7, **way)) == expected, way
    # Alone, in another order, many times over, and with a prompt long enough to be read in chunks.
    how = How(sampling=sampling, seed=7)
    longest = How(sampling=sampling, seed=7, chunk=5) if options["causal"] else how
    for row, prompt in enumerate(PROMPTS):
        assert rows_of(model, [prompt], longest, rows=[row]) == [expected[row]]
    order = [2, 0, 3, 1]
    assert rows_of(model, [PROMPTS[i] for i in order], how, rows=order) == [expected[i] for i in order]
    assert rows_of(model, PROMPTS * 5, how, rows=[0, 1, 2, 3] * 5) == expected * 5
    assert [*PROMPTS[2], *stream_tokens(model, PROMPTS[2], end_id=END, how=how, row=2)] == expected[2]


def test_the_rows_of_these_tests_end_early_late_and_never() -> None:
    rows = [naive(decoder(**o), prompt, SAMPLED, 7, row) for o in FAMILY[::3] for row, prompt in enumerate(PROMPTS)]
    assert {row[-1] == END for row in rows} == {True, False}
    assert len({len(row) for row in rows}) > 8
    assert len({tuple(row) for row in rows}) > len(rows) / 2


@pytest.mark.parametrize("options", CAUSAL[::3], ids=str)
def test_log_probs_are_those_of_a_pass_over_the_result(options: dict[str, Any]) -> None:
    model = decoder(**options)
    for sampling in (GREEDY, SAMPLED):
        generated = generate(model, PROMPTS, end_id=END, how=How(sampling=sampling, seed=3))
        tokens = generated.tokens
        log_q = model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        for row, prompt in enumerate(PROMPTS):
            end = int((tokens[row] != PAD).sum())
            assert_close(generated.log_probs[row, len(prompt) : end], log_q[row, len(prompt) - 1 : end - 1])
            assert (generated.log_probs[row, : len(prompt)] == 0).all()
            assert (generated.log_probs[row, end:] == 0).all()


def test_a_step_beyond_its_room_is_refused() -> None:
    step = Step(decoder(), 1, 2)
    token = np.array([BEGIN])
    step(token)
    step(token)
    with pytest.raises(ValueError, match="3 tokens are more than the 2"):
        step(token)
    with pytest.raises(ValueError, match=r"model\.causal=false cannot use a cache"):
        Step(decoder(causal=False), 1, 2)


# ---- functions of many numbers at a time ---------------------------------------------------------------------------


def test_exponentials_are_those_of_the_library() -> None:
    x = np.concatenate([-np.logspace(-30, 2.5, 20_011), [0.0, -0.0, -np.inf]])
    exact = x.copy()
    exponentials(exact, np.empty(len(x), np.int32))
    np.testing.assert_allclose(exact, np.exp(x), rtol=1e-15, atol=0)
    single = x.astype(np.float32)
    expected = np.exp(single.astype(np.float64))
    exponentials(single, np.empty(len(x), np.int32))
    np.testing.assert_allclose(single, expected, rtol=2e-7, atol=2e-38)
    odd = np.array([np.nan, -200.0], np.float32)
    exponentials(odd, np.empty(2, np.int32))
    assert np.isnan(odd[0])
    assert odd[1] == 0


def test_the_error_function_is_that_of_the_library() -> None:
    x = np.concatenate([np.linspace(-6, 6, 20_011), np.logspace(-30, -3, 101), [0.0]])
    expected = torch.erf(torch.from_numpy(x)).numpy()
    exact, single = x.copy(), x.astype(np.float32)
    error_function(exact)
    error_function(single)
    np.testing.assert_allclose(exact, expected, rtol=1e-14, atol=0)
    np.testing.assert_allclose(single, expected, rtol=3e-7, atol=0)


def test_the_likeliest_is_the_first_of_the_largest_with_its_log_probability() -> None:
    logits = torch.randn(53, 7, generator=torch.Generator().manual_seed(1)) * 30
    logits[:, 1] = -torch.inf
    logits[5] = 3.0
    ids, log_probs = np.empty(53, np.int64), np.empty(53)
    likeliest(logits.numpy(), ids, log_probs)
    assert ids.tolist() == logits.argmax(-1).tolist()
    np.testing.assert_allclose(log_probs, logits.log_softmax(-1).amax(-1), rtol=1e-14, atol=1e-15)
    for place in (0, 3, 6):
        row = torch.zeros(1, 7)
        row[0, place] = torch.nan
        likeliest(row.numpy(), ids[:1], log_probs[:1])
        assert np.isnan(log_probs[0])
