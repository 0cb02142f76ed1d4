"""Perennial: federated learning for data that comes in cycles, on Flower."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
# A wheel has the parts inside this package; a checkout and a Flower bundle have them beside it.
if not (Path(__file__).with_name("server")).is_dir():
    __path__.append(str(_ROOT))
