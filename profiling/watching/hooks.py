"""Where does a program come by PyTorch? The places that tell of its loads, passes and updates.

Data loaders' iterators, ``torch.autograd.backward``, gradient scalers and optimizers tell of all of them; of
modules only calls from outside are seen (:mod:`profiling.watching.modules`). Each costs a few microseconds a
step (benchmarks/watch.py), so what is done in them is little.
"""

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from profiling.watching.modules import MOST_SEARCHES, Modules, parameters_of
from profiling.watching.segments import BACKWARD, LOAD, PAUSE, UNKNOWN, UPDATE, Recorder

_SEQUENCES = (list, tuple)


@dataclass
class Seen:
    """What the hooks have met, for what is said of the program."""

    optimizers: list[str] = field(default_factory=list)  # of each its class
    loaders: int = 0
    workers: int = 0  # of the first loader
    skipped: int = 0  # updates that a gradient scaler left out


class Hooks:
    """The hooks, once :meth:`attach` has put them into PyTorch.

    Args:
        open_recorder: makes the recorder when the first segment begins, and PyTorch is set up.
    """

    def __init__(self, open_recorder: Callable[[], Recorder]) -> None:
        self.seen = Seen()
        self.modules = Modules(self.recorder)
        self._open_recorder = open_recorder
        self._recorder: Recorder | None = None
        self._on = True
        # Other threads' loads and passes overlap the main one's.
        self._thread = threading.main_thread().ident
        self._loaders: Any = weakref.WeakKeyDictionary()
        self._optimizers: Any = weakref.WeakKeyDictionary()
        self._last: tuple[Any, int] = (lambda: None, 0)  # the optimizer that stepped last, and its number
        self._updated = False  # whether an optimizer took a step since the gradient scaler was asked for one
        self._is_compiling: Callable[[], bool] = lambda: False
        # On a GPU: events of ours would become a part of the graph that is being captured.
        self.is_capturing: Callable[[], bool] | None = None
        # In a data loader's workers the one thread has the main one's number, and a GPU cannot be used.
        os.register_at_fork(after_in_child=self.stop)

    def attach(self) -> None:
        """Put the hooks into PyTorch, which has been imported."""
        import torch
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        self._is_compiling = torch.compiler.is_compiling
        self._hook_loaders(dataloader._BaseDataLoaderIter, torch.Tensor)
        torch.autograd.backward = self._around_backward(torch.autograd.backward)
        self._hook_scaler(torch.amp.GradScaler)
        self._hook_optimizers(optimizer.Optimizer)

    def stop(self) -> None:
        """Record nothing from now on."""
        self._on = False

    def recorder(self) -> Recorder | None:
        """The recorder, if this is the thread that is watched."""
        if threading.get_ident() != self._thread or not self._on:
            return None
        if self._recorder is None:
            self._recorder = self._open_recorder()
        if self.is_capturing is not None and self.is_capturing():
            return None
        return self._recorder

    def awaits_optimizer(self) -> bool:
        """Whether the program has an optimizer that has not stepped, for parameters of its own."""
        stepped = {id(one) for optimizer in self._optimizers for one in parameters_of(optimizer)}
        others = [{id(one) for one in parameters_of(optimizer)} for optimizer in self.modules.optimizers]
        # A wrapper of an optimizer has its parameters.
        return any(parameters and not parameters & stepped for parameters in others)

    # --- loaders --------------------------------------------------------------------------------------

    def _hook_loaders(self, iterator: Any, tensor: type) -> None:
        start, advance = iterator.__init__, iterator.__next__

        @wraps(start)
        def started(this: Any, loader: Any, *arguments: Any, **named: Any) -> None:
            this._scaleprof = self._number_of_loader(loader)
            start(this, loader, *arguments, **named)

        @wraps(advance)
        def advanced(this: Any) -> Any:
            recorder = self.recorder()
            if recorder is None or recorder.open[LOAD]:
                return advance(this)
            if not self.modules.ever_called and not self.modules.fruitless:
                self.modules.search()
            recorder.enter(LOAD, getattr(this, "_scaleprof", 0))
            data, samples = None, UNKNOWN
            try:
                data = advance(this)
                samples = samples_in(data, tensor)
            finally:
                recorder.leave(samples, data is not None)
            return data

        iterator.__init__, iterator.__next__ = started, advanced

    def _number_of_loader(self, loader: Any) -> int:
        if loader not in self._loaders:
            self._loaders[loader] = self.seen.loaders
            if not self.seen.loaders:
                self.seen.workers = loader.num_workers
            self.seen.loaders += 1
        number: int = self._loaders[loader]
        return number

    # --- backward -------------------------------------------------------------------------------------

    def _around_backward(self, backward: Callable) -> Callable:
        @wraps(backward)
        def around(*arguments: Any, **named: Any) -> Any:
            recorder = None if self._is_compiling() else self.recorder()
            # Checkpoints call it within itself.
            if recorder is None or recorder.open[BACKWARD]:
                return backward(*arguments, **named)
            if not self.modules.ever_called and self.modules.fruitless < MOST_SEARCHES:
                self.modules.search()
            recorder.enter(BACKWARD)
            try:
                return backward(*arguments, **named)
            finally:
                recorder.leave()

        return around

    # --- updates --------------------------------------------------------------------------------------

    def _hook_scaler(self, scaler: Any) -> None:
        step = scaler.step

        @wraps(step)
        def stepped(this: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
            # It leaves updates out whose gradients are not finite; the step ends all the same.
            recorder = self.recorder()
            if recorder is None or recorder.open[UPDATE]:
                return step(this, optimizer, *arguments, **named)
            self._updated = False
            recorder.enter(UPDATE, self._number_of_optimizer(optimizer))
            try:
                result = step(this, optimizer, *arguments, **named)
            except BaseException:  # as around an update, below
                recorder.leave(whole=False)
                raise
            self.seen.skipped += not self._updated
            self._leave_update(recorder)
            return result

        scaler.step = stepped

    def _hook_optimizers(self, optimizer: Any) -> None:
        # Not by PyTorch's hooks around a step: none of them is called after a step that has failed.
        hooked = optimizer.profile_hook_step
        optimizer.profile_hook_step = staticmethod(lambda step: self._around_update(hooked(step)))

    def _around_update(self, step: Callable) -> Callable:
        @wraps(step)
        def stepped(optimizer: Any, *arguments: Any, **named: Any) -> Any:
            recorder = None if self._is_compiling() else self.recorder()
            if recorder is None:
                return step(optimizer, *arguments, **named)
            self._updated = True
            # Horovod's optimizer calls the one that it wraps, a gradient scaler calls any.
            if recorder.open[UPDATE]:
                return step(optimizer, *arguments, **named)
            recorder.enter(UPDATE, self._number_of_optimizer(optimizer))
            try:
                result = step(optimizer, *arguments, **named)
            except BaseException:
                # Whatever ends it, Ctrl-C and sys.exit() too: the program may catch that and train on, and a
                # segment that is left open would hold all that follows. No update was made: what it took is
                # of the step that goes on.
                recorder.leave(whole=False)
                raise
            self._leave_update(recorder)
            return result

        return stepped

    def _leave_update(self, recorder: Recorder) -> None:
        modules = self.modules
        called, modules.called = modules.called, False
        recorder.leave()
        if called:
            modules.prune()
        elif modules.fruitless < MOST_SEARCHES:
            recorder.enter(PAUSE)  # it takes longer than many a step
            modules.search()
            recorder.leave()

    def _number_of_optimizer(self, optimizer: Any) -> int:
        last, number = self._last
        if last() is not optimizer:
            if optimizer not in self._optimizers:
                self._optimizers[optimizer] = len(self.seen.optimizers)
                self.seen.optimizers.append(type(optimizer).__name__)
            number = self._optimizers[optimizer]
            self._last = weakref.ref(optimizer), number
        return number


def samples_in(data: Any, tensor: type) -> int:
    """How many samples a loader's batch holds: the first dimension of its first tensor.

    Args:
        tensor: the class of tensors.
    """
    if isinstance(data, tensor):
        return data.size(0) if data.ndim else UNKNOWN  # type: ignore[attr-defined, no-any-return]
    if isinstance(data, _SEQUENCES):
        parts: Any = data
    else:
        parts = data.values() if hasattr(data, "values") and hasattr(data, "keys") else ()
    for part in parts:
        samples = samples_in(part, tensor)
        if samples != UNKNOWN:
            return samples
    return UNKNOWN
