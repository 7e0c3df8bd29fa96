"""python experiments/temperature/plot.py outputs/sweeps/… : the table and picture of this study, beside this file."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from grammarlab import figures, sweep
from grammarlab.measures import measure_name

HERE = Path(__file__).resolve().parent
MEASURES = ("validity", "coverage")


def temperature_curves(
    temperatures: Sequence[float],
    exact: Mapping[str, Sequence[Sequence[float]]],
    sampled: Mapping[str, Sequence[tuple[float, float, float]]],
) -> Figure:
    """A panel for each measure against the temperature.

    `exact`: for each temperature the values of all seeds, drawn as mean and range. `sampled`: value and the ends of its
    interval at each temperature, for the first seed, whose own exact curve is drawn beside it.
    """
    figure = figures.new_figure(4.2 * len(exact), 3.2)
    panels = figure.subplots(1, len(exact), squeeze=False)
    for axes, (name, values) in zip(panels.flat, exact.items(), strict=True):
        means = [sum(seeds) / len(seeds) for seeds in values]
        axes.plot(temperatures, means, color=figures.COLOURS[0], label="exact, mean of the seeds")
        least, most = [min(seeds) for seeds in values], [max(seeds) for seeds in values]
        axes.fill_between(temperatures, least, most, color=figures.COLOURS[0], alpha=0.2, linewidth=0)
        first = [seeds[0] for seeds in values]
        axes.plot(temperatures, first, color=figures.COLOURS[1], linewidth=0.8, label="exact, first seed")
        points = sampled[name]
        errors = [[value - low for value, low, _ in points], [high - value for value, _, high in points]]
        axes.errorbar(
            temperatures,
            [value for value, _, _ in points],
            yerr=errors,
            fmt="o",
            markersize=3,
            color=figures.COLOURS[1],
            linewidth=1,
            label="sampled, first seed, 95 %",
        )
        axes.set_xlabel("temperature")
        axes.set_ylabel(name)
        axes.set_ylim(-0.02, 1.02)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left")
    return figure


def main(folder: Path) -> None:
    runs = [run for run in sweep.load([folder]) if run.finished]
    temperatures = sorted({1.0, *runs[0].options["generation.temperatures"]})
    exact = {
        name: [[run.metrics[measure_name("truth", t, name)] for run in runs] for t in temperatures] for name in MEASURES
    }
    sampled = {
        name: [
            tuple(runs[0].metrics[measure_name("sampled", t, name + bound)] for bound in ("", "_low", "_high"))
            for t in temperatures
        ]
        for name in MEASURES
    }
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["temperature", *(f"{name}_{end}" for name in MEASURES for end in ("mean", "least", "most"))])
        for index, temperature in enumerate(temperatures):
            cells = [(sum(v) / len(v), min(v), max(v)) for v in (exact[name][index] for name in MEASURES)]
            writer.writerow([temperature, *(f"{value:.6g}" for triple in cells for value in triple)])
    temperature_curves(temperatures, exact, sampled).savefig(HERE / "curves.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
