"""The words that users read in help, tables, reports and messages: one for each thing (docs/glossary.md)."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from analysis.columns import commands
from analysis.display.metrics import FIELDS
from jobs.commands import GROUPS
from tests.test_docs import NOT_SAID as IN_DOCS
from tests.test_docs import around

ROOT = Path(__file__).resolve().parents[1]
_COUNTED = (
    "GPUs|ranks|batches|images|threads|calls|launches|samples|messages|FLOPs?|bytes|ms|[MG]B|runs|cores"
)
_EACH = "node|rank|GPU|second|batch|step|run|side|image|configuration"
# A turn that no page, table or message has, and what it says instead.
NOT_SAID = {
    **IN_DOCS,
    rf"(?:{_COUNTED}) an? (?:{_EACH})": "per node, per batch ...",
    r"an? (?:row|line|bar) an? \w+": "one row per run",
    r"batch(?: size)? of (?:a|one) (?:GPU|rank)": "per-GPU batch size",
    r"batch of the job is constant": "fixed global batch size",
    r"hold(?:s)? the truth": "contains the true value",
    r"again and again": "repeatedly",
    r"for want of": "no X: using Y",
    r"is not a value of it": "invalid loader 'x'",
    r"of no profiler known here": "unrecognised format",
    r"told apart": "separated, distinguished",
    r"honest": "95 % confidence interval",
    r"un-profiled|un-attributed": "unprofiled, unattributed",
    r"run the point again": "repeat the run",
    r"start-up": "startup",
    r"back-test": "backtest",
    r"utilis\w*": "utilization",
    r"(?:attributed|unrecorded) steps?": "profiled, unprofiled step",
    r"bandwidth-bound": "memory-bound",
    r"which (?:option|setting)s? matters?": "which factor matters",
}  # fmt: skip
_TWICE = {r"([a-z]+) \1": "the word once"}
# Text that says one of these in another sense.
ALLOWED = (
    "long long",  # C's type
    "warms up and records",  # the torch profiler's schedule: wait, warmup, active
)
# Shown by no command: patterns, SQL, names of columns.
_NOT_PROSE = re.compile(r"\(\?P?[<:]|\bselect\b.*\bfrom\b|^\w+$", re.DOTALL)


def faults(text: str, turns: Mapping[str, str] = NOT_SAID) -> list[str]:
    """What a text says, and should say otherwise: a line each."""
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    text = " ".join(text.split())
    found = ((instead, re.search(rf"(?i)\b(?:{turn})\b", text)) for turn, instead in turns.items())
    return [f"{around(match)}: say {instead}" for instead, match in found if match]


def shown(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each string of a module that may be shown: all but docstrings, patterns and SQL."""
    tree = ast.parse(path.read_text())
    hidden = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            hidden |= {id(one.value) for one in node.body if isinstance(one, ast.Expr)}
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(one) for one in ast.walk(node) if one is not node and isinstance(one, ast.Constant)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
        if " " in text and not _NOT_PROSE.search(text):
            yield node.lineno, text


@pytest.mark.parametrize("package", ["analysis", "profiling", "jobs", "train"])
def test_strings_that_are_shown_say_the_glossarys_words(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in shown(path)
        for fault in faults(text, NOT_SAID | _TWICE)
    ]
    assert not wrong, "\n".join(wrong)


