"""Hook into PyTorch to record a program's loads, forward and backward passes, and updates.

The hooks are on data loaders' iterators, ``torch.autograd.backward``, gradient scalers, optimizers, and the
outermost calls of modules. Each costs a few microseconds per step (benchmarks/watch.py), so they do little.
"""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from types import MethodType
from typing import TYPE_CHECKING, Any

from profiling.process import elements_of
from profiling.watching.steps import BACKWARD, EVALUATION, FORWARD, LOAD, UNKNOWN, UPDATE, Recorder

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

# A batch may be of lists of all its numbers: so many parts of a part are looked at, and so deep.
_MOST_PARTS, _DEEPEST = 16, 4

# Searches take as long as many a step: a program may make a new model for each of its steps.
MOST_SEARCHES = 4
_CALL = "_compiled_call_impl"


class _Call:
    """A function as a method of a class, of which cloudpickle (classes by value) keeps nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, module: "Module | None", of: type) -> Any:
        return self if module is None else MethodType(self._function, module)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


@dataclass
class _Watched:
    module: "weakref.ref[Module]"
    number: int  # of its passes
    outermost: bool = False  # whether it was called by none of the others


@dataclass
class Modules:
    """The modules that are watched: those that a program calls from outside, of which the calls are recorded.

    A model of a thousand layers so costs what one of ten does. A call is seen by what PyTorch calls in place
    of a module's own ``_call_impl`` (as ``Module.compile`` does), and not by a hook: hooks are saved and
    copied with the module, take a longer way through PyTorch, and change what the compiler sees. It is set
    for the module's class: of the module itself, a copy that a library makes (DataParallel's replicas, clones
    for meta-learning) would have it, too, and call the module instead of itself.

    The outermost modules are searched for when the program first loads or computes. One that is made later,
    or is a part of one that is not called itself, is met when it is called: until one that is watched is
    called, all modules' calls are seen. ``recorder``: None in a thread that is not watched.
    """

    recorder: Callable[[], Recorder | None]
    calls: int = 0  # how often any of them was called with gradients
    _number: int = 0  # of the next one
    _searches: int = 0
    _waits: bool = False  # for the call of one that is not watched
    _watched: dict[int, _Watched] = field(default_factory=dict)  # by the module's identity
    _classes: list[type] = field(default_factory=list)  # of those modules

    @property
    def largest(self) -> "Module | None":
        """The one of most parameters that exists, of those that were called outermost if any was."""
        # Not by their truth: a compiled module raises where it is asked for its length.
        pairs = [(one.outermost, one.module()) for one in self._watched.values()]
        modules = [(outermost, module) for outermost, module in pairs if module is not None]
        modules.sort(key=lambda pair: (pair[0], sum(map(elements_of, pair[1].parameters()))))
        return modules[-1][1] if modules else None

    def attach(self) -> None:
        import torch

        compile_in_place = torch.nn.Module.compile

        @wraps(compile_in_place)
        def compiled(this: Any, *arguments: Any, **named: Any) -> None:
            compile_in_place(this, *arguments, **named)  # what is called from now on is not ours
            if self._searches and _is_trained(this):
                self._watch(this)

        torch.nn.Module.compile = compiled  # type: ignore[method-assign, assignment]
        self.await_call()

    def search(self) -> None:
        """Watch the outermost modules that have parameters to train."""
        import torch

        self._searches += 1
        every = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
        modules = [module for module in every if _is_trained(module)]
        # Not by a method of a class of the user's, who may have given its name to something else.
        parts = {id(child) for one in modules for child in torch.nn.Module.children(one)}
        for module in modules:
            if id(module) not in parts:
                self._watch(module)

    def await_call(self) -> None:
        """Watch the next module that is called, too, unless one that is watched is called before."""
        import torch

        if not self._waits:
            self._waits = True
            # Not for good: that would cost each layer of a model.
            torch.nn.Module._compiled_call_impl = self._call()

    def _stop_waiting(self) -> None:
        import torch

        self._waits = False
        torch.nn.Module._compiled_call_impl = None

    def stop(self) -> None:
        if self._waits:
            self._stop_waiting()
        for of in self._classes:
            delattr(of, _CALL)
        self._classes.clear()

    def _call(self) -> Callable[..., Any]:
        """What is called in place of the ``_call_impl`` of the modules of a class."""
        import torch

        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled

        def call(this: "Module", *arguments: Any, **named: Any) -> Any:
            # While the compiler traces a call, nothing of ours may get into its graph.
            recorder = None if is_compiling() else self.recorder()
            if recorder is None:
                return this._call_impl(*arguments, **named)
            watched, graded = self._find(this), is_grad_enabled()
            if watched is None and self._waits and graded and not _is_within(recorder) and _is_trained(this):
                self._stop_waiting()
                if self._searches < MOST_SEARCHES:
                    self.search()
                self._watch(this)
                watched = self._find(this)
            if watched is None or not self._begin_pass(this, watched, recorder, graded):
                return this._call_impl(*arguments, **named)
            try:
                return this._call_impl(*arguments, **named)
            finally:
                recorder.leave()

        return call

    def _begin_pass(self, module: "Module", watched: _Watched, recorder: Recorder, graded: bool) -> bool:
        """Enter a pass at the call of a watched module; False where the call is none of its own."""
        if graded:
            self.calls += 1
            if self._waits:
                self._stop_waiting()
        # A pass without gradients in training mode is a part of the step (a GAN's), not an evaluation.
        if _is_within(recorder) or not (graded or not module.training):
            return False
        watched.outermost = True
        recorder.enter(FORWARD if graded else EVALUATION, watched.number)
        return True

    def _find(self, module: "Module") -> _Watched | None:
        watched = self._watched.get(id(module))
        return watched if watched is not None and watched.module() is module else None

    def _watch(self, module: "Module") -> None:
        import torch

        # A bare container is not called, and its class is that of all modules.
        if isinstance(module, torch.jit.ScriptModule) or type(module) is torch.nn.Module:
            return
        watched = self._find(module)
        if watched is None:
            watched = _Watched(weakref.ref(module), self._number)
            self._number += 1
            self._watched = {key: one for key, one in self._watched.items() if one.module() is not None}
            self._watched[id(module)] = watched
        compiled = module.__dict__.get(_CALL)
        if compiled is not None:
            self._watch_compiled(module, watched, compiled)
        elif type(module) not in self._classes:
            self._classes.append(type(module))
            setattr(type(module), _CALL, _Call(self._call()))

    def _watch_compiled(self, module: "Module", watched: _Watched, compiled: Callable[..., Any]) -> None:
        """See the calls of one module, as ``Module.compile`` sets for one what is called."""
        import torch

        if getattr(compiled, "watches", None) is self:
            return
        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
        find = watched.module  # what belongs to the module must not keep it alive

        def call(*arguments: Any, **named: Any) -> Any:
            this, recorder = find(), None if is_compiling() else self.recorder()
            if this is None or recorder is None:
                return compiled(*arguments, **named)
            if not self._begin_pass(this, watched, recorder, is_grad_enabled()):
                return compiled(*arguments, **named)
            try:
                return compiled(*arguments, **named)
            finally:
                recorder.leave()

        call.watches = self  # type: ignore[attr-defined]
        # Not by setattr: an OptimizedModule would hand it on to the module within.
        module.__dict__[_CALL] = call


def _is_within(recorder: Recorder) -> bool:
    """Whether a call is a part of a pass that is seen already."""
    opened = recorder.open
    return bool(opened[FORWARD] or opened[EVALUATION] or opened[BACKWARD])


def _is_trained(module: "Module") -> bool:
    import torch

    try:
        return any(one.requires_grad for _, one in torch.nn.Module.named_parameters(module))
    except AttributeError:  # its __init__ has not come to PyTorch's, or the same of a module in it
        return False


@dataclass
class Seen:
    """What the hooks have seen, for findings about the program."""

    optimizers: list[str] = field(default_factory=list)  # of each its class
    loaders: int = 0
    workers: int = 0  # of the first loader
    # Of its first batch the samples and the first dimension of the first tensor, if they differ.
    samples: tuple[int, int] | None = None


class Hooks:
    """The hooks; ``open_recorder`` makes the recorder when the first segment begins and PyTorch is set up."""

    def __init__(self, open_recorder: Callable[[], Recorder]) -> None:
        self.seen = Seen()
        self.loading_s = 0.0  # in the data loaders, by the host's clock
        self.modules = Modules(self.recorder)
        self._open_recorder = open_recorder
        self._recorder: Recorder | None = None
        self._on = True
        # Other threads' loads and passes overlap the main one's.
        self._thread = threading.main_thread().ident
        self._loaders: Any = weakref.WeakKeyDictionary()
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # that were made
        self._optimizers: Any = weakref.WeakKeyDictionary()  # those that stepped
        self._calls: dict[int, int] = {}  # of modules, when each of these stepped last
        self._last: tuple[Any, int] = (lambda: None, 0)  # the optimizer that stepped last, and its number
        self._is_compiling: Callable[[], bool] = lambda: False
        # On a GPU: events of ours would become a part of the graph that is being captured. To wait for the
        # GPU, as the recorder does when it is made, would break the capture.
        self.is_capturing: Callable[[], bool] | None = None
        # In a data loader's workers the one thread has the main one's number, and a GPU cannot be used.
        os.register_at_fork(after_in_child=self.stop)

    def attach(self) -> None:
        import torch
        from torch.optim import optimizer
        from torch.utils.data import IterableDataset, dataloader

        self._is_compiling, self.is_capturing = torch.compiler.is_compiling, is_capturing
        self._hook_loaders(dataloader._BaseDataLoaderIter, IterableDataset, torch.Tensor)
        torch.autograd.backward = self._around_backward(torch.autograd.backward)
        self._hook_scaler(torch.amp.GradScaler)
        self._hook_optimizers(optimizer.Optimizer)
        self.modules.attach()

    def stop(self) -> None:
        self._on = False
        self.modules.stop()

    @property
    def on_watched_thread(self) -> bool:
        return self._on and threading.get_ident() == self._thread

    def recorder(self) -> Recorder | None:
        """The recorder, if this is the thread that is watched."""
        if not self.on_watched_thread or (self.is_capturing is not None and self.is_capturing()):
            return None
        if self._recorder is None:
            self.modules.search()
            self._recorder = self._open_recorder()
        return self._recorder

    def awaits_optimizer(self) -> bool:
        """Whether the program has an optimizer that has not stepped, for parameters of its own."""
        stepped = {id(one) for optimizer in self._optimizers for one in parameters_of(optimizer)}
        others = [{id(one) for one in parameters_of(optimizer)} for optimizer in self.optimizers]
        # A wrapper of an optimizer has its parameters.
        return any(parameters and not parameters & stepped for parameters in others)

    def updates(self) -> int:
        return sum(parameter._version for one in self.optimizers for parameter in parameters_of(one))

    # --- loaders --------------------------------------------------------------------------------------

    def _hook_loaders(self, iterator: Any, iterable: type, tensor: type) -> None:
        start, advance = iterator.__init__, iterator.__next__

        @wraps(start)
        def started(this: Any, loader: Any, *arguments: Any, **named: Any) -> None:
            draws = None if isinstance(loader.dataset, iterable) else draws_of(loader)
            this._scaleprof = self._number_of_loader(loader), draws
            start(this, loader, *arguments, **named)

        @wraps(advance)
        def advanced(this: Any) -> Any:
            recorder = self.recorder()
            if recorder is None or recorder.open[LOAD]:
                return advance(this)
            number, draws = getattr(this, "_scaleprof", (0, None))
            recorder.enter(LOAD, number)
            data, samples, began = None, UNKNOWN, time.perf_counter()
            try:
                data = advance(this)
                if draws is None:
                    samples = samples_in(data, tensor)
                else:
                    batch_size, total = draws
                    left = total - (this._num_yielded - 1) * batch_size
                    samples = int(left) if 0 < left < batch_size else batch_size  # the last batch has fewer
                    if not number and this._num_yielded == 1:
                        shown = samples_in(data, tensor)
                        self.seen.samples = (samples, shown) if shown not in (samples, UNKNOWN) else None
            finally:
                recorder.leave(samples, data is not None)
                self.loading_s += time.perf_counter() - began
            return data

        iterator.__init__, iterator.__next__ = started, advanced

    def _number_of_loader(self, loader: Any) -> int:
        if loader not in self._loaders:
            self._loaders[loader] = self.seen.loaders
            if not self.seen.loaders:
                self.seen.workers = loader.num_workers
            self.seen.loaders += 1
        return int(self._loaders[loader])

    # --- backward -------------------------------------------------------------------------------------

    def _around_backward(self, backward: Callable) -> Callable:
        @wraps(backward)
        def around(*arguments: Any, **named: Any) -> Any:
            recorder = None if self._is_compiling() else self.recorder()
            # Checkpoints call it within itself.
            if recorder is None or recorder.open[BACKWARD]:
                return backward(*arguments, **named)
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
            return self._update(optimizer, lambda: step(this, optimizer, *arguments, **named))

        scaler.step = stepped

    def _hook_optimizers(self, optimizer: Any) -> None:
        start, hooked = optimizer.__init__, optimizer.profile_hook_step

        @wraps(start)
        def started(this: Any, *arguments: Any, **named: Any) -> None:
            self.optimizers.add(this)
            start(this, *arguments, **named)

        optimizer.__init__ = started
        # Not by PyTorch's hooks around a step: none of them is called after a step that has failed.
        optimizer.profile_hook_step = staticmethod(lambda step: self._around_update(hooked(step)))

    def _around_update(self, step: Callable) -> Callable:
        @wraps(step)
        def stepped(optimizer: Any, *arguments: Any, **named: Any) -> Any:
            if self._is_compiling():
                return step(optimizer, *arguments, **named)
            return self._update(optimizer, lambda: step(optimizer, *arguments, **named))

        return stepped

    def _update(self, optimizer: Any, step: Callable[[], Any]) -> Any:
        """Take a step, and record it as an update."""
        recorder = self.recorder()
        # Horovod's optimizer calls the one that it wraps, a gradient scaler calls any.
        if recorder is None or recorder.open[UPDATE]:
            return step()
        number = self._number_of_optimizer(optimizer)
        recorder.enter(UPDATE, number)
        try:
            result = step()
        except BaseException:
            # Whatever ends it, Ctrl-C and sys.exit() too: the program may catch that and train on, and a
            # segment that is left open would hold all that follows. No update was made: what it took is of
            # the step that goes on.
            recorder.leave(whole=False)
            raise
        # An optimizer comes for the first time, or no module was called since its last step: the program may
        # have gone to another model.
        calls = self.modules.calls
        if self._calls.get(number, calls) == calls:
            self.modules.await_call()
        self._calls[number] = calls
        recorder.leave()
        return result

    def _number_of_optimizer(self, optimizer: Any) -> int:
        last, number = self._last
        if last() is not optimizer:
            if optimizer not in self._optimizers:
                self._optimizers[optimizer] = len(self.seen.optimizers)
                self.seen.optimizers.append(type(optimizer).__name__)
            number = self._optimizers[optimizer]
            self._last = weakref.ref(optimizer), number
        return number


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured; a process that uses no GPU yet is not made to."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def parameters_of(optimizer: "torch.optim.Optimizer") -> "list[torch.nn.Parameter]":
    """All that an optimizer updates; a library's own may keep none."""
    groups = getattr(optimizer, "param_groups", [])
    return [parameter for group in groups for parameter in group["params"]]


def draws_of(loader: Any) -> tuple[int, float] | None:
    """(samples that a loader draws for a batch, in all); None: its dataset or sampler defines batches."""
    if loader.batch_size is None:
        return None
    try:
        return loader.batch_size, len(loader.sampler)
    except Exception:  # noqa: BLE001 (of the user's sampler: any; many have no length)
        return loader.batch_size, float("inf")


def samples_in(data: Any, tensor: type, depth: int = 0) -> int:
    """The first dimension of a batch's first tensor (of class ``tensor``); :data:`UNKNOWN`: there is none."""
    if isinstance(data, tensor):
        return data.size(0) if data.ndim else UNKNOWN  # type: ignore[attr-defined, no-any-return]
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else ()
    if depth < _DEEPEST:
        for part in islice(parts, _MOST_PARTS):
            samples = samples_in(part, tensor, depth + 1)
            if samples != UNKNOWN:
                return samples
    return UNKNOWN
