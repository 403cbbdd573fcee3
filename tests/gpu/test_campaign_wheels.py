"""benchmarks.gpu_wheels, and --wheels of benchmarks.gpu: what a machine without a package registry needs."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu_wheels


def a_wheel(folder: Path, name: str, place: str = "", tag: str = "py3-none-any") -> None:
    """The smallest wheel that pip takes: a module, in a folder of its name or in ``place``."""
    about = f"{name}-1.0.dist-info"
    files = {
        f"{place}{name}.py": f"HERE = {name!r}",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def test_wheels_are_unpacked_without_a_registry_and_once(tmp_path):
    for name in ("first_tiny", "second_tiny"):
        a_wheel(tmp_path / "wheels", name)
    (tmp_path / "work" / "site.partial").mkdir(parents=True)  # of an installation that was interrupted
    (tmp_path / "work" / "site.partial" / "first_tiny.py").write_text("HERE = ")
    site, absent = gpu_wheels.install(tmp_path / "wheels", tmp_path / "work")
    assert (site / "first_tiny.py").read_text() == "HERE = 'first_tiny'"
    assert absent == {} and site == (tmp_path / "work" / "site").resolve()
    assert {path.name for path in site.glob("*.py")} == {"first_tiny.py", "second_tiny.py"}
    (tmp_path / "wheels" / "first_tiny-1.0-py3-none-any.whl").unlink()
    assert gpu_wheels.install(tmp_path / "wheels", tmp_path / "work") == (site, {})  # it is done once


def test_a_wheel_that_does_not_fit_is_named_and_costs_no_other(tmp_path):
    wheels = tmp_path / "wheels"
    for name in ("dali", "codec"):  # both below nvidia/, as NVIDIA's are
        a_wheel(wheels, name, "nvidia/")
    a_wheel(wheels, "older", tag="cp27-none-any")
    site, absent = gpu_wheels.install(wheels, tmp_path / "work")
    assert list(absent) == ["older"] and "older" in absent["older"]
    assert {path.name for path in (site / "nvidia").iterdir()} == {"dali.py", "codec.py"}


@pytest.mark.parametrize(
    ("dali", "refused"),
    [(True, None), (False, None), (True, "nvidia-dali-cuda130"), (True, "cupti-python")],
)
def test_dali_comes_with_all_that_it_needs_and_a_wheel_that_is_not_there_costs_no_other(
    tmp_path, monkeypatch, dali, refused
):
    """Its decoder loads nvJPEG, which torch does not bring: without it images are decoded on the CPU."""
    without_needs: dict[str, bool] = {}

    def run(words, check):
        wanted = {word.partition("==")[0] for word in words if "==" in word}
        if refused in wanted:
            assert not check
            return subprocess.CompletedProcess(words, 1)
        without_needs.update(dict.fromkeys(wanted, "--no-deps" in words))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(gpu_wheels.subprocess, "run", run)
    left_out = gpu_wheels.download(tmp_path, dali, "3.12")
    assert [one.partition("==")[0] for one in left_out] == ([refused] if refused else [])
    assert without_needs["pydantic"] is False
    there = {"nvidia-dali-cuda130": False, "cupti-python": True}
    wanted = set(there) - {refused} - (set() if dali else {"nvidia-dali-cuda130"})
    assert {name: one for name, one in without_needs.items() if name in there} == {
        name: there[name] for name in wanted
    }
