"""Pictures from numbers: pure functions, made once and used everywhere. Needs matplotlib alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito (2008): told apart with any colour vision. The truth is always black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
TRUTH = "#000000"


def new_figure(width: float = 5.0, height: float = 3.2) -> Figure:
    """A figure that belongs to no window, so that nothing global is kept. Half a page wide unless said."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def loss_by_position(loss: Sequence[float], entropy: Sequence[float]) -> Figure:
    """The model's loss at each predicted token beside the language's conditional entropy there, in nats."""
    figure = new_figure()
    axes = figure.subplots()
    positions = range(1, len(loss) + 1)
    axes.plot(positions, loss, color=COLOURS[0], marker="o", label="model's loss")
    axes.plot(
        positions,
        entropy,
        color=TRUTH,
        marker="_",
        markersize=14,
        linestyle="none",
        label="language's entropy",
    )
    axes.set_xlabel("position of the predicted token")
    axes.set_ylabel("nats")
    axes.set_xticks(list(positions) if len(loss) <= 20 else axes.get_xticks())
    axes.set_xlim(0.5, len(loss) + 0.5)
    axes.set_ylim(bottom=min(0.0, *axes.get_ylim()))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def length_law(law: Sequence[float], mean: float | None, title: str) -> Figure:
    """Probability of each number of words; the mean as a line, where there is one."""
    figure = new_figure()
    axes = figure.subplots()
    axes.bar(range(len(law)), law, width=1.0 if len(law) > 60 else 0.8, color=COLOURS[0])
    if mean is not None and mean < len(law):
        axes.axvline(mean, color=TRUTH, linestyle="--", linewidth=1, label=f"mean {mean:.4g}")
        axes.legend(frameon=False)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("words of a sentence")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("probability")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


Point = tuple[float, float | None, Sequence[float]]  # mean, half of its interval, the single values

_UNITS = {"loss": "nats/token", "floor": "nats/token", "excess_loss": "nats/token", "kl": "nats/sentence"}


def settings(labels: Sequence[str], measures: Mapping[str, Sequence[Point | None]]) -> Figure:
    """A panel for each measure: settings below each other, a dot for each seed, mean and 95 % interval."""
    columns = min(3, len(measures)) or 1
    rows = -(-len(measures) // columns) or 1
    longest = max((len(label) for label in labels), default=0)
    figure = new_figure(0.07 * longest + 2.6 * columns, 0.3 + rows * (0.9 + 0.3 * len(labels)))
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in panels.flat[len(measures) :]:
        axes.set_visible(False)
    for axes, (name, points) in zip(panels.flat, measures.items(), strict=False):
        for row, point in enumerate(points):
            if point is None:
                continue
            mean, half, values = point
            colour = COLOURS[row % len(COLOURS)]
            axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.35, markersize=4)
            axes.errorbar(mean, row, xerr=half, fmt="|", color=colour, markersize=12, capsize=3)
        unit = _UNITS.get(name.rsplit("/", 1)[-1])
        axes.set_xlabel(f"{name} ({unit})" if unit else name)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.locator_params(axis="x", nbins=4)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.3)
    figure.supxlabel("dot: a seed; line and whisker: mean and 95 % interval", fontsize="small", color="#555555")
    return figure
