"""What `src/generate.py` prints: sentences as a table or as JSON, word by word, or in a conversation."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grammarlab import report
from grammarlab.config import ConfigError
from grammarlab.evaluation import Sample
from grammarlab.language import END
from grammarlab.prompting import NextToken, Prompting

_SHOWN = 20  # words that may follow, at most


def show_samples(prompting: Prompting, *, constrained: bool) -> None:
    prompts = prompting.prompts()
    samples = prompting.samples(prompts)
    several = len(set(prompts)) > 1
    headings = (
        *(["prompt"] if several else []),
        "sentence",
        "valid",
        "log p language",
        "log q model",
        *(["mass cut"] if constrained else []),
    )
    caption = "log-probabilities in nats" + (
        "; mass cut: of the model, on words that the grammar does not allow, the largest at a word"
        if constrained
        else ""
    )
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("prompt", "sentence", "valid") else "right")
    for prompt, sample in zip(prompts, samples, strict=True):
        cut = 1 - min(sample.drawn_legal_mass, default=1.0)
        table.add_row(
            *([Text(prompt)] if several else []),
            Text(sample.text + ("" if sample.ended else " …")),
            "yes" if sample.valid else "no",
            f"{sample.log_prob_language:.4f}" if sample.valid else "−∞",
            f"{sample.log_prob_model:.4f}",
            *([f"{cut:.2g}"] if constrained else []),
        )
    report.show(table)
    print(_counts([(sample.words, sample.valid, sample.ended) for sample in samples]))


def _counts(sentences: Sequence[tuple[tuple[str, ...], bool, bool]]) -> str:
    valid = sum(valid for _, valid, _ in sentences)
    distinct = len({words for words, _, _ in sentences})
    unfinished = sum(not ended for _, _, ended in sentences)
    return f"{valid} of {len(sentences)} valid, {distinct} distinct" + (
        f", {unfinished} not finished" if unfinished else ""
    )


def print_json(prompting: Prompting) -> None:
    """A line for each sentence. JSON has no −∞: what the language lacks has a log-probability of null."""
    prompts = prompting.prompts()
    for prompt, sample in zip(prompts, prompting.samples(prompts), strict=True):
        line = {
            "prompt": prompt,
            "text": sample.text,
            "words": list(sample.words),
            "ended": sample.ended,
            "valid": sample.valid,
            "log_prob_language": _finite(sample.log_prob_language),
            "log_prob_model": sample.log_prob_model,
            "drawn": _drawn(prompting, sample),
        }
        print(json.dumps(line, ensure_ascii=False))


def _drawn(prompting: Prompting, sample: Sample) -> list[dict[str, Any]]:
    tokens = (*sample.words, END) if sample.ended else sample.words
    drawn = tokens[len(tokens) - len(sample.drawn_log_probs) :]
    scores = zip(
        drawn,
        prompting.language_log_probs(sample),
        sample.drawn_log_probs,
        sample.drawn_legal_mass,
        strict=True,
    )
    return [
        {
            "token": token,
            "log_prob_language": _finite(log_p),
            "log_prob_model": log_q,
            **({"legal_mass": mass} if prompting.how.allowed is not None else {}),
        }
        for token, log_p, log_q, mass in scores
    ]


def _finite(value: float) -> float | None:
    return value if value > -math.inf else None


def show_stream(prompting: Prompting) -> None:
    """Each sentence on a line, each word as it is drawn."""
    sentences = []
    for row, prompt in enumerate(prompting.prompts()):
        words, ended = _stream_line(prompting, prompt, row)
        valid = ended and prompting.language.log_prob([words])[0] > -math.inf
        sentences.append((words, bool(valid), ended))
    print(_counts(sentences))


def _stream_line(prompting: Prompting, prompt: str, row: int) -> tuple[tuple[str, ...], bool]:
    """Print prompt and words; the sentence, and whether it came to its end."""
    words, ended = list(prompt.split()), False
    print(*words, end="", flush=True)
    for token in prompting.stream(prompt, row):
        if token == END:
            ended = True
            break
        print(" " * bool(words) + token, end="", flush=True)
        words.append(token)
    print("" if ended else " …", flush=True)
    return tuple(words), ended


def interact(prompting: Prompting, first: str, lines: Iterable[str] | None = None) -> None:
    """For each line what may follow it in the language and for the model, side by side, and how the model goes on."""
    console = Console()
    for row, line in enumerate(_first_then(first, typed_lines() if lines is None else lines)):
        try:
            words = prompting.check(line, "prompt")
        except ConfigError as error:
            print(f"error: {error}")
            continue
        tokens = prompting.next_tokens(words)
        console.print(_next_tokens_table(tokens))
        print(_distance(tokens))
        print("goes on: ", end="")
        _stream_line(prompting, line, row)


def typed_lines() -> Iterator[str]:
    """Lines of the standard input until its end; at a terminal asked for, else echoed."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            print(f"> {line.rstrip()}")
            yield line.rstrip()
        return
    print("a prompt, or nothing for the beginning of a sentence; Ctrl-D ends")
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def _first_then(first: str, lines: Iterable[str]) -> Iterator[str]:
    yield first
    yield from lines


def _next_tokens_table(tokens: Sequence[NextToken]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("next", "language", "", "model", ""):
        table.add_column(heading, justify="right" if heading in ("language", "model") else "left")
    for token in tokens[:_SHOWN]:
        table.add_row(
            Text("(end)" if token.token == END else token.token),
            f"{token.language:.4f}",
            Bar(1, 0, token.language, width=20, color="cyan"),
            f"{token.model:.4f}",
            Bar(1, 0, token.model, width=20, color="magenta"),
        )
    if len(tokens) > _SHOWN:
        rest = tokens[_SHOWN:]
        table.add_row(
            f"{len(rest)} more", f"{sum(t.language for t in rest):.4f}", "", f"{sum(t.model for t in rest):.4f}", ""
        )
    return table


def _distance(tokens: Sequence[NextToken]) -> str:
    legal = [token for token in tokens if token.language > 0]
    if not legal:
        return "no sentence of the language begins so"
    kl = sum(t.language * math.log(t.language / t.model) if t.model > 0 else math.inf for t in legal)
    mass = sum(token.model for token in legal)
    return f"legal mass of the model {mass:.6g}; KL(language‖model) of the next word {kl:.4g} nats"
