"""When did each stage of each batch begin and end, as rows of the table of batches?

The loop's clock (:mod:`profiling.step_clock`) gives six instants a batch: it begins; Forward Pass, Backward
Pass and Model Update begin; the update ends; the batch ends.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

INSTANTS = 6  # a batch: it begins, forward begins, backward begins, update begins, update ends, it ends


def batch_columns(
    instants_ns: np.ndarray, rank: int, images: int, losses: Sequence[float], recordings: Sequence[range]
) -> dict[str, Any]:
    """The columns of the ``batches`` table (:mod:`profiling.schemas`).

    Args:
        instants_ns: shape (6 x batches,), as a clock gives them.
        images: of one batch.
        recordings: the batches that a profiler recorded.
    """
    start, forward, backward, update, updated, end = instants_ns.reshape(-1, INSTANTS).T
    batches = len(start)
    index = np.arange(batches)
    return {
        "rank": np.full(batches, rank),
        "batch_index": index,
        "start_ns": start,
        "load_ns": forward - start,
        "forward_ns": backward - forward,
        "backward_ns": update - backward,
        "update_ns": updated - update,
        "end_ns": end,
        "images": np.full(batches, images),
        "loss": np.asarray(losses, dtype=float),
        "attributed": np.isin(index, [batch for recording in recordings for batch in recording]),
    }
