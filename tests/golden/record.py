"""Record the golden answers anew: python -m tests.golden.record [WORD in the names of cases]."""

import sys
import tempfile
from pathlib import Path

from tests.golden.cases import ANSWERS, answers


def main() -> None:
    word = sys.argv[1] if sys.argv[1:] else ""
    ANSWERS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        recorded = {f"{name}.csv": text for name, text in answers(Path(folder)) if word in name}
    for path in () if word else ANSWERS.glob("*.csv"):
        if path.name not in recorded:
            path.unlink()
    for name, text in recorded.items():
        (ANSWERS / name).write_text(text)
        print(f"{name}: {text.count(chr(10)) - 1} rows")


if __name__ == "__main__":
    main()
