"""With which point of fewer ranks is each compared? The fields of points alone say it.

Points are given by their fields; what is returned are places among them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jobs.run_fields import fields_of

Scaling = Literal["weak", "strong"]
Fields = Mapping[str, Any]
# In these a point may differ from its base: its size, and for how long it ran.
NOT_ALIKE = fields_of("size", "length")


def world_size(fields: Fields) -> int:
    """Ranks of one GPU each."""
    return int(fields["nodes"] * fields["gpus_per_node"])


def choose(every: Sequence[Fields]) -> Scaling:
    """The kind of scaling that compares more points; weak if they tie."""
    return "strong" if count(every, "strong") > count(every, "weak") else "weak"


def count(every: Sequence[Fields], scaling: Scaling) -> int:
    """How many points have a baseline of fewer ranks."""
    bases = (every[base_of(number, every, scaling)] for number in range(len(every)))
    return sum(world_size(base) < world_size(own) for base, own in zip(bases, every, strict=True))


def base_of(number: int, every: Sequence[Fields], scaling: Scaling) -> int:
    """The place of the point of the smallest world size of the otherwise equal configuration.

    One rank sends no gradients, so its precision of gradients is no matter: where a configuration has no
    point of one rank with its own, the one with any other stands in.
    """
    own = every[number]
    alike = [place for place, other in enumerate(every) if _key(other, scaling) == _key(own, scaling)]
    base = min(
        alike,
        key=lambda place: (
            world_size(every[place]),
            every[place]["nodes"],
            every[place]["batches"] != own["batches"],
        ),
    )
    if world_size(every[base]) > 1:
        ones = [
            place
            for place, other in enumerate(every)
            if world_size(other) == 1 and _key(other, scaling, "grad") == _key(own, scaling, "grad")
        ]
        if ones:
            base = min(ones, key=lambda place: every[place]["grad"] != "fp32")
    return base


def _key(fields: Fields, scaling: Scaling, *without: str) -> tuple:
    if scaling == "strong":
        # The global batch; of a program whose samples are unknown, none is known to be that of another.
        fields = {**fields, "batch": (fields["batch"] or 1) * world_size(fields)}
    return tuple(str(value) for name, value in fields.items() if name not in (*NOT_ALIKE, *without))
