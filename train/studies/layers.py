"""What does a layer cost: time, memory, energy, and where does it stand on the roofline?

    python -m train.studies.layers
    python -m train.studies.layers --device cpu --batch 8 --image-size 64
    python -m train.studies.layers --layer "Conv2d(3, 64, 7, stride=2)@256,3,224,224" --layer "GELU()@64,1000"

Without --layer: ReLU, MaxPool2d, Conv2d and Linear as in the first and last layers of VGG16, with batch 256
on a GPU and 16 on a CPU. --batch and --image-size change these; --layer gives the input of each layer itself.
docs/studies.md explains how each quantity is measured.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import torch

from jobs.studies import Recorder
from profiling.errors import UserError, run_command
from profiling.schemas import PASSES
from train.calibrate import copy_rate, gemm_rate
from train.device_name import device_name
from train.studies import common, layer_spec, memory, operators, power
from train.studies.layer_spec import LayerSpec, output_of

LAYERS = (
    "ReLU()@256,3,224,224",
    "MaxPool2d(2, 2)@256,3,224,224",
    "Conv2d(3, 128, 3, padding=1)@256,3,224,224",
    "Linear(25088, 4096)@256,25088",
)
BATCH_ON_CPU = 16
PEAK_S = 0.3  # of measuring each peak
# Of each layer under the meter, after it has settled, in power.TIMES parts. NVML's counter moves on up to
# every 0.1 s: what one part misses the next one has, so that their mean is as good as one metering of all.
METERED_S = 5.0


def main() -> None:
    parser = common.study_parser("layers", __doc__)
    parser.add_argument(
        "--layer",
        action="append",
        metavar="SPEC",
        help="measure this layer instead of the default four; repeatable",
    )
    arguments = parser.parse_args()
    (device,) = common.devices(arguments.device)
    notes: list[str] = []
    specs = specs_of(arguments, device.type, notes)
    for spec in specs:
        layer_spec.check(spec)
    recorder = common.start("layers", arguments, gpu=device.type == "cuda")
    common.prepare(arguments)
    for note in notes:
        recorder.find(note)
    measure(recorder, specs, device, arguments.warmup, arguments.repetitions)
    common.finish(recorder, arguments)


def specs_of(arguments: argparse.Namespace, kind: str, notes: list[str]) -> list[LayerSpec]:
    """The layers that flags ask for; what they change of the usual sizes is noted.

    Raises:
        UserError: a spec is none, or sizes are given beside one.
    """
    if arguments.layer:
        if arguments.batch or arguments.image_size:
            raise UserError("--layer says the shape of its input: leave --batch and --image-size out")
        return [layer_spec.parse(text) for text in dict.fromkeys(arguments.layer)]
    usual = [layer_spec.parse(text) for text in LAYERS]
    batch = arguments.batch or (BATCH_ON_CPU if kind == "cpu" else None)
    specs = [_sized(spec, batch, arguments.image_size) for spec in usual]
    if batch and batch < usual[0].shape[0]:
        notes.append(f"sized down: batch {batch}, not {usual[0].shape[0]}")
    if arguments.image_size and arguments.image_size < usual[0].shape[-1]:
        notes.append(f"sized down: images of {arguments.image_size}, not {usual[0].shape[-1]} pixels a side")
    return specs


def _sized(spec: LayerSpec, batch: int | None, image_size: int | None) -> LayerSpec:
    shape = spec.shape if batch is None else (batch, *spec.shape[1:])
    if image_size and len(shape) == 4:
        shape = (*shape[:2], image_size, image_size)
    return replace(spec, shape=shape)


def measure(
    recorder: Recorder, specs: list[LayerSpec], device: torch.device, warmup: int, repetitions: int
) -> None:
    """Measure each layer on a device, and the device's peaks."""
    # Figures of fp32 stand beside the peak of fp32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    name = device_name(device)
    # First of all, as a device that has just worked draws more than an idle one, and warms up for long.
    meter, idle_w = _meter_and_idle(recorder, name, device)
    recorder.quantity("peaks", name, "flops_per_s", gemm_rate(device, "fp32", PEAK_S), "fp32, measured")
    recorder.quantity("peaks", name, "bytes_per_s", copy_rate(device, PEAK_S), "a copy, measured")
    for spec in specs:
        try:
            passes = Passes(spec, device)
            _measure_one(recorder, passes, name, warmup, repetitions)
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            recorder.quantity(str(spec), name, "peak_memory_bytes", None, "more than the device has")
            recorder.find(f"{spec} does not fit in the memory of {name}; a smaller batch may")
            continue
        if meter and idle_w:
            _meter(recorder, passes, name, meter, idle_w)


