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
# Name of an extra scalar input, always 0, that is added (times 0) to every imputed discrete value: the outputs that the
# traced program says depend on it are those that depend on imputed discrete data.
MARKER = ""


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
        self._scan_sites: set[str] = set()  # latent sites in a numpyro scan, which have one entry for each step
        self._control_flow_sites: set[str] = set()  # all sites in a scan or in a branch of cond
        self._scales: dict[str, Any] = {}  # by site, in the last run: its scale, and the latent that it multiplies
        self._plate_indices: dict[str, jax.Array] = {}  # members of the subsampled plates, drawn once in `discover`

    def discover(self) -> None:
        """Trace the model at the prior median, record its sites, check what can be seen without values."""
        sites = {}

        def run(_):
            sites.update(self._trace(self._record))
            return {name: site["value"] for name, site in sites.items() if _is_subsampled(site)}

        program, constants = _trace.trace(run, {})
        self._plate_indices = {name: jnp.asarray(indices) for name, indices in program(constants, {}).items()}
        for name, site in sites.items():
            _checks.check_site(name, site, name in self.latent, set(self._plate_indices))
            if site.get("_control_flow_done", False):
                self._control_flow_sites.add(name)
            if _is_data(site):
                self.observed[name] = _checks.check_data_shape(name, site)
        for name in self._scan_sites & set(self.latent):
            leaf = self.latent[name]
            steps = jnp.shape(sites[name]["value"])[0]
            self.latent[name] = jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype)
        factors = sorted(name for name, site in sites.items() if _is_factor(site))
        if factors:
            _checks.warn(
                f"numpyro.factor sites {factors} enter the density but have no Fisher information, so the "
                "uncertainty does not know them"
            )

    def at(self, xi):
        """Run the model at a latent.

        Returns a dict of dicts by site: `priors` and `values` of the sites without data, `scales` (logarithms) and the
        `latents` that they multiply, distributions (`sites`), values (`data`) and `weights` of the observed sites, and
        the log-`factors`.
        """
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
        """Sites whose scale depends on other latents; `everything` is the traced `at`, `logs` its `scales`."""
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
        # NumPyro's own validation does not name the site of a bad parameter; `_checks` does, once values are known.
        with validation_enabled(False):
            return get_trace(self._model, handlers.substitute(seeded, substitute_fn=substitute))

    def _record(self, site):
        """Record the latent of a site and return the site's value where that latent is 0, the prior median."""
        if not _has_no_value(site):
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
            self._scan_sites.add(name)
        return value

    def _substitute(self, site, xi):
        """Value of a site at a latent, or None where NumPyro has to find it."""
        name = site["name"]
        if site["type"] == "plate":
            return self._plate_indices.get(name)
        if not _has_no_value(site):
            return None
        d = _expanded(site)
        if name in self.imputed:
            return _imputed_value(d, xi.get(MARKER, 0.0))
        latent = xi[name] if name in xi else jnp.zeros(latent_shape(d))
        if name in self._scan_sites and name in xi:
            latent = latent[site["infer"][_SCAN_INDEX]]
        elif name in xi and name not in self._control_flow_sites and (scale := scale_of(d)) is not None:
            # A mark: `Problem` exchanges this latent when a fit adapts its coordinates to the scale.
            latent = _trace.mark(name, latent, scale.log)
            self._scales[name] = scale, latent
        return standardize(d, latent)


def get_trace(model, handled):
    """NumPyro's trace of a model inside handlers; an exception of the model becomes a ModelError that names it."""
    try:
        return handlers.trace(handled).get_trace()
    except ModelError:
        raise
    except Exception as error:
        raise _checks.failed_model(model, error) from error


def _has_no_value(site) -> bool:
    """A sample site that neither data nor a handler has given a value."""
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
    """The distribution of a site, with the site's `sample_shape` as leading batch dimensions."""
    extra = tuple(site["kwargs"].get("sample_shape", ()))
    return site["fn"].expand(extra + tuple(site["fn"].batch_shape)) if extra else site["fn"]


def _imputed_value(d, marker):
    """Any valid value of a discrete distribution, formally dependent on `marker`: see `MARKER`."""
    value = d.support.feasible_like(jnp.zeros(d.shape(), int))
    return value + jnp.asarray(0 * marker, jnp.result_type(value))


def _fitted(d, shape):
    """The distribution, with its batch expanded to that of the data if several data share its parameters."""
    batch = shape[: len(shape) - d.event_dim]
    return d if tuple(d.batch_shape) == batch else d.expand(batch)
