"""What a run is shown, in which order, and what it is never shown."""

import io
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import grammarlab
from grammarlab import data
from grammarlab.config import ConfigError, DataConfig
from grammarlab.data import (
    FreshBatches,
    Holdout,
    LanguageData,
    ScoredBatch,
    SentenceSource,
    ShuffledBatches,
)
from grammarlab.language import Language, NotEnumerableError, Sentence, from_text, load
from grammarlab.streams import Stream, stream
from grammarlab.vocabulary import Vocabulary

# 4 · 3 + 5 = 17 sentences of 1 to 4 words; P = 1/2 · share · 1/3 or 1/2 · 1/5
TEXT = """
S -> Who Does [1/2] | Name [1/2]
Who -> 'dogs' [1/2] | 'cats' [1/4] | 'old' 'dogs' [1/8] | 'old' 'cats' [1/8]
Does -> 'run' | 'sit' 'down' | 'eat'
Name -> 'rex' | 'tom' | 'kim' | 'lee' | 'sam'
"""
LANGUAGE = from_text(TEXT, "S")
SIZE = 17
VOCABULARY = Vocabulary(LANGUAGE.terminals)
SEED = 5


SIZES_OF_SETS = {"train_size": 203, "validation_size": 101, "test_size": 107, "batch_size": 13}


def data_of(seed: int = SEED, language: Language = LANGUAGE, **options: object) -> LanguageData:
    config = DataConfig(**{**SIZES_OF_SETS, **options})
    return LanguageData(language, Vocabulary(language.terminals), config, seed)


def decoded(rows: Tensor, vocabulary: Vocabulary = VOCABULARY) -> list[Sentence]:
    return [vocabulary.decode(row) for row in rows.tolist()]


def scored(batches: Sequence[ScoredBatch]) -> list[Sentence]:
    return [sentence for batch in batches for sentence in decoded(batch.rows)]


def training_set(module: LanguageData) -> list[Sentence]:
    batches = module.train_dataloader()
    assert isinstance(batches, ShuffledBatches)
    return decoded(batches.rows, module.vocabulary)


def fresh(module: LanguageData, steps: int) -> list[Tensor]:
    batches = module.train_dataloader()
    assert isinstance(batches, FreshBatches)
    return list(itertools.islice(batches, steps))


def equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


# The order of a fixed set


def numbered(rows: int, batch_size: int = 5, seed: int = SEED) -> ShuffledBatches:
    return ShuffledBatches(torch.arange(rows).unsqueeze(1), batch_size, seed)


def epoch_of(batches: ShuffledBatches) -> list[int]:
    return [int(row) for batch in batches for row in batch]


def at(batches: ShuffledBatches, epoch: int) -> ShuffledBatches:
    batches.load_state_dict({"epoch": epoch, "batch": 0})
    return batches


SIZES = pytest.mark.parametrize("rows", [23, 20, 5, 3, 1])  # in batches of 5: uneven, even, one, less than one


@SIZES
def test_each_epoch_shows_each_row_once(rows: int) -> None:
    batches = numbered(rows)
    for _ in range(4):
        shown = list(batches)
        assert len(shown) == len(batches) == math.ceil(rows / 5)
        assert [len(batch) for batch in shown[:-1]] == [5] * (len(shown) - 1)
        assert sorted(int(row) for batch in shown for row in batch) == list(range(rows))


def test_epochs_and_seeds_differ_in_their_order() -> None:
    orders = [tuple(epoch_of(at(numbered(23, seed=seed), epoch))) for seed in (0, 1, 2) for epoch in range(5)]
    assert len(set(orders)) == len(orders)
    assert tuple(range(23)) not in orders


def test_the_order_of_an_epoch_depends_on_the_seed_and_the_epoch_alone() -> None:
    batches = numbered(23)
    orders = [epoch_of(batches) for _ in range(4)]
    for epoch in (3, 0, 2, 1):  # by itself, in another batch size, whatever the global states are
        torch.manual_seed(epoch)
        np.random.seed(epoch)
        random.seed(epoch)
        assert epoch_of(at(numbered(23), epoch)) == orders[epoch]
        assert epoch_of(at(numbered(23, batch_size=7), epoch)) == orders[epoch]


def test_rows_of_an_epoch_are_in_every_place_equally_often() -> None:
    """Row 0 over the places of many epochs: chi-square within six standard deviations."""
    places = Counter(epoch_of(at(numbered(5), epoch)).index(0) for epoch in range(1_000))
    assert sum((places[p] - 200) ** 2 / 200 for p in range(5)) < 4 + 6 * math.sqrt(8)


