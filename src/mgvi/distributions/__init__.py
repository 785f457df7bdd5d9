"""Open tables over NumPyro's distributions: how to standardise a prior, its scale, the Fisher information of data.

A NumPyro distribution comes in; a map from standard normals, or a square root of its Fisher information, goes out.
Nothing here knows a model, a grid or an algorithm.
"""

from mgvi.distributions import (  # noqa: F401  (importing a file registers its rules)
    _fisher_discrete,
    _fisher_multivariate,
    _fisher_scores,
    _fisher_univariate,
    _multivariate,
    _univariate,
)
from mgvi.distributions.fisher import FisherSqrt, fisher_from_information, fisher_rows, fisher_sqrt, register_fisher
from mgvi.distributions.scales import Scale, register_scale, scale_of
from mgvi.distributions.standardization import latent_shape, register_standardization, standardize

__all__ = [
    "FisherSqrt",
    "Scale",
    "fisher_from_information",
    "fisher_rows",
    "fisher_sqrt",
    "latent_shape",
    "register_fisher",
    "register_scale",
    "register_standardization",
    "scale_of",
    "standardize",
]
