"""How does training scale, and how well does a batch use the device?

    python -m analysis.scaled DIR                                   results of a sweep, or reference files
    python -m analysis.scaled DIR --method corrected,published      both methods, one row each
    python -m analysis.scaled DIR --group-by batch,nodes --explain
    python -m analysis.scaled DIR --scaling strong                  fixed global batch size (default: the kind
                                                                    for which more configurations have a
                                                                    baseline)

One row per configuration and world size.
"""

from analysis.display import output
from analysis.display.terminal import MOST_NOTES, Answer
from analysis.measures.scaling import rows as scaling
from analysis.published.by_method import COLUMNS, METHODS, columns_of, rows
from analysis.published.scaled_parts import parts
from analysis.results.load import load
from profiling.errors import UserError, did_you_mean, run_command


def main() -> int:
    parser = output.parser("analysis.scaled", __doc__, columns=COLUMNS)
    parser.add_argument(
        "--method",
        default="corrected",
        metavar="METHOD,...",
        help="corrected, published, or both [corrected]",
    )
    parser.add_argument("--group-by", metavar="FIELD,...", help="fields of a run [every configuration]")
    parser.add_argument(
        "--scaling", choices=("weak", "strong"),
        help="weak: fixed per-GPU batch size; strong: fixed global batch size [the kind for which more "
        "configurations have a baseline]",
    )  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="show the effect of each correction, and why")
    parser.set_defaults(most_notes=MOST_NOTES)
    arguments = parser.parse_args()
    methods = _methods(arguments.method)
    group_by = output.parse_fields(arguments.group_by, ("world_size",))
    study = load(arguments.path, arguments.peaks)
    configurations = rows(study, methods, group_by, arguments.scaling)
    notes: list[str] = []
    if arguments.explain:
        from analysis.published.explain import explain

        own = scaling.rows(study, (), arguments.scaling) if study.of_kind("run") else []
        notes = explain(study, own)
    answer = Answer(configurations, columns_of(group_by), parts=parts(configurations, group_by), notes=notes)
    return output.emit(answer, study, arguments)


def _methods(text: str) -> list[str]:
    methods = [name.strip() for name in text.split(",") if name.strip()]
    for name in methods:
        if name not in METHODS:
            raise UserError(f"--method: unknown method {name!r}{did_you_mean(name, METHODS)}")
    return list(dict.fromkeys(methods)) or ["corrected"]


if __name__ == "__main__":
    run_command(main)
