"""A sweep file says which runs there are, in which order, and which program of the user's they start."""

import re
from itertools import product

import pytest

from jobs.execute import Execution, describe, last_batch
from jobs.launchers.base import Local
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
    ordered,
    read_sweep,
    unknown_fields,
)
from profiling import tables
from profiling.errors import Mistakes, UserError
from tests.analysis.commands import run
from tests.analysis.synthetic import Truth, write_run

SWEEP = """
repetitions: {none: 2, torch: 1}
run:
  gpus_per_node: [1, 2]
  profile: [none, torch]
  grad: [fp32, fp16]
  image_size: 64
exclude:
  - when: {world_size: 1, grad: fp16}
    because: one rank sends no gradients
"""


@pytest.fixture
def sweep_file(tmp_path):
    def write(text):
        path = tmp_path / "conf.yaml"
        path.write_text(text)
        return path

    return write


def configurations(runs):
    return [run.configuration for run in runs]


def test_a_sweep_is_the_product_of_its_factors_less_what_its_rules_exclude(sweep_file):
    sweep = read_sweep(sweep_file(SWEEP))
    runs, excluded = expand(sweep)
    assert sweep.name == "conf" and (len(runs), len(excluded)) == (3 * (2 + 1), 2 + 1)
    assert {e.reason for e in excluded} == {"one rank sends no gradients"}
    assert all(not (p.world_size == 1 and p.grad == "fp16") for p in configurations(runs))


def test_what_a_profiler_is_asked_for_makes_no_second_unprofiled_run(sweep_file):
    text = "repetitions: 1\nrun: {profile: [none, torch], profile_mode: [auto, memory]}"
    runs, _ = expand(read_sweep(sweep_file(text)))
    asked = [(run.profile, run.profile_mode) for run in configurations(runs)]
    assert asked == [("none", "auto"), ("torch", "auto"), ("torch", "memory")]
    with pytest.raises(UserError, match="batch: 8 stands twice"):
        expand(read_sweep(sweep_file("repetitions: 1\nrun: {profile: [none, torch], batch: [8, 8]}")), "x")


def test_the_order_is_random_but_recorded(sweep_file):
    sweep = read_sweep(sweep_file(SWEEP))
    runs, _ = expand(sweep)
    assert ordered(runs, sweep, 7) == ordered(runs, sweep, 7) != runs
    assert sorted(ordered(runs, sweep, 7), key=lambda p: p.id) == sorted(runs, key=lambda p: p.id)
    assert ordered(runs, sweep.model_copy(update={"order": "given"}), 7) == runs


@pytest.mark.parametrize(
    ("only", "says"),
    [
        (["grad=bf16", "profile=torch"], "f: no runs: --only grad=bf16, but grad has fp32, fp16"),
        (["gpus_per_node=1", "grad=fp16"], "f: no runs: --only grad=fp16, but grad has fp32"),
    ],
)
def test_an_only_that_chooses_nothing_says_what_there_is(sweep_file, only, says):
    with pytest.raises(UserError) as error:
        choose(read_sweep(sweep_file(SWEEP)), only, "f")
    assert str(error.value) == says
    rule = "run: {nodes: 1}\nexclude: [{when: {nodes: 1}, because: none wanted}]"
    with pytest.raises(UserError, match=r"f: no runs are left by its exclude rules$"):
        choose(read_sweep(sweep_file(rule)), ["nodes=1"], "f")


def test_all_mistakes_of_a_file_are_in_one_answer_with_their_lines(sweep_file):
    text = "repetitons: 2\nrun:\n  loder: synthetic\n  batch_size: 32\n  nodes: [1,\n    0]\n"
    with pytest.raises(Mistakes) as error:
        read_sweep(sweep_file(text + "exclude:\n- {when: {gruds: 1}, because: x}"))
    lines = [line.partition("conf.yaml, ")[2] for line in error.value.lines]
    assert [(int(line[5]), re.findall(r"'(\w+)'", line)) for line in lines] == [
        (1, ["repetitons", "repetitions"]), (3, ["loder", "loader"]), (4, ["batch_size", "batch"]), (6, []),
        (8, ["gruds", "grad"]),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["quick", "loaders", "resnet50", "vgg16", "alexnet"])
def test_the_sweeps_we_ship_are_whole(root, name):
    runs, _ = expand(read_sweep(root / "configs" / f"{name}.yaml"), name)
    assert runs


def test_images_of_the_sweep_that_asks_what_copies_cost_are_loaded(root):
    runs = configurations(expand(read_sweep(root / "configs" / "alexnet.yaml"))[0])
    assert {run.loader for run in runs} == {"pytorch"}


def test_the_references_sweep_has_its_factors(root):
    factors = {
        "nodes": {1, 2, 4, 8, 16, 32}, "gpus_per_node": {1, 2}, "workers": {1, 2, 4, 8}, "batch": {32, 64},
        "grad": {"fp32", "fp16"}, "loader": {"dali-gpu", "dali-cpu-to-gpu"}, "data_format": {"tfrecord"},
    }  # fmt: skip
    runs = configurations(expand(read_sweep(root / "configs" / "resnet50.yaml"))[0])
    assert {name: {getattr(run, name) for run in runs} for name in factors} == factors


def test_vgg16_takes_8192_images_whether_on_one_gpu_or_two(root):
    runs = configurations(expand(read_sweep(root / "configs" / "vgg16.yaml"))[0])
    assert {p.world_size * p.batch * p.batches for p in runs} == {8192}
    assert {(p.world_size, p.profile) for p in runs} == set(product((1, 2), ("none", "torch")))
    # Of the schedule 1,2,5,2: wait for one, warm up for two, record five, twice.
    recorded = {tuple(map(tuple, p.recordings)) for p in runs if p.profile == "torch"}
    assert recorded == {((3, 4, 5, 6, 7), (11, 12, 13, 14, 15))}


# --- a sweep starts a program of the user's: its command, its names in braces, its runs ----------------

OF_PROGRAM = """
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
    (tmp_path / "mine.yaml").write_text(OF_PROGRAM)
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
