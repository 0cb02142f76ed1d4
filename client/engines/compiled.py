"""The stacked engine with its step compiled by torch.compile: worth it for long runs alone."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from perennial.client.engines.compiler import cache_directory
from perennial.client.engines.stacked import Arrays, StackedEngine
from perennial.common.task.learning_task import Task
from perennial.common.task.ready import classification

LOG = logging.getLogger("perennial")


class CompiledEngine(StackedEngine):
    """Compiles at the first step, for up to a minute; what torch cannot compile goes on as the stacked engine.

    The compiled code is kept in the user's cache, where other workers and later runs find it.
    """

    name = "compiled"

    def __init__(self, module: nn.Module, task: Task = classification) -> None:
        super().__init__(module, task)
        self._compiled: Any = None
        self._failed = False

    def _step(
        self, trained: Arrays, renewed: Arrays, kept: Arrays, inputs: tuple[Tensor, ...], target: Tensor | None
    ) -> tuple[Arrays, Tensor, Arrays]:
        if self._failed:
            return super()._step(trained, renewed, kept, inputs, target)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found: tuple[Arrays, Tensor, Arrays] = self._ready()(trained, renewed, kept, inputs, target)
            return found
        except Exception as error:  # the compiler's, or of the code that it made: it has many ways to fail
            self._failed = True
            reason = " ".join(str(error).split())[:160]
            LOG.warning("torch.compile failed (%s: %s); going on with engine stacked", type(error).__name__, reason)
            return super()._step(trained, renewed, kept, inputs, target)

    def _ready(self) -> Any:
        if self._compiled is None:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_directory() / "torch"))
            # Its own processes would outlive a short run, and fight with the workers for the cores.
            os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
            self._compiled = torch.compile(super()._step)
        return self._compiled
