"""The critical path where a CPU computes: operators, and the collectives that they waited for."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.measures.critical_path import Group
from analysis.measures.waits import Recorded, activities_of
from profiling.schemas import CLASSES
from tests.analysis.test_critical_path import parts_of, recording
from tests.profiling.traces import Trace

GEMM, COMMUNICATION = (CLASSES.index(name) for name in ("gemm", "communication"))
PAUSE = 10  # before each operator
MANY = 200  # operators before all, so that other pauses are not the usual ones


@dataclass(frozen=True)
class Stretch:
    """A collective, operators meanwhile, and one that waits for it; or the host does something else.

    Attributes:
        lasts: the collective; where nobody waits for it, how much longer than the operators meanwhile.
        meanwhile: what these operators take.
        wakes: from its end to the operator that waited.
        late: how much later its end is recorded than that, in percent of the gap; then it wakes at once.
        pauses: nobody waits for it, and the host does something else for as long.
    """

    lasts: int
    meanwhile: tuple[int, ...]
    wakes: int
    late: int
    pauses: int | None


stretches = st.lists(
    st.builds(
        Stretch,
        st.integers(1, 3000),
        st.lists(st.integers(1, 300), max_size=3).map(tuple),
        st.integers(0, PAUSE - 1),
        st.integers(0, 10),
        st.none() | st.integers(100, 2000),
    ),
    min_size=1,
    max_size=4,
)


@dataclass
class Program:
    """What ran: of each operator and collective its class, start, recorded end and thread."""

    free: bool  # collectives take no time
    at: int = 0
    waited: int = 0  # time in which what is waited for next is a collective's end
    ran: list[tuple[int, int, int, int]] = field(default_factory=list)

    def operator(self, lasts: int, begins: int = 0) -> None:
        begin = max(self.at + PAUSE, begins)
        self.at = begin + lasts
        self.ran.append((GEMM, begin, self.at, 1))

    def does(self, stretch: Stretch) -> None:
        begun, thread = self.at + 1, len(self.ran) + 2
        for lasts in stretch.meanwhile:
            self.operator(lasts)
        if stretch.pauses is not None:
            self._passes(stretch, stretch.pauses, begun, thread)
            return
        done = begun if self.free else begun + stretch.lasts
        before, waits = self.at, done > self.at + PAUSE
        self.operator(50, done + (stretch.wakes if waits and not stretch.late else 0))
        if waits:
            self.waited += done - begun
            done += stretch.late * (self.at - 50 - before) // 100
        self.ran.append((COMMUNICATION, begun, done, thread))

    def _passes(self, stretch: Stretch, pauses: int, begun: int, thread: int) -> None:
        """The host does something else meanwhile, and then computes until the collective has long ended."""
        self.operator(50, self.at + pauses)
        longer = pauses // 10 + 1 + stretch.lasts
        done = self.at - 50 + longer
        self.ran.append((COMMUNICATION, begun, begun if self.free else done, thread))
        for _ in range(3 + longer // 50):
            self.operator(50)


def run(of: list[Stretch], free: bool = False) -> Program:
    program = Program(free)
    for _ in range(MANY):
        program.operator(5)
    for one in of:
        program.does(one)
    return program


def recorded(program: Program) -> Recorded:
    """What a profiler would say of it."""
    kind, start, end, thread = np.array(sorted(program.ran, key=lambda one: one[1]), np.int64).T
    unknown = dict.fromkeys(("device", "launch_ns", "launch_end_ns", "launch_thread"), -1)
    waits = np.zeros((0, 2), np.int64)
    return recording(0, kind, start, end, (0, program.at), waits, 1, stream=thread, **unknown)


@given(stretches)
def test_without_collectives_a_program_takes_what_it_takes_without_them_however_late_their_ends_are(of):
    program = run(of)
    (path,) = Group([recorded(program)]).paths()
    assert path.pieces["duration_ns"].sum() == program.at
    assert path.pieces.groupby("part")["duration_ns"].sum().get("collectives", 0) == program.waited
    assert path.step["collectives"] == run(of, free=True).at


# Nothing but collectives runs from 3000 to 5000 ns and from 5010 to 5110: when they ran, and when they ended.
ENDS = {
    "a tenth of the gap later": ([(3001, 5200)], [5000]),
    "still later": ([(3001, 5201)], [5201]),
    "ran for half of the gap": ([(4000, 5050)], [5000]),
    "ran for less": ([(4001, 5050)], [5050]),
    "one ended in the gap and nearer": ([(3001, 4960), (3001, 5060)], [4960, 5060]),
    "one ended in the gap, not so near": ([(3001, 4930), (3001, 5060)], [4930, 5000]),
    "the nearest of two": ([(3001, 5050), (3001, 5020)], [5050, 5000]),
    "late after both gaps": ([(3001, 5115)], [5000]),
    "one that was late ends nearer to the next gap": ([(3001, 5105), (5011, 5117)], [5000, 5110]),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_was_waited_for_ended_with_the_gap(case):
    calls, ended = ENDS[case]
    program = run([])
    program.operator(10, 5000)
    program.operator(10, 5110)
    program.ran += [(COMMUNICATION, *ran, 2 + thread) for thread, ran in enumerate(calls)]
    found = activities_of(recorded(program))
    talks = np.flatnonzero(found.kernel_class == COMMUNICATION)
    assert found.end_ns[talks[np.argsort(found.chain[talks])]].tolist() == ended


@pytest.mark.parametrize(
    ("ended", "collectives_ms", "host_ms"),
    [(9.0, 6.0, None), (9.01, 6.01, None), (9.6, 6.01, None), (9.7, None, 29 * 0.005 + 6.015 + 0.1)],
)
def test_the_path_is_the_operators_and_the_collective_they_waited_for(
    ended, collectives_ms, host_ms, tmp_path
):
    """Only a collective runs from 3 to 9.01 ms; what began long before it ended did not wait for it."""
    trace = Trace(distributedInfo={"rank": 0, "world_size": 2})
    for step in range(3):
        at = 10_000.0 * step
        trace.range(f"ProfilerStep#{step}", at, at + 10_000)
        for place in range(30):
            trace.host("aten::mm", at + 100 * place, at + 100 * place + 95)
        trace.range("gloo:all_reduce", at + 3000, at + 1000 * ended, thread=2)
        trace.host("aten::_foreach_add_", at + 9010, at + 9900)
    of = parts_of(tmp_path, trace)
    assert of["gemm"]["path_ms"] == pytest.approx(30 * 0.095)
    assert ("collectives" in of) == (collectives_ms is not None)
    if collectives_ms is not None:
        assert of["collectives"]["path_ms"] == pytest.approx(collectives_ms)
        assert of["collectives"]["saved_ms"] == pytest.approx(collectives_ms, abs=0.05)  # but a usual gap
    else:
        assert of["host"]["path_ms"] == pytest.approx(host_ms)
