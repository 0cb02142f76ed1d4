"""A run's folder: what lies where in it, and whether the run that it holds ended, may be lost, or may go on."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.server.predict.versions import FINAL, MANIFEST, VERSIONS, check_final
from perennial.server.run.files import replace_file
from perennial.server.run.tree import DamagedError

LOG = logging.getLogger("perennial")


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
        return self.path / FINAL / MANIFEST

    def is_complete(self) -> bool:
        """Tell whether the run ended: its manifest is the last file written."""
        return self.manifest.exists()

    def is_whole(self) -> bool:
        """Tell whether the run ended and its predictors are as they were written; what is not is said."""
        if not self.is_complete():
            return False
        try:
            check_final(self.path)
        except (DamagedError, InputError) as error:
            LOG.warning("%s; the predictors are written again from the checkpoint", error)
            return False
        return True

    def config(self) -> dict[str, Any]:
        """Return the configuration that the folder was made with; empty where there is none.

        A key that the file lacks is newer than it, and stood at its default.
        """
        path = self.path / "config.yaml"
        try:
            return {**RunConfig().to_mapping(), **yaml.safe_load(path.read_text())} if path.exists() else {}
        except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"{path} cannot be read: {reason}; put it back, or start anew in another folder"
            ) from error

    def refuse_to_lose(self, remedy: str) -> None:
        """Raise where rounds are there that a start would wipe: a deployed run cannot be had again."""
        if self.metrics.exists() and (rounds := self.metrics.read_bytes().count(b"\n")):
            raise InputError(f"{self.path} holds a run of {rounds} rounds; {remedy}")

    def discard(self) -> None:
        """Remove what an earlier run left here and would be taken for the next one's."""
        self.manifest.unlink(missing_ok=True)
        for stale in [*self.checkpoints.glob("*"), *(self.path / FINAL).glob("*")]:
            stale.unlink()
        if (self.path / VERSIONS).exists():
            shutil.rmtree(self.path / VERSIONS)
        self.metrics.unlink(missing_ok=True)

    def start(self, config: RunConfig, initial: bytes) -> None:
        """Begin anew, from the initial model as a safetensors file."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.discard()
        replace_file(self.path / "initial.safetensors", initial)
        replace_file(self.path / "config.yaml", yaml.safe_dump(config.to_mapping(), sort_keys=False).encode())
