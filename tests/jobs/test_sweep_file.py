"""A sweep file says which runs there are, and in which order."""

import re
from itertools import product

import pytest

from jobs.sweep_file import choose, expand, ordered, read_sweep
from profiling.errors import Mistakes, UserError

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
    given = sweep.model_copy(update={"order": "given"})
    assert ordered(runs, given, 7) == runs


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
