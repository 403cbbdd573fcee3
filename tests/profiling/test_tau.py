"""TAU's formats: all give the same tables, whichever release wrote them, and what is odd is a finding."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.findings import Finding
from profiling.schemas import SCHEMAS
from profiling.tools import recognise, tool
from tests.builders import data_of
from tests.profiling.tau_files import Thread, write_merged, write_snapshots, write_text

read = tool("tau").read


def frame(converted, name):
    assert converted.tables[name].schema == SCHEMAS[name]
    table = converted.tables[name].to_pandas()
    keys = ["rank", "thread", "function" if name == "intervals" else "event"]
    return table.astype({keys[2]: str}).sort_values(keys).reset_index(drop=True)


whole = st.integers(0, 10**9).map(float)
times = st.floats(-1e12, 1e12, allow_nan=False)
characters = st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"), exclude_characters='"\x85')
names = st.text(characters, min_size=1, max_size=30).map(lambda text: " ".join(text.split())).filter(bool)
threads_of = st.dictionaries(
    st.tuples(st.integers(0, 40), st.integers(0, 3)),
    st.tuples(
        st.dictionaries(names, st.tuples(whole, whole, times, times), max_size=6),
        st.dictionaries(
            names, st.tuples(st.integers(1, 10**6).map(float), times, times, times, times), max_size=4
        ),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25)
@given(made=threads_of)
def test_whatever_is_written_in_any_format_is_read_back_alike(made, tmp_path_factory):
    threads = [Thread(rank, thread, *rows) for (rank, thread), rows in made.items()]
    folder = tmp_path_factory.mktemp("tau")
    written = [
        write_text(folder / "text", threads), write_merged(folder / "merged.xml", threads),
        write_snapshots(folder / "snapshots", threads, snapshots=2),
    ]  # fmt: skip
    expected = sorted(
        (one.rank, one.thread, name, row[0], row[1], row[2] * 1000, row[3] * 1000)
        for one in threads
        for name, row in one.timers.items()
    )
    events = sorted(
        (one.rank, one.thread, name, row[0], row[2], row[1], row[3])
        for one in threads
        for name, row in one.events.items()
    )
    for path in written:
        converted = read(path)
        assert sorted(map(tuple, frame(converted, "intervals").values)) == expected
        found = frame(converted, "atomics")[["rank", "thread", "event", "count", "min", "max", "mean"]]
        assert sorted(map(tuple, found.values)) == events


def training(ranks=2, batches=5):
    stages = ("Forward Pass", "Backward Pass", "Model Update", "End of Batch")
    row = (float(batches), 0.0, 10.0, 10.0)
    return [
        Thread(rank, 0, dict.fromkeys(stages, row), {"Loss": (5.0, 3.0, 1.0, 2.0, 21.0)})
        for rank in range(ranks)
    ]


def test_a_truncated_profile_costs_no_other_rank(tmp_path):
    folder = write_text(tmp_path / "run", training(3))
    broken = folder / "profile.1.0.0"
    broken.write_bytes(broken.read_bytes()[:60])
    converted = read(folder)
    assert set(frame(converted, "intervals")["rank"]) == {0, 2}
    (unread,) = data_of(converted.findings, "parts_unread")
    assert "profile.1.0.0 " in unread["what"][0]
    assert data_of(converted.findings, "profiles_missing") == [{"n": 1, "of": 3, "ranks": [1]}]


def copied_text(folder):
    write_text(folder / "MULTI__TIME", training(2))
    (folder / "profile.1.0.0").write_text((folder / "MULTI__TIME/profile.1.0.0").read_text())


def copied_snapshots(folder):
    write_snapshots(folder, training(2), snapshots=3)
    write_text(folder, training(2)[1:])


def copied_xml(folder):
    folder.mkdir()
    write_merged(folder / "merged.xml", training(2))
    write_merged(folder / "merged (copy).xml", training(2)[1:])


@pytest.mark.parametrize("copied", [copied_text, copied_snapshots, copied_xml])
def test_a_thread_that_is_there_twice_counts_once_and_is_named(copied, tmp_path):
    copied(tmp_path / "run")
    converted = read(tmp_path / "run")
    intervals = frame(converted, "intervals")
    calls = intervals[intervals["function"] == "Forward Pass"].set_index("rank")["calls"]
    assert calls.to_dict() == {0: 5, 1: 5}
    assert frame(converted, "atomics").groupby("rank").size().to_dict() == {0: 1, 1: 1}
    assert data_of(converted.findings, "recorded_twice") == [{"what": "threads", "n": 1}]


def test_definitions_without_ends_take_their_length(tmp_path):
    text = '<event id="1"><name>' * 20_000
    (tmp_path / "tau.xml").write_text(f"<profile_xml><definitions>{text}</definitions></profile_xml>")
    begun = time.process_time()
    read(tmp_path / "tau.xml")
    assert time.process_time() - begun < 5


def test_a_killed_processs_snapshots_are_read_as_far_as_they_go(tmp_path):
    write_snapshots(tmp_path, training(1), snapshots=3)
    path = tmp_path / "snapshot.0.0.0"
    text = path.read_text()
    path.write_text(text[: text.index("<name>final</name>")])
    converted = read(path)
    assert data_of(converted.findings, "recording_cut_short") == [{"last": "End of Batch 1"}]
    assert len(frame(converted, "intervals")) == 4 and len(converted.tables["markers"]) == 2


FORMS = {
    "of a release that names no metric": ("_MULTI_TIME", ""),
    "by PAPI's clock": ("_MULTI_TIME", "_MULTI_P_WALL_CLOCK_TIME"),
    "with line ends of Windows": ("\n", "\r\n"),
    "without events": ("0 userevents\n# eventname numevents max min mean sumsqr\n", ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_text_profiles_of_other_releases(tmp_path, form):
    alone = Thread(0, 0, {'say "hi" [{/a b.py} {1,2}]': (5.0, 0.0, 10.5, 10.5)})
    path = write_text(tmp_path, [alone]) / "profile.0.0.0"
    old, new = FORMS[form]
    text = path.read_text()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())
    assert recognise(path) == "tau"
    (row,) = read(path).tables["intervals"].to_pylist()
    assert (row["function"], row["calls"], row["inclusive_ns"]) == ('say "hi" [{/a b.py} {1,2}]', 5, 10_500)


# --- checks -------------------------------------------------------------------------------------------


def timers_of(*names, calls=4.0):
    return dict.fromkeys(names, (calls, 0.0, 1.0, 40.0))


def events_of(*names, calls=4.0):
    return dict.fromkeys(names, (calls, 9.0, 1.0, 5.0, 25 * calls))


@pytest.mark.parametrize(
    ("stage", "timers", "events"),
    [
        # As under tau_python, where a timer may not outlive the function that started it.
        ("Backward Pass", timers_of("main"), events_of("Forward Pass (ns)", "Batch Duration (ns)")
         | events_of("Backward Pass (ns)", calls=3.0)),
        # A timer counts before an event of the same stage.
        ("End of Batch", timers_of("Forward Pass") | timers_of("End of Batch", calls=3.0),
         events_of("Batch Duration (us)")),
    ],
)  # fmt: skip
def test_stages_are_counted_as_timers_or_as_events(tmp_path, stage, timers, events):
    write_text(tmp_path, [Thread(0, 0, timers, events)])
    missing = {"stage": stage, "n": 3, "of": 4}
    assert read(tmp_path).findings == [Finding("marks_missing", rank=0, data=missing)]


@pytest.mark.parametrize(
    "write", [write_text, lambda folder, some: write_merged(folder / "merged.xml", some)]
)
def test_a_timer_that_tau_switched_off_keeps_its_name_and_is_told(write, tmp_path):
    write(tmp_path, [Thread(0, 0, timers_of("Forward Pass", "End of Batch [THROTTLED]", "get [THROTTLED]"))])
    converted = read(tmp_path)
    names = converted.tables["intervals"]["function"].to_pylist()
    assert set(names) == {"Forward Pass", "End of Batch", "get"}
    assert converted.tables["intervals"].schema == SCHEMAS["intervals"]
    assert data_of(converted.findings, "timers_throttled") == [{"timers": ["End of Batch", "get"]}]


@pytest.mark.parametrize("clock", ["time", "CLOCK_GET_TIME", "linux_timers", "GET_TIME_OF_DAY"])
def test_every_clock_of_taus_is_wall_time_in_any_case(clock, tmp_path):
    write_text(tmp_path, [Thread(0, 0, timers_of("Forward Pass"))], metric=clock)
    converted = read(tmp_path)
    assert converted.tables["intervals"]["inclusive_ns"].to_pylist() == [40_000] and not converted.findings
