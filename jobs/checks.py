"""Checks before a start, one per problem: whether a run can start on a node and a site file is right.

Launchers, ``jobs.sweep`` and ``jobs.submit`` refuse to start what fails a check; :mod:`jobs.doctor` lists all
failures. On a compute node everything in the site file must be true. A login node may lack interfaces, cards,
modules, data and scratch.
"""

import shlex
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs import ROOT
from jobs.failures import why_no_mpi
from jobs.machine import Machine, NoAnswer, ask, check_accepted, cluster_name, on_compute_node, partition
from jobs.run import INSTALL_DALI, LOADERS, MAKE_DATA, Run, check_data
from jobs.site import NO_SITE, Network, Site, find_site, sbatch_words
from jobs.sweep_file import check_can_start
from profiling.errors import Mistakes, UserError
from profiling.presence import Presence
from profiling.tools import Options, check_can_record

_TIMEOUT_S = 60  # modules are loaded first
CARDS = Path("/sys/class/infiniband")


# --- a run on a node ------------------------------------------------------------------------------------


def why_not_on(
    machine: Machine, run: Run, name: str = "this machine", sees_data: bool = True, sees_programs: bool = True
) -> Iterator[str]:
    """Why a node cannot hold its share of a run's ranks.

    Args:
        machine: the node, or one like it.
        sees_data: whether paths of data mean the same there (not in a container).
        sees_programs: whether it has the PATH of this process.
    """
    loader = LOADERS[run.loader]
    gpus = 0 if run.device == "cpu" else len(machine.gpus)
    if not gpus and run.device == "gpu":
        yield f"device gpu requested, but {name} has no usable GPU (see python -m jobs.doctor)"
    if not gpus and run.graph:
        yield f"graph true needs a GPU, and {name} has none; use graph false"
    if run.program and sees_data:
        yield from _refused_by(check_can_start, run, Path.cwd())
    if loader.on_cpu and not gpus:
        yield f"loader {run.loader} needs a GPU, and {name} has none; on a CPU use {loader.on_cpu}"
    if loader.by_dali and not machine.has_dali:
        yield f"loader {run.loader} needs NVIDIA DALI, not installed: {INSTALL_DALI}"
    if loader.reads_data and run.data is None:
        yield f"loader {run.loader} needs data: a folder of images or TFRecord files; {MAKE_DATA}"
    elif loader.reads_data and sees_data:
        yield from _refused_by(check_data, ROOT / str(run.data), run.data_format)
    options = Options(run.profile_mode, gpu=gpus != 0, world_size=run.ranks)
    yield from _refused_by(check_can_record, run.profile, options, sees_programs)
    if gpus and run.gpus_per_node > gpus:
        yield f"{run.gpus_per_node} GPUs requested, but {name} has {gpus}"
    if not gpus and run.ranks_per_node > machine.cores:
        yield (
            f"{run.ranks_per_node} ranks per node requested, but {name} has {machine.cores} CPU cores and no "
            f"GPU: set gpus_per_node (without GPUs: ranks per node) to at most {machine.cores}"
        )


def _refused_by(check: Callable[..., None], *arguments: Any) -> Iterator[str]:
    try:
        check(*arguments)
    except UserError as error:
        yield str(error)


# --- what a site file says ------------------------------------------------------------------------------


def refuse(presences: Iterable[Presence], place: str = "") -> None:
    """Raise what is absent, each once."""
    if lines := [f"{place}{each.detail}; {each.remedy}" for each in presences if not each.present]:
        raise Mistakes(lines)


def check_site(environment: Mapping[str, str], name: str | None = None) -> list[Presence]:
    """The site file in use, and whether what it says is so here; nothing where there is no cluster."""
    try:
        site = find_site(name, environment)
    except UserError as error:
        return [Presence("site file", False, "cannot be used", str(error), required=True)]
    if site.file is None:
        in_cluster = "SLURM_JOB_ID" in environment or cluster_name(environment)
        copy = "cp jobs/sites/example.yaml jobs/sites/NAME.yaml"
        return [Presence("site file", False, NO_SITE, copy)] if in_cluster else []
    here = on_compute_node(environment)
    flag = f" --site {name}" if name else ""
    srun = shlex.join(["srun", *dict.fromkeys([*sbatch_words(site), "--nodes=1", "--exclusive"])])
    run_there = f"{srun} " if site.batch == "slurm" else "in an interactive job, "
    elsewhere = "" if here else f" (or only compute nodes have it: {run_there}python -m jobs.doctor{flag})"
    of_node = [*check_modules(site, environment), *check_networks(site), *check_paths(site)]
    return [
        Presence("site file", True, site.where),
        *(replace(each, required=True) for each in _check_cluster(site, environment)),
        *(replace(each, required=here, remedy=each.remedy and each.remedy + elsewhere) for each in of_node),
    ]