@SIZES
def test_a_fixed_set_continues_exactly_from_every_point(rows: int) -> None:
    """At each batch, an epoch's end among them, while the old loop is still open: as a checkpoint is written."""
    epochs = 3
    whole = numbered(rows)
    want = [batch for _ in range(epochs) for batch in whole]
    for taken in range(len(want) + 1):
        first = numbered(rows)
        before = list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(first)), taken))
        state = json.loads(json.dumps(first.state_dict()))  # plain values
        second = numbered(rows)
        second.load_state_dict(state)
        after = list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(second)), len(want) - taken))
        assert equal(before + after, want)


def test_a_resumed_epoch_shows_what_is_left_of_it() -> None:
    batches = numbered(23)
    batches.load_state_dict({"epoch": 2, "batch": 3})
    assert epoch_of(batches) == epoch_of(at(numbered(23), 2))[15:]
    assert len(epoch_of(batches)) == 23


def test_a_saved_state_does_not_move_on_and_loads_as_a_checkpoint_does() -> None:
    batches = numbered(23)
    iterator = iter(batches)
    next(iterator)
    state = batches.state_dict()
    list(iterator)
    assert state == {"epoch": 0, "batch": 1}
    assert batches.state_dict() == {"epoch": 1, "batch": 0}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file) == state  # with the default, which loads plain containers alone


# Fresh sentences


def steps_from(step: int, n: int, batch_size: int = 13, seed: int = SEED) -> list[Tensor]:
    batches = FreshBatches(SentenceSource(LANGUAGE, VOCABULARY), batch_size, seed)
    batches.load_state_dict({"step": step})
    return list(itertools.islice(batches, n))


def test_a_step_depends_on_the_seed_and_its_number_alone() -> None:
    want = steps_from(0, 9)
    for step in (8, 0, 3):
        torch.manual_seed(step)
        np.random.seed(step)
        random.seed(step)
        assert equal(steps_from(step, 1), want[step : step + 1])


def test_steps_and_seeds_differ_in_their_sentences() -> None:
    steps = [batch for seed in (0, 1, 2) for batch in steps_from(0, 9, batch_size=40, seed=seed)]
    assert all(len(step) == 40 for step in steps)
    assert len({tuple(decoded(step)) for step in steps}) == len(steps)


def test_fresh_sentences_continue_exactly_from_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs are cut, for the trainer's sake, at a fixed number of steps, also after going on in the middle of one."""
    monkeypatch.setattr(data, "FRESH_EPOCH", 4)
    want = [batch for step in (0, 4, 8, 12) for batch in steps_from(step, 4)]
    for taken in range(13):
        first = FreshBatches(SentenceSource(LANGUAGE, VOCABULARY), 13, SEED)
        before = list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(first)), taken))
        second = FreshBatches(SentenceSource(LANGUAGE, VOCABULARY), 13, SEED)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest_of_epoch = list(itertools.islice(second, len(second) + 1))  # where it ends by itself
        assert len(rest_of_epoch) == len(second) - taken % 4
        assert equal(before + rest_of_epoch, want[: taken + len(rest_of_epoch)])


# The sets of a run


def test_sets_have_the_sizes_asked_for_in_batches_of_the_size_asked_for() -> None:
    module = data_of()
    train, validation, test = module.train_dataloader(), module.val_dataloader(), module.test_dataloader()
    assert [len(batch) for batch in train] == [13] * 15 + [8]
    for batches, size in ((validation, 101), (test, 107)):
        assert [len(batch.rows) for batch in batches] == [13] * (size // 13) + [size % 13]
        assert [len(batch.log_probs) for batch in batches] == [len(batch.rows) for batch in batches]
        assert len(batches) == math.ceil(size / 13)
    assert [len(batch) for batch in fresh(data_of(train_size=None), 3)] == [13] * 3


def test_rows_are_sentences_of_the_language_as_ids() -> None:
    module = data_of()
    true = {sentence for sentence, _ in LANGUAGE.enumerate()}
    for rows in [*module.train_dataloader(), *(batch.rows for batch in module.val_dataloader())]:
        assert rows.dtype == torch.int64
        assert torch.equal(rows, padded(decoded(rows), rows.shape[1]))
        assert true.issuperset(decoded(rows))


def padded(sentences: list[Sentence], width: int) -> Tensor:
    rows = torch.from_numpy(VOCABULARY.encode(sentences))
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=VOCABULARY.pad_id)


