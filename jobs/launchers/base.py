"""What does every launcher offer?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jobs.run import Run


@dataclass(frozen=True)
class Process:
    """A process to start: its arguments and what is added to the environment."""

    argv: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Launcher(Protocol):
    """A launcher starts nothing: it gives argument lists and environments, which jobs.processes starts."""

    @property
    def name(self) -> str: ...

    def cannot(self, run: Run) -> str | None:
        """Why this launcher cannot run ``run`` here, in one line; None if it can."""

    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        """The processes that run ``command`` on every rank of ``run``; ``directory`` is the run's own."""