def plurals_by_hand(path: Path) -> Iterator[int]:
    """The lines that choose between a word for one and for several themselves, not by profiling.wording."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.IfExp):
            ends = [one.value for one in (node.body, node.orelse) if isinstance(one, ast.Constant)]
            if len(ends) == 2 and all(isinstance(one, str) for one in ends):
                one, several = sorted(ends, key=len)
                if several in (f"{one}s", f"{one}es") or {one, several} in _VERBS:
                    yield node.lineno


_VERBS = ({"is", "are"}, {"has", "have"}, {"was", "were"})


@pytest.mark.parametrize("package", ["analysis", "profiling", "jobs", "train"])
def test_one_module_makes_plurals(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: say how_many, noun or verb of profiling/wording.py"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in plurals_by_hand(path)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "choice", ["'' if n == 1 else 's'", "'ranks' if n > 1 else 'rank'", "'is' if n else 'are'"]
)
def test_a_plural_by_hand_is_found(choice: str, tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text(f"said = {choice}\n")
    assert list(plurals_by_hand(module)) == [1]


def test_help_says_the_glossarys_words() -> None:
    modules = dict.fromkeys(module for group in GROUPS.values() for module in group)
    wrong = [
        f"python -m {module} --help: {fault}" for module in modules for fault in faults(_docstring(module))
    ]
    assert not wrong, "\n".join(wrong)


def _docstring(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.get_docstring(ast.parse(file.read_text())) or ""


def test_columns_say_the_glossarys_words() -> None:
    wrong = []
    for name, command in commands().items():
        for of, metrics in command.COLUMNS.items():
            wrong += [f"{name}: {fault}" for fault in faults(of)]
            for metric in (*metrics, *FIELDS.values()):
                heading = metric.header.replace("-\n", "").replace("\n", " ")
                wrong += [
                    f"{name} {metric.name}: {fault}" for fault in faults(f"{metric.meaning} | {heading}")
                ]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


# Other names of what a column of another answer is called already.
_SECOND_NAMES = {
    "repetitions": "runs", "repetitions_kept": "runs_kept",
    "ranks": "world_size", "gpus": "world_size", "n_gpus": "world_size", "base_ranks": "base_world_size",
    "timed_by": "kind_of_runs", "metered_on": "kind_of_runs",
    "kernel_ms": "kernel_ms_per_step", "peak_bytes": "peak_memory_bytes", "avg_us": "mean_us",
    "volume_mb": "volume_mbyte", "gain": "speedup",
}  # fmt: skip


def columns_by_command() -> dict[str, set[str]]:
    return {
        name: {one for metrics in command.COLUMNS.values() for metric in metrics for one in metric.names}
        for name, command in commands().items()
    }


def test_a_column_has_one_name_in_all_answers() -> None:
    by_command = columns_by_command()
    wrong = [
        f"{command}: {name} is called {_SECOND_NAMES[name]}"
        for command, names in by_command.items()
        for name in sorted(names & _SECOND_NAMES.keys())
    ]
    assert not wrong, "\n".join(wrong)
    # Nor are two things called alike: a definition, and a way to predict; steps of a run, averaged ones, or
    # those of a recurrent network.
    having = {name: {command for command, names in by_command.items() if name in names} for name in _ALIKE}
    assert having == _ALIKE


_ALIKE = {"method": {"scaled"}, "steps": {"batches", "tau_batches"}}


def test_names_of_columns_say_step() -> None:
    names = {
        metric.name
        for command in commands().values()
        for metrics in command.COLUMNS.values()
        for metric in (*metrics, *FIELDS.values())
    }
    # Options, and what depends on the size of a batch.
    known = {"batch", "batches", "batch_independent_pct", "global_batch"}
    assert {name for name in names if "batch" in name} == known


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_pages_say_the_glossarys_words(page: str) -> None:
    assert not faults((ROOT / page).read_text())


@pytest.mark.parametrize(
    "text",
    ["images a second", "4 GPUs a node", "its unprofiled twin", "the base point", "a warm-up of 5 batches",
     "batches are told by the end of Optimizer.step, for want of ProfilerStep", "a row a run",
     "GPU utilisation"],
)  # fmt: skip
def test_a_private_turn_is_found(text: str) -> None:
    assert faults(f"Here {text} is said.")


def test_what_is_shown_is_found(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text(
        '"""A twin."""\nX = f"a twin of {1}"\n\n\ndef f():\n    """A twin."""\n    return "no twin"\n'
    )
    assert list(shown(module)) == [(2, "a twin of {}"), (7, "no twin")]
