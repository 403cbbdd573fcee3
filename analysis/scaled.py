"""How does training scale, and how well does a batch use the device?

    python -m analysis.scaled DIR                                   results of a sweep, or reference files
    python -m analysis.scaled DIR --method corrected,published      both, a row each
    python -m analysis.scaled DIR --group-by batch,nodes --explain
    python -m analysis.scaled DIR --scaling strong                  the global batch is constant (by default
                                                                    the kind that compares more points)

A row is a configuration at one node count: ``method``, Run's fields, ``world_size``, then, for our own runs
(a name with ..._low and ..._high has an interval in these columns, of 95 % or more):

    scaling                          weak (constant batch of a GPU) or strong (constant global batch)
    repetitions, timed_by            timed runs, and of which kind (unprofiled, if there are any)
    batch_ms (_low, _high)           median batch of the job (its slowest rank's), ms
    p95_ms, p99_ms, max_ms           percentiles and maximum over the steady batches of all timed runs, ms
    images_per_s (_low, _high)       images of all ranks over the job's time
    speedup, scaling_efficiency_pct (_low, _high)   images/s over the base point's; the same a rank, % (of a
                                     group: of its points that are compared with another)
    base, base_world_size, base_images_per_s        that point: the smallest world size of the configuration
    loss_pct (_low, _high)           what is lost against ideal scaling from there: 100 - scaling efficiency
    loss_compute_pct, loss_exposed_communication_pct, loss_exposed_loader_pct, loss_exposed_copies_pct,
    loss_idle_pct, loss_unattributed_pct
                                     the same by how much each part of a profiled batch grew (below 0: shrank;
                                     see analysis.anatomy), and what these do not explain; they add up to it
    loss_exposed_transfer_pct, loss_exposed_wait_pct   what loss_exposed_communication_pct is made of, where
                                     known: sending, and waiting for ranks that come later
    loss_idle_host_bound_pct, loss_idle_other_pct   what loss_idle_pct is made of, where known
    loss_..._pct_low, loss_..._pct_high   of each part, from the batches inside the profiled runs
    loss_note                        why the parts are not known
    interval_note, interval_seed     why there is no interval; the seed of the resampling
    warmup_dropped                   batches left out at the heads of the timed runs
    load_ms, forward_ms, backward_ms, update_ms     medians of the stages, mean over ranks, ms
    startup_s                        process start to first batch, s
    profiled_runs                    runs under a profiler
    perturbation (_low, _high)       a batch that the profiler records over its unprofiled twin's (of several
                                     profilers, those that recorded kernels)
    tflop_per_batch                  credited FLOPs of a rank's batch, 1e12
    flop_coverage_pct                these over the analytic count, %
    kernel_ms                        time of the model's kernels in a batch of a rank, ms
    flops_efficiency_of_kernels_pct, bandwidth_efficiency_of_kernels_pct
                                     FLOPs (bytes) over the kernels' time and the datasheet's peak, %
    flops_efficiency_of_batch_pct, bandwidth_efficiency_of_batch_pct (_low, _high)
                                     the same over the whole batch (what the reference called "scaled"), %
    mfu_pct (_low, _high)            analytic FLOPs over the whole batch and the datasheet's peak, %
    use_note                         why efficiencies of the batch are above those of the kernels
    ..._of_measured_pct              each of these beside the peak measured on the machine, %
    exposed_communication_ms, overlapped_communication_ms
                                     collectives while nothing (something) is computed, ms a batch of a rank
                                     (analysis.anatomy has the same); empty: not known
    device_name, peak_tflops_per_s, peak_gb_per_s, measured_tflops_per_s, measured_gb_per_s
                                     the device and its peaks, by datasheet and as measured

PyProf tables hold no durations of batches:

    tables                           how many (repetitions, ranks) a row is of
    fprop_batches, bprop_batches     forward passes, and backward passes that were attributed, as counted
    tflop_per_batch                  forward FLOPs over the one count plus backward over the other, 1e12
    fprop_flop_coverage_pct, bprop_flop_coverage_pct   credited FLOPs over the analytic count, %
    kernel_ms, flops_efficiency_of_kernels_pct, bandwidth_efficiency_of_kernels_pct   as above

The published method reads TAU tables, and our own runs alike, by whole wall time:

    repetitions, repetitions_kept    before and after the 2-sigma cut
    application_s, epoch_duration_s  median of the kept, start-up included; scaled to 1e6 images, s
    base_nodes                       the fewest nodes with the same GPUs a node
    scaling_efficiency_pct           of the epoch duration, against these
    batch_duration_s                 of PyProf tables that TAU timed too: the estimate of a batch, s
    flops_efficiency_of_batch_pct, bandwidth_efficiency_of_batch_pct      over 25 of these, %
    batch_independent_pct            part of the time that a line through the batch sizes leaves at size 0, %
"""

from analysis.display import output
from analysis.display.terminal import Answer
from analysis.measures.scaling.scaled_parts import parts
from analysis.published.by_method import METHODS, columns_of, of_runs, rows
from analysis.results.load import load
from profiling.errors import UserError, did_you_mean, run_command


def main() -> int:
    parser = output.parser("analysis.scaled", __doc__)
    parser.add_argument(
        "--method",
        default="corrected",
        metavar="METHOD,...",
        help="corrected, published, or both [corrected]",
    )
    parser.add_argument("--group-by", metavar="FIELD,...", help="fields of a run [every configuration]")
    parser.add_argument(
        "--scaling", choices=("weak", "strong"),
        help="weak: the batch of a GPU is constant; strong: the global batch is [what compares more points]",
    )  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="say what each correction moved, and why")
    arguments = parser.parse_args()
    methods = _methods(arguments.method)
    group_by = output.parse_fields(arguments.group_by, ("world_size",))
    study = load(arguments.path, arguments.peaks)
    made = rows(study, methods, group_by, arguments.scaling)
    notes: list[str] = []
    if arguments.explain:
        from analysis.published.explain import explain

        own = of_runs(study, (), arguments.scaling) if study.of_kind("run") else []
        notes = explain(study, own)
    answer = Answer(made, columns_of(made, group_by), parts=parts(made, group_by), notes=notes)
    return output.emit(answer, study, arguments)


def _methods(text: str) -> list[str]:
    methods = [name.strip() for name in text.split(",") if name.strip()]
    for name in methods:
        if name not in METHODS:
            raise UserError(f"--method: unknown method {name!r}{did_you_mean(name, METHODS)}")
    return list(dict.fromkeys(methods)) or ["corrected"]


if __name__ == "__main__":
    run_command(main)
