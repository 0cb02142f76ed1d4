"""Reading .npz files that may be damaged or hostile: no pickles, no surprise allocations, one kind of error."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.errors import InputError

_DAMAGE = (
    OSError, ValueError, KeyError, EOFError, TypeError, SyntaxError, OverflowError, RuntimeError, MemoryError,
    IndexError, NotImplementedError, UnicodeError, struct.error, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def read(path: Path, names: tuple[str, ...], *, mapped: bool = False) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an .npz file; where ``mapped``, those stored uncompressed as read-only memory maps."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _member(path, archive, name, mapped) for name in names}
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except _DAMAGE as error:
        reason = f"no array {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())[:200]
        raise InputError(f"{path} cannot be read as .npz with arrays {', '.join(names)}: {reason}") from error


def _member(path: Path, archive: zipfile.ZipFile, name: str, mapped: bool) -> NDArray[Any]:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        shape, fortran, dtype = _header(stream)
        start = stream.tell()
        if prod(shape) * dtype.itemsize != info.file_size - start:
            raise ValueError(f"{name} says {shape} of {dtype}, its data has {info.file_size - start} bytes")
        if not mapped or info.compress_type != zipfile.ZIP_STORED or fortran or not prod(shape):
            flat = np.frombuffer(stream.read(), dtype)
            return flat.reshape(shape, order="F" if fortran else "C")
    return np.memmap(path, dtype, "r", _data_offset(path, info) + start, shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    major, _ = np.lib.format.read_magic(stream)
    reader = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[major]
    shape, fortran, dtype = reader(stream)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"arrays of {dtype} with shape {shape} are not data")
    return shape, fortran, dtype


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Return where the member's bytes begin: its local header has a name and extra field of its own lengths."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + int(name_length) + int(extra_length)
