"""Which part of a step takes longest, and in which configuration? A sentence, of stages and of parts."""

from collections.abc import Mapping
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import digits, label_of
from analysis.report.sentences import number
from analysis.report.views import varied
from profiling.wording import how_many


def longest(
    rows: Rows, names: Mapping[str, str], what: str, per: str = "per step", several: bool = False
) -> str:
    """The longest part of a step: of all jobs of traces, or of the runs on the most ranks; "": none is known.

    Args:
        names: what each part is called -> its column.
        several: there are several jobs, of traces, so that it is said which one's it is.
    """
    jobs = any(row.get("job") for row in rows)
    # Jobs are unlike each other: more ranks make none of them matter more.
    of_size: dict[int, list[tuple[float, dict[str, float], Mapping[str, Any]]]] = {}
    for one in rows:
        ranks = 1 if jobs else (one.get("nodes") or 1) * (one.get("gpus_per_node") or 1)
        if known := {name: ms for name, column in names.items() if (ms := number(one, column)) > 0}:
            of_size.setdefault(ranks, []).append((max(known.values()), known, one))
    if not of_size:
        return ""
    largest = of_size[max(of_size)]
    ms, known, row = max(largest, key=lambda one: one[0])
    share = f"{100 * ms / sum(known.values()):.0f} %"
    if jobs:
        whose = f", {row['job']}" if several else ""
    else:
        name = label_of(row, varied(one for _, _, one in largest))
        whose = f"; {name}" if name else ""
    where = f" on {how_many(max(of_size), 'rank')}" if len(of_size) > 1 else ""
    part = max(known, key=known.__getitem__)
    return f"Longest {what}{where}: {part}, {digits(ms, 3)} ms {per} ({share} of all {what}s{whose})."
