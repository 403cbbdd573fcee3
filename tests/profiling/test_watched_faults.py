"""Programs that do what is not usual, watched within this process: what is made of their steps?"""

import itertools
import os
import threading
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.optim.optimizer import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, dataloader

from jobs import watched
from profiling import markers
from profiling.errors import UserError
from profiling.identity import Identity
from profiling.step_clock import open_clock
from profiling.watch import main
from profiling.watching.facts import ModelFacts, facts_of
from profiling.watching.findings import findings_of
from profiling.watching.hooks import drawn, is_capturing, samples_in
from profiling.watching.modules import MOST_SEARCHES
from profiling.watching.segments import BACKWARD, FORWARD, UNKNOWN, UPDATE
from profiling.watching.steps import BY_MARKER
from profiling.watching.watched import Enough, Wanted, Watch

ENDLESS = 2000  # steps of a program that should be ended before


@pytest.fixture
def watch(monkeypatch):
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
    watches = []

    def start(wanted: Wanted) -> Watch:
        watches.append(Watch(wanted, Mock()))
        watches[-1].hooks.attach()
        return watches[-1]

    yield start
    for one in watches:
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


@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_that_fails_and_is_caught_ends_and_is_no_step(watch, scaled):
    watched_process = watch(Wanted(batches=3))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model, fails=2)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = partial(scaler.step, optimizer) if scaled else optimizer.step
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
    watched_process = watch(Wanted(batches=batches))
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


def test_an_optimizer_that_does_not_come_is_waited_for_and_the_steps_are_as_many_as_asked_for(watch):
    watched_process = watch(Wanted(batches=3))
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer, _never = descent(model), descent(other)
    with pytest.raises(Enough):
        for _ in range(ENDLESS):
            passes(model)
            optimizer.step()
    assert optimizer.steps <= 10 and len(watched_process.stop()) == 3


def test_updates_that_are_not_seen_end_steps_with_the_backward_pass(watch):
    watched_process = watch(Wanted(batches=3))
    model = torch.nn.Linear(3, 2)
    _optimizer = descent(model)
    count = itertools.count()
    with pytest.raises(Enough):
        for _ in range(ENDLESS):
            passes(model)
            descend(model)  # as a compiled step of the optimizer does
            next(count)
    steps = watched_process.stop()
    assert len(steps) == 3 and next(count) < 6
    said = findings_of(watched_process, steps)
    assert "no optimizer's step was seen: a step ends with the backward pass" in said


def test_steps_of_which_only_loads_are_seen_end_with_these(watch):
    watched_process = watch(Wanted(batches=3))
    model = torch.nn.Linear(3, 2)
    _optimizer = descent(model)
    count = itertools.count()
    with pytest.raises(Enough):
        for _ in DataLoader(torch.ones(ENDLESS, 3), 2):
            descend(model)
            next(count)
    assert len(watched_process.stop()) == 3 and next(count) < 6


def test_data_that_are_loaded_before_training_end_no_step(watch):
    watched_process = watch(Wanted(batches=3))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    loader = DataLoader(torch.ones(12, 3), 2)
    for _ in loader:
        pass
    with pytest.raises(Enough):
        for data in itertools.chain.from_iterable(itertools.repeat(loader)):
            model(data).sum().backward()
            optimizer.step()
    assert optimizer.steps == 3 and len(watched_process.stop()) == 3


@pytest.mark.parametrize(
    ("steps_after", "passes_of_steps"),
    [pytest.param(16, [16, 16], id="accumulated for long"), pytest.param(None, [1, 1, 1], id="never called")],
)
def test_an_optimizer_is_waited_for_but_not_without_end(watch, steps_after, passes_of_steps):
    watched_process = watch(Wanted(batches=len(passes_of_steps)))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    with pytest.raises(Enough):
        for number in range(1, ENDLESS + 1):
            passes(model)
            if steps_after and number % steps_after == 0:
                optimizer.step()
    assert watched_process.stop().passes.tolist() == passes_of_steps


