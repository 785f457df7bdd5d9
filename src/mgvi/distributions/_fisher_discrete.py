"""Fisher information of discrete families: closed forms where they exist, else sums over the support.

One rule a family, in the names of the distribution's own attributes.
It must not know wrappers such as Expanded or Masked.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import gammaln

from mgvi.distributions._fisher_special import trigamma
from mgvi.distributions.fisher import (
    Component,
    FisherSqrt,
    fisher_from_information,
    fisher_rows,
    register_fisher,
)


def _positive(x):
    x = jnp.asarray(x, jnp.result_type(x, float))
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


@register_fisher(dist.Poisson)
def _poisson(d):
    return fisher_rows({"rate": d.rate}, [{"rate": lax.rsqrt(_positive(d.rate))}])


def _bernoulli_slope(logits):
    """sqrt(p (1 - p)), also where p rounds to 0 or 1."""
    return jnp.sqrt(jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits))


@register_fisher(dist.BernoulliProbs)
def _bernoulli_probs(d):
    return fisher_rows({"probs": d.probs}, [{"probs": lax.rsqrt(_positive(d.probs * (1 - d.probs)))}])


@register_fisher(dist.BernoulliLogits)
def _bernoulli_logits(d):
    return fisher_rows({"logits": d.logits}, [{"logits": _bernoulli_slope(d.logits)}])


@register_fisher(dist.BinomialProbs)
def _binomial_probs(d):
    root = jnp.sqrt(d.total_count / _positive(d.probs * (1 - d.probs)))
    return fisher_rows({"probs": d.probs}, [{"probs": root}])


@register_fisher(dist.BinomialLogits)
def _binomial_logits(d):
    root = jnp.sqrt(jnp.asarray(d.total_count, jnp.result_type(d.logits, float))) * _bernoulli_slope(d.logits)
    return fisher_rows({"logits": d.logits}, [{"logits": root}])


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
    nearly_poisson = 0.5 * (ratio / (c + mean)) ** 2  # the limit, where the integrand cancels
    return jnp.where(c > 3e3, nearly_poisson, jnp.maximum(step * total, 0.0))


@register_fisher(dist.BetaBinomial)
def _beta_binomial(d):
    a, b = d.concentration1, d.concentration0
    a, b, n = jnp.broadcast_arrays(a, b, jnp.asarray(d.total_count, jnp.result_type(a, float)))
    log_norm = gammaln(a) + gammaln(b) - gammaln(a + b) + gammaln(a + b + n) - gammaln(n + 1)

    def add(y, totals):
        up, down = totals
        rest = jnp.maximum(n - y, 0.0)
        log_p = gammaln(a + y) + gammaln(b + rest) - log_norm - gammaln(1.0 + y) - gammaln(1 + rest)
        p = jnp.where(y <= n, jnp.exp(log_p), 0.0)
        return up + p * (trigamma(a) - trigamma(a + y)), down + p * (trigamma(b) - trigamma(b + rest))

    start = (jnp.zeros_like(a), jnp.zeros_like(a))
    most = jnp.max(n).astype(int)
    up, down = lax.fori_loop(0, most + 1, lambda i, total: add(i.astype(a.dtype), total), start)
    both = trigamma(a + b) - trigamma(a + b + n)
    return fisher_from_information(
        {"concentration1": d.concentration1, "concentration0": d.concentration0},
        {
            ("concentration1", "concentration1"): up - both,
            ("concentration1", "concentration0"): -both,
            ("concentration0", "concentration0"): down - both,
        },
    )
