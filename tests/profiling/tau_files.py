"""Profiles of TAU made by code, in all of its formats."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape


@dataclass
class Thread:
    """What one thread did: timers (calls, subcalls, exclusive, inclusive in us) and events.

    An event is its count, maximum, minimum, mean and sum of squares.
    """

    rank: int
    thread: int
    timers: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)
    events: dict[str, tuple[float, float, float, float, float]] = field(default_factory=dict)


def write_text(folder: Path, threads: list[Thread], metric: str = "TIME") -> Path:
    """A file a thread."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in threads:
        lines = [f"{len(one.timers)} templated_functions_MULTI_{metric}"]
        lines.append("# Name Calls Subrs Excl Incl ProfileCalls # <metadata></metadata>")
        for name, (calls, subcalls, exclusive, inclusive) in one.timers.items():
            lines.append(f'"{name} " {calls!r} {subcalls!r} {exclusive!r} {inclusive!r} 0 GROUP="PYTORCH" ')
        lines += ["0 aggregates", f"{len(one.events)} userevents"]
        lines.append("# eventname numevents max min mean sumsqr")
        for name, row in one.events.items():
            lines.append(f'"{name}" {" ".join(map(repr, row))}')
        (folder / f"profile.{one.rank}.0.{one.thread}").write_text("\n".join(lines) + "\n")
    return folder


def _definitions(whose: str, timers: list[str], events: list[str]) -> str:
    lines = [f'<definitions thread="{whose}">', '<metric id="0"><name>TIME</name>', "<units>unknown</units>"]
    lines.append("</metric>")
    for number, name in enumerate(timers):
        # Names with brackets stand in CDATA, others are escaped.
        text = f"<![CDATA[{name}]]>" if "<" in name and "]]>" not in name else escape(name)
        lines.append(f'<event id="{number}"><name>{text} </name><group>PYTORCH</group></event>')
    for number, name in enumerate(events):
        lines.append(f'<userevent id="{number}"><name>{escape(name)}</name></userevent>')
    return "\n".join([*lines, "</definitions>", ""])


def _profile(one: Thread, timers: list[str], events: list[str], name: str = "final", at: int = 1) -> str:
    lines = [f'<profile thread="{one.rank}.0.{one.thread}.77">', f"<name>{name}</name>"]
    lines += [f"<timestamp>{at}</timestamp>", '<interval_data metrics="0 ">']
    for timer, row in one.timers.items():
        lines.append(f"{timers.index(timer)} {' '.join(map(repr, row))} ")
    lines += ["</interval_data>", "<atomic_data>"]
    for number, event in enumerate(events):
        row = one.events.get(event, (0, 0, 0, 0, 0))
        lines.append(f"{number} {' '.join(map(repr, row))}")
    return "\n".join([*lines, "</atomic_data>", "</profile>", ""])


def write_merged(path: Path, threads: list[Thread]) -> Path:
    """All threads in one file, as TAU joins them: documents with a NUL after each rank, totals at the end."""
    timers = sorted({name for one in threads for name in one.timers})
    events = sorted({name for one in threads for name in one.events})
    documents = [f"<profile_xml>\n\n{_definitions('*', timers, events)}\n</profile_xml>\n"]
    for one in threads:
        head = (
            f'<thread id="{one.rank}.0.{one.thread}.77" node="{one.rank}" context="0" thread="{one.thread}">'
        )
        text = "<metadata>\n<attribute><name>CWD</name><value>/x</value></attribute></metadata>\n</thread>\n"
        own = _definitions(f"{one.rank}.0.{one.thread}.77", [], [])
        documents.append(
            f"<profile_xml>\n{head}\n{text}{own}{_profile(one, timers, events)}</profile_xml>\n\0"
        )
    total = '<derivedinterval_data metrics="0 ">\n0 1 1 1 1 \n</derivedinterval_data>\n'
    documents.append(f'<profile_xml>\n<derivedentity id="total">\n</derivedentity>\n{total}</profile_xml>\n')
    path.write_text("".join(documents))
    return path


def write_snapshots(folder: Path, threads: list[Thread], snapshots: int = 1) -> Path:
    """A file a thread, with so many snapshots; the last one holds all."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in threads:
        whose = f"{one.rank}.0.{one.thread}.77"
        timers, events = list(one.timers), list(one.events)
        head = f'<thread id="{whose}" node="{one.rank}" context="0" thread="{one.thread}">\n</thread>\n'
        text = f"<profile_xml>\n\n{head}"
        text += _definitions(whose, timers, events)
        for number in range(snapshots - 1):
            less = Thread(one.rank, one.thread, dict.fromkeys(timers, (1, 0, 1, 1)))
            text += _profile(less, timers, events, f"End of Batch {number}", 1_700_000_000_000_000 + number)
        text += _profile(one, timers, events, at=1_700_000_000_900_000)
        (folder / f"snapshot.{one.rank}.0.{one.thread}").write_text(text + "\n</profile_xml>\n\n")
    return folder
