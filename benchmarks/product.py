"""One metric product of a field with Bernoulli data and learned spectrum, against one real FFT pair of that size."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.scaling import classification
from mgvi import FisherMetric
from mgvi.problem.density import whitened


@partial(jax.jit, static_argnames="count")
def ours(problem, samples, v, *, count):
    """Products with the metrics at a stack of points, chained so that none can be skipped."""
    push = jax.linearize(lambda x: jax.vmap(partial(whitened, problem))(x), samples)[1]
    metric = FisherMetric(push, samples)

    def step(_, v):
        return jax.tree.map(lambda a: 1e-3 * a, metric.mv(v))

    return lax.fori_loop(0, count, step, v)


@partial(jax.jit, static_argnames="count")
def floor(x, weight, *, count):
    """A real FFT, a multiplication, the inverse FFT, a multiplication."""

    def step(_, x):
        return weight * jnp.fft.irfftn(jnp.fft.rfftn(x, axes=(-2, -1)) * 1e-3, s=x.shape[-2:], axes=(-2, -1))

    return lax.fori_loop(0, count, step, x)


def seconds(function, *arguments, count, repeats=3):
    """Shortest time of one pass through the loop."""
    compiled = function.lower(*arguments, count=count).compile()
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    return min(times) / count


def run(sizes=(128, 512, 1024), pairs=(1, 4, 8)):
    """A row for each size and number of pairs: milliseconds of one product for all samples of the pairs."""
    for size in sizes:
        problem, *_ = classification(size)
        for count in pairs:
            rng = np.random.default_rng(1)
            samples = {
                name: jnp.asarray(0.3 * rng.normal(size=(2 * count, *leaf.shape)), leaf.dtype)
                for name, leaf in problem.latent.items()
            }
            x = jnp.asarray(rng.normal(size=(2 * count, size, size)), jnp.float32)
            loops = 200 if jax.default_backend() != "cpu" else min(200, max(3, int(2**25 / (size**2 * count))))
            mine = seconds(ours, problem, samples, samples, count=loops)
            base = seconds(floor, x, x[0], count=loops)
            yield {
                "device": jax.devices()[0].device_kind,
                "grid": f"{size}^2",
                "pairs": count,
                "ours (ms)": f"{1e3 * mine:.3f}",
                "floor (ms)": f"{1e3 * base:.3f}",
                "ratio": mine / base,
                "a sample (us)": f"{1e6 * mine / (2 * count):.0f}",
            }
