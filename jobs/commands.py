"""The command ``scaleprof``: all commands in groups, each with the first line of its docstring.

Commands are run by name and never imported, so that the list does not need their dependencies.
"""

import ast
import os
import runpy
import sys
from importlib import metadata

from jobs import ROOT
from jobs.run_fields import make_parser
from profiling.arguments import complete, completion_is_asked
from profiling.errors import EXIT_DONE, UserError, did_you_mean, run_command

# A group's question, and the modules that answer it. A command's name is the last word of its module's.
GROUPS = {
    "What can this machine do?": ("jobs.doctor", "jobs.site", "jobs.check", "train.calibrate"),
    "What should be measured?": (
        "jobs.sweep", "train", "train.data", "profiling.watch", "profiling.convert",
        "profiling.flight_recorder",
    ),
    "How does training scale, and what is lost where?": (
        "analysis.summary", "analysis.report", "analysis.scaled", "analysis.batches", "analysis.anatomy",
        "analysis.communication", "analysis.stragglers", "analysis.timeline", "analysis.expense",
    ),
    "How well is the device used?": (
        "analysis.efficiency", "analysis.kernels", "jobs.hotspots", "analysis.utilization",
        "analysis.activities", "analysis.functions", "analysis.tau_batches",
    ),
    "What matters, and what would change it?": (
        "analysis.critical_path", "analysis.factors", "analysis.compare", "analysis.predict",
        "analysis.plan",
    ),
    "What does one node show before the big sweep?": (
        "train.studies.capacity", "train.studies.layers", "train.studies.order", "train.studies.gemm",
        "analysis.studies",
    ),
    "What do the columns mean?": ("analysis.columns",),
}  # fmt: skip
_TAIL = """\
scaleprof COMMAND --help explains a command and its flags, --columns the columns of its results.
scaleprof COMMAND ... is the same as python -m MODULE ..., e.g. python -m analysis.scaled DIR.
scaleprof --version prints the version.
Tab completion in bash or zsh: eval "$(register-python-argcomplete scaleprof)\""""
COMMANDS = {module.rpartition(".")[2]: module for modules in GROUPS.values() for module in modules}


def listing() -> str:
    """All commands, a line each, below the question that their group answers."""
    width = max(map(len, COMMANDS))
    lines = ["scaleprof measures how distributed training scales on a cluster, and explains what limits it."]
    for group, modules in GROUPS.items():
        lines += ["", group]
        for module in modules:  # read without importing it
            place = ROOT.joinpath(*module.split("."))
            path = package if (package := place / "__main__.py").exists() else place.with_suffix(".py")
            first, _, _ = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")
            lines.append(f"  {module.rpartition('.')[2]:<{width}}  {first}")
    return "\n".join([*lines, "", _TAIL])


def _run() -> int:
    word, *words = sys.argv[1:] or ["--help"]
    if word in ("-h", "--help", "--all", "--version"):
        print(f"scaleprof {metadata.version('scaleprof')}" if word == "--version" else listing())
        return EXIT_DONE
    if word.startswith("-"):
        raise UserError(f"unknown flag {word}{did_you_mean(word, ('--help', '--version'))}")
    if word not in COMMANDS:
        raise UserError(f"unknown command {word!r}{did_you_mean(word, COMMANDS, see='scaleprof --help')}")
    sys.argv = [f"scaleprof {word}", *words]
    try:
        runpy.run_module(COMMANDS[word], run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if not COMMANDS[word].startswith("analysis."):
            raise
        raise UserError(f"{word} needs {error.name}: pip install -e 'SCALEPROF[full]'") from None
    return EXIT_DONE


def _complete() -> None:
    """Answer the shell's Tab key: a command's name, or what the command itself takes."""
    from argcomplete import split_line

    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    words = split_line(line, point)[3]
    if len(words) > 1 and words[1] in COMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # the second word of the line is the command's own name
        sys.argv = [f"scaleprof {words[1]}"]
        runpy.run_module(COMMANDS[words[1]], run_name="__main__", alter_sys=True)
    parser = make_parser("scaleprof", None)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--version", action="store_true")
    complete(parser)


def main() -> None:
    if completion_is_asked():
        _complete()
    run_command(_run)


if __name__ == "__main__":
    main()
