"""Fixtures shared by all tests."""

import jax
import pytest


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
