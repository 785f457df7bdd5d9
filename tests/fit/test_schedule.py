"""The automatic schedule as a function of the history."""

import pytest

from mgvi.fit.schedule import Automatic, Settings
from mgvi.status import Status


def settled(**changes):
    record = {
        "beta": 1.0,
        "fresh": False,
        "pairs": 256,
        "shift": 0.001,
        "noise": 0.01,
        "newton_status": int(Status.CONVERGED),
        "decrement": 1e-5,
    }
    return [{**record, **changes}]


def plan():
    return Automatic(latents=10, data=10)


def test_small_shift_and_noise_is_convergence():
    assert plan().next(settled()) is Status.CONVERGED


def test_mean_that_is_stuck_is_not_converged():
    stuck = settled(shift=0.0, newton_status=int(Status.NO_DESCENT), decrement=5.0)
    assert plan().next(stuck) is Status.NO_DESCENT


def test_failed_line_search_at_the_accuracy_of_the_arithmetic_is_convergence():
    assert plan().next(settled(shift=0.0, newton_status=int(Status.NO_DESCENT), decrement=1e-4)) is Status.CONVERGED


def test_noise_adds_pairs_and_ends_as_noisy_with_the_most():
    more = plan().next(settled(noise=0.5))
    assert isinstance(more, Settings) and more.pairs > 256
    assert plan().next(settled(noise=0.5, pairs=1024)) is Status.NOISY


@pytest.mark.parametrize(("steps", "shortest", "beta"), [(2, 1.0, 1e-2), (2, 0.5, 1e-3), (12, 1.0, 3e-4)])
def test_likelihood_comes_in_faster_the_easier_the_round(steps, shortest, beta):
    history = settled(beta=1e-4, fresh=True, newton_steps=steps, shortest_step=shortest)
    assert plan().next(history).beta == pytest.approx(beta)
