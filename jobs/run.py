"""What is one configuration of a sweep?

:class:`Run` is the one definition of every option: the flags of ``python -m train``, the keys of a sweep's
YAML, the columns of the analysis and the documentation are its fields. What a run is called:
:mod:`jobs.run_id`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from jobs.backends import BACKENDS
from jobs.loaders import LOADERS
from jobs.schedule import parse_schedule, why_no_schedule
from jobs.validation import explain, literal_options, problems_of
from profiling.errors import UserError, did_you_mean
from profiling.tools import STARTED, check_mode

# Else pydantic looks for plugins in every installed package, which takes each command 0.1 s.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
if TYPE_CHECKING:
    Profile: TypeAlias = str
    LoaderName: TypeAlias = str
    BackendName: TypeAlias = str
else:  # what there is of each is said in one place
    Profile = Literal[STARTED]
    LoaderName = Literal[tuple(LOADERS)]
    BackendName = Literal["auto", *BACKENDS]

# DDP builds its buckets anew in the first steps and times ten of them, which no graph can hold.
STEPS_BEFORE_GRAPH = 11
# The fields that make the id, in its order.
ID_FIELDS = (
    "nodes", "gpus_per_node", "network", "profile", "workers", "model", "loader", "batch", "grad", "compute",
)  # fmt: skip
# Those of a run of a program: our own training loop's would say what is not so.
PROGRAM_ID_FIELDS = ID_FIELDS[:4]


@dataclass(frozen=True)
class Role:
    """What a field of a run is to the analysis, and how a value of it is called.

    Attributes:
        kind: ``workload``: what is trained, and how; ``size``: on how many nodes and GPUs; ``length``: for
            how many batches; ``observation``: how it is watched, or by which chance: the runs of one point
            may differ in it; ``own``: the factors of a user's program, which are workload, each a field.
        label: a value in words; ``{}`` stands for it.
    """

    kind: Literal["workload", "size", "length", "observation", "own"]
    label: str = "{}"


_WORKLOAD, _OBSERVATION = Role("workload"), Role("observation")


Value: TypeAlias = str | int | float | bool  # of a factor of the user's own
LONGEST_PROGRAM = 4096  # characters of its command


class Run(BaseModel):
    """One configuration of a training job; see the fields' descriptions for units and ranges."""

    # Its validators are built when the first Run is: commands that only name its fields start faster.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

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
        "of the node's cores, with pytorch none beside the rank itself",
    )
    model: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$"), _WORKLOAD] = Field(
        "resnet50", description="a torchvision classification model"
    )
    loader: Annotated[LoaderName, _WORKLOAD] = Field(
        "synthetic", description="the data loader (docs/loaders.md)"
    )
    batch: Annotated[int, Field(ge=1, le=65536), Role("workload", "batch {}")] = Field(
        32, description="batch size per GPU (without GPUs: per rank), in images"
    )
    grad: Annotated[Literal["fp32", "fp16", "bf16"], Role("workload", "{} gradients")] = Field(
        "fp32", description="precision in which gradients are exchanged"
    )
    compute: Annotated[Precision, Role("workload", "{} compute")] = Field(
        "fp32", description="precision of the computation"
    )

    backend: Annotated[BackendName, _WORKLOAD] = Field(
        "auto",
        description="how gradients are exchanged; auto: single for one rank, otherwise ddp; dp: "
        "torch.nn.DataParallel, one process for all GPUs of a node",
    )
    threads: Annotated[int, Field(ge=0, le=1024), Role("workload", "{} threads")] = Field(
        0,
        description="CPU threads per rank for computation; 0: the cores of the node divided by its ranks (so "
        "that with more ranks, each has fewer)",
    )
    device: Annotated[Literal["auto", "cpu", "gpu"], _WORKLOAD] = Field(
        "auto", description="where to train; auto: on a GPU if there is one, otherwise on the CPU"
    )
    batches: Annotated[int, Field(ge=1, le=10_000_000), Role("length", "{} batches")] = Field(
        50, description="optimizer steps of the run"
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
        "images", description="images: a folder class/image.jpg; tfrecord: TFRecord files with their indexes"
    )
    profile_mode: Annotated[
        str, Field(pattern=r"^[a-z][a-z-]{0,31}$"), Role("observation", "profile mode {}")
    ] = Field(
        "auto",
        description="what the profiler records, e.g. metrics (nvprof) or memory (torch); auto: what the "
        "analysis needs",
    )
    profile_kernels: Annotated[str, Field(max_length=256), _OBSERVATION] = Field(
        "", description="regular expression: read the counters of kernels with such names only"
    )
    profile_schedule: Annotated[
        str,
        Field(pattern=r"^(\d{1,7},\d{1,7},\d{1,7},\d{1,7})?$"),
        Role("observation", "profile schedule {}"),
    ] = Field(
        "",
        description="steps that the torch profiler skips, warms up and records, and how often it repeats "
        "this, e.g. 1,2,5,2; by default it records from attribute_from to the end",
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
        True, description="let cuDNN try its algorithms in the first steps and keep the fastest"
    )
    hw_decoder_load: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None, Role("workload", "JPEG engines' share {}")
    ] = Field(
        None,
        description="dali-gpu: the share of images that the GPU's JPEG engines decode; by default 0.8 from "
        "Hopper on, otherwise DALI's own (0.65)",
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
        description="command of the program that was run in place of our own training loop; in a sweep with "
        "names in braces, which fields and factors fill",
    )
    factors: Annotated[dict[str, Value], Role("own")] = Field(
        {}, description="factors of a program's own, by name; in answers each has a column factors.NAME"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        if self.attribute_from is not None and self.attribute_from >= self.batches:
            raise ValueError(
                f"attribute_from ({self.attribute_from}) must be less than batches ({self.batches})"
            )
        if self.profile_schedule and (
            wrong := why_no_schedule(self.profile_schedule, self.profile, self.batches, self.attribute_from)
        ):
            raise ValueError(wrong)
        if self.backend == "dp":
            self._check_dp()
        if self.graph:
            self._check_graph()
        if self.backend == "single" and self.world_size > 1:
            raise ValueError(f"backend single is for one rank, not {self.world_size}; use ddp")
        if self.backend == "horovod" and self.grad == "bf16":
            raise ValueError("Horovod does not support bf16 gradients; use grad fp16 or backend ddp")
        if self.profile_mode != "auto":
            _check_profile(self.profile, self.profile_mode)
        if self.device == "cpu" and (instead := LOADERS[self.loader].on_cpu):
            raise ValueError(f"loader {self.loader} needs a GPU; on device cpu use {instead}")
        return self

    def _check_graph(self) -> None:
        if self.device == "cpu":
            raise ValueError("graph true needs a GPU; on device cpu use graph false")
        if self.backend in ("dp", "horovod"):
            raise ValueError(
                f"graph true: backend {self.backend} cannot be captured in a CUDA graph; use ddp or single"
            )
        if self.compile in ("max-autotune", "reduce-overhead"):
            raise ValueError(
                f"compile {self.compile} makes CUDA graphs itself; with graph true use compile true or false"
            )
        first = STEPS_BEFORE_GRAPH
        if self.batches <= first:
            raise ValueError(
                f"graph true: the first {first} steps run without it; use batches {first + 1} or more"
            )
        begins = self.recordings[0].start - self.profiler_warm_up
        if self.profile != "none" and begins < first:
            raise ValueError(
                f"graph true: the first {first} steps run without it, and the profiler would start at step "
                f"{begins}; use attribute_from {first} or more"
            )

    def _check_dp(self) -> None:
        if self.nodes > 1:
            raise ValueError(f"backend dp drives the GPUs of one node, not of {self.nodes}; use ddp")
        if self.grad != "fp32":
            raise ValueError(f"backend dp sums gradients in fp32; for grad {self.grad} use ddp")
        if self.channels_last:
            raise ValueError("backend dp copies weights to the other GPUs as NCHW; for channels_last use ddp")
        if self.compile:
            raise ValueError(
                "backend dp copies the model to each GPU, which a compiled model does not allow; use ddp"
            )

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
        """The number of processes."""
        return self.nodes * self.ranks_per_node

    @property
    def gpus_per_rank(self) -> int:
        """GPUs that one process drives."""
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
        if self.profile_schedule:
            return parse_schedule(self.profile_schedule).recordings
        return [range(self.first_attributed, self.batches)]

    @property
    def steps_before_graph(self) -> int:
        """The first steps, which a run with ``graph`` issues kernel by kernel; 0 for other runs."""
        return STEPS_BEFORE_GRAPH if self.graph else 0

    @property
    def profiler_warm_up(self) -> int:
        """Batches before each recording in which the profiler is on already and keeps nothing."""
        return parse_schedule(self.profile_schedule).warm_up if self.profile_schedule else 0


def _check_profile(profile: str, mode: str) -> None:
    try:
        check_mode(profile, mode)
    except UserError as error:
        raise ValueError(str(error)) from None


ROLES: Mapping[str, Role] = {
    name: next(one for one in of.metadata if isinstance(one, Role)) for name, of in Run.model_fields.items()
}


# How an answer names a factor of a program's own: nothing that is measured is called so.
FACTOR = "factors."


def fields_of(*kinds: str) -> tuple[str, ...]:
    """The fields of such roles (:class:`Role`), in their order."""
    return tuple(name for name, role in ROLES.items() if role.kind in kinds)


# What a run of a program has of them. These take effect whatever it is: how it is started, ended, recorded.
STARTING = (
    *fields_of("size", "length"),
    *("network", "device", "threads", "profile", "profile_mode", "profile_kernels", "attribute_from"),
)
# And these, if its command names them. All others are our own training loop's.
FILLING = ("batch", "data", "workers", "seed")


def own_names(*fields: Mapping[str, Any]) -> list[str]:
    """The factors of programs' own among the fields of runs, as answers name them; each once."""
    return [name for name in dict.fromkeys(name for one in fields for name in one) if name.startswith(FACTOR)]


# Fields that are not in the id; a sweep that varies one appends it.
OUTSIDE_FIELDS = tuple(name for name in Run.model_fields if name not in (*ID_FIELDS, "factors"))


def is_default(name: str, value: Any) -> bool:
    """Whether a field has the value that it has where nobody sets it."""
    return name in Run.model_fields and bool(Run.model_fields[name].default == value)


def make_run(values: Mapping[str, Any], where: str = "") -> Run:
    """A validated Run.

    Args:
        values: field -> value, of the field's own type (as YAML or :func:`parse_value` gives them).
        where: what the values are of, for the message, e.g. ``configs/quick.yaml``.

    Raises:
        UserError: an unknown field or a value out of range; one line that names the nearest right one.
    """
    try:
        return Run.model_validate(dict(values))
    except ValidationError as error:
        raise UserError((f"{where}: " if where else "") + explain(error, Run)) from None


def wrong_values(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with values of fields, each taken by itself: a line each."""
    try:
        Run.model_validate(dict(values))
    except ValidationError as error:
        # Whether values go together shows only where all of a run's are known.
        return [problem.text for problem in problems_of(error, Run) if problem.place]
    return []


def as_text(value: Any) -> str:
    """A value as ids and flags write it; the inverse of :func:`parse_value`."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _adapter(name: str) -> TypeAdapter:
    annotation: Any = Run.model_fields[name].annotation
    return TypeAdapter(annotation)


def parse_value(name: str, text: str) -> Any:
    """``text`` (a flag's value, a part of an id) as a value of the type of Run's field ``name``.

    Raises:
        UserError: no such field, or no value of its type.
    """
    if name not in Run.model_fields:
        raise UserError(f"unknown field {name!r}{did_you_mean(name, Run.model_fields)}")
    annotation: Any = Run.model_fields[name].annotation
    if text == "" and type(None) in get_args(annotation):
        return None
    try:
        return _adapter(name).validate_strings(text)
    except ValidationError:
        options = literal_options(annotation)
        hint = did_you_mean(text, options) if options else f": {Run.model_fields[name].description}"
        raise UserError(f"invalid {name} {text!r}{hint}") from None
