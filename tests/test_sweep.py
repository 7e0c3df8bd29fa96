"""Many runs as one result: grouping, means and intervals."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from grammarlab import sweep
from grammarlab.intervals import bootstrap_interval, t_quantile


def write_run(folder: Path, *, status: str = "finished", seed: int = 1, kl: float = 0.0, **options: Any) -> None:
    folder.mkdir(parents=True)
    config = {"seed": seed, "model": options, "language": {"name": "x", "grammar": "…"}, "logger": {"name": str(seed)}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    content = {"status": status, "metrics": {"truth/kl": kl} if status == "finished" else {}, "error": "broke\nhere"}
    (folder / "results.json").write_text(json.dumps(content))


def test_t_quantiles_are_the_published_ones() -> None:
    # Fisher and Yates, Statistical Tables: two-sided 5 % points of Student's t.
    published = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 29: 2.045, 120: 1.980}
    for degrees, t in published.items():
        assert t_quantile(degrees) == pytest.approx(t, abs=5e-4)


def test_the_interval_of_a_mean() -> None:
    # 1, 2, 3, 4, 5: mean 3, s = sqrt(2.5), t(4) = 2.776
    interval = sweep.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.mean == 3
    assert interval.half == pytest.approx(2.7764451 * math.sqrt(2.5) / math.sqrt(5), rel=1e-7)
    assert sweep.mean_interval([2.0]).half is None


def test_runs_are_grouped_by_what_differs_seeds_aside(tmp_path: Path) -> None:
    for index, (causal, seed) in enumerate((c, s) for c in (True, False) for s in (1, 2, 3)):
        write_run(tmp_path / str(index), seed=seed, causal=causal, width=8, kl=10 * causal + seed)
    comparison = sweep.compare(sweep.read_runs([tmp_path]))
    assert [setting.options for setting in comparison.settings] == [{"model.causal": True}, {"model.causal": False}]
    assert [setting.label for setting in comparison.settings] == ["model.causal=true", "model.causal=false"]
    assert [setting.measures["truth/kl"].mean for setting in comparison.settings] == [12, 2]
    assert all(setting.seeds == (1, 2, 3) for setting in comparison.settings)


def test_what_is_not_finished_never_enters_a_mean(tmp_path: Path) -> None:
    write_run(tmp_path / "0", kl=1.0)
    for index, status in enumerate(("failed", "interrupted", "dev"), start=1):
        write_run(tmp_path / str(index), status=status, seed=index + 1)
    comparison = sweep.compare(sweep.read_runs([tmp_path]))
    (setting,) = comparison.settings
    assert setting.measures["truth/kl"].values == (1.0,)
    assert [run.status for run in comparison.unfinished] == ["failed", "interrupted", "dev"]


def test_a_seed_that_ran_twice_counts_once(tmp_path: Path) -> None:
    """The same numbers again are no new evidence: they would shrink the interval."""
    for index, seed in enumerate((1, 1, 2)):
        write_run(tmp_path / str(index), seed=seed, kl=float(seed))
    comparison = sweep.compare(sweep.read_runs([tmp_path]))
    (setting,) = comparison.settings
    assert setting.measures["truth/kl"].values == (1.0, 2.0)
    assert comparison.notes == ["all runs: 1 of 3 runs repeat a seed: counted once"]


def test_jobs_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 0):
        write_run(tmp_path / str(number), seed=number)
    assert [run.folder.name for run in sweep.read_runs([tmp_path])] == ["0", "9", "10"]


def test_a_run_and_several_folders_can_be_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "0", seed=1)
    write_run(tmp_path / "b" / "0", seed=2)
    assert len(sweep.read_runs([tmp_path / "a" / "0", tmp_path / "b"])) == 2


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "0")
    (tmp_path / "0" / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"0: results.json or config.yaml cannot be read"):
        sweep.read_runs([tmp_path])


def test_the_csv_has_a_row_for_each_setting(tmp_path: Path) -> None:
    for index, (width, seed) in enumerate((w, s) for w in (8, 16) for s in (1, 2)):
        write_run(tmp_path / "runs" / str(index), seed=seed, width=width, kl=float(width + seed))
    write_run(tmp_path / "runs" / "9", seed=1, width=32, kl=5.0)
    sweep.write_csv(sweep.compare(sweep.read_runs([tmp_path / "runs"])), tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model.width"], row["seeds"], float(row["truth/kl"])) for row in rows] == [
        ("8", "2", 9.5),
        ("16", "2", 17.5),
        ("32", "1", 5.0),
    ]
    # n = 2: the half width is t(1) · s / √2 with s = √½, so t(1) / 2
    assert float(rows[0]["truth/kl_high"]) - 9.5 == pytest.approx(12.7062047 / 2, rel=1e-6)
    assert rows[2]["truth/kl_low"] == ""


def test_a_frame_has_a_row_for_each_run_and_marks_those_that_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "0", seed=1, kl=1.0, width=8, kv_heads=None)
    write_run(tmp_path / "1", seed=2, kl=math.nan, width=8, kv_heads=2)
    write_run(tmp_path / "2", seed=1, kl=1.0, width=8, kv_heads=None)
    for index, status in enumerate(("failed", "interrupted", "dev"), start=3):
        write_run(tmp_path / str(index), status=status, seed=index, width=8.5)
        content = json.loads((tmp_path / str(index) / "results.json").read_text())
        content["metrics"] = {"truth/kl": 1e9}  # as far as it got: no result
        (tmp_path / str(index) / "results.json").write_text(json.dumps(content))
    frame = sweep.load(tmp_path)
    assert frame["run"].to_list() == [str(tmp_path / str(index)) for index in range(6)]
    assert frame["status"].to_list() == ["finished"] * 3 + ["failed", "interrupted", "dev"]
    assert frame["repeat"].to_list() == [False, False, True, False, False, False]
    assert frame["model.width"].to_list() == [8.0, 8.0, 8.0, 8.5, 8.5, 8.5]
    assert frame["model.kv_heads"].to_list() == [None, 2, None, None, None, None]
    kl = frame["truth/kl"]
    assert kl.to_list()[3:] == [None] * 3
    assert math.isnan(kl.mean()), "a run that diverged may not vanish from a mean"
    assert kl[0] == 1.0 and math.isnan(kl[1])
    assert sweep.load([tmp_path / "0", str(tmp_path / "3")])["status"].to_list() == ["finished", "failed"]


def test_options_of_several_kinds_are_as_they_are_written(tmp_path: Path) -> None:
    write_run(tmp_path / "0", betas=[0.9, 0.999], limit=None, mixed="two")
    write_run(tmp_path / "1", betas=[0.9, 0.99], limit=None, mixed=True, seed=2)
    frame = sweep.load(tmp_path)
    assert frame["model.betas"].to_list() == ["[0.9, 0.999]", "[0.9, 0.99]"]
    assert frame["model.limit"].to_list() == [None, None]
    assert frame["model.mixed"].to_list() == ["two", "true"]


def test_differences_are_paired_over_seeds(tmp_path: Path) -> None:
    """What a seed adds to both settings falls out: the interval is that of the effect alone."""
    effects = {1: 0.5, 2: 0.4, 3: 0.6, 4: 0.5}
    for index, (causal, seed) in enumerate((c, s) for c in (True, False) for s in effects):
        write_run(tmp_path / str(index), seed=seed, causal=causal, kl=100 * seed + effects[seed] * (not causal))
    write_run(tmp_path / "9", seed=9, causal=False, kl=-1e6)  # no partner
    comparison = sweep.compare(sweep.read_runs([tmp_path]))
    (found,) = sweep.differences(comparison, "model.causal=true", ["truth/kl", "not/there"])
    assert (found.setting, found.measure, found.seeds) == ("model.causal=false", "truth/kl", 4)
    assert found.mean == pytest.approx(0.5, abs=1e-9)
    assert found.low is not None and found.high is not None
    assert 0.4 <= found.low <= found.mean <= found.high <= 0.6 + 1e-9
    with pytest.raises(ValueError, match=r"baseline=x: no such setting; there are model.causal=true; model.causal"):
        sweep.differences(comparison, "x")


def test_a_single_pair_has_no_interval(tmp_path: Path) -> None:
    for index, width in enumerate((8, 16)):
        write_run(tmp_path / str(index), width=width, kl=float(width))
    (found,) = sweep.differences(sweep.compare(sweep.read_runs([tmp_path])), "model.width=8", ["truth/kl"])
    assert (found.mean, found.low, found.high, found.seeds) == (8.0, None, None, 1)


def test_the_bootstrap_is_that_of_scipy() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(3).gamma(2.0, size=12)
    low, high = bootstrap_interval(values.tolist(), resamples=200_000)
    other = scipy_stats.bootstrap(
        (values,), np.mean, n_resamples=200_000, method="percentile", vectorized=True, rng=np.random.default_rng(4)
    ).confidence_interval
    spread = values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((other.low, other.high), abs=0.02 * spread)
