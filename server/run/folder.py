"""A run's folder: configuration, initial model, metrics as they come, predictors at the end."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import save

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, RunError
from perennial.common.cycle.schedule import Schedule
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import Layout
from perennial.server.psgd import Predictors
from perennial.server.run.files import replace_file

MANIFEST_FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    @property
    def manifest(self) -> Path:
        return self.path / "predictors" / "manifest.json"

    def is_complete(self) -> bool:
        """Tell whether the run ended: its manifest is the last file written."""
        return self.manifest.exists()

    def config(self) -> dict[str, Any]:
        """Return the configuration that the folder was made with; empty where there is none.

        A key that the file lacks is newer than it, and stood at its default.
        """
        path = self.path / "config.yaml"
        try:
            return {**RunConfig().to_mapping(), **yaml.safe_load(path.read_text())} if path.exists() else {}
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error

    def refuse_to_lose(self, remedy: str) -> None:
        """Raise where rounds are there that a start would wipe: a deployed run cannot be had again."""
        if self.metrics.exists() and (rounds := self.metrics.read_bytes().count(b"\n")):
            raise InputError(f"{self.path} holds a run of {rounds} rounds; {remedy}")

    def discard(self) -> None:
        """Remove what an earlier run left here and would be taken for the next one's."""
        self.manifest.unlink(missing_ok=True)
        for stale in [*self.checkpoints.glob("*"), *(self.path / "predictors").glob("*")]:
            stale.unlink()
        self.metrics.unlink(missing_ok=True)

    def start(self, config: RunConfig, layout: Layout, initial: Vector) -> None:
        """Begin anew."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.discard()
        self.metrics.write_bytes(b"")
        replace_file(self.path / "initial.safetensors", _model(layout, initial))
        replace_file(self.path / "config.yaml", yaml.safe_dump(config.to_mapping(), sort_keys=False).encode())

    def write_predictors(
        self,
        config: RunConfig,
        schedule: Schedule,
        layout: Layout,
        predictors: Predictors,
        scores: list[float] | None,
        score: str = "accuracy",
    ) -> None:
        """Write one file a block, then the manifest with their checksums. scores: of each block, by ``score``."""
        folder = self.manifest.parent
        folder.mkdir(exist_ok=True)
        digests = {}
        for block, model in enumerate(predictors.models):
            name, content = f"block-{block}.safetensors", _model(layout, model)
            replace_file(folder / name, content)
            digests[name] = hashlib.sha256(content).hexdigest()
        kept = ("cycles", "rounds-per-block", "clock", "timezone")
        manifest = {
            "format": MANIFEST_FORMAT,
            "strategy": config.strategy,
            "blocks": list(schedule.names),
            "folded": list(predictors.folded),
            **({"accuracy": scores} if score == "accuracy" else {"score": score, "scores": scores}),
            "model": config.model,
            "schedule": {"blocks": config.blocks, **{key: config.to_mapping()[key] for key in kept}},
            "sha256": digests,
        }
        replace_file(self.manifest, json.dumps(manifest, indent=2).encode() + b"\n")


class Metrics:
    """metrics.jsonl, one line a round, open at the end of what counts."""

    def __init__(self, path: Path, position: int = 0) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size < position:
            raise RunError(
                f"{path} has {size} bytes, and had {position} when the checkpoint was written; put it back, "
                "or start anew"
            )
        self._file = path.open("r+b" if path.exists() else "w+b")
        # Lines after the checkpoint are written again by the rounds that are run again.
        self._file.truncate(position)
        self._file.seek(position)

    def append(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def position(self) -> int:
        """Return where the next row goes."""
        return self._file.tell()

    def sync(self) -> None:
        """Have every row on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _model(layout: Layout, vector: Vector) -> bytes:
    return save(layout.unflatten(vector))
