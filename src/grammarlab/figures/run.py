"""What a run found, or several settings side by side: the mean over seeds and its 95 % interval.

The frames are those of `grammarlab.tables` with the columns `setting` and `seed` besides. All quantities in nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from grammarlab.figures.theme import (
    COLOURS,
    GREY,
    TRUTH,
    bounds,
    colour,
    data,
    finished,
    names_of,
    over_seeds,
    panel,
    same,
    shorter,
    tooltip,
)

SHOWN_SENTENCES, SHOWN_POINTS = 24, 400  # of a written-out language; of a drawn one, for each setting
SHOWN_HEADS, SHOWN_LAYERS, SHOWN_WORDS = 8, 6, 12
LEAST = 0.01  # probability of a next word that is shown
BY_SEEDS = "95 % interval over seeds"


def learning_curves(frame: pl.DataFrame) -> alt.ConcatChart:
    """Loss with the language's floor, excess loss and KL on log axes, against the step.

    Columns: `setting`, `seed`, `step`, `val/loss`, `val/floor`, `val/excess_loss`, `truth/kl`.
    """
    settings = names_of(frame["setting"])
    loss = over_seeds(frame, ("setting", "step"), "val/loss", bounds("val/loss"))
    panels = [
        panel(
            *_curves(loss, settings, x="step", x_title="step", y_title="val/loss (nats/token)"),
            *_floors(frame, settings),
            name="loss",
        )
    ]
    hidden = 0
    for measure, unit in (("val/excess_loss", "nats/token"), ("truth/kl", "nats/sentence")):
        means = over_seeds(frame, ("setting", "step"), measure, bounds(measure))
        positive = means.filter(pl.col("mean") > 0)
        hidden += means.height - positive.height
        least = positive["mean"].min()
        bottom = pl.lit(least / 3 if isinstance(least, float) else None, dtype=pl.Float64)
        clipped = positive.with_columns(low=pl.max_horizontal("low", bottom))
        curves = _curves(clipped, settings, x="step", x_title="step", y_title=f"{measure} ({unit})", log=True)
        panels.append(panel(*curves, name=measure.replace("/", "_")))
    caption = f"mean and {BY_SEEDS}" if _several_seeds(loss) else ""
    if hidden:
        caption += f"{'; ' if caption else ''}{hidden} means of 0 or less have no place on a log axis"
    return finished(panels, caption=caption)


def _curves(
    frame: pl.DataFrame, settings: Sequence[str], *, x: str, x_title: str, y_title: str, log: bool = False
) -> list[alt.Chart]:
    """Means as lines and their intervals as bands; frame as `over_seeds` gives it."""
    base = alt.Chart(data(frame))
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    axis = alt.Axis(format="~g", tickCount=4) if log else alt.Axis(tickCount=5)
    across = alt.X(
        f"{x}:Q", title=x_title, axis=alt.Axis(tickCount=4, tickMinStep=1), scale=alt.Scale(padding=6, nice=False)
    )
    seen = tooltip(["setting"], [x, "mean", "low", "high", "seeds"])
    hues = colour(settings)
    band = base.mark_area(opacity=0.18, clip=True).encode(
        x=across, y=alt.Y("low:Q", title=y_title, scale=scale, axis=axis), y2="high:Q", color=hues["color"]
    )
    line = base.mark_line(point=alt.OverlayMarkDef(size=22), clip=True).encode(
        x=across, y=alt.Y("mean:Q", title=y_title, scale=scale, axis=axis), tooltip=seen, **hues
    )
    return [band, line] if _several_seeds(frame) else [line]


def _floors(frame: pl.DataFrame, settings: Sequence[str]) -> list[alt.Chart]:
    """The language's own loss: one black line, or where the settings differ in it one in the colour of each."""
    floors = over_seeds(frame, ("setting",), "val/floor")
    if floors.is_empty():
        return []
    if same(floors["mean"]):
        line = alt.Chart(data(floors.head(1).with_columns(label=pl.lit("language's floor"))))
        mark = line.mark_rule(color=TRUTH, strokeDash=[5, 3])
    else:
        line = alt.Chart(data(floors.with_columns(label="language's floor, " + pl.col("setting").cast(pl.String))))
        mark = line.mark_rule(strokeDash=[5, 3]).encode(color=colour(settings)["color"])
    return [mark.encode(y="mean:Q", tooltip=tooltip(["label"], ["mean"]))]


