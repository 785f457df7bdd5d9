"""Front ends: each turns one way of writing a model into a Problem.

A model and data come in, a Problem goes out. No front end knows an algorithm.
"""

from mgvi.frontends.function import from_function
from mgvi.frontends.numpyro_model import from_numpyro, sample_prior

__all__ = ["from_function", "from_numpyro", "sample_prior"]
