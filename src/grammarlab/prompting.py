"""A trained model asked at a terminal: sentences from prompts, word by word where wanted, and what may come next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from grammarlab.config import ConfigError, GenerateConfig, read_text
from grammarlab.evaluation import Sample, draw_samples, legal_ids
from grammarlab.generation import How, Sampling, evaluating, stream_tokens
from grammarlab.language import END
from grammarlab.parts import build_parts, load_checkpoint, restore


@dataclass(frozen=True, slots=True)
class NextToken:
    """A word, or the end, that can follow: its probability in the language and as the model draws it."""

    token: str
    language: float
    model: float


class Prompting:
    """A checkpoint ready to go on from prompts as the options say.

    Raises `ConfigError` for unknown words, prompts longer than the context, a cache that the model refuses, and
    `constrained` where no sentence of the language begins like a prompt.
    """

    def __init__(self, config: GenerateConfig) -> None:
        torch.set_num_threads(config.torch_threads)
        self.trained, weights = load_checkpoint(config.checkpoint)
        if config.cache and not self.trained.model.causal:
            raise ConfigError(
                "cache=true: the model was trained with model.causal=false, and only a causal one can use a cache"
            )
        parts = build_parts(self.trained)
        restore(parts.model, weights)
        self.model, self.language, self.vocabulary = parts.model, parts.language, parts.vocabulary
        self._config = config
        self.how = How(
            sampling=Sampling(
                temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, min_p=config.min_p
            ),
            seed=config.seed,
            max_new_tokens=config.max_new_tokens,
            allowed=legal_ids(self.language, self.vocabulary) if config.constrained else None,
            cache=config.cache,
        )

    def prompts(self) -> list[str]:
        """Those of the options, each as often as `samples` says."""
        config = self._config
        if config.prompts_file is None:
            prompts = {"prompt": config.prompt}
        else:
            lines = read_text("prompts_file", config.prompts_file).splitlines()
            prompts = {f"prompts_file={config.prompts_file} line {i}": p for i, p in enumerate(lines, 1) if p.strip()}
            if not prompts:
                raise ConfigError(f"prompts_file={config.prompts_file}: has no line with a prompt")
        for place, prompt in prompts.items():
            self.check(prompt, place)
        return [prompt for prompt in prompts.values() for _ in range(config.samples)]

    def check(self, prompt: str, place: str = "prompt") -> tuple[str, ...]:
        """Its words. Raises `ConfigError` that names the place of a prompt from which nothing can go on."""
        words = tuple(prompt.split())
        context = self.trained.model.context
        if len(words) >= context:
            raise ConfigError(
                f"{place}={prompt!r}: has {len(words)} words; model.context={context} holds the begin token and "
                f"{context - 1}"
            )
        try:
            self.vocabulary.word_ids(words)
        except ValueError as error:
            raise ConfigError(f"{place}={prompt!r}: {error}") from None
        if self._config.constrained and not self.language.next_token_probs(words)[-1].any():
            raise ConfigError(
                f"{place}={prompt!r}: no sentence of the language begins so, and constrained=true goes on in one"
            )
        return words

    def samples(self, prompts: Sequence[str]) -> list[Sample]:
        """A sentence for each prompt."""
        return draw_samples(
            self.model, self.language, self.vocabulary, [prompt.split() for prompt in prompts], how=self.how
        )

    def stream(self, prompt: str, row: int = 0) -> Iterator[str]:
        """The tokens that `samples` would append in that row, the end with them, each as soon as it is drawn."""
        ids = [self.vocabulary.begin_id, *self.vocabulary.word_ids(prompt.split())]
        for token in stream_tokens(self.model, ids, end_id=self.vocabulary.end_id, how=self.how, row=row):
            yield self.vocabulary.tokens[token]

    def language_log_probs(self, sample: Sample) -> list[float]:
        """Natural log of p of each token that was drawn given those before it; −inf where it cannot follow."""
        tokens = (*sample.words, END) if sample.ended else sample.words
        columns = {token: i for i, token in enumerate((*self.language.terminals, END))}
        rows = self.language.next_token_probs(sample.words)
        start = len(tokens) - len(sample.drawn_log_probs)
        probs = [float(rows[i, columns[token]]) for i, token in enumerate(tokens)]
        return [math.log(p) if p > 0 else -math.inf for p in probs[start:]]

    @torch.inference_mode()
    def next_tokens(self, words: Sequence[str]) -> list[NextToken]:
        """All that language or model let follow these words, the most probable in the language first."""
        ids = torch.tensor([[self.vocabulary.begin_id, *self.vocabulary.word_ids(words)]])
        with evaluating(self.model):
            logits = self.model(ids)[:, -1]
        if self.how.allowed is not None:
            logits = logits.masked_fill(~torch.from_numpy(self.how.allowed(ids[0].tolist())), -math.inf)
        q = self.how.sampling.log_probs(logits)[0].exp()[self.vocabulary.column_ids].tolist()
        p = self.language.next_token_probs(tuple(words))[-1].tolist()
        tokens = (*self.language.terminals, END)
        found = [NextToken(*each) for each in zip(tokens, p, q, strict=True)]
        return sorted((t for t in found if t.language > 0 or t.model > 0), key=lambda t: (-t.language, -t.model))