@pytest.mark.parametrize(("backend", "said"), [("gloo", True), ("ddp/gloo", False), ("horovod", False)])
def test_ranks_that_exchange_no_gradients_as_far_as_is_seen_are_told_so(watch, backend, said):
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    passes(model)
    optimizer.step()
    watched_process.model_facts = ModelFacts("Net", backend, group_size=2)
    steps = watched_process.stop()
    assert steps is not None
    assert any("do they exchange" in one for one in findings_of(watched_process, steps)) == said


def train(model: torch.nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        passes(model)
        optimizer.step()


def follow_each_other(steps) -> bool:
    """Whether nothing is left out between steps."""
    return steps.start_ns[1:].tolist() == steps.end_ns[:-1].tolist()


def test_without_a_data_loader_the_first_step_is_whole(watch):
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    train(model, descent(model), 4)
    passes(model)
    assert torch.nn.Module._compiled_call_impl is None  # layers' calls cost nothing any more
    steps = watched_process.stop()
    assert steps.passes.tolist() == [1] * 4 and (steps.stages_ns[FORWARD] > 0).all()
    assert follow_each_other(steps)


def test_a_pass_that_fails_and_is_caught_is_over(watch):
    class Full(torch.nn.Linear):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            if len(data) > 2:
                raise RuntimeError("out of memory")
            return super().forward(data)

    watched_process = watch(Wanted())
    model = Full(3, 2)
    with pytest.raises(RuntimeError):
        model(torch.ones(8, 3))
    assert not any(watched_process.hooks.recorder().open)
    train(model, descent(model), 2)
    assert len(watched_process.stop()) == 2


def test_a_backward_pass_within_another_is_a_part_of_it(watch):
    """Activation checkpoints that are reentrant."""
    watched_process = watch(Wanted())
    model, inner = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    optimizer = descent(model)
    for _ in range(3):
        checkpoint(inner, model(torch.ones(2, 3)), use_reentrant=True).sum().backward()
        optimizer.step()
    assert watched_process.stop().passes.tolist() == [1, 1, 1]


def test_nothing_is_recorded_while_a_graph_is_captured(watch):
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    train(model, optimizer, 1)
    for captures in (True, False):
        watched_process.hooks.is_capturing = lambda captures=captures: captures
        train(model, optimizer, 1)
    assert len(watched_process.stop()) == 2


def test_a_capture_that_comes_first_of_all_is_not_broken(watch, monkeypatch):
    """The clock waits for the GPU when it starts, which no capture outlives."""
    captures, opened = [True], Mock(side_effect=open_clock)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures[0])
    monkeypatch.setattr("profiling.watching.watched.open_clock", opened)
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    train(model, optimizer, 1)
    opened.assert_not_called()
    captures[0] = False
    train(model, optimizer, 2)
    assert opened.call_count == 1 and len(watched_process.stop()) == 2


def test_a_program_that_uses_no_gpu_yet_is_not_made_to(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: pytest.fail("asked CUDA"))
    assert not torch.cuda.is_initialized() and not is_capturing()


def test_modules_that_train_nothing_are_no_models(watch):
    watched_process = watch(Wanted())
    flat, model = torch.nn.Flatten(), torch.nn.Linear(3, 2)
    optimizer = descent(model)
    for _ in range(2):
        model(flat(torch.ones(2, 3))).sum().backward()
        optimizer.step()
    assert watched_process.hooks.modules.trained == 1


def test_the_model_is_the_largest_that_is_called(watch):
    watched_process = watch(Wanted())
    unused, model = torch.nn.Linear(30, 20), torch.nn.Linear(3, 2)
    train(model, descent(model), 1)
    assert watched_process.hooks.modules.largest is model is not unused


