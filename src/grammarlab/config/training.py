"""Every option of the program: its name, type, default and what is allowed.

Plain dataclasses without torch or Hydra, so that `--help` and a mistyped option are answered at once; the rooms above
take their own part. Types say what a type can say, `__post_init__` the rest, each in one line that names the option,
its value and the way out. Values that no dataclass knows (a misspelt key) never get here: the schema refuses them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """An option that the user has to change. Its message is one line."""


def read_text(option: str, path: str) -> str:
    """Raises `ConfigError` that names the option where the file cannot be read as UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{option}={path}: {reason}") from None


class Positions(StrEnum):
    learned = auto()
    sinusoidal = auto()
    rotary = auto()
    alibi = auto()
    relative = auto()
    none = auto()


# Those that act on the scores of attention, by the distance of the two tokens.
BY_DISTANCE = (Positions.rotary, Positions.alibi, Positions.relative)


class Norm(StrEnum):
    layer = auto()
    rms = auto()


class FeedForwardName(StrEnum):
    gelu = auto()
    gelu_tanh = auto()
    relu = auto()
    swiglu = auto()


class NormOrder(StrEnum):
    post = auto()
    pre = auto()


class OptimizerName(StrEnum):
    adam = auto()
    adamw = auto()


class Schedule(StrEnum):
    constant = auto()
    cosine = auto()


class LoggerName(StrEnum):
    wandb = auto()
    tensorboard = auto()
    csv = auto()
    none = auto()


class LoggerMode(StrEnum):
    offline = auto()
    online = auto()


class Accelerator(StrEnum):
    cpu = auto()
    cuda = auto()


class GeneratorName(StrEnum):
    dyck = auto()
    random = auto()


# The precisions of lightning.pytorch.Trainer.
PRECISIONS = (
    "64-true",
    "32-true",
    "16-mixed",
    "bf16-mixed",
    "16-true",
    "bf16-true",
    "transformer-engine",
    "transformer-engine-float16",
)


