"""Which numbers of ranks are to be predicted?"""

import re
from collections.abc import Iterable, Sequence

from analysis.prediction.untold import Reason
from profiling.errors import UserError
from profiling.wording import in_a_row

# A prediction over more than this many times the measured ranks is guessing.
FARTHEST = 16


def wanted_ranks(text: str, largest: Iterable[int]) -> list[int]:
    """The numbers of ranks to predict, in rising order.

    Args:
        text: as the flag ``--ranks`` has them; empty: twice and four times what each configuration was
            measured on at most.
        largest: the numbers of ranks that configurations were measured on at most.

    Raises:
        UserError: none can be predicted, of no configuration.
    """
    measured = sorted(set(largest)) or [1]
    if not text:
        return sorted({times * count for count in measured for times in (2, 4)})
    wanted = _numbers(text)
    if wanted[-1] <= measured[0]:
        raise UserError(
            f"--ranks: {text}: larger numbers of ranks were measured; give more than {measured[-1]}"
        )
    if wanted[0] > FARTHEST * measured[-1]:
        raise UserError(
            f"--ranks: {_too_far(wanted, measured[-1])}: give at most {FARTHEST * measured[-1]}, or measure "
            "more ranks first"
        )
    return wanted


def within_reach(of: str, measured: int, wanted: Sequence[int]) -> tuple[list[int], list[Reason]]:
    """The numbers of ranks on which a configuration can be predicted, and why it cannot be on others.

    Args:
        of: what the configuration is called.
        measured: the number of ranks that it was measured on at most.
    """
    near = [count for count in wanted if measured < count <= FARTHEST * measured]
    far = [count for count in wanted if count > FARTHEST * measured]
    return near, [Reason(of, f"{_too_far(far, measured)}: measure more ranks first")] if far else []


def _too_far(ranks: Sequence[int], measured: int) -> str:
    return f"{in_a_row(ranks)} ranks are more than {FARTHEST} times the measured {measured}"


def _numbers(text: str) -> list[int]:
    """The numbers of a list, in rising order."""
    values = [value.strip() for value in text.split(",")]
    if all(re.fullmatch("[0-9]{1,9}", value) and int(value) > 0 for value in values):
        return sorted(set(map(int, values)))
    meant = [number for number in re.findall("[0-9]{1,9}", text) if int(number) > 0]
    near = f"; did you mean {','.join(meant)}?" if meant else ""
    raise UserError(f"--ranks: invalid list {text!r}; expected e.g. 8,16,32{near}")
