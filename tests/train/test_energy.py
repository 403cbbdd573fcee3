"""Energy of the timed batches, and power of what is repeated: counters, readings, or why there are none."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from train import energy
from train.energy import Meters, Used, nvml_counter, open_meters, open_rapl

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


def package(
    powercap: Path, number: int, energy_uj: int, most_uj: int = 10**9, name: str = "package-0"
) -> Path:
    """A made-up /sys/class/powercap/intel-rapl:N."""
    path = powercap / f"intel-rapl:{number}"
    path.mkdir()
    for file, content in (("energy_uj", energy_uj), ("max_energy_range_uj", most_uj), ("name", name)):
        (path / file).write_text(f"{content}\n")
    return path


def ticking(*seconds: float):
    left = iter(seconds)
    return lambda: next(left)


class NvmlError(Exception):
    pass


def nvml_of(*millijoules: int) -> Mock:
    """What NVML says: the counter of an H100, in millijoules."""
    values = [*millijoules, *[NvmlError("Not Supported")] * 3]
    return Mock(NVMLError=NvmlError, nvmlDeviceGetTotalEnergyConsumption=Mock(side_effect=values))


def test_packages_add_up_and_counters_wrap_around(tmp_path):
    one, other = package(tmp_path, 0, 990_000_000), package(tmp_path, 1, 5_000_000)
    meters = Meters(None, open_rapl(tmp_path), ticking(10.0, 10.5))
    (other / "energy_uj").write_text("4000000\n")  # what was used before the batches does not count
    meters.start()
    (one / "energy_uj").write_text("19999999\n")  # over the top: 10 J to it, 1 uJ at it, 20 J less 1 uJ after
    (other / "energy_uj").write_text("12000000\n")
    used = meters.stop()
    assert (used.seconds, used.processors_j) == (0.5, pytest.approx(30 + 8)) and used.why_not == []


def test_each_package_of_a_node_is_metered_once_by_its_first_rank(tmp_path):
    package(tmp_path, 0, 0)
    package(tmp_path, 1, 0, name="psys")  # the whole machine
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of a package
    for local_rank, told in ((0, 0.0), (1, None)):
        meters = open_meters([torch.device("cpu")], local_rank, tmp_path, ticking(0.0, 0.5))
        meters.start()
        (tmp_path / "intel-rapl:1" / "energy_uj").write_text(f"{7 + local_rank}000000")
        used = meters.stop()
        assert (used.processors_j, used.why_not) == (told, [])


def test_counters_that_may_have_wrapped_twice_tell_nothing(tmp_path):
    """A range of 262 J at 100 W at most: unambiguous for 2.62 s."""
    (package(tmp_path, 0, 0, most_uj=262_000_000) / "constraint_0_power_limit_uw").write_text("100000000")
    counter = open_rapl(tmp_path)
    meters = Meters(None, counter, ticking(0.0, 3.0))
    meters.start()
    used = meters.stop()
    assert used.processors_j is None and len(used.why_not) == 1
    assert counter.unambiguous_s == pytest.approx(2.62)


@pytest.mark.parametrize("before_start", [False, True])
def test_a_counter_that_goes_away_costs_its_figure_and_not_the_run(tmp_path, before_start):
    path = package(tmp_path, 0, 5)
    meters = Meters(nvml_counter(nvml_of(1, 2), "GPU-1"), open_rapl(tmp_path), ticking(0.0, 0.1))
    if not before_start:
        meters.start()
    (path / "energy_uj").unlink()
    if before_start:
        meters.start()
    used = meters.stop()
    assert (used.device_j, used.processors_j) == (None, None)
    assert [why.split(":")[0] for why in used.why_not] == ["NVML", "RAPL"]


@pytest.mark.parametrize(
    ("seconds", "joules", "why"),
    [(0.8, 300.0, ["12.5%"]), (0.05, 300.0, ["100.0%"]), (8.0, 300.0, []), (0.8, None, [])],
)
def test_energy_of_a_short_run_is_uncertain(seconds, joules, why):
    assert [finding.data["why"] for finding in Used(seconds, joules).findings] == why


# --- power --------------------------------------------------------------------------------------------


def test_a_gpus_power_comes_from_its_counter(monkeypatch):
    import pynvml

    def has_none(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    gpu, asked, values = torch.device("cuda", 0), [], iter([5, 1_000_000, 1_123_400])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: asked.append(uuid) or "handle")
    monkeypatch.setattr(pynvml, ENERGY, has_none)
    assert energy.open_meter(gpu)(lambda: None, 0, 0) == energy.Metered(None, 0, 0, "NVML: Not Supported")
    # One reading to see whether there is any, then those of the meter.
    monkeypatch.setattr(pynvml, ENERGY, lambda handle: next(values, None) or has_none(handle))
    meter = energy.open_meter(gpu)
    used = meter(lambda: None, 0, settle_s=0)
    assert used.watts * used.seconds == pytest.approx(123.4) and set(asked) == {b"GPU-1-2"}
    assert meter(lambda: None, 0, settle_s=0).watts is None
