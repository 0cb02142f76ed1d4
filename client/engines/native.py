"""Compiled kernels for networks of convolutions, ReLU or GELU, pools and Linear: one client at a time, in cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from perennial.client.engines import compiler, network
from perennial.client.engines.engine import Received, Trained, Work, check_size
from perennial.common.data.datasets import PIXELS
from perennial.common.data.examples import Inputs, Targets
from perennial.common.wire.chains import Vector

_FIELDS = 9
_ROW, _LABEL = 1, 2


class NativeEngine:
    """Clients are shared out to ``threads``; no result depends on their number.

    Raises ``network.Unsupported`` for other modules and ``compiler.NoCompiler`` where the kernels cannot be built.
    """

    name = "native"

    def __init__(self, module: nn.Module, shape: tuple[int, ...], threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        layers = network.read(module, shape)
        self._shape, self._threads = shape, threads
        self._library = _load(compiler.library(network.header(layers)))
        self._size = int(self._library.perennial_parameters())
        assert self._size == sum(value.numel() for value in module.state_dict().values())

    def train(self, chains: Sequence[Received], work: Sequence[Work]) -> list[Trained]:
        """Return one result a chain; both chains see the same batches."""
        models = self._stack([chain.params for chain in chains])
        lrs = np.array([chain.lr for chain in chains], np.float32)
        trained = np.empty_like(models)
        train_losses, losses = np.full((2, len(chains), len(work)), np.nan)
        self._run(models, lrs, work, trained, train_losses, losses)
        return [Trained(*result) for result in zip(trained, train_losses, losses, strict=True)]

    def judge(self, models: Sequence[Vector], work: Sequence[Work]) -> list[NDArray[np.float64]]:
        """Return, for each model, every client's mean loss on its ``judged`` rows, (K,)."""
        losses = np.full((len(models), len(work)), np.nan)
        self._run(self._stack(models), np.zeros(len(models), np.float32), work, None, None, losses)
        return list(losses)

    def right(self, model: Vector, x: Inputs, y: Targets, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each of ``rows`` whether the model's best guess is its label."""
        row, kept = self._describe(Work(0, x, y, np.zeros((0, 0), np.int64), rows))
        found = np.zeros(len(rows), np.uint8)
        # Arrays made here must outlive the call.
        models, table = self._stack([model]), np.array(row, np.int64)
        self._raise_for(
            self._library.perennial_right(_pointer(models), _pointer(table), _pointer(PIXELS), _pointer(found))
        )
        del kept
        return found.astype(np.bool_)

    def _stack(self, models: Sequence[Vector]) -> NDArray[np.float32]:
        for model in models:
            check_size(model, self._size)
        return np.stack(models).astype(np.float32, copy=False)

    def _run(
        self,
        models: NDArray[np.float32],
        lrs: NDArray[np.float32],
        work: Sequence[Work],
        trained: NDArray[np.float32] | None,
        train_losses: NDArray[np.float64] | None,
        losses: NDArray[np.float64],
    ) -> None:
        if not work:
            raise ValueError("an order needs at least one client, got none")
        # Arrays made here must outlive the call.
        described = [self._describe(client) for client in work]
        table = np.array([row for row, _ in described], np.int64)
        status = self._library.perennial_run(
            ctypes.c_int(len(models)),
            _pointer(models),
            _pointer(lrs),
            ctypes.c_int(len(work)),
            _pointer(table),
            _pointer(PIXELS),
            ctypes.c_int(self._threads),
            _pointer(trained),
            _pointer(train_losses),
            _pointer(losses),
        )
        self._raise_for(status)

    @staticmethod
    def _raise_for(status: int) -> None:
        if status == _ROW:
            raise ValueError("a row of steps or judged lies outside its client's data")
        if status == _LABEL:
            raise ValueError("a label lies outside the classes of the model")
        if status:
            raise MemoryError("the native engine ran out of memory or threads")

    def _describe(self, client: Work) -> tuple[list[int], list[NDArray[Any]]]:
        (images,), labels = client.x, client.y
        if labels is None or images.shape[1:] != self._shape or labels.shape != images.shape[:1]:
            got = f"x {images.shape} and y {None if labels is None else labels.shape}"
            raise ValueError(f"client {client.client}: {got} must be (n, *{self._shape}) and (n,)")
        if images.dtype not in (np.uint8, np.float32):
            raise ValueError(f"client {client.client}: x must be uint8 or float32, got {images.dtype}")
        x = np.ascontiguousarray(images)
        y, steps, judged = (np.ascontiguousarray(rows, np.int64) for rows in (labels, client.steps, client.judged))
        iterations, batch = steps.shape
        values = [_address(x), _address(y), len(y), int(x.dtype == np.float32)]
        values += [_address(steps), iterations, batch, _address(judged), judged.size]
        assert len(values) == _FIELDS
        return values, [x, y, steps, judged]


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        # A damaged file is compiled anew next time; one that may not be executed is never taken.
        path.unlink(missing_ok=True)
        raise compiler.NoCompiler(f"{path} cannot be loaded: {error}") from error


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else _address(array))
