"""On which numbers of ranks did all runs fail? Report and terminal begin with it.

What is said of the most ranks is else taken for what the sweep's most ranks give.
"""

from collections.abc import Sequence

from analysis.display.left_out import in_counts, missing
from analysis.results.log import Failure
from analysis.results.study import Study
from jobs import store
from jobs.run_id import parse_id
from profiling.errors import UserError
from profiling.wording import in_a_row, noun

_FAILED = ("failed", "unusable")


def no_result(study: Study) -> str:
    """``No result on 8 ranks: 4 runs failed. ...``, with the first one's reason; empty: all have a result."""
    failures = _without_result(study)
    if not failures:
        return ""
    sizes = sorted({size for size, _ in failures})
    of = [failure for _, failure in failures]
    failed = [failure for failure in of if failure.kind in _FAILED]
    of_first = " of the first failure" if len({failure.reason for failure in failed}) > 1 else ""
    reason = failed[0].reason.partition("\n")[0].rstrip(".")
    ranks = f"{in_a_row(sizes)} {noun(sizes[0] if len(sizes) == 1 else len(sizes), 'rank')}"
    return f"No result on {ranks}: {in_counts(of)}. Reason{of_first}: {reason}."


def log_of(study: Study) -> str:
    """The log of the run whose reason :func:`no_result` gives; empty where there is none."""
    failed = [failure for _, failure in _without_result(study) if failure.kind in _FAILED]
    logs = [study.path / failure.point / store.LOG for failure in failed[:1]]
    return next((str(log) for log in logs if log.is_file()), "")


def _without_result(study: Study) -> Sequence[tuple[int, Failure]]:
    """(ranks, run) of the runs that are missing where none counts and one, at least, failed."""
    there = {source.world_size for source in study.of_kind("run")}
    sized = [(size, one) for one in missing(study.failed) if (size := _ranks(one)) and size not in there]
    failed = {size for size, one in sized if one.kind in _FAILED}
    return [(size, one) for size, one in sized if size in failed]


def _ranks(failure: Failure) -> int:
    """How many ranks a run was to have; 0: its name, which is the user's, does not say it."""
    try:
        return parse_id(failure.point).run.world_size
    except UserError:
        return 0
