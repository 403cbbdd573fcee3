"""What is said of results beside an answer: which runs do not count and why, and notes on the others."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from jobs.states import State
from profiling.traced_job import RECORDED_ONLY

OTHERS_ONLY = "kernel results cover the other ranks only"  # ends the same of a run of our own

FailureKind = State | Literal["excluded"]


@dataclass(frozen=True)
class Failure:
    """A point that does not count: its id, why in one line, and the state it is in."""

    point: str
    reason: str
    kind: FailureKind


Side = Literal["", "A", "B", "both"]
BOTH: Side = "both"


@dataclass(frozen=True)
class Note:
    """What a reader of the figures should know, in one line.

    Attributes:
        run: the id of the run that it is of, if it is of one.
        side: of two results that are compared, which it is of; ``""`` where there are no two.
    """

    run: str | None
    text: str
    side: Side = ""

    @property
    def of_side(self) -> str:
        """``A: `` before what is said of one of two results alone."""
        return f"{self.side}: " if self.side in ("A", "B") else ""

    def __str__(self) -> str:
        return f"{self.of_side}{self.run}: {self.text}" if self.run else f"{self.of_side}{self.text}"


@dataclass
class Log:
    """What is said beside an answer: the runs that do not count, and notes on the others, each once.

    Those ``of_loading`` are true of the results, whatever is asked of them, and are only counted where there
    is no room. Others came with an answer, or say that ranks are missing: figures of a part are not taken for
    those of the whole.
    """

    failed: list[Failure] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    of_loading: set[Note] = field(default_factory=set)
    unusable: set[Path] = field(default_factory=set)  # paths of sources that were loaded and do not count

    def note(self, text: str, run: str | None = None, side: Side = "") -> None:
        """Add a note, once; on a run, if its id is given; :data:`BOTH`: on two results together."""
        note = Note(run, text, side)
        if note not in self.notes:
            self.notes.append(note)

    def loaded(self) -> None:
        """From now on notes are of an answer."""
        of_a_part = (RECORDED_ONLY, OTHERS_ONLY)
        self.of_loading = {note for note in self.notes if not note.text.endswith(of_a_part)}

    def leave_out(self, run: str, path: Path, reason: str) -> None:
        """From now on the run, or the table, of this path does not count."""
        if path not in self.unusable:
            self.unusable.add(path)
            self.failed.append(Failure(run, reason, "unusable"))

    def add(self, other: "Log", of_the_same: bool = False) -> None:
        """Append the log of results B to this one, of results A: from now on a line says which it is of.

        What is noted of both stands once and names neither.

        Args:
            of_the_same: they are the same runs, so that what failed is in both; else runs of equal names are
                two.
        """
        common = set(self.notes) & set(other.notes)
        failed_in_both = [one for one in self.failed if of_the_same and one in other.failed]

        def of(note: Note, side: Side) -> Note:
            return note if note.side or note in common else replace(note, side=side)

        notes = [*(of(note, "A") for note in self.notes), *(of(note, "B") for note in other.notes)]
        self.notes = list(dict.fromkeys(notes))
        self.of_loading = {of(note, "A") for note in self.of_loading} | {
            of(note, "B") for note in other.of_loading
        }
        self.failed = failed_in_both + [
            one if one.kind == "excluded" else replace(one, point=f"{side}: {one.point}")
            for side, failed in (("A", self.failed), ("B", other.failed))
            for one in failed
            if one not in failed_in_both
        ]

    def lines(self, of_loading: bool = True) -> list[str]:
        """The notes in their order; what is said alike of several runs (of a side) once: ``6 runs: ...``.

        Args:
            of_loading: those of the results themselves, too.
        """
        alike: dict[tuple[str, str], list[Note]] = {}
        for note in self.notes:
            if note in self.of_loading and not of_loading:
                continue
            alike.setdefault((note.of_side, note.text), []).append(note)
        return [
            str(notes[0]) if len(notes) == 1 else f"{side}{len(notes)} runs: {text}"
            for (side, text), notes in alike.items()
        ]
