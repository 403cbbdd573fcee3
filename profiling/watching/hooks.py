"""Where does a program come by PyTorch? The places that tell of its loads, passes and updates.

Data loaders' iterators, ``torch.autograd.backward``, gradient scalers and optimizers are told of for all of
them. Of modules only the outermost are hooked, so that a model of a thousand layers costs what one of ten
does: they are looked for once the program has something to load or to compute, and again after a step in
which none was called.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

from profiling.watching.segments import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    LOAD,
    PAUSE,
    UNKNOWN,
    UPDATE,
    Recorder,
)

if TYPE_CHECKING:
    import torch

# For modules, in a row: when the first data are loaded, and after updates before which none was called.
MOST_SEARCHES = 4


@dataclass
class Seen:
    """What the hooks have met, for what is said of the program; modules are held weakly."""

    modules: "list[weakref.ref[torch.nn.Module]]" = field(default_factory=list)
    has_optimizer: bool = False  # whether there was one when modules were looked for
    optimizers: list[str] = field(default_factory=list)  # of each its class
    modules_called: bool = False  # any of them, with gradients
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
        self._open_recorder = open_recorder
        self._recorder: Recorder | None = None
        self._on = True
        # Other threads' loads and passes overlap the main one's.
        self._thread = threading.main_thread().ident
        self._loaders: Any = weakref.WeakKeyDictionary()
        self._optimizers: Any = weakref.WeakKeyDictionary()
        self._updates: list[bool] = []  # those under way; whether each is the outermost
        self._updated = False  # whether an optimizer took a step since the gradient scaler was asked for one
        self._called = False  # whether a module was since the last update
        self._fruitless = 0  # searches for modules after which none was called
        self._handles: dict[int, list[Any]] = {}  # of a module's hooks, by its number
        self._outermost: set[int] = set()  # the numbers of modules that were called by none of ours
        self._all_hooked = False

    def attach(self) -> None:
        """Put the hooks into PyTorch, which has been imported."""
        import torch
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        self._hook_loaders(dataloader._BaseDataLoaderIter)
        torch.autograd.backward = self._around(torch.autograd.backward, BACKWARD)
        self._hook_scaler(torch.amp.GradScaler)
        optimizer.register_optimizer_step_pre_hook(self._before_update)
        optimizer.register_optimizer_step_post_hook(self._after_update)

    def stop(self) -> None:
        """Record nothing from now on."""
        self._on = False

    def recorder(self) -> Recorder | None:
        """The recorder, if this is the thread that is watched."""
        if threading.get_ident() != self._thread or not self._on:
            return None
        if self._recorder is None:
            self._recorder = self._open_recorder()
        return self._recorder

    # --- loaders --------------------------------------------------------------------------------------

    def _hook_loaders(self, iterator: Any) -> None:
        start, advance = iterator.__init__, iterator.__next__

        @wraps(start)
        def started(this: Any, loader: Any, *arguments: Any, **named: Any) -> None:
            this._scaleprof = self._number_of_loader(loader)
            start(this, loader, *arguments, **named)

        @wraps(advance)
        def advanced(this: Any) -> Any:
            recorder = self.recorder()
            if recorder is None or recorder.is_open(LOAD):
                return advance(this)
            if not self.seen.modules and not self._fruitless:
                self._search()
            recorder.enter(LOAD, getattr(this, "_scaleprof", 0))
            data, samples = None, UNKNOWN
            try:
                data = advance(this)
                samples = samples_in(data)
            finally:
                recorder.leave(samples, whole=data is not None)
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

    # --- passes ---------------------------------------------------------------------------------------

    def _around(self, function: Callable, kind: int) -> Callable:
        import torch

        @wraps(function)
        def around(*arguments: Any, **named: Any) -> Any:
            # While the compiler traces a call, nothing of ours may get into its graph.
            recorder = None if torch.compiler.is_compiling() else self.recorder()
            if recorder is None or recorder.is_open(kind):
                return function(*arguments, **named)
            if not self._called and not self.seen.modules and self._fruitless < MOST_SEARCHES:
                self._search()
            recorder.enter(kind)
            try:
                return function(*arguments, **named)
            finally:
                recorder.leave()

        return around

    def _search(self) -> None:
        """Hook the outermost modules that have parameters to train.

        If none of those that were found was called since, all: then what is called outermost stays hooked.
        """
        import torch

        everything = gc.get_objects()
        self.seen.has_optimizer |= any(issubclass(type(one), torch.optim.Optimizer) for one in everything)
        modules = [one for one in everything if issubclass(type(one), torch.nn.Module) and _is_trained(one)]
        # A hook within what is compiled would have it compiled again.
        compiled = {id(inner) for one in modules if _is_compiled(one) for inner in one.modules()}
        compiled -= {id(one) for one in modules if _is_compiled(one)}
        inner = {id(child) for one in modules for child in one.children()}
        hooked = {id(module()) for module in self.seen.modules}
        self._all_hooked = self._fruitless > 0
        for module in modules if self._all_hooked else [one for one in modules if id(one) not in inner]:
            if id(module) not in hooked | compiled and not isinstance(module, torch.jit.ScriptModule):
                self._hook_module(module)
        self._fruitless += 1

    def _prune(self) -> None:
        """Of all modules that were hooked, leave those alone that are not called outermost."""
        for number in set(self._handles) - self._outermost:
            for handle in self._handles.pop(number):
                handle.remove()
        self._all_hooked = False

    def _hook_module(self, module: "torch.nn.Module") -> None:
        import torch

        number = len(self.seen.modules)
        self.seen.modules.append(weakref.ref(module))
        entered: list[int] = []  # the kinds that were entered; the outermost alone is

        def before(this: Any, *_: Any) -> None:
            if torch.compiler.is_compiling():
                return
            recorder = self.recorder()
            if recorder is None:
                return
            graded = torch.is_grad_enabled()
            if graded:
                self._called = self.seen.modules_called = True
                self._fruitless = 0
            kind = FORWARD if graded else EVALUATION
            # A pass without gradients in training mode is a part of the step (a GAN's), not an evaluation.
            skip = (not graded and this.training) or any(
                map(recorder.is_open, (FORWARD, EVALUATION, BACKWARD))
            )
            entered.append(UNKNOWN if skip else kind)
            if not skip:
                self._outermost.add(number)
                recorder.enter(kind, number)

        def after(*_: Any) -> None:
            if torch.compiler.is_compiling():
                return
            recorder = self.recorder()
            if recorder is not None and entered and entered.pop() != UNKNOWN:
                recorder.leave()

        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is None:
            self._handles[number] = [
                module.register_forward_pre_hook(before, prepend=True),
                module.register_forward_hook(after, always_call=True),
            ]
            return

        def called(*arguments: Any, **named: Any) -> Any:
            before(module)
            try:
                return compiled(*arguments, **named)
            finally:
                after()

        module._compiled_call_impl = called

    # --- updates --------------------------------------------------------------------------------------

    def _hook_scaler(self, scaler: Any) -> None:
        step = scaler.step

        @wraps(step)
        def stepped(this: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
            # It leaves updates out whose gradients are not finite; the step ends all the same.
            recorder = self.recorder()
            if recorder is None or recorder.is_open(UPDATE):
                return step(this, optimizer, *arguments, **named)
            self._updated = False
            recorder.enter(UPDATE, self._number_of_optimizer(optimizer))
            try:
                return step(this, optimizer, *arguments, **named)
            finally:
                self.seen.skipped += not self._updated
                self._leave_update(recorder)

        scaler.step = stepped

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        import torch

        recorder = None if torch.compiler.is_compiling() else self.recorder()
        if recorder is None:
            return
        self._updated = True
        # Horovod's optimizer calls the one that it wraps, a gradient scaler calls any.
        outermost = not recorder.is_open(UPDATE)
        self._updates.append(outermost)
        if outermost:
            recorder.enter(UPDATE, self._number_of_optimizer(optimizer))

    def _after_update(self, *_: Any) -> None:
        import torch

        recorder = None if torch.compiler.is_compiling() else self.recorder()
        if recorder is not None and self._updates and self._updates.pop():
            self._leave_update(recorder)

    def _leave_update(self, recorder: Recorder) -> None:
        called, self._called = self._called, False
        recorder.leave()
        if not called and self._fruitless < MOST_SEARCHES:
            recorder.enter(PAUSE)  # it takes longer than many a step
            self._search()
            recorder.leave()
        elif called and self._all_hooked:
            self._prune()

    def _number_of_optimizer(self, optimizer: Any) -> int:
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = len(self.seen.optimizers)
            self.seen.optimizers.append(type(optimizer).__name__)
        number: int = self._optimizers[optimizer]
        return number


def _is_compiled(module: "torch.nn.Module") -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _is_trained(module: "torch.nn.Module") -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def samples_in(data: Any) -> int:
    """How many samples a loader's batch holds: the first dimension of its first tensor."""
    import torch

    if isinstance(data, torch.Tensor):
        return data.shape[0] if data.dim() else UNKNOWN
    parts: Iterable[Any] = ()
    if isinstance(data, Mapping):
        parts = data.values()
    elif isinstance(data, list | tuple):
        parts = data
    for part in parts:
        samples = samples_in(part)
        if samples != UNKNOWN:
            return samples
    return UNKNOWN
