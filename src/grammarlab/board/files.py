"""A board's file: written whole, and again when something has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grammarlab.board.data import gather
from grammarlab.board.page import render
from grammarlab.record import is_running


@dataclass(frozen=True, slots=True)
class Seen:
    """`running`: whether more can come. `stamp`: of what the page shows; empty before there is one."""

    running: bool
    stamp: tuple[object, ...] = ()


def write(
    folders: Sequence[Path],
    path: Path,
    *,
    baseline: str | None = None,
    refresh: float | None = None,
    seen: Seen | None = None,
) -> Seen:
    """The page of the runs in `folders`, unless nothing has changed since `seen`.

    While something runs there, what cannot be read may be about to be written: the page stays as it is. A page that a
    browser reads again every `refresh` seconds stops doing so when nothing runs any more. Raises `ValueError` where
    there is no run, a damaged one, or no setting of the name `baseline`.
    """
    running = any(map(is_running, folders))
    stamp = tuple(_stamp(folders))
    if seen is not None and stamp == seen.stamp and running == seen.running:
        return seen
    try:
        board = gather(folders, baseline=baseline)
        running = running or any(run.status == "running" for run in board.runs)
        page = render(board, running=running, refresh=refresh if running else None)
    except ValueError:
        if running:
            return seen or Seen(running)
        raise
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # the name that the user knows
    return Seen(running, stamp)


def _stamp(folders: Sequence[Path]) -> Iterator[object]:
    for folder in folders:
        for file in sorted((*folder.glob("results.json"), *folder.glob("*/results.json"))):
            metrics = file.with_name("metrics.csv")
            size = metrics.stat().st_size if metrics.exists() else 0
            yield file, file.stat().st_mtime_ns, size, is_running(file.parent)
