"""Load users' YAML safely, with the line number of each key; a duplicate key is an error."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from profiling.errors import UserError

try:  # the compiled one, where there is one: it takes a tenth of the time
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

Place = tuple[int | str, ...]


@dataclass(frozen=True)
class Document:
    """What a file holds, and on which line (from 1) each of its keys and list items is."""

    path: Path
    content: Any
    lines: dict[Place, int] = field(default_factory=dict)

    def where(self, place: Iterable[int | str] = ()) -> str:
        """``conf.yaml, line 3`` of the innermost part of ``place`` that is in the file."""
        known: Place = ()
        for part in place:
            if (*known, part) in self.lines:
                known = (*known, part)
        return f"{self.path}, line {self.lines[known]}" if known else str(self.path)


class _DuplicateKey(ConstructorError):
    pass


class _UniqueKeys(SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise _DuplicateKey(None, None, f"{key.value!r} is there twice", key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """Numbers, strings, lists and dictionaries; YAMLError: other objects, no YAML, or a duplicate key."""
    return _parse(text)[0]


def _parse(text: str) -> tuple[Any, dict[Place, int]]:
    loader = _UniqueKeys(text)
    node = loader.get_single_node()
    return (None, {}) if node is None else (loader.construct_document(node), dict(_lines(node, ())))


def _lines(node: yaml.Node, place: Place) -> Iterable[tuple[Place, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield (*place, key.value), key.start_mark.line + 1
                yield from _lines(value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*place, index), value.start_mark.line + 1
            yield from _lines(value, (*place, index))


def read(path: Path, what: str) -> Document:
    """A user's file, which ``what`` names in errors; UserError: with file and line, what is wrong there."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        content, lines = _parse(text)
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read the {what} {path}: it is not text in UTF-8") from None
    except yaml.YAMLError as error:
        raise UserError(_not_yaml(path, text, error)) from None
    return Document(path, content, lines)


def _not_yaml(path: Path, text: str, error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{path}: not YAML: {problem}"
    lines = text.splitlines()
    number = min(mark.line, len(lines) - 1)  # what is missing at the end is missed after it
    where = f"{path}, line {number + 1}"
    if isinstance(error, _DuplicateKey):
        return f"{where}: {problem}"
    if "\t" in lines[number][: mark.column + 1]:
        problem = "indented with a tab; YAML takes spaces only"
    return f"{where}: not YAML: {problem}"
