"""How did the memory that PyTorch had allocated change, by batch?"""

import numpy as np
import pyarrow as pa

from profiling.attribution.coding import or_null
from profiling.attribution.context import Context
from profiling.attribution.events import Events
from profiling.tables import as_table


def memory_table(events: Events, context: Context, rank: int) -> pa.Table:
    """The recorded allocations as table ``memory``, by time."""
    order = np.argsort(events.memory["time_ns"], kind="stable")
    events_by_column = {name: column[order] for name, column in events.memory.items()}
    columns = {
        "rank": np.full(len(order), rank, dtype=np.int32),
        "batch_index": or_null(context.batches.of(events_by_column["time_ns"]), pa.int32()),
        "time_ns": events_by_column.pop("time_ns"),
        "device": events_by_column.pop("device"),
        **events_by_column,
    }
    return as_table("memory", columns)
