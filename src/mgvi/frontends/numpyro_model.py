"""From a NumPyro model and its data to a Problem.

A model with its arguments comes in; it is run once to find its sites, checked, and traced into programs of a
standard-normal latent. It must not know any algorithm.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from mgvi import _compile, _trace, _tree
from mgvi.budget import Budget
from mgvi.distributions import fisher_sqrt
from mgvi.errors import ModelError
from mgvi.frontends import _checks
from mgvi.frontends._runner import MARKER, Runner, get_trace
from mgvi.problem import Problem, Static


def from_numpyro(model: Callable, *args: Any, **kwargs: Any) -> Problem:
    """Turn a NumPyro model and its data into a Problem.

    The model is run at the prior median of every site, everything that can be wrong with it or with the data
    is checked there, and nothing is compiled for the model before that.

    Parameters
    ----------
    model : callable
        A NumPyro model with at least one observed site. Random choices of the model itself, such as the
        subsample of a plate, are made once, here.
    *args, **kwargs
        Its arguments, data included.

    Returns
    -------
    Problem
        Density, Fisher metric and predictions over a latent that is standard normal a priori.

    Raises
    ------
    ModelError
        If the model cannot be standardised or does not fit the data; the message names the site.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(counts):
    ...     rate = numpyro.sample("rate", dist.Gamma(2.0, 0.1))
    ...     numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    >>> mgvi.from_numpyro(model, jnp.array([17, 23, 19]))
    Problem(latent: rate[]; data: counts[3])
    """
    run = Runner(model, args, kwargs)
    run.discover()
    if not run.observed:
        raise ModelError(
            f"model {run.name!r} has no observed site: pass its data to from_numpyro and give it to "
            "numpyro.sample(..., obs=...). To draw from the prior only, use "
            "mgvi.sample_prior(key, n, model, ...)."
        )
    if not run.latent:
        raise ModelError(
            f"model {run.name!r} has no latent site: there is nothing to infer. Give its unknowns a prior with "
            "numpyro.sample(name, distribution)."
        )
    data_size = sum(math.prod(shape) for shape in run.observed.values())
    budget = Budget.of(_tree.size(run.latent), data_size)
    compiled = _compile.Compiled(budget.effort)
    zero = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in run.latent.items()}
    marked = {**zero, MARKER: np.zeros((), jnp.result_type(float))}
    everything, constants = _trace.trace(run.at, marked)
    _checks.check_independence(everything, run.imputed)
    start = compiled.call(_compile.program("once")(everything), constants, marked)
    for name in run.latent:
        _checks.check_prior(name, start["priors"][name], start["values"].get(name))
    for name, d in start["sites"].items():
        _checks.check_arguments(name, d)
    data = {name: _checks.clean_data(name, d, start["data"][name]) for name, d in start["sites"].items()}

    pool: list[Any] = []
    scaled = run.scaled(everything, start["scales"])

    def part(*keys):
        mark = lambda name, latent, log: _trace.mark(name, latent, log) if name in scaled else latent

        def only(xi):
            found = everything(constants, {**xi, MARKER: jnp.zeros(())}, mark)
            chosen = {kind: _pick(found[kind], scaled) for kind in ("scales", "latents")}
            return _pick({**found, **chosen}, keys)

        program, own = _trace.trace(only, zero)
        return program.pooled(own, pool)

    observe, constrain = part("sites", "factors", "scales"), part("values")
    scales = part("scales", "latents") if scaled else None
    arrays = {
        "constants": pool,
        "data": data,
        "weight": {name: _concrete(weight) for name, weight in start["weights"].items()},
        "chart": {},
    }
    active = _active_parameters(observe, arrays, zero)
    static = Static(
        latent=run.latent,
        observe=observe,
        constrain=constrain,
        active=active,
        budget=budget,
        scales=scales,
        scaled=scaled,
        compiled=compiled,
    )
    problem = Problem(arrays, static)
    _checks.check_log_likelihood(compiled.call(_compile.program("once")(Problem.log_likelihood), problem, zero))
    _checks.check_finite_factors(start["factors"])
    return problem


def _pick(tree, keys):
    return {key: tree[key] for key in keys}


def _concrete(weight):
    return None if weight is None else jnp.asarray(weight, jnp.result_type(float))


def sample_prior(key: jax.Array, n: int, model: Callable, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
    """Draw from the prior of a NumPyro model, observed or not.

    Parameters
    ----------
    key : jax.Array
        A random key.
    n : int
        Number of draws.
    model, *args, **kwargs
        The model and its arguments.

    Returns
    -------
    dict
        Values of all sites that are not observed, stacked along a leading axis of length `n`.

    Examples
    --------
    >>> import jax, numpyro, numpyro.distributions as dist, mgvi
    >>> def model():
    ...     numpyro.sample("x", dist.Uniform(0.0, 1.0))
    >>> mgvi.sample_prior(jax.random.key(0), 5, model)["x"].shape
    (5,)
    """

    _checks.check_model(model)

    def one(key):
        trace = get_trace(model, handlers.seed(lambda: model(*args, **kwargs), key))
        kept = ("sample", "deterministic")
        return {k: s["value"] for k, s in trace.items() if s["type"] in kept and not s.get("is_observed", False)}

    return jax.lax.map(one, jax.random.split(key, n))


def _active_parameters(observe, arrays, zero):
    """Names of the parameters of each observed site that depend on the latent."""
    roots = {}

    def parameters(xi):
        found = {}
        for name, d in observe(arrays["constants"], xi)["sites"].items():
            try:
                root = fisher_sqrt(d, arrays["weight"][name])
            except NotImplementedError as error:
                raise _checks.no_fisher(name, d) from error
            roots[name] = (type(_checks.innermost(d)).__name__, root)
            found[name] = root.parameters
        return found

    depends = _trace.trace(parameters, zero)[0].dependence()
    active = {name: frozenset(p for p, flag in flags.items() if flag) for name, flags in depends.items()}
    for name, (kind, root) in roots.items():
        approximation = root.restrict(active[name]).approximation
        if approximation:
            _checks.warn(
                f"site {name!r}: the Fisher information of {kind} is approximated by {approximation}; "
                f"register a closed form with mgvi.distributions.register_fisher({kind})"
            )
    return active
