"""The automatic schedule as a function of the history."""

import math

import pytest

from mgvi.fit.large_plan import LargePlan
from mgvi.fit.schedule import Settings, Stage, Staged
from mgvi.fit.small_plan import SmallPlan
from mgvi.status import Status


def settled(**changes):
    record = {
        "beta": 1.0,
        "fresh": False,
        "measure_noise": True,
        "change": 0.001,
        "along": [0.0, 0.0],
        "weight": 1.0,
        "pairs": 256,
        "shift": 0.001,
        "noise": 0.01,
        "newton_status": int(Status.CONVERGED),
        "decrement": 1e-5,
        "damping": 0.0,
        "kl": 1e6,
        "shrink": 1.0,
        "begin": None,
        "finite": True,
        "shortest_step": 1.0,
        "recycle": False,
        "thorough": False,
        "rough": True,
        "draw_cg": 5,
        "newton_steps": 5,
        "newton_cg": 20,
    }
    return [{**record, "begin": "modest"}, {**record, **changes}]


TEMPERED = [settled()[0], {**settled(beta=1e-4)[1], "begin": "prior"}]


def plan():
    return SmallPlan(latents=1000, data=1000, spread=8)


def test_small_shift_and_noise_is_convergence():
    assert plan().next(settled()) is Status.CONVERGED


def test_first_round_has_the_whole_likelihood_few_pairs_and_the_metric_at_modest_scales():
    first = plan().next([])
    assert isinstance(first, Settings) and first.begin == "modest" and first.beta == 1
    assert first.pairs == plan().fewest < 256 and first.spread == 0 and first.centre


def test_pairs_are_few_while_the_mean_goes_far_and_then_many_with_an_averaged_curvature():
    first = {**settled()[0], "pairs": 8}
    few = [plan().next([first]), plan().next([first, settled(pairs=8, shift=3.0)[1]])]
    assert all(step.pairs == 8 and step.spread == 0 and step.begin is None for step in few)
    many = plan().next([first, settled(pairs=8, shift=0.5)[1]])
    assert many.pairs == 256 and many.spread == 8


LOST = [
    {"noise": 10.0},
    {"noise": math.nan, "finite": False},
    {"newton_status": int(Status.NO_DESCENT), "decrement": 5.0},
]


@pytest.mark.parametrize("lost", LOST)
def test_beginning_that_is_lost_is_followed_by_a_likelihood_that_comes_in_step_by_step_without_coordinates(lost):
    first = {**settled()[0], "pairs": 8}
    for history in ([{**first, **lost}], [first, {**settled(pairs=8)[1], **lost}]):
        step = plan().next(history)
        assert isinstance(step, Settings) and step.begin == "prior" and step.beta < 1e-3 and not step.centre


def test_few_pairs_may_take_some_rounds_to_find_the_minimum_but_not_for_ever():
    first = {**settled()[0], "pairs": 8}
    far = settled(pairs=8, newton_status=int(Status.ITERATION_LIMIT), decrement=5.0, shift=3.0)[1]
    assert plan().next([first, *3 * [far]]).begin is None
    assert plan().next([first, *9 * [far]]).begin == "prior"
    near = plan().next([first, *9 * [{**far, "decrement": 0.5}]])
    assert near.begin is None and near.pairs == 256


def test_mean_that_is_stuck_is_not_converged_but_begins_anew_once():
    stuck = settled(shift=0.0, newton_status=int(Status.NO_DESCENT), decrement=5.0)
    again = plan().next(stuck)
    assert isinstance(again, Settings) and again.begin == "prior" and not again.centre and again.beta < 1
    more = plan().next([*TEMPERED, settled()[1], settled(shift=0.3)[1]])
    assert isinstance(more, Settings) and more.begin is None and not more.centre and more.spread
    assert isinstance(plan().next([*TEMPERED, settled()[1], {**stuck[1], "change": 0.5}]), Settings)
    assert plan().next([*TEMPERED, stuck[1], stuck[1]]) is Status.NO_DESCENT


def test_settings_have_the_same_types_in_every_round():
    """A number of another type would compile the programs of a round again."""
    for schedule in (LargePlan(latents=10_000, data=10_000, most=128), plan(), Staged([Stage(2, 10, 3, 5)])):
        first, second = schedule.next([]), schedule.next(TEMPERED[1:])
        for name, value in first.to_json().items():
            assert name == "begin" or type(value) is type(getattr(second, name)), name


