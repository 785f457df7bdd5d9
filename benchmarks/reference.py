"""Default fits of the reference cases, in float64, against what long runs say of their means and sds.

Seconds are those of building, compiling, fitting and summarising; those of a corrected row come on top.
"""

import time
import warnings
from collections.abc import Iterator

import jax
import numpy as np
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import mgvi
from benchmarks import cases

MEAN, SD = 0.15, 0.15  # how far a mean may be off, in sds, and an sd, relatively


def run() -> Iterator[dict]:
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", mgvi.MgviWarning)  # the table says it
    for make in cases.CASES:
        case = make()
        start = time.perf_counter()
        problem = mgvi.from_numpyro(case.model, *case.arguments)
        posterior = mgvi.fit(problem, seed=1, progress=False)
        posterior.summary()
        seconds = time.perf_counter() - start
        check = posterior.check
        reference, source = (case.reference, "stored") if case.reference else nuts(problem)
        k = check.pareto_k if check else None
        flagged = check is not None and not check.ok
        yield row(case.name, posterior.status.name, seconds, k, posterior, reference, source, flagged)
        if flagged and k < 0.7:
            start = time.perf_counter()
            try:
                mended = posterior.corrected(seed=2)
            except ValueError:  # the larger pool's weights are not to be trusted after all
                continue
            mended.summary()
            seconds = time.perf_counter() - start
            yield row(f"{case.name}, corrected", mended.status.name, seconds, k, mended, reference, source, flagged)


def row(name, status, seconds, k, posterior, reference, source, flagged) -> dict:
    """One line of the table."""
    shift = {site: float(np.max(np.abs(posterior.mean[site] - mean) / sd)) for site, (mean, sd) in reference.items()}
    ratio = np.concatenate([np.ravel(posterior.sd[site] / sd) for site, (_, sd) in reference.items()])
    worst = max(shift, key=lambda site: shift[site])
    low, high = float(ratio.min()), float(ratio.max())
    within = shift[worst] <= MEAN and 1 - SD <= low and high <= 1 + SD
    return {
        "case": name,
        "status": status,
        "seconds (cold)": seconds,
        "Pareto k": k,
        "worst mean (sd)": f"{shift[worst]:.3f} ({worst})",
        "sd ratios": f"{low:.2f} to {high:.2f}",
        "verdict": "within" if within else "flagged" if flagged else "MISSED",
        "reference": source,
    }


def nuts(problem) -> tuple[dict, str]:
    """Reference means and sds by NUTS on the standardised density, and how well its two chains agree."""
    kernel = NUTS(potential_fn=problem.neg_log_density)
    chains = MCMC(
        kernel, num_warmup=1000, num_samples=2000, num_chains=2, chain_method="sequential", progress_bar=False
    )
    keys = jax.random.split(jax.random.key(0), len(problem.latent))
    start = {
        name: 0.1 * jax.random.normal(key, (2, *leaf.shape), leaf.dtype)
        for key, (name, leaf) in zip(keys, problem.latent.items(), strict=True)
    }
    chains.run(jax.random.key(1), init_params=start)
    latent = chains.get_samples(group_by_chain=True)
    samples = jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(problem.constrain)))(latent))
    worst = max(float(np.max(split_gelman_rubin(x))) for x in samples.values())
    answer = {name: (x.mean(axis=(0, 1)), x.std(axis=(0, 1))) for name, x in samples.items()}
    divergent = int(chains.get_extra_fields()["diverging"].sum())
    return answer, f"NUTS, R-hat {worst:.3f}, {divergent} divergent"
