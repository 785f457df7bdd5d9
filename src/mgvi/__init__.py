"""Metric Gaussian Variational Inference for NumPyro models.

A Bayesian model and data come in; a posterior with full correlations goes out.
Start with `from_numpyro`.
"""

from mgvi import distributions
from mgvi._version import __version__
from mgvi.errors import MgviWarning, ModelError
from mgvi.frontends import from_function, from_numpyro, sample_prior
from mgvi.problem import FisherMetric, Problem

__all__ = [
    "FisherMetric",
    "MgviWarning",
    "ModelError",
    "Problem",
    "__version__",
    "distributions",
    "from_function",
    "from_numpyro",
    "sample_prior",
]
