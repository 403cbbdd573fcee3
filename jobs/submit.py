"""Submit a sweep as one job per number of nodes; under Slurm, users call it through slurm/submit.sh.

    python -m jobs.submit CONFIG [--time H:MM:SS] [options of qsub, bsub, flux batch] [-- those of jobs.sweep]

is for the other batch systems (`batch` of the site file). Their jobs are scripts, kept below the results.

Problems that would end the jobs at their start are found before the first is queued (docs/cluster.md), unless
CHECK=no.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from rich.console import Console

from jobs import ROOT, store, sweep
from jobs.checks import check_modules, check_mpi, refuse
from jobs.cluster import BATCH_SYSTEMS, FIRST_JOB, BatchSystem, check_accepted
from jobs.execute import plan, print_plan, record_sweep
from jobs.launchers import LAUNCHERS
from jobs.launchers.base import OnNodes
from jobs.launchers.slurm import Slurm
from jobs.progress import pasteable, print_excluded
from jobs.site import CHOOSE, Site, find_site, sbatch_words
from profiling.errors import EXIT_DONE, UserError, run_command

_DRY_RUN = "--dry-run"
SWEEP_SCRIPT = ROOT / "slurm/sweep.sh"

_TIME, _REPORT_S = "12:00:00", 30 * 60  # as slurm/sweep.sh and slurm/report.sh have it


@dataclass(frozen=True)
class Words:
    """What the user has typed: the sweep file, options of sbatch, and options of jobs.sweep."""

    config: str
    of_sbatch: list[str]
    of_sweep: list[str]
    dry_run: bool


@dataclass(frozen=True)
class Job:
    """A job to submit."""

    argv: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)  # added to the environment
    path: Path | None = None  # where its script is kept, for a job that submits itself again
    script: str = ""  # the command's input

    def start(self, what: str) -> str:
        """Submit it, say which it is to the user, and return its id."""
        if self.path:
            self.path.parent.mkdir(exist_ok=True)
            store.write_text(self.path, self.script)
        kept = {name: value for name, value in os.environ.items() if name != FIRST_JOB}
        answer = subprocess.run(
            self.argv, env={**kept, **self.variables}, cwd=ROOT, input=self.script or None,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if answer.returncode:
            lines = [re.sub(r"^sbatch: (error: )?", "", line) for line in answer.stderr.splitlines()]
            why = "; ".join(filter(None, lines)) or f"it ended with {answer.returncode}"
            raise UserError(f"{self.argv[0]} refuses the job ({what}): {why}")
        sys.stderr.write(answer.stderr)  # a warning, or a note of the site's
        # bsub says it in a sentence; in a federation of Slurm's the cluster's name follows.
        said = re.search(r"Job <(\d+)>", answer.stdout)
        job = said[1] if said else answer.stdout.strip().partition(";")[0]
        print(f"job {job}: {what}", flush=True)
        return job

    def show(self, what: str) -> str:
        """Print what would be submitted, as one can paste it into a shell; the job's id is invented."""
        script = f" <<'END'\n{self.script}END" if self.script else ""
        print(f"# {what}\n{pasteable(self.argv, self.variables)}{script}")
        return f"JOB_{what.replace('=', '_')}"


# Makes the job for a number of nodes (0: of the report) that comes after the jobs of such ids.
MakeJob = Callable[[int, Sequence[str]], Job]


