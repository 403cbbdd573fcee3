"""What is known beside an answer: runs that do not count, and findings on the others."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from jobs.states import State
from profiling.findings import Finding, Side

FailureKind = State | Literal["excluded"]
BOTH: Side = "both"


@dataclass(frozen=True)
class Failure:
    """A run that does not count: its id, why in one line, and the state it is in."""

    point: str
    reason: str
    kind: FailureKind

    @property
    def finding(self) -> Finding:
        code = "run_excluded" if self.kind == "excluded" else "run_left_out"
        return Finding(code, run=self.point, data={"what": self.kind, "reason": self.reason})


@dataclass
class Log:
    """The runs that do not count, and findings on the others, each once."""

    failed: list[Failure] = field(default_factory=list)
    noted: dict[Finding, None] = field(default_factory=dict)
    unusable: set[Path] = field(default_factory=set)  # paths of sources that were loaded and do not count

    def add(self, finding: Finding) -> None:
        """Add a finding, once."""
        self.noted.setdefault(finding)

    def note(self, code: str, run: str | None = None, side: Side = "", **data: object) -> None:
        """Add a finding of the catalogue, once."""
        rank, configuration = data.pop("rank", None), data.pop("configuration", None)
        self.add(Finding(code, run, rank, configuration, side, data))  # type: ignore[arg-type]

    @property
    def findings(self) -> list[Finding]:
        """Of the runs that do not count, then of the others."""
        return [*(failure.finding for failure in self.failed), *self.noted]

    def leave_out(self, run: str, path: Path, reason: str) -> None:
        """From now on the run, or the table, of this path does not count."""
        if path not in self.unusable:
            self.unusable.add(path)
            self.failed.append(Failure(run, reason, "unusable"))

    def join(self, other: "Log", of_the_same: bool = False) -> None:
        """Append the log of results B to this one, of results A; what is found in both names neither.

        Args:
            of_the_same: they are the same runs, so that what failed is in both; else runs of equal names are
                two.
        """
        both = set(self.noted) & set(other.noted)
        self.noted = dict.fromkeys(
            finding if finding.side or finding in both else finding.of(side=side)
            for side, log in (("A", self), ("B", other))
            for finding in log.noted
        )
        failed_in_both = [one for one in self.failed if of_the_same and one in other.failed]
        self.failed = failed_in_both + [
            one if one.kind == "excluded" else replace(one, point=f"{side}: {one.point}")
            for side, failed in (("A", self.failed), ("B", other.failed))
            for one in failed
            if one not in failed_in_both
        ]