def test_a_program_that_makes_a_model_for_each_step_is_searched_a_few_times(watch, monkeypatch):
    watched_process = watch(Wanted())
    modules = watched_process.hooks.modules
    search = Mock(side_effect=modules.search)
    monkeypatch.setattr(modules, "search", search)
    models = [torch.nn.Linear(3, 2)]
    for _ in range(2 * MOST_SEARCHES):
        models.append(torch.nn.Linear(3, 2))
        train(models[-1], descent(models[-1]), 1)
    assert search.call_count == MOST_SEARCHES
    assert (watched_process.stop().stages_ns[FORWARD] > 0).all()


def test_so_it_is_of_two_models_with_an_optimizer_each(watch):
    watched_process = watch(Wanted())
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    optimizers = [*map(descent, models)]
    for _ in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            passes(model)
            optimizer.step()
    steps = watched_process.stop()
    assert steps.passes.tolist() == [2] * 4 and (steps.stages_ns[FORWARD] > 0).all()
    assert follow_each_other(steps)


def test_a_first_step_whose_beginning_was_not_seen_is_said_to_be_short(watch):
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    model._call_impl(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    train(model, optimizer, 2)
    said = findings_of(watched_process, watched_process.stop())
    assert "the first step's forward pass was not seen: it is shown too short" in said


def test_optimizers_that_step_one_after_the_other_take_nothing_out_of_the_steps(watch):
    """Once modules were searched for at each second of them."""
    watched_process = watch(Wanted())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizers = [descent(part) for part in (*model, model)]
    for _ in range(6):
        passes(model)
        for optimizer in optimizers:
            optimizer.step()
    steps = watched_process.stop()
    assert len(steps) == 6 and (steps.stages_ns[FORWARD] > 0).all() and (steps.stages_ns[BACKWARD] > 0).all()
    assert follow_each_other(steps)


def test_a_model_that_is_made_after_the_first_data_were_loaded_is_seen(watch):
    watched_process = watch(Wanted())
    loader = DataLoader(torch.ones(6, 3), 2)
    model = torch.nn.Linear(next(iter(loader)).size(1), 2)
    optimizer = descent(model)
    for data in loader:
        model(data).sum().backward()
        optimizer.step()
    assert (watched_process.stop().stages_ns[FORWARD] > 0).all()


class Training(torch.nn.Module):
    """A module that is not called itself, as Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)


def test_a_part_of_a_module_that_is_not_called_itself_is_seen(watch):
    watched_process = watch(Wanted())
    training = Training()
    optimizer = descent(training.net)
    for data in DataLoader(torch.ones(6, 3), 2):
        training.net(data).sum().backward()
        optimizer.step()
    assert (watched_process.stop().stages_ns[FORWARD] > 0).all()


def test_a_second_phase_with_another_model_has_steps_and_stages_as_the_first(watch):
    watched_process = watch(Wanted(batches=35))
    first = torch.nn.Linear(3, 2)
    train(first, descent(first), 12)
    second = torch.nn.Linear(3, 2)
    with pytest.raises(Enough):
        train(second, descent(second), ENDLESS)
    steps = watched_process.stop()
    assert len(steps) == 35 and steps.passes.tolist() == [1] * 35
    assert (steps.stages_ns[FORWARD] > 0).sum() >= 34
    assert any("a step ends with the one that steps last of each of 2 phases" in one
               for one in findings_of(watched_process, steps))  # fmt: skip


def test_an_optimizer_that_first_steps_late_is_said_to_end_no_step(watch):
    watched_process = watch(Wanted())
    critic, generator = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    of_critic, of_generator = descent(critic), descent(generator)
    for _ in range(3):
        train(critic, of_critic, 12)
        train(generator, of_generator, 1)
    steps = watched_process.stop()
    assert len(steps) == 36
    (said,) = (one for one in findings_of(watched_process, steps) if "optimizers" in one)
    assert said.endswith("with the one that steps last, leaving out 1 that first stepped after 10 steps")


def test_a_module_that_is_compiled_in_place_later_is_compiled_and_seen(watch, monkeypatch):
    compiled = []

    def counted(call):
        return lambda *arguments: compiled.append(1) or call(*arguments)

    monkeypatch.setattr(torch, "compile", counted)
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    train(model, optimizer, 2)
    model.compile()
    sees = vars(model)["_compiled_call_impl"]
    watched_process.hooks.modules.search()
    assert vars(model)["_compiled_call_impl"] is sees  # not what sees that
    train(model, optimizer, 2)
    assert len(compiled) == 2 and (watched_process.stop().stages_ns[FORWARD] > 0).all()


def copied(model: torch.nn.Module) -> torch.nn.Module:
    """As libraries for meta-learning do."""
    clone = model.__new__(type(model))
    clone.__dict__ = {**model.__dict__, "_parameters": {}}
    return clone


@pytest.mark.parametrize("copy", [torch.nn.Module._replicate_for_data_parallel, copied])
def test_a_copy_of_a_module_is_called_itself(watch, copy):
    watch(Wanted())
    model = torch.nn.Linear(3, 2)
    train(model, descent(model), 1)
    copy_of_it = copy(model)
    copy_of_it.__dict__.update(weight=torch.zeros(2, 3), bias=None)
    assert copy_of_it(torch.ones(1, 3)).tolist() == [[0, 0]]


def test_a_class_that_is_pickled_by_value_has_nothing_of_ours(watch):
    watch(Wanted())
    model = Training()
    optimizer = descent(model)
    for part in (model.net, model.unused):
        train(part, optimizer, 1)
    ours = vars(Training)["_compiled_call_impl"]
    assert callable(model._compiled_call_impl)
    made, arguments = ours.__reduce__()  # all that pickle asks of it
    assert made(*arguments) is None


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_that_are_not_finished_are_no_fault_of_the_program(watch):
    watched_process = watch(Wanted())
    half_made, bare = torch.nn.Linear.__new__(torch.nn.Linear), torch.nn.Module()
    bare.weight = torch.nn.Parameter(torch.ones(9))
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "lazy": torch.nn.LazyLinear(2)})
    optimizer = descent(model["used"])
    for _ in DataLoader(torch.ones(3, 3), 1):
        passes(model["used"])
        optimizer.step()
    assert len(watched_process.stop()) == 3 and facts_of(model).parameters == 8
    assert torch.nn.Module._compiled_call_impl is None and torch.nn.Linear(3, 2)(torch.ones(3)).shape == (2,)
    del half_made, bare


def images_of(loader: DataLoader, watched_process: Watch, *others: DataLoader) -> tuple[list[int], list[str]]:
    """The samples of each step of a program that has this loader, and others, and what is said of them."""
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    for _ in loader:
        passes(model)
        optimizer.step()
    for other in others:
        next(iter(other))
    steps = watched_process.stop()
    return steps.samples.tolist(), [one for one in findings_of(watched_process, steps) if "sampl" in one]


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
    assert images_of(loader, watch(Wanted())) == (samples, [])


def test_samples_are_those_that_the_loader_draws_whatever_it_makes_of_them(watch):
    loader, test_loader = DataLoader(PICTURES, 2, collate_fn=pictures), DataLoader(PICTURES, 2)
    images, (said,) = images_of(loader, watch(Wanted()), test_loader)
    assert images == [2, 2, 1]
    assert said.startswith("the data loader's batch size is 2, its first tensor's first dimension 3")


def test_of_a_sampler_without_a_length_all_batches_are_full():
    assert [drawn(batches, 4, float("inf")) for batches in (1, 1000)] == [4, 4]
    assert [drawn(batches, 4, 10) for batches in (1, 2, 3, 4)] == [4, 4, 2, 4]


def test_only_a_few_parts_of_a_batch_are_looked_at():
    class Jagged:
        """As torchrec's: no mapping, though it has keys and values."""

        def keys(self) -> list[str]:
            return ["a"]

        def values(self) -> torch.Tensor:
            pytest.fail("all its numbers are looked at")

    assert samples_in(Jagged(), torch.Tensor) == UNKNOWN
    assert samples_in({"lengths": [1, 2], "inputs": torch.ones(7, 2)}, torch.Tensor) == 7
    asked = []

    class Long(list):
        def __iter__(self):
            return (asked.append(1) or number for number in super().__iter__())

    assert samples_in([Long(range(100_000))], torch.Tensor) == UNKNOWN and len(asked) < 20


def mark_steps(batches: list) -> None:
    """Marked steps to the end of the data, at which one begins that does not come to its own."""
    data = iter(batches)
    try:
        while True:
            with markers.step:
                with markers.load:
                    next(data)
                with markers.forward:
                    pass
    except StopIteration:
        pass


def test_a_marked_step_that_fails_is_none(watch):
    watched_process = watch(Wanted())
    mark_steps([1, 2, 3])
    mark_steps([1, 2])
    assert len(watched_process.stop()) == 5


def test_what_another_thread_marks_does_not_disturb(watch):
    watched_process = watch(Wanted())
    begun, ended = threading.Event(), threading.Event()

    def prefetch() -> None:
        with markers.load:
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=prefetch)
    for _ in range(2):
        with markers.step:
            if not begun.is_set():
                thread.start()
                begun.wait(60)
            with markers.forward:
                pass
    ended.set()
    thread.join()
    steps = watched_process.stop()
    assert steps.by == BY_MARKER and len(steps) == 2 and (steps.stages_ns[FORWARD] > 0).all()


