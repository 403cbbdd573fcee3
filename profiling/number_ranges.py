"""Lists of numbers in short: those in a row as a range."""

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> list[str]:
    """{0, 1, 2, 8} -> ["0-2", "8"], in ascending order."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(low) if low == high else f"{low}-{high}" for low, high in runs]


def listed(numbers: Iterable[int], most: int = 8) -> str:
    """Numbers in a line, of which at most so many ranges: ``0-2, 8``."""
    texts = ranges(numbers)
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
