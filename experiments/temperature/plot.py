"""python experiments/temperature/plot.py outputs/sweeps/… : the table and picture of this study, beside this file."""

import csv
import sys
from pathlib import Path

from grammarlab import figures, sweep
from grammarlab.evaluation import measure_name

HERE = Path(__file__).resolve().parent
MEASURES = ("validity", "coverage")


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
    figures.temperature_curves(temperatures, exact, sampled).savefig(HERE / "curves.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
