"""Submit a sweep as one Slurm job per number of nodes; users call it through slurm/submit.sh.

Problems that would end the jobs at their start are found before the first is queued (docs/cluster.md), unless
CHECK=no.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from jobs import ROOT, sweep
from jobs.checks import check_modules, check_mpi, refuse
from jobs.cluster import check_accepted
from jobs.execute import plan, print_plan, record_sweep
from jobs.launchers.slurm import Slurm
from jobs.site import CHOOSE, find_site, sbatch_words
from profiling.errors import EXIT_DONE, UserError, run_command

_DRY_RUN = "--dry-run"
SWEEP_SCRIPT = ROOT / "slurm/sweep.sh"
# Variables that the user has chosen a way to submit by, which a second submission needs as well.
_AS_BEFORE = (CHOOSE, "LAUNCHER", "PYTHON", "AT_ONCE", "CHECK")

# Starts a job of these words of sbatch, with these variables; what it is to the user; returns its id.
Start = Callable[[Sequence[str], Mapping[str, str], str], str]


@dataclass(frozen=True)
class Words:
    """What the user has typed: the sweep file, options of sbatch, and options of jobs.sweep."""

    config: str
    of_sbatch: list[str]
    of_sweep: list[str]
    dry_run: bool


def main() -> int:
    words = read_words(sys.argv[1:])
    arguments = sweep.parser().parse_args([words.config, "--launcher=slurm", *words.of_sweep])
    site = find_site(arguments.site, os.environ)
    request = sweep.read_request(arguments, site)
    checked = os.environ.get("CHECK") != "no"
    if checked:
        refuse([*check_modules(site, os.environ), *check_mpi(site, os.environ)])
    sweep.announce(request, site)
    options = [*sbatch_words(site), *words.of_sbatch]
    launcher = Slurm.open(site.model_copy(update={"partition": partition_of(options)}), os.environ)
    # From within a job, too, others are submitted.
    execution = request.execution(replace(launcher, allocation=None).planned(), arguments)
    planned = plan(execution, request.sweep_runs, checked)
    planned.print_impossible(Console(stderr=True))
    if planned.refused:
        refused = planned.refused
        raise UserError(f"runs that cannot start: {refused} (to leave them out: -- --unavailable skip)")
    counts = sorted({sweep_run.configuration.nodes for sweep_run in planned.todo})
    if not counts:
        print(f"{request.directory}: to do: 0, done: {len(planned.possible)}")
        return EXIT_DONE
    if checked:
        check_accepted([*options, f"--nodes={max(counts)}", str(SWEEP_SCRIPT)], os.environ)
    variables = {CHOOSE: arguments.site} if arguments.site else {}
    if words.dry_run:  # what is printed may be typed in another shell
        of_jobs = (CHOOSE, "LAUNCHER", "PYTHON")
        variables = {name: os.environ[name] for name in of_jobs if os.environ.get(name)} | variables
        submit(counts, options, words, request.directory, variables, print_job)
        print_plan(execution, planned.possible, request.excluded)
        print("nothing submitted", file=sys.stderr)
        return EXIT_DONE
    # Of a job that dies at its start nothing else would say which runs it was to start.
    record_sweep(execution, request.sweep_runs, [*request.excluded, *planned.impossible])
    variables[sweep.AS_SUBMITTED] = as_submitted(words, os.environ)  # by which its jobs are resumed
    submit(counts, options, words, request.directory, variables, start_job)
    return EXIT_DONE


def read_words(words: Sequence[str]) -> Words:
    """``CONFIG [options of sbatch] [-- options of jobs.sweep]``."""
    config, *rest = [word for word in words if word != _DRY_RUN] or [""]
    if not config:
        raise UserError("no sweep file: slurm/submit.sh CONFIG")
    at = rest.index("--") if "--" in rest else len(rest)
    of_sbatch, of_sweep = rest[:at], rest[at + 1 :]
    for word in of_sbatch:
        name = word.partition("=")[0]
        if name == "--nodes" or name.startswith("-N"):
            raise UserError(f"{word}: each job has the nodes of its runs; to choose: -- --only nodes=1,2")
        if name in sweep.parser().flags:
            raise UserError(f"{name} is an option of jobs.sweep: write it after -- (see slurm/submit.sh)")
    return Words(config, of_sbatch, of_sweep, _DRY_RUN in words)


def as_submitted(words: Words, environment: Mapping[str, str]) -> str:
    """What a user types to submit the sweep again, as one can paste it into a shell."""
    chosen = [f"{name}={shlex.quote(environment[name])}" for name in _AS_BEFORE if environment.get(name)]
    rest = ["--", *words.of_sweep] if words.of_sweep else []
    command = shlex.join(["slurm/submit.sh", words.config, *words.of_sbatch, *rest])
    return " ".join([*chosen, command])


def partition_of(options: Sequence[str]) -> str | None:
    """The partition that jobs ask for; what is typed counts first."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-p", "--partition", default=os.environ.get("SBATCH_PARTITION"))
    chosen: str | None = parser.parse_known_args(options)[0].partition
    return chosen


