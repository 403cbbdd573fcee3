"""Columns are what the documentation says: each is named where a user looks, and none that is not there."""

import re
from functools import cache
from pathlib import Path

import pytest

from analysis import columns
from analysis.display import output
from analysis.display.metrics import FIELDS, names_of, records
from jobs.run import Run
from profiling import convert, tables
from tests.analysis.commands import Ran, run
from tests.analysis.synthetic import Truth, run_of, write_pyprof, write_run, write_sweep, write_tau
from tests.analysis.test_check import write_check
from tests.analysis.test_hotspots import plant
from tests.analysis.test_studies import capacity, gemm, layers, order
from tests.analysis.test_tau_batches import merged
from tests.profiling.samples import VTUNE
from tests.profiling.traced_jobs import Planted, write_job


def test_methods_name_columns_that_there_are(root: Path) -> None:
    text = (root / "docs" / "methods.md").read_text()
    quoted = set(re.findall(r"`([a-z0-9_]+_(?:pct|ms|per_s|per_step))`", text))
    groups = [command.measure.columns for command in columns.commands().values()]
    metrics = [metric for of in groups for metrics in of.values() for metric in metrics]
    assert len(quoted) >= 5 and sorted(quoted - set(names_of(metrics))) == []


STUDIES = {
    "layers": layers,
    "capacity": lambda path: capacity(path).path,
    "order": lambda path: order(path, [10.0] * 20).path,
    "gemm": gemm,
}
ANSWERS = (
    ("scaled", "--method", "corrected,published"),
    ("scaled", "--group-by", "batch,world_size,batch"),
    ("scaled", "REFERENCE", "--method", "corrected,published"),
    ("scaled", "TRACES"),
    ("batches",),
    ("batches", "REFERENCE"),
    ("anatomy", "--by", "rank,stage,rank"),
    ("anatomy", "--by", "step"),
    ("kernels", "--by", "kernel,class,kernel"),
    ("kernels", "B"),
    ("kernels", "B", "--summary"),
    ("kernels", "--by", "operator,layer,direction"),
    ("kernels", "TABLE", "TABLE", "--method", "published"),
    ("kernels", "TABLE", "--method", "published", "--metric", "flops-efficiency"),
    ("communication",),
    ("communication", "--by", "rank"),
    ("communication", "REFERENCE"),
    ("communication", "TAU"),
    ("critical_path",),
    ("critical_path", "--by", "rank,step,direction,layer,operator,kernel"),
    ("summary",),
    ("stragglers",),
    ("stragglers", "--by", "step"),
    ("efficiency", "--group-by", "batch,world_size,batch"),
    ("efficiency", "REFERENCE", "--method", "published"),
    ("efficiency", "TRACES"),
    ("utilization",),
    ("activities", "--by", "rank,step,rank"),
    ("activities", "--shares"),
    ("functions", "TAU", "--by", "rank,thread"),
    ("factors",),
    ("compare", "B"),
    ("compare", "B", "B"),
    ("compare", "TRACES", "TRACES_AGAIN"),
    ("predict", "--what-if", "no-loader"),
    ("predict", "SIZES"),
    ("plan", "--images", "1e6", "--within", "1"),
    ("expense",),
    ("expense", "METERED"),
    ("hotspots",),
    ("hotspots", "COUNTED"),
    *(("studies", name) for name in STUDIES),
    ("tau_batches",),
    ("check",),
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    write_sweep(path, [run_of(gpus_per_node=n, profile=p) for n in (1, 2) for p in ("none", "torch")])
    return path


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Other results than the sweep, by the word that ANSWERS has for them."""
    reference, under_tau, metered = map(tmp_path_factory.mktemp, ("reference", "tau", "metered"))
    table = write_pyprof(reference)
    for name, seconds in (("timed", [60.0, 61.0]), ("batch1", [20.0, 21.0])):
        times = {(nodes, 2, batch): seconds for nodes in (1, 2) for batch in (32, 64)}
        write_tau(reference / f"{name}.gzip", times)
    made = write_run(under_tau, run_of(gpus_per_node=2, profile="tau"), Truth())
    sizes = {"event": ["Message size for all-reduce"], "count": [10.0], "mean": [1e6]}
    tables.write(tables.as_table("atomics", sizes), tables.rank_directory(made, 0), "atomics")
    timers = {"function": ["step"], "calls": [1.0], "exclusive_ns": [1e9], "inclusive_ns": [1e9]}
    tables.write(tables.as_table("intervals", timers), tables.rank_directory(made, 0), "intervals")
    energy = {"device_energy_j": 100.0, "processors_energy_j": 50.0, "metered_s": 2.0}
    write_run(metered, run_of(), Truth(), peak_memory_bytes=2e9, **energy)
    sizes = tmp_path_factory.mktemp("sizes")
    write_sweep(sizes, [run_of(gpus_per_node=n) for n in (1, 2, 4)])
    counted = tmp_path_factory.mktemp("counted")
    write_run(counted, run_of(profile="torch"), Truth())
    report = counted.with_suffix(".csv")
    report.write_text(VTUNE)
    plant(counted, "vtune", report, "vtune")
    traces = [tmp_path_factory.mktemp(name) for name in ("traces", "again")]
    for path in traces:
        for ranks in (2, 4):
            planted = Planted(ranks=ranks, batches=10, transfer=100.0 * (1 + traces.index(path)))
            write_job(path / f"job{ranks}", planted)
        assert convert.main([str(path), "--out", str(path / "out"), "--jobs", "1"]) == 0
    return {
        "TRACES": traces[0] / "out",
        "TRACES_AGAIN": traces[1] / "out",
        "REFERENCE": reference,
        "TABLE": table,
        "TAU": under_tau,
        "METERED": metered,
        "COUNTED": counted,
        "SIZES": sizes,
    }


@pytest.fixture(scope="module")
def ask(sweep: Path, others: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    """Runs a command as one of ANSWERS says, once: of the sweep, or what a word stands for; B is another run.

    What is asked has the rows of the answer, too, in the columns that it writes.
    """
    rows: list[dict] = []

    def kept(answer, study, arguments):
        written = set(answer.frame())
        rows.extend({name: row[name] for name in row if name in written} for row in records(answer.rows))
        return emit(answer, study, arguments)

    @cache
    def asked(given: tuple[str, ...]) -> tuple[Ran, list[dict]]:
        command, *arguments = given
        made = tmp_path_factory.mktemp(command)
        first = {
            "tau_batches": lambda: merged(made / "run.xml", 30.0, batches=41),
            "studies": lambda: STUDIES[arguments[0]](made / arguments.pop(0)),
            "check": lambda: write_check(made, 4, {}, {}),
            "kernels": lambda: next(sweep.glob("run_*_1_2_eth_torch*")) if "B" in arguments else sweep,
        }.get(command, lambda: sweep)()
        other = next(sweep.glob("run_*_1_1_eth_torch*")) if command == "kernels" else sweep
        if arguments and arguments[0] in others:
            first = others[arguments.pop(0)]
        words = [{"B": other, **others}.get(word, word) for word in arguments]
        rows.clear()
        return run(f"analysis.{command}", first, *words, "--format", "csv"), list(rows)

    with pytest.MonkeyPatch.context() as patch:
        emit = output.emit
        patch.setattr(output, "emit", kept)
        yield asked


@pytest.mark.parametrize("given", ANSWERS, ids=" ".join)
def test_no_answer_has_a_column_twice(given: tuple[str, ...], ask) -> None:
    ran, _ = ask(given)
    assert ran.code == (given[:2] == ("compare", "TRACES")), ran.err  # its second traces are slower
    head = ran.out.split("\n")[0].split(",")
    assert sorted(head) == sorted(set(head))
    # A run is called `run`, whatever it is of; and wherever a row is of one, also of traces.
    assert not {"id", "job"} & set(head)
    assert "run" in head or "repetition" not in head
    # Nor is a field of the run overwritten by a figure of the same name.
    truth = {name: {str(getattr(run_of(gpus_per_node=n, profile=p), name)) for n in (1, 2)
                    for p in ("none", "torch")} for name in Run.model_fields}  # fmt: skip
    elsewhere = ("tau_batches", "studies", "REFERENCE", "TAU", "TRACES")
    for name in set(head) & set(truth) if not set(given) & set(elsewhere) else ():
        values = {row[name] for row in ran.csv}
        assert values <= truth[name] | {"", "none+torch"}, (name, values)


@pytest.mark.parametrize("command", columns.commands())
def test_each_key_of_a_row_is_a_column_or_a_field_and_each_column_is_in_a_row(command: str, ask) -> None:
    rows = [row for given in ANSWERS if given[0] == command for row in ask(given)[1]]
    said = {name for of in columns.commands()[command].measure.columns.values() for name in names_of(of)}
    keys = {name for row in rows for name in row}
    assert sorted(keys - said - set(FIELDS)) == []
    assert sorted(said - keys) == []


@pytest.mark.parametrize("command", columns.commands())
def test_a_flag_explains_each_column_and_help_is_left_to_the_flags(command: str) -> None:
    flags = ("--columns", "--help")
    said, of_help = (" ".join(run(f"analysis.{command}", flag).out.split()) for flag in flags)
    for of, metrics in columns.commands()[command].measure.columns.items():
        assert " ".join(of.split()) in said and " ".join(of.split()) not in of_help
        assert not [
            one.name for one in metrics if " ".join(f"{one.label} {one.description}".split()) not in said
        ]
        assert all(one.meaning for one in metrics)


def test_the_docs_page_is_what_the_metrics_say(root: Path) -> None:
    committed = (root / "docs" / "columns.md").read_text()
    assert committed == columns.page()  # python -m analysis.columns > docs/columns.md


def test_every_command_that_answers_in_columns_is_asked(root: Path) -> None:
    emitting = {
        ".".join(path.relative_to(root / "analysis").with_suffix("").parts)
        for path in (root / "analysis").rglob("*.py")
        if path.stem != "measure" and re.search(r"output\.emit\(|^main = Command\(", path.read_text(), re.M)
    }
    assert emitting == {command for command, *_ in ANSWERS}
