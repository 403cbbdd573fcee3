"""What do kernels add to a batch on more ranks? A section of the report: smallest against largest run."""

from collections.abc import Sequence

from analysis.measures.kernels import difference as kernel_difference
from analysis.measures.kernels import rows as kernels
from analysis.report.render import Section
from analysis.report.views import as_view, called
from analysis.results.study import Source, Study

HEADING = "What changes in the kernels on more ranks?"
TOP = 15
# In these the two runs may differ: two make the number of ranks.
_ANY = ("nodes", "gpus_per_node", "attribute_from", "seed")


def section(study: Study, factors: Sequence[str]) -> Section | None:
    """The difference of two profiled runs of a configuration; none where none ran on two numbers of ranks."""
    pair = smallest_and_largest(kernels.with_kernels(study))
    if pair is None:
        return None
    a, b = (kernel_difference.side_of(study, source, None) for source in pair)
    if not (a.kernels and b.kernels):
        return None
    made = kernel_difference.rows(a, b)
    totals = kernel_difference.summary(made, a, b)
    names = [called({**source.fields, "world_size": source.world_size}, _naming(factors)) for source in pair]
    said = ("Kernels on more ranks", f"a: {names[0]}; b: {names[1]}")
    parts = kernel_difference.parts(made[:TOP], totals, said, kernels.naming(kernels.DEFAULT_BY))
    views = [as_view(part, f"kernel-change-{number}", ()) for number, part in enumerate(parts)]
    return Section("kernel-change", HEADING, _text(totals, pair), (), views)


def smallest_and_largest(sources: Sequence[Source]) -> tuple[Source, Source] | None:
    """Two runs of one configuration whose numbers of ranks are furthest apart; None if there are none.

    One rank sends no gradients: if it is the smaller one, their precision may be another.
    """
    known = [source for source in sources if source.world_size]
    pairs = [
        (a, b) for a in known for b in known if (a.world_size or 0) < (b.world_size or 0) and _alike(a, b)
    ]
    # Of equally far ones those that differ in nothing else.
    return max(pairs, key=lambda pair: (_ratio(pair), not _other_gradients(pair)), default=None)


def _alike(a: Source, b: Source) -> bool:
    free = (*_ANY, "grad") if a.world_size == 1 else _ANY
    return all(str(value) == str(b.fields.get(name)) for name, value in a.fields.items() if name not in free)


def _ratio(pair: tuple[Source, Source]) -> float:
    return (pair[1].world_size or 0) / (pair[0].world_size or 1)


def _other_gradients(pair: tuple[Source, Source]) -> bool:
    return pair[0].fields["grad"] != pair[1].fields["grad"]


def _naming(factors: Sequence[str]) -> list[str]:
    return [*(name for name in factors if name not in ("nodes", "gpus_per_node")), "world_size"]


def _text(totals: Sequence[dict], pair: tuple[Source, Source]) -> str:
    of = {row["change"]: row["difference_ms"] for row in totals}
    kinds = ", ".join(f"{kind} {of[kind]:+.2f} ms" for kind in kernel_difference.KINDS[:-1] if kind in of)
    of_grad = ""
    if _other_gradients(pair):
        of_grad = (
            f" They differ in the precision of gradients, too: {pair[1].fields['grad']} on "
            f"{pair[1].world_size} ranks, {pair[0].fields['grad']} on one rank, which sends none."
        )
    text = (
        f"From {pair[0].world_size} to {pair[1].world_size} ranks the kernels of a batch of a rank change by "
        f"{of[kernel_difference.ALL]:+.2f} ms ({kinds or 'all the same'})"
    )
    if kernel_difference.BATCH not in of:
        return f"{text}. How long a batch lasts beside them is not known of these.{of_grad}"
    return (
        f"{text}; what of them runs at once by {of[kernel_difference.AT_ONCE]:+.2f} ms and the time without "
        f"a kernel by {of[kernel_difference.NO_KERNEL]:+.2f} ms: the batch, while it is recorded, by "
        f"{of[kernel_difference.BATCH]:+.2f} ms.{of_grad}"
    )
