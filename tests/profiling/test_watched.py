"""Programs watched within this process: which steps, which model, how many samples."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.optimizer import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, dataloader

from profiling import markers
from profiling.markers import Markers
from profiling.watching.steps import (
    BACKWARD,
    BY_BACKWARD,
    BY_FORWARD,
    BY_LOAD,
    BY_OPTIMIZER,
    EVALUATION,
    FORWARD,
    LATE,
    LOAD,
    PAUSE,
    UNKNOWN,
    UPDATE,
    Ends,
    Recorder,
    Segments,
    steps_of,
)
from profiling.watching.watched import Enough, Request, Watch, findings_of
from tests.builders import data_of


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Request], Watch]]:
    """Starts to watch this process; PyTorch is as it was when the test has ended."""
    monkeypatch.setattr(markers, "_LISTENER", [])
    iterator, scaler = dataloader._BaseDataLoaderIter, torch.amp.GradScaler
    module = torch.nn.Module
    hooked = [
        (iterator, "__init__"), (iterator, "__next__"), (scaler, "step"), (torch.autograd, "backward"),
        (Optimizer, "__init__"), (module, "compile"), (module, "_compiled_call_impl"),
    ]  # fmt: skip
    for place, name in hooked:
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(Optimizer, "profile_hook_step", staticmethod(Optimizer.profile_hook_step))
    started: list[Watch] = []

    def start(wanted: Request) -> Watch:
        started.append(Watch(wanted, Mock()))
        started[-1].hooks.attach()
        return started[-1]

    yield start
    for one in started:
        one.hooks.stop()


def descent(model: torch.nn.Module, fails: int = 0) -> Optimizer:
    """Gradient descent, whose class is new, so that PyTorch hooks it; its step no. ``fails`` does."""

    class Descent(Optimizer):
        def __init__(self) -> None:
            super().__init__(model.parameters(), {})
            self.steps = 0

        def step(self, closure: object = None) -> None:
            self.steps += 1
            if self.steps == fails:
                raise RuntimeError("no step")
            descend(model)

    return Descent()


def descend(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01


def passes(model: torch.nn.Module) -> None:
    """A forward and a backward pass."""
    model(torch.ones(2, 3)).sum().backward()


def train(model: torch.nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        passes(model)
        optimizer.step()


ENDLESS = 2000  # steps of a program that should be ended before


@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_that_fails_and_is_caught_ends_and_is_no_step(watch, scaled):
    watched_process = watch(Request(batches=3))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model, fails=2)
    step = partial(torch.amp.GradScaler("cpu", enabled=False).step, optimizer) if scaled else optimizer.step
    with pytest.raises(Enough):
        for _ in range(ENDLESS):
            passes(model)
            try:
                step()
            except RuntimeError:
                assert not watched_process.hooks.recorder().open[UPDATE]
    steps = watched_process.stop()
    assert steps.passes.tolist() == [1, 2, 1] and (steps.stages_ns[UPDATE] > 0).all()


@pytest.mark.parametrize("critics", [1, 5])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_step_of_few_is_not_ended_before_the_second_optimizer_has_come(watch, critics, batches):
    watched_process = watch(Request(batches=batches))
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    critic, generator = map(descent, models)
    with pytest.raises(Enough):
        for _ in DataLoader(torch.ones(ENDLESS, 3), 1):
            for _ in range(critics):
                passes(models[0])
                critic.step()
            passes(models[1])
            generator.step()
    assert watched_process.stop().passes.tolist() == [critics + 1] * batches


@pytest.mark.parametrize(
    ("every", "unseen", "passes_of_steps"),
    [
        pytest.param(16, False, [16, 16], id="accumulated for long"),
        pytest.param(0, False, [1, 1, 1], id="never called"),
        pytest.param(0, True, [1, 1, 1], id="not seen, as compiled ones"),
    ],
)
def test_an_optimizer_is_waited_for_but_not_without_end(watch, every, unseen, passes_of_steps):
    watched_process, model = watch(Request(batches=len(passes_of_steps))), torch.nn.Linear(3, 2)
    optimizer = descent(model)
    with pytest.raises(Enough):
        for number in range(1, ENDLESS + 1):
            passes(model)
            if unseen:
                descend(model)
                assert number < 6
            elif every and number % every == 0:
                optimizer.step()
    steps = watched_process.stop()
    assert steps.passes.tolist() == passes_of_steps
    by = data_of(findings_of(watched_process, steps), "steps_by")
    assert by == ([] if every else [{"by": BY_BACKWARD}])


def test_without_a_data_loader_the_first_step_is_whole(watch):
    watched_process = watch(Request())
    model = torch.nn.Linear(3, 2)
    train(model, descent(model), 4)
    passes(model)
    assert torch.nn.Module._compiled_call_impl is None  # layers' calls cost nothing any more
    steps = watched_process.stop()
    assert steps.passes.tolist() == [1] * 4 and (steps.stages_ns[FORWARD] > 0).all()
    assert steps.start_ns[1:].tolist() == steps.end_ns[:-1].tolist()  # nothing is left out between them


def test_a_pass_that_fails_and_is_caught_is_over(watch):
    class Full(torch.nn.Linear):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            if len(data) > 2:
                raise RuntimeError("out of memory")
            return super().forward(data)

    watched_process = watch(Request())
    model = Full(3, 2)
    with pytest.raises(RuntimeError):
        model(torch.ones(8, 3))
    assert not any(watched_process.hooks.recorder().open)
    train(model, descent(model), 2)
    assert len(watched_process.stop()) == 2


def test_a_backward_pass_within_another_is_a_part_of_it(watch):
    """Activation checkpoints that are reentrant."""
    watched_process = watch(Request())
    model, inner = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    optimizer = descent(model)
    for _ in range(3):
        checkpoint(inner, model(torch.ones(2, 3)), use_reentrant=True).sum().backward()
        optimizer.step()
    assert watched_process.stop().passes.tolist() == [1, 1, 1]


def test_a_module_that_is_compiled_in_place_later_is_compiled_and_seen(watch, monkeypatch):
    compiled = []

    def counted(call):
        return lambda *arguments: compiled.append(1) or call(*arguments)

    monkeypatch.setattr(torch, "compile", counted)
    watched_process = watch(Request())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    train(model, optimizer, 2)
    model.compile()
    sees = vars(model)["_compiled_call_impl"]
    watched_process.hooks.modules.search()
    assert vars(model)["_compiled_call_impl"] is sees  # not what sees that
    train(model, optimizer, 2)
    assert len(compiled) == 2 and (watched_process.stop().stages_ns[FORWARD] > 0).all()


def images_of(
    loader: DataLoader, watched_process: Watch, *others: DataLoader
) -> tuple[list[int], list[dict]]:
    """The samples of each step of a program that has this loader, and others, and what is said of them."""
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    for _ in loader:
        passes(model)
        optimizer.step()
    for other in others:
        next(iter(other))
    steps = watched_process.stop()
    return steps.samples.tolist(), [
        dict(one.data) for one in findings_of(watched_process, steps) if one.code == "uncertain"
    ]


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(5, 3))


class Loaded(IterableDataset):
    """Batches of another loader."""

    def __iter__(self):
        return iter(DataLoader(torch.ones(5, 3), 2))


def pictures(pairs: list) -> tuple:
    """Of each batch a tuple of pictures and one of what they show, as detection has them."""
    return tuple(zip(*pairs, strict=True))


PICTURES = TensorDataset(torch.ones(5, 3, 8, 8), torch.ones(5))


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        (DataLoader(PICTURES, 2), [2, 2, 1]),
        (DataLoader(PICTURES, 2, drop_last=True), [2, 2]),
        (DataLoader(Streamed(), 2), [2, 2, 1]),
        (DataLoader(Loaded(), None), [2, 2, 1]),
        (DataLoader(PICTURES, batch_sampler=[[0, 1, 2], [3]]), [3, 1]),
        (DataLoader(["no", "tensors", "here"], 2), [2, 1]),
    ],
)
def test_samples_are_those_of_the_loaders_batch(watch, loader, samples):
    assert images_of(loader, watch(Request())) == (samples, [])


def test_samples_are_those_that_the_loader_draws_whatever_it_makes_of_them(watch):
    loader, test_loader = DataLoader(PICTURES, 2, collate_fn=pictures), DataLoader(PICTURES, 2)
    images, (said,) = images_of(loader, watch(Request()), test_loader)
    assert images == [2, 2, 1]
    assert (said["batch"], said["first"]) == (2, 3)


# --- which steps a watched program did: from segments whose truth is known, without PyTorch ------------

KINDS = {"L": LOAD, "F": FORWARD, "B": BACKWARD, "U": UPDATE, "E": EVALUATION, "P": PAUSE}
TOOK = {"L": 10, "F": 20, "B": 40, "U": 5, "E": 15, "P": 1000}
GAP = 1  # after each segment


def segments(text: str, samples: int = 4) -> Segments:
    """Segments as ``"L F B U"``; ``L1`` is of loader 1, ``U1`` of optimizer 1, ``_100`` a gap of 100."""
    rows, now = [], 1000
    for word in text.split():
        if word[0] == "_":
            now += int(word[1:])
            continue
        took = TOOK[word[0]]
        rows.append((KINDS[word[0]], int(word[1:] or 0), now, now + took))
        now += took + GAP
    kind, who, begin, end = np.array(rows).T
    return Segments(kind, who, begin, end, np.ones(len(rows), bool), np.where(kind == LOAD, samples, UNKNOWN))


def stages(steps) -> list[list[int]]:
    """Load, forward, backward, update of each step."""
    return np.stack([steps.stages_ns[kind] for kind in (LOAD, FORWARD, BACKWARD, UPDATE)], axis=1).tolist()


def test_a_step_ends_with_the_optimizers_step_and_what_is_between_stages_is_of_none():
    steps = steps_of(segments("L _7 F B U _100 L F _3 B U _100 L F"))
    assert steps.by == BY_OPTIMIZER
    assert stages(steps) == [[10, 20, 40, 5], [10, 20, 40, 5]]
    # A step lasts until the next one begins; the last one that is whole, to the end of its update.
    assert (steps.end_ns - steps.start_ns).tolist() == [18 + 21 + 41 + 5 + 101, 11 + 24 + 41 + 5]
    assert steps.start_ns[1] == steps.end_ns[0]
    assert steps.samples.tolist() == [4, 4]


ONE, CRITIC, GAN = "L F B U0 ", "L F B U0 " * 5, "L F B U0 F B U1 "
SELDOM = (ONE * 25 + "F B U1 ") * 4
# a program -> the passes of each of its steps
STEPS = {
    "accumulated passes": ("L F B L F B L F B U " * 3, 1, [3] * 3),
    "of two optimizers the later": (GAN * 4, 1, [2] * 4),
    "five steps of the critic and one of the generator": ((CRITIC + "F B U1 ") * 2, 1, [6] * 2),
    "it ends before the generator's": (CRITIC + "F B U1 " + CRITIC, 1, [6]),
    "an optimizer of a later phase ends none": (ONE * LATE + GAN * 3, 1, [1] * (LATE + 1) + [2] * 2),
    "a generator that steps seldom ends none": (SELDOM, 1, ([1] * 25 + ([2] + [1] * 24) * 3)),
    "but is counted": (SELDOM, 25, [25, 26, 26, 26]),
    "an optimizer that stays away": (ONE * 20 + "L F B U1 " * 20, 1, [1] * 40),
    "the program ends in its second phase": (ONE * 20 + "L F B U1 " * 3, 1, [1] * 23),
    "two by turns": ((ONE * 30 + "L F B U1 " * 30) * 2, 1, [1] * 120),
    "two others later": (ONE * 20 + "L F B U1 F B U2 " * 20, 1, [1] * 20 + [2] * 20),
    "one of each parameter": (f"L F B {' '.join(f'U{number}' for number in range(40))} " * 6, 1, [1] * 6),
    "several steps are one": ("L F B U F B U " * 4, 2, [2] * 4),
    # The odd one is of the step that follows it.
    "counted anew in each phase": (ONE * 21 + "L F B U1 " * 20, 2, [*[2] * 10, 3, *[2] * 9]),
}


@pytest.mark.parametrize("program", STEPS)
def test_which_optimizers_steps_end_the_steps(program):
    text, per_step, passes = STEPS[program]
    steps = steps_of(segments(text), per_step)
    assert steps.passes.tolist() == passes and steps.by == BY_OPTIMIZER


@pytest.mark.parametrize(
    ("text", "times", "samples"),
    [
        ("L F B L F B L F B U ", [30, 60, 120, 5], 12),
        ("L F B U0 F B U1 ", [10, 40, 80, 10], 4),
        ("L _30 B U ", [10, 31, 40, 5], 4),  # a forward pass that is not seen lies between load and backward
        ("L0 L1 E7 F B U ", [20, 15 + 20, 40, 5], 8),  # two loaders and a teacher: no evaluation
    ],
)
def test_times_and_samples_of_a_step_add_up(text, times, samples):
    steps = steps_of(segments(text * 4))
    assert stages(steps) == [times] * 4 and set(steps.samples) == {samples} and not steps.paused.any()


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(LATE + 2, 40)), min_size=1, max_size=4))
def test_in_each_phase_the_last_optimizer_ends_the_steps(phases):
    """Phases, each of some optimizers that step one after the other, so and so often."""
    numbers, words = itertools.count(), []
    for optimizers, times in phases:
        cycle = [f"F B U{next(numbers)}" for _ in range(optimizers)]
        words += ["L", *cycle] * times
    steps = steps_of(segments(" ".join(words)))
    assert steps.passes.tolist() == [optimizers for optimizers, times in phases for _ in range(times)]


def test_an_evaluation_between_steps_is_left_out():
    train, evaluate = "L0 F B U ", "_50 L1 E L1 E L1 E _500 "
    steps = steps_of(segments(train * 3 + evaluate + train * 3))
    assert steps.paused.tolist() == [False, False, False, True, False, False]
    durations = (steps.end_ns - steps.start_ns).tolist()
    assert durations == [79, 79, 78, 79, 79, 78]  # the third and the last end with their update
    assert steps.samples.tolist() == [4] * 6


def test_an_evaluation_whose_passes_are_not_seen_is_known_by_its_loader():
    steps = steps_of(segments("L0 F B U " * 3 + "L1 L1 L1 " + "L0 F B U " * 3))
    assert (steps.end_ns - steps.start_ns).max() == 79 and steps.samples.tolist() == [4] * 6


def test_what_a_profiler_takes_to_start_is_in_no_step():
    steps = steps_of(segments("L F B U L F B U P L F B U"))
    assert (steps.end_ns - steps.start_ns).tolist() == [79, 78, 78] and not steps.paused.any()


@pytest.mark.parametrize(
    ("text", "by", "count"),
    [
        ("L F B L F B L F B", BY_BACKWARD, 3),
        ("L F B B L F B B L F B B L", BY_BACKWARD, 3),
        ("L F L F L F", BY_FORWARD, 3),
        ("L L L", BY_LOAD, 3),
    ],
)
def test_without_an_optimizer_steps_end_with_what_there_is(text, by, count):
    steps = steps_of(segments(text))
    assert steps.by == by and len(steps) == count


@pytest.mark.parametrize("per_step", [1, 2])
@pytest.mark.parametrize(
    "text",
    [
        "L F B U " * 20,
        "L F B U0 F B U1 " * 9,
        "L F B U0 " * LATE + "L F B U0 F B U1 " * 3,
        "L F B U0 " * 20 + "L F B U1 F B U2 " * 20,
        "L F B " * 7 + "L",
        "L F " * 7 + "L",
        "F B B " * 7 + "F",
        "L L L " + "L F B " * 7 + "L",
    ],
)
def test_what_is_counted_while_a_program_runs_is_what_is_found_afterwards(text, per_step):
    found = segments(text)
    ends = Ends(per_step)
    for kind, who in zip(found.kind.tolist(), found.who.tolist(), strict=True):
        before = ends.steps
        has_ended = ends.begins(kind) | ends.ended(kind, who)
        assert has_ended or ends.steps <= before
    assert ends.steps == len(steps_of(found, per_step))


# --- recording ----------------------------------------------------------------------------------------


class Counting:
    """A clock that goes on by one at each tick."""

    def __init__(self) -> None:
        self.ticks = itertools.count()
        self.last = -1

    def start(self) -> None: ...

    def settle(self) -> None: ...

    def tick(self) -> None:
        self.last = next(self.ticks)

    def instants_ns(self) -> np.ndarray:
        return np.arange(self.last + 1)


class Heard:
    """An emitter that writes down what it hears."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def push(self, name: str) -> None:
        self.words.append(name)

    def pop(self, name: str) -> None:
        self.words.append(f"/{name}")

    def mark(self, name: str) -> None: ...


