"""Many runs as one result: each measure against what was swept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from grammarlab.figures.theme import (
    PER_ROW,
    TRUTH,
    WIDTH,
    bounds,
    colour,
    data,
    finished,
    names_of,
    over_seeds,
    panel,
    tooltip,
    with_unit,
)

DOTS = "dot: a seed; diamond and line: mean and 95 % interval over seeds"


def settings(frame: pl.DataFrame) -> alt.ConcatChart:
    """A panel for each measure: settings below each other, a dot for each seed, mean and interval.

    Columns: `setting`, `seed`, `measure`, `value`.
    """
    names = names_of(frame["setting"])
    panels = []
    measures = frame["measure"].unique(maintain_order=True).to_list()
    for number, measure in enumerate(measures):
        mine = frame.filter(pl.col("measure") == measure)
        labels = number % PER_ROW == 0
        y = alt.Y("setting:N", sort=names, title=None, axis=alt.Axis(labels=labels, ticks=labels))
        hue = colour(names, legend=False)["color"]
        dots, means = _dots_and_means(mine, ("setting",), y, hue, horizontal=True, measure=measure)
        panels.append(panel(*dots, *means, name=f"measure_{number}", zoom=False, width=200, height=alt.Step(26)))
    return finished(panels, caption=DOTS)


def _dots_and_means(
    frame: pl.DataFrame, by: Sequence[str], category: Any, hue: Any, *, horizontal: bool, measure: str, **more: Any
) -> tuple[list[alt.Chart], list[alt.Chart]]:
    along, across = (alt.X, "y") if horizontal else (alt.Y, "x")
    main, second = ("x", "x2") if horizontal else ("y", "y2")
    scale = alt.Scale(zero=False, nice=True, padding=8)

    def at(field: str) -> Any:
        return along(f"{field}:Q", title=with_unit(measure), scale=scale, axis=alt.Axis(tickCount=4))

    means = alt.Chart(data(over_seeds(frame, by, "value", bounds(measure))))
    tips = tooltip(by, ["mean", "low", "high", "seeds"])
    seed_tips = tooltip(by, ["seed", "value"])
    dots = alt.Chart(data(frame)).mark_circle(size=30, opacity=0.35)
    return (
        [dots.encode(**{main: at("value"), across: category}, color=hue, tooltip=seed_tips, **more)],
        [
            means.mark_rule(strokeWidth=2).encode(
                **{main: at("low"), second: "high:Q", across: category}, color=hue, **more
            ),
            means.mark_point(shape="diamond", filled=True, size=60, opacity=1).encode(
                **{main: at("mean"), across: category}, color=hue, tooltip=tips, **more
            ),
        ],
    )


def measure_by_option(frame: pl.DataFrame, option: str) -> alt.ConcatChart:
    """Each measure against one swept option. Where others were swept too, a line for each choice of those.

    Columns: `option` (its value as written), `others` (the rest of the setting, empty where nothing else was swept),
    `seed`, `measure`, `value`.
    """
    order = _by_size(frame["option"].unique(maintain_order=True).to_list())
    others = frame["others"].unique(maintain_order=True).to_list()
    panels = []
    for number, measure in enumerate(frame["measure"].unique(maintain_order=True).to_list()):
        mine = frame.filter(pl.col("measure") == measure)
        category = alt.X("option:N", sort=order, title=option, axis=alt.Axis(labelAngle=0 if len(order) < 7 else -60))
        if len(others) > 1:
            # not the colours of settings: each of these is in several
            legend = alt.Legend(title=None, orient="top", columns=1, symbolType="stroke")
            hue = alt.Color("others:N", sort=others, legend=legend, scale=alt.Scale(scheme="viridis", domain=others))
            more = {"xOffset": alt.XOffset("others:N", sort=others)}
        else:
            hue = colour(order, "option", legend=False)["color"]
            more = {}
        dots, means = _dots_and_means(
            mine, ("option", "others"), category, hue, horizontal=False, measure=measure, **more
        )
        panels.append(panel(*dots, *means, name=f"measure_{number}", zoom=False, width=WIDTH))
    return finished(panels, caption=DOTS)


def _by_size(values: Sequence[str]) -> list[str]:
    try:
        return sorted(values, key=float)
    except ValueError:
        return list(values)


def heat_map(frame: pl.DataFrame, x: str, y: str) -> alt.ConcatChart:
    """Each measure's mean over two swept options. Columns: `x` and `y` (their values), `seed`, `measure`, `value`."""
    xs, ys = (_by_size(frame[axis].unique(maintain_order=True).to_list()) for axis in ("x", "y"))
    panels = []
    for number, measure in enumerate(frame["measure"].unique(maintain_order=True).to_list()):
        means = over_seeds(frame.filter(pl.col("measure") == measure), ("x", "y"), "value", bounds(measure))
        low, high = means["mean"].min(), means["mean"].max()
        middle = (low + high) / 2 if isinstance(low, float) and isinstance(high, float) else 0.0
        base = alt.Chart(data(means)).encode(
            x=alt.X("x:N", sort=xs, title=x, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("y:N", sort=ys[::-1], title=y),
            tooltip=tooltip(["x", "y"], ["mean", "low", "high", "seeds"]),
        )
        cells = base.mark_rect().encode(
            color=alt.Color("mean:Q", legend=None, scale=alt.Scale(scheme="viridis", zero=False))
        )
        dark = alt.condition(f"datum.mean > {middle!r}", alt.value("black"), alt.value("white"))
        numbers = base.mark_text(fontSize=11).encode(text=alt.Text("mean:Q", format=".3g"), color=dark)
        size = {"width": max(120, 56 * len(xs)), "height": max(60, 30 * len(ys))}
        panels.append(panel(cells, numbers, name=f"measure_{number}", title=with_unit(measure), zoom=False, **size))
    return finished(panels, caption="mean over seeds").resolve_scale(color="independent")


def parallel_coordinates(frame: pl.DataFrame, measure: str) -> alt.ConcatChart:
    """A line for each setting through its options and, at the right, its measures; colour: the first measure.

    Columns: `setting`, `dimension`, `label` (what stands there), `number` (null for what is none), `shade` (of the
    first measure). Numbers are on a straight axis of their own, other values evenly in order.
    """
    dimensions = frame["dimension"].unique(maintain_order=True).to_list()
    lines, ticks = [], []
    for dimension in dimensions:
        mine = frame.filter(pl.col("dimension") == dimension)
        labels = mine["label"].unique(maintain_order=True).to_list()
        if mine["number"].is_null().any():
            order = _by_size(labels)
            heights = {label: (i + 0.5) / len(order) for i, label in enumerate(order)}
            lines.append(mine.with_columns(height=pl.col("label").replace_strict(heights, return_dtype=pl.Float64)))
            ticks += [(dimension, heights[label], label) for label in order]
        else:
            low, high = mine["number"].min(), mine["number"].max()
            assert isinstance(low, float) and isinstance(high, float)
            span = high - low or 1.0
            lines.append(mine.with_columns(height=(pl.col("number") - low) / span))
            ticks += [(dimension, 0.0, f"{low:.3g}"), (dimension, 1.0, f"{high:.3g}")][: 1 + (high > low)]
    x = alt.X("dimension:N", sort=dimensions, title=None, axis=alt.Axis(labelAngle=-25, orient="bottom"))
    y = alt.Y("height:Q", axis=None, scale=alt.Scale(domain=[-0.02, 1.02]))
    drawn = alt.Chart(data(pl.concat(lines)))
    shade = alt.Color(
        "shade:Q", title=with_unit(measure), scale=alt.Scale(scheme="viridis"), legend=alt.Legend(orient="right")
    )
    tips = tooltip(["setting", "dimension", "label"], [])
    marks = alt.Chart(pl.DataFrame(ticks, schema=["dimension", "height", "label"], orient="row"))
    layers = [
        marks.mark_rule(color="#bbbbbb").encode(x=x),
        drawn.mark_line(opacity=0.7, strokeWidth=1.5).encode(x=x, y=y, detail="setting:N", color=shade),
        drawn.mark_circle(size=26).encode(x=x, y=y, color=shade, tooltip=tips),
        marks.mark_text(align="left", dx=5, fontSize=10).encode(x=x, y=y, text="label:N"),
    ]
    width = max(360, 110 * len(dimensions))
    return finished(
        [panel(*layers, name="coordinates", zoom=False, width=width, height=260)], caption="a line: a setting"
    )


def paired_differences(frame: pl.DataFrame, baseline: str) -> alt.ConcatChart:
    """Each setting less the baseline, a panel for each measure. Columns: `setting`, `measure`, `mean`, `low`, `high`,
    `seeds`."""
    names = [name for name in names_of(frame["setting"]) if name != baseline]
    panels = []
    for number, measure in enumerate(frame["measure"].unique(maintain_order=True).to_list()):
        base = alt.Chart(data(frame.filter(pl.col("measure") == measure)))
        labels = number % PER_ROW == 0
        y = alt.Y("setting:N", sort=names, title=None, axis=alt.Axis(labels=labels, ticks=labels))
        hue = colour(names_of(frame["setting"]), legend=False)["color"]
        title = f"difference in {with_unit(measure)}"
        tips = tooltip(["setting"], ["mean", "low", "high", "seeds"])
        zero = alt.Chart(pl.DataFrame({"zero": [0.0]})).mark_rule(color=TRUTH, strokeDash=[5, 3])
        layers = [
            zero.encode(x="zero:Q"),
            base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q", y=y, color=hue),
            base.mark_point(shape="diamond", filled=True, size=60, opacity=1).encode(
                x=alt.X("mean:Q", title=title, axis=alt.Axis(tickCount=4)), y=y, color=hue, tooltip=tips
            ),
        ]
        panels.append(panel(*layers, name=f"measure_{number}", zoom=False, width=200, height=alt.Step(26)))
    return finished(panels, caption=f"from {baseline}, paired over seeds; line: 95 % bootstrap interval")
