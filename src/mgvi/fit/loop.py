"""The rounds of a fit, from the first to the last.

A problem comes in; a Posterior goes out. It must not know an inner product.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi.fit.rounds import Knobs, Rounds
from mgvi.fit.schedule import PAPER, Automatic, Settings, Staged
from mgvi.linalg import Stop
from mgvi.minimizers import Limits, NewtonCG
from mgvi.problem import Problem
from mgvi.samplers import MGVI
from mgvi.status import Status


def fit(problem: Problem, *, seed: int, schedule="auto", sampler=None, max_rounds=60, tolerance=0.05):
    sampler = sampler or MGVI()
    minimizer = NewtonCG()
    latents = sum(int(np.prod(leaf.shape)) for leaf in problem.latent.values())
    data = sum(int(np.size(d)) for d in problem.data.values())
    plan = Automatic(latents, data, tolerance) if schedule == "auto" else Staged(PAPER if schedule == "paper" else schedule)
    rounds = Rounds(problem, sampler, minimizer)
    root = jax.random.key(seed)
    mean = _tree.zeros(problem.latent)
    history: list[dict] = []
    while True:
        settings = plan.next(history)
        if isinstance(settings, Status):
            break
        if len(history) >= max_rounds:
            settings = Status.ITERATION_LIMIT
            break
        start = time.perf_counter()
        epoch = len(history) if settings.fresh else -1
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(root, epoch + 1), i))(jnp.arange(settings.pairs))
        knobs = knobs_of(settings)
        compiled = rounds.compile_seconds
        deviations, report = rounds.draw(mean, keys, knobs.draw, settings.beta)
        mean, outcome = rounds.minimize(mean, deviations, knobs)
        noise = rounds.noise(mean, outcome.scatter, deviations, knobs.draw) if settings.measure_noise else {"": jnp.nan}
        compiled = rounds.compile_seconds - compiled
        history.append(record(len(history), settings, report, outcome, noise))
        history[-1]["seconds"] = time.perf_counter() - start - compiled
        history[-1]["compile_seconds"] = compiled
    return mean, deviations, history, settings


def knobs_of(settings: Settings, shrink=1.0) -> Knobs:
    return Knobs(
        beta=settings.beta,
        shrink=shrink,
        draw=Stop(settings.draw_residual, settings.draw_energy, settings.draw_cg),
        newton=Limits(
            settings.newton_steps,
            settings.newton_decrement,
            Stop(settings.newton_residual, 0.0, settings.newton_cg),
        ),
    )


def record(index, settings, report, outcome, noise) -> dict[str, Any]:
    report, outcome, noise = jax.device_get((report, outcome._replace(scatter=None), noise))
    return {
        "round": index,
        "beta": settings.beta,
        "pairs": settings.pairs,
        "fresh": settings.fresh,
        "kl": float(outcome.kl),
        "shift": float(max(outcome.shift.values())),
        "noise": float(max(noise.values())),
        "draw_cg": int(report.iterations.max()),
        "draw_status": int(report.status.max()),
        "newton_steps": int(outcome.newton.steps),
        "newton_cg": int(outcome.newton.cg_iterations),
        "newton_status": int(outcome.newton.status),
        "decrement": float(outcome.newton.decrement),
        "shortest_step": float(outcome.newton.shortest),
    }
