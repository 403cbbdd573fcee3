"""The settings of a cluster: modules, partition, GPUs per node, network, MPI, container, folders.

One YAML file per cluster, in jobs/sites/ or anywhere else. jobs/sites/example.yaml explains each key.

    python -m jobs.site [SITE]             the settings of its file
    python -m jobs.site --shell [SITE]     shell commands to evaluate at the start of a batch script
    python -m jobs.site --sbatch [SITE]    options for sbatch and srun, one per line
"""

import argparse
import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from jobs import ROOT, machine
from jobs.failures import why_no_mpi
from jobs.run import LINK, Run, problems_of
from jobs.run_fields import make_parser
from profiling import yaml_text
from profiling.errors import Mistakes, UserError, did_you_mean, run_command
from profiling.tools import Presence

SITES = Path(__file__).parent / "sites"
CHOOSE = "SCALEPROF_SITE"  # the environment variable that names the site
CARDS = Path("/sys/class/infiniband")
NO_SITE = f"none ({CHOOSE} is not set, and no file in jobs/sites has `cluster:` of this cluster)"


def _as_text(value: Any) -> Any:
    """What YAML takes for a number or truth, as it was written; of a fraction that cannot be known."""
    if isinstance(value, float):
        raise ValueError("put it in quotes, or 1.10 is read as 1.1")
    return str(value).lower() if isinstance(value, int) else value


def _one_word(value: Any) -> Any:
    if isinstance(text := _as_text(value), str) and not re.fullmatch(r"\S+", text):
        raise ValueError("should be one word, without spaces")
    return text


Text = Annotated[str, BeforeValidator(_as_text)]
Word = Annotated[str, BeforeValidator(_one_word)]
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Text]


BatchName: TypeAlias = Literal["slurm", *machine.BATCH_SYSTEMS]  # type: ignore[valid-type]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Network(_Part):
    interface: Word | None = None  # its network interface, for TCP, e.g. ib0 or eth0
    device: Word | None = None  # its InfiniBand device, e.g. mlx5_0 (or mlx5_0,mlx5_1)
    gbit_per_s: Annotated[float, Field(gt=0)] | None = None  # nominal, per GPU; shown beside the measured one
    variables: Variables = {}  # more variables to set for it


class Networks(_Part):
    ib: Network = Network()
    eth: Network = Network()


class Mpi(_Part):
    # The nodes, one per line; variables are expanded, e.g. $PBS_NODEFILE.
    hostfile: Annotated[Path, BeforeValidator(os.path.expandvars)] | None = None
    flags: list[Word] = []  # more flags of mpirun
    srun: Literal["none", "pmi2", "pmix"] | None = None  # its --mpi; by default Slurm's own choice


class Container(_Part):
    """The image in which ranks run."""

    runtime: Literal["apptainer", "singularity", "pyxis"]  # what starts it
    image: Word  # a file, or for pyxis a registry's name too
    binds: list[Word] = []  # folders to see inside: /path, or /outside:/inside
    python: Word = "python"  # inside the image


class Site(_Part):
    _file: Path | None = PrivateAttr(None)  # where it was read from; None: there is none

    name: str = "none"  # the file's
    cluster: Word | None = None  # Slurm's name of the cluster: the site is then found by it
    batch: BatchName = "slurm"  # the batch system
    modules: list[Word] = []  # to load before all else
    partition: Word | None = None  # of sbatch; elsewhere the queue
    account: Word | None = None  # of sbatch; elsewhere the project or bank
    qos: Word | None = None  # of sbatch
    reservation: Word | None = None  # of sbatch
    sbatch: list[Word] = []  # more flags of sbatch
    srun: list[Word] = []  # more flags of srun
    chunk: Word | None = None  # what PBS is asked for on each node: ncpus=64:ngpus=4
    submit: list[Word] = []  # more flags of qsub, bsub or flux batch
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None  # srun asks for a run's ranks per node
    network: Networks = Networks()  # what `network: ib` and `network: eth` mean here
    environment: Variables = {}  # for every run, unless the user has set them
    mpi: Mpi = Mpi()
    container: Container | None = None
    scratch: Path | None = None  # a node's own fast disk; temporary files go there
    data: dict[str, str] = {}  # a sweep's `data` -> where it is here

    @property
    def file(self) -> Path | None:
        return self._file

    @property
    def where(self) -> str:
        """The file as a user would write it here; of a site without one, its name."""
        return str(self._file or self.name).removeprefix(f"{Path.cwd()}/")


