"""Submit a sweep as one job per number of nodes; under Slurm, users call it through slurm/submit.sh.

    python -m jobs.submit CONFIG [--time H:MM:SS] [options of qsub, bsub, flux batch] [-- those of jobs.sweep]

is for the other batch systems (`batch` in the site file). Their job scripts are kept with the results.

Problems that would end a job at its start are found before the first is queued, unless CHECK=no.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from rich.console import Console

from jobs import ROOT, store, sweep
from jobs.execute import pasteable, plan, print_plan, record_sweep
from jobs.launchers import LAUNCHERS
from jobs.launchers.base import OnNodes
from jobs.launchers.slurm import Slurm
from jobs.machine import BATCH_SYSTEMS, FIRST_JOB, BatchSystem, check_accepted
from jobs.site import CHOOSE, Site, check_modules, check_mpi, find_site, refuse, sbatch_words
from profiling.errors import EXIT_DONE, UserError, run_command

_DRY_RUN = "--dry-run"
_TIME, _REPORT_S = "12:00:00", 30 * 60  # as slurm/sweep.sh and slurm/report.sh have it


@dataclass(frozen=True)
class Job:
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


def main() -> int:
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return EXIT_DONE
    config, typed, of_sweep = read_words(sys.argv[1:])
    dry_run, checked = _DRY_RUN in sys.argv, os.environ.get("CHECK") != "no"
    chosen = f"--launcher={os.environ.get('LAUNCHER') or 'slurm'}"
    arguments = sweep.parser().parse_args([config, chosen, *of_sweep])
    site = find_site(arguments.site, os.environ)
    system = BATCH_SYSTEMS.get(site.batch)
    # From within a job, too, others are submitted.
    launcher: OnNodes
    if system:
        launcher_type = cast(type[OnNodes], LAUNCHERS[os.environ.get("LAUNCHER") or system.launcher])
        launcher = launcher_type.open(site, {**os.environ, system.job_id: ""})
    else:
        for word in typed:
            if word.partition("=")[0] == "--nodes" or word.startswith("-N"):
                raise UserError(f"{word}: each job has the nodes of its runs; to choose: -- --only nodes=1,2")
        options = [*sbatch_words(site), *typed]
        last = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        last.add_argument("-p", "--partition", default=os.environ.get("SBATCH_PARTITION"))
        partition = last.parse_known_args(options)[0].partition
        launcher = Slurm.open(site.model_copy(update={"partition": partition}), os.environ)
        launcher = replace(launcher, allocation=None)
    execution, note = sweep.read_request(arguments, site)
    if checked:
        refuse([*check_modules(site, os.environ), *check_mpi(site, os.environ)])
    sweep.announce(site, note)
    execution = replace(execution, launcher=launcher.planned())
    planned, directory = plan(execution, checked), execution.directory
    planned.print_excluded(Console(stderr=True), execution)
    if refused := planned.refused:
        raise UserError(f"runs that cannot start: {refused} (to leave them out: -- --unavailable skip)")
    counts = sorted({sweep_run.configuration.nodes for sweep_run in planned.todo})
    if not counts:
        print(f"{directory}: to do: 0, done: {len(planned.possible)}")
        return EXIT_DONE
    if checked and not system:
        check_accepted([*options, f"--nodes={max(counts)}", str(ROOT / "slurm/sweep.sh")], os.environ)
    if not dry_run:
        # Of a job that dies at its start nothing else would say which runs it was to start.
        record_sweep(execution, planned.impossible)
    variables = {"LAUNCHER": system.launcher} if system else {}
    if dry_run or system:  # what is printed may be typed in another shell, and qsub hands nothing on
        of_jobs = (CHOOSE, "LAUNCHER", "PYTHON")
        variables |= {name: os.environ[name] for name in of_jobs if os.environ.get(name)}
    variables |= {CHOOSE: arguments.site} if arguments.site else {}
    # A job for each number of nodes and, when all have ended, one (0) that writes the report.
    ids: list[str] = []
    try:
        for count in (*counts, 0):
            after = ids if not count else [] if os.environ.get("AT_ONCE") == "yes" else ids[-1:]
            what = f"nodes={count}" if count else f"the report, {directory}/report.html"
            command = ["slurm/report.sh", str(directory)]
            if count:
                command = ["slurm/sweep.sh", config, "--only", what, *_without_nodes(of_sweep)]
            if system:
                job = script_job(system, site, typed, directory, variables, count, after, command)
            else:
                job = sbatch_job(options, directory.name, variables, count, after, command)
            ids.append(job.show(what) if dry_run else job.start(what))
    except (UserError, OSError, KeyboardInterrupt) as error:
        why, queued = str(error) or "interrupted", " ".join(ids)
        remove = f"{system.cancel if system else 'scancel'} {queued}"
        raise UserError(f"{why}; queued before: {queued} (to remove: {remove})" if ids else why) from None
    if dry_run:
        print_plan(replace(execution, sweep_runs=planned.possible, excluded=()))
        print("nothing submitted", file=sys.stderr)
    return EXIT_DONE


def read_words(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """``CONFIG [options of sbatch] [-- options of jobs.sweep]``, less ``--dry-run``."""
    config, *rest = [word for word in words if word != _DRY_RUN] or [""]
    if not config:
        raise UserError("no sweep file: slurm/submit.sh CONFIG")
    at = rest.index("--") if "--" in rest else len(rest)
    for word in rest[:at]:
        if (name := word.partition("=")[0]) in sweep.parser().flags:
            raise UserError(f"{name} is an option of jobs.sweep: write it after -- (see slurm/submit.sh)")
    return config, rest[:at], rest[at + 1 :]


def sbatch_job(
    options: Sequence[str], sweep: str, variables: Mapping[str, str], count: int, after: Sequence[str],
    command: Sequence[str],
) -> Job:  # fmt: skip
    # What the site or the user says takes its place: sbatch heeds the last.
    output = [] if "SBATCH_OUTPUT" in os.environ else ["--output=slurm-%x-%j.out"]
    own = [f"--nodes={count}"] if count else []
    own += [f"--job-name={sweep}-{count or 'report'}"]
    own += [f"--dependency=afterany:{':'.join(after)}"] if after else []
    argv = ["sbatch", "--parsable", *output, *options, *own, *command]
    return Job(argv, {**variables, "REPORT": "no"} if count else variables)


def script_job(
    system: BatchSystem, site: Site, typed: Sequence[str], directory: Path, variables: Mapping[str, str],
    count: int, after: Sequence[str], command: Sequence[str],
) -> Job:  # fmt: skip
    """A job of another batch system's: a script that holds its options, and slurm/sweep.sh with them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--time", default=_TIME)
    chosen, others = parser.parse_known_args(typed)
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
        f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}",
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