def _presence(site: Site, key: str, present: bool, detail: str) -> Presence:
    """Whether what a key of the site file says is so."""
    return Presence(key, present, detail, "" if present else f"correct `{key}` in {site.where}")


def _check_cluster(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    """What Slurm says alike on every node."""
    if shutil.which("sinfo", path=environment.get("PATH")):
        try:
            part = partition(site.partition, environment)
        except NoAnswer as error:
            yield Presence("partition", False, str(error), "run this on a node of the cluster")
        except UserError as error:
            yield _presence(site, "partition", False, str(error))
        else:
            detail = f"{part.name}: {part.nodes} nodes, each {part.cpus} CPUs, {part.gpus} GPUs"
            yield _presence(site, "partition", True, detail)
            if (gpus := site.gpus_per_node) is not None:
                detail = f"{gpus}; in {part.name}: {part.gpus}"
                yield _presence(site, "gpus_per_node", gpus <= part.gpus, detail)
    for why in _refused_by(check_accepted, [*sbatch_words(site), "--wrap=true"], environment):
        yield _presence(site, "sbatch", False, why)
    if shutil.which("srun", path=environment.get("PATH")):
        yield from check_mpi(site, environment)


def check_mpi(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    """Whether srun has the way to meet MPI, with the site's modules: else every run would fail."""
    if not site.mpi.srun:
        return
    load = f"{shlex.join(['module', 'load', *site.modules])} >/dev/null 2>&1; " if site.modules else ""
    failed = _bash(f"{load}srun --mpi={site.mpi.srun} --test-only true", {**site.environment, **environment})
    why = why_no_mpi(failed)
    yield _presence(site, "mpi.srun", not why, f"srun --mpi={site.mpi.srun}" + (f": {why}" if why else ""))


def check_modules(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    """Whether the site's modules can be loaded here."""
    if not site.modules:
        return
    failed = _bash(f"type module && {shlex.join(['module', 'load', *site.modules])}", environment)
    why = " ".join(failed.split())[:300]
    modules = ", ".join(site.modules)
    yield _presence(site, "modules", not why, f"{modules} cannot be loaded: {why}" if why else modules)


def _bash(script: str, environment: Mapping[str, str]) -> str:
    """What a script that fails prints as errors; "" if it ends well."""
    ended = ask(["bash", "-c", script], environment, _TIMEOUT_S)
    return (ended.stderr or f"exit code {ended.returncode}") if ended.returncode else ""


def check_paths(site: Site, *keys: str) -> Iterator[Presence]:
    """Whether this node has the files and folders that the site file names; ``keys``: only these."""
    paths = [("data", ROOT / here) for here in site.data.values()]
    paths += [("scratch", site.scratch)] if site.scratch else []
    paths += [("mpi.hostfile", site.mpi.hostfile)] if site.mpi.hostfile else []
    if site.container is not None and site.container.runtime != "pyxis":
        paths.append(("container.image", Path(site.container.image)))
    for key, path in paths:
        if not keys or key in keys:
            # Slurm would make a scratch folder, in whatever lies there.
            present = path.is_dir() if key == "scratch" else path.exists()
            yield _presence(site, key, present, str(path) if present else f"{key} {path} does not exist")


def check_networks(site: Site, names: Iterable[str] | None = None) -> Iterator[Presence]:
    """Whether this node has the interfaces and cards of networks; ``names``: of these, not of all.

    Every run over such a network would fail: NCCL says nothing of a missing card, and takes another network.
    """
    cards = [path.name for path in CARDS.iterdir()] if CARDS.is_dir() else []
    interfaces = [name for _, name in socket.if_nameindex()]
    for name in sorted(site.network.model_fields_set if names is None else names):
        network: Network = getattr(site.network, name)
        for part, listed, here in (
            ("interface", network.interface, interfaces),
            ("device", network.device, cards),
        ):
            for sought in listed.split(",") if listed else ():
                sought = sought.partition(":")[0] if part == "device" else sought
                found = sought if sought in here else f"no {sought}; here: {', '.join(here) or 'none'}"
                yield _presence(site, f"network.{name}.{part}", sought in here, found)


def check_networks_named(site: Site, networks: Iterable[str]) -> None:
    """Refuse networks that a site which names its networks does not name."""
    known = site.network.model_fields_set
    for network in networks:
        if known and network.lower() not in known:
            has = ", ".join(sorted(known))
            raise UserError(f"network {network} is not in the site file {site.where} (network: {has})")
