"""Scaling efficiency, what is lost, and use of the device.

    python -m analysis.scaled DIR                                   results of a sweep, or the reference's
                                                                    files; default: newest sweep in results/
    python -m analysis.scaled DIR --method corrected,published      both methods, one row each
    python -m analysis.scaled DIR --group-by batch,nodes --explain
    python -m analysis.scaled DIR --scaling strong                  with a fixed global batch size
    python -m analysis.scaled 1=DIR 2=DIR 4=DIR                     watched runs or converted traces of a
                                                                    program on 1, 2 and 4 ranks

One row per configuration and world size.
"""

from analysis.display.output import parse_list
from analysis.frames.load import load_named
from analysis.frames.measure import SCALING, Command, fields, flag
from analysis.frames.study import Study


def _methods(text: str, _: Study) -> list[str]:
    return parse_list(text, ("corrected", "published"), "--method: unknown method") or ["corrected"]


main = Command(
    __name__, "scaled", __doc__,
    flag(
        "--method", _methods, default="corrected", metavar="METHOD,...",
        help="corrected, published (as the reference study computed it), or both [corrected]",
    ),
    fields("world_size"),
    SCALING,
    flag("--explain", action="store_true", help="show the effect of each correction of the published method"),
    flag(
        "more", nargs="*", default=[], metavar="P=DIR", of_study=True,
        help="watched runs or converted traces, with their number of ranks",
    ),
    newest=True, load=lambda given: load_named([str(given.path), *given.more], given.peaks),
)  # fmt: skip
