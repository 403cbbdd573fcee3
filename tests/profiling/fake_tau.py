"""A stand-in for pytau, TAU's module in a process that it watches, which fails where each release of it does.

What it does was seen of TAU 2.33.2, 2.35 and 2.35.2: ``stop`` ends whatever runs, a timer that is called
often and takes no time is switched off, and where every function of Python is timed, a timer must end in the
function that started it.
"""

import sys
from collections import Counter


class FakeTau:
    """A process under TAU.

    Args:
        throttle_calls: after so many calls a timer of less than 10 us a call is switched off.

    Attributes:
        now_us: its clock, which stands still but for :meth:`work`.
        calls: of each timer; ``values`` of each event.
    """

    def __init__(self, throttle_calls=100_000):
        self.now_us = 0.0
        self.calls, self.took_us = Counter(), Counter()
        self.values = {}
        self.stack = [".TAU application", "taupreload_main"]
        self._names, self._events, self._started = [], [], {}
        self._throttle_calls = throttle_calls

    def work(self, us):
        self.now_us += us

    def enableGroupName(self, name):
        assert name == "PYTORCH"

    def profileTimer(self, name, kind="", group="TAU_PYTHON"):
        self._names.append(name)
        return len(self._names) - 1

    def start(self, number):
        name = self._names[number]
        if not name.endswith("[THROTTLED]"):
            self.stack.append(name)
            self._started[name] = self.now_us

    def stop(self, number):
        if not self.stack:
            raise SystemError("<built-in function stop> returned NULL without setting an exception")
        name = self.stack.pop()
        if name not in self._started:
            return
        self.calls[name] += 1
        self.took_us[name] += self.now_us - self._started[name]
        if self.calls[name] > self._throttle_calls and self.took_us[name] / self.calls[name] < 10:
            self._names[self._names.index(name)] += " [THROTTLED]"

    def registerEvent(self, name):
        self._events.append(name)
        self.values[name] = []
        return len(self._events) - 2  # the first is -1

    def event(self, number, value):
        self.values[self._events[number + 1]].append(value)


class PythonTimed:
    """What tau_python does: while it is on, each of Python's functions is a timer of ``tau``."""

    def __init__(self, tau):
        self._tau = tau

    def __enter__(self):
        sys.setprofile(self._hear)

    def __exit__(self, *error):
        sys.setprofile(None)

    def _hear(self, frame, kind, _):
        if frame.f_code.co_filename == __file__:  # in truth functions of C
            return
        place = f"{{{frame.f_code.co_filename}}}{{{frame.f_lineno}}}"
        if kind == "call":
            self._tau.stack.append(frame)
        elif kind == "return" and frame in self._tau.stack and self._tau.stack.pop() is not frame:
            sys.setprofile(None)
            raise SystemExit(f"TAU: Runtime overlap: a timer is on the stack, but stop called on {place}")
