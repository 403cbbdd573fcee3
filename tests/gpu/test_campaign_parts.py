"""The parts of benchmarks.gpu on a CPU: what one notes, what costs what, and the commands that it starts."""

import itertools
import tarfile
import time

import pytest
import torch

from benchmarks import gpu_checks, gpu_commands, training
from benchmarks.gpu_part import ON_CPU, OUT_OF_TIME, Part, command
from jobs.run import make_run
from jobs.sweep_file import expand, read_sweep

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def part(tmp_path) -> Part:
    """A part with minutes of time, in a folder whose name has a space."""
    out, work = tmp_path / "my results", tmp_path / "my results" / "work"
    (work / "parts").mkdir(parents=True)
    return Part("batches", CPU, ON_CPU, out, work, time.monotonic() + 600)


WIDE = [pytest.param(name, marks=pytest.mark.wide) for name in ("precisions", "backends")]


@pytest.mark.parametrize("name", ["clocks", "loaders", *WIDE])
def test_the_checks_hold_on_a_cpu(tmp_path, name):
    lab = gpu_checks.Lab(CPU, tmp_path, gpu_checks.make_data(tmp_path, 16))
    checks = gpu_checks.CHECKS[name](lab)
    assert checks and all(check.right for check in checks), checks


class Flat(torch.nn.Module):
    """A layer that keeps the types in which it was multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.types = torch.nn.Linear(12, 10), set()

    def forward(self, images):
        result = self.layer(images.flatten(1))
        self.types.add(result.dtype)
        return result


@pytest.mark.parametrize(
    ("compute", "kind"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_the_bare_loop_computes_as_ours_does(compute, kind):
    """GPUs without bf16 are compared in fp16, for which a bare loop in fp32 would be no peer."""
    run = make_run({"device": "cpu", "loader": "synthetic", "compute": compute})
    batch, model = (torch.ones(2, 3, 2, 2), torch.zeros(2, dtype=torch.long)), Flat()
    before = model.layer.weight.detach().clone()
    training.bare_loop(run, CPU, model, itertools.repeat(batch))(2)
    step = (model.layer.weight.detach() - before).abs().max()
    assert model.types == {kind}
    assert 0 < step < 1  # a scaled loss is scaled back


def a_module(tmp_path, monkeypatch, text: str) -> str:
    (tmp_path / "a_command.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "a_command"


def test_a_command_whose_time_is_up_is_ended(tmp_path, monkeypatch, capsys):
    name = a_module(tmp_path, monkeypatch, "import time; print('begun'); time.sleep(1000)")
    before = time.monotonic()
    assert command([name], 5)[0] == OUT_OF_TIME
    assert time.monotonic() - before < 60 and "begun" in capsys.readouterr().out


class Commands:
    """Instead of ``command``: what was asked for, with the exit codes that each is to have."""

    def __init__(self, monkeypatch, **codes: int) -> None:
        self.codes, self.asked = codes, []
        monkeypatch.setattr(gpu_commands, "command", self)

    def __call__(self, words, seconds, bare=False):
        self.asked.append(words)
        if words[0] == "analysis.report" and not self.codes.get("report"):
            (gpu_commands.Path(words[1]) / "report.html").write_text("<p>")
        return self.codes.get(words[0].rpartition(".")[2], 0), "its last line"


def test_a_sweep_is_run_answered_and_kept_with_its_report(part, monkeypatch):
    commands = Commands(monkeypatch)
    gpu_commands.sweep(part)
    names = ["jobs.sweep", "analysis.scaled", "analysis.kernels", "analysis.report"]
    assert [words[0] for words in commands.asked] == names
    # Their paths have a space.
    assert commands.asked[0][1:] == [str(part.work / "sweep.yaml"), "--out", str(part.work)]
    assert all(words[1:] == [str(part.work / "sweep")] for words in commands.asked[1:])
    assert part.tables[0]["rows"] == [[name, 0] for name in names]
    assert (part.out / "report.html").read_text() == "<p>"
    with tarfile.open(part.out / "sweep.tar.gz") as pack:
        assert "sweep/report.html" in pack.getnames()
    runs, _ = expand(read_sweep(part.work / "sweep.yaml"))
    assert sorted(run.configuration.profile for run in runs) == ["none", "none", "torch"]
