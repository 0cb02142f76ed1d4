"""Checkpoints: the whole state of a run as safetensors and JSON with checksums; the last two are kept.

checkpoint/00000120.safetensors   the distinct vectors of the state
checkpoint/00000120.json          everything else, and the SHA-256 of both; its rename is what commits
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import Slot
from perennial.common.wire.chains import Vector
from perennial.server.psgd import Chains, Predictors
from perennial.server.run.files import replace_file
from perennial.server.run.state import RoundRecord, RunState
from perennial.server.run.tree import DamagedError

LOG = logging.getLogger("perennial")
FORMAT = 1
_KEPT = 2
# A resumed run may differ in these: they say how and where to run. Clients spread over another number of nodes are
# averaged in another order, so `nodes` may change the last bits, and what a median over nodes is of.
_MAY_DIFFER = {"output", "nodes", "round-timeout", "fair-time", "node-timeout", "round-attempts", "checkpoint-every"}


@dataclass(frozen=True)
class Checkpoint:
    """A state, and what else must go on: where each run's metrics end, who sits out, when the clock started."""

    state: RunState
    config: dict[str, Any]
    positions: tuple[int, ...]
    quarantine: dict[str, Any] = field(default_factory=dict)
    started: str = ""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of its round and drop all but the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    slot = checkpoint.state.slot
    assert slot is not None
    vectors = _Vectors()
    body = {
        "format": FORMAT,
        "slot": asdict(slot),
        "mixed": vectors.index(checkpoint.state.chains.mixed),
        "separate": [vectors.index(vector) for vector in checkpoint.state.chains.separate],
        "predictors": [
            {"models": [vectors.index(model) for model in one.models], "folded": list(one.folded)}
            for one in checkpoint.state.predictors
        ],
        "pending": checkpoint.state.pending.to_json() if checkpoint.state.pending else None,
        "memory": {name: vectors.index(vector) for name, vector in checkpoint.state.memory.items()},
        "config": checkpoint.config,
        "positions": list(checkpoint.positions),
        "quarantine": checkpoint.quarantine,
        "started": checkpoint.started,
    }
    tensors = save(vectors.named)
    body["sha256"] = hashlib.sha256(tensors).hexdigest()
    text = json.dumps(body, sort_keys=True)
    name = f"{slot.server_round:08d}"
    replace_file(folder / f"{name}.safetensors", tensors)
    replace_file(folder / f"{name}.json", json.dumps({"sha256": _digest(text), "body": text}).encode())
    kept = sorted(path.stem for path in folder.glob("[0-9]*.json") if path.stem <= name)[-_KEPT:]
    # Also what a kill left half-written, and later rounds: they were damaged, or this one would not be run again.
    for path in folder.iterdir():
        if path.stem not in kept:
            path.unlink()


def load_latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, with a warning for each that is not; None where there is none."""
    for path in sorted(folder.glob("[0-9]*.json"), reverse=True):
        try:
            return load_checkpoint(path)
        except DamagedError as error:
            LOG.warning("checkpoint %s is damaged (%s); the one before it is used", path, error)
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint of ``path``, or raise DamagedError for anything that is not as it was written."""
    try:
        outer = json.loads(path.read_bytes())
        if outer["sha256"] != _digest(outer["body"]):
            raise DamagedError("its checksum differs")
        body = json.loads(outer["body"])
        if body["format"] != FORMAT:
            raise DamagedError(f"format {body['format']!r} is not {FORMAT}")
        tensors = path.with_suffix(".safetensors").read_bytes()
        if hashlib.sha256(tensors).hexdigest() != body["sha256"]:
            raise DamagedError("the checksum of its tensors differs")
        return _checkpoint(body, load(tensors))
    except DamagedError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def check_same_config(saved: dict[str, Any], config: RunConfig) -> None:
    """Refuse to go on with another configuration than the checkpoint's, and name the first difference.

    A key that the checkpoint lacks is newer than it, and stood at its default.
    """
    saved = {**RunConfig().to_mapping(), **saved}
    for key, value in config.to_mapping().items():
        if key not in _MAY_DIFFER and saved.get(key) != value:
            raise InputError(
                f"--resume: the checkpoint has {key} = {saved.get(key)!r}, this run {value!r}; they must agree"
            )


def _checkpoint(body: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]) -> Checkpoint:
    vectors = [tensors[str(index)] for index in range(len(tensors))]
    size = vectors[0].shape
    _require(all(v.dtype == np.float32 and v.ndim == 1 and v.shape == size for v in vectors), "vectors of one size")
    separate, predictors = (_vectors_at(vectors, body["separate"]), body["predictors"])
    # Checkpoints of earlier versions have no memory.
    memory: dict[str, int] = body.get("memory", {})
    state = RunState(
        _slot(body["slot"]),
        Chains(_vectors_at(vectors, [body["mixed"]])[0], separate),
        tuple(Predictors(_vectors_at(vectors, one["models"]), _counts(one["folded"])) for one in predictors),
        _pending(body["pending"]) if body["pending"] is not None else None,
        dict(zip(memory, _vectors_at(vectors, list(memory.values())), strict=True)),
    )
    blocks = {len(one.models) for one in state.predictors} | {len(one.folded) for one in state.predictors}
    _require(len(blocks) == 1 and {len(separate)} <= {0, *blocks}, "as many models as blocks")
    quarantine, started = body["quarantine"], body["started"]
    for kept in ("strikes", "until"):
        _counts([*map(int, quarantine[kept]), *quarantine[kept].values()])
    _require(isinstance(body["config"], dict) and isinstance(started, str), "a configuration and a start")
    if started:
        datetime.fromisoformat(started)
    return Checkpoint(state, body["config"], _counts(body["positions"]), quarantine, started)


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise DamagedError(f"it does not hold {what}")


def _counts(values: list[Any]) -> tuple[int, ...]:
    _require(all(type(value) is int and 0 <= value < 2**63 for value in values), "counts where counts belong")
    return tuple(values)


def _vectors_at(vectors: list[Vector], places: list[Any]) -> tuple[Vector, ...]:
    return tuple(vectors[place] for place in _counts(places))


def _slot(value: dict[str, Any]) -> Slot:
    slot = Slot(**value)
    _counts(list(value.values()))
    _require(slot.server_round >= 1, "a round")
    return slot


def _pending(value: dict[str, Any]) -> RoundRecord:
    record = RoundRecord.from_json(value)
    _slot(value["slot"])
    _counts([record.attempts, record.clients_asked, record.clients_answered])
    _counts([*record.bytes_down.values(), *record.bytes_up.values()])
    seconds = [record.seconds, *record.train_losses.values(), *record.losses.values()]
    _require(all(type(number) in (int, float) for number in seconds), "numbers where numbers belong")
    return record


class _Vectors:
    """The distinct vectors of a state by number: predictors often are a chain's head, and are then stored once."""

    def __init__(self) -> None:
        self.named: dict[str, Vector] = {}
        self._index: dict[int, int] = {}

    def index(self, vector: Vector) -> int:
        if id(vector) not in self._index:
            self._index[id(vector)] = len(self.named)
            self.named[str(len(self.named))] = vector
        return self._index[id(vector)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
