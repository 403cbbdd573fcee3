"""Which of two predictions is better founded, and why?

The simulation replays a traced step, so it knows what a rate does not say: how much of the exchange the
backward pass hid on the measured ranks, and which ranks are late. It is believed unless its step, or what it
said of measured points, is further off than the curve's. Where that is by little, neither is preferred.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from analysis.display.metrics import Rows, telling
from analysis.display.naming import in_words
from analysis.display.numbers import digits, span
from analysis.prediction.configurations import CONFIGURATION
from analysis.prediction.extrapolate import CURVE
from analysis.prediction.simulate_rows import SIMULATION
from jobs.run_fields import own_names

# A simulated step that is further off the measured one explains it less well than none, percent.
MOST_FIT_ERROR_PCT = 10.0
# A largest error of back-tests that is by less above the other method's than this is alike, percent.
ALIKE_PCT = 1.0
# Less of the exchange than this share of a batch explains no difference of the two.
WORTH_SAYING = 0.01
_AND = " and for "

Kind = Literal["step", "backtests", "overlap", "replay"]  # of a reason


def judged(rows: Rows) -> Rows:
    """The rows with ``believed``: that no other method of the configuration is the better founded one."""
    return [
        row | {"believed": _method(alike) in ("", row["predicted_by"])} for row, alike in _with_alike(rows)
    ]


def sentences(rows: Rows) -> list[str]:
    """A line for each kind of reason why one of two methods is to be believed, and of which configurations,
    where there are several; none where there is one method only.
    """
    reasons: dict[tuple[str, Kind], dict[str, Rows]] = {}
    names = telling(rows, _names(rows)) if rows else []
    called = {in_words(row, names) for row in rows}
    for row, alike in _with_alike(rows):
        if row["what_if"] or row["backtest"] or _ahead(alike) != {CURVE, SIMULATION}:
            continue
        reasons.setdefault((_method(alike), _kind(alike)), {})[in_words(row, names)] = alike
    return [
        f"{f'Prefer the {method}' if method else 'No method is preferred'}"
        f"{f' for {_AND.join(of)}' if len(of) < len(called) else ''}: {_WHY[kind](list(of.values()))}."
        for (method, kind), of in reasons.items()
    ]


def _with_alike(rows: Rows) -> Iterator[tuple[dict[str, Any], Rows]]:
    """Each row with all rows of its configuration."""
    names = _names(rows) if rows else []
    keys = [tuple([str(row.get(name)) for name in names]) for row in rows]
    by_key: dict[tuple[str, ...], Rows] = {}
    for key, row in zip(keys, rows, strict=True):
        by_key.setdefault(key, []).append(row)
    return ((row, by_key[key]) for key, row in zip(keys, rows, strict=True))


def _names(rows: Rows) -> Sequence[str]:
    own = own_names(*rows)
    # Of strong scaling the batch of all ranks tells configurations apart: that of a rank is of one point.
    strong = {"batch": "global_batch"} if rows[0].get("scaling") == "strong" else {}
    known = [strong.get(name, name) for name in CONFIGURATION if name in rows[0]]
    return [*known, *own] or ["measured_on"]


def _ahead(alike: Rows) -> set[str]:
    """The methods that predict more ranks: neither back-tests nor changes on the measured ranks count."""
    return {row["predicted_by"] for row in alike if not row["backtest"] and not row["what_if"]}


def _method(alike: Rows) -> str:
    """The better founded method of those that predict the configuration; empty: none predicts more ranks, or
    back-tests are for the curve by too little.
    """
    ahead = _ahead(alike)
    if ahead != {CURVE, SIMULATION}:
        return next(iter(ahead), "")
    if _fit_error_pct(alike) > MOST_FIT_ERROR_PCT:
        return CURVE
    worst = {method: _worst_pct(alike, method) for method in (CURVE, SIMULATION)}
    if worst[SIMULATION] > worst[CURVE] + MOST_FIT_ERROR_PCT:
        return CURVE
    return "" if worst[SIMULATION] > worst[CURVE] + ALIKE_PCT else SIMULATION


def _worst_pct(alike: Rows, method: str) -> float:
    """The largest error of a back-test of points that both methods predicted; 0 if there is none."""
    both = _tested_by_both(alike)
    return max((abs(row["error_pct"]) for row in both if row["predicted_by"] == method), default=0.0)


def _tested_by_both(alike: Rows) -> Rows:
    """The back-tests of points that both methods predicted."""
    tested = [row for row in alike if row["backtest"]]
    ranks = [
        {row["world_size"] for row in tested if row["predicted_by"] == method}
        for method in (CURVE, SIMULATION)
    ]
    return [row for row in tested if row["world_size"] in set.intersection(*ranks)]


def _simulated(alike: Rows) -> Rows:
    """The simulation of more ranks; back-tests replay the traces of fewer."""
    return [
        row
        for row in alike
        if row["predicted_by"] == SIMULATION and not row["what_if"] and not row["backtest"]
    ]


def _fit_error_pct(alike: Rows) -> float:
    """How far the step that predicts more ranks is off the measured one."""
    return max(abs(row["fit_error_pct"]) for row in _simulated(alike))


def _hidden_ms(alike: Rows) -> float:
    """How much of the exchange the backward pass hides on the measured ranks."""
    return max(float(np.nan_to_num(row["measured_overlapped_ms"] or 0.0)) for row in _simulated(alike))


# --- the reason, of a configuration or of several ---------------------------------------------------------


def _kind(alike: Rows) -> Kind:
    method = _method(alike)
    if method == CURVE and _fit_error_pct(alike) > MOST_FIT_ERROR_PCT:
        return "step"
    if method != SIMULATION:
        return "backtests"
    least = WORTH_SAYING * min(row["step_ms"] for row in _simulated(alike))
    return "overlap" if _hidden_ms(alike) > least else "replay"


def _by_step(several: Sequence[Rows]) -> str:
    off = _ends([_fit_error_pct(alike) for alike in several], "{:.0f}".format)
    return f"the simulated step differs from the measured one by {off} %"


def _by_backtests(several: Sequence[Rows]) -> str:
    counts = [len(_tested_by_both(alike)) // 2 for alike in several]
    simulation, curve = (
        max(_worst_pct(alike, method) for alike in several) for method in (SIMULATION, CURVE)
    )
    close = "" if _method(several[0]) else f", less than {MOST_FIT_ERROR_PCT:g} points apart"
    return (
        f"the largest backtest errors ({_ends(counts, str)} per configuration) are {simulation:.1f} % "
        f"(simulation) and {curve:.1f} % (curve){close}"
    )


def _by_overlap(several: Sequence[Rows]) -> str:
    hidden = _ends([_hidden_ms(alike) for alike in several], lambda ms: digits(ms, 3))
    return (
        f"on the measured ranks the backward pass overlaps {hidden} ms of the gradient exchange, which a "
        "curve through throughputs cannot represent"
    )


def _by_replay(several: Sequence[Rows]) -> str:
    return "it replays profiled allreduces; the curve only fits throughputs"


def _ends(values: Sequence[Any], printed: Callable[[Any], str]) -> str:
    return span(printed(min(values)), printed(max(values)))


_WHY: Mapping[Kind, Callable[[Sequence[Rows]], str]] = {
    "step": _by_step, "backtests": _by_backtests, "overlap": _by_overlap, "replay": _by_replay,
}  # fmt: skip
