"""Fisher information of discrete families: closed forms where they exist, else sums over the support.

One rule a family, in the names of the distribution's own attributes.
It must not know wrappers such as Expanded or Masked.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax

from mgvi.distributions.fisher import Component, FisherSqrt, fisher_from_information, fisher_rows, register_fisher


def _positive(x):
    x = jnp.asarray(x, jnp.result_type(x, float))
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


@register_fisher(dist.Poisson)
def _poisson(d):
    # For a log-normal rate, the mean of 1 / rate is the mean of the rate over its squared median. That is the curvature
    # of the log-likelihood in log(rate), averaged, in units of the median: so information may be averaged.
    return fisher_rows({"rate": d.rate}, [{"rate": lax.rsqrt(_positive(d.rate))}], averages=True)


def _bernoulli_slope(logits):
    """sqrt(p (1 - p)), also where p rounds to 0 or 1."""
    return jnp.sqrt(jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits))


@register_fisher(dist.BernoulliProbs)
def _bernoulli_probs(d):
    return fisher_rows({"probs": d.probs}, [{"probs": lax.rsqrt(_positive(d.probs * (1 - d.probs)))}])


@register_fisher(dist.BernoulliLogits)
def _bernoulli_logits(d):
    return fisher_rows({"logits": d.logits}, [{"logits": _bernoulli_slope(d.logits)}], averages=True)


@register_fisher(dist.BinomialProbs)
def _binomial_probs(d):
    root = jnp.sqrt(d.total_count / _positive(d.probs * (1 - d.probs)))
    return fisher_rows({"probs": d.probs}, [{"probs": root}])


@register_fisher(dist.BinomialLogits)
def _binomial_logits(d):
    root = jnp.sqrt(jnp.asarray(d.total_count, jnp.result_type(d.logits, float))) * _bernoulli_slope(d.logits)
    return fisher_rows({"logits": d.logits}, [{"logits": root}], averages=True)


@register_fisher(dist.GeometricProbs)
def _geometric_probs(d):
    return fisher_rows({"probs": d.probs}, [{"probs": lax.rsqrt(_positive(1 - d.probs)) / _positive(d.probs)}])


@register_fisher(dist.GeometricLogits)
def _geometric_logits(d):
    return fisher_rows({"logits": d.logits}, [{"logits": jnp.sqrt(jax.nn.sigmoid(-d.logits))}])


@register_fisher(dist.CategoricalProbs)
def _categorical_probs(d):
    root = lax.rsqrt(_positive(d.probs))
    return FisherSqrt({"probs": d.probs}, (Component(("probs",), lambda t: t["probs"] * root, event_dim=1),))


def _centred(logits):
    """Tangents of logits to sqrt(p) (t - <t>), whose Gram matrix is diag(p) - p p^T."""
    p = jax.nn.softmax(logits, axis=-1)

    def apply(tangents):
        t = tangents["logits"]
        return jnp.sqrt(p) * (t - jnp.sum(p * t, axis=-1, keepdims=True))

    return apply


@register_fisher(dist.CategoricalLogits)
def _categorical_logits(d):
    return FisherSqrt({"logits": d.logits}, (Component(("logits",), _centred(d.logits), event_dim=1),))


def _root_count(d, like):
    return jnp.sqrt(jnp.asarray(d.total_count, jnp.result_type(like, float)))[..., None]


@register_fisher(dist.MultinomialProbs)
def _multinomial_probs(d):
    root = _root_count(d, d.probs) * lax.rsqrt(_positive(d.probs))
    return FisherSqrt({"probs": d.probs}, (Component(("probs",), lambda t: t["probs"] * root, event_dim=1),))


@register_fisher(dist.MultinomialLogits)
def _multinomial_logits(d):
    centred, root = _centred(d.logits), _root_count(d, d.logits)
    component = Component(("logits",), lambda t: root * centred(t), event_dim=1)
    return FisherSqrt({"logits": d.logits}, (component,))


@register_fisher(dist.ZeroInflatedPoisson)
def _zero_inflated_poisson(d):
    gate, rate = d.gate, _positive(d.rate)
    none = jnp.exp(-rate)
    zero = gate + (1 - gate) * none
    by_gate, by_rate = -jnp.expm1(-rate) / zero, -(1 - gate) * none / zero  # scores of a zero count
    return fisher_from_information(
        {"rate": d.rate, "gate": gate},
        {
            ("rate", "rate"): (1 - gate) * (1 / rate - none) + zero * by_rate**2,
            ("rate", "gate"): -none + zero * by_gate * by_rate,
            ("gate", "gate"): -jnp.expm1(-rate) / _positive(1 - gate) + zero * by_gate**2,
        },
    )


@register_fisher(dist.GammaPoisson)
def _gamma_poisson(d):
    """Negative binomials: mean and concentration are orthogonal; the rate is concentration / mean."""
    c, rate = jnp.asarray(d.concentration, jnp.result_type(d.concentration, float)), d.rate
    mean = c / rate
    root = jnp.sqrt(c / (mean * (mean + c)))
    return fisher_rows(
        {"concentration": d.concentration, "rate": rate},
        [
            {"concentration": root / rate, "rate": -root * mean / rate},
            {"concentration": jnp.sqrt(_concentration_information(mean, c))},
        ],
    )


_LOG_T = np.linspace(np.log(1e-9), np.log(60.0), 257)


def _concentration_information(mean, c):
    """Information of a negative binomial's concentration at fixed mean: one integral in log t.

    The second derivative of log Gamma is an integral over exp(-c t); its expectation under the counts then only needs
    their probability generating function. The integrand is formed as a difference of small terms per node.
    """
    mean, c = jnp.broadcast_arrays(mean, c)
    ratio = mean / c
    step = _LOG_T[1] - _LOG_T[0]

    def add(total, log_s):
        t = jnp.exp(log_s) / c  # nodes in units of the decay of exp(-c t)
        log_pgf = -c * jnp.log1p(-ratio * jnp.expm1(-t))  # log E[exp(-t y)]
        bose = jnp.where(t < 1e-4, 1 + 0.5 * t, t / -jnp.expm1(-t))
        integrand = jnp.exp(-c * t) * (jnp.expm1(-mean * t) - bose * jnp.expm1(log_pgf))
        return total + t * integrand, None

    total, _ = lax.scan(add, jnp.zeros_like(c), jnp.asarray(_LOG_T, c.dtype))
    # The limit of large c, with its first correction, where the integrand cancels.
    nearly_poisson = 0.5 * (ratio / (c + mean)) ** 2 * (1 - (1 - ratio / 3) / ((1 + ratio) * c))
    limit = 100.0 if c.dtype == jnp.float32 else 1e3
    return jnp.where(c > limit, nearly_poisson, jnp.maximum(step * total, 0.0))


@register_fisher(dist.BetaBinomial)
def _beta_binomial(d):
    """Summed over the counts, in terms of the mean and the total, whose scores are sums without cancellation."""
    dtype = jnp.result_type(d.concentration1, d.concentration0, float)
    given = (d.concentration1, d.concentration0, d.total_count)
    a, b, n = jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in given))
    total = a + b
    mean = a / total
    most = jnp.max(n).astype(int)

    def harmonic(start):
        """Sum of 1 / (start + j) over j < n."""
        add = lambda j, s: s + jnp.where(j < n, 1 / (start + j), 0.0)
        return lax.fori_loop(0, most, lambda j, s: add(j.astype(dtype), s), jnp.zeros_like(a))

    every = harmonic(total)

    def add(y, state):
        """One count: its log-probability by recursion, its scores by running sums, moments rescaled as they grow."""
        log_p, up, down, top, moments = state
        by_mean, by_total = total * (up - down), mean * up + (1 - mean) * down - every
        scores = jnp.stack([jnp.ones_like(a), by_mean**2, by_mean * by_total, by_total**2])
        inside = y <= n
        new_top = jnp.where(inside, jnp.maximum(top, log_p), top)
        moments = moments * jnp.exp(top - new_top) + jnp.where(inside, jnp.exp(log_p - new_top), 0.0) * scores
        rest = jnp.maximum(n - y - 1, 0.0)
        log_p = log_p + jnp.log(jnp.maximum(n - y, 1.0) * (a + y)) - jnp.log((y + 1) * (b + rest))
        return log_p, up + 1 / (a + y), down - jnp.where(y < n, 1 / (b + rest), 0.0), new_top, moments

    zero = jnp.zeros_like(a)
    start = (zero, zero, harmonic(b), zero, jnp.zeros((4, *a.shape), dtype))
    moments = lax.fori_loop(0, most + 1, lambda i, state: add(i.astype(dtype), state), start)[-1]
    mm, mt, tt = moments[1:] / moments[0]
    root = jnp.sqrt(_positive(mm))
    rest = jnp.sqrt(jnp.maximum(tt - mt**2 / _positive(mm), 0.0))
    # The mean changes by (da (1 - mean) - db mean) / total, the total by da + db.
    return fisher_rows(
        {"concentration1": d.concentration1, "concentration0": d.concentration0},
        [
            {
                "concentration1": root * (1 - mean) / total + mt / root,
                "concentration0": -root * mean / total + mt / root,
            },
            {"concentration1": rest, "concentration0": rest},
        ],
    )
