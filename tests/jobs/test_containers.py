"""The two container files hold the same."""

import re

from jobs import ROOT


def text_of(name: str) -> str:
    """A file in ``containers``, lines joined."""
    return re.sub(r"\\\n\s*", " ", (ROOT / "containers" / name).read_text())


def test_both_hold_the_same():
    texts = text_of("Dockerfile"), text_of("scaleprof.def")
    images = [re.findall(r"^from:? (\S+)$", text, re.MULTILINE | re.IGNORECASE) for text in texts]
    packages = [set(re.search(r"apt-get install ([^&\n]*)", text)[1].split()) for text in texts]
    assert images[0] == images[1] and len(images[0]) == 1
    assert packages[0] == packages[1] and len(packages[0]) > 3
    for step in ("pip install --no-cache-dir '.[full,mpi]'", "train/backends/build_horovod.sh /usr/local"):
        assert all(step in text for text in texts)
