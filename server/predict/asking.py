"""``flower-predict run``: outputs for the examples of a file."""

from __future__ import annotations

import csv
import io
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.console import say
from perennial.common.command.errors import InputError, shown
from perennial.common.data import npz
from perennial.common.data.examples import ArrayType, Inputs
from perennial.server.predict.loading import Predictor
from perennial.server.predict.predictor_network import PredictorNetwork, output_names
from perennial.server.run.files import replace_file

# Examples that a network gets at once.
_BATCH = 250


def ask(predictor: Predictor, source: Path, target: Path | None) -> int:
    """Predict for the examples of ``source``, and print the outputs or write them to ``target``."""
    if target is not None and target.suffix not in (".npz", ".csv"):
        raise InputError(f"--output {target} must end in .npz or .csv")
    network = PredictorNetwork.of(predictor)
    outputs = predict(network, read(source, network))
    say(f"block {predictor.block}, version {predictor.version}: {len(outputs[0])} examples")
    named = dict(zip(output_names(len(outputs)), outputs, strict=True))
    if target is None:
        sys.stdout.write(_csv(named))
    elif target.suffix == ".csv":
        replace_file(target, _csv(named).encode())
    else:
        content = io.BytesIO()
        np.savez(content, **named)  # type: ignore[arg-type]
        replace_file(target, content.getvalue())
    return 0


def predict(network: PredictorNetwork, x: Inputs) -> tuple[NDArray[Any], ...]:
    """Return the outputs for any number of examples."""
    starts = range(0, len(x[0]), _BATCH)
    parts = [network.outputs(tuple(one[start : start + _BATCH].copy() for one in x)) for start in starts]
    return tuple(np.concatenate(one) for one in zip(*parts, strict=True))


def read(source: Path, network: PredictorNetwork) -> Inputs:
    """Return the examples of a file, checked."""
    if source.suffix == ".npz":
        arrays = npz.read(source, network.names)
        x = tuple(arrays[name] for name in network.names)
    elif source.suffix == ".csv":
        if len(network.names) != 1:
            raise InputError(f"a .csv has one input, the predictor takes {', '.join(network.names)}; give them as .npz")
        x = (_read_csv(source, network.signature.x[0]),)
    else:
        raise InputError(f"--input {source} must end in .npz or .csv")
    network.check(x, str(source))
    if not len(x[0]):
        raise InputError(f"{source} has no examples")
    return x


def _read_csv(source: Path, kind: ArrayType) -> NDArray[Any]:
    try:
        with source.open(newline="", encoding="utf-8") as file:
            lines = [line for line in csv.reader(file) if line]
    except FileNotFoundError as error:
        raise InputError(f"{source} does not exist") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source} cannot be read as .csv: {error}") from error
    named = bool(lines) and all(_number(cell) is None for cell in lines[0])
    width = prod(kind.shape)
    rows = [_row(line, width, f"{source}, line {at}") for at, line in enumerate(lines, 1) if not (named and at == 1)]
    values = np.array(rows, np.float64).reshape(len(rows), *kind.shape)
    dtype = np.dtype(kind.dtypes[-1])
    taken = values.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(taken, values):
        raise InputError(f"{source} has numbers that are no {dtype}")
    return taken


def _row(line: list[str], width: int, where: str) -> list[float]:
    if len(line) != width:
        raise InputError(f"{where}: an example has {width} numbers, got {len(line)}")
    numbers = [_number(cell) for cell in line]
    if None in numbers:
        raise InputError(f"{where}: {shown(line[numbers.index(None)])} is no number")
    return [number for number in numbers if number is not None]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _csv(outputs: dict[str, NDArray[Any]]) -> str:
    """Return one line for each example, with a first line of names."""
    flat = {name: one.reshape(len(one), -1) for name, one in outputs.items()}
    names = [
        name if one.shape[1] == 1 else f"{name}[{index}]" for name, one in flat.items() for index in range(one.shape[1])
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in zip(*flat.values(), strict=True):
        writer.writerow([value.item() for one in row for value in one])
    return text.getvalue()
