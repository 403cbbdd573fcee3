"""benchmarks.gpu_wheels, and --wheels of benchmarks.gpu: what a machine without a package registry needs."""

import zipfile
from pathlib import Path

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
