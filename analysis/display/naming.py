"""How is a configuration called in a sentence, by the fields that tell it from others?"""

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.run_fields import FACTOR, ROLES
from jobs.run_values import as_text
from profiling.wording import how_many


def in_words(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """``dali-cpu, fp16 gradients``; empty where none of the fields is known."""
    labels = {name: role.label for name, role in ROLES.items()}
    labels |= {"repetition": "repetition {}"}
    parts = []
    for name in fields:
        value = row.get(name)
        if isinstance(value, bool) and name in labels:
            parts.append(f"{'' if value else 'no '}{name}")
        elif name.startswith(FACTOR) and value is not None:
            parts.append(f"{name.removeprefix(FACTOR)} {as_text(value)}")
        elif name == "world_size" and value is not None:
            parts.append(how_many(int(value), "rank"))
        elif value is not None:
            parts.append(labels.get(name, "{}").format(value))
    return ", ".join(parts)
