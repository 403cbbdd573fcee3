"""YAML as users have it, loaded safely; a key that is there twice is an error, and not the last one's."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError

try:  # the compiled one, where there is one: it takes a tenth of the time
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]


class _Once(SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """What ``text`` holds: numbers, strings, lists and dictionaries, and no other objects.

    Raises:
        yaml.YAMLError: it is no YAML, asks for other objects, or says a key twice; the message has the line.
    """
    loader = _Once(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