def _several_seeds(frame: pl.DataFrame) -> bool:
    return not frame.is_empty() and frame["low"].is_not_null().any()


def positions(frame: pl.DataFrame) -> alt.ConcatChart:
    """Loss at each predicted token beside the language's conditional entropy there, and the KL of the next word.

    Columns: `setting`, `seed`, `position`, `reached`, `entropy`, `loss`, `kl`.
    """
    settings = names_of(frame["setting"])
    loss, kl = (over_seeds(frame, ("setting", "position"), name, bounds(name)) for name in ("loss", "kl"))
    entropy = frame.group_by("setting", "position", maintain_order=True).agg(pl.col("entropy", "reached").mean())
    one = all(same(group["entropy"]) for _, group in entropy.group_by("position"))
    ticks = alt.Chart(data(entropy.unique("position", maintain_order=True) if one else entropy))
    hue: Any = alt.value(TRUTH) if one else colour(settings)["color"]
    truth = ticks.mark_tick(thickness=2, width=12, orient="horizontal").encode(
        x="position:Q",
        y="entropy:Q",
        tooltip=tooltip([], ["position", "entropy", "reached"]),
        color=hue,
    )
    across = "predicted token of the sentence"
    panels = [
        panel(
            *_curves(loss, settings, x="position", x_title=across, y_title="loss (nats)"),
            truth,
            name="loss",
            title="loss; ticks: the language's entropy",
        ),
        panel(
            *_curves(kl, settings, x="position", x_title=across, y_title="KL (nats)"),
            name="kl",
            title="KL of the next word, language to model",
        ),
    ]
    return finished(panels, caption=f"mean and {BY_SEEDS}" if _several_seeds(loss) else "")


def temperatures(exact: pl.DataFrame, sampled: pl.DataFrame) -> alt.ConcatChart:
    """Validity and coverage against the temperature: exact curves, sampled points with intervals.

    exact: `setting`, `seed`, `temperature` > 0, `validity`, `coverage`; no rows where the language is not written out.
    sampled: `setting`, `seed`, `temperature` > 0, `measure`, `value` and the ends `low`, `high` of its own interval,
    which are shown where there is one seed; else those over seeds.
    """
    settings = names_of(sampled["setting"])
    several = sampled["seed"].n_unique() > 1
    panels = []
    for measure in ("validity", "coverage"):
        mine = sampled.filter(pl.col("measure") == measure)
        if mine.is_empty():
            continue
        points = over_seeds(mine, ("setting", "temperature"), "value", bounds(measure))
        own = mine.group_by("setting", "temperature", maintain_order=True).agg(
            pl.col("low").first().alias("own_low"), pl.col("high").first().alias("own_high")
        )
        points = points.join(own, on=["setting", "temperature"], maintain_order="left").with_columns(
            pl.when(pl.col("seeds") == 1).then("own_low").otherwise("low").alias("low"),
            pl.when(pl.col("seeds") == 1).then("own_high").otherwise("high").alias("high"),
        )
        x = alt.X(
            "temperature:Q", title="temperature", scale=alt.Scale(type="log", nice=False, padding=8), axis=_log_axis()
        )
        y = alt.Y("mean:Q", title=measure, scale=alt.Scale(domain=[-0.02, 1.03], nice=False), axis=_share_axis())
        base, hue = alt.Chart(data(points)), colour(settings)["color"]
        tips = tooltip(["setting"], ["temperature", "mean", "low", "high", "seeds"])
        layers: list[alt.Chart] = [
            base.mark_rule().encode(x=x, y=alt.Y("low:Q", title=measure, axis=_share_axis()), y2="high:Q", color=hue),
            base.mark_point(filled=True, size=36, opacity=1).encode(x=x, y=y, color=hue, tooltip=tips),
        ]
        curve = over_seeds(exact, ("setting", "temperature"), measure)
        if not curve.is_empty():
            line = alt.Chart(data(curve)).mark_line(strokeWidth=1.5).encode(x=x, y=y, **colour(settings))
            layers.insert(0, line)
        panels.append(panel(*layers, name=measure))
    of_truth = "line: exact" + (", mean over seeds; " if several else "; ") if not exact.is_empty() else ""
    interval = "over seeds" if several else "of Wilson"
    caption = f"{of_truth}points: sampled, with the 95 % interval {interval}"
    if not panels:
        panels = [panel(alt.Chart(data(exact)).mark_point(), name="none", title="nothing sampled above temperature 0")]
    return finished(panels, caption=caption)


