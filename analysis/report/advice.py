"""How is a cause called, and what is to be tried against it? The sentences of the verdict about causes.

A change is advised if a simulation finds that it gains, or, where none was made, if it changes what costs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display.numbers import digits
from analysis.prediction.simulate import in_words
from analysis.report.causes import Late
from analysis.report.sentences import Sentence, ranks_in_words

# A change that would give less than this, by simulation, is not advised.
LEAST_GAIN_PCT = 1.0

# Part of the loss (a column loss_<part>_pct) -> its key in Sentence.cause, and what it is called.
CAUSES = {
    "exposed_transfer": ("transfer", "sending gradients"),
    "exposed_wait": ("waits", "waiting for ranks that are not late often enough to be named"),
    "exposed_communication": ("communication", "communication (sending gradients or waiting for ranks)"),
    "exposed_loader": ("loader", "loading data"),
    "compute": ("computing", "computing"),
    "exposed_copies": ("copies", "copying between memories"),
    "idle_host_bound": ("launches", "waiting for late kernel launches"),
    "idle_other": ("device", "waiting of the device"),
    "idle": ("idle", "idle time"),
}  # fmt: skip
HALVED, FASTER = "gradients in fp16 (grad), ", ", a faster network"
_SEND_LESS = f"{HALVED}larger buckets (bucket_mb), a larger batch per rank{FASTER}"
ADVICE = {
    "transfer": _SEND_LESS,
    "communication": f"a trace of all ranks (profile: torch), which tells the two apart; {_SEND_LESS}",
    "waits": "a timeline of the profiled run, which shows where ranks come late; fewer other jobs on the "
    "nodes, and batches that cost the same on all ranks",
    "loader": "more workers, a faster loader, or TFRecord; the synthetic loader shows the bound",
    "computing": "the same cores, clocks and memory bandwidth for every rank: each had less of them than the "
    "baseline's rank (threads, pinning, other jobs, a limit on power)",
    "small batch": "a larger batch: fewer images per rank use a device less well, so that kernels do not "
    "get shorter in proportion",
    "copies": "fewer ranks on one bus, and buffers that need no copy; a timeline (profile: nsys) shows which",
    "launches": "a core of its own for the thread that launches (threads, workers, pinning), a larger "
    "batch, fewer synchronisations",
    "device": "a timeline of the profiled run (profile: nsys), which shows what each kernel waits for",
    "idle": "a timeline of the profiled run, which shows what the ranks wait for",
}
# What-ifs that change a part: where none of them gains, by simulation, nothing of the kind is advised.
_WHAT_IFS = {"transfer": ("fp16-gradients", "network", "bucket-mb"),
             "communication": ("fp16-gradients", "network", "bucket-mb", "no-stragglers"),
             "loader": ("no-loader",)}  # fmt: skip
_WITHOUT = {"loader": "If nothing waited for data", "waits": "If no rank were late"}
_SENDS = ("transfer", "communication")  # against which several what-ifs may help
LIMITED_BY = {
    "bandwidth": "; the simulation says that the bandwidth of the links limits it",
    "latency": "; the simulation says that the latency of messages limits it",
}
# Cause of a rank's lateness (of analysis.stragglers) -> what to do about it.
_ABOUT_LATE = {
    "GPU": "compare the GPU's clocks, temperature and power with the others' (nvidia-smi -q), look for other "
    "processes on it, and leave it out if that does not help",
    "processor": "look for other jobs on its cores, and compare its clocks and its pinning with the others'",
    "host": "a core of its own for the thread that launches (threads, workers, pinning), and no other jobs "
    "on that host",
    "loader": "look at where its share of the data lies and at what else uses that storage; more workers",
    "node": "compare the node's clocks, temperature and other jobs with the others', and leave it out if "
    "that does not help",
}
_LATE_CAUSE = {
    "GPU": "the GPU, on which the same kernels take longer than on the others",
    "processor": "the processor, on which the same operators take longer than on the others",
    "host": "the host, which launches the kernels late",
    "loader": "the loader, which has the next batch late",
    "node": "the node, as all its ranks are late",
    "GPU or host": "the GPU or the host; a run of this point under a profiler (profile: torch) would tell",
    "processor or host": "the processor or the host; a run of this point under a profiler (profile: torch) "
    "would tell",
}
_OF_LATENCY = ", or a network of lower latency"
_MOST_NAMED = 4  # late ranks


def against(key: str, gained: Mapping[str, Any], without: Sequence[str] = ()) -> list[Sentence]:
    """What to try against a cause: of what was simulated, only what gains.

    Args:
        key: the cause's, as in :class:`Sentence`.
        gained: of :func:`analysis.report.causes.gains`.
        without: of the advice, what does not fit here: :data:`HALVED` where gradients of 16 bits were
            measured, :data:`FASTER` where no network lies between the ranks.
    """
    part = "transfer" if key in LIMITED_BY else key
    tried = [row for name, row in gained.items() if name.partition("=")[0] in _WHAT_IFS.get(part, ())]
    if not tried:
        advice = ADVICE[part]
        for words in without:
            advice = advice.replace(words, "")
        return [Sentence(f"What to try: {advice}.", "table")]
    on = f"simulated on {ranks_in_words(tried[0]['ranks'])}"
    useful = [row for row in tried if row["gain_pct"] >= LEAST_GAIN_PCT]
    if not useful:
        names = ", ".join(in_words(row["what_if"]) for row in tried)
        text = f"None of these would gain {LEAST_GAIN_PCT:g} % or more, {on}: {names}."
        if part in _SENDS:
            text += f" What to try: a larger batch per rank{_OF_LATENCY if key == 'latency' else ''}."
        return [Sentence(text, "prediction")]
    useful.sort(key=lambda row: -row["gain_pct"])
    if part in _SENDS:
        changes = ", ".join(f"{in_words(row['what_if'])} ({row['gain_pct']:+.0f} %)" for row in useful)
        text = f"What to try (images/s gained, {on}): {changes}; or a larger batch per rank."
    else:
        without = _WITHOUT.get(part, "Without that cost")
        text = f"What to try: {ADVICE[part]}. {without}: {useful[0]['gain_pct']:.0f} % more images/s, {on}."
    return [Sentence(text, "prediction")]


def held_up(late: Late | None) -> list[Sentence]:
    """The ranks that hold up the job, by how much, why, and what to do; nothing if there are none."""
    if late is None:
        return []
    one = len(late.ranks) == 1 or late.cause == "node"
    who = name_of(late)
    if late.by_collectives:
        least, how = "", "as the collectives of the traced runs show"
    else:
        least, how = "at least ", f"as the stages of the batches show in {late.runs} of {late.of} runs"
    text = (
        f"{who[0].upper()}{who[1:]} {'holds' if one else 'hold'} up the job: the other ranks wait "
        f"{least}{digits(late.ms, 3)} ms per batch for {'it' if one else 'them'} ({late.share_pct:.0f} % of "
        f"a batch), {how}. Likely cause: {_LATE_CAUSE.get(late.cause, late.cause)}."
    )
    sentences = [Sentence(text, "stragglers", key_of(late))]
    if late.cause in _ABOUT_LATE:
        sentences.append(Sentence(f"What to try: {_ABOUT_LATE[late.cause]}.", "stragglers"))
    return sentences


def perhaps(ranks: Sequence[int], ms: float) -> list[Sentence]:
    """Ranks that others waited for, which may be chance: of :func:`analysis.report.causes.suspected`."""
    if not ranks:
        return []
    text = (
        f"In the traced runs the others waited for {_numbered(ranks)}, for {digits(ms, 3)} ms per batch, "
        "which may be chance in so few recorded batches: record more (batches, attribute_from)."
    )
    return [Sentence(text, "stragglers")]


def key_of(late: Late) -> str:
    """The cause of late ranks as in :class:`Sentence`: ``rank: GPU``, ``node``."""
    return "node" if late.cause == "node" else f"rank: {late.cause}"


def name_of(late: Late) -> str:
    """The late ranks in words: ``rank 3 (node0)``, ``node1 (4 ranks)``."""
    if late.cause == "node" and late.node:
        node = late.node if late.node.lower().startswith("node") else f"node {late.node}"
        return f"{node} ({len(late.ranks)} ranks)"
    named = _numbered(late.ranks)
    return f"{named} ({late.node})" if late.node and len(late.ranks) == 1 else named


def _numbered(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 2, 5``; of many the first, and how many more."""
    numbers = ", ".join(str(rank) for rank in sorted(ranks)[:_MOST_NAMED])
    more = len(ranks) - _MOST_NAMED
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers}{f' and {more} more' if more > 0 else ''}"
