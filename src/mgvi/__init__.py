"""Metric Gaussian Variational Inference for NumPyro models.

A Bayesian model and data come in; a posterior with full correlations goes out.
Start with `from_numpyro`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mgvi import distributions
from mgvi._version import __version__
from mgvi.errors import FileError, FitError, MgviWarning, ModelError
from mgvi.fit import Stage, fit
from mgvi.frontends import from_function, from_numpyro, sample_prior
from mgvi.posterior import Posterior, load
from mgvi.problem import FisherMetric, Problem
from mgvi.status import Status

if TYPE_CHECKING:
    from mgvi import baselines, diagnostics, fields, samplers

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
    "diagnostics",
    "distributions",
    "fields",
    "fit",
    "from_function",
    "from_numpyro",
    "load",
    "sample_prior",
    "samplers",
]

_LAZY_ROOMS = ("baselines", "diagnostics", "fields", "samplers")  # imported when used: they take time


def __getattr__(name: str) -> Any:
    if name in _LAZY_ROOMS:
        return importlib.import_module(f"mgvi.{name}")
    raise AttributeError(f"module 'mgvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
