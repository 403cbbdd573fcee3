"""How is a cause called, and what is to be tried against it? The sentences of the verdict about causes.

A change is advised if a simulation finds that it gains, or, where none was made, if it changes what costs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display.numbers import digits
from analysis.prediction.simulate import UPPER_LIMITS
from analysis.report.causes import Late
from analysis.report.sentences import TRY, Sentence, gain_in_words, ranks_in_words
from profiling.wording import how_many, noun

# A change that would give less than this, by simulation, is not advised.
LEAST_GAIN_PCT = 1.0

# Part of the loss (a column loss_<part>_pct) -> its key in Sentence.cause, and what it is called.
CAUSES = {
    "exposed_transfer": ("transfer", "non-overlapped (exposed) gradient transfer"),
    "exposed_wait": ("waits", "waiting for other ranks (no straggler)"),
    "exposed_communication": ("communication", "non-overlapped (exposed) communication"),
    "exposed_loader": ("loader", "data loading"),
    "compute": ("computing", "computation"),
    "exposed_copies": ("copies", "memory copies"),
    "idle_host_bound": ("launches", "late kernel launches (host-bound)"),
    "idle_other": ("device", "device idle time other than late launches"),
    "idle": ("idle", "idle time"),
}  # fmt: skip
_ONE_BUCKET = "bucket_mb: one bucket holds all gradients, so no computation overlaps its allreduce"
HALVED, FASTER = "fp16 gradients (grad), ", ", a faster network"
LARGER, SMALLER = "larger buckets (bucket_mb), ", "smaller buckets"
_SEND_LESS = f"{LARGER}{HALVED}a larger batch size (batch){FASTER}"
ADVICE = {
    "transfer": _SEND_LESS,
    "communication": f"profile all ranks (profile: torch) to separate transfer from waiting; {_SEND_LESS}",
    "waits": "check the timeline of the profiled run for late ranks; run fewer other jobs on the nodes; give "
    "all ranks batches of equal cost",
    "loader": "more workers, a faster loader, or TFRecord files; the synthetic loader shows the upper bound",
    "computing": "give every rank the same cores, clocks and memory bandwidth: most likely each had less "
    "than the baseline's rank (check threads, pinning, other jobs, power limits; without GPUs, allreduces "
    "use the same cores)",
    "small batch": "a larger global batch size, since kernel times do not shrink in proportion to the images "
    "per rank",
    "copies": "fewer ranks per bus, or buffers that need no copy; a timeline (profile: nsys) shows which",
    "launches": "a dedicated core for the launching thread (threads, workers, pinning), a larger batch size, "
    "fewer synchronisations",
    "device": "a timeline of the profiled run (profile: nsys), which shows what each kernel waits for",
    "idle": "a timeline of the profiled run, which shows what the ranks wait for",
}
# What-ifs that change a part: where none of them gains, by simulation, nothing of the kind is advised.
_WHAT_IFS = {"transfer": ("fp16-gradients", "network", "bucket-mb", "no-stragglers"),
             "communication": ("fp16-gradients", "network", "bucket-mb", "no-stragglers"),
             "loader": ("no-loader",)}  # fmt: skip
_WITHOUT = {"loader": "data loading", "waits": "late ranks"}
_SENDS = ("transfer", "communication")  # against which several what-ifs may help
LIMITED_BY = {
    "bandwidth": " In simulation, the limit is link bandwidth.",
    "latency": " In simulation, the limit is message latency.",
}
# Cause of a rank's lateness (of analysis.stragglers) -> what to do about it.
_ABOUT_LATE = {
    "GPU": "compare the GPU's clocks, temperature and power with the others' (nvidia-smi -q); check it for "
    "other processes; exclude it if nothing helps",
    "processor": "check its cores for other jobs; compare its clocks and pinning with the others'",
    "host": "a dedicated core for the launching thread (threads, workers, pinning); no other jobs on that "
    "host",
    "loader": "check the storage that holds its share of the data, and who else uses it; more workers",
    "node": "compare the node's clocks, temperature and other jobs with the others'; exclude it if nothing "
    "helps",
}
_LATE_CAUSE = {
    "GPU": "GPU (the same kernels take longer than on the other ranks)",
    "processor": "processor (the same operators take longer than on the other ranks)",
    "host": "host (it launches kernels late)",
    "loader": "loader (the next batch comes late)",
    "node": "node (all its ranks are late)",
    "GPU or host": "GPU or host; profiled runs (profile: torch) tell which",
    "processor or host": "processor or host; profiled runs (profile: torch) tell which",
}
_MOST_NAMED = 4  # late ranks


def against(key: str, gained: Mapping[str, Any], without: Sequence[str] = ()) -> list[Sentence]:
    """What to try against a cause: of what was simulated, what gains; of the rest, that it was not.

    Args:
        key: the cause's, as in :class:`Sentence`.
        gained: of :func:`analysis.report.causes.gains`.
        without: of the advice, what does not fit here: :data:`HALVED`, :data:`LARGER` and :data:`SMALLER`
            where such gradients or buckets were measured, :data:`FASTER` where no network lies between the
            ranks.
    """
    part = "transfer" if key in LIMITED_BY else key
    tried = [
        row
        for name, row in gained.items()
        if name.partition("=")[0] in _WHAT_IFS.get(part, ())
        or (part in _SENDS and row["gain_pct"] >= LEAST_GAIN_PCT)
    ]
    if not tried:
        advice = ADVICE[part]
        for words in without:
            advice = advice.replace(words, "")
        return [Sentence(_sentence(advice), "table", answers=TRY)]
    name = f" ({tried[0]['name']})" if tried[0].get("name") else ""
    on = f"on {ranks_in_words(tried[0]['world_size'])}{name}"
    # What can be done comes before what no change does as such.
    tried.sort(key=lambda row: (row["what_if"] in UPPER_LIMITS, -row["gain_pct"]))
    useful = [row for row in tried if row["gain_pct"] >= LEAST_GAIN_PCT]
    gains = ", ".join(_simulated(row) for row in useful or tried)
    text = f"Gain in images/s, simulated {on}: {gains}."
    if not useful:
        text = f"No simulated change gains {LEAST_GAIN_PCT:g} % or more {on}: {gains}."
    if part in _SENDS:
        text += f" Not simulated: {', '.join(_not_simulated(key, gained, without))}."
    elif useful:
        text = (
            f"{_sentence(ADVICE[part])} Without {_WITHOUT.get(part, 'that cost')}: "
            f"{gain_in_words(useful[0])} images/s, simulated {on}."
        )
    return [Sentence(text, "prediction")]


def _simulated(row: Mapping[str, Any]) -> str:
    limit = ", upper limit" if row["what_if"] in UPPER_LIMITS else ""
    return f"{row['what_if']} ({gain_in_words(row)}{limit})"


def _not_simulated(key: str, gained: Mapping[str, Any], without: Sequence[str]) -> list[str]:
    """What may help against what is sent, and was neither simulated nor measured, of :func:`against`."""
    done = {name.partition("=")[0] for name in gained}
    one_bucket = any(row.get("buckets") == 1 for name, row in gained.items() if "bucket" not in name)
    changes = {
        f"{SMALLER} ({_ONE_BUCKET})": one_bucket and SMALLER not in without,
        "larger buckets (bucket_mb)": LARGER not in without and not one_bucket and "bucket-mb" not in done,
        "fp16 gradients (grad)": HALVED not in without and "fp16-gradients" not in done,
        "a faster network": FASTER not in without and "network" not in done,
        "a network of lower latency": key == "latency",
        "a larger batch size (batch)": True,
    }
    return [words for words, fits in changes.items() if fits]


def held_up(late: Late | None, where: str = "") -> list[Sentence]:
    """The stragglers: how long the others wait for them, why, and what to do; nothing if there are none.

    Args:
        where: which configuration they are of (:func:`analysis.report.sentences.which_of`).
    """
    if late is None:
        return []
    one = len(late.ranks) == 1 or late.cause == "node"
    who = name_of(late)
    if late.by_collectives:
        least, how = "", "in the collectives of the profiled runs"
    else:
        least, how = "at least ", f"in the stage times of {late.runs} of {how_many(late.of, 'run')}"
    text = (
        f"{who[0].upper()}{who[1:]} {'is a straggler' if one else 'are stragglers'}{where}: the other ranks "
        f"wait {least}{digits(late.ms, 3)} ms per step for {'it' if one else 'them'} ({late.share_pct:.0f} % "
        f"of the step, measured {how}). Likely cause: {_LATE_CAUSE.get(late.cause, late.cause)}."
    )
    for cause in dict.fromkeys(cause for _, cause in late.others):
        ranks = _numbered([rank for rank, its in late.others if its == cause])
        text += f" Also late: {ranks}; likely cause: {_LATE_CAUSE.get(cause, cause)}."
    sentences = [Sentence(text, "stragglers", key_of(late))]
    if late.cause in _ABOUT_LATE:
        sentences.append(Sentence(_sentence(_ABOUT_LATE[late.cause]), "stragglers", answers=TRY))
    return sentences


def _sentence(advice: str) -> str:
    """Advice below the opening's question what to try, which it does not repeat."""
    return f"{advice[0].upper()}{advice[1:]}."