def test_passes_within_the_optimizers_step_interrupt_it():
    heard, ended = Heard(), []
    recorder = Recorder(Counting(), Markers([heard]), lambda _: None, lambda *one: ended.append(one))
    recorder.enter(UPDATE, 3)  # 0
    recorder.enter(FORWARD)  # 1
    recorder.leave()  # 2
    recorder.enter(BACKWARD)  # 3
    recorder.leave()  # 4
    recorder.leave()  # 5
    found = recorder.segments()
    rows = list(zip(found.kind, found.begin_ns, found.end_ns, found.whole, strict=True))
    assert rows == [
        (UPDATE, 0, 1, False), (FORWARD, 1, 2, True), (UPDATE, 2, 3, False), (BACKWARD, 3, 4, True),
        (UPDATE, 4, 5, True),
    ]  # fmt: skip
    # With a forward pass no step ends.
    assert ended == [(BACKWARD, 0), (UPDATE, 3)]
    # Ranges follow one another, as collectors know them of our own ranks.
    assert heard.words == [
        word for name in ("Model Update", "Forward Pass", "Model Update", "Backward Pass", "Model Update")
        for word in (name, f"/{name}")
    ]  # fmt: skip
    steps = steps_of(found)
    assert len(steps) == 1 and stages(steps) == [[0, 1, 1, 3]]
