"""The open table of maps from a standard-normal latent to a draw of a NumPyro distribution.

A distribution comes in; the shape of its latent and the map F^-1 o Phi (or an affine, Cholesky or similar map where
one exists) go out. It must not know where latents come from or what is done with the draw.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import ndtr
from numpyro.distributions.distribution import Distribution

from mgvi.distributions._normal_tails import exp_limit
from mgvi.errors import ModelError

_Rule = Callable[[Any, jax.Array], jax.Array]
_RULES: dict[type, tuple[_Rule, Callable[[Any], tuple[int, ...]]]] = {}


def register_standardization(cls: type[Distribution], latent_event_shape: Callable | None = None):
    """Add a distribution to the table.

    Parameters
    ----------
    cls : type
        The NumPyro distribution class; subclasses inherit the rule.
    latent_event_shape : callable, optional
        From the distribution to the shape of the latent of *one* draw, without batch axes. The default is the
        distribution's event shape.

    Returns
    -------
    decorator
        For a function ``rule(distribution, xi)`` that maps a latent of shape ``(..., *latent_event_shape)`` to a
        draw. The leading axes of ``xi`` may be more than the distribution's batch shape: broadcast.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro.distributions as dist
    >>> from mgvi.distributions import register_standardization, standardize
    >>> class Shifted(dist.Distribution):
    ...     def __init__(self, by):
    ...         self.by = by
    ...         super().__init__(batch_shape=jnp.shape(by))
    >>> @register_standardization(Shifted)
    ... def shifted(d, xi):
    ...     return d.by + xi
    >>> print(standardize(Shifted(3.0), jnp.array(0.5)))
    3.5
    """

    def decorator(rule: _Rule) -> _Rule:
        _RULES[cls] = (rule, latent_event_shape or (lambda d: tuple(d.event_shape)))
        return rule

    return decorator


def standardize(distribution: Distribution, xi: Any) -> jax.Array:
    """Map a standard-normal latent to a draw of a distribution.

    Parameters
    ----------
    distribution : numpyro.distributions.Distribution
        The prior. Its parameters may be traced; the map is differentiable in them.
    xi : array
        The latent, of shape ``latent_shape(distribution)``.

    Returns
    -------
    array
        A draw of shape ``distribution.shape()``; for univariate families the increasing map F^-1(Phi(xi)).

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro.distributions as dist
    >>> from mgvi.distributions import standardize
    >>> print(standardize(dist.LogNormal(0.0, 1.0), jnp.array(0.0)))
    1.0
    """
    expected = latent_shape(distribution)
    if jnp.shape(xi) != expected:
        raise ValueError(
            f"the latent of {type(distribution).__name__} must have shape {expected}, found {jnp.shape(xi)}"
        )
    dtype = jnp.result_type(xi, float)
    return jnp.broadcast_to(_apply(distribution, jnp.asarray(xi, dtype)), distribution.shape())


def latent_shape(distribution: Distribution) -> tuple[int, ...]:
    """Shape of the standard-normal latent that `standardize` turns into one draw.

    Parameters
    ----------
    distribution : numpyro.distributions.Distribution
        The prior.

    Returns
    -------
    tuple of int
        The distribution's shape for univariate and most multivariate families; longer where more independent
        normals are needed, shorter where the draw is constrained.

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> from mgvi.distributions import latent_shape
    >>> latent_shape(dist.LKJCholesky(4, 1.0))
    (6,)
    """
    if isinstance(distribution, dist.ExpandedDistribution):
        base = latent_shape(distribution.base_dist)
        return tuple(distribution.batch_shape) + base[len(distribution.base_dist.batch_shape) :]
    if isinstance(distribution, dist.Independent | dist.MaskedDistribution):
        return latent_shape(distribution.base_dist)
    return tuple(distribution.batch_shape) + tuple(_lookup(distribution)[1](distribution))


def _apply(d, xi):
    """As `standardize`, for latents with any leading axes that broadcast against the batch shape."""
    if isinstance(d, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        return _apply(d.base_dist, xi)
    return _lookup(d)[0](d, xi)


def _lookup(d):
    for cls in type(d).__mro__:
        if cls in _RULES:
            return _RULES[cls]
    if _has_icdf(d):
        return _by_icdf, lambda d: ()
    raise ModelError(
        f"{type(d).__name__} cannot be standardised: {_why_not(d)}. Use another prior, or add a map from a "
        f"standard normal to a draw with mgvi.distributions.register_standardization({type(d).__name__})."
    )


def _why_not(d):
    if d.support is not None and d.support.is_discrete:
        return "it is discrete, and MGVI needs continuous parameters"
    return "no rule is registered for it, and it is not a univariate distribution with an `icdf`"


def _has_icdf(d) -> bool:
    own = type(d).icdf is not Distribution.icdf
    return own and not d.event_shape and not (d.support is not None and d.support.is_discrete)


def _by_icdf(d, xi):
    limits = jnp.finfo(xi.dtype)
    u = jnp.clip(ndtr(xi), limits.tiny, 1 - limits.epsneg)
    try:
        return d.icdf(u)
    except (NotImplementedError, ImportError) as error:
        raise ModelError(
            f"{type(d).__name__}.icdf does not work here ({error}); add a map from a standard normal to a draw "
            f"with mgvi.distributions.register_standardization({type(d).__name__})."
        ) from error


register_standardization(dist.Delta, lambda d: (0,))(lambda d, xi: d.v)


@register_standardization(dist.TransformedDistribution, lambda d: latent_shape(d.base_dist)[len(d.batch_shape) :])
def _transformed(d, xi):
    value = _apply(d.base_dist, xi if d.event_shape else _direction(d.transforms) * xi)
    for transform in d.transforms:
        if isinstance(transform, dist.transforms.ExpTransform):  # held below overflow, so that slopes stay finite
            value = jnp.minimum(value, exp_limit(value.dtype))
        value = jnp.asarray(transform(value))
    return value


def _direction(transforms) -> Any:
    """-1 if a chain of univariate transforms decreases, so that the map as a whole increases."""
    direction = 1.0
    for transform in transforms:
        try:
            direction = direction * transform.sign
        except NotImplementedError:
            return 1.0
    return direction
