"""When does the torch profiler record? ``1,2,5,2``: wait, warm up, record (batches), and how often."""

from dataclasses import dataclass

# Profilers that take a schedule; the unprofiled twin of such a run bears it too.
SCHEDULED = ("torch", "none")


@dataclass(frozen=True)
class Schedule:
    """A schedule as ``torch.profiler.schedule`` has it, in batches; ``repeat`` times."""

    wait: int
    warm_up: int
    active: int
    repeat: int

    @property
    def batches(self) -> int:
        """How many batches it takes."""
        return (self.wait + self.warm_up + self.active) * self.repeat

    @property
    def recordings(self) -> list[range]:
        """The batches that are recorded, a range each time."""
        cycle = self.wait + self.warm_up + self.active
        return [range(end - self.active, end) for end in range(cycle, self.batches + 1, cycle)]


def parse_schedule(text: str) -> Schedule:
    """``"1,2,5,2"`` as a schedule."""
    wait, warm_up, active, repeat = map(int, text.split(","))
    return Schedule(wait, warm_up, active, repeat)


def why_no_schedule(text: str, profile: str, batches: int, attribute_from: int | None) -> str:
    """Why a run cannot have a schedule, in one line; "" if it can."""
    schedule = parse_schedule(text)
    if profile not in SCHEDULED:
        return f"profile_schedule works only with profile torch, not with profile {profile}"
    if attribute_from is not None:
        return "profile_schedule and attribute_from both set what is recorded; give only one"
    if not schedule.active or not schedule.repeat:
        return f"profile_schedule {text} records nothing"
    if schedule.batches > batches:
        return f"profile_schedule {text} needs {schedule.batches} steps, but the run has {batches} (batches)"
    return ""
