"""Fisher information of continuous univariate families, in closed form.

One rule a family, in the names of the distribution's own attributes.
It must not know wrappers such as Expanded or Masked.
"""

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.core import Tracer

from mgvi.distributions._fisher_scores import score_map
from mgvi.distributions._fisher_special import (
    bessel_ratio,
    student_t_df_information,
    trigamma,
    trigamma_minus_inverse,
    von_mises_concentration_information,
)
from mgvi.distributions.fisher import (
    FisherSqrt,
    fisher_from_information,
    fisher_rows,
    fisher_sqrt,
    register_fisher,
)

_EULER = 0.5772156649015329


def _location_scale(d, loc_information, scale_information):
    """Independent location and scale, both with information proportional to 1/scale^2."""
    return fisher_rows(
        {"loc": d.loc, "scale": d.scale},
        [{"loc": math.sqrt(loc_information) / d.scale}, {"scale": math.sqrt(scale_information) / d.scale}],
    )


@register_fisher(dist.Normal)
@register_fisher(dist.LogNormal)
def _normal(d):
    return _location_scale(d, 1.0, 2.0)


@register_fisher(dist.Cauchy)
def _cauchy(d):
    return _location_scale(d, 0.5, 0.5)


@register_fisher(dist.Laplace)
def _laplace(d):
    return _location_scale(d, 1.0, 1.0)


@register_fisher(dist.Logistic)
def _logistic(d):
    return _location_scale(d, 1 / 3, (3 + math.pi**2) / 9)


@register_fisher(dist.Gumbel)
def _gumbel(d):
    cross = 1 - _EULER
    return fisher_rows(
        {"loc": d.loc, "scale": d.scale},
        [{"loc": 1 / d.scale, "scale": -cross / d.scale}, {"scale": math.pi / math.sqrt(6) / d.scale}],
    )


@register_fisher(dist.StudentT)
def _student_t(d):
    df, scale = jnp.asarray(d.df), d.scale
    return FisherSqrt(
        {"df": d.df, "loc": d.loc, "scale": d.scale},
        fisher_rows({}, [{"loc": jnp.sqrt((df + 1) / (df + 3)) / scale}]).components
        + fisher_from_information(
            {"scale": scale, "df": df},
            {
                ("scale", "scale"): 2 * df / (df + 3) / scale**2,
                ("scale", "df"): -2 / ((df + 1) * (df + 3)) / scale,
                ("df", "df"): student_t_df_information(df),
            },
        ).components,
    )


@register_fisher(dist.HalfNormal)
def _half_normal(d):
    return fisher_rows({"scale": d.scale}, [{"scale": math.sqrt(2.0) / d.scale}])


@register_fisher(dist.Exponential)
def _exponential(d):
    return fisher_rows({"rate": d.rate}, [{"rate": 1 / d.rate}])


@register_fisher(dist.Gamma)
@register_fisher(dist.InverseGamma)
def _gamma(d):
    a, rate = jnp.asarray(d.concentration), d.rate
    return fisher_rows(
        {"concentration": d.concentration, "rate": rate},
        [
            {"rate": jnp.sqrt(a) / rate, "concentration": -1 / jnp.sqrt(a)},
            {"concentration": jnp.sqrt(trigamma_minus_inverse(a))},
        ],
    )


@register_fisher(dist.Beta)
def _beta(d):
    a, b = d.concentration1, d.concentration0
    both = trigamma(a + b)
    return fisher_from_information(
        {"concentration1": a, "concentration0": b},
        {
            ("concentration1", "concentration1"): trigamma(a) - both,
            ("concentration1", "concentration0"): -both,
            ("concentration0", "concentration0"): trigamma(b) - both,
        },
    )


@register_fisher(dist.Weibull)
def _weibull(d):
    k = d.concentration
    return fisher_rows(
        {"scale": d.scale, "concentration": k},
        [
            {"scale": k / d.scale, "concentration": -(1 - _EULER) / k},
            {"concentration": math.pi / math.sqrt(6) / k},
        ],
    )


@register_fisher(dist.Pareto)
def _pareto(d):
    # The support moves with `scale`: its entry is the outer product of the score, as for the rest.
    return fisher_rows({"scale": d.scale, "alpha": d.alpha}, [{"scale": d.alpha / d.scale}, {"alpha": 1 / d.alpha}])


@register_fisher(dist.VonMises)
def _von_mises(d):
    kappa = jnp.asarray(d.concentration)
    return fisher_rows(
        {"loc": d.loc, "concentration": d.concentration},
        [
            {"loc": jnp.sqrt(kappa * bessel_ratio(kappa))},
            {"concentration": jnp.sqrt(von_mises_concentration_information(kappa))},
        ],
    )


@register_fisher(dist.TransformedDistribution)
def _transformed(d):
    """A fixed transform of the data leaves the information as it is."""
    leaves = jax.tree.leaves(d.transforms)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return score_map(d)
    return fisher_sqrt(d.base_dist)
