"""python -m benchmarks.tau_xml DIR: how fast, and in how much memory, does TAU's merged XML become tables?

The peer reads as the reference did: the control characters taken out, one root put around the documents, all
of it parsed by ``xml.dom.minidom``, and then each line of numbers split, into one pandas DataFrame of timers.
Ours gives timers and events. The tree alone, which holds no number yet, stands beside. The file is of
100 MB: the four ranks of a merged profile of ResNet50, again and again under new numbers. Each repetition is
a process of its own, by turns; time is without interpreter and imports, memory is the peak of the whole
process (Linux). What the peer has read must be what we have.

    python -m benchmarks.tau_xml DIR     DIR holds run_0_config_2_2_IB_tau_8_resnet50_..._ret_0.xml.gz
"""

import argparse
import gzip
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import facts, machine, measure, write
from profiling.errors import UserError, run_command

PROFILE = "run_0_config_2_2_*.xml.gz"
BYTES = 100_000_000
BAR_TIMES, BAR_MB = 8.0, 200.0
_END = b"</profile_xml>\n"

OURS = (
    """
from pathlib import Path
import pyarrow.compute as pc
import profiling.readers.tau
from profiling.tools import tool
def read(path):
    count = total = 0
    for name, piece in tool("tau").stream(Path(path), []):
        if name == "intervals":
            count += len(piece)
            total += pc.sum(piece["calls"]).as_py()
    return [count, total]
""",
    "read(sys.argv[1])",
)
PEER = (
    """
import pandas as pd
from xml.dom import minidom
def tree(path):
    text = open(path, encoding="utf-8").read().replace("\\x00", "")
    return minidom.parseString(f"<root>{text}</root>".encode())
def read(path):
    root = tree(path)
    names = {}
    for definitions in root.getElementsByTagName("definitions"):
        for event in definitions.getElementsByTagName("event"):
            texts = event.getElementsByTagName("name")[0].childNodes
            names[event.getAttribute("id")] = "".join(text.data for text in texts).strip()
    rows = []
    for profile in root.getElementsByTagName("profile"):
        node, context, thread = profile.getAttribute("thread").split(".")[:3]
        data = profile.getElementsByTagName("interval_data")[0].firstChild.data
        for line in data.strip().split("\\n"):
            number, calls, subcalls, exclusive, inclusive = line.split()
            rows.append((int(node), int(thread), names[number], int(calls), int(subcalls),
                         float(exclusive), float(inclusive)))
    columns = ["rank", "thread", "function", "calls", "subcalls", "exclusive", "inclusive"]
    table = pd.DataFrame(rows, columns=columns)
    return [len(table), float(table["calls"].sum())]
""",
    "read(sys.argv[1])",
)
TREE = (PEER[0], "tree(sys.argv[1]) and None")


def enlarge(source: Path, target: Path, size: int) -> int:
    """Write a merged profile of at least ``size`` bytes, the ranks of ``source`` repeated; how many ranks."""
    text = gzip.decompress(source.read_bytes())
    first, *others = text.split(b"\0")
    definitions, _, rank = first.partition(_END)
    derived = others.pop()
    ranks = [rank, *others]
    count = 0
    with target.open("wb") as file:
        file.write(definitions + _END)
        while file.tell() < size:
            file.write(_as_rank(ranks[count % len(ranks)], count) + b"\0")
            count += 1
        file.write(derived)
    return count


def _as_rank(text: bytes, rank: int) -> bytes:
    text = re.sub(rb'((?:thread|id)=")\d+(?=\.\d+\.\d+\.\d+")', rb"\g<1>%d" % rank, text)
    return re.sub(rb'\bnode="\d+"', b'node="%d"' % rank, text)


def compare(path: Path, repeats: int) -> dict[str, Any]:
    """Medians of ours, the peer and its tree alone, taken by turns.

    Raises:
        UserError: they have not read the same.
    """
    sides = {"ours": OURS, "peer": PEER, "tree alone": TREE}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, code in sides.items():
            runs[name].append(measure(*code, path))
    if runs["ours"][0]["result"] != runs["peer"][0]["result"]:
        raise UserError(f"ours read {runs['ours'][0]['result']}, the peer {runs['peer'][0]['result']}")
    medians = {
        name: {
            key: round(statistics.median(run[key] for run in some), 2)
            for key in ("seconds", "cpu_s", "peak_mb")
        }
        for name, some in runs.items()
    }
    return {
        "rows": runs["ours"][0]["result"][0],
        "sides": medians,
        "times_faster": round(medians["peer"]["seconds"] / medians["ours"]["seconds"], 1),
        "times_less_cpu": round(medians["peer"]["cpu_s"] / medians["ours"]["cpu_s"], 1),
        "tree_times": round(medians["tree alone"]["seconds"] / medians["ours"]["seconds"], 1),
        "each_s": {name: [round(run["seconds"], 2) for run in some] for name, some in runs.items()},
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    lines = [
        "# TAU's merged XML to tables, against a DOM parser", "",
        f"{facts(report['machine'])}; a file of {report['bytes'] / 1e6:.0f} MB, {report['ranks']} ranks, "
        f"{report['rows']:,} rows; medians of {report['repeats']} processes each, by turns. Bars: at least "
        f"{BAR_TIMES:g} times as fast as the DOM parser by CPU time, in at most {BAR_MB:g} MB.", "",
        f"    {report['command']}", "",
        "| | seconds | CPU, s | peak, MB |", "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    titles = {"ours": "ours", "peer": "`xml.dom.minidom` to a DataFrame", "tree alone": "its tree alone"}
    lines += [
        f"| {titles[name]} | {side['seconds']:.2f} | {side['cpu_s']:.2f} | {side['peak_mb']:.0f} |"
        for name, side in report["sides"].items()
    ]
    lines += [
        "",
        f"{report['times_faster']} times faster ({report['times_less_cpu']} by CPU time). The tree alone, "
        f"which holds no number yet, takes {report['tree_times']} times as long as ours takes for all.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tau_xml", description=__doc__)
    parser.add_argument("data", type=Path, metavar="DIR", help="the folder of the reference's TAU profiles")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    found = sorted(given.data.glob(PROFILE)) if given.data.is_dir() else []
    if not found:
        raise UserError(f"{given.data} holds no {PROFILE}: give the folder of the reference's TAU profiles")
    where = machine(("numpy", "pandas", "pyarrow"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "merged.xml"
        ranks = enlarge(found[0], path, BYTES)
        measured = {"bytes": path.stat().st_size, "ranks": ranks, **compare(path, given.repeats)}
    command = f"python -m benchmarks.tau_xml DIR --repeats {given.repeats}"
    report = {"command": command, "repeats": given.repeats, "machine": where, **measured}
    write("tau_xml", report, as_markdown(report))
    missed = report["times_less_cpu"] < BAR_TIMES or report["sides"]["ours"]["peak_mb"] > BAR_MB
    return 1 if missed else 0


if __name__ == "__main__":
    run_command(main)