def _log_axis() -> alt.Axis:
    return alt.Axis(format="~g", values=[0.1, 0.2, 0.5, 1, 2, 4])


def _share_axis() -> alt.Axis:
    return alt.Axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1])


def sentences(frame: pl.DataFrame, exact: bool) -> alt.ConcatChart:
    """Each sentence's probability in the language and for the model.

    Columns: `setting`, `seed`, `text`, `log_prob_language`, `log_prob_model`. exact: the frame has every sentence of
    the language, which are shown by falling probability; else those drawn from it, as log p against log q.
    """
    settings = names_of(frame["setting"])
    means = over_seeds(frame, ("setting", "text", "log_prob_language"), "log_prob_model", (-math.inf, 0.0))
    return _sorted_sentences(means, settings) if exact else _drawn_sentences(means, settings)


def _sorted_sentences(means: pl.DataFrame, settings: list[str]) -> alt.ConcatChart:
    truth = means.select("text", "log_prob_language").unique(maintain_order=True)
    truth = truth.sort("log_prob_language", descending=True, maintain_order=True)
    side_by_side = len(settings) if len(settings) <= 4 else 1  # beyond, they are drawn over each other
    count = SHOWN_SENTENCES if side_by_side < 3 else SHOWN_SENTENCES // 2
    shown = truth.head(count).with_columns(rank=pl.int_range(1, pl.len() + 1), **_label())
    mass = math.fsum(shown["log_prob_language"].exp().to_list())
    rows = means.join(shown.select("text", "label"), on="text", maintain_order="right").with_columns(
        p=pl.col("log_prob_language").exp(), **{k: pl.col(v).exp() for k, v in _ENDS.items()}
    )
    order = shown["label"].to_list()
    y = alt.Y("label:N", sort=order, title=None, axis=alt.Axis(grid=True, gridColor="#eeeeee"))
    # from the least mean, or the axis would belong to the intervals of what hardly ever comes
    ends = [v for v in (rows["p"].min(), rows["q"].min()) if isinstance(v, float) and v > 0]
    scale = alt.Scale(type="log", domainMin=min(ends, default=1e-3) / 2, domainMax=1)
    axis = alt.Axis(format="~g", tickCount=4)
    base, hues = alt.Chart(data(rows)), colour(settings)
    if side_by_side > 1:
        base = base.encode(yOffset=alt.YOffset("setting:N", scale=alt.Scale(domain=settings)))
    tips = tooltip(["setting", "text"], ["p", "q", "q_low", "q_high"])
    x = alt.X("q:Q", title="probability", scale=scale, axis=axis)
    ticks = alt.Chart(data(shown.with_columns(p=pl.col("log_prob_language").exp())))
    layers = [
        base.mark_rule(clip=True).encode(x=alt.X("q_low:Q", scale=scale), x2="q_high:Q", y=y, color=hues["color"]),
        base.mark_point(filled=True, size=40, opacity=1).encode(x=x, y=y, color=hues["color"], tooltip=tips),
        ticks.mark_tick(color=TRUTH, thickness=2, height=8 + 6 * side_by_side).encode(
            x=alt.X("p:Q", scale=scale, title="probability", axis=axis), y=y, tooltip=tooltip(["text"], ["p"])
        ),
    ]
    caption = "tick: the language; point: the model"
    caption += f", geometric mean and {BY_SEEDS}" if _several_seeds(means) else ""
    if truth.height > shown.height:
        caption += f"; the {shown.height} most probable of {truth.height} sentences, {mass:.3g} of the mass"
    height = (9 + 6 * side_by_side) * len(order)
    return finished([panel(*layers, name="sentences", width=330, height=height, zoom=False)], caption=caption)


