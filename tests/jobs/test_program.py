"""A sweep starts a program of the user's: its command, its names in braces, its runs."""

import pytest

from jobs.execute import Execution
from jobs.launchers.base import Local
from jobs.progress import describe, last_batch
from jobs.run import make_run
from jobs.run_fields import parse_id
from jobs.store import MANIFEST, Manifest, check_reports, is_complete, read_record, write_record
from jobs.sweep_file import (
    Rule,
    Sweep,
    SweepRun,
    check_can_start,
    choose,
    command_of,
    expand,
    read_sweep,
    unknown_fields,
)
from profiling import tables
from profiling.errors import UserError
from tests.analysis.commands import run
from tests.analysis.synthetic import Truth, write_run

SWEEP = """
repetitions: 1
run:
  program: train.py --lr {lr} --name={name} --batch-size {batch} --world {world_size} {flag}
  gpus_per_node: [1, 2]
  batches: 5
  lr: [0.1, 0.01]
  name: it's a "name"
  flag: ["", --amp]
"""


@pytest.fixture
def sweep(tmp_path) -> Sweep:
    (tmp_path / "mine.yaml").write_text(SWEEP)
    return read_sweep(tmp_path / "mine.yaml")


@pytest.fixture
def runs(sweep) -> list[SweepRun]:
    return expand(sweep)[0]


def test_each_word_of_the_command_is_filled_and_no_value_is_split(runs):
    commands = [command_of(run.configuration) for run in runs]
    name = '--name=it\'s a "name"'
    assert ["train.py", "--lr", "0.1", name, "--batch-size", "32", "--world", "1"] in commands
    assert ["train.py", "--lr", "0.01", name, "--batch-size", "32", "--world", "2", "--amp"] in commands
    quoted = make_run({"program": "'my train.py' --json '{{\"a\": 1}}' ''"})
    assert command_of(quoted) == ["my train.py", "--json", '{"a": 1}', ""]


def test_ids_say_what_the_sweep_varies_and_nothing_of_our_own_loop(runs):
    ids = [run.id for run in runs]
    assert "run_0_program_1_2_eth_none+flag=--amp+lr=0.1" in ids
    assert len(set(ids)) == 8 and not any("resnet" in one or "synthetic" in one for one in ids)
    assert parse_id(ids[0]).factors == {"flag": "", "lr": "0.1"}


def test_only_takes_factors_of_the_users_own(sweep):
    chosen, _ = choose(sweep, ["lr=0.1", "gpus_per_node=2"], "mine.yaml")
    assert [run.configuration.factors["lr"] for run in chosen] == [0.1, 0.1]
    with pytest.raises(UserError, match="unknown field 'lrr'; did you mean 'lr'"):
        choose(sweep, ["lrr=0.1"], "mine.yaml")
    with pytest.raises(UserError, match=r"no runs: --only lr=7, but lr has 0.1, 0.01$"):
        choose(sweep, ["lr=7"], "mine.yaml")
    rule = Rule(when={"lr": 0.1, "world_size": 1}, because="too slow")
    assert [len(several) for several in expand(sweep.model_copy(update={"exclude": [rule]}))] == [6, 2]


def test_only_what_the_command_names_is_known_of_a_run(runs):
    run = runs[0].configuration
    unknown = unknown_fields(run)
    assert {"model", "loader", "grad", "compute", "workers", "learning_rate"} <= set(unknown)
    assert not {"batch", "nodes", "batches", "profile", "program", "seed"} & set(unknown)
    assert unknown_fields(make_run({})) == []
    assert describe(run, ("lr",)) == "1 node x 1 rank, train.py, lr: 0.1"


def test_a_script_that_is_not_there_is_found_before_the_first_run(tmp_path):
    run = make_run({"program": "train.py"})
    with pytest.raises(UserError, match=r"train\.py does not exist"):
        check_can_start(run, tmp_path)
    (tmp_path / "train.py").touch()
    check_can_start(run, tmp_path)
    check_can_start(make_run({"program": "-m mine.train"}), tmp_path)
    assert Local().why_not(make_run({"program": "no/such.py"}))


def test_a_program_that_ends_early_counts_with_the_steps_of_all_ranks(tmp_path):
    config = {"program": "train.py", "gpus_per_node": 2, "batches": 40}
    folder = write_run(tmp_path, make_run(config), Truth())
    manifest = read_record(folder / MANIFEST, Manifest)
    for rank, steps in enumerate((30, 31)):
        manifest.ranks[rank].batches_done = steps
        place = folder / f"rank_{rank:04d}"
        tables.write(tables.read(place, "batches")[:steps], place, "batches")
    write_record(folder / MANIFEST, manifest)
    assert is_complete(folder)
    (row,) = run("analysis.batches", tmp_path, "--format", "csv", "--all").csv
    assert (row["batches"], row["steps"]) == ("30", "30")
    # Enough of a profiled run are those after which one was recorded.
    with pytest.raises(UserError, match="steps done: 30 of 60"):
        check_reports(make_run({**config, "batches": 60, "profile": "torch"}), manifest.ranks)


def test_the_step_is_found_among_what_a_program_prints(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b" 10%|###       | 1/10\rstep 3/50\nloss step 7/9\n")
    assert last_batch(log) == "3/50"


def test_the_command_has_torchruns_variables_around_it(sweep, tmp_path):
    values = {"program": "train.py --lr {lr}", "factors": {"lr": 0.1}, "profile": "torch", "batches": 8}
    command = Execution(sweep, tmp_path, Local()).command(make_run(values), tmp_path / "r")
    start, rank = command[: command.index("--")], command[command.index("--") + 1 :]
    assert start[1:3] == ["-m", "train.torchrun"]
    assert rank[:2] == ["-m", "profiling.watch"] and rank[-3:] == ["train.py", "--lr", "0.1"]
    assert {"--batches=8", "--profile=torch", "--attribute-from=4"} <= set(rank)