def _meter_and_idle(
    recorder: Recorder, name: str, device: torch.device
) -> tuple[power.Meter | None, list[float]]:
    """The device's meter, and the power when idle with its context made, metered several times."""
    torch.ones(1, device=device)
    meter, note = power.open_meter(device)
    if meter is None:
        recorder.quantity("peaks", name, "idle_w", None, note)
        return None, []
    idle = power.several(meter, lambda: time.sleep(power.PERIOD_S), METERED_S)
    for used in idle:
        recorder.quantity("peaks", name, "idle_w", used.watts, f"{note}: {used.note}")
    return meter, [used.watts for used in idle if used.watts is not None]


class Passes:
    """A layer with its input, and its two passes."""

    def __init__(self, spec: LayerSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        with torch.device(device):
            self.layer = layer_spec.build(spec)
            self.data = torch.randn(spec.shape, requires_grad=True)
            self.gradient = torch.randn_like(self.forward())

    def forward(self) -> torch.Tensor:
        output = output_of(self.layer(self.data))
        assert output is not None  # layer_spec.check has seen one
        return output

    def backward(self, output: torch.Tensor) -> None:
        """The gradients by weights and input; what was there before is replaced, not added to."""
        self.drop_gradients()
        output.backward(self.gradient)

    def drop_gradients(self) -> None:
        """Free the gradients that a backward pass has made."""
        self.data.grad = None
        self.layer.zero_grad(set_to_none=True)

    def both(self) -> None:
        self.backward(self.forward())
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _measure_one(recorder: Recorder, passes: Passes, name: str, warmup: int, repetitions: int) -> None:
    case, device = str(passes.spec), passes.device

    def action(tick: common.Tick) -> None:
        output = passes.forward()
        tick()
        passes.backward(output)
        tick()

    timed = common.time_cases({case: action}, PASSES, warmup, repetitions, common.clock_of(device))
    for stage, durations in timed[case].items():
        recorder.durations(case, name, stage, durations)
    # What is freed must have been allocated before the eyes of who counts.
    passes.drop_gradients()
    usage = memory.measure(device, passes.forward, passes.backward)
    recorder.quantity(case, name, "peak_memory_bytes", usage.peak)
    recorder.quantity(case, name, "retained_memory_bytes", usage.retained)
    theory = Passes(passes.spec, torch.device("meta"))
    forward, backward, unknown = operators.count(theory.forward, theory.backward)
    for stage, cost in zip(PASSES, (forward, backward), strict=True):
        recorder.quantity(case, name, f"{stage}_flops", cost.flops)
        recorder.quantity(case, name, f"{stage}_bytes", cost.bytes)
    if unknown:
        recorder.find(f"{case}: no FLOPs or bytes are counted of {', '.join(sorted(unknown))}")


def _meter(
    recorder: Recorder, passes: Passes, name: str, meter: power.Meter, idle_w: Sequence[float]
) -> None:
    case = str(passes.spec)
    metered = power.several(meter, passes.both, METERED_S)
    for used in metered:
        recorder.quantity(case, name, "power_w", used.watts, used.note)
    if metered[0].watts is None:
        recorder.find(f"{case}: no power or energy ({metered[0].note})")
        return
    # One metering of the layer beside one of the idle device, so that the spread has the noise of both.
    for used, idle in zip(metered, cycle(idle_w), strict=False):
        assert used.watts is not None  # power.several leaves out what failed
        above = (used.watts - idle) * used.seconds / used.calls
        recorder.quantity(case, name, "energy_above_idle_j", above, "forward and backward, once")


if __name__ == "__main__":
    run_command(main)
