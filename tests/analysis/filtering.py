"""What tests of filters ask: what a page says of a choice, and which runs have its levels."""

import shutil
from pathlib import Path

from analysis.report.filtered import Said
from analysis.report.render import Page
from jobs import store
from jobs.store import Manifest


def said_of(page: Page, **levels: str) -> tuple[int, Said]:
    """How many configurations a choice leaves, and what is said of them."""
    assert page.filtered is not None
    names = [one.name for one in page.filters]
    assert set(levels) <= set(names)
    choice = tuple(
        one.choices.index(levels[one.name]) + 1 if one.name in levels else 0 for one in page.filters
    )
    return page.filtered.said[page.filtered.of[choice]]


def with_levels(sweep: Path, folder: Path, **levels: str) -> Path:
    """A copy of the runs of a sweep that have these levels."""
    folder.mkdir(parents=True)
    for path in sweep.iterdir():
        if path.is_dir():
            fields = store.read_record(path / store.MANIFEST, Manifest).run.model_dump()
            if any(str(fields[name]) != level for name, level in levels.items()):
                continue
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy(path, folder)
    return folder
