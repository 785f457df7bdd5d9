"""The open table of what multiplies the latent of a distribution.

A distribution comes in; the logarithm of the scale by which `standardize` multiplies its latent goes out, for families
whose map begins with an affine one. It must not know what scales are used for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions.distribution import Distribution


class Scale(NamedTuple):
    """Logarithm of a scale, and how an array with an entry for each group of latents becomes one of their shape.

    Without `expand`, the logarithm broadcasts against the latent.
    """

    log: jax.Array
    expand: Callable[[Any], Any] | None = None


_SCALES: dict[type, Callable[[Any], Scale]] = {}


def register_scale(cls: type[Distribution]):
    """Add a family to the table: a decorator for a function from a distribution to its `Scale`.

    Parameters
    ----------
    cls : type
        The NumPyro distribution class; subclasses inherit the rule. `standardize` must map its latent to a function of
        ``offset + scale * xi`` (entry by entry, or of any fixed linear map of it).

    Returns
    -------
    decorator

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> from mgvi.distributions import scale_of
    >>> print(scale_of(dist.LogNormal(0.0, 1.0).expand([3])).log)
    0.0
    """

    def decorator(rule):
        _SCALES[cls] = rule
        return rule

    return decorator


def scale_of(distribution: Distribution) -> Scale | None:
    """What multiplies the latent of a distribution, or None if nothing is known to.

    Parameters
    ----------
    distribution : numpyro.distributions.Distribution
        The prior. Its parameters may be traced.

    Returns
    -------
    Scale or None

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> from mgvi.distributions import scale_of
    >>> scale_of(dist.Gamma(2.0, 1.0)) is None
    True
    """
    d: Any = distribution
    while isinstance(d, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        d = d.base_dist
    if type(d) is dist.TransformedDistribution:
        return scale_of(d.base_dist)
    rule = next((_SCALES[cls] for cls in type(d).__mro__ if cls in _SCALES), None)
    return None if rule is None else rule(d)


@register_scale(dist.Normal)
@register_scale(dist.LogNormal)
def _normal(d):
    return Scale(jnp.log(d.scale))


@register_scale(dist.GaussianRandomWalk)
def _gaussian_random_walk(d):
    return Scale(jnp.log(jnp.asarray(d.scale)[..., None]))
