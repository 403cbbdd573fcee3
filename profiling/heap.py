"""How does a process that works through many large arrays keep its memory, not ask for it again and again?"""

import ctypes
import sys

# As glibc numbers its options (mallopt(3)), and the largest threshold that it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAPPED_BYTES = 32 << 20
_KEPT_BYTES = 128 << 20


def keep_freed_memory() -> None:
    """Let glibc hand freed memory out again instead of giving it back; elsewhere nothing changes.

    Columns of some hundred kilobytes come and go thousands of times. By default each is given back to the
    kernel, which must clear and map its pages at the next use. For commands, not libraries: it holds for the
    whole process.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