def test_scores_are_the_log_probabilities_of_the_sentences() -> None:
    module = data_of()
    by_hand = {("rex",): 1 / 10, ("dogs", "run"): 1 / 12, ("old", "cats", "sit", "down"): 1 / 48}
    for batches in (module.val_dataloader(), module.test_dataloader()):
        for rows, log_probs in batches:
            assert log_probs.dtype == torch.float64
            assert log_probs.tolist() == LANGUAGE.log_prob(decoded(rows)).tolist()
        scores = {s: x for batch in batches for s, x in zip(decoded(batch.rows), batch.log_probs.tolist(), strict=True)}
        for sentence, probability in by_hand.items():
            assert scores[sentence] == pytest.approx(math.log(probability), rel=1e-12)


def test_scored_batches_are_the_same_each_time_they_are_gone_through() -> None:
    batches = data_of().val_dataloader()
    assert scored(batches) == scored(batches)


def test_captions_are_scored_with_an_eighth() -> None:
    captions = load("captions")
    for batch in data_of(language=captions).val_dataloader():
        assert batch.log_probs.tolist() == pytest.approx([-3 * math.log(2)] * len(batch.rows), rel=1e-12)


def test_the_sets_differ_from_each_other_and_between_seeds() -> None:
    sets = []
    for seed in (5, 6):
        module = data_of(seed, train_size=101, test_size=101, batch_size=101)
        sets += [training_set(module), scored(module.val_dataloader()), scored(module.test_dataloader())]
        sets += [decoded(fresh(data_of(seed, train_size=None, batch_size=101), 1)[0])]
    assert all(len(sentences) == 101 for sentences in sets)
    assert len(set(map(tuple, sets))) == len(sets) == 8


def test_every_purpose_and_seed_and_number_has_its_own_stream() -> None:
    keys = [(seed, purpose, *numbers) for seed in range(3) for purpose in Stream for numbers in ((1,), (2,), (3,))]
    keys += [(seed, purpose) for seed in range(3) for purpose in Stream]
    draws = [tuple(stream(*key).integers(2**32, size=4)) for key in keys]
    assert len(set(draws)) == len(draws)
    assert draws == [tuple(stream(*key).integers(2**32, size=4)) for key in keys]


def everything(module: LanguageData) -> dict[str, list[Sentence]]:
    return {
        "train": training_set(module),
        "validation": scored(module.val_dataloader()),
        "test": scored(module.test_dataloader()),
    }


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_the_batch_size_changes_no_set(holdout: float) -> None:
    want = everything(data_of(holdout=holdout))
    for batch_size in (1, 7, 1_000):
        assert everything(data_of(holdout=holdout, batch_size=batch_size)) == want


def test_the_size_of_one_set_changes_no_other() -> None:
    want = everything(data_of())
    for option, key in (("train_size", "train"), ("validation_size", "validation"), ("test_size", "test")):
        got = everything(data_of(**{option: 11}))
        assert len(got.pop(key)) == 11
        assert got == {other: want[other] for other in got}


def test_the_global_random_states_neither_matter_nor_change() -> None:
    wants = everything(data_of(holdout=0.3))
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert everything(data_of(holdout=0.3)) == wants
    list(data_of().train_dataloader())
    fresh(data_of(train_size=None), 2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]


def test_the_loaders_of_a_run_are_those_of_its_seed() -> None:
    module = data_of()
    rows = torch.from_numpy(VOCABULARY.encode(training_set(module)))
    assert equal(list(module.train_dataloader()), list(ShuffledBatches(rows, 13, SEED)))
    assert equal(fresh(data_of(train_size=None), 3), steps_from(0, 3))


def frequencies_fit(sentences: Sequence[Sentence], shares: dict[Sentence, float]) -> bool:
    """Chi-square within six standard deviations of what chance makes it; and nothing that cannot be."""
    counts = Counter(sentences)
    expected = {sentence: share * len(sentences) for sentence, share in shares.items()}
    assert min(expected.values()) > 5
    assert sum(expected.values()) == pytest.approx(len(sentences), rel=1e-12)
    statistic = sum((counts[s] - want) ** 2 / want for s, want in expected.items())
    freedom = len(expected) - 1
    return counts.keys() <= expected.keys() and statistic < freedom + 6 * math.sqrt(2 * freedom)


