"""Words to ids and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammarlab.language import BEGIN, END, PAD, load
from grammarlab.vocabulary import Vocabulary

WORDS = ("sun", "moon", "star")
VOCABULARY = Vocabulary(WORDS)
PAD_ID, BEGIN_ID, END_ID = VOCABULARY.pad_id, VOCABULARY.begin_id, VOCABULARY.end_id
SENTENCES = st.lists(st.lists(st.sampled_from(WORDS), max_size=5).map(tuple), max_size=7)
FIXED = settings(derandomize=True, database=None, deadline=None)


def test_every_token_has_an_id_of_its_own_the_special_ones_first() -> None:
    assert VOCABULARY.tokens == (PAD, BEGIN, END, *WORDS)
    assert len(VOCABULARY) == 6
    assert (PAD_ID, BEGIN_ID, END_ID) == (0, 1, 2)
    assert VOCABULARY.word_ids(WORDS) == [3, 4, 5]
    assert VOCABULARY.word_ids(("star", "sun", "star")) == [5, 3, 5]


def test_a_sentence_stands_between_begin_and_end_and_is_padded_on_the_right() -> None:
    rows = VOCABULARY.encode([("moon",), (), ("star", "sun", "moon")])
    assert rows.dtype == np.int64
    assert rows.tolist() == [
        [BEGIN_ID, 4, END_ID, PAD_ID, PAD_ID],
        [BEGIN_ID, END_ID, PAD_ID, PAD_ID, PAD_ID],
        [BEGIN_ID, 5, 3, 4, END_ID],
    ]


def test_no_sentences_are_no_rows_and_the_empty_sentence_is_one() -> None:
    assert VOCABULARY.encode([]).shape == (0, 2)
    assert VOCABULARY.encode([()]).tolist() == [[BEGIN_ID, END_ID]]


@given(sentences=SENTENCES)
@FIXED
def test_decoding_undoes_encoding(sentences: list[tuple[str, ...]]) -> None:
    rows = VOCABULARY.encode(sentences)
    assert [VOCABULARY.decode(row) for row in rows] == sentences


@given(sentences=SENTENCES)
@FIXED
def test_each_row_has_one_begin_and_one_end_and_pads_behind_it_alone(sentences: list[tuple[str, ...]]) -> None:
    rows = VOCABULARY.encode(sentences)
    assert rows.shape == (len(sentences), max(map(len, sentences), default=0) + 2)
    for row, sentence in zip(rows, sentences, strict=True):
        assert row[0] == BEGIN_ID and (row == BEGIN_ID).sum() == 1
        assert row.tolist().index(END_ID) == len(sentence) + 1 and (row == END_ID).sum() == 1
        assert (np.flatnonzero(row == PAD_ID) == np.arange(len(sentence) + 2, len(row))).all()


@pytest.mark.parametrize("stop", [END_ID, PAD_ID])
def test_decoding_ends_at_the_first_end_or_pad_whatever_follows(stop: int) -> None:
    assert VOCABULARY.decode([BEGIN_ID, 3, 4, stop, 5, BEGIN_ID, END_ID, 5]) == ("sun", "moon")
    assert VOCABULARY.decode([stop, 3]) == ()


def test_decoding_takes_what_has_no_end_yet_with_or_without_begin() -> None:
    assert VOCABULARY.decode([BEGIN_ID, 5, 5]) == VOCABULARY.decode([5, 5]) == ("star", "star")
    assert VOCABULARY.decode([]) == VOCABULARY.decode([BEGIN_ID]) == ()


def test_columns_of_the_language_are_its_words_then_the_end() -> None:
    """`next_token_probs` moved to these ids keeps each probability with its token."""
    captions = load("captions")
    vocabulary = Vocabulary(captions.terminals)
    assert vocabulary.column_ids.dtype == np.int64
    assert [vocabulary.tokens[index] for index in vocabulary.column_ids] == [*captions.terminals, END]
    after_a = dict(zip(vocabulary.column_ids, captions.next_token_probs(("a",))[1], strict=True))
    assert after_a[vocabulary.word_ids(["photo"])[0]] == 0.5
    assert after_a[vocabulary.end_id] == 0


def test_an_unknown_word_is_named_with_the_known_ones() -> None:
    message = "unknown word 'mars'; the language has sun, moon, star"
    with pytest.raises(ValueError, match=message):
        VOCABULARY.word_ids(["sun", "mars"])
    with pytest.raises(ValueError, match=message):
        VOCABULARY.encode([("sun",), ("moon", "mars")])


def test_a_message_lists_no_more_than_20_words() -> None:
    words = [f"w{number}" for number in range(31)]
    with pytest.raises(ValueError, match=r"has w0, .*, w19$"):
        Vocabulary(words).word_ids(["x"])


@pytest.mark.parametrize("words", [("sun", "sun"), ("sun", PAD), ("sun", BEGIN), (END,)])
def test_words_must_differ_from_each_other_and_from_the_special_tokens(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="must differ from each other and from the special tokens"):
        Vocabulary(words)


def test_a_language_of_the_empty_sentence_alone_has_the_special_tokens() -> None:
    vocabulary = Vocabulary(())
    assert len(vocabulary) == 3
    assert vocabulary.column_ids.tolist() == [vocabulary.end_id]


@pytest.mark.parametrize("token", ["<pad>", "<begin>", "<end>"])
def test_a_special_token_is_no_word(token: str) -> None:
    with pytest.raises(ValueError, match="unknown word"):
        Vocabulary(("a",)).word_ids([token])


@pytest.mark.parametrize("name", ["captions", "arithmetic", "tomita2"])
@pytest.mark.parametrize("n", [0, 1, 17])
def test_indices_are_encoded_as_the_words_are(name: str, n: int) -> None:
    """`sample_indices` draws what `sample` draws, and both ways lead to the same rows."""
    language = load(name)
    vocabulary = Vocabulary(language.terminals)
    sentences = language.sample(n, np.random.default_rng(5))
    indices = language.sample_indices(n, np.random.default_rng(5))
    assert vocabulary.encode_indices(indices).tolist() == vocabulary.encode(sentences).tolist()
