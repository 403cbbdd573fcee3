"""The structure holds: imports run one way, pins agree, the package's name hides nothing."""

import ast
import importlib
import re
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from jobs.machine import is_tested

ROOT = Path(__file__).resolve().parents[1]
# Ceilings of the product; who needs more deletes something first.
MOST_FILES, MOST_LINES = 191, 39_500
OURS = {"jobs", "train", "profiling", "analysis", "tests", "benchmarks"}
# package -> which modules of other packages it may import (a prefix)
MAY_IMPORT = {
    "profiling": (),
    "jobs": ("profiling",),
    "train": (
        *("jobs.run", "jobs.run_fields", "jobs.store"),
        *("jobs.by_hand", "jobs.failures", "jobs.machine", "jobs.processes"),
        "profiling",
    ),
    "analysis": (*("jobs.run", "jobs.run_fields", "jobs.store"), "profiling"),
}
# The layers of a package, each a package in it, from the bottom up: each may import those below it, none
# those above; those in brackets are beside each other. Files beside them are commands, which import any layer
# and no other command; of profiling all but two lie below its layers.
LAYERS = {
    "analysis": ("estimates", "display", "frames", "measures", "prediction", "diagnosis", "report"),
    "profiling": ("cost", "attribution", "readers", "tools", "traces", "watching"),
}
COMMANDS_OF_PROFILING = {"profiling.convert", "profiling.wrap", "profiling.watch"}
# A program that is watched leaves what a rank of ours leaves, so this command lies above ``jobs``, and is
# imported by nobody.
ABOVE_JOBS = {"profiling.watch": ("jobs.by_hand", "jobs.store", "jobs.failures")}
# What a function may import, for it takes long to load, or is not on every machine. All else is imported at
# the head of a file, or by a command when its arguments are known (benchmarks.startup).
DEFERRED = {
    *("torch", "torchvision", "pandas", "scipy", "rich", "plotly", "jinja2", "perfetto", "cxxfilt"),
    *("pydantic_core", "argcomplete", "cupti", "horovod", "mpi4py", "PIL", "pynvml", "pytau"),
}
HEAVY = {"torch", "torchvision", "nvidia.dali"}


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return frozenset(found)


def imports_in_functions(path: Path) -> set[str]:
    """The modules that are imported by functions of a file."""
    found = set()
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    found |= {name.name for name in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module)
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_run_one_way(package):
    for path in (ROOT / package).rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for module in imports_of(path):
            other = module.split(".")[0]
            if other in OURS - {package}:
                permitted = (*MAY_IMPORT[package], *ABOVE_JOBS.get(name, ()))
                allowed = any(f"{module}.".startswith(f"{prefix}.") for prefix in permitted)
                assert allowed, f"{path.relative_to(ROOT)} imports {module}"


