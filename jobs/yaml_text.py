"""YAML as users have it, loaded safely; a key that is there twice is an error, and not the last one's."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError


class _Once(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """What ``text`` holds.

    Raises:
        yaml.YAMLError: it is no YAML, asks for objects, or says a key twice; the message has the line.
    """
    return yaml.load(text, Loader=_Once)  # noqa: S506 (a safe one)
