"""The run of a NumPyro model with every latent site computed from a standard-normal latent.

A model with its arguments comes in; what it does at a latent goes out: priors, values, distributions of data, factors.
It must not know what is made of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers, validation_enabled

from mgvi import _trace
from mgvi.distributions import latent_shape, scale_of, standardize
from mgvi.errors import ModelError
from mgvi.frontends import _checks, _wording
from mgvi.problem import Site

_SCAN_INDEX = "_scan_current_index"  # NumPyro's key for the step of a scan, among the `infer` settings of a site
MARKER = ""  # name of a further input, a number that every imputed discrete value formally depends on


class Runner:
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
            _checks.warn(
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
            return get_trace(self._model, handlers.substitute(seeded, substitute_fn=substitute))

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
            return _imputed_value(d, xi.get(MARKER, 0.0))
        latent = xi[name] if name in xi else jnp.zeros(latent_shape(d))
        if name in self._in_scan and name in xi:
            latent = latent[site["infer"][_SCAN_INDEX]]
        elif name in xi and name not in self._inside and (scale := scale_of(d)) is not None:
            latent = _trace.mark(name, latent, scale.log)  # coordinates may depend on the scale
            self._scales[name] = scale, latent
        return standardize(d, latent)


def get_trace(model, handled):
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
