"""What is written of a run comes back as it was."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammarlab import tables

WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.tuples(st.lists(WORDS).map(" ".join), st.floats(allow_nan=False)), min_size=1))
def test_any_words_and_any_float_come_back(
    rows: list[tuple[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    sentences = tables.table("sentences", [(text, value, -value, "yes") for text, value in rows])
    tables.write(folder, {"sentences": sentences})
    read = tables.read(folder, "sentences")
    assert read is not None and read.equals(sentences)


def test_a_sample_without_words_and_one_without_fault_are_no_missing_values(tmp_path: Path) -> None:
    written = tables.table("samples", [(1.0, "", "no", -math.inf, -1.0, 0), (0.3, "1", "yes", -1.0, -1.0, None)])
    tables.write(tmp_path, {"samples": written})
    read = tables.read(tmp_path, "samples")
    assert read is not None and read.rows() == written.rows()


def test_metrics_that_a_kill_cut_short_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,val/loss,truth/kl\n0,1.5,nan\n10,,2.5\n20,3")
    read = tables.read(tmp_path, "metrics")
    assert read is not None
    assert read["step"].to_list() == [0, 10, 20]
    assert read["val/loss"].to_list() == [1.5, None, 3.0]
    assert math.isnan(read["truth/kl"][0]) and read["truth/kl"].to_list()[1:] == [2.5, None]


def test_what_is_not_there_is_none_and_what_is_damaged_is_named(tmp_path: Path) -> None:
    assert tables.read(tmp_path, "samples") is None
    (tmp_path / "positions.csv").write_text("position,reached,entropy,loss,kl\none,two,three,four,five\n")
    with pytest.raises(ValueError, match=r"positions\.csv: cannot be read"):
        tables.read(tmp_path, "positions")
    (tmp_path / "metrics.csv").write_text("")
    with pytest.raises(ValueError, match=r"metrics\.csv: cannot be read"):
        tables.read(tmp_path, "metrics")


def test_sampled_values_of_each_temperature_with_their_ends() -> None:
    metrics = {f"sampled/{name}{end}": 0.5 for name in ("validity", "coverage") for end in ("", "_low", "_high")}
    metrics |= {"sampled/T0_3/validity": 0.2, "sampled/T0_3/validity_low": 0.1, "sampled/T0_3/validity_high": 0.3}
    rows = tables.sampled(metrics, [0.3, 1.0]).rows()
    assert rows == [
        (0.3, "validity", 0.2, 0.1, 0.3),
        (1.0, "validity", 0.5, 0.5, 0.5),
        (1.0, "coverage", 0.5, 0.5, 0.5),
    ]
