"""The fields of a run by their role, and their values as text (in flags, ids, files)."""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from jobs.run import Role, Run
from jobs.validation import literal_options, problems_of
from profiling.errors import UserError, did_you_mean

ROLES: Mapping[str, Role] = {
    name: next(one for one in of.metadata if isinstance(one, Role)) for name, of in Run.model_fields.items()
}


def fields_of(*kinds: str) -> tuple[str, ...]:
    """The fields of such roles (:class:`Role`), in their order."""
    return tuple(name for name, role in ROLES.items() if role.kind in kinds)


# The fields that make the id, in its order.
ID_FIELDS = (
    "nodes", "gpus_per_node", "network", "profile", "workers", "model", "loader", "batch", "grad", "compute",
)  # fmt: skip
# Fields that are not in the id; a sweep that varies one appends it.
OUTSIDE_FIELDS = tuple(name for name in Run.model_fields if name not in (*ID_FIELDS, "factors"))

# Those in the id of a run of a program: our own training loop's would say what is not so.
PROGRAM_ID_FIELDS = ID_FIELDS[:4]
# What a run of a program has of them. These take effect whatever it is: how it is started, ended, recorded.
STARTING = (
    *fields_of("size", "length"),
    *("network", "device", "threads", "profile", "profile_mode", "profile_kernels", "attribute_from"),
)
# And these, if its command names them. All others are our own training loop's.
FILLING = ("batch", "data", "workers", "seed")
# What tells rows of configurations apart: each is of profiled and unprofiled runs.
APART = tuple(name for name in Run.model_fields if name not in ("profile", "data"))
# How an answer names a factor of a program's own: nothing that is measured is called so.
FACTOR = "factors."


def is_own(name: str) -> bool:
    """Whether a name below ``run:`` of a program, or in its id, is a factor of the user's own."""
    return name not in (*STARTING, *FILLING, "program")


def own_names(*fields: Mapping[str, Any]) -> list[str]:
    """The factors of programs' own among the fields of runs, as answers name them; each once."""
    return list(dict.fromkeys(name for one in fields for name in one if name.startswith(FACTOR)))


def is_default(name: str, value: Any) -> bool:
    """Whether a field has the value that it has where nobody sets it."""
    return name in Run.model_fields and bool(Run.model_fields[name].default == value)


def as_text(value: Any) -> str:
    """A value as ids and flags write it; the inverse of :func:`parse_value`."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def parse_value(name: str, text: str) -> Any:
    """``text`` (a flag's value, a part of an id) as a value of the type of Run's field ``name``."""
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
