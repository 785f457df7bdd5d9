"""Fixtures shared by all tests, and a watch over the memory that they take."""

import jax
import pytest

from . import memory

KEEPER = pytest.StashKey[memory.Keeper]()
PEAKS = pytest.StashKey[dict]()


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """Run a test once per floating point precision, in one process; the value is the dtype's name."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def x64():
    """Run a test in double precision."""
    with jax.enable_x64(True):
        yield


def pytest_configure(config):
    config.stash[KEEPER] = memory.Keeper()
    config.stash[PEAKS] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    result = yield
    item.config.stash[KEEPER].check()
    return result


# The peak of each worker is sent to the process that reports. A run without workers, as of a single test, is only
# told its peak; with workers, too high a peak is a failure.


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    peak = getattr(node, "workeroutput", {}).get("peak memory")
    if peak is not None:
        node.config.stash[PEAKS][node.gateway.id] = peak


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["peak memory"] = memory.peak()
    elif exceeding(config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def exceeding(config):
    return [worker for worker, peak in config.stash[PEAKS].items() if peak > memory.LIMIT]


def pytest_terminal_summary(terminalreporter, config):
    peaks = config.stash[PEAKS] or {"this process": memory.peak()}
    for worker, peak in sorted(peaks.items()):
        terminalreporter.write_line(f"peak memory of {worker}: {peak / 1e9:.2f} GB")
    for worker in exceeding(config):
        terminalreporter.write_line(f"FAILED: {worker} took more than {memory.LIMIT / 1e9} GB.", red=True)
