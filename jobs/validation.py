"""What is wrong with a user's values, in one line, for any of our models?"""

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from profiling.errors import did_you_mean


def explain(error: ValidationError, model: type[BaseModel], what: str = "field") -> str:
    """The first problem of a pydantic error of ``model``, with the near miss named.

    Args:
        what: what a name is to the user: a field of a run, a key of a file.
    """
    # A misspelled name explains a missing one, so it is told first; else the innermost of a union's problems.
    problems = error.errors()
    problem = min(problems, key=lambda each: (each["type"] != "extra_forbidden", -len(_place(each["loc"]))))
    place, given = ".".join(_place(problem["loc"])), problem.get("input")
    if problem["type"] == "extra_forbidden":
        part, name = _innermost(model, problem["loc"])
        return f"unknown {what} {place!r}{did_you_mean(name, part.model_fields)}"
    if problem["type"] == "literal_error":
        part, name = _innermost(model, problem["loc"])
        options = literal_options(part.model_fields[name].annotation)
        return f"{place} = {given!r} is not known{did_you_mean(str(given), options)}"
    message = problem["msg"].removeprefix("Value error, ")
    others = len({_place(each["loc"]) for each in problems}) - 1
    more = f" (and {others} more)" if others else ""
    return (f"{place} = {given!r}: {message}" if place else message) + more


def literal_options(annotation: Any) -> tuple[str, ...]:
    """The values a Literal (or an optional one) admits; empty for other types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(option for part in get_args(annotation) for option in literal_options(part))


def _place(loc: Sequence[int | str]) -> tuple[str, ...]:
    """Where a problem is: names and indices, without pydantic's own names of a union's members."""
    return tuple(str(part) for part in loc if re.fullmatch(r"\w+", str(part)))


def _innermost(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[type[BaseModel], str]:
    """The model that a problem lies in, and its name there."""
    name = str(loc[0])
    for part in loc[1:]:
        if isinstance(part, int):
            continue
        inner = _model_in(model.model_fields[name].annotation)
        if inner is None:
            break
        model, name = inner, str(part)
    return model, name


def _model_in(annotation: Any) -> type[BaseModel] | None:
    options = [annotation, *get_args(annotation)]
    return next((each for each in options if isinstance(each, type) and issubclass(each, BaseModel)), None)
