"""Which runs of a set of results count, which do not, and what is to be said of them?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.run import Run
from jobs.store import Calibration, Manifest
from profiling.errors import UserError

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

Kind = Literal["run", "pyprof"]
FailureKind = Literal["failed", "excluded", "unreadable", "unfinished"]


@dataclass(frozen=True)
class Failure:
    """A point that does not count: its id, why in one line, and in what way."""

    point: str
    reason: str
    kind: FailureKind


@dataclass(frozen=True)
class Source:
    """A run, or a PyProf kernel table, that counts.

    Attributes:
        id: the run's id (the file's name, if that is no run id).
        fields: Run's fields that are known; of a reference file, those its name says.
        path: the run's directory, or the file.
        manifest: of a run of our own.
    """

    id: str
    kind: Kind
    fields: dict[str, Any]
    repetition: int
    exit_code: int | None
    path: Path
    manifest: Manifest | None = None

    @property
    def world_size(self) -> int | None:
        nodes, gpus = self.fields.get("nodes"), self.fields.get("gpus_per_node")
        return nodes * gpus if nodes and gpus else None

    def value(self, name: str) -> Any:
        """A field of the run, or its ``world_size``."""
        return self.world_size if name == "world_size" else self.fields.get(name)

    @property
    def gpus_per_rank(self) -> int:
        """GPUs that one process drove: one, but for DataParallel."""
        return self.manifest.run.gpus_per_rank if self.manifest else 1

    @property
    def ranks(self) -> int:
        """How many processes it had."""
        return (self.world_size or 1) // self.gpus_per_rank

    @property
    def devices(self) -> list[str]:
        """What its ranks ran on, each once; empty: nobody recorded it."""
        ranks = self.manifest.ranks if self.manifest else []
        return list(dict.fromkeys(report.device for report in ranks if report.device))

    @property
    def hosts(self) -> list[str]:
        """The node of each rank: its host's name, or where nodes share one, their number."""
        ranks = self.manifest.ranks if self.manifest else []
        names = [report.hostname for report in sorted(ranks, key=lambda report: report.rank)]
        if len(names) == self.ranks and len(set(names)) == self.fields["nodes"]:
            return names
        ranks_per_node = max(1, self.ranks // self.fields["nodes"])
        return [f"node {rank // ranks_per_node}" for rank in range(self.ranks)]

    def tables(self, name: str) -> list[Path]:
        """The paths of table ``name`` of all ranks, in their order; those that exist."""
        return sorted(self.path.glob(f"rank_*/{name}.parquet"))


@dataclass
class Study:
    """What :func:`analysis.results.load.load` found.

    Attributes:
        path: what was loaded.
        sources: the runs and PyProf tables that count.
        tau_intervals, tau_atomics: the reference's TAU tables.
        failed: the points that do not count, with reasons; analyses add those whose tables are unreadable.
        findings: what a reader of the figures should know, a line each.
        calibration: peaks measured on the machine of the sweep.
        own_peaks: a peaks file of the user's.
    """

    path: Path
    sources: list[Source] = field(default_factory=list)
    tau_intervals: list[Path] = field(default_factory=list)
    tau_atomics: list[Path] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    calibration: Calibration | None = None
    own_peaks: Path | None = None
    _answers: dict[tuple[str, str], list[tuple]] = field(default_factory=dict, repr=False)
    _kept: dict[str, dict[Any, Any]] = field(default_factory=dict, repr=False)

    def kept(self, what: str) -> dict[Any, Any]:
        """What a measure has found and keeps for the next question, by keys of its own.

        Args:
            what: names what is kept; of two measures that keep different things never the same.
        """
        return self._kept.setdefault(what, {})

    def of_kind(self, kind: Kind) -> list[Source]:
        return [source for source in self.sources if source.kind == kind]

    @property
    def runs(self) -> "pd.DataFrame":
        """One row a run or PyProf table that counts.

        Columns: ``id``, ``kind`` (run, pyprof), all fields of Run (null where a reference file does not say
        them), ``repetition``, ``exit_code``, ``world_size``, ``directory`` (or the file), ``device_name``,
        ``seconds`` (whole wall time), ``started``.
        """
        import pandas as pd

        columns = [
            "id", "kind", *Run.model_fields, "repetition", "exit_code", "world_size", "directory",
            "device_name", "seconds", "started",
        ]  # fmt: skip
        return pd.DataFrame([_row(source) for source in self.sources], columns=columns)

    @cached_property
    def connection(self) -> "duckdb.DuckDBPyConnection":
        """A DuckDB connection of this study's own."""
        import duckdb

        return duckdb.connect()

    def ask(self, sql: str, arguments: Mapping[str, Any]) -> list[tuple]:
        """The rows of a query over files; what was asked before is not read again.

        Raises:
            duckdb.Error: a file is damaged, or has other columns.
        """
        key = sql, repr(sorted(arguments.items()))
        if key not in self._answers:
            self._answers[key] = self.connection.execute(sql, dict(arguments)).fetchall()
        return list(self._answers[key])

    def fail(self, source: Source, reason: str, kind: FailureKind = "unreadable") -> None:
        """Take a run out, because of what an analysis found in it."""
        if source in self.sources:
            self.sources.remove(source)
            self.failed.append(Failure(source.id, " ".join(reason.split()), kind))

    def nothing(self, why: str) -> UserError:
        """The error of an analysis that has nothing to show, with what was wrong with a run it took out."""
        bad = [failure for failure in self.failed if failure.kind == "unreadable"]
        return UserError(f"{why}; {bad[0].point} does not count: {bad[0].reason}" if bad else why)

    def notes(self) -> list[str]:
        """The findings in their order; what is said alike of several runs once: ``6 runs: ...``."""
        ids = {source.id for source in self.sources}
        said: dict[str, list[str]] = {}
        for finding in self.findings:
            whose, colon, what = finding.partition(": ")
            said.setdefault(what if colon and whose in ids else finding, []).append(finding)
        return [of[0] if len(of) == 1 else f"{len(of)} runs: {what}" for what, of in said.items()]

    def find(self, finding: str) -> None:
        """Add a finding, once."""
        if finding not in self.findings:
            self.findings.append(finding)


def _row(source: Source) -> dict[str, Any]:
    manifest = source.manifest
    return {
        "id": source.id,
        "kind": source.kind,
        **source.fields,
        "repetition": source.repetition,
        "exit_code": source.exit_code,
        "world_size": source.world_size,
        "directory": str(source.path),
        "device_name": manifest.ranks[0].device if manifest and manifest.ranks else None,
        "seconds": manifest.seconds if manifest else None,
        "started": manifest.started if manifest else None,
    }
