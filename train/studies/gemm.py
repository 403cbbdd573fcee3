"""Compare many small matrix products with one merged product.

    python -m train.studies.gemm
    python -m train.studies.gemm --device cpu --batch 16 --hidden 128 --hidden 512
    python -m train.studies.gemm --image-size 224    a layer that reads images row by row

A recurrent layer multiplies its input (batch, hidden) by one matrix (hidden, hidden) for each of its --gates,
at each of --steps; or once by the concatenated matrices: the same FLOPs and output in fewer calls. Each
--hidden is a case. With --image-size N an input is a row of 3 N values, and there are N steps. The default
--batch is 64 on a GPU and 16 on a CPU; without --device both are measured.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional

from profiling.arguments import count
from profiling.errors import run_command
from train.calibrate import gemm_on
from train.device import device_name
from train.studies import common

BATCH, BATCH_ON_CPU = 64, 16
PEAK_S = 0.3  # of measuring the peak
HIDDEN = (128, 512, 1024)
GATES, STEPS = 4, 16


def main() -> None:
    parser = common.study_parser("gemm", __doc__)
    add = parser.add_argument
    add("--hidden", type=count, action="append", metavar="N", help=f"size of the layer {list(HIDDEN)}")
    add("--gates", type=count, default=GATES, metavar="N", help=f"gates: matrix products per step [{GATES}]")
    add("--steps", type=count, metavar="N", help=f"time steps [{STEPS}; with --image-size N: N]")
    arguments = parser.parse_args()
    rows, gates = arguments.image_size, arguments.gates
    study = common.Study("gemm", arguments, both=True)
    for device in study.devices:
        name = device_name(device)
        study.quantity("peaks", name, "flops_per_s", gemm_on(device, "fp32").rate(PEAK_S))
        batch = study.batch(device, BATCH, BATCH_ON_CPU)
        for hidden in dict.fromkeys(arguments.hidden or HIDDEN):
            inputs, steps = 3 * rows if rows else hidden, arguments.steps or rows or STEPS
            with study.within_memory(f"hidden {hidden}, batch {batch} on {name}"):
                # Of this size outputs stay near 1, whatever the layer's.
                merged = torch.randn(gates * hidden, inputs, device=device) / inputs**0.5
                weights = [piece.clone() for piece in merged.chunk(gates)]
                cases = {f"{hidden} separate": weights, f"{hidden} merged": [merged]}
                # An input a step: none waits in a cache.
                data = [torch.randn(batch, inputs, device=device) for _ in range(steps)]
                one, other = (torch.cat(products(data, weights), dim=1) for weights in cases.values())
                difference = float((one - other).abs().max())
                stages = {case: [partial(products, data, weights)] for case, weights in cases.items()}
                timed = common.time_cases(device, stages, ["forward"], arguments)
                for case, weights in cases.items():
                    study.case(
                        case, name, timed[case], products=steps * len(weights), inputs=inputs, hidden=hidden,
                        batch=batch, gates=gates, time_steps=steps,
                        flops=2.0 * batch * inputs * hidden * gates * steps,
                        # Sums in another order may differ in their last digits.
                        same_output=difference < 1e-2, largest_difference=difference,
                    )  # fmt: skip
    study.finish()


@torch.no_grad()
def products(inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A product of each weight with each step's input; the outputs of the last step."""
    for each in inputs:
        outputs = [functional.linear(each, weight) for weight in weights]
    return outputs


if __name__ == "__main__":
    run_command(main)
