"""What does communication cost?

    python -m analysis.communication DIR                 runs under a profiler, or TAU's tables
    python -m analysis.communication DIR --by rank

A row is a kind of collective of a run, a batch of a rank (mean of the attributed batches):

    calls_per_batch, mbyte_per_call, mbyte_per_batch    messages, 1e6 bytes; empty: sizes are not known
    ms_per_batch          from a rank's entry to its end
    transfer_ms           since the last rank had arrived at the collective; wait_ms: before that
    exposed_ms            while no model kernel runs on that rank; overlapped_ms: the rest
    algbw_gb_per_s        bytes over transfer time, 1e9 a second; busbw_gb_per_s: that times what the
                          collective must move a rank (nccl-tests: 2(P-1)/P for an allreduce)
    busbw_of_measured_pct over the bus bandwidth measured at the start of the sweep
    clock_residual_us     how well the ranks' clocks are aligned (they are, on the ends of collectives that no
                          rank leaves before all have come to them), microseconds

Ranks' collectives are matched by their order within a batch. Where some rank's are missing, wait and transfer
are not known, and a note says so. For TAU tables see analysis/messages.py.
"""

from collections.abc import Sequence
from typing import Any

from analysis import messages, output
from analysis.clocks import Calls, Matched
from analysis.collectives import alone, matched_of, ranks_of
from analysis.load import load
from analysis.study import Source, Study
from analysis.terminal import Answer, Column, Part, Rows
from jobs.run import Run
from profiling.errors import UserError, run_command

COLUMNS = (
    "collective", "calls_per_batch", "mbyte_per_call", "mbyte_per_batch", "ms_per_batch", "transfer_ms",
    "wait_ms", "exposed_ms", "overlapped_ms", "algbw_gb_per_s", "busbw_gb_per_s", "busbw_of_measured_pct",
    "clock_residual_us", "attributed_batches",
)  # fmt: skip


