"""Is what the site file says true of this node? What :mod:`jobs.doctor` shows of the cluster.

On a compute node all of it must be. A login node may lack interfaces, cards, modules, data and scratch.
"""

import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from jobs.cluster import NoAnswer, mpi_types, on_compute_node, partition, why_refused
from jobs.failures import why_no_mpi
from jobs.launchers.base import ROOT, network_environment
from jobs.run import Run
from jobs.site import Network, Site, find_site, sbatch_words, why_no_modules, why_no_site
from profiling.errors import Mistakes, UserError
from profiling.presence import Presence
from profiling.wording import how_many

_ASKS_S = 60  # modules are loaded first
CARDS = Path("/sys/class/infiniband")
# A key of a network -> the variables by which ranks are told it.
_TELLS = {
    "interface": {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}, "device": {"NCCL_IB_HCA"},
}  # fmt: skip


def check_site(environment: Mapping[str, str], name: str | None = None) -> list[Presence]:
    """The site file in use, and whether what it says is so here; nothing where there is no cluster.

    Args:
        name: of the site file, or its path; None: the one that :func:`find_site` chooses.
    """
    try:
        site = find_site(name, environment)
    except UserError as error:
        return [Presence("site file", False, "cannot be used", str(error), required=True)]
    if site.file is not None:
        return [
            Presence("site file", True, site.where),
            *_cluster(site, environment),
            *_node(site, environment, f" --site {name}" if name else ""),
        ]
    do = "cp jobs/sites/example.yaml jobs/sites/mycluster.yaml, and edit it"
    why = why_no_site(environment)
    return [Presence("site file", False, why, do)] if why else []


def check_network(site: Site, networks: Iterable[str]) -> None:
    """Refuse networks that a site which names its networks does not name.

    Raises:
        UserError: the runs would not use the network that they are named after.
    """
    known = site.network.model_fields_set
    for network in networks:
        if known and network.lower() not in known:
            raise UserError(
                f"network: {network} is not in the site file {site.where}, which has only "
                f"{', '.join(sorted(known))}; add network.{network.lower()} there, or change the sweep"
            )


def check_scratch(site: Site) -> None:
    """Refuse a scratch folder that this node does not have: Slurm would make it, in whatever lies there.

    Raises:
        UserError: it does not exist.
    """
    if site.scratch is not None and not site.scratch.is_dir():
        raise UserError(
            f"scratch: {site.scratch} does not exist on {socket.gethostname()}; "
            f"correct it in the site file {site.where}, or create it on every node"
        )


