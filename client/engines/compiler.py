"""Compiles the native kernels for one network at first use, and keeps the library in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "cpp"
# Not -ffast-math: NaN and infinity must reach the losses, where they are detected.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-pthread",
)
SECONDS = 300


class NoCompiler(RuntimeError):
    """There is no C++ compiler, or it failed; the message says which."""


def library(header: str) -> Path:
    """Return the shared library for the network that ``header`` describes, compiled unless the cache has it."""
    compiler = find()
    flags = _flags(compiler)
    parts = [header.encode(), *_sources(), " ".join(flags).encode(), _version(compiler).encode(), processor().encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    target = cache_directory() / f"{key}.so"
    if not target.exists():
        _compile(compiler, flags, header, target)
    return target


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/perennial, else ~/.cache/perennial."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perennial"


def _sources() -> list[bytes]:
    try:
        return [path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in (".h", ".cpp")]
    except OSError as error:
        # Flower's bundle of an app, which `flwr run` executes, carries no C++.
        raise NoCompiler(f"the kernels' sources are not here: {error}") from error


def find() -> str:
    """Return the C++ compiler's path: $CXX, else the first of the usual names."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
    raise NoCompiler(f"no C++ compiler: {wanted + ' ($CXX)' if wanted else 'c++, g++, clang++'} not found on PATH")


def _compile(compiler: str, flags: tuple[str, ...], header: str, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            (Path(scratch) / "layers.h").write_text(header)
            made = Path(scratch) / target.name
            command = [compiler, *flags, f"-I{scratch}", f"-I{SOURCES}", str(SOURCES / "native.cpp"), "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if result.returncode:
                lines = [line for line in result.stderr.splitlines() if "error" in line] or ["no message"]
                raise NoCompiler(f"{compiler} failed: {lines[0]}")
            # Several workers may compile at once; each puts a whole file in place.
            os.replace(made, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{compiler} failed: {error}") from error


@cache
def _version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCompiler(f"{compiler} --version failed: {error}") from error


def _flags(compiler: str) -> tuple[str, ...]:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return (*FLAGS, "-march=native", "-mprefer-vector-width=512")
    if machine in ("aarch64", "arm64"):
        return (*FLAGS, "-mcpu=native")
    return FLAGS


@cache
def processor() -> str:
    """Return what the processor can do: a library made for another one must not be loaded from a shared home."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    wanted = ("model name", "flags", "features", "cpu part")
    return "\n".join(sorted({line for line in lines if line.lower().startswith(wanted)}))