def test_failed_line_search_at_the_accuracy_of_the_arithmetic_is_convergence():
    assert plan().next(settled(shift=0.0, newton_status=int(Status.NO_DESCENT), decrement=1e-4)) is Status.CONVERGED


def test_large_problem_at_rest_recycles_its_preconditioner_but_not_for_ever():
    large = LargePlan(latents=10_000, data=10_000, most=128)
    history = settled(pairs=8, shift=0.3, noise=1.0, change=0.5)[1:]
    for expected in (True, True, True, False, True):
        step = large.next(history)
        assert isinstance(step, Settings) and step.recycle is expected
        history.append({**history[0], "recycle": step.recycle})
    for moved in ({"shift": 0.6}, {"draw_cg": 100}, {"measure_noise": False}):
        step = large.next([*history[:1], {**history[0], **moved}])
        assert isinstance(step, Settings) and not step.recycle


def test_curvature_is_rough_while_the_mean_goes_far_and_samples_agree_and_never_again():
    assert plan().next(settled(shift=0.6, noise=0.1)).rough
    for precise in ({"shift": 0.2}, {"noise": 0.5}, {"rough": False}):
        assert not plan().next(settled(**{"shift": 0.6, "noise": 0.1, **precise})).rough


def test_pairs_that_are_too_few_are_not_settled_first():
    calm = settled(shift=0.2, change=0.15, noise=0.5)
    assert plan().next(calm).pairs > 256
    for restless in ({"shift": 0.3}, {"change": 0.25}, {"noise": 0.09}):
        assert plan().next([calm[0], {**calm[1], **restless}]).pairs == 256


def test_noise_adds_pairs_and_ends_as_noisy_with_the_most():
    more = plan().next(settled(noise=0.5))
    assert isinstance(more, Settings) and more.pairs > 256
    assert plan().next(settled(noise=0.5, pairs=1024)) is Status.NOISY


@pytest.mark.parametrize(("steps", "shortest", "beta"), [(2, 1.0, 1e-2), (2, 0.5, 1e-3), (12, 1.0, 3e-4)])
def test_likelihood_comes_in_faster_the_easier_the_round(steps, shortest, beta):
    last = settled(beta=1e-4, newton_steps=steps, shortest_step=shortest)[1]
    assert plan().next([*TEMPERED, last]).beta == pytest.approx(beta)


def test_creeping_rounds_are_extrapolated_and_overshooting_ones_damped():
    creeping = plan().next(settled(shift=0.1, along=[0.8, 0.64]))
    assert isinstance(creeping, Settings) and creeping.weight == pytest.approx(5.0)  # 1 / (1 - 0.8)
    assert plan().next(settled(shift=0.25, along=[0.8, 0.64])).weight == pytest.approx(
        2.0
    )  # not farther than half an sd
    overshooting = plan().next(settled(shift=0.3, along=[-0.5, 0.25]))
    assert isinstance(overshooting, Settings) and overshooting.weight == pytest.approx(1 / 1.5)


def test_moves_are_compared_as_if_they_had_the_same_weight():
    halved = settled(shift=0.05, along=[0.4, 0.16], weight=0.5)  # half as long as they would have been
    assert plan().next(halved).weight == pytest.approx(5.0)
    assert plan().next(
        [{**halved[0], "weight": 0.5}, {**halved[1], "weight": 1.0, "along": [1.6, 2.56], "shift": 0.1}]
    ).weight == (
        pytest.approx(2.5)  # 0.5 / (1 - 0.8)
    )


def test_small_shift_of_creeping_rounds_is_not_convergence():
    assert isinstance(plan().next(settled(shift=0.02, noise=0.03, along=[0.9, 0.81])), Settings)


def test_deviations_that_still_change_are_not_convergence():
    assert isinstance(plan().next(settled(change=0.5)), Settings)


def test_nothing_found_to_descend_slows_the_tempering():
    last = settled(beta=1e-4, newton_steps=1, newton_status=int(Status.NO_DESCENT))[1]
    assert plan().next([*TEMPERED, last]).beta == pytest.approx(3e-4)


def large(**changes):
    return settled(**{"pairs": 4, **changes})


def test_large_problem_adds_pairs_when_noise_dominates_progress():
    plan = LargePlan(latents=80_000, data=80_000, most=32)
    assert plan.next(large(shift=0.8, noise=0.3, pairs=8)).pairs == 8  # still moving
    assert plan.next(large(shift=1.8, noise=3.0, pairs=8)).pairs == 8  # noisy, but far from where it leads to
    assert plan.next(large(shift=0.2, noise=0.3, pairs=8)).pairs == 32
    assert plan.next(large(shift=0.01, noise=0.05)) is Status.CONVERGED


