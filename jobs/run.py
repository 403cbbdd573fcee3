"""One configuration of a sweep: :class:`Run`, which defines every option once.

Its fields are the flags of ``python -m train``, the keys of a sweep's YAML, and columns of the results.
:mod:`jobs.run_fields` has the roles of fields, values as text, and ids. Invalid values of any model are
reported in one line each (:func:`problems_of`). Backends, loaders, models and data sets are named without
torch: only ranks import the modules that open them.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, model_validator

from profiling.errors import UserError, did_you_mean
from profiling.tools import STARTED, check_mode, is_importable

# Else pydantic looks for plugins in every installed package, which takes each command 0.1 s.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# The module of each backend, which holds ``open_backend`` (:mod:`train.backends`).
BACKENDS = {
    "single": "train.backends",  # one rank: nothing is exchanged
    "ddp": "train.backends.ddp",
    "horovod": "train.backends.horovod",
    "dp": "train.backends",  # torch.nn.DataParallel: one process for all GPUs of a node
}


@dataclass(frozen=True)
class LoaderKind:
    """A loader, to all but the rank that opens it."""

    module: str  # holds ``build_loader`` (:mod:`train.loaders`)
    on_cpu: str = ""  # the loader to take where there is no GPU; "" where this one needs none
    reads_data: bool = True  # whether it reads the run's ``data``
    by_dali: bool = False


DALI_PACKAGE = "nvidia-dali-cuda130"
INSTALL_DALI = f"pip install {DALI_PACKAGE}"
_DALI = "train.loaders.dali"

LOADERS: dict[str, LoaderKind] = {
    "dali-gpu": LoaderKind(_DALI, "dali-cpu", by_dali=True),
    "dali-cpu-to-gpu": LoaderKind(_DALI, "dali-cpu", by_dali=True),
    "dali-cpu": LoaderKind(_DALI, by_dali=True),
    "pytorch": LoaderKind("train.loaders.pytorch"),
    "synthetic": LoaderKind("train.loaders.pytorch", reads_data=False),
}
# The variable by which a run's record has the nominal bandwidth per GPU of its network, from the site file.
LINK = "SCALEPROF_LINK_GBIT_PER_S"
NO_HOROVOD = "Horovod is not installed (make horovod builds it): using DDP instead"


def has_horovod() -> bool:
    return is_importable("horovod")


# What there is of each is said in one place.
Profile: TypeAlias = Literal[STARTED]  # type: ignore[valid-type]
LoaderName: TypeAlias = Literal[tuple(LOADERS)]  # type: ignore[valid-type]
BackendName: TypeAlias = Literal["auto", *BACKENDS]  # type: ignore[valid-type]

# DDP builds its buckets anew in the first steps and times ten of them, which no graph can hold.
STEPS_BEFORE_GRAPH = 11


@dataclass(frozen=True)
class Role:
    """What a field of a run is to the analysis, and how a value of it is called.

    ``workload``: what is trained, and how; ``observation``: how it is watched, or by which chance, in which
    the runs of one point may differ; ``own``: a program's factors, which are workload, each a field.
    """

    kind: Literal["workload", "size", "length", "observation", "own"]
    label: str = "{}"  # a value in words


_WORKLOAD, _OBSERVATION = Role("workload"), Role("observation")


Value: TypeAlias = str | int | float | bool  # of a factor of the user's own
LONGEST_PROGRAM = 4096  # characters of its command


# Its validators are built when the first Run is: commands that only name its fields start faster.
class Run(BaseModel, extra="forbid", frozen=True, strict=True, defer_build=True):
    """One configuration of a training job; see the fields' descriptions for units and ranges."""

    nodes: Annotated[int, Field(ge=1, le=4096), Role("size", "nodes: {}")] = Field(
        1, description="number of nodes"
    )
    gpus_per_node: Annotated[int, Field(ge=1, le=64), Role("size", "{} per node")] = Field(
        1,
        description="ranks per node, one per GPU; without GPUs, each gets a share of the cores (backend dp: "
        "one rank drives all GPUs of the node)",
    )
    # Case is kept: the reference wrote both "ib" and "IB", and an id must come back as it was.
    network: Annotated[str, Field(pattern=r"^(?i:ib|eth)$"), _WORKLOAD] = Field(
        "eth", description="ib (InfiniBand) or eth (Ethernet)"
    )
    profile: Annotated[Profile, Role("observation", "profile: {}")] = Field(
        "none", description="the profiler of the run; none: unprofiled"
    )
    workers: Annotated[int, Field(ge=0, le=512), Role("workload", "{} workers")] = Field(
        2,
        description="CPU threads per rank that load data (pytorch: processes); 0: with DALI the rank's share "
        "of the node's cores, with pytorch the rank loads its data itself",
    )
    model: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$"), _WORKLOAD] = Field(
        "resnet50", description="a torchvision classification model"
    )
    loader: Annotated[LoaderName, _WORKLOAD] = Field("synthetic", description="loader (docs/profilers.md)")
    batch: Annotated[int, Field(ge=1, le=65536), Role("workload", "batch {}")] = Field(
        32, description="batch size per GPU (without GPUs: per rank), in images"
    )
    grad: Annotated[Literal["fp32", "fp16", "bf16"], Role("workload", "{} gradients")] = Field(
        "fp32", description="precision in which gradients are exchanged"
    )
    compute: Annotated[Literal["fp32", "tf32", "bf16", "fp16"], Role("workload", "{} compute")] = Field(
        "fp32", description="precision of the computation"
    )

    backend: Annotated[BackendName, _WORKLOAD] = Field(
        "auto",
        description="how gradients are exchanged; auto: single for one rank, otherwise ddp; dp: "
        "torch.nn.DataParallel, one process for all GPUs of a node",
    )
    threads: Annotated[int, Field(ge=0, le=1024), Role("workload", "{} threads")] = Field(
        0,
        description="CPU threads per rank for computation; 0: the cores of the node divided by its ranks, so "
        "fewer per rank when there are more ranks",
    )
    device: Annotated[Literal["auto", "cpu", "gpu"], _WORKLOAD] = Field(
        "auto", description="where to train; auto: on a GPU if there is one, otherwise on the CPU"
    )
    batches: Annotated[int, Field(ge=1, le=10_000_000), Role("length", "{} batches")] = Field(
        50, description="batches that each rank trains on, one per optimizer step"
    )
    attribute_from: Annotated[Annotated[int, Field(ge=0)] | None, _OBSERVATION] = Field(
        None,
        description="first step (from 0) that the profiler records; by default the second half is recorded",
    )
    image_size: Annotated[int, Field(ge=32, le=2048), Role("workload", "{} px")] = Field(
        224, description="height and width of an image, in pixels"
    )
    data: Annotated[Annotated[str, Field(min_length=1)] | None, _WORKLOAD] = Field(
        None, description="folder of the data set (python -m train.data make creates a small one)"
    )
    data_format: Annotated[Literal["images", "tfrecord"], _WORKLOAD] = Field(
        "images", description="images: files class/image.jpg; tfrecord: TFRecord files with their indexes"
    )
    profile_mode: Annotated[
        str, Field(pattern=r"^[a-z][a-z-]{0,31}$"), Role("observation", "profile mode {}")
    ] = Field(
        "auto",
        description="what the profiler records, e.g. metrics (nvprof) or memory (torch); auto: what the "
        "analysis needs",
    )
    profile_kernels: Annotated[str, Field(max_length=256), _OBSERVATION] = Field(
        "", description="regular expression: read counters only of kernels whose names match"
    )
    profile_metrics: Annotated[str, Field(max_length=999, pattern=r"^[\w.,:= -]*$"), _OBSERVATION] = Field(
        "",
        description="counters, separated by commas, for nvprof's mode metrics or in addition to ncu's (see "
        "nvprof or ncu --query-metrics); for vtune: its options, e.g. -knob sampling-interval=50",
    )
    profile_schedule: Annotated[
        str,
        Field(pattern=r"^(\d{1,7},\d{1,7},\d{1,7},\d{1,7})?$"),
        Role("observation", "profile schedule {}"),
    ] = Field(
        "",
        description="for torch: steps to skip, to warm up and to record, and number of repetitions, e.g. "
        "1,2,5,2; by default all steps from attribute_from on are recorded",
    )
    learning_rate: Annotated[float, Field(gt=0, le=100), Role("workload", "learning rate {}")] = Field(
        0.01, description="learning rate of SGD with momentum 0.9"
    )
    seed: Annotated[int, Field(ge=0, lt=2**31), Role("observation", "seed {}")] = Field(
        0, description="seed of weights, data order and augmentation"
    )
    channels_last: Annotated[bool, _WORKLOAD] = Field(False, description="use the NHWC memory layout")
    compile: Annotated[bool | Literal["max-autotune", "reduce-overhead"], Role("workload", "compile {}")] = (
        Field(False, description="compile the model with torch.compile; true: in its default mode")
    )
    graph: Annotated[bool, Role("workload", "graph {}")] = Field(
        False,
        description="launch each stage of a step as a CUDA graph, captured after the first 11 steps; needs a "
        "GPU, and backend single or ddp",
    )
    cudnn_benchmark: Annotated[bool, _WORKLOAD] = Field(
        True, description="let cuDNN try its algorithms in the first steps and use the fastest"
    )
    hw_decoder_load: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None, Role("workload", "JPEG engines' share {}")
    ] = Field(
        None,
        description="dali-gpu: share of images that the GPU's JPEG engines decode; by default 0.8 on Hopper "
        "and later, otherwise DALI's default (0.65)",
    )
    broadcast_buffers: Annotated[bool, _WORKLOAD] = Field(
        True,
        description="DDP broadcasts rank 0's buffers (statistics of batch norm) before each forward pass",
    )
    bucket_mb: Annotated[float, Field(gt=0, le=4096), Role("workload", "{} MiB buckets")] = Field(
        25.0, description="size of DDP's gradient buckets, in MiB"
    )
    sync_stages: Annotated[bool, _WORKLOAD] = Field(
        False, description="synchronise the device after forward and update, as the reference study did"
    )

    program: Annotated[str, Field(max_length=LONGEST_PROGRAM), _WORKLOAD] = Field(
        "",
        description="command of the program that is run instead of scaleprof's training loop; in a sweep, "
        "names in braces are replaced by fields and factors",
    )
    factors: Annotated[dict[str, Value], Role("own")] = Field(
        {}, description="a program's own factors, by name; each is a column factors.NAME of the results"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        """Refuse values that do not go together."""
        if self.attribute_from is not None and self.attribute_from >= self.batches:
            raise ValueError(f"attribute_from {self.attribute_from} must be less than batches {self.batches}")
        if text := self.profile_schedule:
            steps = self.recordings
            if self.profile not in ("torch", "none"):  # the unprofiled twin of such a run bears it too
                raise ValueError(f"profile_schedule works only with profile torch, not with {self.profile}")
            if self.attribute_from is not None:
                raise ValueError("profile_schedule and attribute_from exclude each other")
            if not steps or not steps[0]:
                raise ValueError(f"profile_schedule {text} records nothing")
            if steps[-1].stop > self.batches:
                needed = f"needs {steps[-1].stop} steps, batches is {self.batches}"
                raise ValueError(f"profile_schedule {text} {needed}")
        if self.profile_mode != "auto":
            try:
                check_mode(self.profile, self.profile_mode)
            except UserError as error:
                raise ValueError(str(error)) from None
        first, graph, on_cpu = STEPS_BEFORE_GRAPH, self.graph, self.device == "cpu"
        dp, horovod, single = (self.backend == name for name in ("dp", "horovod", "single"))
        early = self.profile != "none" and self.recordings[0].start - self.profiler_warm_up < first
        replays = self.compile in ("max-autotune", "reduce-overhead")
        instead = LOADERS[self.loader].on_cpu
        start = "profile_schedule" if self.profile_schedule else "attribute_from"
        # The unprofiled twin of a run under VTune bears its options too.
        options = re.search(r"^-| ", self.profile_metrics) and self.profile not in ("vtune", "none")
        for wrong, text in (
            (dp and self.nodes > 1, f"backend dp is for one node, not {self.nodes}; use ddp"),
            (dp and self.grad != "fp32", f"backend dp sums gradients in fp32, not grad {self.grad}; use ddp"),
            (dp and self.channels_last, "backend dp does not support channels_last; use ddp"),
            (dp and self.compile, "backend dp does not support compile; use ddp"),
            (options, "profile_metrics: counters, separated by commas; only vtune takes options"),
            (graph and on_cpu, "graph true needs a GPU; on device cpu use graph false"),
            (graph and (dp or horovod), f"graph true does not work with backend {self.backend}; use ddp"),
            (graph and replays, f"graph true and compile {self.compile} exclude each other"),
            (
                graph and self.batches <= first,
                f"graph true needs batches of {first + 1} or more: graphs begin at step {first}",
            ),
            (graph and early, f"graph true: the profiler must start at step {first} or later ({start})"),
            (single and self.ranks > 1, f"backend single is for one rank, not {self.ranks}; use ddp"),
            (horovod and self.grad == "bf16", "Horovod does not support bf16 gradients; use fp16 or ddp"),
            (on_cpu and instead, f"loader {self.loader} needs a GPU; on device cpu use {instead}"),
        ):
            if wrong:
                raise ValueError(text)
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # factors are a dict, which has none

    def value(self, name: str) -> Any:
        """A field of the run, a property like ``world_size``, or a factor of the program's own."""
        return self.factors[name] if name in self.factors else getattr(self, name)

    @property
    def world_size(self) -> int:
        """P: the number of GPUs (without any: of ranks)."""
        return self.nodes * self.gpus_per_node

    @property
    def ranks_per_node(self) -> int:
        """Processes a node: one a GPU, but for DataParallel, whose one drives them all."""
        return 1 if self.backend == "dp" else self.gpus_per_node

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def exchange(self) -> tuple[int, int, str]:
        """Which ranks exchange gradients over what: nodes, ranks per node, and the network between nodes."""
        return self.nodes, self.ranks_per_node, self.network.lower() if self.nodes > 1 else ""

    @property
    def gpus_per_rank(self) -> int:
        return self.world_size // self.ranks

    @property
    def rank_batch(self) -> int:
        """Images that one process takes for a batch: those of all its GPUs."""
        return self.batch * self.gpus_per_rank

    @property
    def first_attributed(self) -> int:
        """The first batch a profiler records; the later half by default, so that warm-up is outside it."""
        if self.profile_schedule:
            return self.recordings[0].start
        return self.batches // 2 if self.attribute_from is None else self.attribute_from

    @property
    def recordings(self) -> list[range]:
        """The batches that a profiler records, a range each time it is switched on."""
        if not self.profile_schedule:
            return [range(self.first_attributed, self.batches)]
        # As torch.profiler.schedule has it.
        wait, warm_up, active, repeat = map(int, self.profile_schedule.split(","))
        cycle = wait + warm_up + active
        ends = range(cycle, cycle * repeat + 1, cycle) if cycle else ()
        return [range(end - active, end) for end in ends]

    @property
    def steps_before_graph(self) -> int:
        """The first steps, which a run with ``graph`` issues kernel by kernel; 0 for other runs."""
        return STEPS_BEFORE_GRAPH if self.graph else 0

    @property
    def profiler_warm_up(self) -> int:
        """Batches before each recording in which the profiler is on already and keeps nothing."""
        return int(self.profile_schedule.split(",")[1]) if self.profile_schedule else 0


def make_run(values: Mapping[str, Any], where: str = "") -> Run:
    try:
        return Run.model_validate(dict(values))
    except ValidationError as error:
        text = "; ".join(text for _, text in problems_of(error, Run))
        raise UserError((f"{where}: " if where else "") + text) from None


# --- what is wrong with a user's values -----------------------------------------------------------------

Place = tuple[int | str, ...]  # keys and indices, outermost first
Problem = tuple[Place, str]  # where, and what in one line


def problems_of(error: ValidationError, model: type[BaseModel], what: str = "field") -> list[Problem]:
    """Everything that a pydantic error of ``model`` says, each problem once, with near misses named."""
    # A place is without pydantic's own names of a union's members; an unknown key may look like one.
    errors = []
    for each in error.errors():
        unknown = each["loc"][-1:] if each["type"] == "extra_forbidden" else ()
        parts = (part for part in each["loc"] if part in unknown or re.fullmatch(r"\w+", str(part)))
        errors.append((tuple(parts), each))
    # A value that fits no member of a union has an error for each: the innermost counts, and a wrong value
    # more than a wrong type.
    weighed = sorted(errors, key=lambda pair: (-len(pair[0]), pair[1]["type"].endswith("_type")))
    chosen: dict[Place, Any] = {}
    for place, each in weighed:
        if not any(known[: len(place)] == place for known in chosen):
            chosen[place] = each
    places = dict.fromkeys(place for place, _ in errors)
    return [(place, _text(chosen[place], place, model, what)) for place in places if place in chosen]


def _text(problem: Mapping[str, Any], place: Place, model: type[BaseModel], what: str) -> str:
    name, given, kind = ".".join(map(str, place)), problem.get("input"), problem["type"]
    message = re.sub(r"^(Value error, |Input |String )", "", problem["msg"])
    if not place:
        return message
    # The model that the problem lies in, and the field's name there.
    inner, *others = (str(part) for part in problem["loc"] if not isinstance(part, int))
    for part in others:
        annotation: Any = model.model_fields[inner].annotation
        options = (each for each in (annotation, *get_args(annotation)) if isinstance(each, type))
        nested = next((each for each in options if issubclass(each, BaseModel)), None)
        if nested is None:
            break
        model, inner = nested, part
    info = model.model_fields.get(inner)
    if kind == "extra_forbidden":
        return f"unknown {what} {name!r}{did_you_mean(inner, model.model_fields)}"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "literal_error":
        names = literal_options(info.annotation) if info else ()
        of = ".".join(map(str, place[:-1])) if given == place[-1] else name  # a key, or a value
        return f"invalid {of} {given!r}{did_you_mean(str(given), names)}"
    if kind == "string_pattern_mismatch" and info and info.description:
        message = info.description
    if kind in ("dict_type", "model_type"):
        message = "should hold keys and values (`key: value`)"
    return f"invalid {name} {given!r}: {message}"


def wrong_values(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with values of fields, each taken by itself: a line each."""
    try:
        Run.model_validate(dict(values))
    except ValidationError as error:
        # Whether values go together shows only where all of a run's are known.
        return [text for place, text in problems_of(error, Run) if place]
    return []


def literal_options(annotation: Any) -> tuple[str, ...]:
    """The values a Literal (or an optional one) admits; empty for other types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(option for part in get_args(annotation) for option in literal_options(part))


_REGISTERED = re.compile(r"^@register_model\(.*\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


def model_names() -> list[str]:
    """The classification models of the torchvision that is here, read from its source: importing is slow."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return []
    sources = (Path(spec.origin).parent / "models").glob("*.py")
    return sorted(name for path in sources for name in _REGISTERED.findall(path.read_text(encoding="utf-8")))


# --- data sets: a folder of classes with images (class/image.jpg), or a folder of TFRecord files -----------

_DEMO = Path("data", "demo")
MAKE_DATA = f"make a small set with: python -m train.data make {_DEMO}"
_SAID = "--data (in a sweep file: `data`), or its path in the site file"
_LACKS = {
    "images": "no images: class/image.jpg (TFRecord files: data_format tfrecord)",
    "tfrecord": "no TFRecord files (image folders: data_format images)",
}
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}


def data_folder(data: str | Path, data_format: str) -> Path:
    """Where a run's data are: ``data``, or its part for the format as ``train.data make`` lays it out."""
    folder = Path(data)
    if not folder.is_dir():
        if folder.exists():
            raise UserError(f"data {folder.absolute()} is a file; give the folder that holds the data set")
        do = MAKE_DATA if folder.parts[-2:] == _DEMO.parts else f"correct {_SAID}"
        raise UserError(f"there is no data folder {folder.absolute()}; {do}")
    part = folder / ("images" if data_format == "images" else "tfrecord")
    return part if part.is_dir() else folder


def no_data_in(folder: Path, data_format: str) -> UserError:
    """The error of a folder that holds no data of a format."""
    return UserError(f"{folder} holds {_LACKS[data_format]}")


def images_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()  # in place: the order in which os.walk goes on
        images = (name for name in sorted(files) if Path(name).suffix.lower() in IMAGE_SUFFIXES)
        yield from (Path(place, name) for name in images)


def record_files(folder: Path) -> list[Path]:
    """The TFRecord files of a folder in name order: all but indexes and descriptions."""
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return sorted(path for path in files if path.suffix not in (".idx", ".json"))


@cache
def check_data(data: str | Path, data_format: str) -> None:
    """Refuse a folder without data of a format. One image is enough."""
    try:
        folder = data_folder(data, data_format)
        classes = (path for path in folder.iterdir() if path.is_dir())
        found = any(map(any, map(images_below, classes))) if data_format == "images" else record_files(folder)
    except OSError as error:
        raise UserError(f"data: {data} cannot be read: {error.strerror}") from None
    if not found:
        raise no_data_in(folder, data_format)
