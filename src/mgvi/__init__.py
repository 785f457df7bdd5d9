"""Metric Gaussian Variational Inference for NumPyro models.

A Bayesian model and data come in; a posterior with full correlations goes out.
Start with `from_numpyro`.
"""

from mgvi import baselines, datasets, diagnostics, distributions, fields
from mgvi._version import __version__
from mgvi.errors import FileError, FitError, MgviWarning, ModelError
from mgvi.fit import Stage, fit
from mgvi.frontends import from_function, from_numpyro, sample_prior
from mgvi.posterior import Posterior, load
from mgvi.problem import FisherMetric, Problem
from mgvi.status import Status

__all__ = [
    "FileError",
    "FisherMetric",
    "FitError",
    "MgviWarning",
    "ModelError",
    "Posterior",
    "Problem",
    "Stage",
    "Status",
    "__version__",
    "baselines",
    "datasets",
    "diagnostics",
    "distributions",
    "fields",
    "fit",
    "from_function",
    "from_numpyro",
    "load",
    "sample_prior",
]
