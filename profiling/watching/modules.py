"""Which modules does a program call from outside, and when? Of these alone the calls are recorded.

A model of a thousand layers so costs what one of ten does. A call is seen by what PyTorch calls in place of
a module's own ``_call_impl`` (as ``Module.compile`` does), and not by a hook: hooks are saved and copied with
the module, take a longer way through PyTorch, and change what the compiler sees. It is set for the module's
class: of the module itself, a copy that a library makes (DataParallel's replicas, clones for meta-learning)
would have it, too, and call the module instead of itself.

The outermost modules are searched for when the program first loads or computes. One that is made later, or is
a part of one that is not called itself, is met when it is called: until one that is watched is called, all
modules' calls are seen.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

from profiling.watching.facts import elements_of
from profiling.watching.segments import BACKWARD, EVALUATION, FORWARD, Recorder

if TYPE_CHECKING:
    import torch

# Searches take as long as many a step: a program may make a new model for each of its steps.
MOST_SEARCHES = 4
_CALL = "_compiled_call_impl"


class _Call:
    """A function as a method of a class, of which nothing is left where the class is pickled by value.

    cloudpickle does so with classes of the program's script.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, module: "torch.nn.Module | None", of: type) -> Any:
        return self if module is None else MethodType(self._function, module)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


@dataclass
class _Watched:
    """A module whose calls are seen.

    Attributes:
        number: by which its passes are told from those of others.
        outermost: whether it was called by none of the others.
    """

    module: "weakref.ref[torch.nn.Module]"
    number: int
    outermost: bool = False


@dataclass
class Modules:
    """The modules that are watched.

    Args:
        recorder: the recorder, or None in a thread that is not watched.

    Attributes:
        calls: how often any of them was called with gradients.
        trained: how many were called outermost.
    """

    recorder: Callable[[], Recorder | None]
    calls: int = 0
    trained: int = 0
    _number: int = 0  # of the next one
    _searches: int = 0
    _waits: bool = False  # for the call of one that is not watched
    _watched: dict[int, _Watched] = field(default_factory=dict)  # by the module's identity
    _classes: list[type] = field(default_factory=list)  # of those modules

    @property
    def largest(self) -> "torch.nn.Module | None":
        """The one of most parameters that is there, of those that were called outermost if any was."""
        watched = self._watched.values()
        there = [(one.outermost, module) for one in watched if (module := one.module()) is not None]
        there.sort(key=lambda one: (one[0], sum(map(elements_of, one[1].parameters()))))
        return there[-1][1] if there else None

    def attach(self) -> None:
        """See the modules' calls, once PyTorch has been imported."""
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
        """See no calls any more."""
        if self._waits:
            self._stop_waiting()
        for of in self._classes:
            delattr(of, _CALL)
        self._classes.clear()

    def _call(self) -> Callable[..., Any]:
        """What is called in place of the ``_call_impl`` of the modules of a class."""
        import torch

        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled

        def call(this: "torch.nn.Module", *arguments: Any, **named: Any) -> Any:
            # While the compiler traces a call, nothing of ours may get into its graph.
            recorder = None if is_compiling() else self.recorder()
            if recorder is None:
                return this._call_impl(*arguments, **named)
            watched, graded = self._of(this), is_grad_enabled()
            if watched is None and self._waits and graded and not _is_within(recorder):
                watched = self._meet(this)
            if watched is None or not self._begins(this, watched, recorder, graded):
                return this._call_impl(*arguments, **named)
            try:
                return this._call_impl(*arguments, **named)
            finally:
                recorder.leave()

        return call

    def _meet(self, module: "torch.nn.Module") -> _Watched | None:
        """A module is called that is not watched: from now on it is, if it has parameters to train."""
        if not _is_trained(module):
            return None
        self._stop_waiting()
        if self._searches < MOST_SEARCHES:
            self.search()
        self._watch(module)
        return self._of(module)

    def _begins(self, module: "torch.nn.Module", watched: _Watched, recorder: Recorder, graded: bool) -> bool:
        """The call of a module that is watched begins; whether it is a pass, which is to be left."""
        if graded:
            self.calls += 1
            if self._waits:
                self._stop_waiting()
        # A pass without gradients in training mode is a part of the step (a GAN's), not an evaluation.
        if _is_within(recorder) or not (graded or not module.training):
            return False
        if not watched.outermost:
            watched.outermost = True
            self.trained += 1
        recorder.enter(FORWARD if graded else EVALUATION, watched.number)
        return True

    def _of(self, module: "torch.nn.Module") -> _Watched | None:
        watched = self._watched.get(id(module))
        return watched if watched is not None and watched.module() is module else None

    def _watch(self, module: "torch.nn.Module") -> None:
        import torch

        # A bare container is not called, and its class is that of all modules.
        if isinstance(module, torch.jit.ScriptModule) or type(module) is torch.nn.Module:
            return
        watched = self._of(module)
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

    def _watch_compiled(
        self, module: "torch.nn.Module", watched: _Watched, compiled: Callable[..., Any]
    ) -> None:
        """What ``Module.compile`` calls is the module's own, and so is what sees that."""
        import torch

        if getattr(compiled, "watches", None) is self:
            return
        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
        find = watched.module  # what belongs to the module must not keep it alive

        def call(*arguments: Any, **named: Any) -> Any:
            this, recorder = find(), None if is_compiling() else self.recorder()
            if (
                this is None
                or recorder is None
                or not self._begins(this, watched, recorder, is_grad_enabled())
            ):
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


def _is_trained(module: "torch.nn.Module") -> bool:
    """Whether it has parameters to train."""
    import torch

    try:
        return any(one.requires_grad for _, one in torch.nn.Module.named_parameters(module))
    except AttributeError:  # its __init__ has not come to PyTorch's, or the same of a module in it
        return False
