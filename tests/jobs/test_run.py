"""A Run is what its fields say, and its id says it back."""

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.run import Run, literal_options, make_run
from jobs.run_fields import (
    ID_FIELDS,
    OUTSIDE_FIELDS,
    ROLES,
    add_run_flags,
    as_text,
    fields_of,
    format_id,
    in_order,
    is_own,
    make_parser,
    parse_id,
    run_from_flags,
    to_flags,
)
from profiling.errors import UserError
from profiling.tools import tool

# Drawn where others allow it, or not at all.
OF_OTHERS = ("profile_mode", "profile_schedule", "program", "factors")


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any Run: every field drawn over its whole range."""
    drawn = {}
    for name, info in Run.model_fields.items():
        if options := literal_options(info.annotation):
            drawn[name] = st.sampled_from(options)
        elif info.annotation in (bool, int, float):
            drawn[name] = st.from_type(typing.Annotated[info.annotation, *info.metadata])
    texts = st.characters(exclude_categories=["Cs"])
    drawn |= {
        "network": st.sampled_from(["ib", "eth", "IB", "ETH"]),
        "model": st.from_regex(r"[a-z][a-z0-9_]{0,40}", fullmatch=True),
        "batches": st.integers(2, 10_000_000),
        "attribute_from": st.none() | st.integers(0, 1),
        "data": st.none() | st.text(texts, min_size=1, max_size=20),
        "compile": st.sampled_from([True, False, "max-autotune", "reduce-overhead"]),
        "hw_decoder_load": st.none() | st.floats(0, 1),
        "profile_kernels": st.text(texts, max_size=20),
        "profile_metrics": st.from_regex(r"[A-Za-z0-9_.,]{0,9}", fullmatch=True),
        **{name: st.just(Run.model_fields[name].default) for name in OF_OTHERS},
    }
    values = draw(st.fixed_dictionaries(drawn))
    assert set(values) == set(Run.model_fields), "a new field is drawn here too"
    values["profile_mode"] = draw(st.sampled_from(sorted(tool(values["profile"]).modes)))
    if values["profile"] in ("torch", "none") and values["attribute_from"] is None:
        values["profile_schedule"] = draw(st.sampled_from(["", "0,0,1,2", "1,0,1,1"]))
    if values["nodes"] * values["gpus_per_node"] > 1 and values["backend"] == "single":
        values["backend"] = "auto"
    if values["backend"] == "dp":
        values |= {"nodes": 1, "grad": "fp32", "compile": False, "channels_last": False}
    if values["grad"] == "bf16" and values["backend"] == "horovod":
        values["backend"] = "auto"
    if values["backend"] in ("dp", "horovod") or values["device"] == "cpu" or values["profile"] != "none":
        values["graph"] = False
    if values["graph"]:
        values |= {"batches": values["batches"] + 11, "compile": values["compile"] is True}
    if values["loader"] in ("dali-gpu", "dali-cpu-to-gpu") and values["device"] == "cpu":
        values["device"] = "auto"
    return make_run(values)


@given(runs(), st.integers(0, 999), st.none() | st.integers(-15, 255), st.integers(0, 4095))
def test_an_id_with_all_fields_parses_back_to_the_same_run(run, repetition, exit_code, rank):
    rank = None if exit_code is None else rank
    text = format_id(run, repetition, exit_code, OUTSIDE_FIELDS) + ("" if rank is None else f"_{rank}")
    back = parse_id(text)
    assert (back.run, back.repetition, back.exit_code, back.rank) == (run, repetition, exit_code, rank)
    assert "/" not in text and "\0" not in text


_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True).filter(is_own)
_VALUES = st.text(max_size=90) | st.integers() | st.floats(allow_nan=False) | st.booleans()


@given(st.dictionaries(_NAMES, _VALUES, max_size=4), st.none() | st.integers(-15, 255))
def test_an_id_with_a_programs_own_factors_parses_back_to_the_same_id(factors, exit_code):
    run = make_run({"program": "train.py", "gpus_per_node": 2, "factors": factors})
    back = parse_id(format_id(run, 3, exit_code, outside=["batch", *factors]))
    assert set(back.factors) == set(factors)
    short = {name: as_text(value) for name, value in factors.items() if len(as_text(value)) < 5}
    assert short.items() <= back.factors.items()
    assert (back.run.batch, back.run.gpus_per_node, back.exit_code) == (32, 2, exit_code)


@given(runs())
def test_flags_parse_back_to_the_same_run(run):
    parser = make_parser("train", None)
    add_run_flags(parser)
    assert run_from_flags(parser.parse_args(to_flags(run))) == run
    # An unset variable of a script, as in --data "$DATA".
    empty = [f"--{name}=" for name in ("data", "attribute-from", "hw-decoder-load")]
    assert run_from_flags(parser.parse_args(empty)) == make_run({})


def test_each_flag_is_one_word_for_tau_takes_profile_and_the_next_word_for_its_own():
    run = make_run({"profile": "tau", "profile_mode": "io", "data": "-x", "gpus_per_node": 2})
    assert to_flags(run) == ["--gpus-per-node=2", "--profile=tau", "--data=-x", "--profile-mode=io"]


@pytest.mark.parametrize(
    "text",
    [
        "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0",
        "run_10_config_2_2_IB_tau_8_resnet50_dali-cpu-to-gpu_64_fp32_fp32_ret_0",
        "run_3_config_1_1_eth_none_2_mobilenet_v2_synthetic_16_bf16_bf16_ret_-9",
        "run_3_config_1_1_eth_none_2_vit_b_16_synthetic_16_bf16_bf16",
    ],
)
def test_the_references_ids_and_awkward_ones_come_back_as_they_were(text):
    back = parse_id(text)
    again = format_id(back.run, back.repetition, back.exit_code)
    assert again + ("" if back.rank is None else f"_{back.rank}") == text


@pytest.mark.parametrize(
    "text",
    [
        "run_0_config_8_2_ib_nvprof_2_../../etc_dali-gpu_32_fp16_fp32_ret_0",
        "run_0_config_8_2_ib_nvprof_2_resnet50;rm -rf_dali-gpu_32_fp16_fp32_ret_0",
        "run_0_config_8_2_ib_nvprof_2_$(reboot)_dali-gpu_32_fp16_fp32_ret_0",
        "run_0_config_0_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0",
        "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0\n",
        "..",
        "",
    ],
)
def test_what_is_no_id_is_refused_in_one_line(text):
    with pytest.raises(UserError) as error:
        parse_id(text)
    assert "\n" not in str(error.value).replace(text, "")


def test_every_field_has_a_description_and_a_role_and_the_id_is_of_the_ten_it_is_documented_with():
    assert all(info.description for info in Run.model_fields.values())
    assert set(ID_FIELDS) | set(OUTSIDE_FIELDS) | {"factors"} == set(ROLES) == set(Run.model_fields)
    assert len(ID_FIELDS) == 10 and set(fields_of("size")) == {"nodes", "gpus_per_node"}
    assert all("{}" in role.label for role in ROLES.values())


def test_a_schedule_waits_warms_up_and_records_as_often_as_it_says():
    run = make_run({"profile": "torch", "profile_schedule": "1,2,5,2", "batches": 64})
    assert run.recordings == [range(3, 8), range(11, 16)]
    assert (run.first_attributed, run.profiler_warm_up) == (3, 2)
    assert make_run({"batches": 51}).first_attributed == 25  # the later half
    plain = make_run({"profile": "torch", "batches": 8, "attribute_from": 6})
    assert (plain.recordings, plain.profiler_warm_up) == ([range(6, 8)], 0)


def test_one_process_of_dataparallel_drives_all_gpus_of_its_node():
    for fields, sizes in (
        ({"backend": "dp"}, (4, 1, 1, 4, 32)),
        ({"backend": "ddp", "nodes": 2}, (8, 8, 4, 1, 8)),
    ):
        run = make_run({"gpus_per_node": 4, "batch": 8, **fields})
        assert (run.world_size, run.ranks, run.ranks_per_node, run.gpus_per_rank, run.rank_batch) == sizes


def test_ids_are_in_the_order_of_their_values_and_repetitions_stand_together():
    ids = [f"run_{rest}" for rest in (
        "0_program_2_1_eth_none+width=512", "1_program_1_1_eth_none+width=64", "0_program_16_1_eth_none",
        "0_program_1_1_eth_none+width=512", "0_program_1_1_eth_none+width=64",
    )]  # fmt: skip
    assert sorted(ids, key=in_order) == [ids[4], ids[1], ids[3], ids[0], ids[2]]
    others = ["run_2_config_1_1", "run_12_config_1_1", "run_2", "my trace"]
    assert sorted(others, key=in_order)[:2] == others[:2]
