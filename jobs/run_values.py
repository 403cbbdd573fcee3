"""How is a value of a run's field written as text (in flags, ids, files), and what is wrong with one?"""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from jobs.run import Run
from jobs.validation import literal_options, problems_of
from profiling.errors import UserError, did_you_mean


def as_text(value: Any) -> str:
    """A value as ids and flags write it; the inverse of :func:`parse_value`."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def parse_value(name: str, text: str) -> Any:
    """``text`` (a flag's value, a part of an id) as a value of the type of Run's field ``name``.

    Raises:
        UserError: no such field, or no value of its type.
    """
    if name not in Run.model_fields:
        raise UserError(f"unknown field {name!r}{did_you_mean(name, Run.model_fields)}")
    annotation: Any = Run.model_fields[name].annotation
    if text == "" and type(None) in get_args(annotation):
        return None
    try:
        return _adapter(name).validate_strings(text)
    except ValidationError:
        options = literal_options(annotation)
        hint = did_you_mean(text, options) if options else f": {Run.model_fields[name].description}"
        raise UserError(f"invalid {name} {text!r}{hint}") from None


@cache
def _adapter(name: str) -> TypeAdapter:
    annotation: Any = Run.model_fields[name].annotation
    return TypeAdapter(annotation)


def wrong_values(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with values of fields, each taken by itself: a line each."""
    try:
        Run.model_validate(dict(values))
    except ValidationError as error:
        # Whether values go together shows only where all of a run's are known.
        return [problem.text for problem in problems_of(error, Run) if problem.place]
    return []
