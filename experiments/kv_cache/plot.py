"""python experiments/kv_cache/plot.py outputs/benchmarks/… : the table and picture of this study, beside this file."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from grammarlab import figures

HERE = Path(__file__).resolve().parent
COLUMNS = ("context", "batch", "speed_up", "least", "most", "operations_ratio", "seconds_with", "seconds_without")


def speed_up_curves(cases: list[dict[str, Any]]) -> Figure:
    """Median and range of the repeats against the context, a line a batch size; the operations' ratio in black."""
    figure = figures.new_figure(5.0, 3.6)
    axes = figure.subplots()
    for batch, colour in zip(sorted({case["batch"] for case in cases}), figures.COLOURS, strict=False):
        mine = [case for case in cases if case["batch"] == batch]
        contexts = [case["context"] for case in mine]
        axes.plot(contexts, [case["ratio"] for case in mine], "o-", markersize=3, color=colour, label=f"batch {batch}")
        axes.fill_between(contexts, *zip(*(case["spread"] for case in mine), strict=True), color=colour, alpha=0.2)
    operations = {case["context"]: case["operations_ratio"] for case in cases}
    axes.plot(operations.keys(), operations.values(), "--", color=figures.TRUTH, label="operations")
    axes.axhline(1, color="0.6", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(operations), [str(context) for context in operations])
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("without a cache / with it")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def main(folder: Path) -> None:
    cases = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))["cases"]
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for case in cases:
            times = [case["ratio"], *case["spread"], case["operations_ratio"]]
            times += [case["ours_seconds"], case["peer_seconds"]]
            writer.writerow([case["context"], case["batch"], *(f"{value:.4g}" for value in times)])
    speed_up_curves(cases).savefig(HERE / "curves.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