def test_sentences_come_with_the_probabilities_of_the_language() -> None:
    module = data_of(train_size=3_000, validation_size=3_000, test_size=3_000)
    true = dict(LANGUAGE.enumerate())
    for sentences in everything(module).values():
        assert frequencies_fit(sentences, true)
    steps = fresh(data_of(train_size=None, batch_size=30), 100)
    assert frequencies_fit([s for step in steps for s in decoded(step)], true)


# What is held out

HELD_OUT = {0.1: 2, 0.25: 4, 0.5: 8, 0.7: 12, 0.9: 15}  # round(share · 17)


@pytest.mark.parametrize(("share", "count"), HELD_OUT.items())
def test_exactly_the_share_of_the_sentences_is_held_out(share: float, count: int) -> None:
    holdout = Holdout(LANGUAGE, share, SEED)
    held = {s for s, _ in LANGUAGE.enumerate() if s in holdout}
    assert len(held) == count
    assert holdout.sentences == held


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
@pytest.mark.parametrize("train_size", [3_000, None], ids=["fixed", "fresh"])
def test_training_shows_the_language_given_that_a_sentence_is_not_held_out(
    share: float, train_size: int | None
) -> None:
    """So none that is, and each of the others in proportion."""
    module = data_of(holdout=share, train_size=train_size, batch_size=30)
    held = Holdout(LANGUAGE, share, SEED).sentences
    assert held
    shown = training_set(module) if train_size else [s for rows in fresh(module, 100) for s in decoded(rows)]
    assert len(shown) == 3_000
    kept = {s: p for s, p in LANGUAGE.enumerate() if s not in held}
    assert frequencies_fit(shown, {s: p / math.fsum(kept.values()) for s, p in kept.items()})


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_validation_and_test_show_the_whole_language_whatever_is_held_out(share: float) -> None:
    module = data_of(holdout=share, validation_size=3_000, test_size=3_000)
    whole = data_of(validation_size=3_000, test_size=3_000)
    true = dict(LANGUAGE.enumerate())
    for got, want in (
        (module.val_dataloader(), whole.val_dataloader()),
        (module.test_dataloader(), whole.test_dataloader()),
    ):
        assert scored(got) == scored(want)
        assert frequencies_fit(scored(got), true)


def test_seeds_hold_out_different_sentences_and_each_sentence_is_held_out_as_often_as_another() -> None:
    counts = Counter(s for seed in range(400) for s in Holdout(LANGUAGE, 0.25, seed).sentences or ())
    assert len({Holdout(LANGUAGE, 0.25, seed).sentences for seed in range(20)}) > 15
    expected = 400 * 4 / SIZE
    spread = math.sqrt(400 * (4 / SIZE) * (1 - 4 / SIZE))
    assert len(counts) == SIZE
    assert all(abs(count - expected) < 4.5 * spread for count in counts.values())


def test_what_is_held_out_stays_so_when_the_share_grows() -> None:
    smaller: frozenset[Sentence] = frozenset()
    for share in HELD_OUT:
        larger = Holdout(LANGUAGE, share, SEED).sentences
        assert larger is not None and smaller < larger
        smaller = larger


def test_nothing_is_held_out_unless_asked_for() -> None:
    assert data_of().holdout is None
    assert not any(s in Holdout(LANGUAGE, 0.0, SEED) for s, _ in LANGUAGE.enumerate())
    assert set(training_set(data_of(train_size=3_000))) == {s for s, _ in LANGUAGE.enumerate()}


@pytest.mark.parametrize(("share", "count"), [(0.02, 0), (0.98, 17)])
def test_holding_out_nothing_or_all_is_refused_before_anything_is_drawn(share: float, count: int) -> None:
    message = f"^data.holdout={share}: holds out {count} of the language's 17 sentences; at least one must"
    with pytest.raises(ConfigError, match=message):
        data_of(holdout=share)


def test_holding_out_almost_all_of_the_probability_is_refused() -> None:
    """Drawing from what stays would take forever. A seed that holds out the rare sentence is fine."""
    language = from_text("S -> 'often' [0.999999999999] | 'never' [1e-12]", "S")
    refused = 0
    for seed in range(20):
        try:
            assert Holdout(language, 0.5, seed).sentences == {("never",)}
        except ConfigError as error:
            assert "data.holdout=0.5: what stays has 1e-12 of the probability" in str(error)
            refused += 1
    assert 0 < refused < 20


