"""Say what is wrong with a user's values, for any of our models: each problem in one line."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from profiling.errors import Mistakes, did_you_mean

Place = tuple[int | str, ...]

# Of pydantic's errors, by their type: what a value should be. {} are the error's context.
_SHOULD_BE = {
    "missing": "is missing",
    **dict.fromkeys(("dict_type", "model_type"), "should hold keys and values (`key: value`)"),
    "list_type": "should be a list",
    "string_type": "should be text",
    **dict.fromkeys(("bool_type", "bool_parsing"), "should be true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "should be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
    "greater_than": "should be more than {gt}",
    "greater_than_equal": "should be at least {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be at most {le}",
    "string_too_short": "should not be empty",
    "string_too_long": "should have at most {max_length} characters",
}


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
    if kind == "extra_forbidden":
        part, inner = _innermost(model, problem["loc"])
        return f"unknown {what} {name!r}{did_you_mean(inner, part.model_fields)}"
    if kind == "missing":
        return f"{name} is missing"
    if not place:
        return problem["msg"].removeprefix("Value error, ")
    part, inner = _innermost(model, problem["loc"])
    info = part.model_fields.get(inner)
    if kind == "literal_error":
        options = literal_options(info.annotation) if info else ()
        of = ".".join(map(str, place[:-1])) if given == place[-1] else name  # a key, or a value
        return f"invalid {of} {given!r}{did_you_mean(str(given), options)}"
    if kind == "string_pattern_mismatch" and info and info.description:
        return f"invalid {name} {given!r}: {info.description}"
    should_be = _SHOULD_BE.get(kind, problem["msg"].removeprefix("Value error, "))
    should_be = should_be.format(**problem.get("ctx", {})) if kind in _SHOULD_BE else should_be
    return f"invalid {name} {given!r}: {should_be}"


def literal_options(annotation: Any) -> tuple[str, ...]:
    """The values a Literal (or an optional one) admits; empty for other types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(option for part in get_args(annotation) for option in literal_options(part))


def _innermost(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[type[BaseModel], str]:
    """The model that a problem lies in, and its name there."""
    name, *others = (str(part) for part in loc if not isinstance(part, int))
    for part in others:
        annotation: Any = model.model_fields[name].annotation
        options = (one for one in (annotation, *get_args(annotation)) if isinstance(one, type))
        inner = next((one for one in options if issubclass(one, BaseModel)), None)
        if inner is None:
            break
        model, name = inner, part
    return model, name


_REGISTERED = re.compile(r"^@register_model\(.*\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


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
    wrong = sorted(set(names) - set(known)) if known else []
    see = "torchvision's classification models"
    if wrong:
        raise Mistakes(
            [f"{where(name)}: invalid model {name!r}{did_you_mean(name, known, see=see)}" for name in wrong]
        )
