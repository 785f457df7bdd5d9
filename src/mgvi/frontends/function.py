"""From a plain function that returns NumPyro distributions to a Problem.

A function, priors of its arguments and data come in; they become a NumPyro model, which `from_numpyro` turns into a
Problem. It must not know any algorithm.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.distribution import Distribution

from mgvi.errors import ModelError
from mgvi.frontends import _wording
from mgvi.frontends.numpyro_model import from_numpyro
from mgvi.problem import Problem


def from_function(observe: Callable, latent: Mapping[str, Any], data: Mapping[str, Any]) -> Problem:
    """Turn a plain function that returns NumPyro distributions into a Problem.

    Parameters
    ----------
    observe : callable
        From a dict of values, one for each entry of `latent`, to a dict of NumPyro distributions, one for
        each entry of `data`.
    latent : dict
        For each name either a NumPyro distribution, the prior, or a shape: an array of standard normals.
    data : dict
        Observed arrays by name.

    Returns
    -------
    Problem

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro.distributions as dist, mgvi
    >>> def observe(values):
    ...     return {"y": dist.Normal(values["slope"] * jnp.arange(3.0), values["sd"])}
    >>> latent = {"slope": (), "sd": dist.HalfNormal(1.0)}
    >>> mgvi.from_function(observe, latent, {"y": jnp.array([0.1, 0.9, 2.2])})
    Problem(latent: sd[], slope[]; data: y[3])
    """
    if not callable(observe):
        raise ModelError(f"`observe` must be a function of a dict, found {_wording.kind_of(observe)}.")
    _check_dict("latent", latent)
    _check_dict("data", data)
    missing = sorted(name for name, value in data.items() if value is None)
    if missing or not data:
        found = f"None for {missing}" if missing else "an empty dict"
        raise ModelError(f"`data` must hold an array for each distribution that is observed, found {found}.")
    priors = {name: _prior(name, entry) for name, entry in sorted(latent.items())}

    @wraps(observe)  # so that error messages name the user's function
    def model():
        values = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        predicted = observe(values)
        if not isinstance(predicted, Mapping) or set(predicted) != set(data):
            is_dict = isinstance(predicted, Mapping)
            found = sorted(map(str, predicted)) if is_dict else _wording.kind_of(predicted)
            raise ModelError(
                f"observe must return a dict of distributions with the keys {sorted(data)}, found "
                f"{found}. Each distribution needs an entry of `data`, and each entry a distribution."
            )
        for name, d in predicted.items():
            if not isinstance(d, Distribution):
                raise ModelError(
                    f"site {name!r}: observe must return NumPyro distributions, found {_wording.kind_of(d)}. "
                    "Say how the data scatter around it, for example dist.Normal(prediction, sd)."
                )
            numpyro.sample(name, d, obs=data[name])

    return from_numpyro(model)


def _check_dict(name, argument):
    if not isinstance(argument, Mapping):
        raise ModelError(f"`{name}` must be a dict by name, found {_wording.kind_of(argument)}.")
    other = [key for key in argument if not isinstance(key, str)]
    if other:
        raise ModelError(f"the keys of `{name}` must be strings, found {_wording.shortened(other)}.")


def _is_size(n) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) >= 0


def _prior(name, entry) -> Distribution:
    if isinstance(entry, Distribution):
        return entry
    shape = entry.shape if isinstance(entry, jax.ShapeDtypeStruct) else entry
    shape = (shape,) if _is_size(shape) else shape
    if not isinstance(shape, tuple) or not all(map(_is_size, shape)):
        raise ModelError(
            f"latent {name!r} must be a NumPyro distribution or a shape (a tuple of integers), found "
            f"{_wording.shortened(repr(entry))}. Write dist.Normal(0.0, 1.0) or (3,), for example."
        )
    return dist.Normal(0.0, 1.0).expand(tuple(map(int, shape))).to_event(len(shape))