def submit(
    counts: Sequence[int], options: Sequence[str], words: Words, directory: Path,
    variables: Mapping[str, str], start: Start,
) -> None:  # fmt: skip
    """Start a job for each number of nodes and, when all have ended, one that writes the report."""
    at_once = os.environ.get("AT_ONCE") == "yes"
    # What the site or the user says takes its place: sbatch heeds the last.
    output = [] if "SBATCH_OUTPUT" in os.environ else ["--output=slurm-%x-%j.out"]
    begin = ["sbatch", "--parsable", *output, *options]
    of_sweep = list(_without_nodes(words.of_sweep))
    ids: list[str] = []
    try:
        for count in counts:
            after = [f"--dependency=afterany:{ids[-1]}"] if ids and not at_once else []
            own = [f"--nodes={count}", f"--job-name={directory.name}-{count}", *after]
            script = ["slurm/sweep.sh", words.config, "--only", f"nodes={count}", *of_sweep]
            ids.append(start([*begin, *own, *script], {**variables, "REPORT": "no"}, f"nodes={count}"))
        own = [f"--job-name={directory.name}-report", f"--dependency=afterany:{':'.join(ids)}"]
        own += ["slurm/report.sh", str(directory)]
        start([*begin, *own], variables, f"the report, {directory}/report.html")
    except (UserError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        queued = " ".join(ids)
        raise UserError(
            f"{why}; queued before: {queued} (to remove: scancel {queued})" if ids else why
        ) from None


def _without_nodes(words: Sequence[str]) -> Iterator[str]:
    """Options of jobs.sweep without ``--only nodes=...``, which each job has its own of."""
    rest = iter(words)
    for word in rest:
        if word == "--only" and not (following := next(rest, "")).startswith("nodes="):
            yield from (word, following)
        elif word != "--only" and not word.startswith("--only=nodes="):
            yield word


def start_job(argv: Sequence[str], variables: Mapping[str, str], what: str) -> str:
    """Submit a job, say which it is, and return its id."""
    answer = subprocess.run(
        argv, env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        lines = [re.sub(r"^sbatch: (error: )?", "", line) for line in answer.stderr.splitlines()]
        why = "; ".join(filter(None, lines)) or f"sbatch ended with {answer.returncode}"
        raise UserError(f"Slurm refuses the job ({what}): {why}")
    sys.stderr.write(answer.stderr)  # a warning, or a note of the site's
    job = answer.stdout.strip().partition(";")[0]  # in a federation the cluster's name follows
    print(f"job {job}: {what}", flush=True)
    return job


def print_job(argv: Sequence[str], variables: Mapping[str, str], what: str) -> str:
    """Print what would be submitted, as one can paste it into a shell; the job's id is invented."""
    environment = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    print(f"# {what}\n{shlex.join([*environment, *argv])}")
    return f"JOB_{what.replace('=', '_')}"


if __name__ == "__main__":
    run_command(main)
