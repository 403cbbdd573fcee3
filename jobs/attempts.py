"""How often has a run failed in this job, how often has a node, and is another try due?

A job of the batch system that is started again (its time was up, a node died) must not repeat for ever what
ended it: what is known is kept in the sweep's directory, in a file of the job's own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from jobs import store
from jobs.failures import BLAMES_NODE, NODE_FAILURES, RETRIES, Kind
from jobs.owner import Owner

After = Literal["resume", "others first", "end"]


class Attempts(BaseModel):
    """Failures so far, by run and kind, and by node; and where the job's time ended.

    Attributes:
        cut: what the job was at when the time of its last start was up.
        last: configurations that were cut twice in the same place: the others come first.
        done_since: how many runs have been finished since the latest of these.
    """

    runs: dict[str, dict[str, int]] = {}
    nodes: dict[str, int] = {}
    cut: str = ""
    last: list[str] = []
    done_since: int = 0

    def failed(self, run: str, kind: Kind, nodes: Sequence[str] = ()) -> None:
        """Note a failure of a run."""
        counts = self.runs.setdefault(run, {})
        counts[kind] = counts.get(kind, 0) + 1
        if kind in BLAMES_NODE:
            for node in nodes:
                self.nodes[node] = self.nodes.get(node, 0) + 1

    def again(self, run: str, kind: Kind, limit: int) -> bool:
        """Whether a run that has just failed is to be tried again; ``limit``: the most tries again."""
        return self.runs.get(run, {}).get(kind, 0) <= min(limit, RETRIES.get(kind, 0))

    def cut_at(self, what: str, done: int) -> bool:
        """Note what this start was at when its time was up; whether it came no further than the last one.

        Args:
            what: a run, or what comes before the first; "" for nothing.
            done: how many runs this start has finished.
        """
        as_before = bool(what) and what == self.cut and not done
        self.cut = what
        return as_before

    def after_cut(self, run: str, configuration: str, others: bool, done: int) -> After:
        """What a job does whose time is up while it is at a run.

        A run that does not fit into the whole of a start must not keep shorter ones from being done. But a
        job into which two do not fit, with none finished in between, is too short altogether.

        Args:
            others: whether runs of configurations wait that are not :attr:`last`.
            done: how many runs this start has finished.
        """
        again = self.cut_at(run, done)
        self.done_since += done
        in_vain = bool(self.last) and not self.done_since
        if not (again or in_vain or (configuration in self.last and not done)):
            return "resume"
        if in_vain or not others or configuration in self.last:
            return "end"
        self.last.append(configuration)
        self.cut, self.done_since = "", 0
        return "others first"

    def left_out(self) -> frozenset[str]:
        """The nodes that have failed too often."""
        return frozenset(node for node, count in self.nodes.items() if count >= NODE_FAILURES)


def _path(sweep: Path, me: Owner) -> Path:
    return sweep / f".job-{me.job}.json"


def read_attempts(sweep: Path, me: Owner) -> Attempts:
    """What is known from earlier starts of this job; nothing in a new job."""
    path = _path(sweep, me)
    return store.read_record(path, Attempts) if me.job and me.restarts and path.exists() else Attempts()


def save_attempts(sweep: Path, me: Owner, attempts: Attempts) -> None:
    """Keep what is known for this job's next start."""
    if me.job:
        store.write_record(_path(sweep, me), attempts)


def forget_attempts(sweep: Path, me: Owner) -> None:
    """The sweep has ended: the next one begins anew."""
    _path(sweep, me).unlink(missing_ok=True)
