"""How is a configuration called in a sentence, by the fields that tell it from others?"""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display.metrics import RANKS_PER_NODE, telling
from jobs.run_fields import FACTOR, ROLES
from jobs.run_values import as_text
from profiling.wording import how_many, in_a_row


def in_words(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """``dali-cpu, fp16 gradients``; empty where none of the fields is known."""
    labels = {name: role.label for name, role in ROLES.items()}
    labels |= {"repetition": "repetition {}", "global_batch": "global batch {:.0f}"}
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


def names_apart(rows: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> list[str]:
    """``dali-cpu on 4 ranks``: what tells each row from the others; all of its size, where ranks do not.

    Args:
        fields: those that may differ.
    """
    differing = telling(rows, fields)
    own = [name for name in differing if name not in ("nodes", "gpus_per_node", "world_size")]
    sizes = telling(rows, ["world_size"])
    pairs = [(in_words(row, own), in_words(row, sizes)) for row in rows]
    called = [" on ".join(part for part in pair if part) for pair in pairs]
    exact = [in_words(row, differing) for row in rows]
    return called if len(set(called)) == len(set(exact)) else exact


def of_node(text: str, on_cpus: bool) -> str:
    """A text in which a factor is named: without GPUs a node has ranks, as in the tables' headings."""
    return text.replace("gpus_per_node", RANKS_PER_NODE.replace("\n", "")) if on_cpus else text


_MOST_NAMED = 4  # of several configurations


def together(names: Sequence[str]) -> str:
    """``dali-cpu and synthetic``; of many the first, and how many more there are."""
    separator = "; " if any("," in name for name in names) else ", "
    more = len(names) - _MOST_NAMED
    if more > 1:  # one more is named rather than counted
        return in_a_row([*names[:_MOST_NAMED], f"{more} more configurations"], separator)
    return in_a_row(names, separator)
