"""NIFTy as a contender of `benchmarks.peers`: as its demos use it, and tuned.

A case and settings come in; runs that tell latent samples after every round go out.
Nothing else in this repository imports NIFTy.

NIFTy has no Bernoulli likelihood, so one is written here. Both forms draw linear samples (MGVI); the nonlinear ones of
its demos cost more.
"""

import dataclasses
import logging
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import nifty.re as jft
import numpy as np

from benchmarks._problems import Case, Latent, Run

logging.getLogger("nifty.re").setLevel(logging.CRITICAL)
logging.getLogger("nifty.re.logger").setLevel(logging.CRITICAL)


class Settings(NamedTuple):
    """Of a run; `pairs` is what NIFTy calls `n_samples`."""

    pairs: int
    rounds: int
    draw_cg: int = 100
    draw_change: float = 1e-5  # of the energy in an iteration, a latent, at which a draw ends
    newton: int = 10
    step: float = 1e-4  # a latent, at which Newton's method ends
    start: int | None = None  # seed of a draw from the prior to start at, or None for the prior's mean
    residual_map: str = "smap"


class Bernoulli(jft.Likelihood):
    """0/1 data with logits; `weight` is 0 for data that do not count."""

    data: Any = dataclasses.field(metadata={"static": False})
    weight: Any = dataclasses.field(metadata={"static": False})

    def __init__(self, data, weight):
        self.data, self.weight = data, weight
        shape: Any = jax.ShapeDtypeStruct(data.shape, weight.dtype)
        super().__init__(domain=shape, lsm_tangents_shape=shape)

    def energy(self, primals):
        return jnp.sum(self.weight * (jax.nn.softplus(primals) - self.data * primals))

    def metric(self, primals, tangents):
        return self._root(primals) ** 2 * tangents

    def left_sqrt_metric(self, primals, tangents):
        return self._root(primals) * tangents

    def right_sqrt_metric(self, primals, tangents):
        return self._root(primals) * tangents

    def transformation(self, primals):
        return self.weight * 2 * jnp.arctan(jnp.exp(0.5 * primals))

    def normalized_residual(self, primals):
        root = self._root(primals)
        return jnp.where(root > 0, self.weight * (self.data - jax.nn.sigmoid(primals)) / root, 0.0)

    def _root(self, primals):
        # The root of p (1 - p); weights are 0 or 1.
        return self.weight * jnp.exp(-0.5 * (jax.nn.softplus(primals) + jax.nn.softplus(-primals)))


def likelihood(case: Case) -> jft.Likelihood:
    """The case's likelihood as a function of a `Vector` of its latents."""
    dtype: Any = jnp.result_type(float)
    if case.family == "poisson":
        observed: jft.Likelihood = jft.Poissonian(jnp.asarray(case.data), sampling_dtype=dtype)
        return observed.amend(lambda xi: jnp.exp(case.observe(xi.tree)))
    weight = np.ones(case.data.shape) if case.seen is None else case.seen
    return Bernoulli(jnp.asarray(case.data, dtype), jnp.asarray(weight, dtype)).amend(lambda xi: case.observe(xi.tree))


def start(case: Case, settings: Settings) -> Any:
    """Where a run begins."""
    if settings.start is None:
        return jft.Vector({name: jnp.zeros(shape) for name, shape in case.latent.items()})
    key = jax.random.key(settings.start)
    return jft.Vector({name: jax.random.normal(key, shape) for name, shape in case.latent.items()})


def limits(case: Case, settings: Settings) -> tuple[dict, dict]:
    """Keyword arguments of NIFTy's conjugate gradients in draws, and of its Newton method."""
    latents = sum(int(np.prod(shape)) for shape in case.latent.values())
    draw = {"absdelta": settings.draw_change * latents, "maxiter": settings.draw_cg}
    return draw, {"xtol": settings.step, "maxiter": settings.newton, "cg_kwargs": {}}


def default(case: Case, settings: Settings) -> Run:
    """`optimize_kl` with its loops in Python."""
    lh = likelihood(case)
    draw, newton = limits(case, settings)

    class StopError(Exception):
        pass

    def run(seed, tell):
        def callback(samples, state):
            if tell(samples.samples.tree):
                raise StopError

        try:
            jft.optimize_kl(
                lh,
                start(case, settings),
                key=jax.random.key(seed),
                n_total_iterations=settings.rounds,
                n_samples=settings.pairs,
                draw_linear_kwargs={"cg_name": None, "cg_kwargs": draw},
                kl_kwargs={"minimize_kwargs": {"name": None} | newton},
                sample_mode="linear_resample",
                callback=callback,
            )
        except StopError:
            pass

    return run


def tuned(case: Case, settings: Settings, mean: Latent | None = None) -> Run:
    """A whole round in one compiled program: static conjugate gradients and static Newton method.

    It begins at `mean` if that is given.
    """
    first = start(case, settings) if mean is None else jft.Vector(jax.tree.map(jnp.asarray, mean))
    vi = jft.OptimizeVI(likelihood(case), settings.rounds, kl_map="vmap", residual_map=settings.residual_map)
    draw, newton = limits(case, settings)

    @jax.jit
    def step(mean, key):
        keys = jax.random.split(key, settings.pairs)
        samples, _ = vi.draw_linear_samples(
            mean, keys, point_estimates=(), cg=jft.conjugate_gradient.static_cg, cg_name=None, cg_kwargs=draw
        )
        found = vi.kl_minimize(samples, minimize=jft.optimize._static_newton_cg, minimize_kwargs=newton)
        return found.x, samples.at(found.x).samples

    def run(seed, tell):
        mean, key = first, jax.random.key(seed)
        for i in range(settings.rounds):
            mean, samples = step(mean, jax.random.fold_in(key, i))
            if tell(samples.tree):
                return

    return run