def test_a_language_of_one_sentence_has_nothing_to_hold_out() -> None:
    with pytest.raises(ConfigError, match="holds out 0 of the language's 1 sentences"):
        data_of(language=from_text("S -> 'a'", "S"), holdout=0.5)
    with pytest.raises(ConfigError, match="holds out 1 of the language's 1 sentences"):
        data_of(language=from_text("S -> 'a'", "S"), holdout=0.6)


class Unlisted:
    """The language, as if it were too large to be written out."""

    def __init__(self, language: Language) -> None:
        self._language = language

    def __getattr__(self, name: str) -> object:
        return getattr(self._language, name)

    def enumerate(self, limit: int = 0) -> list[tuple[Sentence, float]]:
        raise NotEnumerableError("too large")


BITS = 12
ALL_BITS = list(itertools.product("01", repeat=BITS))
BIT_LANGUAGE = from_text("S -> " + "B " * BITS + "\nB -> '0' | '1'", "S")


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_of_a_language_too_large_to_list_about_the_share_is_held_out(share: float) -> None:
    """Each sentence by itself with that probability: a binomial count, the same whoever asks."""
    holdout = Holdout(Unlisted(BIT_LANGUAGE), share, SEED)
    assert holdout.sentences is None
    held = {s for s in ALL_BITS if s in holdout}
    total = len(ALL_BITS)
    assert abs(len(held) - share * total) < 4 * math.sqrt(total * share * (1 - share))
    assert held == {s for s in ALL_BITS if s in Holdout(Unlisted(BIT_LANGUAGE), share, SEED)}
    # independent of another seed's, and part of what a larger share holds out
    both = held & {s for s in ALL_BITS if s in Holdout(Unlisted(BIT_LANGUAGE), share, SEED + 1)}
    assert abs(len(both) - share**2 * total) < 4 * math.sqrt(total * share**2 * (1 - share**2))
    assert held < {s for s in ALL_BITS if s in Holdout(Unlisted(BIT_LANGUAGE), share + 0.1, SEED)}


@pytest.mark.parametrize("train_size", [500, None], ids=["fixed", "fresh"])
def test_training_on_a_language_too_large_to_list_never_shows_what_is_held_out(train_size: int | None) -> None:
    module = data_of(language=Unlisted(BIT_LANGUAGE), holdout=0.3, train_size=train_size, validation_size=500)
    assert module.holdout is not None
    rows = list(itertools.islice(module.train_dataloader(), 30))
    shown = [sentence for batch in rows for sentence in decoded(batch, module.vocabulary)]
    validated = [s for batch in module.val_dataloader() for s in decoded(batch.rows, module.vocabulary)]
    assert len(shown) == 30 * 13
    assert not any(sentence in module.holdout for sentence in shown)
    held = sum(sentence in module.holdout for sentence in validated)
    assert abs(held - 150) < 4 * math.sqrt(500 * 0.3 * 0.7)


def test_a_sentence_is_hashed_with_the_borders_of_its_words() -> None:
    """`ab c` and `a bc` are held out independently of each other."""
    holdout = Holdout(Unlisted(BIT_LANGUAGE), 0.5, SEED)
    pairs = [((f"x{n}", "y"), ("x", f"{n}y")) for n in range(200)]
    assert 60 < sum((one in holdout) == (other in holdout) for one, other in pairs) < 140


# Another process


def fingerprint() -> dict[str, object]:
    module = data_of(holdout=0.3)
    assert module.holdout is not None and module.holdout.sentences is not None
    unlisted = Holdout(Unlisted(BIT_LANGUAGE), 0.3, SEED)
    return {
        **{key: [" ".join(s) for s in sentences] for key, sentences in everything(module).items()},
        "log_probs": [batch.log_probs.tolist() for batch in module.val_dataloader()],
        "held out": sorted(" ".join(s) for s in module.holdout.sentences),
        "held out of many": [s in unlisted for s in ALL_BITS[:200]],
        "order": epoch_of(at(numbered(23), 3)),
        "fresh": [batch.tolist() for batch in fresh(data_of(holdout=0.3, train_size=None), 3)],
    }


def test_another_process_shows_and_holds_out_the_same() -> None:
    here = Path(__file__).parent
    paths = [str(Path(grammarlab.__file__).parents[1]), str(here)]
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # the one thing that differs by default
    run = subprocess.run(
        [sys.executable, "-c", "import json, test_data; print(json.dumps(test_data.fingerprint()))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout.splitlines()[-1]) == fingerprint()
