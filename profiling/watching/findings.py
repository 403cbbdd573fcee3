"""What is to be said of a watched program's steps: what they are, and what of them was not seen?"""

from collections import Counter
from collections.abc import Iterator

from profiling.watching.cycle import LATE
from profiling.watching.segments import BACKWARD, FORWARD, UNKNOWN
from profiling.watching.steps import BY_OPTIMIZER, Steps
from profiling.watching.watched import Watch
from profiling.wording import how_many, verb


def findings_of(watch: Watch, steps: Steps) -> list[str]:
    """Each in a sentence."""
    return [
        *_of_model(watch),
        *_of_ends(watch, steps),
        *_of_passes(steps),
        *_of_samples(watch, steps),
        *_of_stages(watch, steps),
    ]


def ended_early(steps: int, wanted: int) -> list[str]:
    """That a program has ended by itself before as many steps as were asked for; ``wanted`` 0: none were."""
    return [f"the program ended after {how_many(steps, 'step')}, before --batches {wanted}"] * (
        steps < wanted
    )


def _of_model(watch: Watch) -> Iterator[str]:
    facts, trained = watch.model_facts, watch.hooks.modules.trained
    if watch.has_host_clock and facts.on_gpu:
        yield "times are the host's: the model came to the GPU after the first data were loaded"
    if facts.is_unwrapped:
        yield (
            f"{facts.group_size} ranks, and no DistributedDataParallel, FSDP or the like around the model: "
            "do they exchange gradients?"
        )
    if trained > 1:
        yield f"{trained} models are trained: model and parameters are of the largest"


def _of_ends(watch: Watch, steps: Steps) -> Iterator[str]:
    """What a step ends with, where that is not its only optimizer's step."""
    seen, per_step = watch.hooks.seen, watch.wanted.per_step
    if steps.by != BY_OPTIMIZER:
        why = "" if seen.optimizers else "no optimizer's step was seen: "
        yield f"{why}a step ends with {steps.by}"
    elif len(seen.optimizers) > 1:
        names = ", ".join(dict.fromkeys(seen.optimizers))
        phases = f" of each of {steps.phases} phases" if steps.phases > 1 else ""
        late = f", leaving out {steps.late} that first stepped after {LATE} steps" if steps.late else ""
        yield (
            f"{len(seen.optimizers)} optimizers ({names}): a step ends with the one that steps last"
            f"{phases}{late}"
        )
    if per_step > 1:
        yield f"{per_step} optimizer steps make one step (--steps-per-batch)"
    if seen.skipped:
        yield (
            f"{how_many(seen.skipped, 'update')} {verb(seen.skipped, 'were')} skipped by the gradient "
            "scaler; skipped updates count as steps"
        )


def _of_passes(steps: Steps) -> Iterator[str]:
    counts = Counter(steps.passes.tolist())
    usual = counts.most_common(1)[0][0]
    if usual > 1:
        yield f"{usual} backward passes per step (gradient accumulation, or several losses)"
    more = sum(times for passes, times in counts.items() if passes > usual)
    if usual and more:
        yield (
            f"{more} of {how_many(len(steps), 'step')} {verb(more, 'have')} more backward passes than the "
            f"usual {usual}: were updates skipped?"
        )


def _of_samples(watch: Watch, steps: Steps) -> Iterator[str]:
    seen = watch.hooks.seen
    if not seen.loaders:
        yield "no PyTorch data loader: load is 0; its time is in the end of the step before"
    if watch.wanted.samples:
        return
    if (steps.samples == UNKNOWN).any():
        yield "samples per step are unknown: give --samples N (per rank)"
    elif seen.samples:
        yield (
            f"the data loader's batch size is {seen.samples[0]}, its first tensor's first dimension "
            f"{seen.samples[1]}: samples per step are by the batch size, else give --samples N (per rank)"
        )


def _of_stages(watch: Watch, steps: Steps) -> Iterator[str]:
    forward_ns = steps.stages_ns[FORWARD]
    if not watch.hooks.modules.calls:
        yield (
            "no module's forward pass was seen (is the step compiled?): forward is the time between load and "
            "backward"
        )
    elif not steps.stages_ns[BACKWARD].any():
        yield "no backward pass was seen (a compiled step?): backward is 0"
    elif not forward_ns[0] and forward_ns.any():
        yield "the first step's forward pass was not seen: it is shown too short"
    if steps.paused.any():
        yield f"evaluations are left out of the steps: {int(steps.paused.sum())}"
