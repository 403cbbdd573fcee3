"""Records of NCCL Inspector, as its source writes them (NCCL's plugins/profiler/inspector)."""

import json
from collections.abc import Iterable
from pathlib import Path

NOW_US = 1_752_867_229_000_000
WORLD = "0xe62dedaa97644a"


def record(
    rank: int, start_us: int, took_us: int, size: int = 1 << 20, coll: str = "AllReduce", ranks: int = 2,
    number: int = 1, communicator: str = WORLD, verbose: bool = True, peer: int | None = None,
) -> dict:  # fmt: skip
    """A collective, or with ``peer`` a send or receive, whose kernel ran for so long from that moment on."""
    of = "coll" if peer is None else "p2p"
    traffic = size * (ranks if coll in ("AllGather", "ReduceScatter") else 1)
    factor = {"AllReduce": 2 * (ranks - 1) / ranks, "AllGather": (ranks - 1) / ranks}.get(coll, 1)
    perf = {of: coll, f"{of}_sn": number, **({} if peer is None else {"p2p_peer": peer})}
    perf |= {f"{of}_msg_size_bytes": size, f"{of}_exec_time_us": took_us, f"{of}_timing_source": "kernel_gpu"}
    perf |= {f"{of}_algobw_gbs": traffic / took_us / 1e3, f"{of}_busbw_gbs": traffic * factor / took_us / 1e3}
    if verbose:
        times = {"kernel_start_ts": start_us + 1, "kernel_stop_ts": start_us + took_us}
        channels = [{"channel_id": one, **times, "kernel_record_ts": start_us + took_us} for one in (0, 1)]
        numbers = [{"channel_id": channel, "kernel_start_sn": 3, "kernel_stop_sn": 5} for channel in (0, 1)]
        perf["event_trace_sn"] = {f"{of}_start_sn": 1, f"{of}_stop_sn": 2, "kernel_events": numbers}
        host = {f"{of}_start_ts": start_us - 20, f"{of}_stop_ts": start_us - 15}
        perf["event_trace_ts"] = {**host, "kernel_events": channels}
    header = {"id": communicator, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": start_us + 10**6, "hostname": f"host{rank}", "pid": 4711 + rank,
    }  # fmt: skip
    return {"header": header, "metadata": metadata, f"{of}_perf": perf}


def write(path: Path, records: Iterable[dict]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path
