"""What a run's folder says about the run: `config.yaml`, `results.json` from its first moment on, `changes.diff`."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from grammarlab.config import ConfigError

CHANGES = "changes.diff"
DIRTY = "+changes"


class Record:
    """`results.json` and `config.yaml` of a run. It is claimed exclusively: no folder is shared by two runs."""

    def __init__(self, folder: Path, config: dict[str, Any] | None, name: str) -> None:
        self.name = name
        self.path = folder / "results.json"
        self.metrics: dict[str, float] = {}
        self.wandb_run: str | None = None
        self._start = time.perf_counter()
        self._versions = versions()
        self.commit = commit()
        try:
            self.path.open("x").close()
        except FileExistsError:
            raise ConfigError(f"{folder}: holds a run already; a run goes into a folder of its own") from None
        self._hold = Hold(folder)
        self._write("interrupted", error="killed, or still running")
        if config is not None:
            text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            (folder / "config.yaml").write_text(text, encoding="utf-8")
            if (self.commit or "").endswith(DIRTY) and (differing := changes()):
                (folder / CHANGES).write_bytes(differing)

    def fail(self, error: BaseException) -> None:
        """Status `failed`, the message in results.json and the traceback in error.txt."""
        text = "".join(traceback.format_exception(error))
        self.path.with_name("error.txt").write_text(text, encoding="utf-8")
        self.write("failed", error=f"{type(error).__name__}: {error}")

    def write(self, status: str, error: str | None = None) -> None:
        """How the run ended."""
        self._write(status, error)
        self._hold.close()

    def _write(self, status: str, error: str | None) -> None:
        content = {
            "name": self.name,
            "status": status,
            **({"error": error} if error else {}),
            "metrics": self.metrics,
            "seconds": round(time.perf_counter() - self._start, 3),
            "versions": self._versions,
            "commit": self.commit,
            "wandb_run": self.wandb_run,
        }
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)


class Hold:
    """A folder in which a process works, as others can see: it ends with `close` or the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: nothing there looks as if it were running
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_running(folder: Path) -> bool:
    """Whether a process of this machine works in the folder of a run, or of a sweep."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def versions() -> dict[str, str]:
    packages = ("grammarlab", "torch", "lightning", "hydra-core", "wandb", "numpy")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit() -> str | None:
    """The commit of this code, with `+changes` where the checkout differs from it; None where git does not know it."""
    root, code = _checkout()
    try:
        # Not just any checkout around an installed package.
        _git(root, "ls-files", "--error-unmatch", str(Path(__file__).resolve()))
        head = _git(root, "rev-parse", "HEAD").decode().strip()
        return head + (DIRTY if _git(root, "status", "--porcelain", "--", *code) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def changes() -> bytes:
    """In what the checkout differs from its commit, new files included: as `git apply` takes it from that commit."""
    root, code = _checkout()
    try:
        with tempfile.TemporaryDirectory() as folder:  # new files enter a copy of the index, not the user's own
            index = shutil.copy(root / _git(root, "rev-parse", "--git-path", "index").decode().strip(), folder)
            _git(root, "add", "--intent-to-add", "--", *code, index=index)
            return _git(root, "diff", "--binary", "--no-ext-diff", "--no-color", "HEAD", "--", *code, index=index)
    except (OSError, subprocess.SubprocessError):
        return b""


def _checkout() -> tuple[Path, list[str]]:
    """The folder above `src`, and what there makes the numbers of a run."""
    root = Path(__file__).resolve().parents[2]
    return root, [name for name in ("src", "conf") if (root / name).is_dir()]


def _git(root: Path, *arguments: str, index: str | None = None) -> bytes:
    environment = {**os.environ, **({"GIT_INDEX_FILE": index} if index else {})}
    done = subprocess.run(["git", *arguments], cwd=root, env=environment, capture_output=True, timeout=10, check=True)
    return done.stdout


def record_failure(folder: Path, error: BaseException, name: str) -> None:
    """Say in the folder of a job why it failed, unless the run has said so itself."""
    if not (folder / "results.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        Record(folder, None, name).fail(error)
