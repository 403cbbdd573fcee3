"""Run the user's program as plain Python would, with hooks that are installed once it imports PyTorch."""

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from profiling.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, UserError


@dataclass(frozen=True)
class Program:
    """What ``python`` would be given: a script or, with ``-m``, a module, and its arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def words(self) -> list[str]:
        return [*(["-m"] if self.is_module else []), self.target, *self.arguments]

    @property
    def name(self) -> str:
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem

    def check(self) -> None:
        """Raise UserError where there is no such program."""
        if self.is_module:
            self._set_path()
            with hidden(("jobs",)):
                _spec_of(self.target)
        elif not Path(self.target).exists():
            raise UserError(f"{self.target} does not exist; give the script of your program, or -m MODULE")

    def run_to_end(self) -> tuple[int, str]:
        """Run it as ``__main__``, and show what it fails by; its exit code, and why it is not 0."""
        try:
            self.run()
        except SystemExit as left:
            if left.code is None or isinstance(left.code, int):
                code = int(left.code or 0)
                return code, f"the program ended with exit code {code}" if code else ""
            print(left.code, file=sys.stderr)
            return EXIT_FAILED, f"the program ended: {left.code}"
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED, "the program was interrupted"
        except BaseException as error:  # noqa: BLE001 (of the user's program: any)
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next  # without the frames of this file
            _show(error.with_traceback(trace))
            return EXIT_FAILED, f"{type(error).__name__}: {error}".removesuffix(": ")
        return EXIT_DONE, ""

    def run(self) -> None:
        sys.argv = [self.target, *self.arguments]
        if not self.is_module and not Path(self.target).is_file():  # a folder or archive with a __main__.py
            runpy.run_path(self.target, run_name="__main__")
            return
        self._set_path()
        # Not by runpy: it takes the module away when the program ends, and functions that run at exit, or
        # are unpickled then, need it.
        main = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        code = self._module_into(main) if self.is_module else self._script_into(main)
        sys.modules["__main__"] = main
        exec(code, main.__dict__)

    def _set_path(self) -> None:
        """Make the first place of modules that of Python's own, unless it is to have none."""
        if not sys.flags.safe_path:
            sys.path[0] = str(Path.cwd() if self.is_module else Path(self.target).resolve().parent)

    def _script_into(self, main: ModuleType) -> CodeType:
        # As Python has it: where it is when the program has gone to another folder and spawns processes, too.
        path = Path(self.target).absolute()
        main.__file__ = str(path)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
        return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)

    def _module_into(self, main: ModuleType) -> CodeType:
        spec, loader = _spec_of(self.target)
        code: CodeType | None = loader.get_code(spec.name)
        if code is None:
            raise ImportError(f"no code object available for {self.target}")
        main.__spec__, main.__loader__, main.__package__ = spec, loader, spec.parent
        if spec.origin:
            main.__file__ = sys.argv[0] = spec.origin
        return code


def _show(error: BaseException) -> None:
    """Show a failure as Python would, or the program by a hook of its own, which may fail or exit in turn."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        return  # what was seen of the steps is written all the same
    except BaseException as own:  # noqa: BLE001 (of the program's hook: any)
        sys.__excepthook__(type(own), own, own.__traceback__)  # and of the failure that it was to show


def _spec_of(name: str) -> tuple[importlib.machinery.ModuleSpec, Any]:
    """Where the module lies that ``python -m NAME`` runs, and what loads it."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError as error:
        raise UserError(f"no module {name!r} ({error}): python -m {name} does not run either") from None
    if spec is None or spec.loader is None:
        raise UserError(f"no module {name!r}: python -m {name} does not run either")
    return spec, spec.loader


@contextmanager
def hidden(names: Sequence[str]) -> Iterator[None]:
    """Within it packages of ours are not loaded: a program may have modules of such names."""

    def is_one(module: str) -> bool:
        return module.partition(".")[0] in names

    ours = {name: module for name, module in sys.modules.items() if is_one(name)}
    for name in ours:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if is_one(name)]:
            del sys.modules[name]
        sys.modules.update(ours)


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` once a module has been imported: a program may set variables before it imports PyTorch."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Waiting(name, act))


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds one module as all others would, and acts when it has been executed: to be found is not enough."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Acting(spec.loader, self._executed)
        return spec

    def _executed(self) -> None:
        sys.meta_path.remove(self)
        self._act()


class _Acting(importlib.abc.Loader):
    def __init__(self, loader: Any, act: Callable[[], None]) -> None:
        self._loader, self._act = loader, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # From now on as if this had not been here.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act()