def tree_of_imports() -> dict[str, set[str]]:
    """Which of our modules each of them imports, inside functions and under TYPE_CHECKING too."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in MAY_IMPORT
        for path in (ROOT / package).rglob("*.py")
    }
    tree: dict[str, set[str]] = {}
    for module, path in files.items():
        tree[module] = set()
        for name in imports_of(path):
            while name and name not in files:
                name = name.rpartition(".")[0]
            tree[module] |= {name} - {"", module}
    return tree


def test_no_imports_go_round_in_a_circle():
    left = tree_of_imports()
    # What imports nothing that is left is taken away; what remains is in circles, or imports them.
    while free := {module for module, imports in left.items() if not imports & left.keys()}:
        left = {module: imports for module, imports in left.items() if module not in free}
    assert sorted(left) == []


def layer_of(module: str) -> int:
    """The layer of a module of ``analysis`` or ``profiling``: commands highest, what is in none lowest."""
    package, *rest = module.split(".")
    for number, layer in enumerate(LAYERS[package]):
        if rest and rest[0] in ([layer] if isinstance(layer, str) else layer):
            return number
    below = package == "profiling" and module not in COMMANDS_OF_PROFILING
    return -1 if below or not rest else len(LAYERS[package])


@pytest.mark.parametrize("package", LAYERS)
def test_no_import_runs_to_a_higher_layer_and_nobody_imports_a_command(package):
    for module, imports in tree_of_imports().items():
        for other in imports:
            if module.split(".")[0] == package == other.split(".")[0]:
                top = package == "analysis" and layer_of(other) == len(LAYERS[package])
                assert layer_of(other) <= layer_of(module) and not top, f"{module} imports {other}"


def test_nobody_imports_a_command_that_lies_above_the_packages():
    for module, imports in tree_of_imports().items():
        assert not imports & set(ABOVE_JOBS), f"{module} imports {imports & set(ABOVE_JOBS)}"


def printed(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip()


def modules_of(package: str) -> list[str]:
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "__main__.py"
    ]


@pytest.mark.parametrize("package", ["analysis", "profiling", "jobs"])
def test_a_laptop_without_torch_can_import_it(package):
    code = f"import sys\nfor m in {modules_of(package)!r}: __import__(m)\n"
    code += f"print(sorted(set(sys.modules) & {HEAVY!r}))"
    assert printed(code) == "[]"


def requirements(*groups: str) -> set[str]:
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {requirement.split(";")[0].strip() for group in groups for requirement in optional[group]}


def is_command(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    runs = 'if __name__ == "__main__":' in text or re.search(r"^main = Command\(\s*__name__,", text, re.M)
    return path.name == "__main__.py" or bool(runs)


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_functions_import_only_what_takes_long_or_may_be_absent(package):
    sprinkled = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if not is_command(path)
        for module in imports_in_functions(path)
        if module.split(".")[0] not in DEFERRED
    }
    assert sprinkled == set()


def test_every_requirement_is_pinned_but_those_of_an_environment_of_the_users_own():
    groups = ("full", "test", "watch-test", "mpi", "cupti", "benchmark")
    assert all("==" in requirement for requirement in requirements(*groups))
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {one.partition(">=")[0] for one in own} < {one.partition("==")[0] for one in requirements("full")}


def test_the_conda_environment_pins_what_the_project_pins():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert requirements("full") <= set(pip) <= requirements("full", "test", "mpi")
    assert len(pip) == len(set(pip))


def test_the_environment_for_older_gpus_differs_in_what_is_built_for_cuda_alone():
    both = [yaml.safe_load((ROOT / f"environment{kind}.yml").read_text()) for kind in ("", "-cuda12")]
    new, old = (set(entry["pip"]) for one in both for entry in one["dependencies"] if isinstance(entry, dict))
    assert {pin.partition("==")[0] for pin in new - old} == {"torch", "torchvision", "nvidia-dali-cuda130"}
    assert {pin.partition("==")[0] for pin in old - new if "==" in pin} == {
        "torch", "torchvision", "nvidia-dali-cuda120",
    }  # fmt: skip
    versions = [dict(pin.split("==") for pin in pins) for pins in (new, old)]
    assert versions[0]["nvidia-dali-cuda130"] == versions[1]["nvidia-dali-cuda120"]
    assert is_tested(versions[1]["torch"])
    for pins in versions:
        (torch, _, cuda), (vision, _, cuda_of_vision) = (
            pins[name].partition("+") for name in ("torch", "torchvision")
        )
        # Release 2.N of PyTorch is made with 0.(N + 15) of torchvision, for the same CUDA.
        assert int(vision.split(".")[1]) == int(torch.split(".")[1]) + 15 and cuda == cuda_of_vision
    beside = [[entry for entry in one["dependencies"] if isinstance(entry, str)] for one in both]
    assert beside[0] == beside[1] and both[0]["channels"] == both[1]["channels"]


def test_both_container_files_hold_the_same():
    files = ("Dockerfile", "scaleprof.def")
    texts = [
        re.sub(r"\\\n\s*", " ", (ROOT / "containers" / name).read_text()) for name in files
    ]  # lines joined
    images = [re.findall(r"^from:? (\S+)$", text, re.MULTILINE | re.IGNORECASE) for text in texts]
    packages = [set(re.search(r"apt-get install ([^&\n]*)", text)[1].split()) for text in texts]
    assert images[0] == images[1] and len(images[0]) == 1
    assert packages[0] == packages[1] and len(packages[0]) > 3
    for step in ("pip install --no-cache-dir '.[full,mpi]'", "train/backends/build_horovod.sh /usr/local"):
        assert all(step in text for text in texts)


def test_our_profiling_package_hides_none_of_the_standard_librarys():
    profiling = importlib.import_module("profiling")
    # From Python 3.15 on there is a second place to look: the standard library's own package.
    places = [Path(place) for place in profiling.__path__]
    assert places[0] == ROOT / "profiling"
    if sys.version_info >= (3, 15):
        assert importlib.import_module("profiling.tracing") and len(places) > 1
    subprocess.run([sys.executable, "-c", "import cProfile; cProfile.run('1')"], cwd=ROOT, check=True,
                   capture_output=True)  # fmt: skip


def test_a_second_profiling_package_on_the_path_is_reached_through_ours(tmp_path):
    other = tmp_path / "profiling"
    other.mkdir()
    (other / "__init__.py").write_text("")
    (other / "sampling.py").write_text("ANSWER = 42")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import profiling.sampling as s; print(s.ANSWER)"
    assert printed(code) == "42"


def test_no_path_or_host_of_a_developers_machine_is_in_the_project():
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
    # A clone in the folder for temporary files shares that with many a script.
    places = {ROOT, ROOT.parent, Path.home()} - {Path("/"), Path(tempfile.gettempdir()).resolve()}
    for name in tracked.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".json"} and path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not any(f"{place}/" in text for place in places), name


def test_the_product_is_no_larger_than_its_ceiling():
    files = [path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert len(files) <= MOST_FILES and lines <= MOST_LINES