def test_large_problem_has_few_pairs_for_some_rounds_while_its_mean_goes_far():
    plan = LargePlan(latents=80_000, data=80_000, most=32)
    first = plan.next(large(beta=0.1)[1:]).pairs
    tempered = large(measure_noise=False, pairs=first, shift=5.0)[1:]
    far, near = large(shift=5.0, noise=3.0, pairs=first)[1:], large(shift=0.5, noise=3.0, pairs=first)[1:]
    assert plan.next(tempered).pairs == plan.next(tempered + far).pairs == first < 8
    assert plan.next(tempered + near).pairs == plan.next(tempered + 3 * far).pairs == 8


def test_few_pairs_are_new_ones_while_the_kl_falls_if_data_outnumber_latents():
    falling = [*large(pairs=2, kl=1e6)[1:], *large(pairs=2, kl=1e6 - 2e3, noise=3.0)[1:]]
    step = LargePlan(latents=80_000, data=400_000, most=8).next(falling)
    assert step.pairs == 2 and step.fresh
    assert not LargePlan(latents=80_000, data=80_000, most=32).next(falling).fresh
    rests = [*falling, *large(pairs=2, kl=1e6 - 2.5e3, noise=3.0, fresh=True)[1:]]
    step = LargePlan(latents=80_000, data=400_000, most=8).next(rests)
    assert step.pairs == 8 and not step.fresh


def test_damping_is_handed_on_to_the_next_round():
    damped = large(pairs=8, shift=0.8, noise=0.3, damping=16.0)
    assert LargePlan(latents=80_000, data=80_000, most=32).next(damped).newton_damping == 16.0
    assert Staged([Stage(1, 10, 3, rounds=5)]).next(damped).newton_damping == 16.0


def test_large_problem_that_is_stuck_ends_and_one_with_smaller_deviations_goes_on():
    plan = LargePlan(latents=80_000, data=80_000, most=32)
    stuck = large(pairs=8, newton_status=int(Status.NO_DESCENT), decrement=1e4)
    assert plan.is_stuck(stuck[-1]) and plan.next(stuck) is Status.NO_DESCENT
    assert not plan.is_stuck(large(newton_status=int(Status.NO_DESCENT))[-1])
    assert isinstance(plan.next(large(pairs=8, shift=0.01, noise=0.05, shrink=0.5)), Settings)


def test_large_problem_has_many_pairs_only_if_it_would_be_noisy_otherwise():
    plan = LargePlan(latents=20_000, data=20_000, most=128)
    assert plan.next(large(shift=0.2, noise=0.6, pairs=32)).pairs == 128
    assert plan.next(large(shift=0.2, noise=0.4, pairs=32)).pairs == 32
    assert plan.next(4 * large(shift=0.2, noise=0.4, pairs=32)[1:]) is Status.CONVERGED
    assert plan.next(4 * large(shift=0.2, noise=0.6, pairs=128)[1:]) is Status.NOISY


def test_long_draws_of_a_large_problem_are_preconditioned_thoroughly_from_then_on():
    plan = LargePlan(latents=20_000, data=20_000, most=128)
    long, short = large(shift=2.0, draw_cg=80), large(shift=2.0)
    assert plan.next(long + short).thorough
    assert not plan.next(short + short).thorough


def test_steps_of_a_large_problem_are_rough_only_while_its_mean_goes_far():
    plan = LargePlan(latents=20_000, data=20_000, most=128)
    far, near = (plan.next(large(shift=shift, noise=0.1)) for shift in (0.9, 0.2))
    assert far.newton_residual > near.newton_residual
    assert far.newton_share > near.newton_share
    assert far.newton_steps < near.newton_steps


def test_large_problem_ends_when_its_rounds_only_tremble():
    plan = LargePlan(latents=800_000, data=800_000, most=8)
    trembling = large(shift=0.2, noise=0.3, pairs=8)[1:]
    assert isinstance(plan.next(3 * trembling), Settings)
    assert plan.next(4 * trembling) is Status.CONVERGED
    assert isinstance(plan.next([*3 * trembling, {**trembling[0], "kl": 1e6 - 10_000}]), Settings)  # still falling
    assert plan.next(4 * large(shift=0.2, noise=0.9, pairs=8)[1:]) is Status.NOISY
