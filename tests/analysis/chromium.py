"""A browser that nobody sees, where one is installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NONE = "no Chromium on this machine: apt-get install chromium"


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser; without Chromium the test is skipped."""
    if CHROMIUM is None:
        pytest.skip(NONE)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()