def bus_factor(kind: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as in nccl-tests (doc/PERFORMANCE.md)."""
    share = (ranks - 1) / ranks
    return {"allreduce": 2 * share, "allgather": share, "reducescatter": share, "alltoall": share}.get(
        kind, 1.0
    )


# --- of a study ---------------------------------------------------------------------------------------


def rows(study: Study, by_rank: bool = False) -> Rows:
    """The answer's rows; see this file's docstring.

    Raises:
        UserError: no run has collectives.
    """
    made: Rows = []
    for source in study.of_kind("run"):
        # TAU times MPI's functions, not single calls: analysis/messages.py.
        if source.fields["profile"] not in ("none", "tau") and (source.world_size or 1) > 1:
            made += _of_run(study, source, by_rank)
    if not made:
        raise UserError(
            f"{study.path} holds no collective: it needs runs of several ranks under a profiler "
            "(profile: torch)"
        )
    return made


def _of_run(study: Study, source: Source, by_rank: bool) -> Rows:
    ranks = ranks_of(study, source)
    if not ranks or not any(len(one.kind) for one in ranks):
        study.find(f"{source.id}: its trace of {source.world_size} ranks holds no collective")
        return []
    matched = matched_of(study, source, ranks)
    made = []
    for kind in dict.fromkeys(str(name) for one in ranks for name in one.kind):
        if by_rank:
            for place, one in enumerate(ranks):
                if not one.batches:
                    study.find(f"{source.id}: rank {one.rank} has no attributed batch: it has no row")
                    continue
                figures = _figures(study, source, kind, [one], matched, [place])
                made.append({"id": source.id, **source.fields, "rank": one.rank, **figures})
        else:
            figures = _figures(study, source, kind, ranks, matched, list(range(len(ranks))))
            made.append({"id": source.id, **source.fields, **figures})
    return made


def _figures(
    study: Study,
    source: Source,
    kind: str,
    ranks: Sequence[Calls],
    matched: Matched | None,
    places: list[int],
) -> dict[str, Any]:
    batches = sum(one.batches for one in ranks)
    masks = [one.kind == kind for one in ranks]
    durations = sum(
        int((one.end_ns - one.start_ns)[mask].sum()) for one, mask in zip(ranks, masks, strict=True)
    )
    once = sum(
        int(alone(one.start_ns, one.end_ns)[mask].sum()) for one, mask in zip(ranks, masks, strict=True)
    )
    exposed = sum(int(one.exposed_ns[mask].sum()) for one, mask in zip(ranks, masks, strict=True))
    calls = sum(int(mask.sum()) for mask in masks)
    moved = float(sum(one.bytes[mask].sum() for one, mask in zip(ranks, masks, strict=True)))
    row: dict[str, Any] = {
        "collective": kind,
        "calls_per_batch": calls / batches,
        "mbyte_per_call": moved / calls / 1e6 if calls and moved else None,
        "mbyte_per_batch": moved / batches / 1e6 if moved else None,
        "ms_per_batch": durations / batches / 1e6,
        "exposed_ms": exposed / batches / 1e6,
        "overlapped_ms": (once - exposed) / batches / 1e6,
        "attributed_batches": batches,
    }
    if matched is not None:
        transfer = sum(
            int(matched.transfer_ns[place][mask].sum()) for place, mask in zip(places, masks, strict=True)
        )
        row |= {
            "transfer_ms": transfer / batches / 1e6,
            "wait_ms": (durations - transfer) / batches / 1e6,
            "clock_residual_us": matched.residual_ns / 1e3,
        }
        row |= _bandwidth(study, source, kind, moved, transfer)
    return row


def _bandwidth(study: Study, source: Source, kind: str, moved: float, transfer_ns: int) -> dict[str, Any]:
    if not moved or not transfer_ns:
        return {}
    ranks = source.world_size or 1
    bus = moved / transfer_ns * bus_factor(kind, ranks)
    measured = study.calibration.allreduce_bus_bytes_per_s if study.calibration else {}
    bound = measured.get(source.fields["gpus_per_node"]) if source.fields["nodes"] == 1 else None
    return {
        "algbw_gb_per_s": moved / transfer_ns,
        "busbw_gb_per_s": bus,
        "busbw_of_measured_pct": 100 * bus * 1e9 / bound if bound else None,
    }


def main() -> int:
    parser = output.parser("analysis.communication", __doc__)
    parser.add_argument(
        "--by", choices=("run", "rank"), default="run", help="a row a run, or a rank of it [run]"
    )
    arguments = parser.parse_args()
    study = load(arguments.path, arguments.peaks)
    profiles = {source.fields["profile"] for source in study.of_kind("run")} - {"none"}
    if messages.has_tau(study) and profiles <= {"tau"}:
        return output.emit(messages.answer(study), study, arguments)
    made = rows(study, arguments.by == "rank")
    columns = ["id", *Run.model_fields, *(["rank"] if arguments.by == "rank" else []), *COLUMNS]
    part = Part("Collectives, a batch of a rank", made, shown(made), caption(made))
    return output.emit(Answer(made, columns, parts=[part]), study, arguments)


_CAPTION = (
    "Transfer: since the last rank had arrived; wait: before. Exposed: while no model kernel runs.\n"
    "busbw: bytes a rank must move over transfer time (nccl-tests' definition)."
)


def caption(made: Rows) -> str:
    """What stands below the table: how to read it, and how well the ranks' clocks are aligned."""
    residuals = [row["clock_residual_us"] for row in made if row.get("clock_residual_us") is not None]
    if not residuals:
        return _CAPTION
    return (
        f"{_CAPTION}\nThe ranks' clocks are aligned on their collectives to within {max(residuals):.3g} us."
    )


def shown(made: Rows) -> list[Column]:
    """The terminal's columns."""

    def get(name: str) -> Any:
        return lambda row: row.get(name)

    varying = [name for name in Run.model_fields if len({str(row.get(name)) for row in made}) > 1]
    varying += ["rank"] if "rank" in made[0] else []
    return [
        *(Column(name, get(name), left=isinstance(made[0][name], str)) for name in varying),
        Column("collective", get("collective"), left=True),
        Column("calls\na batch", get("calls_per_batch")),
        Column("MB a\nbatch", get("mbyte_per_batch")),
        Column("ms a\nbatch", get("ms_per_batch")),
        Column("transfer\nms", get("transfer_ms")),
        Column("wait\nms", get("wait_ms")),
        Column("exposed\nms", get("exposed_ms")),
        Column("over-\nlapped", get("overlapped_ms")),
        Column("algbw\nGB/s", get("algbw_gb_per_s")),
        Column("busbw\nGB/s", get("busbw_gb_per_s")),
        Column("of the\nmeasured, %", get("busbw_of_measured_pct")),
    ]


if __name__ == "__main__":
    run_command(main)