def check_networks_here(site: Site, runs: Iterable[Run], environment: Mapping[str, str]) -> None:
    """Refuse networks of which this node lacks the interface or a card: every run over them would fail.

    NCCL says nothing of a missing card, and takes another network.

    Args:
        environment: the user's: a run is not told the site's interface where the user has named one.

    Raises:
        Mistakes: a line for each, with the site file's key.
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


def _cluster(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    """What Slurm says alike on every node."""
    if shutil.which("sinfo", path=environment.get("PATH")):
        yield from (replace(one, required=True) for one in _partition(site, environment))
    options = sbatch_words(site)
    if why := why_refused([*options, "--wrap=true"], environment):
        detail = f"Slurm refuses {' '.join(options) or 'jobs without options'}: {why}"
        remedy = f"correct `partition`, `account`, `qos`, `reservation` or `sbatch` in {site.where}"
        yield Presence("jobs", False, detail, remedy, required=True)
    types = mpi_types(environment) if site.mpi.srun else []
    if site.mpi.srun and types:
        why = why_not_met(site, site.mpi.srun, environment)
        present = site.mpi.srun in types and not why
        able = types if present else [one for one in types if not why_not_met(site, one, environment)]
        remedy = f"correct `mpi.srun` in {site.where}; one of: {', '.join(able)}"
        detail = f"srun --mpi={site.mpi.srun}{why and f': {why}'}"
        yield Presence("mpi.srun", present, detail, remedy, required=True)


def check_mpi(site: Site, environment: Mapping[str, str]) -> None:
    """Refuse a way to meet MPI that srun does not have: every run would fail.

    Raises:
        UserError: why, with the site file's key.
    """
    if site.mpi.srun and (why := why_not_met(site, site.mpi.srun, environment)):
        raise UserError(
            f"srun --mpi={site.mpi.srun}: {why}; correct `mpi.srun` in the site file {site.where}"
        )


def why_not_met(site: Site, mpi: str, environment: Mapping[str, str]) -> str:
    """Why srun cannot meet MPI so in jobs of this site, with their modules; "" if it can, or does not say.

    srun also lists what lacks its libraries here; it loads them before it asks for nodes.
    """
    load = f"{shlex.join(['module', 'load', *site.modules])} >/dev/null 2>&1; " if site.modules else ""
    script = f"{load}srun --mpi={shlex.quote(mpi)} --test-only true"
    try:
        answer = subprocess.run(
            ["bash", "-c", script], env={**site.environment, **environment}, capture_output=True, text=True,
            timeout=_ASKS_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return why_no_mpi(answer.stderr) if answer.returncode else ""


def _node(site: Site, environment: Mapping[str, str], flag: str) -> Iterator[Presence]:
    """What compute nodes have, and other nodes may lack; ``flag`` of the doctor names the site."""
    here = on_compute_node(environment)
    # The whole node: a task of srun has one core otherwise, and no GPU.
    options = dict.fromkeys([*sbatch_words(site), "--nodes=1", "--exclusive"])
    command = f"{shlex.join(['srun', *options])} python -m jobs.doctor{flag}"
    elsewhere = f", or check on a compute node: {command}"
    for presence in _parts_of_node(site, environment):
        remedy = presence.remedy and presence.remedy + ("" if here else elsewhere)
        yield replace(presence, remedy=remedy, required=here)


def _parts_of_node(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    if site.modules:
        why = why_no_modules(site, environment)
        remedy = f"correct `modules` in {site.where}" if why else ""
        yield Presence("modules", not why, why or ", ".join(site.modules), remedy)
    for name in sorted(site.network.model_fields_set):
        yield from _network(f"network.{name}", getattr(site.network, name), site)
    for data, here in site.data.items():
        yield _path(f"data {data}", ROOT / here, f"correct `data` in {site.where}")
    if site.scratch is not None:
        yield _path("scratch", site.scratch, f"correct `scratch` in {site.where}")
    if site.mpi.hostfile is not None:
        yield _path("hostfile", site.mpi.hostfile, f"correct `mpi.hostfile` in {site.where}")
    if site.container is not None and site.container.runtime != "pyxis":
        yield _path("container", Path(site.container.image), f"correct `container.image` in {site.where}")


def _partition(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    try:
        of = partition(site.partition, environment)
    except NoAnswer as error:
        yield Presence("partition", False, str(error), "run this on a node of the cluster")
        return
    except UserError as error:
        yield Presence("partition", False, str(error), f"correct `partition` in {site.where}")
        return
    of_each = f"{how_many(of.cpus, 'CPU')} and {how_many(of.gpus, 'GPU')}"
    yield Presence("partition", True, f"{of.name}: {how_many(of.nodes, 'node')} with {of_each} each")
    if site.gpus_per_node is not None:
        enough = site.gpus_per_node <= of.gpus
        has = "" if enough else f", but a node of the partition {of.name} has {of.gpus}"
        do = f"correct `gpus_per_node` in {site.where}"
        yield Presence("gpus_per_node", enough, f"{site.gpus_per_node}{has}", do)


def _network(key: str, network: Network, site: Site) -> Iterator[Presence]:
    """Whether this node has a network's interface and cards."""
    for interface in network.interface.split(",") if network.interface else ():
        names = [name for _, name in socket.if_nameindex()]
        yield _device(f"{key}.interface", interface, names, site)
    for card in network.device.split(",") if network.device else ():
        names = [path.name for path in CARDS.iterdir()] if CARDS.is_dir() else []
        yield _device(f"{key}.device", card.partition(":")[0], names, site)


def _device(key: str, name: str, names: list[str], site: Site) -> Presence:
    if name in names:
        return Presence(key, True, name)
    found = f"there are: {', '.join(names)}" if names else "there are none"
    return Presence(key, False, f"no {name} here; {found}", f"correct `{key}` in {site.where}")


def _path(name: str, path: Path, remedy: str) -> Presence:
    if path.exists():
        return Presence(name, True, str(path))
    return Presence(name, False, f"{path} does not exist", remedy)
