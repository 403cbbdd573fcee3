"""Stand-ins of batch systems' commands, which refuse what their documentation does not have.

    python stand_ins.py COMMAND LOG WORDS...

Those that submit take a script as their input, as qsub(1B) of OpenPBS, IBM's reference of bsub and
flux-batch(1) say, append it with its options to LOG as a line of JSON, and print a job's id as the real ones
do. Those that launch (HPE's mpiexec of github.com/Cray-HPE/craycli, jsrun of IBM's JSM, flux-run(1)) start
the ranks here, with the variables that the real ones give them. jsrun's options are those of OLCF's guide.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAME, COUNT, ID = r"[\w.-]+", r"[1-9]\d*", r"[\w.ƒ]+"
CHUNK = r"(\w+=[\w-]+)(:\w+=[\w-]+)*"
# option -> the documented form of its value; None: it has none
SUBMIT: dict[str, dict[str, str | None]] = {
    "qsub": {
        "-N": NAME, "-j": "oe|eo|n", "-q": NAME, "-A": NAME, "-v": r"\w+(,\w+)*",
        "-l": rf"select={COUNT}(:{CHUNK})?|walltime=\d+:\d\d:\d\d|place=scatter(:excl)?|filesystems=\S+",
        "-W": rf"depend=afterany:{ID}(:{ID})*",
    },
    "bsub": {
        "-J": NAME, "-o": r"[\w.%-]+", "-nnodes": COUNT, "-W": r"\d+:\d\d", "-q": NAME, "-P": NAME,
        "-w": rf"ended\({ID}\)( && ended\({ID}\))*", "-alloc_flags": r"\w+",
    },
    "flux batch": {
        "--job-name": NAME, "--output": r"[\w.{}-]+", "--nodes": COUNT, "--exclusive": None,
        "--time-limit": r"\d+[smhd]?", "--queue": NAME, "--bank": NAME, "--dependency": rf"afterany:{ID}",
    },
}  # fmt: skip
SENTINELS = {"qsub": "#PBS", "bsub": "#BSUB", "flux batch": "#flux:"}
LAUNCH: dict[str, dict[str, str | None]] = {
    "mpiexec": {
        "--np": COUNT, "--ppn": COUNT, "--hosts": rf"{NAME}(,{NAME})*", "--depth": COUNT,
        "--no-transfer": None,
        "--cpu-bind": "(verbose,)?(none|numa|socket|core|thread|depth|list:.*|mask:.*)",
    },
    "jsrun": {
        "--nrs": COUNT, "--rs_per_host": COUNT, "--tasks_per_rs": COUNT, "--cpu_per_rs": rf"{COUNT}|ALL_CPUS",
        "--gpu_per_rs": r"\d+|ALL_GPUS", "--launch_distribution": "cyclic|packed|plane:\\d+",
        "--bind": r"none|rs|packed:\d+|proportional-packed:\d+", "--exit_on_error": "[01]",
        "--smpiargs": ".*",
    },
    "flux run": {
        "--nodes": COUNT, "--tasks-per-node": COUNT, "--exclusive": None, "--job-name": NAME,
        "--requires": r"host:[\w,.-]+",
        "--setopt": "exit-on-error|cpu-affinity=(off|per-task|on)|gpu-affinity=(off|per-task|on)",
    },
}  # fmt: skip


def parse(words: list[str], known: dict[str, str | None]) -> tuple[dict[str, list[str]], list[str]]:
    """The options, each with its values, and what follows them; whatever is not documented ends this."""
    options: dict[str, list[str]] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word, equals, value = rest.pop(0).partition("=")
        if word not in known and word[:2] in known:  # -lplace=scatter, as getopt has it
            word, equals, value = word[:2], "=", word[2:] + equals + value
        if word not in known:
            sys.exit(f"unknown option {word}")
        form = known[word]
        if form is not None:
            value = value if equals else rest.pop(0)
            if not re.fullmatch(form, value):
                sys.exit(f"invalid value of {word}: {value}")
        options.setdefault(word, []).append(value)
    return options, rest


def submit(command: str, log: str, words: list[str]) -> None:
    script = sys.stdin.read()
    assert script.startswith("#!"), "a script begins with its shell"
    of_script: list[str] = []
    for line in script.splitlines()[1:]:
        if not line.startswith("#"):
            break  # options after the first command are not read
        assert line.startswith(f"{SENTINELS[command]} "), line
        of_script += shlex.split(line.removeprefix(SENTINELS[command]))
    options, rest = parse([*words, *of_script], SUBMIT[command])
    assert not rest, rest
    job = {"options": options, "script": script, "job": os.environ.get("SCALEPROF_JOB_ID")}
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(job)}\n")
    number = len(Path(log).read_text(encoding="utf-8").splitlines())
    said = {"qsub": f"{number}.pbs01", "bsub": f"Job <{number}> is submitted to queue <batch>."}
    print(said.get(command, f"ƒ{number}"))


def environments(command: str, options: dict[str, list[str]]) -> Iterator[dict[str, str]]:
    """What each rank finds in its environment."""
    one = {name: values[0] for name, values in options.items()}
    if command == "mpiexec":
        size, local = int(one["--np"]), int(one["--ppn"])
    elif command == "jsrun":
        size, local = int(one["--nrs"]) * int(one["--tasks_per_rs"]), int(one["--tasks_per_rs"])
    else:
        size, local = int(one["--nodes"]) * int(one["--tasks-per-node"]), int(one["--tasks-per-node"])
    for rank in range(size):
        of_rank = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank % local, "LOCAL_SIZE": local}
        if command == "flux run":
            of_flux = {"TASK_RANK": rank, "JOB_SIZE": size, "TASK_LOCAL_ID": rank % local}
            of_flux |= {"JOB_NNODES": size // local, "JOB_ID": 7}
            yield {f"FLUX_{name}": str(value) for name, value in of_flux.items()}
        else:
            prefix = "PMI_" if command == "mpiexec" else "JSM_NAMESPACE_"
            yield {f"{prefix}{name}": str(value) for name, value in of_rank.items()}


def main() -> None:
    command, log, *words = sys.argv[1:]
    while command == "flux":
        command = f"flux {words.pop(0)}" if words[0] != "--parent" else words.pop(0) and "flux"
    if command in SUBMIT:
        submit(command, log, words)
        return
    if words == ["--version"]:
        print("mpiexec version 1.8.0 revision 8b0a0fc")
        return
    options, ranks = parse(words, LAUNCH[command])
    for environment in environments(command, options):
        subprocess.run(ranks, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    main()
