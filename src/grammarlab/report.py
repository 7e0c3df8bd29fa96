"""What a run says at its end, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table

from grammarlab.measures import measure_name

LEAKAGE = (
    "[bold red]leakage[/]: the loss is below the language's own floor, which only a model can reach that sees what it "
    "should predict"
)


def show(renderable: RenderableType) -> None:
    """Print at its full width: a narrow terminal wraps the lines, but no number is cut."""
    console = Console()
    needed = Measurement.get(console, console.options.update(max_width=10_000), renderable).maximum
    Console(width=max(console.width, needed)).print(renderable)


def summary(metrics: Mapping[str, float], temperatures: Sequence[float], title: str) -> RenderableType:
    """Loss and distances, then validity and coverage for each temperature; a line where the loss leaks."""
    distances = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    distances.add_column("")
    for heading, unit in (
        ("loss", "nats/token"),
        ("floor", "nats/token"),
        ("excess", "nats/token"),
        ("KL", "nats/sent."),
        ("total", "variation"),
        ("legal", "mass"),
    ):
        distances.add_column(f"{heading}\n{unit}", justify="right", no_wrap=True)
    losses = ("loss", "floor", "excess_loss")
    distances.add_row(
        "val",
        *(_number(metrics, f"val/{name}") for name in losses),
        *(_number(metrics, f"truth/{name}") for name in ("kl", "total_variation", "legal_mass")),
    )
    distances.add_row("test", *(_number(metrics, f"test/{name}") for name in losses))

    by_temperature = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    by_temperature.add_column("T", justify="right")
    for name in ("validity", "coverage"):
        by_temperature.add_column(name, justify="right", no_wrap=True)
        by_temperature.add_column("sampled, 95 %", justify="right", no_wrap=True)
    by_temperature.add_column("distinct, 95 %", justify="right", no_wrap=True)
    for temperature in sorted({1.0, *temperatures}):
        cells = []
        for name in ("validity", "coverage"):
            cells.append(_number(metrics, measure_name("truth", temperature, name)))
            cells.append(_interval(metrics, measure_name("sampled", temperature, name)))
        cells.append(_interval(metrics, measure_name("sampled", temperature, "distinct")))
        by_temperature.add_row(f"{temperature:g}", *cells)
    parts: list[RenderableType] = [distances, by_temperature]
    if "truth/holdout_mass" in metrics:
        model, share = metrics["truth/holdout_mass"], metrics["truth/holdout_share"]
        parts.append(f"held-out sentences: {model:.5f} of the model's probability, {share:.5f} of the language's")
    if metrics.get("val/leakage"):
        parts.append(LEAKAGE)
    return Group(*parts)


def one_line(metrics: Mapping[str, float]) -> str:
    """For a job of a sweep, whose table comes at the end."""
    text = (
        f"excess {_number(metrics, 'val/excess_loss')} nats/token, KL {_number(metrics, 'truth/kl')} nats/sentence, "
        f"validity {_number(metrics, 'truth/validity')}"
    )
    return text + (", [bold red]leakage[/]" if metrics.get("val/leakage") else "")


def _number(metrics: Mapping[str, float], name: str) -> str:
    if name not in metrics:
        return "–"
    if (error := metrics.get(f"{name}_stderr")) is not None:
        return f"≈ {metrics[name]:.5f} ± {error:.1g}"
    return f"{metrics[name]:.5f}"


def _interval(metrics: Mapping[str, float], name: str) -> str:
    if name not in metrics:
        return "–"
    return f"{metrics[f'{name}_low']:.3f}–{metrics[f'{name}_high']:.3f}"