def test_an_update_within_a_marked_step_does_not_end_it(watch):
    watched_process = watch(Wanted(batches=1))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    with pytest.raises(Enough), markers.step:
        train(model, optimizer, 2)
    assert optimizer.steps == 2 and watched_process.stop().passes.tolist() == [2]


@pytest.mark.parametrize("words", [["--batchse", "5", "train.py"], ["missing.py"]])
def test_wrong_use_is_said_by_rank_0_alone(words, monkeypatch):
    monkeypatch.setattr("profiling.errors.RANK_0_FIRST_S", 0.0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError):
        main(words)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_a_profiler_that_cannot_record_here_is_named_by_rank_0_alone(monkeypatch, tmp_path):
    monkeypatch.setattr("profiling.errors.RANK_0_FIRST_S", 0.0)
    monkeypatch.setattr("profiling.watch.has_gpu", lambda: False)
    words = ["--out", str(tmp_path / "run"), "--profile", "nvprof", __file__]
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="nvprof records GPU activity only"):
        main(words)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.mark.parametrize("environ", [Mock(return_value={}), Mock(side_effect=watched.psutil.AccessDenied)])
def test_ranks_that_a_shell_starts_find_the_same_name(monkeypatch, environ):
    """mpirun starts a shell for each rank, and this the rank; a daemon of Slurm's is root's."""

    def ancestors(rank: str) -> SimpleNamespace:
        mpirun = SimpleNamespace(pid=10, environ=environ, create_time=lambda: 1e9, parent=lambda: None)
        shell = SimpleNamespace(pid=20 + int(rank), create_time=lambda: 2e9, parent=lambda: mpirun)
        shell.environ = lambda: {"OMPI_COMM_WORLD_LOCAL_RANK": rank}
        return SimpleNamespace(parent=lambda: shell)

    names = set()
    for rank in "01":
        monkeypatch.setattr(watched.psutil, "Process", lambda rank=rank: ancestors(rank))
        me = Identity(int(rank), 2, int(rank), 2, "Open MPI")
        names.add(watched.new_name("train", me, {**os.environ, "OMPI_COMM_WORLD_LOCAL_RANK": rank}))
    assert len(names) == 1 and names.pop().endswith("-10")
