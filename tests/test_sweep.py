"""Many runs as one result: grouping, means and intervals."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from grammarlab import sweep
from grammarlab.intervals import t_quantile


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
    comparison = sweep.compare(sweep.load([tmp_path]))
    assert [setting.options for setting in comparison.settings] == [{"model.causal": True}, {"model.causal": False}]
    assert [setting.label for setting in comparison.settings] == ["model.causal=true", "model.causal=false"]
    assert [setting.measures["truth/kl"].mean for setting in comparison.settings] == [12, 2]
    assert all(setting.seeds == (1, 2, 3) for setting in comparison.settings)


def test_what_is_not_finished_never_enters_a_mean(tmp_path: Path) -> None:
    write_run(tmp_path / "0", kl=1.0)
    for index, status in enumerate(("failed", "interrupted", "dev"), start=1):
        write_run(tmp_path / str(index), status=status, seed=index + 1)
    comparison = sweep.compare(sweep.load([tmp_path]))
    (setting,) = comparison.settings
    assert setting.measures["truth/kl"].values == (1.0,)
    assert [run.status for run in comparison.unfinished] == ["failed", "interrupted", "dev"]


def test_a_seed_that_ran_twice_counts_once(tmp_path: Path) -> None:
    """The same numbers again are no new evidence: they would shrink the interval."""
    for index, seed in enumerate((1, 1, 2)):
        write_run(tmp_path / str(index), seed=seed, kl=float(seed))
    comparison = sweep.compare(sweep.load([tmp_path]))
    (setting,) = comparison.settings
    assert setting.measures["truth/kl"].values == (1.0, 2.0)
    assert comparison.notes == ["all runs: 1 of 3 runs repeat a seed: counted once"]


def test_jobs_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 0):
        write_run(tmp_path / str(number), seed=number)
    assert [run.folder.name for run in sweep.load([tmp_path])] == ["0", "9", "10"]


def test_a_run_and_several_folders_can_be_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "0", seed=1)
    write_run(tmp_path / "b" / "0", seed=2)
    assert len(sweep.load([tmp_path / "a" / "0", tmp_path / "b"])) == 2


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "0")
    (tmp_path / "0" / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"0: results.json or config.yaml cannot be read"):
        sweep.load([tmp_path])


def test_the_csv_has_a_row_for_each_setting(tmp_path: Path) -> None:
    for index, (width, seed) in enumerate((w, s) for w in (8, 16) for s in (1, 2)):
        write_run(tmp_path / "runs" / str(index), seed=seed, width=width, kl=float(width + seed))
    write_run(tmp_path / "runs" / "9", seed=1, width=32, kl=5.0)
    sweep.write_csv(sweep.compare(sweep.load([tmp_path / "runs"])), tmp_path / "table.csv")
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
