"""The options of the commands other than training."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum, auto

from grammarlab.config.training import (
    GenerationConfig,
    LanguageConfig,
    at_least,
    check_seed,
    check_temperature,
    check_temperatures,
    require,
)


class BenchmarkName(StrEnum):
    step = auto()
    truth = auto()
    generation = auto()
    cache = auto()


class ExportFormat(StrEnum):
    gpt2 = auto()


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """Measure a checkpoint again. What is null is as in the checkpoint's own run."""

    checkpoint: str = "???"
    torch_threads: int = 1
    seed: int | None = None  # of the generated sentences
    temperatures: list[float] | None = None
    samples: int | None = None
    batch_size: int | None = None  # sentences a pass
    json: bool = False

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_seed(self.seed)
        at_least(1, torch_threads=self.torch_threads, samples=self.samples, batch_size=self.batch_size)


@dataclass(kw_only=True, slots=True)
class GenerateConfig:
    """Sentences from a checkpoint."""

    checkpoint: str = "???"
    torch_threads: int = 1
    seed: int = 1
    prompt: str = ""
    prompts_file: str | None = None  # one prompt a line
    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None  # draw from the k most probable words
    top_p: float | None = None  # … from the fewest whose mass reaches p
    min_p: float | None = None  # … from those at least min_p times as probable as the most probable
    constrained: bool = False  # … from those that the language allows there
    samples: int = 1  # for each prompt
    max_new_tokens: int | None = None  # null: as many as the context holds
    cache: bool | None = None  # null: for a causal model
    stream: bool = False  # show each word as it is drawn
    interactive: bool = False  # ask for prompts, show what model and language let follow
    json: bool = False

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_temperature("temperature", self.temperature)
        at_least(1, torch_threads=self.torch_threads, top_k=self.top_k, samples=self.samples)
        at_least(0, max_new_tokens=self.max_new_tokens)
        require(self.top_p is None or 0 < self.top_p <= 1, "top_p", self.top_p, "must be above 0 and at most 1")
        require(self.min_p is None or 0 <= self.min_p <= 1, "min_p", self.min_p, "must be from 0 to 1")
        require(
            not (self.prompt and self.prompts_file),
            "prompts_file",
            self.prompts_file,
            "and prompt exclude each other",
        )
        require(not (self.stream and self.json), "stream", "true", "and json=true exclude each other")
        if self.interactive:
            for option, value, default in (
                ("prompts_file", self.prompts_file, None),
                ("samples", self.samples, 1),
                ("stream", self.stream, False),
                ("json", self.json, False),
            ):
                require(value == default, option, value, "has no meaning with interactive=true")


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """A checkpoint in the format of another library."""

    checkpoint: str = "???"
    format: ExportFormat = ExportFormat.gpt2  # a folder for transformers
    into: str | None = None  # null: beside the checkpoint, as last-gpt2


@dataclass(kw_only=True, slots=True)
class LanguageCheckConfig:
    """What is known of a language: of the library, or of a grammar in a file."""

    language: LanguageConfig
    grammar: str | None = None  # a file; instead of `language`
    start: str = "S"  # of that grammar
    samples: int = 2_000  # sentences drawn for the share of ambiguous ones
    seed: int = 1
    json: bool = False

    def __post_init__(self) -> None:
        check_seed(self.seed)
        at_least(1, samples=self.samples)
        require(
            self.grammar is not None or self.start == "S",
            "start",
            self.start,
            "needs grammar=FILE; else language.start",
        )


@dataclass(kw_only=True, slots=True)
class CompareConfig:
    """Many runs as one table."""

    measures: list[str] | None = None  # null: the usual ones
    baseline: str | None = None  # a setting as the table names it: each other one less this one, paired over seeds
    into: str | None = None  # folder for compare.csv and compare.png; null: the first one compared


@dataclass(kw_only=True, slots=True)
class BoardConfig:
    """Many runs as one page."""

    baseline: str | None = None  # a setting as the table names it, against which the others are; null: the first
    into: str | None = None  # the HTML file; null: board.html in the first folder
    watch: bool = False  # write it anew whenever something changes, until nothing runs there any more
    interval: float = 5.0  # seconds between two looks

    def __post_init__(self) -> None:
        require(
            self.into is None or self.into.endswith((".html", ".htm")), "into", self.into, "must be a file named ….html"
        )
        require(0.1 <= self.interval <= 86_400, "interval", self.interval, "must be from 0.1 to 86400 seconds")


@dataclass(kw_only=True, slots=True)
class DashboardConfig:
    """What Weights & Biases shows of a project: its workspace, or the report of a sweep."""

    project: str = "grammarlab"
    entity: str | None = None  # the user or team; null: that of the account
    name: str | None = None  # null: as the project, or the sweep
    sweep: str | None = None  # its folder, or its group at W&B: the report of it instead of the workspace
    temperatures: list[float] = field(default_factory=lambda: GenerationConfig().temperatures)
    exact: bool = True  # false: for languages beyond evaluation.enumeration_limit
    dry_run: bool = False  # write the workspace as JSON instead of saving it at W&B
    into: str | None = None  # that file; null: outputs/dashboard.json

    def __post_init__(self) -> None:
        for option, limit in (("project", 128), ("entity", 128), ("name", 128), ("sweep", None)):
            value = getattr(self, option)
            allowed = f"must have 1 to {limit} characters" if limit else "must not be empty"
            require(value is None or 0 < len(value) <= (limit or len(value)), option, value, allowed)
        check_temperatures("temperatures", self.temperatures)
        require(self.into is None or self.dry_run, "into", self.into, "needs dry_run=true")
        require(
            not (self.dry_run and self.sweep),
            "sweep",
            self.sweep,
            "and dry_run=true exclude each other: a report is laid out by the server",
        )


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig:
    """Paired timings; every ratio comes from one run of one process."""

    benchmark: BenchmarkName = BenchmarkName.step
    torch_threads: int = 1
    repeats: int = 15
    steps: int = 150  # a repeat of benchmark=step

    def __post_init__(self) -> None:
        at_least(1, torch_threads=self.torch_threads, steps=self.steps)
        at_least(2, repeats=self.repeats)
