"""Would more ranks share the cores that the measured ones had? Then nothing follows for them from these."""

from analysis.results.source import Source
from analysis.results.study import Study
from profiling.wording import how_many


def shared_cores(study: Study) -> str:
    """Why more ranks would have fewer cores each than the measured ones; empty: they would not.

    So it is where ranks without GPUs run on one host, and twice as many would have more threads than it has
    cores, or get their share of these by being so many (``threads: 0``). Where points are of several hosts,
    more ranks are taken to come with more hosts.
    """
    runs = [source for source in study.of_kind("run") if source.manifest and source.manifest.ranks]
    widest = max(runs, key=lambda source: source.ranks, default=None)
    if widest is None or widest.manifest is None:
        return ""
    hosts = {rank.hostname for source in runs if source.manifest for rank in source.manifest.ranks}
    if len(hosts) > 1 or any(rank.device != "cpu" for rank in widest.manifest.ranks):
        return ""
    known = widest.manifest.host.get("cores")
    cores = known if isinstance(known, int) else 0
    if not _would_share(widest, cores):
        return ""
    of = how_many(cores, "core") if cores else "cores"
    return f"all ranks share the {of} of {hosts.pop()}, so with more ranks each has a smaller share"


def _would_share(source: Source, cores: int) -> bool:
    threads = source.fields["threads"]
    return not threads or 2 * source.ranks * threads > cores
