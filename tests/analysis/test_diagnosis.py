"""The report's opening: the causes of a loss, the largest first, with what they cost."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from analysis.diagnosis import diagnosis as diagnose
from analysis.diagnosis import runs as diagnosis
from analysis.diagnosis.evidence import PARTS, PLACES, Evidence
from analysis.frames.divide import PARTS as BY_PARTS
from analysis.frames.load import load
from analysis.measures import communication
from analysis.measures.loss import BY_STAGES
from analysis.measures.stragglers import late_ranks
from benchmarks.planted_sweep import Network, write_sweep
from benchmarks.verdicts import JOB
from jobs import store
from jobs.run import LINK
from jobs.store import WITHOUT_SUMMARY, summary_of
from profiling.convert import main as convert
from profiling.findings import Finding
from tests.analysis.commands import run
from tests.analysis.consistent import by_code, check
from tests.analysis.scaled_rows import (
    BASE,
    LOST_PCT,
    NO_INTERVAL,
    TRACED,
    late,
    late_8,
    lost,
    plain,
    point,
    what_if,
    with_rate,
)
from tests.profiling.traced_jobs import Planted, write_job

LOST_PARTS = [*BY_PARTS, "idle_host_bound"]


def of_rows(own: list, late: list = (), predicted: list = ()) -> list[Finding]:
    return diagnosis.of_rows(*map(pd.DataFrame, (own, late, predicted)))


def in_stages(**lost_pct: float) -> dict:
    """Columns of a loss that stages alone tell."""
    known = dict.fromkeys(BY_STAGES, 0.0) | lost_pct
    return {f"loss_{name}_pct": pct for name, pct in known.items()} | {"loss_note": "no profiled run"}


def causes(found: list[Finding]) -> list[tuple[str, float]]:
    return [(one.data["kind"], one.data["cost_pct"]) for one in by_code(found, "cause_of_loss")]


@pytest.mark.parametrize("part", LOST_PARTS)
def test_the_part_that_costs_most_is_named_with_advice(part):
    found = of_rows([BASE, point(4, 160.0, **lost(LOST_PCT, **{part: 30.0}))])
    assert causes(found) == [(part, 30.0)]
    assert len(by_code(found, "advice")) == 1
    (step,) = by_code(found, "step_takes")
    assert step.data["step_ns"] == 160e6 and step.data["shares"][0].startswith("72 %")
    (efficiency,) = by_code(found, "scaling_efficiency")
    assert efficiency.data["pct"] == 62.5 and efficiency.data["ends"] == [61.5, 63.5]


def test_two_large_causes_are_both_named_and_one_that_may_be_none_is_said_to_be_so():
    parts = lost(LOST_PCT, exposed_transfer=12.0, compute=15.0, exposed_loader=10.0)
    found = causes(of_rows([BASE, point(4, 160.0, **parts)]))
    assert [kind for kind, _ in found] == ["compute", "exposed_transfer"]
    shrunk = of_rows([BASE, point(4, 160.0, **lost(LOST_PCT, compute=45.0, idle=-7.5))])
    assert [one.data["grown"] for one in by_code(shrunk, "cause_of_loss")] == [[45.0]]
    unsure = parts | {"loss_compute_pct_low": -3.0, "loss_compute_pct_high": 33.0}
    found = of_rows([BASE, point(4, 160.0, **unsure)])
    assert [kind for kind, _ in causes(found)] == ["exposed_transfer", "exposed_loader"]
    (doubtful,) = by_code(found, "cause_uncertain")
    assert doubtful.data["kind"] == "compute" and doubtful.data["high_pct"] == 33.0
    wide = {"scaling_efficiency_pct_low": 30.0, "scaling_efficiency_pct_high": 95.0}
    found = of_rows([BASE, point(4, 160.0, **lost(LOST_PCT, compute=30.0), **wide)])
    assert by_code(found, "efficiency_uncertain") and not causes(found)
    assert [one.data["kind"] for one in by_code(found, "cause_uncertain")] == ["compute"]
    better = point(4, 130.0, **lost(20.0, compute=15.0), grad="fp16")
    both = of_rows([BASE, point(4, 160.0, **lost(LOST_PCT, compute=30.0), **wide), better])
    assert [one.data["pct"] for one in by_code(both, "scaling_efficiency")] == [100 - LOST_PCT]


@pytest.mark.parametrize(
    ("lost_pct", "ratio", "slower_pct", "told"),
    [
        (10.0, None, 0.0, False), (60.0, None, 0.0, False), (LOST_PCT, 1.2, 0.0, True),
        (LOST_PCT, 0.7, 0.0, False), (LOST_PCT, 2.0, 0.0, False),
        # Of a step that became 20 % longer 17 points may have been profiled before; of one by a half 33.
        (10.0, None, 20.0, False), (10.0, None, 50.0, True),
    ],
)  # fmt: skip
def test_parts_that_miss_the_loss_or_are_of_other_steps_tell_no_cause(lost_pct, ratio, slower_pct, told):
    of_parts = lost(LOST_PCT, compute=lost_pct)
    found = of_rows([BASE, point(4, 160.0, **of_parts, perturbation=ratio, slower_pct=slower_pct)])
    assert bool(causes(found)) is told and bool(by_code(found, "loss_unexplained")) is not told


def test_strong_scaling_is_judged_by_the_share_of_a_step():
    strong = {"scaling": "strong"}
    stages = {"mean_load_ms": 16.0, "mean_forward_ms": 7.5, "mean_backward_ms": 14.0, "mean_update_ms": 2.5}
    row = point(4, 40.0, **stages, scaling_efficiency_pct=62.5, batch=8, **strong)
    row |= {"scaling_efficiency_pct_low": 62.0, "scaling_efficiency_pct_high": 63.0}
    by_stages = in_stages(load=36.9, backward=0.6)
    assert causes(of_rows([BASE | strong | {"batch": 32}, row | by_stages])) == [("load", 36.9)]
    of_parts = row | lost(37.5, compute=30.0)
    (cause,) = by_code(of_rows([BASE | strong | {"batch": 32}, of_parts]), "cause_of_loss")
    assert "fewer images" in cause.data["name"]


def test_of_a_profile_of_longer_steps_stages_tell_how_much_is_lost_and_the_profile_to_what():
    stages = in_stages(backward=30.0, load=7.5) | {"loss_note": None}

    def found(**grown: float) -> list[tuple[str, float]]:
        return causes(of_rows([BASE, point(4, 160.0, **lost(LOST_PCT, **grown) | stages)]))

    assert found(exposed_transfer=60.0, compute=1.0) == [("exposed_transfer", 30.0)]
    assert found(exposed_transfer=10.0, idle=70.0) == [("idle", 30.0)]
    assert found(exposed_transfer=10.0, compute=70.0) == [("backward", 30.0)]
    assert found(exposed_transfer=30.0, compute=30.0, exposed_wait=30.0) == [("backward", 30.0)]


def test_a_late_rank_comes_before_the_parts_that_cost_less_and_no_network_is_advised():
    parts = lost(25.0, exposed_wait=18.5, compute=3.0, exposed_transfer=2.0)
    found = of_rows([BASE, point(8, 160.0, **parts)], late_8(), [what_if("network=2x", 0.1)])
    (cause,) = [one for one in found if one.code in ("straggler_costs", "cause_of_loss")]
    assert cause.code == "straggler_costs" and cause.data["stragglers"] == [3]
    assert cause.data["wait_ns"] == 32e6 and cause.data["why"] == "GPU"
    assert not by_code(found, "gain_simulated") and len(by_code(found, "advice")) == 1
    row = point(8, 160.0, **lost(37.5, exposed_loader=25.0, exposed_wait=4.4, compute=0.6))
    found = of_rows([BASE, row], [late("t", 3, mean_ms=8.0, cause="GPU") | TRACED])
    codes = [one.code for one in found]
    assert codes.index("cause_of_loss") < codes.index("straggler_costs")


def test_all_ranks_that_are_late_for_one_cause_are_named_and_their_nodes():
    rows = [late("t", 1, mean_ms=31.0, cause="GPU or host"), late("t", 6, mean_ms=32.0, cause="GPU")]
    data = late_ranks(pd.DataFrame([row | TRACED for row in rows])).data
    assert (data["stragglers"], data["why"], data["node"]) == ([6, 1], "GPU", "n0, n3")


def test_the_step_is_the_mean_and_an_unlike_profile_does_not_tell_its_parts():
    few_long = point(4, 160.0, mean_update_ms=50.0)  # the median is 160, the mean 200
    for parts_ms, named in (({"compute": 200.0}, "computation"), ({"compute": 300.0}, "backward")):
        found = diagnosis.of_rows(pd.DataFrame([BASE, few_long]), parts_of=lambda _, of=parts_ms: of)
        (step,) = by_code(found, "step_takes")
        assert step.data["step_ns"] == pytest.approx(200e6) and named in step.data["shares"][0]


def test_the_step_by_stages_holds_the_wait_for_late_ranks_and_no_cause_is_told_twice():
    stages = {"load": 0.0, "forward": 40.0, "backward": 60.0, "update": 10.0, "other": 10.0}
    stages["late_ranks"] = 40.0
    row = point(4, 160.0, **{f"mean_{name}_ms": ms for name, ms in stages.items()})
    (step,) = by_code(of_rows([BASE, row]), "step_takes")
    assert step.data["parts_pct"] == pytest.approx({name: ms / 1.6 for name, ms in stages.items()})
    found = of_rows([BASE, row | in_stages(late_ranks=20.0, backward=17.5)])
    assert causes(found)[0] == ("late_ranks", 20.0) and not by_code(found, "step_waits")


def test_a_rank_that_is_named_in_half_of_the_runs_or_less_is_no_straggler():
    few = [[late("a", 3), late("b", 3, "no")], late_8(verdict="no", mean_lateness_ms=1.0), []]
    assert [late_ranks(pd.DataFrame(rows)) for rows in few] == [None] * 3  # collectives acquit the second
    traced = [late("t", 3, mean_ms=32.0) | TRACED, *(late(run, 3, "no") for run in "abc")]
    for cause, named in (("GPU", True), ("loader", False)):  # stages show a late batch in every run
        assert bool(late_ranks(pd.DataFrame([row | {"cause": cause} for row in traced]))) is named
    assert late_ranks(pd.DataFrame([late("a", 3), late("b", 3) | {"node": "n7"}])).data["node"] == ""
    stages_only = [row | {"verdict": "too few steps"} if row["run"] == "t" else row for row in late_8()]
    data = late_ranks(pd.DataFrame(stages_only)).data
    assert (data["stragglers"], data["wait_ns"], data["from"]) == ([3], 32e6, "collectives")


def test_ranks_that_may_be_late_by_chance_are_suspected():
    rows = [late("t", rank, "may be chance", mean_ms=6.0 + rank) | TRACED for rank in (4, 5)]
    rows += [late("t", 6, "may be chance", mean_ms=1.0) | TRACED, late("t", 7, "no") | TRACED]
    found = of_rows([BASE, point(8, 160.0, **lost(37.5, exposed_wait=30.0))], rows)
    (suspected,) = by_code(found, "straggler_suspected")
    assert suspected.data == {"suspects": [4, 5], "wait_ns": 11e6, "n": 1, "of": 1}
    assert suspected.configuration == "P = 8"
    found = of_rows([BASE, point(8, 160.0, **lost(37.5, exposed_wait=30.0))], [*rows, late("u", 4, "no")])
    assert not by_code(found, "straggler_suspected")


@pytest.mark.parametrize(
    ("alpha_us", "gb_per_s", "small", "limit"),
    [
        (200.0, 100.0, 12, "latency"), (200.0, 1.0, 0, "bandwidth"), (0.0, 1.0, 12, "bandwidth"),
        (4000.0, 100.0, 0, "latency"), (200.0, 100.0, None, ""),
    ],
)  # fmt: skip
def test_what_limits_transfer_is_told_by_collectives_of_unlike_sizes(alpha_us, gb_per_s, small, limit):
    sizes = [25e6] if small is None else [25e6, 5e6, *[4096.0] * small]
    calls = pd.DataFrame({"bytes": sizes, "collective": "allreduce", "counted": True})
    calls.loc[2:, "collective"] = "allgather"
    passes = 1 + (calls["collective"] == "allreduce")
    calls["transfer_ns"] = passes * (1e3 * alpha_us + calls["bytes"] / gb_per_s)
    calls = calls.assign(exposed_ns=calls["transfer_ns"], group_size=8)
    assert communication.limit(calls) == limit
    # Groups of two, by other links, are told apart; where all collectives are of one size nothing is known.
    pairs = calls.assign(transfer_ns=9 * calls["transfer_ns"][::-1].array, exposed_ns=0.0, group_size=2)
    took = 9 * calls["transfer_ns"].sum()
    alike = calls.head(1).assign(transfer_ns=took, exposed_ns=took, group_size=4)
    assert communication.limit(pd.concat([calls, pairs])) == limit
    assert communication.limit(pd.concat([calls, alike])) == ""


@pytest.mark.parametrize("limit", ["latency", "bandwidth"])
def test_links_and_fp16_are_advised_against_bandwidth_alone(limit):
    own = pd.DataFrame([BASE, point(8, 160.0, **lost(37.5, exposed_transfer=30.0))])
    found = diagnosis.of_rows(own, limit_of=lambda _: limit)
    (cause,), (advice,) = by_code(found, "cause_of_loss"), by_code(found, "advice")
    assert (cause.data["kind"], cause.data["limit"]) == ("exposed_transfer", limit)
    of_bandwidth = {"fp16_gradients", "faster_network"}
    assert of_bandwidth & {*advice.data["advice"]} == (of_bandwidth if limit == "bandwidth" else set())
    assert ("fewer_collectives" in advice.data["advice"]) == (limit == "latency")


def test_only_changes_that_were_not_measured_and_that_gain_are_simulated_findings():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    what_ifs = [what_if("fp16-gradients", 30.0), what_if("network=2x", 40.0), what_if("bucket-mb=50", 0.2)]
    found = of_rows([BASE, row], [], what_ifs)
    # What is free first, though links gain more.
    gains = by_code(found, "gain_simulated")
    assert [one.data["what_if"] for one in gains] == ["fp16-gradients", "network=2x"]
    assert not by_code(found, "advice")
    found = of_rows([BASE, row, point(8, 130.0, **NO_INTERVAL, grad="fp16")], [], what_ifs)
    assert "fp16-gradients" not in [one.data["what_if"] for one in by_code(found, "gain_simulated")]


def test_methods_that_contradict_each_other_give_no_forecast():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    rows = [plain("curve", 100.0, 200.0), plain("simulation", 300.0, 400.0), what_if("network=2x", 40.0)]
    found = of_rows([BASE, row], [], rows)
    assert by_code(found, "predictions_disagree") and not by_code(found, "gain_simulated")


def test_an_option_that_runs_show_to_be_faster_is_named():
    slow, fast = (with_rate(point(8, ms, loader=loader), 10.0) for ms, loader in ((160.0, "a"), (120.0, "b")))
    (gain,) = by_code(of_rows([BASE, slow, fast]), "gain_measured")
    assert (gain.data["option"], gain.data["value"]) == ("loader", "b")
    assert gain.data["gain_pct"] == pytest.approx(100 * (160 / 120 - 1))
    assert not by_code(of_rows([BASE, with_rate(slow, 900.0), fast]), "gain_measured")


# More are in test_planted_causes.py.
WORLDS = {
    "loader by turns": (replace(JOB, ranks=1), replace(JOB, by_turns_ms=20.0)),
    "bursts of the loader": (replace(JOB, ranks=1), replace(JOB, bursts_ms=40.0)),
    "loader at every size": (replace(JOB, all_load_ms=90.0, ranks=2), replace(JOB, all_load_ms=90.0)),
    "thin links": (replace(JOB, ranks=1), replace(JOB, nodes=2, network=Network(beta_gb_per_s=2.0))),
    "one size": (replace(JOB, all_load_ms=90.0),),
}  # fmt: skip
PROFILED, TIMED = {"none": 2, "torch": 1}, {"none": 3}
OUR_OPTIONS = ("grad:", "bucket_mb", "TFRecord", "dali", "synthetic")

# Stages alone tell of the loader.
KNOWN_BY_STAGES = ("loader by turns", "loader at every size")


@pytest.mark.parametrize(
    ("world", "repetitions"),
    [*((world, PROFILED) for world in WORLDS), *((world, TIMED) for world in KNOWN_BY_STAGES)],
)
def test_what_is_said_of_a_sweep_is_consistent(world, repetitions, tmp_path):
    write_sweep(tmp_path, WORLDS[world], seed=3, repetitions=repetitions, batches=30)
    for path in tmp_path.glob("run_*/manifest.json"):  # as if the site file had it
        manifest = store.read_record(path, store.Manifest)
        store.write_record(path, manifest.model_copy(update={"environment": {LINK: "100"}}))
    found = diagnose(Evidence(load(tmp_path)))
    check(found)
    # Each has a place on the page, and the page says the same.
    assert {one.code for one in found} <= set(PLACES)
    if world == "thin links" and repetitions is PROFILED:
        (link,) = by_code(found, "link")
        assert link.data["gbit_per_s"] == pytest.approx(16, rel=0.05) and link.data["nominal"] == 100
    if "loader" in world:
        assert next(one for one in found if one.data.get("kind")).data["cause"] == "data"


@pytest.mark.parametrize("part", [*PARTS])
def test_a_users_program_is_advised_none_of_our_options(part):
    row = {"program": "python train.py", "nodes": 1}
    late = late_8() if part == "late ranks" else []
    lost_in = lost(LOST_PCT, **{} if late else {part: 30.0})
    if part in BY_STAGES:
        lost_in = in_stages(**{part: LOST_PCT})
    what_ifs = [what_if(name, 30.0, **row) for name in ("fp16-gradients", "network=2x", "no-loader")]
    rows = [one | row for one in (BASE, point(8, 160.0, **lost_in))]
    found = of_rows(rows, [one | row for one in late], what_ifs)
    words = " ".join(str(one) for one in found if one.code in ("advice", "gain_simulated"))
    assert words and not any(option in words for option in OUR_OPTIONS)


def test_what_is_done_already_is_not_advised():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0), grad="fp16", bucket_mb=50)
    (advice,) = by_code(of_rows([BASE, row]), "advice")
    assert advice.data["advice"] == ["larger_batch", "faster_network"]


def test_traces_of_some_ranks_and_of_one_step_say_first_what_they_cannot_show(tmp_path):
    for name, batches, ranks in (("part", 12, 3), ("single", 1, 4)):
        planted = Planted(ranks=4, batches=batches, late=((2, 70.0),))
        for path in sorted(write_job(tmp_path / f"{name}_traces", planted).iterdir())[ranks:]:
            path.unlink()
        convert([str(tmp_path / f"{name}_traces"), "--out", str(tmp_path / name)])
        found = diagnose(Evidence(load(tmp_path / name)))
        check(found)
        assert found[0].code == {"part": "profiles_missing", "single": "one_step"}[name]


def test_watched_programs_sweeps_and_reports_end_with_the_first_lines(tmp_path, monkeypatch):
    write_sweep(tmp_path, WORLDS["loader at every size"], seed=3, repetitions=TIMED, batches=30)
    shown = run("analysis.summary", tmp_path, "--short")
    assert shown.code == 0 and "42 %" in shown.out
    assert sum(map(int, re.findall(r"(\d+) % \D*$", shown.out, re.MULTILINE)[:3])) == 100
    assert summary_of(tmp_path) == []
    monkeypatch.delenv(WITHOUT_SUMMARY)
    # Wherever lines break.
    assert " ".join(summary_of(tmp_path)).split() == shown.out.split()
    assert summary_of(tmp_path / "nothing") == []
    (step, *_) = run("analysis.report.__main__", tmp_path).err.splitlines()
    rows = run("analysis.summary", tmp_path, "--format", "json").json
    assert step == rows[0]["text"] and rows[0]["code"] == "step_takes"
    (waits,) = [row for row in rows if row["code"] == "step_waits"]
    assert waits["cause"] == "data" and waits["of"] == "8 GPUs" and waits["cost_ms"] > 80


@pytest.mark.parametrize(
    ("data", "first"),
    [
        ("kineto/dlrm_8ranks", "one_step"), ("kineto/nccl_data.json.gz", "profiles_missing"),
        ("kineto/resnet50_v100_dims_old_schema.json.gz", "traced_step_takes"),
        ("nsys/h100_2gpu_1s.sqlite", "traced_step_takes"),
        ("horovod/timeline_4ranks_cpu.json.gz", "scaling_unknown"),
    ],
)  # fmt: skip
def test_what_is_said_of_traces_is_consistent(data, first, shared_data, tmp_path):
    convert([str(shared_data / data), "--out", str(tmp_path)])
    found = diagnose(Evidence(load(tmp_path)))
    check(found)
    assert found[0].code == first and {one.code for one in found} <= set(PLACES)
    words = " ".join(map(str, found))
    assert not any(option in words for option in OUR_OPTIONS)


def test_tables_of_startup_are_said_to_be_no_answer_on_training(shared_data):
    found = diagnose(Evidence(load(shared_data / "surfboard" / "tau")))
    check(found)
    assert [one.code for one in found] == ["tables_of_startup"]