# Means of logarithms, and so of the probabilities the geometric ones.
_ENDS = {"q": "mean", "q_low": "low", "q_high": "high"}


def _label(limit: int = 44) -> dict[str, pl.Expr]:
    """What a sentence is called on an axis: too long ones are cut, and told apart by their rank."""

    def label(row: dict[str, Any]) -> str:
        text = row["text"] or "(empty)"
        return text if len(text) <= limit else f"{shorter(text, limit)} ({row['rank']})"

    return {"label": pl.struct(pl.col("text"), rank=pl.int_range(1, pl.len() + 1)).map_elements(label, pl.String)}


def _drawn_sentences(means: pl.DataFrame, settings: Sequence[str]) -> alt.ConcatChart:
    shown = pl.concat([group.head(SHOWN_POINTS) for _, group in means.group_by("setting", maintain_order=True)])
    base = alt.Chart(data(shown))
    ends = (shown["log_prob_language"].min(), shown["log_prob_language"].max())
    diagonal = alt.Chart(pl.DataFrame({"log_prob_language": ends, "mean": ends}, schema_overrides={"mean": pl.Float64}))
    x = alt.X("log_prob_language:Q", title="log p, language (nats)", scale=alt.Scale(zero=False))
    y = alt.Y("mean:Q", title="log q, model (nats)", scale=alt.Scale(zero=False))
    tips = tooltip(["setting", "text"], ["log_prob_language", "mean", "seeds"])
    layers = [
        base.mark_point(filled=True, size=18, opacity=0.5).encode(
            x=x, y=y, color=colour(settings)["color"], tooltip=tips
        ),
        diagonal.mark_line(color=TRUTH, strokeDash=[5, 3]).encode(x=x, y=y),
    ]
    caption = "a point: a sentence drawn from the language; on the line the model is right"
    if shown.height < means.height:
        caption += f"; {shown.height} of {means.height} shown"
    return finished([panel(*layers, name="sentences", width=330, height=260)], caption=caption)


def attention(frame: pl.DataFrame) -> alt.ConcatChart:
    """A panel for each layer and head: how much each query looks at each key; what the mask hides is crossed out.

    Columns: those of the table `attention`. With a column `setting`, of which one is shown, chosen in a browser.
    """
    shown = frame.filter(
        (pl.col("layer") <= SHOWN_LAYERS) & (pl.col("head") <= SHOWN_HEADS),
        (pl.col("query") < SHOWN_WORDS) & (pl.col("key") < SHOWN_WORDS),
    ).with_columns(query_label=pl.col("query") + 1, key_label=pl.col("key") + 1)
    choice = _choice(frame, "attention_of")
    labelled = shown.with_columns(
        q=pl.format("{} {}", pl.col("query_word"), pl.col("query_label")),
        k=pl.format("{} {}", pl.col("key_word"), pl.col("key_label")),
    )
    panels, size = [], 20 if labelled["query"].max() is None or labelled["query"].n_unique() <= 8 else 15
    for (layer, head), cells in labelled.group_by("layer", "head", maintain_order=True):
        base = alt.Chart(data(cells))
        if choice is not None:
            base = base.transform_filter(f"datum.setting == {choice.name}")
        leftmost = head == 1
        y = alt.Y(
            "q:N",
            sort=alt.EncodingSortField("query", op="min"),
            title="query" if leftmost else None,
            axis=alt.Axis(labels=leftmost, ticks=leftmost, domain=False),
        )
        x = alt.X(
            "k:N", sort=alt.EncodingSortField("key", op="min"), title="key", axis=alt.Axis(labelAngle=-60, domain=False)
        )
        heat = alt.Color(
            "weight:Q",
            scale=alt.Scale(scheme="viridis", domain=[0, 1]),
            legend=alt.Legend(title="weight", gradientLength=120),  # one for all: the panels share their scale
        )
        tips = tooltip(["query_word", "key_word", "visible"], ["weight"])
        seen = base.mark_rect(stroke="white", strokeWidth=0.5).encode(x=x, y=y, color=heat, tooltip=tips)
        hidden = (
            base.transform_filter("!datum.visible")
            .mark_rect(fill="#eeeeee", stroke="white", strokeWidth=0.5)
            .encode(x=x, y=y, tooltip=tips)
        )
        crosses = base.transform_filter("!datum.visible").mark_text(text="×", color=GREY).encode(x=x, y=y)
        panels.append(
            panel(
                seen,
                hidden,
                crosses,
                name=f"layer_{layer}_head_{head}",
                title=f"layer {layer}, head {head}",
                zoom=False,
                width=alt.Step(size),
                height=alt.Step(size),
            )
        )
    caption = "×: hidden by the mask"
    if shown.height < frame.height:
        caption += (
            f"; the first {SHOWN_LAYERS} layers, {SHOWN_HEADS} heads and {SHOWN_WORDS} tokens at most: "
            "all are in attention.csv"
        )
    heads = max(1, labelled["head"].n_unique())
    chart = finished(panels, caption=caption, columns=heads)
    return chart if choice is None else chart.add_params(choice)


