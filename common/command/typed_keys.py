"""A key of the configuration: its type, its bounds and what it means, and values that fit it or are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Self

from perennial.common.command.errors import InputError, shown
from perennial.common.command.naming import is_name

AUTO = "auto"
# YAML takes these for words, unless they have both a dot and a sign: 1e-3, 2.5e3.
_POWER_OF_TEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d{1,4}")


def whole(default: int, doc: str, *, least: int, auto: bool = False) -> Any:
    """A key that takes whole numbers from ``least`` on; with ``auto``, 0 (written auto) leaves it to the software."""
    return field(default=default, metadata={"doc": doc, "least": least, "auto": 0 if auto else None})


def real(
    default: float,
    doc: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    auto: float | None = None,
) -> Any:
    """A key that takes numbers above ``above``, and from ``least`` to ``most``.

    auto: what the word auto stands for; None: it is not taken.
    """
    return field(default=default, metadata={"doc": doc, "above": above, "least": least, "most": most, "auto": auto})


def word(default: str, doc: str, choices: tuple[str, ...] = (), *, named: bool = False) -> Any:
    """A key that takes one of ``choices``, or any text if there are none; with ``named`` also package.module:name."""
    return field(default=default, metadata={"doc": doc, "choices": choices, "named": named})


def yes_or_no(default: bool, doc: str) -> Any:
    """A key that takes true and false."""
    return field(default=default, metadata={"doc": doc})


def values(doc: str) -> Any:
    """A key that takes a mapping of names to values, as a ConfigRecord has them; kept as pairs."""
    return field(default=(), metadata={"doc": doc})


@dataclass(frozen=True)
class KeyedConfig:
    """A configuration whose fields are keys, made by the functions above."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """Return the configuration that a flat mapping of kebab-case keys stands for."""
        known = {key_of(item): item for item in fields(cls)}
        values = {}
        for key, value in mapping.items():
            if key not in known:
                text = key[:80] if isinstance(key, str) else shown(key)
                raise InputError(f"unknown key {text!r}{nearest(text, known)}")
            values[known[key].name] = typed(known[key], value)
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Return the flat mapping; auto values are written as the word."""
        return {key_of(item): _plain(item, getattr(self, item.name)) for item in fields(self)}


def _plain(item: Field[Any], value: Any) -> Any:
    if is_auto(item, value):
        return AUTO
    return dict(value) if isinstance(value, tuple) else value


def key_of(item: Field[Any]) -> str:
    """Return the key as it is written: kebab-case."""
    return item.name.replace("_", "-")


def is_auto(item: Field[Any], value: object) -> bool:
    """Tell whether a value is the one that the word auto stands for."""
    auto = item.metadata.get("auto")
    return auto is not None and value == auto


def typed(item: Field[Any], value: object) -> Any:
    """Return ``value`` in the type of the key's default, or refuse it."""
    assert item.default is not MISSING
    key, default = key_of(item), item.default
    if item.metadata.get("auto") is not None and value == AUTO:
        return item.metadata["auto"]
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise InputError(f"{key} must be true or false, got {shown(value)}")
    if isinstance(default, int):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise InputError(f"{key} must be a whole number{_bounds(item)}, got {shown(value)}")
    if isinstance(default, float):
        if isinstance(value, str) and _POWER_OF_TEN.fullmatch(value):
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308:
            return float(value)
        raise InputError(f"{key} must be a number{_bounds(item)}, got {shown(value)}")
    if isinstance(default, tuple):
        return _pairs(key, value)
    if isinstance(value, str):
        return value
    raise InputError(f"{key} must be{_bounds(item) or ' text'}, got {shown(value)}")


def _pairs(key: str, value: object) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, Mapping):
        raise InputError(f"{key} must be names with values, as {{lr: 0.1}}, got {shown(value)}")
    for name, one in value.items():
        if not isinstance(name, str) or not isinstance(one, str | bool | int | float):
            raise InputError(
                f"{key}: {shown(name)} must be a name with a number, true, false or text, got {shown(one)}"
            )
    return tuple(value.items())


def check_range(item: Field[Any], value: Any) -> None:
    """Refuse a value of the right type that lies outside the key's bounds or choices."""
    limits = item.metadata
    if isinstance(value, tuple) or is_auto(item, value):
        return
    if isinstance(value, str):
        fits = not limits["choices"] or value in limits["choices"] or (limits.get("named", False) and is_name(value))
    elif isinstance(value, bool):
        fits = True
    else:
        fits = (
            value >= limits["least"]
            and value > limits.get("above", -math.inf)
            and value <= limits.get("most", math.inf)
        ) and value < 2**63
    if not fits:
        raise InputError(f"{key_of(item)} must be{_bounds(item) or ' a number below 2**63'}, got {shown(value)}")


def _bounds(item: Field[Any]) -> str:
    limits = item.metadata
    if limits.get("choices"):
        own = " or package.module:name" if limits.get("named") else ""
        return f" one of {', '.join(limits['choices'])}{own}"
    parts = []
    if limits.get("above", -math.inf) > -math.inf:
        parts.append(f"more than {limits['above']:g}")
    if limits.get("least", -math.inf) > -math.inf:
        parts.append(f"at least {limits['least']:g}")
    if limits.get("most", math.inf) < math.inf:
        parts.append(f"at most {limits['most']:g}")
    return (" " + " and ".join(parts) if parts else "") + (" or auto" if limits.get("auto") is not None else "")


def nearest(key: str, known: Mapping[str, object]) -> str:
    """Return what to do about a key that is not known: the one that was probably meant, or all of them."""
    matches = get_close_matches(key, known, 1)
    return f"; did you mean {matches[0]}?" if matches else f"; the keys are {', '.join(known)}"