def read_site(path: Path) -> Site:
    document = yaml_text.read(path, "site file")
    content = {} if document.content is None else document.content
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a site file: it should contain keys, as jobs/sites/example.yaml does")
    try:
        site = Site.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        problems = problems_of(error, Site, "key")
        raise Mistakes([f"{document.where(place)}: {text}" for place, text in problems]) from None
    site._file = path
    return site


def add_site_flag(parser: argparse.ArgumentParser) -> None:
    which = f"site file: a name in jobs/sites, or a path [${CHOOSE}, or the one of this Slurm cluster]"
    parser.add_argument("--site", metavar="NAME|FILE", help=which)


def find_site(name: str | None, environment: Mapping[str, str]) -> Site:
    """The site of this name or path, else $SCALEPROF_SITE's, else the one with this Slurm cluster's name."""
    if name := name or environment.get(CHOOSE):
        path = Path(name) if Path(name).suffix in (".yaml", ".yml") else SITES / f"{name}.yaml"
        if not path.is_file():
            names = sorted(file.stem for file in SITES.glob("*.yaml"))
            raise UserError(f"no site {name!r}{did_you_mean(name, names)} (or a path, FILE.yaml)")
        return read_site(path)
    cluster = machine.cluster_name(environment)
    sites = [read_site(path) for path in sorted(SITES.glob("*.yaml"))] if cluster else []
    fitting = [site for site in sites if site.cluster == cluster]
    if len(fitting) > 1:
        files = ", ".join(str(site.file) for site in fitting)
        raise UserError(f"several site files are for the cluster {cluster!r} ({files}); set {CHOOSE}")
    return fitting[0] if fitting else Site()


def shell_commands(site: Site) -> list[str]:
    """What a batch script does before all else: the site's modules and variables."""
    load = shlex.join(["module", "load", *site.modules])
    error = shlex.quote(f"scaleprof: error: {site.where}: `modules` not loaded")
    commands = [f"{load} || {{ echo {error} >&2; exit 2; }}"] if site.modules else []
    for name, value in site.environment.items():
        quoted = re.sub(r'(["\\$`}])', r"\\\1", value)
        commands.append(f'export {name}="${{{name}-{quoted}}}"')  # one that the user has set stays as it is
    return commands


def sbatch_words(site: Site) -> list[str]:
    names = ("partition", "account", "qos", "reservation")
    return [f"--{name}={value}" for name in names if (value := getattr(site, name))] + site.sbatch