def main() -> int:
    words = read_words(sys.argv[1:])
    chosen = f"--launcher={os.environ.get('LAUNCHER') or 'slurm'}"
    arguments = sweep.parser().parse_args([words.config, chosen, *words.of_sweep])
    site = find_site(arguments.site, os.environ)
    request = sweep.read_request(arguments, site)
    checked = os.environ.get("CHECK") != "no"
    if checked:
        refuse([*check_modules(site, os.environ), *check_mpi(site, os.environ)])
    sweep.announce(request, site)
    variables = {CHOOSE: arguments.site} if arguments.site else {}
    system = BATCH_SYSTEMS.get(site.batch)
    if words.dry_run or system:  # what is printed may be typed in another shell, and qsub hands nothing on
        of_jobs = (CHOOSE, "LAUNCHER", "PYTHON")
        variables = {name: os.environ[name] for name in of_jobs if os.environ.get(name)} | variables
    # From within a job, too, others are submitted.
    launcher: OnNodes
    make: MakeJob
    if system:
        variables = {"LAUNCHER": system.launcher} | variables
        launcher_type = cast(type[OnNodes], LAUNCHERS[variables["LAUNCHER"]])
        launcher = launcher_type.open(site, {**os.environ, system.job_id: ""})
        make = partial(script_job, system, site, words, request.directory, variables)
    else:
        options = [*sbatch_words(site), *words.of_sbatch]
        at_partition = site.model_copy(update={"partition": partition_of(options)})
        launcher = replace(Slurm.open(at_partition, os.environ), allocation=None)
        make = partial(sbatch_job, options, words, request.directory, variables)
    execution = request.execution(launcher.planned(), arguments)
    planned = plan(execution, request.sweep_runs, checked)
    place = launcher.place if planned.refused else ""
    print_excluded(Console(stderr=True), planned.impossible, place)
    if refused := planned.refused:
        raise UserError(f"runs that cannot start: {refused} (to leave them out: -- --unavailable skip)")
    counts = sorted({sweep_run.configuration.nodes for sweep_run in planned.todo})
    if not counts:
        print(f"{request.directory}: to do: 0, done: {len(planned.possible)}")
        return EXIT_DONE
    if checked and not system:
        check_accepted([*options, f"--nodes={max(counts)}", str(SWEEP_SCRIPT)], os.environ)
    cancel = system.cancel if system else "scancel"
    if words.dry_run:
        submit(counts, make, Job.show, request.directory, cancel)
        print_plan(execution, planned.possible, request.excluded)
        print("nothing submitted", file=sys.stderr)
        return EXIT_DONE
    # Of a job that dies at its start nothing else would say which runs it was to start.
    record_sweep(execution, request.sweep_runs, [*request.excluded, *planned.impossible])
    submit(counts, make, Job.start, request.directory, cancel)
    return EXIT_DONE


def read_words(words: Sequence[str]) -> Words:
    """``CONFIG [options of sbatch] [-- options of jobs.sweep]``."""
    config, *rest = [word for word in words if word != _DRY_RUN] or [""]
    if not config:
        raise UserError("no sweep file: slurm/submit.sh CONFIG")
    at = rest.index("--") if "--" in rest else len(rest)
    of_sbatch, of_sweep = rest[:at], rest[at + 1 :]
    for word in of_sbatch:
        if (name := word.partition("=")[0]) in sweep.parser().flags:
            raise UserError(f"{name} is an option of jobs.sweep: write it after -- (see slurm/submit.sh)")
    return Words(config, of_sbatch, of_sweep, _DRY_RUN in words)


