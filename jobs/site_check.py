"""Check what the site file says of this node and cluster: before a sweep, and for :mod:`jobs.doctor`.

On a compute node all of it must be so. A login node may lack interfaces, cards, modules, data and scratch.
"""

import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from jobs.cluster import NoAnswer, check_accepted, cluster_name, on_compute_node, partition
from jobs.failures import why_no_mpi
from jobs.launchers.base import ROOT, network_environment
from jobs.run import Run
from jobs.site import NO_SITE, Network, Site, check_modules, find_site, sbatch_words
from profiling.errors import Mistakes, UserError
from profiling.presence import Presence

_ASKS_S = 60  # modules are loaded first
CARDS = Path("/sys/class/infiniband")
# A key of a network -> the variables by which ranks are told it.
_TELLS = {
    "interface": {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}, "device": {"NCCL_IB_HCA"},
}  # fmt: skip


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
    elsewhere = "" if here else f" (or only compute nodes have it: {srun} python -m jobs.doctor{flag})"
    return [
        Presence("site file", True, site.where),
        *(replace(one, required=True) for one in _of_cluster(site, environment)),
        *(
            replace(one, required=here, remedy=one.remedy and one.remedy + elsewhere)
            for one in _of_node(site, environment)
        ),
    ]


def check_network(site: Site, networks: Iterable[str]) -> None:
    """Refuse networks that a site which names its networks does not name."""
    known = site.network.model_fields_set
    for network in networks:
        if known and network.lower() not in known:
            has = ", ".join(sorted(known))
            raise UserError(f"network {network} is not in the site file {site.where} (network: {has})")


def check_scratch(site: Site) -> None:
    """Refuse a scratch folder that this node does not have: Slurm would make it, in whatever lies there."""
    if site.scratch is not None and not site.scratch.is_dir():
        host = socket.gethostname()
        raise UserError(f"{host}: scratch {site.scratch} does not exist; correct `scratch` in {site.where}")


def check_networks_here(site: Site, runs: Iterable[Run], environment: Mapping[str, str]) -> None:
    """Refuse networks of which this node lacks the interface or a card: every run over them would fail.

    NCCL says nothing of a missing card, and takes another network.
    """
    wrong: dict[str, None] = {}
    for run in runs:
        told = set(network_environment(run, site, environment))
        of_run = "ib" if run.network.lower() == "ib" else "eth"
        for presence in _network(f"network.{of_run}", getattr(site.network, of_run), site):
            if not presence.present and told & _TELLS[presence.name.rpartition(".")[2]]:
                wrong[f"{socket.gethostname()}: {presence.detail}; {presence.remedy}"] = None
    if wrong:
        raise Mistakes(list(wrong))


def check_mpi(site: Site, environment: Mapping[str, str]) -> None:
    """Refuse a way to meet MPI that srun does not have, with the site's modules: every run would fail."""
    if not site.mpi.srun:
        return
    load = f"{shlex.join(['module', 'load', *site.modules])} >/dev/null 2>&1; " if site.modules else ""
    script = f"{load}srun --mpi={site.mpi.srun} --test-only true"
    try:
        answer = subprocess.run(
            ["bash", "-c", script], env={**site.environment, **environment}, capture_output=True, text=True,
            timeout=_ASKS_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
    if answer.returncode and (why := why_no_mpi(answer.stderr)):
        raise UserError(f"srun --mpi={site.mpi.srun}: {why}; correct `mpi.srun` in {site.where}")


def _key(site: Site, key: str, present: bool, detail: str) -> Presence:
    """Whether what a key of the site file says is so."""
    return Presence(key, present, detail, "" if present else f"correct `{key}` in {site.where}")


def _tried(site: Site, key: str, check: Callable[[], None], detail: str) -> Presence:
    try:
        check()
    except UserError as error:
        return _key(site, key, False, str(error))
    return _key(site, key, True, detail)


def _of_cluster(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    """What Slurm says alike on every node."""
    if shutil.which("sinfo", path=environment.get("PATH")):
        try:
            of = partition(site.partition, environment)
        except UserError as error:
            known = not isinstance(error, NoAnswer)
            yield (
                _key(site, "partition", False, str(error))
                if known
                else Presence("partition", False, str(error), "run this on a node of the cluster")
            )
        else:
            detail = f"{of.name}: {of.nodes} nodes, each {of.cpus} CPUs, {of.gpus} GPUs"
            yield _key(site, "partition", True, detail)
            if (said := site.gpus_per_node) is not None:
                yield _key(site, "gpus_per_node", said <= of.gpus, f"{said}; in {of.name}: {of.gpus}")
    options = sbatch_words(site)
    jobs = _tried(site, "sbatch", lambda: check_accepted([*options, "--wrap=true"], environment), "")
    if not jobs.present:
        yield jobs
    if site.mpi.srun and shutil.which("srun", path=environment.get("PATH")):
        yield _tried(site, "mpi.srun", lambda: check_mpi(site, environment), site.mpi.srun)


def _of_node(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    """What compute nodes have, and other nodes may lack."""
    if site.modules:
        modules = ", ".join(site.modules)
        yield _tried(site, "modules", lambda: check_modules(site, environment), modules)
    for name in sorted(site.network.model_fields_set):
        yield from _network(f"network.{name}", getattr(site.network, name), site)
    paths = [("data", ROOT / here) for here in site.data.values()]
    paths += [("scratch", site.scratch)] if site.scratch else []
    paths += [("mpi.hostfile", site.mpi.hostfile)] if site.mpi.hostfile else []
    if site.container is not None and site.container.runtime != "pyxis":
        paths.append(("container.image", Path(site.container.image)))
    for key, path in paths:
        yield _key(site, key, path.exists(), str(path))


def _network(key: str, network: Network, site: Site) -> Iterator[Presence]:
    """Whether this node has a network's interface and cards."""
    for part, names in (("interface", network.interface), ("device", network.device)):
        for name in names.split(",") if names else ():
            wanted = name.partition(":")[0] if part == "device" else name
            cards = [path.name for path in CARDS.iterdir()] if CARDS.is_dir() else []
            here = cards if part == "device" else [name for _, name in socket.if_nameindex()]
            found = wanted if wanted in here else f"no {wanted}; here: {', '.join(here) or 'none'}"
            yield _key(site, f"{key}.{part}", wanted in here, found)
