"""How does a run become processes? One class a launcher, one line in :data:`LAUNCHERS`."""

from collections.abc import Callable

from jobs.launchers.base import Launcher
from jobs.launchers.local import Local

LAUNCHERS: dict[str, Callable[[], Launcher]] = {"local": Local}
