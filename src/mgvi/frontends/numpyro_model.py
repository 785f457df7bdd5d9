"""From a NumPyro model and its data to a Problem.

A model with its arguments comes in; it is run once to find its sites, checked, and traced into programs of a
standard-normal latent. It must not know any algorithm.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers, validation_enabled

from mgvi import _compile, _trace, _tree
from mgvi.budget import Budget
from mgvi.distributions import fisher_sqrt, latent_shape, scale_of, standardize
from mgvi.errors import MgviWarning, ModelError
from mgvi.frontends import _checks, _wording
from mgvi.problem import Problem, Site, Static

_SCAN_INDEX = "_scan_current_index"
_MARKER = ""  # a further input that marks what depends on imputed discrete data


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
    run = _Runner(model, args, kwargs)
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
    marked = {**zero, _MARKER: np.zeros((), jnp.result_type(float))}
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
            found = everything(constants, {**xi, _MARKER: jnp.zeros(())}, mark)
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
        trace = _get_trace(model, handlers.seed(lambda: model(*args, **kwargs), key))
        kept = ("sample", "deterministic")
        return {k: s["value"] for k, s in trace.items() if s["type"] in kept and not s.get("is_observed", False)}

    return jax.lax.map(one, jax.random.split(key, n))


class _Runner:
    """Runs a model with every latent site computed from a standard-normal latent."""

    def __init__(self, model, args, kwargs):
        _checks.check_model(model)
        self.name = _wording.model_name(model)
        self._model = model
        self._call = lambda: model(*args, **kwargs)
        self.latent: dict[str, jax.ShapeDtypeStruct] = {}
        self.observed: dict[str, tuple[int, ...]] = {}  # shapes of the data
        self.imputed: set[str] = set()  # discrete sites that obs_mask imputes
        self._in_scan: set[str] = set()
        self._inside: set[str] = set()  # sites in loops and branches
        self._scales: dict[str, Any] = {}  # of the last run, and the latents that they multiply
        self._plates: dict[str, jax.Array] = {}

    def discover(self) -> None:
        """Trace the model at the prior median, record its sites, check what can be seen without values."""
        seen = {}
        plates = {}

        def run():
            trace = self._trace(self._discovering)
            seen.update(trace)
            plates.update({n: s["value"] for n, s in trace.items() if _is_subsampled(s)})
            return plates

        program, constants = _trace.trace(lambda _: run(), {})
        self._plates = {n: jnp.asarray(indices) for n, indices in program(constants, {}).items()}
        for name, site in seen.items():
            _checks.check_site(name, site, name in self.latent, set(plates))
            if site.get("_control_flow_done", False):
                self._inside.add(name)
            if _is_data(site):
                self.observed[name] = _checks.check_data_shape(name, site)
        for name in self._in_scan & set(self.latent):
            leaf = self.latent[name]
            length = jnp.shape(seen[name]["value"])[0]
            self.latent[name] = jax.ShapeDtypeStruct((length, *leaf.shape), leaf.dtype)
        factors = sorted(name for name, site in seen.items() if _is_factor(site))
        if factors:
            _warn(
                f"numpyro.factor sites {factors} enter the density but have no Fisher information, so the "
                "uncertainty does not know them"
            )

    def at(self, xi):
        """Run at a latent: priors, values, scales and what they multiply, distributions and values of data, weights."""
        trace = self._trace(lambda site: self._substitute(site, xi))
        hidden = {name.removesuffix("_unobserved") for name in self.imputed} | self.imputed
        kinds = ("priors", "values", "scales", "latents", "sites", "data", "weights", "factors")
        out: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
        for name, site in trace.items():
            if _is_factor(site):
                out["factors"][name] = site["fn"].log_factor
            elif _is_data(site):
                out["sites"][name] = _fitted(site["fn"], self.observed[name])
                out["data"][name] = jnp.asarray(site["value"])
                out["weights"][name] = site["scale"]
            elif site["type"] in ("sample", "deterministic") and name not in hidden:
                out["values"][name] = jnp.asarray(site["value"])
                if name in self.latent:
                    out["priors"][name] = site["fn"]
                    if name in self._scales:
                        scale, out["latents"][name] = self._scales[name]
                        out["scales"][name] = scale.log
        return out

    def scaled(self, everything, logs) -> dict[str, Site]:
        """Sites whose scale depends on other latents, given the logarithms of all scales."""
        depends = everything.dependence()["scales"]
        chosen: dict[str, Site] = {}
        for name, log in logs.items():
            if depends[name]:
                expand = self._scales[name][0].expand
                groups = None if expand is None else jnp.shape(log)
                chosen[name] = Site(self.latent[name].shape, groups, expand, expand is None and jnp.size(log) == 1)
        return chosen

    def _trace(self, substitute):
        seeded = handlers.seed(self._call, 0)
        # NumPyro would refuse a bad parameter without naming the site; our checks come later.
        with validation_enabled(False):
            return _get_trace(self._model, handlers.substitute(seeded, substitute_fn=substitute))

    def _discovering(self, site):
        """Record the latent of a site and return its value at zero."""
        if not _is_free(site):
            return None
        name, d = site["name"], _expanded(site)
        _checks.check_proper(name, d)
        if _is_discrete(d):
            if not name.endswith("_unobserved"):
                raise _checks.discrete_latent(name, d)
            self.imputed.add(name)
            return _imputed_value(d, 0.0)
        try:
            shape = latent_shape(d)
            value = standardize(d, jnp.zeros(shape))
        except ModelError as error:
            raise ModelError(f"site {name!r}: {error}") from error
        if np.prod(shape) > 0:
            self.latent[name] = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
        if _SCAN_INDEX in site["infer"]:
            self._in_scan.add(name)
        return value

    def _substitute(self, site, xi):
        name = site["name"]
        if site["type"] == "plate":
            return self._plates.get(name)
        if not _is_free(site):
            return None
        d = _expanded(site)
        if name in self.imputed:
            return _imputed_value(d, xi.get(_MARKER, 0.0))
        latent = xi[name] if name in xi else jnp.zeros(latent_shape(d))
        if name in self._in_scan and name in xi:
            latent = latent[site["infer"][_SCAN_INDEX]]
        elif name in xi and name not in self._inside and (scale := scale_of(d)) is not None:
            latent = _trace.mark(name, latent, scale.log)  # coordinates may depend on the scale
            self._scales[name] = scale, latent
        return standardize(d, latent)


def _get_trace(model, handled):
    """Trace of a model inside handlers; what the model raises is told with its name."""
    try:
        return handlers.trace(handled).get_trace()
    except ModelError:
        raise
    except Exception as error:
        raise _checks.failed_model(model, error) from error


def _is_free(site) -> bool:
    return site["type"] == "sample" and not site["is_observed"] and site["value"] is None


def _is_factor(site) -> bool:
    return site["type"] == "sample" and isinstance(site["fn"], dist.Unit)


def _is_data(site) -> bool:
    return site["type"] == "sample" and site["is_observed"] and not _is_factor(site)


def _is_subsampled(site) -> bool:
    return site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])


def _is_discrete(d) -> bool:
    return d.support is not None and d.support.is_discrete


def _expanded(site):
    """The distribution of a site with its sample shape made part of the batch."""
    extra = tuple(site["kwargs"].get("sample_shape", ()))
    return site["fn"].expand(extra + tuple(site["fn"].batch_shape)) if extra else site["fn"]


def _imputed_value(d, marker):
    """Any valid value; `marker` lets the trace show what depends on it."""
    value = d.support.feasible_like(jnp.zeros(d.shape(), int))
    return value + jnp.asarray(0 * marker, jnp.result_type(value))


def _fitted(d, shape):
    """The distribution, expanded to the shape of the data where they share its parameters."""
    batch = shape[: len(shape) - d.event_dim]
    return d if tuple(d.batch_shape) == batch else d.expand(batch)


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
            _warn(
                f"site {name!r}: the Fisher information of {kind} is approximated by {approximation}; "
                f"register a closed form with mgvi.distributions.register_fisher({kind})"
            )
    return active


def _warn(message):
    warnings.warn(message, MgviWarning, stacklevel=4)
