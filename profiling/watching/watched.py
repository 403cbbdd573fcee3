"""Watch one rank of a program: record its steps as rows, and findings."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from profiling import markers, schemas
from profiling.clocks import open_clock
from profiling.findings import Finding
from profiling.markers import open_markers, set_listener
from profiling.process import ModelFacts, facts_of, process_age_ns
from profiling.tools import Capture, switch
from profiling.watching.hooks import Hooks
from profiling.watching.steps import (
    BACKWARD,
    BY_MARKER,
    BY_OPTIMIZER,
    FORWARD,
    LOAD,
    PAUSE,
    STEP,
    UNKNOWN,
    UPDATE,
    Ends,
    Recorder,
    Steps,
    steps_of,
)

# In its first steps a program may still put DDP or the like around its model.
_STEPS_OF_FACTS = 4
# Backward passes after which a program that has an optimizer is not waited for to call it.
MOST_ACCUMULATED = 512


class Enough(SystemExit):
    """The program has done as many steps as were asked for; it ends as by ``sys.exit(0)``."""

    def __init__(self) -> None:
        super().__init__(0)


class _Explicit:
    """Records the ranges of a program that marks its stages itself (:mod:`profiling.markers`)."""

    _KINDS: ClassVar = {
        markers.STEP: STEP,
        markers.LOAD: LOAD,
        schemas.FORWARD: FORWARD,
        schemas.BACKWARD: BACKWARD,
        schemas.UPDATE: UPDATE,
    }

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._entered: list[Recorder | None] = []  # of each range that is open; None: it is not recorded

    def push(self, name: str) -> None:
        if not self._hooks.on_watched_thread:
            return
        recorder, kind = self._hooks.recorder(), self._KINDS[name]
        if recorder is not None and recorder.open[kind]:
            recorder = None
        self._entered.append(recorder)
        if recorder is not None:
            recorder.enter(kind)

    def pop(self, name: str, whole: bool) -> None:
        if self._hooks.on_watched_thread and self._entered and (recorder := self._entered.pop()) is not None:
            recorder.leave(whole=whole)


@dataclass(frozen=True)
class Request:
    """What to record of a watched rank."""

    batches: int = 0  # after so many steps the program ends; 0: when it likes
    per_step: int = 1  # optimizer steps that make one step
    samples: int = 0  # per step of this rank; 0: as the data loader says
    recordings: tuple[range, ...] = ()  # the steps that a profiler records


class Watch:
    """Watches this process from the first load or computation on; ``progress`` is given the
    number of each step, and how long the data loaders have taken, s."""

    def __init__(
        self, request: Request, capture: Capture, progress: Callable[[int, float], None] | None = None
    ) -> None:
        self.request, self._capture, self._progress = request, capture, progress
        self._ends = Ends(request.per_step)
        self._recorder: Recorder | None = None
        self._on = True
        self.hooks = Hooks(self._open)
        set_listener(_Explicit(self.hooks))
        self.startup_ns = 0
        self._unseen = False  # whether parameters are updated, and no optimizer's step was seen
        self._counted = (0, 0)  # optimizers and updates when they were last counted
        self._switched = 0  # the last step that was passed to the profiler
        # Of the model, while it is there: it may be gone, as the process group, when the program has ended.
        self.model_facts = ModelFacts()
        self.has_host_clock = True

    def _open(self) -> Recorder:
        import torch

        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        device = facts_of(self.hooks.modules.largest).device
        # A program need not make the GPU of its model the current one.
        index = device.index if device is not None and device.type == "cuda" else None
        self._clock = open_clock("cuda" if on_gpu else "cpu", index)
        self.has_host_clock = not on_gpu
        self.hooks.is_capturing = torch.cuda.is_current_stream_capturing if on_gpu else None
        self._markers = open_markers()
        recorder = self._recorder = Recorder(self._clock, self._markers, self._begins, self._ended)
        self.startup_ns = process_age_ns()
        self._clock.start()
        self._markers.begin()
        self._switch(0)
        return recorder

    def _begins(self, kind: int) -> None:
        assert self._recorder is not None
        if self.hooks.seen.optimizers:
            self._recorder.begins = None
        elif self._on and self._ends.begins(kind) and self._are_steps():
            self._step_ended()

    def _are_steps(self) -> bool:
        """Whether what ends without an optimizer's step is a step.

        A program that has an optimizer may accumulate gradients for long before its first step, and may load
        all its data before it begins. But if its parameters change, the updates are there and not seen.
        """
        if not self.hooks.optimizers:
            return self._ends.has_backward
        optimizers, updates = len(self.hooks.optimizers), self.hooks.updates()
        self._unseen |= self._counted[0] == optimizers and self._counted[1] != updates
        self._counted = optimizers, updates
        return self._unseen or (self._ends.has_backward and self._ends.steps >= MOST_ACCUMULATED)

    def _ended(self, kind: int, who: int) -> None:
        assert self._recorder is not None
        # Within a step that is marked, nothing else ends one.
        if self._on and not self._recorder.open[STEP] and self._ends.ended(kind, who):
            self._step_ended()

    def _step_ended(self) -> None:
        assert self._recorder is not None
        if self._recorder.is_marking:
            self._markers.end_of_batch()
        self._clock.settle()
        steps = self._ends.steps
        if self._progress:
            self._progress(steps, self.hooks.loading_s)
        if steps <= _STEPS_OF_FACTS:
            self.model_facts = facts_of(self.hooks.modules.largest)
        # An optimizer that has not stepped yet may follow, and end the steps.
        may_end_later = self._ends.may_change and self.hooks.awaits_optimizer
        if 0 < self.request.batches <= steps and not (may_end_later and may_end_later()):
            raise Enough
        if self.request.recordings:
            # Not twice: a step that ended with one optimizer ends once more where a second then follows it.
            # After a phase change several steps may be pending.
            for index in range(self._switched + 1, steps + 1):
                self._switch(index)
        # Once a step: markers that nobody records would cost as much as all the rest.
        if self._markers.are_recorded() != self._recorder.is_marking:
            self._recorder.set_marking(not self._recorder.is_marking)

    def _switch(self, index: int) -> None:
        """Step ``index`` is about to begin: begin or end a recording; the time is of no step."""
        assert self._recorder is not None
        self._switched = index
        if any(index in (one.start, one.stop) for one in self.request.recordings):
            self._recorder.enter(PAUSE)
            switch(self._capture, self.request.recordings, 0, index, self.hooks.modules.largest)
            self._recorder.leave()

    def stop(self) -> Steps | None:
        """The program has ended: its steps; None where nothing was seen."""
        self._on = False
        self.hooks.stop()
        if self._recorder is None:
            return None
        steps = steps_of(self._recorder.segments(), self.request.per_step)
        if self.request.batches:
            steps = steps.first(self.request.batches)
        return steps if len(steps) else None


def batch_columns(steps: Steps, rank: int, request: Request) -> dict[str, Any]:
    """The columns of the ``batches`` table (:mod:`profiling.schemas`)."""
    count = len(steps)
    index = np.arange(count)
    samples = np.full(count, request.samples) if request.samples else steps.samples
    recorded = [step for recording in request.recordings for step in recording]
    return {
        "rank": np.full(count, rank),
        "batch_index": index,
        "start_ns": steps.start_ns,
        "load_ns": steps.stages_ns[LOAD],
        "forward_ns": steps.stages_ns[FORWARD],
        "backward_ns": steps.stages_ns[BACKWARD],
        "update_ns": steps.stages_ns[UPDATE],
        "end_ns": steps.end_ns,
        "images": np.where(samples == UNKNOWN, np.nan, samples),
        "attributed": np.isin(index, recorded),
    }


def usual_samples(steps: Steps, request: Request) -> int:
    if request.samples:
        return request.samples
    known = steps.samples[steps.samples > 0]
    return int(np.median(known)) if len(known) else 0


def findings_of(watch: Watch, steps: Steps) -> Iterator[Finding]:
    """What of the program was not seen, or is another thing than usual."""
    facts, seen, passes = watch.model_facts, watch.hooks.seen, steps.passes
    if watch.has_host_clock and facts.on_gpu:
        yield Finding("host_clock")
    if facts.is_unwrapped:
        yield Finding("no_exchange", data={"n": facts.group_size})
    if steps.by not in (BY_OPTIMIZER, BY_MARKER):
        yield Finding("steps_by", data={"by": steps.by})
    usual = Counter(passes.tolist()).most_common(1)[0][0]
    if usual and (more := int((passes > usual).sum())):
        yield Finding("more_passes", data={"n": more, "of": len(steps), "usual": usual})
    unseen = {
        "load": not seen.loaders,
        "forward": not watch.hooks.modules.calls,
        "backward": not steps.stages_ns[BACKWARD].any(),
    }
    if any(unseen.values()):
        yield Finding("stages_unseen", data={"stages": [stage for stage in unseen if unseen[stage]]})
    if not watch.request.samples and (seen.samples or (steps.samples == UNKNOWN).any()):
        data = dict(zip(("batch", "first"), seen.samples, strict=True)) if seen.samples else {}
        yield Finding("uncertain", data=data | {"figure": "samples per step", "why": "--samples N says it"})
    if len(steps) < watch.request.batches:
        yield Finding("ended_early", data={"n": len(steps), "of": watch.request.batches})
