"""Which modules does a program call from outside, and when? Of these alone the calls are recorded.

A model of a thousand layers so costs what one of ten does. A call is seen by what PyTorch calls in place of
a module's own ``_call_impl`` (as ``Module.compile`` does), and not by a hook: hooks are saved and copied with
the module, take a longer way through PyTorch, and change what the compiler sees.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from profiling.watching.segments import BACKWARD, EVALUATION, FORWARD, Recorder

if TYPE_CHECKING:
    import torch

# Searches in a row after which no module was called.
MOST_SEARCHES = 4
_CALL = "_compiled_call_impl"


@dataclass
class _Wrapped:
    """A module whose calls are seen.

    Attributes:
        before: what was called in place of its own before us (by ``Module.compile``); None: nothing.
        outermost: whether it was called by none of the others.
    """

    module: "weakref.ref[torch.nn.Module]"
    before: Any
    outermost: bool = False


@dataclass
class Modules:
    """The modules that are watched.

    Args:
        recorder: the recorder, or None in a thread that is not watched.
    """

    recorder: Callable[[], Recorder | None]
    # Those that there were when modules were searched for.
    optimizers: "weakref.WeakSet[torch.optim.Optimizer]" = field(default_factory=weakref.WeakSet)
    ever_called: bool = False  # whether any was, with gradients
    called: bool = False  # the same since someone set it to False
    fruitless: int = 0  # searches after which none was called
    _wrapped: list[_Wrapped] = field(default_factory=list)
    _all: bool = False  # whether inner modules are wrapped, too

    @property
    def largest(self) -> "torch.nn.Module | None":
        """The one of most parameters that is there."""
        there = [one for one in (wrapped.module() for wrapped in self._wrapped) if one is not None]
        return max(there, key=lambda one: sum(p.numel() for p in one.parameters()), default=None)

    def updates(self) -> int:
        """A number that grows whenever an optimizer's parameters are changed, by whomever."""
        return sum(parameter._version for one in self.optimizers for parameter in parameters_of(one))

    @property
    def trained(self) -> int:
        """How many were called outermost."""
        return sum(wrapped.outermost for wrapped in self._wrapped)

    def search(self) -> None:
        """Wrap the outermost modules that have parameters to train.

        If none of those that were found was called since, all: then what is called outermost remains.
        """
        import torch

        everything = gc.get_objects()
        self.optimizers.update(one for one in everything if issubclass(type(one), torch.optim.Optimizer))
        modules = [one for one in everything if issubclass(type(one), torch.nn.Module) and _is_trained(one)]
        # What is compiled would be compiled again.
        within = {id(inner) for one in modules if _is_compiled(one) for inner in list(one.modules())[1:]}
        children = {id(child) for one in modules for child in one.children()}
        known = {id(wrapped.module()) for wrapped in self._wrapped}
        self._all = self.fruitless > 0
        without = known | within | (set() if self._all else children)
        for module in modules:
            if id(module) not in without and not isinstance(module, torch.jit.ScriptModule):
                self._wrap(module)
        self.fruitless += 1

    def prune(self) -> None:
        """Modules were called: of all that are wrapped leave those that were called outermost."""
        if self._all:
            self._all = False
            for wrapped in [one for one in self._wrapped if not one.outermost]:
                module = wrapped.module()
                if module is not None:
                    module.__dict__[_CALL] = wrapped.before

    def _wrap(self, module: "torch.nn.Module") -> None:
        import torch

        number, before = len(self._wrapped), module.__dict__.get(_CALL)
        # The wrapper belongs to the module, which it must not keep alive.
        wrapped = _Wrapped(weakref.ref(module), before)
        self._wrapped.append(wrapped)
        find, recorder_of = wrapped.module, self.recorder
        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled

        def call(*arguments: Any, **named: Any) -> Any:
            this: Any = find()
            inner = before or this._call_impl
            # While the compiler traces a call, nothing of ours may get into its graph.
            recorder = None if is_compiling() else recorder_of()
            if recorder is None:
                return inner(*arguments, **named)
            graded = is_grad_enabled()
            if graded:
                self.called = self.ever_called = True
                self.fruitless = 0
            opened = recorder.open
            # A pass without gradients in training mode is a part of the step (a GAN's), not an evaluation.
            if opened[FORWARD] or opened[EVALUATION] or opened[BACKWARD] or not (graded or not this.training):
                return inner(*arguments, **named)
            wrapped.outermost = True
            recorder.enter(FORWARD if graded else EVALUATION, number)
            try:
                return inner(*arguments, **named)
            finally:
                recorder.leave()

        call.compiled = before  # type: ignore[attr-defined]  # for whoever asks whether it is
        # Not by setattr: an OptimizedModule would hand it on to the module within.
        module.__dict__[_CALL] = call


def parameters_of(optimizer: "torch.optim.Optimizer") -> "list[torch.nn.Parameter]":
    """All that an optimizer updates; a library's own may keep none."""
    groups = getattr(optimizer, "param_groups", [])
    return [parameter for group in groups for parameter in group["params"]]


def _is_compiled(module: "torch.nn.Module") -> bool:
    call = module.__dict__.get(_CALL)
    return "_orig_mod" in module._modules or getattr(call, "compiled", call) is not None


def _is_trained(module: "torch.nn.Module") -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
