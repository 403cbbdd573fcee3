"""The pages that people read: their links, the commands they name, and the words they use."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from jobs.commands import COMMANDS
from jobs.run import Run

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What is written by hand for users: these pages, and the comments of files that they copy and edit.
WRITTEN = [
    *(page for page in PAGES if page.name != "columns.md"),
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "configs").glob("*.yaml")),
    *sorted((ROOT / "jobs" / "sites").glob("*.yaml")),
    *sorted((ROOT / "slurm").glob("*.sh")),
]
# One word for a thing (docs/glossary.md): what is not said, and what is said instead.
NOT_SAID = {
    r"base points?": "baseline",
    r"twins?": "unprofiled run",
    r"warm-up": "warmup",
    r"speed-ups?": "speedup",
    r"an? (GPU|rank|node|step|batch) each": "per GPU, per rank ...",
    r"(GPUs|ranks|batches|images|threads) an? (node|rank|GPU|second|batch|step|run)": "per node ...",
    r"goes on where": "resumes",
    r"told by": "is read from, uses",
    r"over that of": "divided by, relative to",
}


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor) of each link to a file of the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            yield (page.parent / name if name else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        assert path.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {path.name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_files_exist(page: Path) -> None:
    text = page.read_text()
    for module in set(re.findall(r"python -m ([a-z_]+(?:\.[a-z_]+)*)", text)) - {"pip"}:
        place = ROOT.joinpath(*module.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module
    mine = {"configs/mine.yaml", "jobs/sites/mycluster.yaml"}
    for name in set(re.findall(r"\b(?:configs|slurm|jobs/sites)/[\w./]+\.(?:yaml|sh)\b", text)) - mine:
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_glossary_is_in_order_and_defines_a_term_once() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=str.lower)


def only_the_glossarys(text: str, where: str) -> None:
    """No text says what the glossary calls otherwise."""
    for pattern, instead in NOT_SAID.items():
        for found in re.finditer(rf"(?i)\b{pattern}\b", text):
            around = text[max(0, found.start() - 40) : found.end() + 40]
            raise AssertionError(f"{where}: ...{around}...: say {instead}")


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_words_are_the_glossarys(page: Path) -> None:
    text = re.sub(r"^ {4}.*$|^#SBATCH.*$", "", page.read_text(), flags=re.MULTILINE)
    only_the_glossarys(re.sub(r"\s+", " ", text), page.name)


def texts(path: Path) -> Iterator[str]:
    """What a module may print: strings that are no docstrings, and the docstring of a command (its help)."""
    tree = ast.parse(path.read_text())
    scopes = [one for one in ast.walk(tree) if isinstance(one, ast.Module | ast.ClassDef | ast.FunctionDef)]
    first = [scope.body[0] for scope in scopes if scope.body]
    docstrings = {id(statement.value) for statement in first if isinstance(statement, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
    if ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") in COMMANDS.values():
        yield ast.get_docstring(tree) or ""


@pytest.mark.parametrize("package", ["analysis", "jobs", "profiling", "train"])
def test_programs_say_the_glossarys_words(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        for text in texts(path):
            only_the_glossarys(text, str(path.relative_to(ROOT)))


def test_help_of_options_says_the_glossarys_words() -> None:
    for name, field in Run.model_fields.items():
        assert field.description, name
        only_the_glossarys(field.description, name)
