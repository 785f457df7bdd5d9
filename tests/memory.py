"""Resident memory of the test process: how much there is, and how to give back what no later test needs."""

import ctypes
import gc
import resource
import sys

import jax

GROWTH = 0.4e9
LIMIT = 2.5e9


def peak():
    """The most memory that this process has had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def resident():
    """The memory that this process has now, in bytes; the peak, where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return resource.getpagesize() * int(file.read().split()[1])
    except OSError:
        return peak()


def release():
    """Forget what JAX has compiled and traced, and return free memory to the system.

    Most of what JAX forgets stays with the allocator of the C library until that is asked to return it.
    """
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)


class Keeper:
    """Releases memory each time that it has grown by GROWTH since the last release."""

    def __init__(self):
        self.floor = resident()

    def check(self):
        if resident() > self.floor + GROWTH:
            release()
            self.floor = resident()