def partition_of(options: Sequence[str]) -> str | None:
    """The partition that jobs ask for; what is typed counts first."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-p", "--partition", default=os.environ.get("SBATCH_PARTITION"))
    chosen: str | None = parser.parse_known_args(options)[0].partition
    return chosen


def submit(
    counts: Sequence[int], make: MakeJob, start: Callable[[Job, str], str], directory: Path, cancel: str
) -> None:
    """Start a job for each number of nodes and, when all have ended, one that writes the report."""
    at_once = os.environ.get("AT_ONCE") == "yes"
    ids: list[str] = []
    try:
        for count in counts:
            ids.append(start(make(count, [] if at_once else ids[-1:]), f"nodes={count}"))
        start(make(0, ids), f"the report, {directory}/report.html")
    except (UserError, OSError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        queued = " ".join(ids)
        raise UserError(
            f"{why}; queued before: {queued} (to remove: {cancel} {queued})" if ids else why
        ) from None


def command_of(words: Words, directory: Path, count: int) -> list[str]:
    """The script that a job runs, and its arguments."""
    if not count:
        return ["slurm/report.sh", str(directory)]
    own = ["--only", f"nodes={count}", *_without_nodes(words.of_sweep)]
    return ["slurm/sweep.sh", words.config, *own]


def sbatch_job(
    options: Sequence[str], words: Words, directory: Path, variables: Mapping[str, str], count: int,
    after: Sequence[str],
) -> Job:  # fmt: skip
    """A job of Slurm's."""
    for word in words.of_sbatch:
        if word.partition("=")[0] == "--nodes" or word.startswith("-N"):
            raise UserError(f"{word}: each job has the nodes of its runs; to choose: -- --only nodes=1,2")
    # What the site or the user says takes its place: sbatch heeds the last.
    output = [] if "SBATCH_OUTPUT" in os.environ else ["--output=slurm-%x-%j.out"]
    own = [f"--nodes={count}"] if count else []
    own += [f"--job-name={directory.name}-{count or 'report'}"]
    own += [f"--dependency=afterany:{':'.join(after)}"] if after else []
    argv = ["sbatch", "--parsable", *output, *options, *own, *command_of(words, directory, count)]
    return Job(argv, {**variables, "REPORT": "no"} if count else variables)


def script_job(
    system: BatchSystem, site: Site, words: Words, directory: Path, variables: Mapping[str, str], count: int,
    after: Sequence[str],
) -> Job:  # fmt: skip
    """A job of another batch system's: a script that holds its options, and slurm/sweep.sh with them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--time", default=_TIME)
    chosen, others = parser.parse_known_args(words.of_sbatch)
    if not (match := re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", chosen.time)):
        raise UserError(f"--time {chosen.time}: should be H:MM:SS")
    hours, minutes, seconds = map(int, match.groups())
    time_s = 3600 * hours + 60 * minutes + seconds if count else _REPORT_S
    name = f"{directory.name}-{count or 'report'}"
    values = {
        **{key: getattr(site, key) for key in ("partition", "account", "reservation")},
        **{"name": name, "nodes": count or 1, "chunk": f":{site.chunk}" if site.chunk else ""},
        **{"time_s": time_s, "hours": time_s // 3600, "minutes": time_s // 60 % 60, "seconds": time_s % 60},
        "after": system.between.join(after),
    }
    options = [text.format(**values) for key, text in system.options.items() if values.get(key)]
    own = shlex.join([*site.submit, *others])
    path = (directory / ".jobs" / f"{name}.sh").absolute()
    # A job may have another PATH than the shell that submits it: PBS hands none on.
    client, _, rest = system.again.partition(" ")
    of_job = {**variables, "SCALEPROF_TIME_S": str(time_s), "SCALEPROF_SCRIPT": str(path)}
    of_job["SCALEPROF_AGAIN"] = f"{shutil.which(client) or client} {rest}".rstrip()
    lines = [
        "#!/usr/bin/env bash",
        *(f"{system.prefix} {option}" for option in [*options, own] if option),
        *(f"export {key}={shlex.quote(value)}" for key, value in of_job.items()),
        f"export {FIRST_JOB}=${{{FIRST_JOB}:-${system.job_id}}}",
        f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command_of(words, directory, count))}",
    ]
    return Job(system.submit.split(), {}, path, "\n".join(lines) + "\n")


def _without_nodes(words: Sequence[str]) -> Iterator[str]:
    """Options of jobs.sweep without ``--only nodes=...``, which each job has its own of."""
    rest = iter(words)
    for word in rest:
        if word == "--only" and not (following := next(rest, "")).startswith("nodes="):
            yield from (word, following)
        elif word != "--only" and not word.startswith("--only=nodes="):
            yield word


if __name__ == "__main__":
    run_command(main)