def _choice(frame: pl.DataFrame, name: str) -> alt.Parameter | None:
    """A menu of the settings where there are several."""
    if "setting" not in frame.columns:
        return None
    present = set(frame["setting"].cast(pl.String).unique().to_list())
    names = [each for each in names_of(frame["setting"]) if each in present]
    if len(names) < 2:
        return None
    return alt.param(name=name, value=names[0], bind=alt.binding_select(options=names, name="setting "))


def next_words(frame: pl.DataFrame) -> alt.ConcatChart:
    """A panel for each prefix of a sentence: what comes next in the language and for the model.

    Columns: those of the table `next_words`. With a column `setting`, of which one is shown, chosen in a browser.
    """
    choice = _choice(frame, "next_words_of")
    hue: Any = alt.value(COLOURS[0])
    if choice is not None:
        hue = colour(names_of(frame["setting"]), legend=False)["color"]
    panels: list[alt.LayerChart] = []
    total = frame["position"].n_unique()
    for (position, prefix), rows in frame.group_by("position", "prefix", maintain_order=True):
        if len(panels) == SHOWN_WORDS:
            break
        likely = rows.group_by("word", maintain_order=True).agg(pl.max_horizontal("language", "model").max().alias("p"))
        likely = likely.sort("p", descending=True, maintain_order=True)
        order = likely.filter(pl.col("p") >= LEAST)["word"].head(SHOWN_WORDS).to_list()
        base = alt.Chart(data(rows.filter(pl.col("word").is_in(order))))
        if choice is not None:
            base = base.transform_filter(f"datum.setting == {choice.name}")
        y = alt.Y("word:N", sort=order, title=None)
        x = alt.X(
            "model:Q",
            title="probability",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(values=[0, 0.5, 1]),
        )
        tips = tooltip(["word"], ["language", "model"])
        bars = base.mark_bar().encode(x=x, y=y, color=hue, tooltip=tips)
        ticks = base.mark_tick(color=TRUTH, thickness=2.5).encode(x="language:Q", y=y, tooltip=tips)
        words = str(prefix).split()
        after = f"after {'… ' if len(words) > 3 else ''}{' '.join(words[-3:])}" if words else "first word"
        panels.append(
            panel(
                bars,
                ticks,
                name=f"position_{position}",
                title=shorter(after, 40),
                zoom=False,
                width=170,
                height=alt.Step(16),
            )
        )
    caption = f"bar: the model; tick: the language; without words to which both give less than {LEAST:g}"
    if total > len(panels):
        caption += f"; the first {len(panels)} of {total} positions: all are in next_words.csv"
    chart = finished(panels, caption=caption)
    return chart if choice is None else chart.add_params(choice)
