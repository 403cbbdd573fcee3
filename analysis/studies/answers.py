"""Which study has which answer?

An answer's rows are the data, its parts the tables; its notes begin with the verdict, a sentence a line.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from analysis.display.terminal import Answer
from analysis.studies.result import Result
from profiling.errors import UserError, did_you_mean

# A result and the user's own peaks file.
Maker = Callable[[Result, Path | None], Answer]

QUESTIONS = {
    "capacity": "Which network fits in memory?",
    "layers": "What does a layer cost?",
    "order": "Does the order matter?",
    "gemm": "Separate or merged small matrix products?",
}


def answer(result: Result, own_peaks: Path | None = None) -> Answer:
    """What a study says; the findings of the manifest stand behind the verdict.

    Raises:
        UserError: a study that this release does not know.
    """
    body = _maker(result)(result, own_peaks)
    notes = [*body.notes, *(f"note: {finding}" for finding in result.manifest.findings)]
    return replace(body, notes=notes)


def _maker(result: Result) -> Maker:
    from analysis.studies import capacity, gemm, layers, order

    makers: dict[str, Maker] = {
        "capacity": capacity.answer,
        "layers": layers.answer,
        "order": order.answer,
        "gemm": gemm.answer,
    }
    name = result.manifest.study
    if name not in makers:
        raise UserError(f"{result.path}: unknown study {name!r}{did_you_mean(name, makers)}")
    return makers[name]
