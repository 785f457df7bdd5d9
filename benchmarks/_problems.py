"""Problems that every contender of `benchmarks.peers` gets, and how posteriors are judged.

A name comes in; data, a NumPyro model for us, the same model in standardised latents as plain functions for the
others, and figures of merit of latent samples go out. It must not know any contender.

All contenders have the same latents: independent standard normal numbers, which the functions here turn into
predictions. Fields are transformed by `mgvi.fields` for everybody; the spectrum of the others is expanded to the modes
with plain `jax.numpy`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from experiments.datasets import checkerboard
from mgvi.fields import Grid, SquaredExponential, StationaryField, smooth_spectrum, spectrum_axis

Latent = dict[str, Any]
_PREDICTIONS_AT_ONCE = 125_000  # predicted data that are in memory together


class Tell(Protocol):
    """What a contender calls after each round, with stacked latent samples or a function that draws them.

    It returns whether to stop. The clock stands still while a function draws samples, which is for contenders whose
    rounds need none.
    """

    cold: bool  # the first run of a process, whose rounds are not judged
    history: list[dict]  # records of `mgvi.fit`
    whole: float | None  # seconds at which a cold run would have ended, if this one goes on

    def __call__(self, xi: Latent | Callable[[], Latent], seconds: float | None = None) -> bool: ...


Run = Callable[[int, Tell], None]  # a contender's run with a seed


class Case(NamedTuple):
    """One problem."""

    title: str
    double: bool
    problem: Callable[[], mgvi.Problem]  # for us: from a NumPyro model as a user writes it
    latent: dict[str, tuple[int, ...]]  # shape by name
    family: str  # "poisson" with log-rates, "bernoulli" with logits
    observe: Callable[[Latent], jax.Array]  # log-rates or logits of the data
    data: np.ndarray
    seen: np.ndarray | None  # mask of the data that are fitted, None for all
    predict: Callable[[Latent], tuple[jax.Array, jax.Array]]  # the same of the held-out data; judged quantities
    held_out: np.ndarray
    fft: tuple[int, ...] | None = None  # size of the transform that dominates the cost


def distribution(family: str, eta) -> Any:
    """Of data, given log-rates or logits."""
    return dist.Poisson(jnp.exp(eta)) if family == "poisson" else dist.Bernoulli(logits=eta)


def standard_model(case: Case) -> Callable[[], None]:
    """The problem as a NumPyro model of standard normal sites, for NUTS and SVI: best for both."""

    def model():
        xi = {name: numpyro.sample(name, dist.Normal().expand(shape).to_event()) for name, shape in case.latent.items()}
        likelihood = distribution(case.family, case.observe(xi))
        likelihood = likelihood if case.seen is None else likelihood.mask(jnp.asarray(case.seen))
        numpyro.sample("data", likelihood, obs=jnp.asarray(case.data))

    return model


def poisson(pixels: int = 128, seed: int = 6) -> Case:
    """Counts on a line, log-rate with a known squared exponential covariance; a tenth of the pixels is held out."""
    rng = np.random.default_rng(seed)
    grid, spectrum = Grid(pixels, spacing=1 / pixels), SquaredExponential(0.05, 2.0)

    def log_rate(xi):
        return grid.synthesize(spectrum.root_power(grid) / math.sqrt(grid.pixel_volume), xi["log_rate"])

    truth = np.asarray(jax.jit(log_rate)({"log_rate": rng.standard_normal(grid.latent_shape)}))
    counts = rng.poisson(np.exp(truth))
    hidden, seen = np.split(rng.permutation(pixels), [pixels // 10])

    def model(counts):
        s = jnp.asarray(numpyro.sample("log_rate", StationaryField(grid, spectrum)))
        numpyro.sample("counts", dist.Poisson(jnp.exp(s[seen])), obs=counts)

    def predict(xi):
        s = log_rate(xi)
        return s[hidden], s

    return Case(
        title=f"Poisson, {pixels} pixels",
        double=True,
        problem=lambda: mgvi.from_numpyro(model, jnp.asarray(counts[seen])),
        latent={"log_rate": grid.latent_shape},
        family="poisson",
        observe=lambda xi: log_rate(xi)[seen],
        data=counts[seen],
        seen=None,
        predict=predict,
        held_out=counts[hidden],
        fft=grid.full_shape,
    )


def classification(size: int, seed: int = 1) -> Case:
    """0/1 data on the white squares of a checkerboard, of a field with learned spectrum; the black ones are held out.

    Judged are the rates there.
    """
    sd, slope, bend, nodes = (1.0, 0.5), (-3.0, 0.5), 1.0, 65
    board = checkerboard(seed, size, sd=sd[0], slope=slope[0], bend=bend)
    grid = Grid((size, size), spacing=1 / size)
    black = np.flatnonzero(~board.white)

    def model(data, white):
        spectrum = smooth_spectrum("power", grid, sd=sd, slope=slope, smoothness=bend, nodes=nodes)
        s = jnp.asarray(numpyro.sample("s", StationaryField(grid, spectrum)))
        numpyro.sample("data", dist.Bernoulli(logits=2 * s).mask(white), obs=data)

    spectrum = _plain_spectrum(grid, nodes)

    def logits(xi):
        spread = math.log1p((sd[1] / sd[0]) ** 2)  # of the log-normal prior with that mean and sd
        amplitude = jnp.exp(math.log(sd[0]) - 0.5 * spread + math.sqrt(spread) * xi["power_sd"])
        root = spectrum(amplitude, slope[0] + slope[1] * xi["power_slope"], bend, xi["power_curve"])
        return 2 * grid.synthesize(root, xi["s"])

    def predict(xi):
        eta = logits(xi).ravel()[black]
        return eta, jax.nn.sigmoid(eta)

    return Case(
        title=f"classification, {size}^2",
        double=False,
        problem=lambda: mgvi.from_numpyro(model, jnp.asarray(board.data), jnp.asarray(board.white)),
        latent={"s": grid.latent_shape, "power_sd": (), "power_slope": (), "power_curve": (nodes - 1,)},
        family="bernoulli",
        observe=logits,
        data=board.data,
        seen=board.white,
        predict=predict,
        held_out=board.data.ravel()[black],
        fft=grid.full_shape,
    )


def _plain_spectrum(grid: Grid, nodes: int) -> Callable[..., jax.Array]:
    """`smooth_spectrum` as a function of its parameters, in nothing but `jax.numpy`: roots of the modes' power.

    The private maps of `mgvi.fields` cannot pass a `cond` under `vmap`, which NIFTy's conjugate gradients have.
    """
    k = grid.mode_lengths
    axis = np.log(spectrum_axis(grid, nodes))
    position = (np.log(np.where(k > 0, k, np.exp(axis[0]))) - axis[0]) / (axis[1] - axis[0])
    lower = np.clip(position.astype(int), 0, nodes - 2)
    share = np.clip(position - lower, 0.0, 1.0)
    count = grid.multiplicity.copy()
    count[(0,) * grid.ndim] = 0.0
    # An integrated Wiener process that starts and ends at zero, with an rms of 1.
    velocity = np.tril(np.ones((nodes - 1, nodes - 1))) - 0.5 * np.eye(nodes - 1)
    path = np.vstack([np.zeros(nodes - 1), np.cumsum(velocity, axis=0)])
    path -= np.linspace(0, 1, nodes)[:, None] * path[-1]
    path /= np.sqrt(np.mean(np.sum(path**2, axis=1)))

    def root_power(sd, slope, bend, curve):
        dtype = curve.dtype
        on_axis = slope * jnp.asarray(axis - axis.mean(), dtype) + bend * (jnp.asarray(path, dtype) @ curve)
        weight = jnp.asarray(share, dtype)
        log_power = (1 - weight) * on_axis[lower] + weight * on_axis[lower + 1]
        top = jax.lax.stop_gradient(jnp.max(log_power))
        power = jnp.asarray(count > 0, dtype) * jnp.exp(log_power - top)
        total = jnp.sum(jnp.asarray(count, dtype) * power)
        return sd * jnp.sqrt(grid.size / total) * jnp.asarray(count > 0, dtype) * jnp.exp(0.5 * (log_power - top))

    return root_power


def logistic(rows: int = 10_000, groups: int = 500, seed: int = 1) -> Case:
    """Hierarchical logistic regression; judged are its weights, its group effects, their mean and their log-sd."""
    rng = np.random.default_rng(seed)
    both = rows + rows // 5
    features, group = rng.standard_normal((both, 4)), rng.integers(groups, size=both)
    weights, effects = np.array([1.0, -0.5, 0.25, 0.0]), -0.5 + 0.8 * rng.standard_normal(groups)
    y = (rng.random(both) < 1 / (1 + np.exp(-features @ weights - effects[group]))).astype(np.int32)
    centre, spread = -0.5, 0.5  # of the logarithm of the effects' sd

    def model(features, group, y):
        weights = jnp.asarray(numpyro.sample("weights", dist.Normal().expand([4]).to_event(1)))
        mean = numpyro.sample("mean", dist.Normal())
        sd = numpyro.sample("sd", dist.LogNormal(centre, spread))
        with numpyro.plate("groups", groups):
            effect = jnp.asarray(numpyro.sample("effect", dist.Normal(mean, sd)))
        numpyro.sample("y", dist.Bernoulli(logits=features @ weights + effect[group]), obs=y)

    def effect(xi):
        return xi["mean"] + jnp.exp(centre + spread * xi["sd"]) * xi["effect"]

    def logits(chosen, xi):
        return jnp.asarray(features[chosen], xi["weights"].dtype) @ xi["weights"] + effect(xi)[group[chosen]]

    train, test = slice(rows), slice(rows, None)

    def predict(xi):
        scalars = jnp.stack([xi["mean"], centre + spread * xi["sd"]])
        return logits(test, xi), jnp.concatenate([xi["weights"], scalars, effect(xi)])

    return Case(
        title=f"logistic, {rows} rows, {groups} groups",
        double=False,
        problem=lambda: mgvi.from_numpyro(model, *map(jnp.asarray, (features[train], group[train], y[train]))),
        latent={"weights": (4,), "mean": (), "sd": (), "effect": (groups,)},
        family="bernoulli",
        observe=partial(logits, train),
        data=y[train],
        seen=None,
        predict=predict,
        held_out=y[test],
    )


def make(name: str) -> Case:
    """A case by name: `poisson`, `logistic`, or a number of pixels along a side for classification."""
    return {"poisson": poisson, "logistic": logistic}[name]() if name.isalpha() else classification(int(name))


class Verdict(NamedTuple):
    """Figures of merit of latent samples."""

    log_likelihood: float  # predictive, in nats a held-out datum
    mean: np.ndarray  # of the judged quantities
    sd: np.ndarray

    def against(self, reference: "Verdict") -> dict[str, float]:
        """Distance from another verdict.

        Squares are averaged, as their mean does not depend on the number of samples: a mean of sds would.
        """
        return {
            "log_likelihood": self.log_likelihood,
            "mean_error": float(np.sqrt(np.mean(((self.mean - reference.mean) / reference.sd) ** 2))),
            "sd_ratio": float(np.sqrt(np.mean((self.sd / reference.sd) ** 2))),
        }


def judge(case: Case) -> Callable[[Latent], Verdict]:
    """A function that judges stacked latent samples."""
    batch = max(1, _PREDICTIONS_AT_ONCE // case.held_out.size)

    @jax.jit
    def look(xi):
        eta, values = jax.lax.map(case.predict, xi, batch_size=batch)
        terms = distribution(case.family, eta).log_prob(jnp.asarray(case.held_out))
        mean = jnp.mean(values, axis=0)
        return jax.nn.logsumexp(terms, axis=0), mean, jnp.mean((values - mean) ** 2, axis=0)

    def verdict(xi: Latent) -> Verdict:
        count = len(next(iter(xi.values())))
        terms, mean, variance = (np.asarray(x, np.float64) for x in look(xi))
        return Verdict(float(np.mean(terms) - math.log(count)), mean, np.sqrt(variance))

    return verdict


def prior(case: Case, count: int = 128) -> Latent:
    """Latent samples of the prior."""
    rng = np.random.default_rng(0)
    dtype = np.float64 if case.double else np.float32
    return {name: rng.standard_normal((count, *shape)).astype(dtype) for name, shape in case.latent.items()}
