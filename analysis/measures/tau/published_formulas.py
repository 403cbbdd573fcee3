"""What did the reference compute? Its definitions, each as it published it.

These are here to be compared with: several are wrong, and docs/methods.md says how (the default, corrected
method is in the other files). All are pure functions; the constants are the reference's own settings.
"""

from collections.abc import Sequence

import numpy as np

BATCHES = 50  # optimizer steps of a timed run
PROFILED_BATCHES = 25  # batches the reference divides the FLOPs of a PyProf table by
FIRST_ATTRIBUTED = 26  # from the 27th of 51 batches on attribution is on
EPOCH_IMAGES = 1_000_000
CUT_SIGMAS = 2.0


def rate_per_s(total: float, time_ns: float) -> float:
    """FLOP rate (or bandwidth): sum of FLOPs (or Bytes) over the sum of ``Sil(ns)``, a second."""
    return total / time_ns * 1e9


def efficiency_pct(rate: float, peak: float) -> float:
    """FLOPS (or bandwidth) efficiency: the rate over the peak, in percent."""
    return 100 * rate / peak


def tau_step_duration_s(of_50_batches_s: Sequence[float], of_1_batch_s: Sequence[float]) -> float:
    """(Max over repetitions of `.tau application` of the 50-batch runs - median of the 1-batch runs) / 50."""
    return (max(of_50_batches_s) - float(np.median(of_1_batch_s))) / BATCHES


def nvprof_step_duration_s(end_of_batch_ns: np.ndarray) -> float:
    """Median difference of successive `End of Batch` timestamps."""
    return float(np.median(np.diff(end_of_batch_ns))) / 1e9


def pyprof_step_duration_s(forward_pass_ns: np.ndarray, first: int = FIRST_ATTRIBUTED) -> float:
    """Median difference of successive `Forward Pass` timestamps from the 27th on."""
    return float(np.median(np.diff(forward_pass_ns[first:]))) / 1e9


def step_duration_s(estimates: Sequence[float]) -> float:
    """The least of the three estimates (of those that there are)."""
    return min(estimate for estimate in estimates if np.isfinite(estimate))


def scaled_efficiency_pct(
    total: float, batch_s: float, peak: float, batches: int = PROFILED_BATCHES
) -> float:
    """Scaled FLOPS (or bandwidth) efficiency: sum FLOPs (or Bytes) / (25 x batch duration) / peak, %.

    The reference printed the two under each other's header.
    """
    return 100 * total / (batches * batch_s) / peak


def two_sigma_cut(values: np.ndarray) -> np.ndarray:
    """The values less than two standard deviations (of the population, as numpy's) from their mean.

    All of them where they are one or the same, of which the definition would leave none.
    """
    kept = values[np.abs(values - values.mean()) < CUT_SIGMAS * values.std()]
    return kept if len(kept) else values


def epoch_duration_s(application_s: np.ndarray, batch: int, ranks: int, batches: int = BATCHES) -> float:
    """Epoch duration: application time of 50 batches scaled to 1e6 images; 2-sigma cut; median.

    Args:
        application_s: by repetition, the maximum over ranks of the inclusive time of `.tau application`.
        batch: batch size of one GPU.
    """
    return float(np.median(two_sigma_cut(application_s))) * EPOCH_IMAGES / (batches * batch * ranks)


def scaling_efficiency_pct(base_s: float, base_ranks: int, epoch_s: float, ranks: int) -> float:
    """t(smallest) / t(n) x n(smallest) / n of the epoch duration, in percent."""
    return 100 * base_s / epoch_s * base_ranks / ranks


def batch_independent_s(smaller_s: float, larger_s: float, smaller: int, larger: int) -> float:
    """The part of a duration that does not depend on the batch size, in s: a of a + b x batch.

    Not the reference's: it says what its epoch duration is made of.
    """
    return smaller_s - (larger_s - smaller_s) / (larger - smaller) * smaller
