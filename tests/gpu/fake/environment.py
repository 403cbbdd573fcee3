"""The environment with stand-ins for NVIDIA's libraries (fake_gpu.sh), and its Python."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("fake_gpu.sh")
HERE = Path(os.environ.get("SCALEPROF_FAKE_GPU", ROOT / ".venv-gpu-fake"))
LIMIT_S = 280  # of what takes seconds on a machine that does nothing else; less than a hang takes to end


def with_variables(variables: dict) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in variables.items()}}


def run(*arguments: object, limit_s: float = LIMIT_S, **variables: object) -> tuple[int, str]:
    """Its Python, with these arguments: the exit code, and what is said."""
    done = subprocess.run(
        [str(SCRIPT), "run", str(HERE), *map(str, arguments)], cwd=ROOT, env=with_variables(variables),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout
