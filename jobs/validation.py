"""Say what is wrong with a user's values, for any of our models: each problem in one line."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from profiling.errors import Mistakes, did_you_mean

Place = tuple[int | str, ...]

_REGISTERED = re.compile(r"^@register_model\(.*\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """What is wrong, in one line, and where: keys and indices, outermost first."""

    place: Place
    text: str


def problems_of(error: ValidationError, model: type[BaseModel], what: str = "field") -> list[Problem]:
    """Everything that a pydantic error of ``model`` says, each problem once, with near misses named."""
    # A place is without pydantic's own names of a union's members.
    errors = [
        (tuple(part for part in each["loc"] if re.fullmatch(r"\w+", str(part))), each)
        for each in error.errors()
    ]
    # A value that fits no member of a union has an error for each: the innermost counts, and a wrong value
    # more than a wrong type.
    weighed = sorted(errors, key=lambda pair: (-len(pair[0]), pair[1]["type"].endswith("_type")))
    chosen: dict[Place, Any] = {}
    for place, each in weighed:
        if not any(known[: len(place)] == place for known in chosen):
            chosen[place] = each
    in_order = [place for place in dict.fromkeys(place for place, _ in errors) if place in chosen]
    return [Problem(place, _text(chosen[place], place, model, what)) for place in in_order]


def _text(problem: Mapping[str, Any], place: Place, model: type[BaseModel], what: str) -> str:
    name, given, kind = ".".join(map(str, place)), problem.get("input"), problem["type"]
    message = re.sub(r"^(Value error, |Input |String )", "", problem["msg"])
    if not place:
        return message
    # The model that the problem lies in, and the field's name there.
    inner, *others = (str(part) for part in problem["loc"] if not isinstance(part, int))
    for part in others:
        annotation: Any = model.model_fields[inner].annotation
        options = (each for each in (annotation, *get_args(annotation)) if isinstance(each, type))
        nested = next((each for each in options if issubclass(each, BaseModel)), None)
        if nested is None:
            break
        model, inner = nested, part
    info = model.model_fields.get(inner)
    if kind == "extra_forbidden":
        return f"unknown {what} {name!r}{did_you_mean(inner, model.model_fields)}"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "literal_error":
        names = literal_options(info.annotation) if info else ()
        of = ".".join(map(str, place[:-1])) if given == place[-1] else name  # a key, or a value
        return f"invalid {of} {given!r}{did_you_mean(str(given), names)}"
    if kind == "string_pattern_mismatch" and info and info.description:
        message = info.description
    if kind in ("dict_type", "model_type"):
        message = "should hold keys and values (`key: value`)"
    return f"invalid {name} {given!r}: {message}"


def literal_options(annotation: Any) -> tuple[str, ...]:
    """The values a Literal (or an optional one) admits; empty for other types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(option for part in get_args(annotation) for option in literal_options(part))


def model_names() -> list[str]:
    """The classification models of the torchvision that is here, read from its source: importing is slow."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return []
    sources = (Path(spec.origin).parent / "models").glob("*.py")
    return sorted(name for path in sources for name in _REGISTERED.findall(path.read_text(encoding="utf-8")))


def check_models(names: Iterable[str], where: Callable[[str], str]) -> None:
    """Refuse models that torchvision does not have; where it is not installed, a run finds out."""
    known = model_names()
    see = "torchvision's classification models"
    if wrong := sorted(set(names) - set(known)) if known else []:
        raise Mistakes(
            [f"{where(name)}: invalid model {name!r}{did_you_mean(name, known, see=see)}" for name in wrong]
        )
