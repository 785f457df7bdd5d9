"""Checks of a model's sites and of its data, with messages for people.

Sites of a NumPyro trace and data come in; a ModelError that names the site, what was expected, what was found
and what to do goes out if anything is wrong. It must not change a model.
"""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from mgvi.errors import MgviWarning, ModelError
from mgvi.frontends import _wording

_TRUNCATED = (dist.LeftTruncatedDistribution, dist.RightTruncatedDistribution, dist.TwoSidedTruncatedDistribution)
_TRUNCATION_BOUNDS = ("low", "high", "lower_bound", "upper_bound")  # parameters that may be infinite


def innermost(d):
    """The distribution inside Expanded, Independent and Masked wrappers."""
    while isinstance(d, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        d = d.base_dist
    return d


def check_model(model):
    """A model must be a function."""
    if not callable(model):
        raise ModelError(
            f"a model is a function with NumPyro statements, found {_wording.kind_of(model)}. Pass the "
            "function itself, without calling it."
        )


def check_not_empty(name, observed, latent):
    """A model must have data, and something to infer."""
    if not observed:
        raise ModelError(
            f"model {name!r} has no observed site: pass its data to from_numpyro and give it to numpyro.sample(..., "
            "obs=...). To draw from the prior only, use mgvi.sample_prior(key, n, model, ...)."
        )
    if not latent:
        raise ModelError(
            f"model {name!r} has no latent site: there is nothing to infer. Give its unknowns a prior with "
            "numpyro.sample(name, distribution)."
        )


def failed_model(model, error):
    """The error for an exception out of the user's code; it shows the statement of the model that failed."""
    name = _wording.model_name(model)
    twice = re.search("unique names but got `(.*)` duplicated", str(error))
    if twice:
        return ModelError(
            f"site {twice[1]!r} appears twice in model {name!r}; the name of a site must be unique. Rename one of them."
        )
    text, advice = str(error), "Check what the model is given against what it expects."
    if isinstance(error, jax.errors.JAXTypeError):  # after its first line the message explains JAX's tracing
        text = text.splitlines()[0]
        advice = "JAX traces it: on latents use jnp.where instead of `if`, and jax.numpy instead of numpy."
    text = _wording.shortened(text).rstrip(".")
    return ModelError(
        f"model {name!r} failed when it was run{_wording.statement(model, error)}: {type(error).__name__}"
        f"{': ' if text else ''}{text}. {advice}"
    )


def discrete_latent(name, d):
    """The error for a discrete site without data."""
    return ModelError(
        f"site {name!r} is a discrete latent ({type(innermost(d)).__name__}); MGVI needs continuous parameters. If it "
        "is data, pass it to from_numpyro so that it reaches numpyro.sample(..., obs=...); else sum it out."
    )


def check_proper(name, d):
    """A prior must be a proper distribution: one that has an integral."""
    if isinstance(innermost(d), dist.ImproperUniform):
        raise _improper(name, "ImproperUniform")


def _improper(name, what):
    return ModelError(
        f"site {name!r} has an improper prior ({what}); MGVI needs a proper one. Use a wide one, such as "
        "dist.Normal(0, 100), instead."
    )


def check_prior(name, d, value):
    """The parameters of a prior, and its own value, must be valid at the prior median."""
    base = innermost(d)
    if isinstance(base, dist.Uniform) and np.isinf([np.min(base.low), np.max(base.high)]).any():
        raise _improper(name, f"Uniform from {_wording.brief(base.low)} to {_wording.brief(base.high)}")
    check_arguments(name, d)
    bad = ~np.isfinite(np.asarray(0.0 if value is None else value))
    if bad.any():
        raise ModelError(
            f"site {name!r} is not finite ({_wording.first(value, bad)}) at its prior median. Check the "
            f"parameters of its prior ({type(base).__name__})."
        )


def check_arguments(name, d):
    """Parameters at the prior median must be finite and within their constraints, also those of `base_dist`."""
    while d is not None:
        d = innermost(d)
        _check_own_arguments(name, d)
        d = getattr(d, "base_dist", None)


def _check_own_arguments(name, d):
    for parameter, value in d.get_args().items():
        value = np.asarray(value)
        bound = parameter in _TRUNCATION_BOUNDS and isinstance(d, _TRUNCATED)
        if value.dtype.kind == "f" and not bound and not np.all(np.isfinite(value)):
            raise ModelError(
                f"site {name!r}: parameter {parameter!r} of {type(d).__name__} is not finite "
                f"({_wording.first(value, ~np.isfinite(value))}) at the prior median. {_advice(parameter)}"
            )
        constraint = d.arg_constraints[parameter]
        if dist.constraints.is_dependent(constraint):
            continue
        valid = np.asarray(constraint(value))
        if not np.all(valid):
            where = _wording.first(value, ~valid) if valid.shape == value.shape else _wording.brief(value)
            raise ModelError(
                f"site {name!r}: parameter {parameter!r} of {type(d).__name__} must be "
                f"{_wording.words(constraint)}, found {where} at the prior median. {_advice(parameter)}"
            )
    low, high = getattr(d, "low", None), getattr(d, "high", None)
    if low is not None and high is not None and np.any(np.asarray(low) > np.asarray(high)):
        raise ModelError(
            f"site {name!r}: 'low' of {type(d).__name__} must be below 'high', found {_wording.brief(low)} "
            f"and {_wording.brief(high)} at the prior median. Swap them."
        )


def _advice(parameter) -> str:
    if parameter == "scale_tril":
        return "The covariance must be positive definite: try to add a small number to its diagonal."
    return "Check the model's arithmetic there."


def check_site(name, site, is_latent, subsampled):
    """A site must not be a `param`; a latent must be outside of subsampled plates and of `scale` handlers."""
    if site["type"] == "param":
        raise ModelError(
            f"site {name!r} is a numpyro.param, which has no prior; give it one with numpyro.sample, or pass "
            "a fixed value to the model."
        )
    if not is_latent:
        return
    inside = [f.name for f in site["cond_indep_stack"] if f.name in subsampled]
    if inside:
        raise ModelError(
            f"site {name!r} is a latent inside the subsampled plate {inside[0]!r}; its members outside the "
            "subsample would be unknown. Drop subsample_size, or move the site out of the plate."
        )
    if site["scale"] is not None and not np.all(np.asarray(site["scale"]) == 1):
        raise ModelError(
            f"site {name!r} is a latent under a `scale` handler, which would change its prior. Apply the "
            "handler to observed sites only."
        )


def check_data_shape(name, site) -> tuple[int, ...]:
    """Check that the data of an observed site are numbers that fit its distribution; return their shape."""
    d, value = site["fn"], site["value"]
    dtype = _dtype(value)
    if not (jnp.issubdtype(dtype, np.floating) or jnp.issubdtype(dtype, np.integer) or dtype == np.bool_):
        raise ModelError(
            f"site {name!r}: data must be real numbers, found dtype {dtype}. Convert them with "
            "numpy.asarray(..., dtype=float) or code categories as integers."
        )
    expected, shape = tuple(d.shape()), tuple(np.shape(value))
    try:
        joint = np.broadcast_shapes(expected, shape)
    except ValueError:
        joint = None
    if joint != shape or shape[len(shape) - d.event_dim :] != tuple(d.event_shape):
        raise ModelError(
            f"site {name!r}: data of shape {shape} do not fit {type(innermost(d)).__name__} of shape "
            f"{expected}. Give one datum for each entry of the distribution."
        )
    if 0 in shape:
        raise ModelError(
            f"site {name!r}: the data are empty (shape {shape}). Pass at least one datum, or leave the site out."
        )
    return shape


def _dtype(value):
    try:
        return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    except (TypeError, ValueError):  # such as rows of different lengths
        return np.dtype(object)


def clean_data(name, d, value) -> jax.Array:
    """Check the data of an observed site; return them with masked entries replaced by values in the support."""
    value = np.asarray(value)
    mask = _mask(d, value.shape[: value.ndim - d.event_dim])
    seen = np.broadcast_to(mask.reshape(mask.shape + (1,) * d.event_dim), value.shape)
    if value.dtype.kind == "f":
        _check_finite_data(name, value, seen)
    value = value.astype(jax.dtypes.canonicalize_dtype(value.dtype))
    if not seen.all():
        stand_in = np.asarray(d.support.feasible_like(jnp.zeros(value.shape, value.dtype)))
        value = np.where(seen, value, np.broadcast_to(stand_in, value.shape)).astype(value.dtype)
    _check_support(name, d, value, mask)
    return jnp.asarray(value)


def _check_finite_data(name, value, seen):
    missing = np.isnan(value) & seen
    if missing.any():
        raise ModelError(
            f"site {name!r}: {missing.sum()} of {value.size} data are NaN (the first at "
            f"{_wording.index(missing)}). If they are missing, leave them out, or use "
            "numpyro.sample(..., obs_mask=~jnp.isnan(y)) or numpyro.handlers.mask."
        )
    infinite = np.isinf(value) & seen
    if infinite.any():
        raise ModelError(
            f"site {name!r}: {infinite.sum()} of {value.size} data are infinite (the first at "
            f"{_wording.index(infinite)}). Check how they were computed, or leave them out."
        )


def _check_support(name, d, value, mask):
    inside = np.broadcast_to(np.asarray(d.support(value)), mask.shape) | ~mask
    if inside.all():
        return
    kind, at = type(innermost(d)).__name__, _wording.index(~inside)
    raise ModelError(
        f"site {name!r}: {(~inside).sum()} of {inside.size} data are outside the support of {kind} "
        f"({_wording.words(d.support)}); the first is {_wording.brief(value[at])} at {at}. Check the data, "
        "or choose a distribution whose support holds them."
    )


def _mask(d, shape) -> np.ndarray:
    """Which data count: the product of all masks around a distribution."""
    mask = np.ones(shape, bool)
    extra = 0  # batch dimensions of the inner distribution that `Independent` has made part of the event
    while isinstance(d, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        if isinstance(d, dist.MaskedDistribution):
            own = np.asarray(d._mask)
            own = own.all(axis=tuple(range(own.ndim - extra, own.ndim))) if extra and own.ndim >= extra else own
            mask = mask & np.broadcast_to(own, shape)
        elif isinstance(d, dist.Independent):
            extra += d.reinterpreted_batch_ndims
        d = d.base_dist
    return mask


def check_independence(program, imputed):
    """Data must not depend on a latent, and no density on imputed discrete data."""
    for name, flag in program.dependence()["data"].items():
        if flag:
            raise ModelError(
                f"site {name!r}: the observed value depends on a latent, so it is not data. Put the dependence into "
                "the distribution instead: for a residual y - mu, write dist.Normal(mu, sd) with obs=y."
            )
    marked = program.dependence("") if imputed else {}
    if any(jax.tree.leaves([marked.get(key, {}) for key in ("sites", "factors", "priors")])):
        site = sorted(imputed)[0].removesuffix("_unobserved")
        raise ModelError(
            f"site {site!r} is discrete, has missing entries (obs_mask), and the model uses its value "
            "elsewhere; MGVI cannot impute discrete data. Leave the missing entries out."
        )


def no_fisher(name, d):
    """The error for data whose distribution has neither a rule for its Fisher information nor a sampler."""
    kind = type(innermost(d)).__name__
    return ModelError(
        f"site {name!r}: the Fisher information of {kind} is not known, and it cannot be sampled to estimate "
        f"it. Use another distribution, or add a rule with mgvi.distributions.register_fisher({kind})."
    )


def check_log_likelihood(log_likelihood):
    """The log-likelihood of each datum must be finite at the prior median."""
    for name, value in log_likelihood.items():
        value = np.asarray(value)
        bad = ~np.isfinite(value)
        if bad.any():
            raise ModelError(
                f"site {name!r}: the log-likelihood of {bad.sum()} data is not finite at the prior median "
                f"(the first is {value[_wording.index(bad)]} at {_wording.index(bad)}). Check the prediction "
                "there, for example for zero rates."
            )


def check_finite_factors(factors):
    """Log-factors must be finite at the prior median."""
    for name, value in factors.items():
        if not np.all(np.isfinite(np.asarray(value))):
            raise ModelError(
                f"factor {name!r} is not finite ({_wording.brief(value)}) at the prior median. Check the "
                "model's arithmetic there."
            )


def warn(message):
    """Warn, with the line of the user's call; for functions that `from_numpyro` calls directly."""
    warnings.warn(message, MgviWarning, stacklevel=4)
