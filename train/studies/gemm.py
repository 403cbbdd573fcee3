"""Many small matrix products, compared with one merged product.

    python -m train.studies.gemm
    python -m train.studies.gemm --device cpu --batch 16 --hidden 128 --hidden 512
    python -m train.studies.gemm --image-size 224    a layer that reads images row by row

A recurrent layer multiplies its input by one matrix for each of its gates (an LSTM has four), at every time
step. The products can be merged into one with the concatenated matrices: the same FLOPs and output in fewer
calls. Each --hidden is a case: inputs (batch, hidden), --gates matrices (hidden, hidden),
--steps time steps. With --image-size N the layer reads images row by row: an input is a row of 3 N values,
and there are N steps. The default --batch is 64 on a GPU and 16 on a CPU; without --device both are measured.
"""

import argparse

import torch
from torch.nn import functional

from jobs.studies import Recorder
from profiling.errors import UserError, run_command
from profiling.step_clock import open_clock
from train.device import device_name
from train.studies import common, memory

BATCH, BATCH_ON_CPU = 64, 16
HIDDEN = (128, 512, 1024)
GATES, STEPS = 4, 16
STAGE = "forward"
SEPARATE, MERGED = "separate", "merged"


def main() -> None:
    parser = common.study_parser("gemm", __doc__)
    add, count = parser.add_argument, common.count
    add("--hidden", type=count, action="append", metavar="N", help=f"size of the layer {list(HIDDEN)}")
    add("--gates", type=count, default=GATES, metavar="N", help=f"gates: matrix products per step [{GATES}]")
    add("--steps", type=count, metavar="N", help=f"time steps [{STEPS}; with --image-size N: N]")
    arguments = parser.parse_args()
    rows = arguments.image_size
    devices = common.devices(arguments.device, both=True)
    common.prepare(arguments)
    recorder = common.start("gemm", arguments, gpu=any(device.type == "cuda" for device in devices))
    for device in devices:
        batch = arguments.batch or (BATCH_ON_CPU if device.type == "cpu" else BATCH)
        for hidden in dict.fromkeys(arguments.hidden or HIDDEN):
            inputs, steps = 3 * rows if rows else hidden, arguments.steps or rows or STEPS
            measure(recorder, Gates(batch, inputs, hidden, arguments.gates, steps, device), arguments)
    common.finish(recorder, arguments)


class Gates:
    """The products of a recurrent layer's gates with its inputs.

    Args:
        inputs: how many values a step reads.
        steps: in time; each has an input of its own, so that none can wait in a cache for the next.
    """

    def __init__(
        self, batch: int, inputs: int, hidden: int, gates: int, steps: int, device: torch.device
    ) -> None:
        self.batch, self.inputs, self.hidden, self.gates, self.steps = batch, inputs, hidden, gates, steps
        self.device = device
        # Of this size outputs stay near 1, whatever the layer's.
        self.merged_weight = torch.randn(gates * hidden, inputs, device=device) / inputs**0.5
        self.weights = [piece.clone() for piece in self.merged_weight.chunk(gates)]
        self.read = [torch.randn(batch, inputs, device=device) for _ in range(steps)]

    @property
    def flops(self) -> float:
        """Of all steps; a multiply-add is two."""
        return 2.0 * self.batch * self.inputs * self.hidden * self.gates * self.steps

    @torch.no_grad()
    def separate(self) -> list[torch.Tensor]:
        """A product a gate and step; the last step's outputs."""
        for each in self.read:
            outputs = [functional.linear(each, weight) for weight in self.weights]
        return outputs

    @torch.no_grad()
    def merged(self) -> torch.Tensor:
        """A product a step; the last step's output, gates beside each other."""
        for each in self.read:
            output = functional.linear(each, self.merged_weight)
        return output

    def largest_difference(self) -> float:
        """Between the outputs of both ways."""
        return float((torch.cat(self.separate(), dim=1) - self.merged()).abs().max())


def measure(recorder: Recorder, gates: Gates, arguments: argparse.Namespace) -> None:
    """Time both ways in turns, and note what was computed."""
    name = device_name(gates.device)

    def separate(tick: common.Tick) -> None:
        gates.separate()
        tick()

    def merged(tick: common.Tick) -> None:
        gates.merged()
        tick()

    actions = {f"{gates.hidden} {SEPARATE}": separate, f"{gates.hidden} {MERGED}": merged}
    try:
        difference = gates.largest_difference()
        timed = common.time_cases(
            actions, [STAGE], arguments.warmup, arguments.repetitions, open_clock(gates.device.type)
        )
    except (RuntimeError, MemoryError) as error:
        if not memory.is_out_of_memory(error):
            raise
        raise UserError(
            f"--hidden {gates.hidden} with batch {gates.batch} does not fit on {name}; give smaller ones"
        ) from None
    figures = {
        name: getattr(gates, name) for name in ("inputs", "hidden", "batch", "gates", "steps", "flops")
    }
    for case in actions:
        products = gates.steps * (1 if case.endswith(MERGED) else gates.gates)
        # Sums in another order may differ in their last digits.
        same = difference < 1e-2
        recorder.case(case, name, timed[case], products=products, **figures, same_output=same,
                      largest_difference=difference)  # fmt: skip


if __name__ == "__main__":
    run_command(main)
