"""Which models can a sweep name? Torchvision's, without importing it: that takes seconds."""

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from profiling.errors import Mistakes, did_you_mean

_REGISTERED = re.compile(r"^@register_model\(.*\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


def model_names() -> list[str]:
    """The names of the classification models of the torchvision that is here; none: it is not.

    They are read from its source (a test compares them with those that torchvision itself lists).
    """
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return []
    sources = (Path(spec.origin).parent / "models").glob("*.py")
    return sorted(name for path in sources for name in _REGISTERED.findall(path.read_text(encoding="utf-8")))


def check_models(names: Iterable[str], where: Callable[[str], str]) -> None:
    """Refuse models that torchvision does not have; where it is not installed, a run finds out.

    Args:
        where: a model is named; asked only of those that are refused.

    Raises:
        Mistakes: a line for each such model; the nearest is suggested.
    """
    known = model_names()
    wrong = sorted(set(names) - set(known)) if known else []
    if wrong:
        raise Mistakes([f"{where(name)}: invalid model {name!r}{_near(name, known)}" for name in wrong])


def _near(name: str, known: list[str]) -> str:
    near = did_you_mean(name, known)
    return near if "did you mean" in near else "; use one of torchvision's classification models"
