"""Independent answers: NumPyro's own log-densities, and dense matrices E[score score^T] by integration."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro import handlers

import mgvi

from ..compiling import quick_jit
from .feature_models import CASES

DRAWS = 20_000
KEPT = 8  # problems, and evaluations, of the cases that the last tests were about


@functools.lru_cache(maxsize=KEPT)
def build(name, precision="float64"):
    """The Problem of a case. A warning that the case does not announce is an error."""
    case = CASES[name]
    with warnings.catch_warnings(), jax.enable_x64(precision == "float64"):
        warnings.simplefilter("ignore" if case.warns else "error", mgvi.MgviWarning)
        return mgvi.from_numpyro(case.model, *case.args)


def random_latent(problem, seed, width=0.7):
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(width * rng.normal(size=leaf.shape), leaf.dtype)
        for name, leaf in sorted(problem.latent.items())
    }


def observed_sites(case, problem, xi):
    """Observed sites of the original model, run by NumPyro at the constrained values of a latent."""
    values = problem.constrain(xi)
    data = {name: values[name] for name in problem.latent}
    data.update({site: values[name] for site, name in case.substituted.items()})
    run = handlers.substitute(handlers.seed(case.model, 0), data=data)
    trace = handlers.trace(run).get_trace(*case.args)
    return {n: s for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]}


def neg_log_density(case, problem, xi):
    """0.5 |xi|^2 minus NumPyro's log-density of the observed sites."""
    total = 0.5 * sum(jnp.sum(leaf**2) for leaf in xi.values())
    for site in observed_sites(case, problem, xi).values():
        scale = 1.0 if site["scale"] is None else site["scale"]
        total = total - jnp.sum(scale * site["fn"].log_prob(site["value"]))
    return total


def log_likelihood_in_parts(case, problem, xi):
    """The same density from `Problem.log_likelihood`, NumPyro's scales and the factors."""
    total = 0.5 * sum(jnp.sum(leaf**2) for leaf in xi.values())
    log_likelihood = problem.log_likelihood(xi)
    for name, site in observed_sites(case, problem, xi).items():
        if isinstance(site["fn"], dist.Unit):
            total = total - jnp.sum(site["fn"].log_factor)
            continue
        assert log_likelihood[name].shape == site["fn"].log_prob(site["value"]).shape
        total = total - jnp.sum((1.0 if site["scale"] is None else site["scale"]) * log_likelihood[name])
    return total


def dense_metric(case, problem, xi):
    """1 + sum over data of weight * E[score score^T], in the order of `ravel_pytree`."""
    matrix, probabilities = quick_jit(lambda xi: _dense_metric(case, problem, xi))(xi)
    for total in probabilities:
        # Masked data report a log-probability of zero, so they do not integrate to one.
        counted = np.asarray(total < 1.5)
        assert counted.any()
        np.testing.assert_allclose(np.asarray(total)[counted], 1.0, rtol=1e-9)
    return np.asarray(matrix)


def _dense_metric(case, problem, xi):
    flat, unravel = ravel_pytree(xi)
    matrix, probabilities = jnp.eye(flat.size), []
    for name, site in observed_sites(case, problem, xi).items():
        if isinstance(site["fn"], dist.Unit):
            continue
        shape = np.shape(site["value"])
        if name not in case.nodes:
            matrix = matrix + _multivariate_normal_information(case, problem, name, shape, flat, unravel)
            continue

        def log_prob(flat, y, name=name):
            fn = observed_sites(case, problem, unravel(flat))[name]["fn"]
            value = (fn.base_dist if isinstance(fn, dist.Independent) else fn).log_prob(y)
            return value, value

        scale = jnp.broadcast_to(1.0 if site["scale"] is None else jnp.asarray(site["scale"], float), shape)
        information, total = _integrated_information(log_prob, case.nodes[name], scale, flat)
        matrix = matrix + information
        probabilities.append(total)
    return matrix, probabilities


