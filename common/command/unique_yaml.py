"""YAML in which a key may not stand twice: the last would silently win."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        # Before the merges are unfolded, since what `<<` brings may be overruled.
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            # One that cannot be hashed is refused below.
            if isinstance(key, Hashable):
                if key in seen:
                    raise ValueError(f"a key stands twice: {key_node.value}")
                seen.add(key)
        return super().construct_mapping(node, deep)


def load(text: str) -> Any:
    """Return the document; ValueError or YAMLError where it is none, or a key stands twice."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
