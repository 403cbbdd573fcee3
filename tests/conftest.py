"""What tests of every package share: where reference data is, and when a skip is a failure."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

pytest.register_assert_rewrite("tests.analysis.report_page", "tests.analysis.consistent")
ROOT = Path(__file__).resolve().parents[1]
# What may be absent even in CI: no machine of ours has the first two, and a clone elsewhere not the third.
MAY_BE_ABSENT = ("GPU", "TAU", "reference data")
# Where files are in memory on Linux, how the tests' folder there is called, and how many bytes must be free.
MEMORY, IN_MEMORY, MUCH_MEMORY = Path("/dev/shm"), "scaleprof-tests-", 6e9
# Its tests share a cluster, and wait most of their time: other files fill it.
CLUSTER = "tests/cluster/"
# Files whose tests share what takes long to make, the cluster or a process that has imported PyTorch.
SHARED = {
    CLUSTER: "cluster",
    "tests/train/": "train",
    "tests/profiling/test_watch": "watch",
    "tests/profiling/test_flight": "watch",
}
# Files whose tests share nothing and each take long: any process may do any of them.
APART = ("tests/gpu/fake/test_campaign_on_stand_ins.py",)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tables are as wide here as wherever no terminal says otherwise: pytest's workers say 80 columns.

    What Hypothesis keeps of its examples lies beside what pytest keeps.
    """
    os.environ.pop("COLUMNS", None)
    os.environ.setdefault("SCALEPROF_WITHOUT_SUMMARY", "1")  # of many a run that tests watch: 3 s each
    # What tests write need not outlive the machine, where it is written to a disk at all.
    os.fsync = lambda _file: None
    # In the background of a script Ctrl-C is ignored, also by all that is started there; tests send it.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".pytest_cache" / "hypothesis"))
    from hypothesis import settings  # which reads that variable

    # How long an example takes says what else the machine does. 40 are as many as most tests had asked for.
    settings.register_profile("untimed", deadline=None, max_examples=40)
    settings.load_profile("untimed")
    # Threads of PyTorch and BLAS that wait for one another spin, in each of several processes on few cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # What one process has compiled, the hundreds that tests start need not compile again.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not config.option.basetemp and _room_in_memory():
        config.option.basetemp = tempfile.mkdtemp(prefix=IN_MEMORY, dir=MEMORY)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of tests that passed no file stays in memory."""
    folder = str(session.config.option.basetemp)
    if not hasattr(session.config, "workerinput") and folder.startswith(f"{MEMORY}/{IN_MEMORY}"):
        if session.testsfailed:
            print(f"\nfiles of the tests: {folder} (in memory: remove it when you have seen them)")
        else:
            shutil.rmtree(folder)


def _room_in_memory() -> bool:
    """Whether tests may write to memory: together they write 0.5 GB, which takes the kernel half as long."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # some of what they write is executed
        return False
    free = psutil.virtual_memory().available, shutil.disk_usage(MEMORY).free
    return min(free) > MUCH_MEMORY


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What modules and 4,000 tests are made of stays: to look through it for garbage took a third of this."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: one waits for the cluster, and many a test for its processes."""
    return min((os.cpu_count() or 1) + 1, 5)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Hands each file to one worker, in the order below; files that share something to the same."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid
            shared = [name for files, name in SHARED.items() if nodeid.startswith(files)]
            return shared[0] if shared else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no worker is left with it when the others are done."""

    def place(item: pytest.Item) -> int:
        return 0 if item.nodeid.startswith(CLUSTER) else 1 if item.get_closest_marker("long") else 2

    items.sort(key=place)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root, from which commands run."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real output of real profilers, kept beside the project where it is developed."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("the reference data (../shared/data) is not on this machine")
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI every tool is there: a skip for another reason than a GPU or TAU is a failure."""
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(word in reason for word in MAY_BE_ABSENT):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: skipped in CI, where nothing may be absent: {reason}"
    return report
