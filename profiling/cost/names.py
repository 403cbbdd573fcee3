"""What is a kernel called, whichever tool prints its name?

nvprof's databases and old traces hold mangled names; nvprof prints ``int=4, bool=1``, Nsight tools
``(int)4, (bool)1`` where a demangler prints ``4, true``. All become what the demangler of the C++ library
prints, so that one kernel has one name.
"""

import re
from functools import lru_cache

# A template argument with its type before it, as nvprof (type=value) and Nsight ((type)value) have it.
_SUFFIX = {
    "int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll",
    "unsigned long long": "ull", "__int64": "l", "size_t": "ul",
}  # fmt: skip
_TYPE = "|".join(sorted(_SUFFIX, key=len, reverse=True))
_TYPED = re.compile(rf"(?<=[<,\s])(?:({_TYPE})=|\(({_TYPE})\))(-?\d+)")
_BOOL = re.compile(r"(?<=[<,\s])(?:bool=|\(bool\))([01])")
_ENUM = re.compile(r"(?<=[<,\s])([A-Za-z_][\w:]*)=(-?\d+)")
_LAMBDA = re.compile(r"\[lambda(\([^()]*\)) \(instance (\d+)\)\]")
_SPACES = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\s*,\s*"), ", "),
    (re.compile(r"\s+([*&>])"), r"\1"),
    (re.compile(r"<\s+"), "<"),
    (re.compile(r"(?<=>)>"), " >"),
    (re.compile(r"\bconst ((?:unsigned |signed )?[A-Za-z_][\w:]*)(?=[*&])"), r"\1 const"),
)


def demangle(name: str) -> str:
    """A C++ name as people read it; what is not mangled, or where there is no C++ library, as it is."""
    if not name.startswith(("_Z", "__Z")):  # with a second underscore, as macOS has it
        return name
    try:
        import cxxfilt  # looks for the C++ library: only where a tool mangles
    except OSError:  # it found one that cannot be loaded
        return name
    try:
        return cxxfilt.demangle(name.removeprefix("_") if name.startswith("__Z") else name)
    except (cxxfilt.Error, UnicodeError):
        return name


@lru_cache(maxsize=1 << 16)
def full_name(name: str) -> str:
    """One name for a kernel, whichever tool printed it: demangled, arguments as the demangler has them."""
    text = demangle(name.strip())
    if "<" not in text and "(" not in text:
        return text
    text = _TYPED.sub(lambda found: found[3] + _SUFFIX[found[1] or found[2]], text)
    text = _BOOL.sub(lambda found: "true" if found[1] == "1" else "false", text)
    text = _ENUM.sub(r"(\1)\2", text)
    text = _LAMBDA.sub(r"{lambda\1#\2}", text).replace("<unnamed>", "(anonymous namespace)")
    text = text.replace("operator ()", "operator()")
    for pattern, written in _SPACES:
        text = pattern.sub(written, text)
    return text
