"""Fisher information of continuous univariate families, in closed form.

One rule a family, in the names of the distribution's own attributes.
It must not know wrappers such as Expanded or Masked.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from mgvi.distributions._fisher_scores import score_map, with_leaves
from mgvi.distributions._fisher_special import (
    bessel_ratio,
    student_t_df_information,
    trigamma_minus_inverse,
    von_mises_concentration_information,
)
from mgvi.distributions.fisher import (
    Component,
    FisherSqrt,
    fisher_from_information,
    fisher_rows,
    fisher_sqrt,
    register_fisher,
)

_EULER = 0.5772156649015329


def _location_scale(d, loc, scale):
    """Independent location and scale, with their information at scale 1; both fall as 1/scale^2."""
    return fisher_rows(
        {"loc": d.loc, "scale": d.scale},
        [{"loc": math.sqrt(loc) / d.scale}, {"scale": math.sqrt(scale) / d.scale}],
    )


register_fisher(dist.Normal)(partial(_location_scale, loc=1.0, scale=2.0))
register_fisher(dist.LogNormal)(partial(_location_scale, loc=1.0, scale=2.0))
register_fisher(dist.Cauchy)(partial(_location_scale, loc=0.5, scale=0.5))
register_fisher(dist.Laplace)(partial(_location_scale, loc=1.0, scale=1.0))
register_fisher(dist.Logistic)(partial(_location_scale, loc=1 / 3, scale=(3 + math.pi**2) / 9))


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


@register_fisher(dist.Weibull)
def _weibull(d):
    k = d.concentration
    return fisher_rows(
        {"scale": d.scale, "concentration": k},
        [{"scale": k / d.scale, "concentration": -(1 - _EULER) / k}, {"concentration": math.pi / math.sqrt(6) / k}],
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
    """A fixed transform of the data preserves the information of the base; one with varying parameters needs scores."""
    scores = score_map(d)
    names = list(scores.parameters)
    root = fisher_sqrt(d.base_dist)

    def through(component):
        def apply(tangents):
            at = {name: scores.parameters[name] for name in tangents}
            parameters = lambda given: fisher_sqrt(with_leaves(d, given).base_dist).parameters
            pushed = jax.jvp(parameters, (at,), (dict(tangents),))[1]
            return component.apply({name: pushed[name] for name in component.names})

        return Component(tuple(names), apply, component.event_dim)

    moving = frozenset(names) - _base_leaf_names(d)
    components = tuple(through(c) for c in root.components)
    return FisherSqrt(scores.parameters, components, approximation=root.approximation, unless=(moving, scores))


def _base_leaf_names(d):
    """Names of the leaves of a transformed distribution that belong to its base."""
    marks = jax.tree.map(lambda _: object(), d)
    inside = {id(mark) for mark in jax.tree.leaves(marks.base_dist)}
    return frozenset(f"leaf{i}" for i, mark in enumerate(jax.tree.leaves(marks)) if id(mark) in inside)
