"""What the charts share: colours, sizes, the mean over seeds, and how a chart is written."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs

from grammarlab.intervals import mean_and_half

# Okabe and Ito (2008): told apart with any colour vision. The truth is always black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
TRUTH = "#000000"
GREY = "#8a8a8a"
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2])  # for more settings than colours
WIDTH, HEIGHT = 240, 190  # of a panel: two are half a page wide with letters that can still be read
PER_ROW = 3

_UNITS = {"loss": "nats/token", "floor": "nats/token", "excess_loss": "nats/token", "kl": "nats/sentence"}


def tooltip(texts: Sequence[str], numbers: Sequence[str], *, form: str = ".4g") -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:N") for name in texts] + [alt.Tooltip(f"{name}:Q", format=form) for name in numbers]


def with_unit(measure: str) -> str:
    unit = _UNITS.get(measure.rsplit("/", 1)[-1])
    return f"{measure} ({unit})" if unit else measure


def data(frame: pl.DataFrame) -> pl.DataFrame:
    """As JSON can hold it: what is not finite is null, and not drawn."""
    return frame.with_columns(pl.when(cs.float().is_finite()).then(cs.float()), cs.enum().cast(pl.String))


def names_of(column: pl.Series) -> list[str]:
    """The settings in their order: all that there are where the column knows them, else those that it has."""
    if isinstance(column.dtype, pl.Enum):
        return column.dtype.categories.to_list()
    return column.unique(maintain_order=True).to_list()


def colour(settings: Sequence[str], field: str = "setting", *, legend: bool = True) -> dict[str, Any]:
    """The encodings `color` and, where there are more settings than colours, `strokeDash`."""
    domain = list(settings)
    shown = alt.Legend(title=None, orient="top", columns=1, labelLimit=0) if legend and len(domain) > 1 else None
    shades = [COLOURS[i % len(COLOURS)] for i in range(len(domain))]
    found: dict[str, Any] = {
        "color": alt.Color(f"{field}:N", legend=shown, scale=alt.Scale(domain=domain, range=shades))
    }
    if len(domain) > len(COLOURS):
        dashes = [DASHES[i // len(COLOURS) % len(DASHES)] for i in range(len(domain))]
        found["strokeDash"] = alt.StrokeDash(f"{field}:N", legend=shown, scale=alt.Scale(domain=domain, range=dashes))
    return found


def bounds(measure: str) -> tuple[float, float]:
    """Between which a measure lies by its definition."""
    name = measure.rsplit("/", 1)[-1]
    if name in ("validity", "coverage", "distinct", "legal_mass", "total_variation", "holdout_mass", "holdout_share"):
        return 0.0, 1.0
    return (0.0 if name in ("loss", "kl") else -math.inf), math.inf


def over_seeds(
    frame: pl.DataFrame, by: Sequence[str], value: str, within: tuple[float, float] = (-math.inf, math.inf)
) -> pl.DataFrame:
    """Each group's `mean`, the ends `low` and `high` of its 95 % interval (null for one seed) and the number `seeds`.

    Rows without the value are left out; one that is not a number makes the mean NaN. The ends are kept `within` what
    the quantity can be.
    """
    rows = []
    for key, group in frame.drop_nulls(value).group_by(*by, maintain_order=True):
        mean, half = mean_and_half(group[value].to_list())
        rows.append((*key, mean, *((None, None) if half is None else (mean - half, mean + half)), group.height))
    ends = {"mean": pl.Float64, "low": pl.Float64, "high": pl.Float64, "seeds": pl.Int64}
    found = pl.DataFrame(rows, schema={**{name: frame.schema[name] for name in by}, **ends}, orient="row")
    return found.with_columns(pl.col("low").clip(lower_bound=within[0]), pl.col("high").clip(upper_bound=within[1]))


def panel(*layers: alt.Chart | alt.LayerChart, name: str, title: str = "", zoom: bool = True, **size: Any) -> Any:
    """Layers as one panel. `name`: of the view, distinct within a chart; else altair counts, and no two runs agree."""
    layered = alt.layer(*layers).properties(
        name=name, title=title, width=size.get("width", WIDTH), height=size.get("height", HEIGHT)
    )
    return layered.add_params(alt.selection_interval(name=f"zoom_{name}", bind="scales")) if zoom else layered


def finished(panels: Sequence[Any], *, caption: str = "", columns: int = PER_ROW) -> alt.ConcatChart:
    """Panels beside each other, at most so many in a row, as a chart in this house's style."""
    chart = alt.concat(*panels, columns=min(columns, len(panels)), spacing=24)
    if caption:
        lines = textwrap.wrap(caption, 84)
        chart = chart.properties(
            title=alt.TitleParams(lines, orient="bottom", fontSize=11, color="#555555", offset=10, frame="bounds")
        )
    return chart.configure(  # in one call: each copies the whole chart
        font="DejaVu Sans, Verdana, sans-serif",
        background="white",
        padding=8,
        view={"stroke": None},
        axis={
            "grid": False,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 0,
            "labelFlush": False,
        },
        legend={
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "labelLimit": 0,
            "symbolOpacity": 1,
            "offset": 6,
        },
        title={"fontSize": 12, "fontWeight": "normal", "anchor": "start", "limit": 0},
    )


def specification(chart: Any) -> dict[str, Any]:
    """The chart as Vega-Lite's JSON: the same for the same numbers. Raises `ValueError` where a number is none."""
    with alt.data_transformers.enable("default", max_rows=None):
        return chart.to_dict()


def save(chart: Any, path: Path, *, ppi: int = 200) -> None:
    """As PNG or SVG, by the name's ending, without a browser. Raises `ValueError` for another ending."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"{path}: a figure is written as .png or .svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    with alt.data_transformers.enable("default", max_rows=None):
        chart.save(str(path), **({"ppi": ppi} if path.suffix == ".png" else {}))


def shorter(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def same(values: pl.Series, tolerance: float = 1e-9) -> bool:
    low, high = values.min(), values.max()
    return isinstance(low, float) and isinstance(high, float) and math.isclose(low, high, abs_tol=tolerance)
