"""python experiments/temperature/plot.py outputs/sweeps/… : the table and picture of this study, beside this file."""

import sys
from pathlib import Path

import polars as pl

from grammarlab import figures, sweep, tables
from grammarlab.measures import measure_name

HERE = Path(__file__).resolve().parent
MEASURES = ("validity", "coverage")


def main(folder: Path) -> None:
    runs = [run for run in sweep.read_runs([folder]) if run.finished]
    temperatures = sorted({1.0, *runs[0].options["generation.temperatures"]})
    exact = pl.DataFrame(
        [
            ("", run.options["seed"], t, *(run.metrics[measure_name("truth", t, name)] for name in MEASURES))
            for run in runs
            for t in temperatures
        ],
        schema=["setting", "seed", "temperature", *MEASURES],
        orient="row",
    )
    sampled = pl.concat(
        tables.sampled(run.metrics, temperatures).with_columns(setting=pl.lit(""), seed=pl.lit(run.options["seed"]))
        for run in runs
    )
    of_seeds = {"mean": pl.Expr.mean, "least": pl.Expr.min, "most": pl.Expr.max}
    columns = [of(pl.col(name)).alias(f"{name}_{end}") for name in MEASURES for end, of in of_seeds.items()]
    table = exact.group_by("temperature", maintain_order=True).agg(columns)
    table.with_columns(pl.exclude("temperature").round_sig_figs(6)).write_csv(HERE / "results.csv")
    above_zero = pl.col("temperature") > 0
    figures.save(figures.temperatures(exact.filter(above_zero), sampled.filter(above_zero)), HERE / "curves.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
