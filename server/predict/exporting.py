"""``flower-predict export``: predictors as files for other programs, each checked against what the run predicts.

A file holds the network: its inputs are those that the network takes, so that pixels (uint8) come as (x/255 − 0.5)/0.5.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.common.command.console import say
from perennial.common.command.errors import InputError, RunError
from perennial.common.data.examples import ArrayType, Inputs
from perennial.common.wire.seeding import generator
from perennial.server.predict.loading import Predictor, open_version
from perennial.server.predict.predictor_network import PredictorNetwork, as_arrays, output_names
from perennial.server.run.files import replace_file
from perennial.server.run.tree import DamagedError

# How far an exported network may be from the run's own, relative to numbers above 1.
TOLERANCE = 1e-5
_SUFFIX = {"torch-export": ".pt2", "onnx": ".onnx"}
# Examples of the batches that it is checked on.
_CHECKED = (1, 2, 17)

# What a file predicts: a network's inputs to its outputs.
Exported = Callable[[Sequence[Tensor]], Sequence[NDArray[Any]]]


def export(run: Path, version: int | None, kind: str, target: Path | None) -> int:
    """Write a file for each block that is trained; nothing is left of one that predicts otherwise than the run."""
    found = open_version(run, version)
    folder = target or run / "export" / str(found.number)
    folder.mkdir(parents=True, exist_ok=True)
    if not any(found.trained):
        raise InputError(f"no block of version {found.number} is trained yet")
    for block, name in enumerate(found.blocks):
        if not found.trained[block]:
            say(f"block {name} is not trained yet")
            continue
        try:
            predictor = found.predictor(block)
        except DamagedError as error:
            raise InputError(f"{error}; choose another version, or publish it again") from error
        path = folder / f"block-{block}{_SUFFIX[kind]}"
        difference = export_one(predictor, kind, path)
        print(f"{path}: block {name}, version {found.number}, within {difference:.1e} of the run's predictions")
    return 0


def export_one(predictor: Predictor, kind: str, path: Path) -> float:
    """Write one predictor as a file; return how far its outputs were from the run's."""
    network = PredictorNetwork.of(predictor)
    about = {"block": predictor.block, "version": str(predictor.version), "run": str(predictor.manifest["run"])}
    write, read = (_to_torch, _from_torch) if kind == "torch-export" else (_to_onnx, _from_onnx)
    try:
        with warnings.catch_warnings():
            # Of torch's own ways, which change from release to release.
            warnings.simplefilter("ignore")
            content = write(network, about)
    except Exception as error:  # whatever the exporter raises says that it cannot take this network
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"torch cannot export the network of block {predictor.block}: {reason}") from error
    difference = _difference(network, read(content))
    if not difference <= TOLERANCE:
        raise RunError(f"block {predictor.block} as {kind} predicts other values than the run: "
                       f"they differ by {difference:.1e}; nothing is written")  # fmt: skip
    replace_file(path, content)
    return difference


# --- Formats ----------------------------------------------------------------------------------------------------------


def _to_torch(network: PredictorNetwork, about: dict[str, str]) -> bytes:
    content = io.BytesIO()
    torch.export.save(_program(network), content, extra_files={"perennial.json": json.dumps(about)})
    return content.getvalue()


def _from_torch(content: bytes) -> Exported:
    module = torch.export.load(io.BytesIO(content)).module()

    def predict(inputs: Sequence[Tensor]) -> Sequence[NDArray[Any]]:
        with torch.inference_mode():
            return as_arrays(module(*inputs))

    return predict


def _to_onnx(network: PredictorNetwork, about: dict[str, str]) -> bytes:
    for noisy in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    tried = network.outputs(network.signature.zeros(2)[0])
    program = torch.onnx.export(
        _program(network), dynamo=True, verbose=False, input_names=list(network.names),
        output_names=list(output_names(len(tried))),
    )  # fmt: skip
    assert program is not None
    model = program.model_proto
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    found: bytes = model.SerializeToString()
    return found


def _from_onnx(content: bytes) -> Exported:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, (one.numpy() for one in inputs), strict=True)))


def _program(network: PredictorNetwork) -> torch.export.ExportedProgram:
    """Return the network as torch exports it, for any number of examples."""
    count = torch.export.Dim("examples", min=1)
    inputs = network.inputs(network.signature.zeros(2)[0])
    return torch.export.export(network.module, inputs, dynamic_shapes=tuple({0: count} for _ in inputs))


# --- Checking ---------------------------------------------------------------------------------------------------------


def _difference(network: PredictorNetwork, exported: Exported) -> float:
    """Return the largest difference of the outputs for some examples, relative to numbers above 1."""
    worst = 0.0
    for count in _CHECKED:
        x = _examples(network.signature.x, count)
        expected = network.outputs(x)
        got = exported(network.inputs(x))
        if [one.shape for one in expected] != [one.shape for one in got]:
            return float("inf")
        for ours, theirs in zip(expected, got, strict=True):
            apart = np.abs(ours.astype(float) - theirs) / np.maximum(1.0, np.abs(ours.astype(float)))
            worst = max(worst, float(apart.max(initial=0.0)))
    return worst


def _examples(kinds: Sequence[ArrayType], count: int) -> Inputs:
    draw = generator(0, "export", count)
    return tuple(_values(kind, count, draw) for kind in kinds)


def _values(kind: ArrayType, count: int, draw: np.random.Generator) -> NDArray[Any]:
    dtype, shape = np.dtype(kind.dtypes[-1]), (count, *kind.shape)
    if dtype == np.uint8:
        return draw.integers(0, 256, shape, np.uint8)
    if dtype.kind in "iub":
        # Numbers that stand for something, a place in a table say: small ones are there.
        return draw.integers(0, 2, shape).astype(dtype)
    return draw.normal(size=shape).astype(dtype)
