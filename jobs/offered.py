"""What does the Tab key offer for --only: the factors of the sweep file on the line, and their values."""

from argparse import Action, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.run_values import as_text
from jobs.sweep_file import read_sweep
from profiling.arguments import in_list
from profiling.errors import UserError


def offer_only(action: Action) -> None:
    """Let the shell offer ``FIELD=VALUE,VALUE`` of the sweep file that stands before it."""

    def offered(prefix: str, parsed_args: Namespace, **_: Any) -> list[str]:
        config = getattr(parsed_args, "config", None)
        try:
            return pairs(prefix, read_sweep(config).run) if isinstance(config, Path) else []
        except UserError:
            return []

    action.completer = offered  # type: ignore[attr-defined]


def pairs(prefix: str, run: Mapping[str, Any]) -> list[str]:
    """What ``prefix`` may become: ``loader=``, of ``loader=`` ``loader=synthetic``.

    Args:
        run: of a sweep file: a field that has several values is a factor.
    """
    factors: dict[str, Sequence] = {name: values for name, values in run.items() if isinstance(values, list)}
    name, equals, text = prefix.partition("=")
    if not equals:
        return [f"{factor}=" for factor in factors]
    values = in_list(text.rpartition(",")[0], map(as_text, factors.get(name, ())))
    return [f"{name}={value}" for value in values]
