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
    _checks.check_not_empty(run.name, run.observed, run.latent)
    budget = Budget.of(_tree.size(run.latent), sum(map(math.prod, run.observed.values())))
    compiled = _compile.Compiled(budget.effort)
    zero = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in run.latent.items()}
    marked = {**zero, MARKER: np.zeros((), jnp.result_type(float))}
    everything, constants = _trace.trace(run.at, marked)
    _checks.check_independence(everything, run.imputed)
    median = compiled.call(_compile.program("once")(everything), constants, marked)
    data = _checked_data(run.latent, median)
    scaled = run.scaled(everything, median["scales"])
    parts, pool = _parts(everything, constants, scaled, zero)
    weight = {
        name: None if w is None else jnp.asarray(w, jnp.result_type(float)) for name, w in median["weights"].items()
    }
    arrays = {"constants": pool, "data": data, "weight": weight, "chart": {}}
    active = _active_parameters(parts["observe"], arrays, zero)
    known = {"active": active, "scaled": scaled, "budget": budget, "compiled": compiled}
    problem = Problem(arrays, Static(latent=run.latent, **parts, **known))
    _checks.check_log_likelihood(compiled.call(_compile.program("once")(Problem.log_likelihood), problem, zero))
    _checks.check_finite_factors(median["factors"])
    return problem


def _checked_data(latent, median):
    """Data of the observed sites, after the checks of all sites; `median` is the model at the prior median."""
    for name in latent:
        _checks.check_prior(name, median["priors"][name], median["values"].get(name))
    for name, d in median["sites"].items():
        _checks.check_arguments(name, d)
    return {name: _checks.clean_data(name, d, median["data"][name]) for name, d in median["sites"].items()}


def _parts(everything, constants, scaled, zero) -> tuple[dict[str, Any], list[Any]]:
    """The programs of a `Static` by name, and the pool of the constants that they share.

    `everything` is the traced model, `scaled` the sites whose scale depends on other latents; only their latents keep
    their marks. Each program is traced again from `everything`, so that it computes no more than it returns.
    """
    pool: list[Any] = []
    mark = lambda name, latent, log: _trace.mark(name, latent, log) if name in scaled else latent

    def part(*kinds):
        def only(xi):
            found = everything(constants, {**xi, MARKER: jnp.zeros(())}, mark)
            of_scaled = {kind: {name: found[kind][name] for name in scaled} for kind in ("scales", "latents")}
            return {kind: {**found, **of_scaled}[kind] for kind in kinds}

        program, own = _trace.trace(only, zero)
        return program.pooled(own, pool)

    observe, constrain = part("sites", "factors", "scales"), part("values")
    return {"observe": observe, "constrain": constrain, "scales": part("scales", "latents") if scaled else None}, pool


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
    """Names of the parameters of each observed site's distribution that depend on the latent.

    Fisher information is computed for these only. Warns where it is approximated.
    """
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
