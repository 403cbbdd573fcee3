"""Did the driver refuse a profiler the counters of a GPU, and what grants them?"""

import re
from collections.abc import Iterable
from pathlib import Path

from profiling.chunks import read_head
from profiling.errors import UserError

# What NVIDIA's tools print: the error's name, or the page that explains it.
_REFUSED = re.compile(rb"ERR_NVGPUCTRPERM|NVSOLN1000")
GRANT = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"


def check_permission(tool: str, outputs: Iterable[Path]) -> None:
    """Raise where a tool says, in what it wrote, that it may not read counters.

    Raises:
        UserError: it may not; the message holds the line that grants it.
    """
    for path in outputs:
        if path.is_file() and _REFUSED.search(read_head(path)):
            raise UserError(
                f"{tool} has no permission to read the GPU's counters; an administrator grants it with the "
                f"line `{GRANT}` in a file of /etc/modprobe.d and a restart"
            )
