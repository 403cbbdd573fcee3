"""The decorator for measures, and the command line of a measure.

A measure is a function of a study that returns an :class:`~analysis.display.output.Answer`: a DataFrame,
its columns, and how tables show them; it raises UserError where the study cannot answer. :func:`measure`
marks it, :class:`Command` gives it a command line. ``--help``, ``--columns``, CSV, JSON, Parquet, the
notebook's method and docs/columns.md are derived from these.
"""

import argparse
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.display import output
from analysis.display.output import Answer
from analysis.frames.load import load, newest_sweep
from analysis.frames.study import Study
from jobs.run_fields import parse_only
from profiling.errors import run_command


@dataclass(frozen=True, eq=False)
class Measure:
    """A function of a study and the flags of its command, with the columns of its answers."""

    function: Callable[..., Answer]
    columns: output.Columns

    def __call__(self, study: Any, *options: Any, **named: Any) -> Answer:
        return self.function(study, *options, **named)


def measure(columns: output.Columns) -> Callable[[Callable[..., Answer]], Measure]:
    """Make a function of a study a measure; ``columns``: of all its answers."""
    return lambda function: Measure(function, columns)


class Flag:
    """A flag of a command: an argument of its measure or, if ``of_study``, of what is loaded.

    ``read``: the argument from the flag's value and the study; None: the value.
    """

    def __init__(
        self, name: str, read: Callable[[Any, Study], Any] | None = None, of_study: bool = False,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.name, self.settings, self.read, self.of_study = name, settings, read, of_study
        self.argument = name.lstrip("-").replace("-", "_")


flag = Flag


def levels(*choices: str) -> Flag:
    """``--by LEVEL,...``: further keys of the rows."""
    return flag(
        "--by", lambda text, _: output.parse_list(text, choices, "--by: unknown level"),
        default="", metavar="LEVEL,...", help=f"{', '.join(choices)} [one row per run]",
    )  # fmt: skip


def fields(*others: str, default: str = "every configuration") -> Flag:
    """``--group-by FIELD,...``: fields of a run, factors of a program's own, or ``others``."""
    return flag(
        "--group-by", lambda text, study: output.parse_fields(text, others, own=study.own_factors),
        metavar="FIELD,...", help=f"fields of a run [{default}]",
    )  # fmt: skip


def top(what: str, default: int | None = None) -> Flag:
    """``--top N``: so many rows."""
    return flag("--top", type=at_least(1, int), default=default, metavar="N", help=f"number of {what}")


SCALING = flag(
    "--scaling", choices=("weak", "strong"),
    help="weak: fixed per-GPU batch size; strong: fixed global batch size [the kind for which more "
    "configurations have a baseline]",
)  # fmt: skip
RANKS = flag(
    "--ranks", default="", metavar="P,...",
    help="world sizes to predict [twice and four times the largest of each configuration]",
)  # fmt: skip


def at_least(least: float, kind: type = float) -> Callable[[str], Any]:
    """The type of a flag that is a number from ``least`` on."""

    def number(text: str) -> Any:
        if not least <= (value := kind(text)) < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least:g} on")
        return value

    return number


def size(text: str) -> float:
    """The number in ``1.28e6x90``: samples, times epochs."""
    return math.prod(at_least(1)(factor) for factor in text.split("x"))


def hours(text: str) -> float:
    """The number in ``24h`` or ``24``."""
    return float(at_least(0)(text.removesuffix("h")))


# The flags of a plan, which the report takes, too.
PLAN: dict[str, dict[str, Any]] = {
    "--images": {"type": size, "metavar": "N[xEPOCHS]", "help": "images of the training"},
    "--tokens": {"type": size, "metavar": "N[xEPOCHS]", "help": "tokens of the training"},
    "--within": {"type": hours, "metavar": "HOURS", "help": "maximum duration [unlimited]"},
}


def given_plan(arguments: argparse.Namespace) -> dict[str, float]:
    """Those of :data:`PLAN` that were given, as arguments of :func:`analysis.prediction.plan.plan`."""
    flags = {name: getattr(arguments, name) for name in ("images", "tokens", "within")}
    return {name: value for name, value in flags.items() if value is not None}


class Command:
    """The ``main`` of a command: called with its words, it answers and returns the exit code.

    Where its module is the program that runs (``python -m``), it runs at once, and the program ends.

    ``load``: the study from the arguments, or what else the measure is of; ``after``: what else is done with
    the answer, before it is written; ``newest``: without a folder, the newest sweep is answered for;
    ``module``: of the measure, by default that of its name in ``analysis.measures``. It is imported when it
    has to answer: the help of a command needs no pandas.
    """

    def __init__(
        self, module_name: str, name: str, doc: str | None, *flags: Flag,
        load: Callable[[argparse.Namespace], Any] = lambda given: load(given.path, given.peaks),
        after: Callable[[Answer, argparse.Namespace], None] = lambda *_: None,
        module: str = "", newest: bool = False,
    ) -> None:  # fmt: skip
        self._name, self._doc, self._flags, self._load, self._after = name, doc, flags, load, after
        self._module, self._newest = module or f"analysis.measures.{name}", newest
        if module_name == "__main__":
            run_command(self)

    @cached_property
    def measure(self) -> Measure:
        return getattr(importlib.import_module(self._module), self._name)  # type: ignore[no-any-return]

    def answer(self, words: Sequence[str] | None = None) -> tuple[Answer, Study, argparse.Namespace]:
        """The answer to the words of a command line, what it is of, and the words as arguments."""
        optional = "the newest sweep in results/" if self._newest else ""
        parser = output.parser(f"analysis.{self._name}", self._doc, lambda: self.measure.columns, optional)
        for one in self._flags:
            parser.add_argument(one.name, **one.settings)
        arguments = parser.parse_args(words)
        arguments.path = arguments.path or newest_sweep()
        import pandas as pd

        pd.set_option("mode.string_storage", "python")  # of short tables Arrow's strings take a tenth longer
        study = self._load(arguments)
        options = {}
        for one in self._flags:
            if not one.of_study:
                given = getattr(arguments, one.argument)
                options[one.argument] = one.read(given, study) if one.read else given
        given = [each for of in (study, *options.values()) for each in (of if isinstance(of, list) else [of])]
        studies = [each for each in given if isinstance(each, Study)]
        if arguments.only:
            only = parse_only(arguments.only, {name for each in studies for name in each.own_factors})
            for each in studies or [Study(arguments.path)]:
                each.choose(only)
        return self.measure(study, **options), study, arguments

    def __call__(self, words: Sequence[str] | None = None) -> int:
        answer, study, arguments = self.answer(words)
        self._after(answer, arguments)
        return output.emit(answer, study, arguments)