def network_environment(run: Run, site: Site, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that make NCCL, Gloo, UCX and MPI use ``run.network``.

    A run on one node uses no network, and is given none. Who has set one, the user or the site, knows why.
    """
    if run.nodes == 1:
        return {}
    fast = run.network.lower() == "ib"
    network = site.network.ib if fast else site.network.eth
    interface, device = network.interface, network.device
    if fast:
        variables = {"NCCL_IB_DISABLE": "0", "OMPI_MCA_pml": "ucx"}
        if device:
            # UCX names a port, NCCL a device; "=" makes NCCL match the name whole, not as a prefix.
            ports = ",".join(name if ":" in name else f"{name}:1" for name in device.split(","))
            variables |= {"NCCL_IB_HCA": f"={device}", "UCX_NET_DEVICES": ports}
    else:
        variables = {
            "NCCL_IB_DISABLE": "1",
            # That stops NCCL's own InfiniBand alone, and no plugin for a fabric (EFA, Slingshot).
            "NCCL_NET": "Socket",
            # Where UCX is built in, Open MPI would take InfiniBand by itself.
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "^openib,uct,ofi,usnic",
            "UCX_TLS": "tcp,sm,self,cuda_copy,cuda_ipc",
            **({"UCX_NET_DEVICES": interface} if interface else {}),
        }
    if interface:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
        variables |= dict.fromkeys((*names, "OMPI_MCA_btl_tcp_if_include"), interface)
    if network.gbit_per_s:
        variables[LINK] = f"{network.gbit_per_s:g}"
    variables |= network.variables
    return {name: value for name, value in variables.items() if name not in environment}


# --- is it so here? On a compute node all of it must be; a login node may lack interfaces, modules, data ----


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
        in_cluster = "SLURM_JOB_ID" in environment or machine.cluster_name(environment)
        copy = "cp jobs/sites/example.yaml jobs/sites/NAME.yaml"
        return [Presence("site file", False, NO_SITE, copy)] if in_cluster else []
    here = machine.on_compute_node(environment)
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
            part = machine.partition(site.partition, environment)
        except machine.NoAnswer as error:
            yield Presence("partition", False, str(error), "run this on a node of the cluster")
        except UserError as error:
            yield _presence(site, "partition", False, str(error))
        else:
            detail = f"{part.name}: {part.nodes} nodes, each {part.cpus} CPUs, {part.gpus} GPUs"
            yield _presence(site, "partition", True, detail)
            if (gpus := site.gpus_per_node) is not None:
                yield _presence(site, "gpus_per_node", gpus <= part.gpus, f"{gpus}; there: {part.gpus}")
    for why in machine.refused_by(machine.check_accepted, [*sbatch_words(site), "--wrap=true"], environment):
        yield _presence(site, "sbatch", False, why)
    if shutil.which("srun", path=environment.get("PATH")):
        yield from check_mpi(site, environment)


def check_mpi(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    """Whether srun has the way to meet MPI, with the site's modules: else every run would fail."""
    if not site.mpi.srun:
        return
    load = f"{shlex.join(['module', 'load', *site.modules])} >/dev/null 2>&1; " if site.modules else ""
    test = f"{load}srun --mpi={site.mpi.srun} --test-only true"
    why = why_no_mpi(_bash(test, {**site.environment, **environment}))
    yield _presence(site, "mpi.srun", not why, f"srun --mpi={site.mpi.srun}" + (f": {why}" if why else ""))


def check_modules(site: Site, environment: Mapping[str, str]) -> Iterator[Presence]:
    if not site.modules:
        return
    load, modules = shlex.join(["module", "load", *site.modules]), ", ".join(site.modules)
    why = " ".join(_bash(f"type module && {load}", environment).split())[:300]
    yield _presence(site, "modules", not why, f"{modules} cannot be loaded: {why}" if why else modules)


def _bash(script: str, environment: Mapping[str, str]) -> str:
    """What a script that fails prints as errors; "" if it ends well."""
    ended = machine.ask(["bash", "-c", script], environment, timeout_s=60)  # modules take time
    return (ended.stderr or f"exit code {ended.returncode}") if ended.returncode else ""


def check_paths(site: Site, *keys: str) -> Iterator[Presence]:
    """Whether this node has the files and folders that the site file names; ``keys``: only these."""
    paths = [("data", ROOT / here) for here in site.data.values()]
    paths += [("scratch", site.scratch)] if site.scratch else []
    paths += [("mpi.hostfile", site.mpi.hostfile)] if site.mpi.hostfile else []
    if site.container is not None and site.container.runtime != "pyxis":
        paths.append(("container.image", Path(site.container.image)))
    for key, path in [(key, path) for key, path in paths if not keys or key in keys]:
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
        devices = re.sub(r":[^,]*", "", network.device or "")  # without ports
        for part, listed, here in (("interface", network.interface, interfaces), ("device", devices, cards)):
            for sought in listed.split(",") if listed else ():
                found = sought if sought in here else f"no {sought}; here: {', '.join(here) or 'none'}"
                yield _presence(site, f"network.{name}.{part}", sought in here, found)


def main() -> None:
    parser = make_parser("python -m jobs.site", __doc__)
    parser.add_argument(
        "site", nargs="?", metavar="SITE", help=f"a name or a file [${CHOOSE}, or this Slurm cluster's]"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--shell", action="store_true", help="print shell commands")
    what.add_argument("--sbatch", action="store_true", help="print options for sbatch")
    arguments = parser.parse_args()
    site = find_site(arguments.site, os.environ)
    if arguments.shell or arguments.sbatch:
        print("\n".join(shell_commands(site) if arguments.shell else sbatch_words(site)))
    elif site.file is None:
        print(f"# site file: {NO_SITE}")
    else:
        settings = site.model_dump(mode="json", exclude_unset=True, exclude={"name"})
        print(f"# {site.where}\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}".rstrip())


if __name__ == "__main__":
    run_command(main)
