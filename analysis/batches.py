"""Step durations of each run, by stage.

    python -m analysis.batches DIR

One row per run. A step of a job ends when its slowest rank does, so the duration of a step is the maximum
over ranks.
"""

from analysis.display import output
from analysis.display.terminal import Answer
from analysis.frames.load import load
from analysis.measures.batches import COLUMNS, columns_of, part, rows
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    arguments = output.parser("analysis.batches", __doc__, columns=COLUMNS).parse_args(words)
    study = load(arguments.path, arguments.peaks)
    answer = rows(study)
    return output.emit(Answer(answer, columns_of(answer), [part(answer)]), study, arguments)


if __name__ == "__main__":
    run_command(main)
