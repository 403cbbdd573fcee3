"""What is true of a cluster: its modules, partition, GPUs a node, network, MPI, container, folders?

One YAML file a cluster, in jobs/sites/ (or anywhere: ``--site FILE``). jobs/sites/example.yaml explains each
key. For scripts:

    python -m jobs.site --shell [SITE]     commands a batch script evaluates before all else
    python -m jobs.site --sbatch [SITE]    what sbatch must be told, a word a line
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from jobs.flags import make_parser
from jobs.validation import problems_of
from profiling import yaml_text
from profiling.errors import Mistakes, UserError, did_you_mean, run_command

SITES = Path(__file__).parent / "sites"
CHOOSE = "SCALEPROF_SITE"  # the environment variable that names the site


def _as_text(value: Any) -> Any:
    """What YAML takes for a number or truth, as it was written; of a fraction that cannot be known."""
    if isinstance(value, float):
        raise ValueError("put it in quotes, or 1.10 is read as 1.1")
    return str(value).lower() if isinstance(value, int) else value


Text = Annotated[str, BeforeValidator(_as_text)]
Word = Annotated[str, BeforeValidator(_as_text), Field(pattern=r"^[^\s]+$")]
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Text]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Network(_Part):
    """One of a cluster's networks."""

    interface: Word | None = Field(
        default=None, description="its network interface, for TCP, e.g. ib0 or eth0"
    )
    device: Word | None = Field(
        default=None, description="its InfiniBand device, e.g. mlx5_0 (or mlx5_0,mlx5_1)"
    )
    variables: Variables = Field(default={}, description="more variables to set for it")


class Networks(_Part):
    ib: Network = Network()
    eth: Network = Network()


class Mpi(_Part):
    """How MPI's ranks are started."""

    hostfile: Path | None = Field(
        default=None, description="the nodes, a line each, where there is no batch system"
    )
    flags: list[Word] = Field(default=[], description="more flags of mpirun")
    srun: Literal["none", "pmi2", "pmix"] | None = Field(
        default=None, description="how srun meets MPI (srun --mpi=list); by default Slurm's own choice"
    )


class Container(_Part):
    """The image in which ranks run."""

    runtime: Literal["apptainer", "singularity", "pyxis"] = Field(description="what starts it")
    image: Word = Field(description="the image: a file, or for pyxis a registry's name too")
    binds: list[Word] = Field(default=[], description="folders to see inside: /path, or /outside:/inside")
    python: Word = Field(default="python", description="Python inside the image")


class Site(_Part):
    """A site file."""

    name: str = Field(default="none", description="the file's name")
    cluster: Word | None = Field(
        default=None, description="Slurm's name of the cluster: the site is then found by it"
    )
    modules: list[Word] = Field(default=[], description="modules to load before all else")
    partition: Word | None = Field(default=None, description="of sbatch")
    account: Word | None = Field(default=None, description="of sbatch")
    sbatch: list[Word] = Field(default=[], description="more flags of sbatch")
    srun: list[Word] = Field(default=[], description="more flags of srun")
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = Field(
        default=None, description="GPUs of a node; srun then asks for as many as a run has ranks"
    )
    network: Networks = Field(
        default=Networks(), description="what `network: ib` and `network: eth` mean here"
    )
    environment: Variables = Field(
        default={}, description="variables for every run, unless the user has set them"
    )
    mpi: Mpi = Field(default=Mpi(), description="how MPI's ranks are started")
    container: Container | None = Field(default=None, description="the image in which ranks run")
    scratch: Path | None = Field(default=None, description="a node's own fast disk; temporary files go there")
    data: dict[str, str] = Field(default={}, description="a sweep's `data` -> where it is here")


def read_site(path: Path) -> Site:
    """A site from its YAML file.

    Raises:
        UserError: unreadable or not YAML.
        Mistakes: unknown keys (the nearest is named) and bad values, all of them, with their lines.
    """
    document = yaml_text.read(path, "site file")
    content = {} if document.content is None else document.content
    if not isinstance(content, dict):
        raise UserError(f"{path} is no site file: it should hold keys, as jobs/sites/example.yaml does")
    try:
        return Site.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        problems = problems_of(error, Site, "key")
        raise Mistakes([f"{document.where(problem.place)}: {problem.text}" for problem in problems]) from None


def find_site(name: str | None, environment: Mapping[str, str]) -> Site:
    """The site that ``--site`` says, else $SCALEPROF_SITE, else the one with this Slurm cluster's name.

    Raises:
        UserError: there is no such site.
    """
    name = name or environment.get(CHOOSE)
    if name:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            path = SITES / f"{name}.yaml"
        if not path.is_file():
            names = sorted(file.stem for file in SITES.glob("*.yaml"))
            raise UserError(f"no site {name!r}{did_you_mean(name, names)} (or say a file, --site FILE.yaml)")
        return read_site(path)
    cluster = environment.get("SLURM_CLUSTER_NAME")
    for path in sorted(SITES.glob("*.yaml")) if cluster else []:
        site = read_site(path)
        if site.cluster == cluster:
            return site
    return Site()


def shell_commands(site: Site) -> list[str]:
    """What a batch script does before all else: the site's modules and variables."""
    commands = [shlex.join(["module", "load", *site.modules])] if site.modules else []
    return commands + [
        # A variable that the user has set stays as it is.
        f'export {name}="${{{name}-{_quoted(value)}}}"'
        for name, value in site.environment.items()
    ]


def _quoted(value: str) -> str:
    return "".join("\\" + letter if letter in '"\\$`}' else letter for letter in value)


def sbatch_words(site: Site) -> list[str]:
    """What sbatch must be told at this site."""
    flags = {"--partition": site.partition, "--account": site.account}
    return [f"{flag}={value}" for flag, value in flags.items() if value] + site.sbatch


def main() -> None:
    parser = make_parser("python -m jobs.site", __doc__)
    parser.add_argument("site", nargs="?", help=f"a name or a file [${CHOOSE}, else this Slurm cluster's]")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--shell", action="store_true", help="print shell commands")
    what.add_argument("--sbatch", action="store_true", help="print flags of sbatch")
    arguments = parser.parse_args()
    site = find_site(arguments.site, os.environ)
    print("\n".join(shell_commands(site) if arguments.shell else sbatch_words(site)))


if __name__ == "__main__":
    run_command(main)
