"""Utilization of each GPU, and speedup by number of GPUs: one row per rank (and GPU) of each profiled run.

    python -m analysis.utilization DIR          results of a sweep, a run, or converted traces

GPU utilization, SM efficiency and achieved occupancy are defined as in PyTorch's TensorBoard plugin
(torch_tb_profiler, gpu_metrics_parser.py), which PyTorch has removed. Copies and memory sets are not kernels.
"""

from analysis.frames.measure import Command

main = Command(__name__, "utilization", __doc__)
