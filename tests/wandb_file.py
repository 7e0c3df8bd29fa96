"""Reads an offline run's file back: wandb 0.31 ships no reader.

Format: 7 bytes of header beginning `:W&B`, then blocks of 32 KiB of records (crc32, length, type), in the framing of
LevelDB's log; the payload of a record is a protobuf `Record`.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def payloads(data: bytes) -> Iterator[bytes]:
    position, pending = 7, b""
    while position + 7 <= len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        position += 7
        piece = data[position : position + length]
        position += length
        if kind == FULL:
            yield piece
        elif kind == FIRST:
            pending = piece
        elif kind == MIDDLE:
            pending += piece
        elif kind == LAST:
            yield pending + piece


@dataclass
class WandbRun:
    history: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)  # name -> the MetricRecord
    run: Any = None
    exit_code: int | None = None
    files: list[str] = field(default_factory=list)  # what an upload takes along from the folder `files`

    @property
    def media(self) -> dict[str, str]:
        """Of each table and picture by the name under which it was logged: its path below the folder `files`."""
        logged = {name: value for row in self.history for name, value in row.items()}
        return {name.removesuffix("/path"): value for name, value in logged.items() if name.endswith("/path")}


def read(folder: Path) -> WandbRun:
    """The one run file in a run's folder."""
    (path,) = folder.glob("run-*.wandb")
    found = WandbRun()
    for payload in payloads(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found.history.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
        elif kind == "run":
            found.run = record.run
            for item in record.run.config.update:
                found.config[item.key] = json.loads(item.value_json)
        elif kind == "config":
            for item in record.config.update:
                found.config[item.key] = json.loads(item.value_json)
        elif kind == "metric" and record.metric.name:
            found.metrics[record.metric.name] = record.metric
        elif kind == "files":
            found.files += [item.path for item in record.files.files]
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found
