"""Utilization of each GPU, and the speedup of more of them.

    python -m analysis.utilization DIR          one row per rank (and GPU) of each profiled run
    python -m analysis.utilization TRACE        a trace: from the start of its first kernel to its last end

GPU utilization, SM efficiency and achieved occupancy are defined as in PyTorch's TensorBoard plugin
(torch_tb_profiler, gpu_metrics_parser.py), which PyTorch has removed. Copies and memory sets are not kernels.
"""

import argparse

from analysis.frames.load import load
from analysis.frames.measure import Command
from analysis.frames.study import Study
from profiling.errors import run_command


def _load(arguments: argparse.Namespace) -> Study:
    path = arguments.path
    return Study(path) if path.is_file() else load(path, arguments.peaks)


main = Command("utilization", __doc__, load=_load)

if __name__ == "__main__":
    run_command(main)