def _integrated_information(log_prob, nodes, scale, flat):
    """Sum over data of E[score score^T], and the total probability of each datum."""

    def add_node(sums, node):
        y, measure = node
        score, value = jax.jacfwd(log_prob, has_aux=True)(flat, jnp.full(scale.shape, y))
        probability = measure * jnp.exp(value)
        # A node of no probability may have no finite score, and a datum under a mask has no score.
        root = jnp.sqrt(scale * probability)[..., None]
        rows = jnp.where(root > 0, root * score, 0.0).reshape(-1, flat.size)
        return (sums[0] + rows.T @ rows, sums[1] + probability), None

    start = jnp.zeros((flat.size, flat.size)), jnp.zeros(scale.shape)
    return jax.lax.scan(add_node, start, tuple(map(jnp.asarray, nodes)))[0]


def _multivariate_normal_information(case, problem, name, shape, flat, unravel):
    """The textbook form, d mu^T S^-1 d mu + 1/2 tr(S^-1 dS S^-1 dS), a datum."""

    def moments(flat):
        fn = observed_sites(case, problem, unravel(flat))[name]["fn"]
        return jnp.broadcast_to(fn.loc, shape[-1:]), fn.scale_tril @ fn.scale_tril.T

    inverse = jnp.linalg.inv(moments(flat)[1])
    d_mu, d_S = jax.jacfwd(moments)(flat)
    first = jnp.einsum("ia,ij,jb->ab", d_mu, inverse, d_mu)
    second = 0.5 * jnp.einsum("ij,jka,kl,lib->ab", inverse, d_S, inverse, d_S)
    return shape[0] * (first + second)


def data_mean(case, name, site):
    """The expected data of an observed site."""
    fn, shape = site["fn"], np.shape(site["value"])
    while isinstance(fn, dist.Independent | dist.MaskedDistribution):
        fn = fn.base_dist
    if name not in case.nodes:
        return np.broadcast_to(fn.mean, shape)
    y, measure = (x.reshape((-1,) + (1,) * len(shape)) for x in case.nodes[name])
    probability = measure * np.exp(fn.log_prob(jnp.broadcast_to(y, (len(y), *shape))))
    return np.sum(y * probability, axis=0)


def metric_matrix(problem, xi):
    """The dense form of `problem.metric(xi).mv`, compiled."""
    return np.asarray(quick_jit(lambda problem, xi: _matrix(problem.metric(xi), xi))(problem, xi))


def _matrix(metric, xi):
    flat, unravel = ravel_pytree(xi)
    image = lambda e: ravel_pytree(metric.mv(unravel(e)))[0]
    return jax.vmap(image, out_axes=-1)(jnp.eye(flat.size, dtype=flat.dtype))


@functools.lru_cache(maxsize=KEPT)
def evaluated(name, precision="float64"):
    """What most tests look at, in one compiled program a case: densities, matrix, adjoint pair and draws."""
    with jax.enable_x64(precision == "float64"):
        return _evaluated(CASES[name], build(name, precision))


def _evaluated(case, problem):
    latents = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(random_latent(problem, seed) for seed in range(4)))

    @quick_jit
    def evaluate(problem, latents, key):
        xi, v = (jax.tree.map(lambda leaf, i=i: leaf[i], latents) for i in (0, 1))
        metric = problem.metric(xi)
        forward, unravel = ravel_pytree(metric.matvec(v))
        u = jax.random.normal(key, forward.shape, forward.dtype)
        draws = jax.vmap(lambda k: ravel_pytree(metric.draw(k))[0])(jax.random.split(key, DRAWS))
        return {
            "ours": jax.lax.map(problem.neg_log_density, latents),
            "theirs": jax.lax.map(lambda xi: neg_log_density(case, problem, xi), latents),
            "parts": log_likelihood_in_parts(case, problem, xi),
            "matrix": _matrix(metric, xi),
            "left": jnp.vdot(u, forward),
            "right": jnp.vdot(ravel_pytree(metric.rmatvec(unravel(u)))[0], ravel_pytree(v)[0]),
            "size": jnp.linalg.norm(u) * jnp.linalg.norm(forward),
            "mean": draws.mean(axis=0),
            "covariance": jnp.matmul(draws.T, draws, precision="highest") / DRAWS,
        }

    return {k: np.asarray(x, float) for k, x in evaluate(problem, latents, jax.random.key(3)).items()}
