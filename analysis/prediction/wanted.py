"""Which numbers of ranks are to be predicted?"""

import re
from collections.abc import Sequence

from analysis.prediction.extrapolate import Series
from analysis.prediction.untold import NEITHER
from profiling.errors import UserError
from profiling.wording import in_a_row

# A prediction over more than this many times the measured ranks is guessing.
FARTHEST = 16


def wanted_ranks(text: str, series: Sequence[Series]) -> tuple[list[int], list[str]]:
    """The numbers of ranks to predict, in rising order, and in a line which are too far away.

    Args:
        text: as the flag ``--ranks`` has them; empty: twice and four times what each configuration was
            measured on at most.

    Raises:
        UserError: none can be predicted, of no configuration.
    """
    measured = sorted({one.ranks[-1] for one in series}) or [1]
    if not text:
        return sorted({times * count for count in measured for times in (2, 4)}), []
    wanted = _numbers(text)
    if wanted[-1] <= measured[0]:
        raise UserError(
            f"--ranks: {text}: larger numbers of ranks were measured; give more than {measured[-1]}"
        )
    near = [count for count in wanted if count <= FARTHEST * measured[-1]]
    far = [count for count in wanted if count not in near]
    if not far:
        return near, []
    too_far = f"{in_a_row(far)} ranks are more than {FARTHEST} times the measured {measured[-1]}"
    if not near:
        raise UserError(
            f"--ranks: {too_far}: give at most {FARTHEST * measured[-1]}, or measure more ranks first"
        )
    return near, [f"{NEITHER}: {too_far}: measure more ranks first"]


def _numbers(text: str) -> list[int]:
    """The numbers of a list, in rising order."""
    values = [value.strip() for value in text.split(",")]
    if all(re.fullmatch("[0-9]{1,9}", value) and int(value) > 0 for value in values):
        return sorted(set(map(int, values)))
    meant = [number for number in re.findall("[0-9]{1,9}", text) if int(number) > 0]
    near = f"; did you mean {','.join(meant)}?" if meant else ""
    raise UserError(f"--ranks: invalid list {text!r}; expected e.g. 8,16,32{near}")
