"""The engine that a trial chose, kept in the user's cache: timing decides once for a machine, and never again."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from perennial.client.engines.compiler import cache_directory, processor
from perennial.client.engines.trial import Load
from perennial.common.data.examples import Signature
from perennial.common.task.learning_task import Task


def place_of(module: nn.Module, signature: Signature, threads: int, task: Task, load: Load) -> Path:
    """Return the file for such a choice: what is trained, how much of it at a time, and on what machine."""
    # Clients and steps in powers of four and eight: a cohort differs from round to round, and long runs may compile.
    many, long = len(load.work).bit_length() // 2, load.steps.bit_length() // 3
    shapes = [(name, tuple(value.shape)) for name, value in module.state_dict().items()]
    optimiser = repr(task.optimiser).partition(" at 0x")[0]
    parts = (
        repr(module),
        shapes,
        str(signature),
        task.name,
        optimiser,
        threads,
        load.work[0].steps.shape[1],
        many,
        long,
    )
    text = repr((*parts, torch.__version__, processor()))
    return cache_directory() / f"engine-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def read(place: Path) -> str:
    """Return the kept name; '' if there is none."""
    try:
        return place.read_text().strip()
    except OSError:
        return ""


def keep(place: Path, name: str) -> str:
    """Keep the name, unless another process was first; return the one that is kept."""
    partial = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(name)
        # Unlike a rename, a link fails if the place is taken.
        os.link(partial, place)
    except OSError:
        return read(place) or name
    finally:
        partial.unlink(missing_ok=True)
    return name


def forget(place: Path) -> None:
    """Drop a name that stands for an engine which does not take the network any more."""
    with suppress(OSError):
        place.unlink(missing_ok=True)
