"""Find the rank that is behind in a hanging job, from dumps of PyTorch's Flight Recorder.

    python -m profiling.flight_recorder DIR|FILE...       a run of a sweep that hung, or files of all ranks

With TORCH_FR_BUFFER_SIZE=2000 in their environment, ranks keep their last collectives. The ranks of a sweep
dump them when a run hangs; PyTorch does when NCCL times out (TORCH_NCCL_DUMP_ON_TIMEOUT=1), to files named
TORCH_FR_DUMP_TEMP_FILE plus the rank. Dumps are pickles, and are read without running code: one that
contains a class or a function is refused.
"""

import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from pydantic import BaseModel, Field, ValidationError

from profiling.arguments import Parser
from profiling.errors import EXIT_DONE, UserError, run_command
from profiling.findings import listed

SUFFIX = "_trace.pickle"  # of the files in a rank's directory: a dump of each kind of recorder


class Frame(BaseModel):
    filename: str
    line: int


class Call(BaseModel):
    """A collective as a rank has called it; from the innermost frame."""

    process_group: tuple[str, str]  # its name and description
    number: int = Field(validation_alias="collective_seq_id")
    name: str = Field(validation_alias="profiling_name")
    state: str
    retired: bool
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    frames: list[Frame] = []

    @property
    def place(self) -> str:
        """The line of the program that made the call."""
        own = [one for one in self.frames if "/torch/" not in one.filename] or self.frames
        return f" at {Path(own[0].filename).name}:{own[0].line}" if own else ""


class Dump(BaseModel):
    entries: list[Call]
    pg_config: dict[str, dict[str, str]] = {}


class _Plain(pickle._Unpickler):  # in Python: that in C fills memory up to any number that it reads
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read(path: Path) -> Dump:
    """A dump of one rank; UserError: it is none, is damaged, or holds more than plain data."""
    try:
        with path.open("rb") as file:
            return Dump.model_validate(_Plain(file).load())
    except ValidationError as error:
        why = f"wrong {'.'.join(map(str, error.errors()[0]['loc'])) or 'content'}"
    except Exception as error:  # noqa: BLE001 (whatever a damaged pickle raises)
        why = str(error) or type(error).__name__
    raise UserError(f"{path} is no dump of the Flight Recorder: {why}")


def read_all(paths: Iterable[Path]) -> dict[int, list[Dump]]:
    """The dumps of each rank, in files and in folders of files whose names end in the rank."""
    dumps = defaultdict[int, list[Dump]](list)
    for path in paths:
        files = [path]
        if path.is_dir():
            files = [*path.glob(f"rank_*/*{SUFFIX}")] or [*filter(Path.is_file, path.iterdir())]
        for file in sorted(files):
            named = file.parent.name if file.name.endswith(SUFFIX) else file.name
            if rank := re.search(r"(\d+)$", named):
                dumps[int(rank[1])].append(read(file))
    return dict(dumps)


class Wait(NamedTuple):
    """A collective that some ranks of a group wait in; ``call``: what it is, as each has called it."""

    group: str
    number: int
    calls: Mapping[str, Sequence[int]]
    behind: Mapping[str, Sequence[int]]  # ranks that did not call it, by their last call in the group

    def __str__(self) -> str:
        calls = "; ".join(f"{call}: ranks {listed(ranks)}" for call, ranks in self.calls.items())
        behind = "; ".join(f"ranks {listed(ranks)} ({last})" for last, ranks in self.behind.items())
        return f"waiting in collective {self.number} of group {self.group}, {calls}" + (
            f"; behind: {behind}" if behind else "; all are in it"
        )


def waits(dumps: Mapping[int, Sequence[Dump]]) -> list[Wait]:
    """The first open collective of each group; first those whose ranks that are behind wait nowhere."""
    members = defaultdict[str, set[int]](set)
    calls = defaultdict[tuple[str, str, str], dict[int, list[Call]]](dict)
    for rank, of_rank in dumps.items():
        for dump in of_rank:
            for group in dump.pg_config.values():
                members[group.get("name", "")].update(map(int, re.findall(r"\d+", group.get("ranks", ""))))
            for call in dump.entries:
                if not call.is_p2p:
                    group_of = (*call.process_group, call.name.partition(":")[0])
                    calls[group_of].setdefault(rank, []).append(call)
    found, waiting = list[Wait](), set[int]()
    for (name, description, _), of_group in calls.items():
        is_open = {
            rank: min(numbers)
            for rank, made in of_group.items()
            if (numbers := [one.number for one in made if not one.retired and one.state != "completed"])
        }
        if not is_open:
            continue
        number = min(is_open.values())
        waiting |= is_open.keys()
        there, behind = defaultdict(list), defaultdict(list)
        # Gloo does not record who is in a group; all are in the default one.
        for rank in sorted(members[name] or (dumps if description == "default_pg" else of_group)):
            last = max(of_group.get(rank, []), key=lambda one: one.number, default=None)
            if last is not None and last.number >= number:
                made = next((one for one in of_group[rank] if one.number == number), last)
                there[f"{made.name} {made.input_sizes}"].append(rank)
            else:
                said = f"{last.number}: {last.name}{last.place}" if last else "no call"
                behind["no dump" if rank not in dumps else said].append(rank)
        found.append(Wait(description if description != "undefined" else name, number, there, behind))
    return sorted(found, key=lambda one: any(waiting.intersection(of) for of in one.behind.values()))


def main(words: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m profiling.flight_recorder", description=__doc__)
    parser.add_argument("paths", type=Path, nargs="+", metavar="DIR|FILE", help="dumps of all ranks of a job")
    paths = parser.parse_args(words).paths
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"{missing[0]} does not exist")
    dumps = read_all(paths)
    if not dumps:
        raise UserError(f"{paths[0]} holds no dump of a rank (files whose names end in the rank)")
    print(f"dumps of ranks {listed(dumps)}")
    for line in [str(one) for one in waits(dumps)] or ["no collective is open"]:
        print(line)
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