def perhaps(ranks: Sequence[int], ms: float) -> list[Sentence]:
    """Ranks that others waited for, which may be chance: of :func:`analysis.report.causes.suspected`."""
    if not ranks:
        return []
    text = (
        f"In the profiled runs the other ranks waited up to {digits(ms, 3)} ms per step for "
        f"{_numbered(ranks)}. With so few profiled steps this may be chance: record more (batches, "
        "attribute_from)."
    )
    return [Sentence(text, "stragglers")]


def key_of(late: Late) -> str:
    """The cause of late ranks as in :class:`Sentence`: ``rank: GPU``, ``node``."""
    return "node" if late.cause == "node" else f"rank: {late.cause}"


def name_of(late: Late) -> str:
    """The late ranks in words: ``rank 3 (node0)``, ``node1 (4 ranks)``."""
    if late.cause == "node" and late.node:
        node = late.node if late.node.lower().startswith("node") else f"node {late.node}"
        return f"{node} ({how_many(len(late.ranks), 'rank')})"
    named = _numbered(late.ranks)
    return f"{named} ({late.node})" if late.node and len(late.ranks) == 1 else named


def _numbered(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 2, 5``; of many the first, and how many more."""
    numbers = ", ".join(str(rank) for rank in sorted(ranks)[:_MOST_NAMED])
    more = len(ranks) - _MOST_NAMED
    return f"{noun(len(ranks), 'rank')} {numbers}{f' and {more} more' if more > 0 else ''}"
