"""python experiments/kv_cache/plot.py [outputs/benchmarks/…] : the table of this study from a benchmark, where one is
given, and the picture from the table; both beside this file."""

import json
import sys
from pathlib import Path

import altair as alt
import polars as pl

from grammarlab import figures
from grammarlab.figures.theme import data, finished, panel, tooltip

HERE = Path(__file__).resolve().parent


def read_benchmark(folder: Path) -> pl.DataFrame:
    cases = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))["cases"]
    return pl.DataFrame(
        {
            "context": [case["context"] for case in cases],
            "batch": [case["batch"] for case in cases],
            "speed_up": [case["ratio"] for case in cases],
            "least": [case["spread"][0] for case in cases],
            "most": [case["spread"][1] for case in cases],
            "operations_ratio": [case["operations_ratio"] for case in cases],
            "seconds_with": [case["ours_seconds"] for case in cases],
            "seconds_without": [case["peer_seconds"] for case in cases],
        }
    ).with_columns(pl.col(pl.Float64).round_sig_figs(4))


def speed_up_curves(table: pl.DataFrame) -> alt.ConcatChart:
    """Median and range of the repeats against the context, a line a batch size; the operations' ratio in black."""
    base = alt.Chart(data(table))
    contexts = table["context"].unique().sort().to_list()
    x = alt.X("context:Q", title="context, tokens", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=contexts))
    y = alt.Y("speed_up:Q", title="without a cache / with it", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=4))
    batches = table["batch"].unique(maintain_order=True).to_list()
    hue = alt.Color(
        "batch:O",
        title="batch",
        legend=alt.Legend(orient="top", symbolType="circle"),
        scale=alt.Scale(domain=batches, range=list(figures.COLOURS[: len(batches)])),
    )
    tips = tooltip([], ["context", "batch", "speed_up", "least", "most", "operations_ratio"])
    even = alt.Chart(pl.DataFrame({"even": [1]})).mark_rule(color="#bbbbbb").encode(y="even:Q")
    operations = alt.Chart(data(table.unique("context", maintain_order=True)))
    layers = [
        even,
        base.mark_area(opacity=0.18).encode(x=x, y=alt.Y("least:Q"), y2="most:Q", color=hue),
        base.mark_line(point=True).encode(x=x, y=y, color=hue, tooltip=tips),
        operations.mark_line(color=figures.TRUTH, strokeDash=[5, 3]).encode(x=x, y="operations_ratio:Q"),
    ]
    caption = "line and band: median and range of the repeats; dashed: ratio of the operations"
    return finished([panel(*layers, name="speed_up", width=380, height=260)], caption=caption)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read_benchmark(Path(sys.argv[1])).write_csv(HERE / "results.csv")
    figures.save(speed_up_curves(pl.read_csv(HERE / "results.csv")), HERE / "curves.png")
