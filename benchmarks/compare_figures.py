"""Do two checkouts say the same of the same results? Every command's CSV, figure by figure.

    python compare_figures.py OLD NEW RESULTS...

Lists by command and column how many rows differ, with the first pair, and the columns that came or went.
"""

import csv
import io
import subprocess
import sys
from pathlib import Path

COMMANDS = (
    ("scaled",), ("scaled", "--method", "corrected,published"), ("batches",), ("anatomy",),
    ("anatomy", "--by", "rank,stage"), ("communication",), ("communication", "--by", "rank"), ("kernels",),
    ("kernels", "--by", "operator"), ("efficiency",), ("efficiency", "--method", "published"), ("factors",),
    ("activities",), ("utilization",), ("stragglers",), ("expense",), ("predict",), ("hotspots",),
    ("tau_batches",),
)  # fmt: skip


def answer(checkout: Path, words: tuple[str, ...], results: str) -> list[dict[str, str]] | None:
    """A command's rows; None: it has none for these results."""
    command = [sys.executable, "-m", f"analysis.{words[0]}", results, *words[1:], "--format", "csv"]
    ran = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    return list(csv.DictReader(io.StringIO(ran.stdout))) if ran.returncode in (0, 1) else None


def differences(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[str]:
    if len(old) != len(new):
        return [f"{len(old)} rows, now {len(new)}"]
    if not old:
        return []
    lines = [f"column {name} is gone" for name in old[0] if name not in new[0]]
    came = [name for name in new[0] if name not in old[0]]
    lines += [f"{len(came)} columns more"] if came else []
    for name in (name for name in old[0] if name in new[0]):
        pairs = [(a[name], b[name]) for a, b in zip(old, new, strict=True) if a[name] != b[name]]
        if pairs:
            was, now = pairs[0]
            lines.append(f"{name}: {len(pairs)} of {len(old)} rows, first {was!r}, now {now!r}")
    return lines


def main() -> None:
    before, after = (Path(name).resolve() for name in sys.argv[1:3])
    for results in (str(Path(name).resolve()) for name in sys.argv[3:]):
        for words in COMMANDS:
            old, new = (answer(checkout, words, results) for checkout in (before, after))
            said = f"{Path(results).name}: {' '.join(words)}"
            if old is None or new is None:
                print(f"{said}: {'no answer, before and now' if old is new else 'an answer only once'}")
                continue
            lines = differences(old, new)
            print(f"{said}: {len(new)} rows, {'the same' if not lines else '; '.join(lines)}", flush=True)


main()