def require(condition: bool, option: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{option}={value}: {allowed}")


def at_least(minimum: float, **options: float | None) -> None:
    for option, value in options.items():
        name = option.replace("__", ".")
        if value is not None:
            require(value >= minimum, name, value, f"must be at least {minimum:g}")  # NaN is refused too


@dataclass(kw_only=True, slots=True)
class LanguageConfig:
    """A grammar, inline, in a file or from a generator, and the symbol to start from."""

    name: str = "inline"
    start: str = "S"
    grammar: str | None = None
    file: str | None = None
    generator: GeneratorName | None = None
    parameters: dict[str, float] = field(default_factory=dict)  # that its probabilities name, or its generator takes
    allow_improper: bool = False  # take a grammar some of whose derivations never end given that they end

    def __post_init__(self) -> None:
        if self.generator is not None:
            for option, value in (("grammar", self.grammar), ("file", self.file)):
                require(value is None, f"language.{option}", value, f"excludes language.generator={self.generator}")
            return
        if self.grammar is not None and self.file is not None:
            raise ConfigError(
                f"language.file={self.file}: language={self.name} has a grammar; say language=file with it"
            )
        if self.grammar is None and self.file is None:
            raise ConfigError("language.file: must be given, as language.file=my.grammar language.start=S")


def language_inline(language: LanguageConfig) -> LanguageConfig:
    """The same language with its grammar's text in it. Raises `ConfigError` for a file that cannot be read."""
    if language.file is None:
        return language
    text = read_text("language.file", language.file)
    name = Path(language.file).stem if language.name == "file" else language.name
    return replace(language, name=name, grammar=text, file=None)


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """What is drawn from the language, and how it is cut into batches."""

    train_size: int | None = 680  # sentences; null: fresh ones at every step. 680 = 85 % of the lesson's 800
    validation_size: int = 120
    test_size: int = 1000
    batch_size: int = 128
    holdout: float = 0.0  # share of the language's sentences that training never shows

    def __post_init__(self) -> None:
        at_least(
            1,
            data__train_size=self.train_size,
            data__validation_size=self.validation_size,
            data__test_size=self.test_size,
            data__batch_size=self.batch_size,
        )
        require(0 <= self.holdout < 1, "data.holdout", self.holdout, "must be a share, at least 0 and below 1")


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The decoder. The defaults are the lesson's."""

    width: int = 32
    heads: int = 4
    kv_heads: int | None = None  # heads of keys and values, each shared by a group of query heads; null: as many
    depth: int = 1
    causal: bool = True
    context: int = 9  # tokens that the model can see, the begin token among them
    window: int | None = None  # a token sees those less than so many places away, itself the first; null: all
    positions: Positions = Positions.learned
    uniform_attention: bool = False  # no queries and keys: head h takes the mean of the nearest 2^h - 1 tokens
    qk_norm: bool = False  # a norm over each head's query and key
    norm: Norm = Norm.layer
    norm_order: NormOrder = NormOrder.post
    feedforward: FeedForwardName = FeedForwardName.gelu
    feedforward_multiple: float = 4  # width of the feed-forward part, as a multiple of `width`
    bias: bool = True  # of the linear maps and layer norms
    dropout: float = 0.0
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        at_least(
            1,
            model__width=self.width,
            model__heads=self.heads,
            model__kv_heads=self.kv_heads,
            model__depth=self.depth,
            model__context=self.context,
            model__window=self.window,
        )
        require(0 <= self.dropout < 1, "model.dropout", self.dropout, "must be at least 0 and below 1")
        multiple = self.feedforward_multiple
        require(
            0 < multiple < math.inf and self.feedforward_width >= 1,
            "model.feedforward_multiple",
            multiple,
            "must be finite and give a width of at least 1",
        )
        require(
            self.width % self.heads == 0,
            "model.heads",
            self.heads,
            f"must divide model.width={self.width} evenly",
        )
        require(
            self.kv_heads is None or self.heads % self.kv_heads == 0,
            "model.kv_heads",
            self.kv_heads,
            f"must divide model.heads={self.heads} evenly",
        )
        require(
            self.positions != Positions.sinusoidal or self.width % 2 == 0,
            "model.width",
            self.width,
            "must be even with model.positions=sinusoidal",
        )
        require(
            self.positions != Positions.rotary or self.width // self.heads % 2 == 0,
            "model.heads",
            self.heads,
            f"leaves heads of width {self.width // self.heads}; with model.positions=rotary it must be even",
        )
        if self.uniform_attention:
            fixed = "has no meaning with model.uniform_attention=true, which has no queries and keys"
            require(self.positions not in BY_DISTANCE, "model.positions", self.positions, fixed)
            require(not self.qk_norm, "model.qk_norm", "true", fixed)

    @property
    def feedforward_width(self) -> int:
        return round(self.feedforward_multiple * self.width)


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """Adam or AdamW, and the learning rate by step."""

    name: OptimizerName = OptimizerName.adam
    learning_rate: float = 0.003
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    epsilon: float = 1e-8
    weight_decay: float = 0.0  # on matrices alone; needs adamw
    schedule: Schedule = Schedule.constant
    warmup_steps: int = 0
    final_fraction: float = 0.0  # cosine: the last learning rate as a share of the peak

    def __post_init__(self) -> None:
        rate = self.learning_rate
        require(0 < rate < math.inf, "optimizer.learning_rate", rate, "must be positive and finite")
        require(0 < self.epsilon < math.inf, "optimizer.epsilon", self.epsilon, "must be positive and finite")
        require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "optimizer.betas",
            self.betas,
            "must be two numbers, each at least 0 and below 1",
        )
        at_least(0, optimizer__weight_decay=self.weight_decay, optimizer__warmup_steps=self.warmup_steps)
        require(
            self.weight_decay == 0 or self.name == OptimizerName.adamw,
            "optimizer.weight_decay",
            self.weight_decay,
            "needs optimizer=adamw; plain Adam has none",
        )
        require(
            0 <= self.final_fraction <= 1,
            "optimizer.final_fraction",
            self.final_fraction,
            "must be from 0 to 1",
        )
        require(
            self.final_fraction == 0 or self.schedule == Schedule.cosine,
            "optimizer.final_fraction",
            self.final_fraction,
            "needs optimizer.schedule=cosine",
        )


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """What is passed to Lightning's Trainer, and how often things happen, in steps."""

    max_steps: int = 800
    max_epochs: int | None = None  # whichever of the two limits is met first
    accelerator: Accelerator = Accelerator.cpu  # models of this size are no faster elsewhere
    precision: str = "32-true"
    gradient_clip_val: float | None = None  # bound of the gradient's norm
    val_check_interval: int = 100
    checkpoint_interval: int = 100
    log_every_n_steps: int = 20
    enable_progress_bar: bool = True
    fast_dev_run: bool = False  # every part once; leaves no result

    def __post_init__(self) -> None:
        at_least(
            1,
            trainer__max_steps=self.max_steps,
            trainer__max_epochs=self.max_epochs,
            trainer__val_check_interval=self.val_check_interval,
            trainer__checkpoint_interval=self.checkpoint_interval,
            trainer__log_every_n_steps=self.log_every_n_steps,
        )
        require(
            self.precision in PRECISIONS,
            "trainer.precision",
            self.precision,
            f"must be one of {', '.join(PRECISIONS)}",
        )
        require(
            self.precision != "16-mixed" or self.accelerator != Accelerator.cpu,
            "trainer.precision",
            self.precision,
            "needs trainer.accelerator=cuda; on the CPU use bf16-mixed",
        )
        clip = self.gradient_clip_val
        require(
            clip is None or 0 < clip < math.inf,
            "trainer.gradient_clip_val",
            clip,
            "must be positive, or null",
        )


@dataclass(kw_only=True, slots=True)
class EvaluationConfig:
    """How the model is held against the language."""

    enumeration_limit: int = 10_000  # derivations up to which the measures are sums over all sentences
    samples: int = 2_000  # sentences drawn from the language where it is larger than that
    batch_size: int = 1_024  # sentences a pass
    sentence: str | None = None  # whose attention and next words are recorded; null: the most probable one

    def __post_init__(self) -> None:
        at_least(0, evaluation__enumeration_limit=self.enumeration_limit)
        at_least(2, evaluation__samples=self.samples)  # a standard error needs two
        at_least(1, evaluation__batch_size=self.batch_size)


@dataclass(kw_only=True, slots=True)
class GenerationConfig:
    """What the model generates for the sampled measures."""

    temperatures: list[float] = field(default_factory=lambda: [0.3, 0.8, 1.0, 2.0])
    samples: int = 1_000  # sentences at each temperature
    draws: int = 20  # n of the coverage: the expected share of the language among n draws
    recorded: int = 50  # sentences at each temperature that samples.csv and the W&B table show

    def __post_init__(self) -> None:
        check_temperatures("generation.temperatures", self.temperatures)
        at_least(1, generation__draws=self.draws, generation__recorded=self.recorded)
        require(
            self.samples >= 2 * self.draws,
            "generation.samples",
            self.samples,
            f"must be at least twice generation.draws={self.draws}: an interval needs two groups of draws",
        )


def check_temperature(option: str, value: float) -> None:
    require(0 <= value < math.inf, option, value, "must be 0 (greedy) or positive and finite")


def check_temperatures(option: str, values: list[float]) -> None:
    require(len(values) > 0, option, values, "must name at least one")
    for value in values:
        check_temperature(option, value)
    require(len(set(values)) == len(values), option, values, "must all differ")


@dataclass(kw_only=True, slots=True)
class LoggerConfig:
    """Where a run is written besides its metrics.csv and tables: `csv` and `none` both mean nowhere."""

    name: LoggerName = LoggerName.wandb
    project: str = "grammarlab"
    mode: LoggerMode = LoggerMode.offline
    store: str = "outputs/wandb"  # all runs in one place, so that one viewer lists and one command uploads them

    def __post_init__(self) -> None:
        if self.name != LoggerName.wandb:
            for option, default in (
                ("mode", LoggerMode.offline),
                ("project", "grammarlab"),
                ("store", "outputs/wandb"),
            ):
                value = getattr(self, option)
                require(value == default, f"logger.{option}", value, f"needs logger=wandb, not logger={self.name}")
        require(0 < len(self.project) <= 128, "logger.project", self.project, "must have 1 to 128 characters")


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """One training run."""

    seed: int = 1
    torch_threads: int = 1
    checkpoint: str | None = None  # a last.ckpt to go on from; the run's own options come from it
    name: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    language: LanguageConfig
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        at_least(1, torch_threads=self.torch_threads)
        require(
            self.optimizer.warmup_steps < self.trainer.max_steps,
            "optimizer.warmup_steps",
            self.optimizer.warmup_steps,
            f"must be below trainer.max_steps={self.trainer.max_steps}",
        )
        require(
            self.trainer.max_epochs is None or self.data.train_size is not None,
            "trainer.max_epochs",
            self.trainer.max_epochs,
            "has no meaning with data.train_size=null (fresh sentences have no epochs); use trainer.max_steps",
        )


def check_seed(value: int) -> None:
    require(0 <= value < 2**32, "seed", value, "must be from 0 to 2^32 - 1")
