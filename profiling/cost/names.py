"""What is a kernel called, whichever tool prints its name?

nvprof's databases and old traces hold mangled names; nvprof prints ``int=4, bool=1``, Nsight tools
``(int)4, (bool)1`` where a demangler prints ``4, true``. All become what the demangler of the C++ library
prints, so that one kernel has one name.
"""

import ctypes
import ctypes.util
import re
from functools import lru_cache
from typing import Any

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")
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


@lru_cache(maxsize=1 << 16)
def demangle(name: str) -> str:
    """A C++ name as people read it; what is not mangled, or where no demangler is, as it is."""
    if not name.startswith(("_Z", "__Z")):
        return name
    function = _demangler()
    if function is None:
        return name
    status = ctypes.c_int(-1)
    text = function(name.encode(), None, None, ctypes.byref(status))
    if not text or status.value:
        return name
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        _free()(text)


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


@lru_cache(maxsize=1)
def _demangler() -> Any:
    for name in (*_LIBRARIES, ctypes.util.find_library("stdc++")):
        try:
            function = ctypes.CDLL(name).__cxa_demangle if name else None
        except (OSError, AttributeError):
            continue
        if function is not None:
            function.restype = ctypes.c_void_p
            function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
            return function
    return None


@lru_cache(maxsize=1)
def _free() -> Any:
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    return free
