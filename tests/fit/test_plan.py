"""The automatic schedule as a function of the history."""

import math
from dataclasses import replace

import pytest

from mgvi.budget import Budget
from mgvi.fit.plan import AutoPlan
from mgvi.fit.records import AVERAGE, BEGIN, FEW, SETTLE, TEMPER, Record, RoundSettings
from mgvi.fit.stages import Stage, StagedPlan
from mgvi.status import Status


def settled(**changes):
    noise = changes.get("noise", 0.01)
    record = {
        "mcse": {} if noise is None else {"x": noise},
        "phase": SETTLE,
        "spread": 8,
        "beta": 1.0,
        "fresh": False,
        "change": 0.001,
        "along": [0.0, 0.0],
        "weight": 1.0,
        "pairs": 256,
        "shift": 0.001,
        "noise": 0.01,
        "measure": True,
        "newton_status": int(Status.CONVERGED),
        "decrement": 1e-5,
        "damping": 0.0,
        "kl": 1e6,
        "shrink": 1.0,
        "start": None,
        "finite": True,
        "shortest_step": 1.0,
        "recycle": False,
        "thorough": False,
        "rough": True,
        "draw_cg": 5,
        "newton_steps": 5,
        "newton_cg": 20,
    }
    told = {**record, **changes}
    told.setdefault("mcse", {} if told["noise"] is None else {"x": told["noise"]})
    return [{**record, "start": "modest", "phase": BEGIN}, told]


def given(plan, history):
    return plan.next([Record.of(values) for values in history])


TEMPERED = [settled()[0], {**settled(beta=1e-4, phase=TEMPER)[1], "start": "prior"}]


def plan():
    return AutoPlan(Budget.of(1000, 1000), 1000, 1000)


def large_plan(latents, data, most):
    return AutoPlan(replace(Budget.of(latents, data), most=most), latents, data)


def test_small_shift_and_noise_is_convergence():
    assert given(plan(), settled()) is Status.CONVERGED


def test_first_round_has_the_whole_likelihood_few_pairs_and_the_metric_at_modest_scales():
    first = given(plan(), [])
    assert isinstance(first, RoundSettings) and first.start == "modest" and first.beta == 1
    assert first.pairs == Budget.of(1000, 1000).fewest < 256 and first.spread == 0 and first.centre


def test_pairs_are_few_while_the_mean_goes_far_and_then_many_with_an_averaged_curvature():
    first = {**settled()[0], "pairs": 8}
    few = [given(plan(), [first]), given(plan(), [first, settled(pairs=8, shift=3.0, phase=FEW)[1]])]
    assert all(step.pairs == 8 and step.spread == 0 and step.start is None for step in few)
    many = given(plan(), [first, settled(pairs=8, shift=0.5, phase=FEW)[1]])
    assert many.pairs == 256 and many.spread == Budget.of(1000, 1000).averaged


LOST = [
    {"noise": 10.0},
    {"noise": math.nan, "finite": False},
    {"newton_status": int(Status.NO_DESCENT), "decrement": 5.0},
]


@pytest.mark.parametrize("lost", LOST)
def test_beginning_that_is_lost_is_followed_by_a_likelihood_that_comes_in_step_by_step_without_coordinates(lost):
    first = {**settled()[0], "pairs": 8}
    for history in ([{**first, **lost}], [first, {**settled(pairs=8, phase=FEW)[1], **lost}]):
        step = given(plan(), history)
        assert isinstance(step, RoundSettings) and step.start == "prior" and step.beta < 1e-3 and not step.centre


def test_few_pairs_may_take_some_rounds_to_find_the_minimum_but_not_for_ever():
    first = {**settled()[0], "pairs": 8}
    far = settled(pairs=8, phase=FEW, newton_status=int(Status.ITERATION_LIMIT), decrement=5.0, shift=3.0)[1]
    assert given(plan(), [first, *3 * [far]]).start is None
    assert given(plan(), [first, *9 * [far]]).start == "prior"
    near = given(plan(), [first, *9 * [{**far, "decrement": 0.5}]])
    assert near.start is None and near.pairs == 256


def test_mean_that_is_stuck_is_not_converged_but_begins_anew_once():
    stuck = settled(shift=0.0, newton_status=int(Status.NO_DESCENT), decrement=5.0)
    again = given(plan(), stuck)
    assert isinstance(again, RoundSettings) and again.start == "prior" and not again.centre and again.beta < 1
    more = given(plan(), [*TEMPERED, settled()[1], settled(shift=0.3)[1]])
    assert isinstance(more, RoundSettings) and more.start is None and not more.centre and more.spread
    assert isinstance(given(plan(), [*TEMPERED, settled()[1], {**stuck[1], "change": 0.5}]), RoundSettings)
    assert given(plan(), [*TEMPERED, stuck[1], stuck[1]]) is Status.NO_DESCENT


def test_settings_have_the_same_types_in_every_round():
    """A number of another type would compile the programs of a round again."""
    for schedule in (large_plan(10_000, 10_000, most=128), plan(), StagedPlan([Stage(2, 10, 3, 5)])):
        first, second = given(schedule, []), given(schedule, TEMPERED[1:])
        for name, value in vars(first).items():
            assert name == "start" or type(value) is type(getattr(second, name)), name


def test_failed_line_search_at_the_accuracy_of_the_arithmetic_is_convergence():
    assert given(plan(), settled(shift=0.0, newton_status=int(Status.NO_DESCENT), decrement=1e-4)) is Status.CONVERGED


def test_large_problem_at_rest_recycles_its_preconditioner_but_not_for_ever():
    large = large_plan(10_000, 10_000, most=128)
    history = settled(pairs=8, shift=0.3, noise=1.0, change=0.5)[1:]
    for expected in (True, True, True, False, True):
        step = given(large, history)
        assert isinstance(step, RoundSettings) and step.recycle is expected
        history.append({**history[0], "recycle": step.recycle})
    for moved in ({"shift": 0.6}, {"draw_cg": 100}, {"phase": TEMPER}):
        step = given(large, [*history[:1], {**history[0], **moved}])
        assert isinstance(step, RoundSettings) and not step.recycle


def test_curvature_is_rough_while_the_mean_goes_far_and_samples_agree_and_never_again():
    assert given(plan(), settled(shift=0.6, noise=0.1)).rough
    for precise in ({"shift": 0.2}, {"noise": 0.5}, {"rough": False}):
        assert not given(plan(), settled(**{"shift": 0.6, "noise": 0.1, **precise})).rough


def test_pairs_that_are_too_few_are_not_settled_first():
    calm = settled(shift=0.2, change=0.15, noise=0.5)
    assert given(plan(), calm).pairs > 256
    for restless in ({"shift": 0.3}, {"change": 0.25}, {"noise": 0.09}):
        assert given(plan(), [calm[0], {**calm[1], **restless}]).pairs == 256


@pytest.mark.parametrize("large", [False, True])
def test_noise_adds_pairs_then_averages_means_of_fresh_samples_and_warns_only_if_that_does_not_help(large):
    schedule = large_plan(80_000, 80_000, most=8) if large else plan()
    few, most = (4, 8) if large else (256, 1024)
    noisy = settled(noise=0.7, change=0.01, pairs=most)
    more = given(schedule, settled(noise=0.7, change=0.01, pairs=few))
    assert isinstance(more, RoundSettings) and more.pairs > few
    averaging = given(schedule, [*noisy, noisy[1]])
    assert isinstance(averaging, RoundSettings) and averaging.phase == AVERAGE
    assert averaging.fresh and averaging.pairs == most and not averaging.centre
    averaged = {"phase": AVERAGE, "measure": False}
    rounds = lambda error, count: [*noisy, {**noisy[1], **averaged, "mcse": {"x": error}, "averaged_rounds": count}]
    assert given(schedule, rounds(0.45, 3)).phase == AVERAGE
    assert given(schedule, rounds(0.09, 5)) is Status.CONVERGED
    assert given(schedule, rounds(0.3, 16)) is Status.CONVERGED
    assert given(schedule, rounds(0.6, 16)) is Status.NOISY


@pytest.mark.parametrize(("steps", "shortest", "beta"), [(2, 1.0, 1e-2), (2, 0.5, 1e-3), (12, 1.0, 3e-4)])
def test_likelihood_comes_in_faster_the_easier_the_round(steps, shortest, beta):
    last = settled(beta=1e-4, phase=TEMPER, newton_steps=steps, shortest_step=shortest)[1]
    assert given(plan(), [*TEMPERED, last]).beta == pytest.approx(beta)


def test_creeping_rounds_are_extrapolated_and_overshooting_ones_damped():
    creeping = given(plan(), settled(shift=0.1, along=[0.8, 0.64]))
    assert isinstance(creeping, RoundSettings) and creeping.weight == pytest.approx(5.0)  # 1 / (1 - 0.8)
    assert given(plan(), settled(shift=0.25, along=[0.8, 0.64])).weight == pytest.approx(
        2.0
    )  # not farther than half an sd
    overshooting = given(plan(), settled(shift=0.3, along=[-0.5, 0.25]))
    assert isinstance(overshooting, RoundSettings) and overshooting.weight == pytest.approx(1 / 1.5)


def test_moves_are_compared_as_if_they_had_the_same_weight():
    halved = settled(shift=0.05, along=[0.4, 0.16], weight=0.5)  # half as long as they would have been
    assert given(plan(), halved).weight == pytest.approx(5.0)
    assert given(
        plan(), [{**halved[0], "weight": 0.5}, {**halved[1], "weight": 1.0, "along": [1.6, 2.56], "shift": 0.1}]
    ).weight == (
        pytest.approx(2.5)  # 0.5 / (1 - 0.8)
    )


def test_small_shift_of_creeping_rounds_is_not_convergence():
    assert isinstance(given(plan(), settled(shift=0.02, noise=0.03, along=[0.9, 0.81])), RoundSettings)


def test_deviations_that_still_change_are_not_convergence():
    assert isinstance(given(plan(), settled(change=0.5)), RoundSettings)


def test_nothing_found_to_descend_slows_the_tempering():
    last = settled(beta=1e-4, phase=TEMPER, newton_steps=1, newton_status=int(Status.NO_DESCENT))[1]
    assert given(plan(), [*TEMPERED, last]).beta == pytest.approx(3e-4)


def large(**changes):
    return settled(**{"pairs": 4, **changes})


def test_large_problem_adds_pairs_when_noise_dominates_progress():
    plan = large_plan(80_000, 80_000, most=32)
    assert given(plan, large(shift=0.8, noise=0.3, pairs=8)).pairs == 8  # still moving
    assert given(plan, large(shift=1.8, noise=3.0, pairs=8)).pairs == 8  # noisy, but far from where it leads to
    assert given(plan, large(shift=0.2, noise=0.3, pairs=8)).pairs == 32
    assert given(plan, large(shift=0.01, noise=0.05)) is Status.CONVERGED


def test_large_problem_has_few_pairs_for_some_rounds_while_its_mean_goes_far():
    plan = large_plan(80_000, 80_000, most=32)
    first = given(plan, large(beta=0.1, phase=TEMPER)[1:]).pairs
    tempered = large(phase=TEMPER, pairs=first, shift=5.0)[1:]
    far, near = (large(shift=shift, noise=3.0, pairs=first, phase=FEW)[1:] for shift in (5.0, 0.5))
    assert given(plan, tempered).pairs == given(plan, tempered + far).pairs == first < 8
    assert given(plan, tempered + near).pairs == given(plan, tempered + 3 * far).pairs == 8


def test_few_pairs_are_new_ones_while_the_kl_falls_if_data_outnumber_latents():
    few = {"pairs": 2, "phase": FEW}
    falling = [*large(**few, kl=1e6)[1:], *large(**few, kl=1e6 - 2e3, noise=3.0)[1:]]
    step = given(large_plan(80_000, 400_000, most=8), falling)
    assert step.pairs == 2 and step.fresh
    assert not given(large_plan(80_000, 80_000, most=32), falling).fresh
    rests = [*falling, *large(**few, kl=1e6 - 2.5e3, noise=3.0, fresh=True)[1:]]
    step = given(large_plan(80_000, 400_000, most=8), rests)
    assert step.pairs == 8 and not step.fresh


def test_damping_is_handed_on_to_the_next_round():
    damped = large(pairs=8, shift=0.8, noise=0.3, damping=16.0)
    assert given(large_plan(80_000, 80_000, most=32), damped).newton_damping == 16.0
    assert given(StagedPlan([Stage(1, 10, 3, rounds=5)]), damped).newton_damping == 16.0


def test_large_problem_that_is_stuck_ends_and_one_with_smaller_deviations_goes_on():
    plan = large_plan(80_000, 80_000, most=32)
    stuck = large(pairs=8, newton_status=int(Status.NO_DESCENT), decrement=1e4)
    assert plan.is_stuck(Record.of(stuck[-1])) and given(plan, stuck) is Status.NO_DESCENT
    assert not plan.is_stuck(Record.of(large(newton_status=int(Status.NO_DESCENT))[-1]))
    assert isinstance(given(plan, large(pairs=8, shift=0.01, noise=0.05, shrink=0.5)), RoundSettings)


def test_large_problem_has_many_pairs_only_if_it_would_be_noisy_otherwise():
    plan = large_plan(20_000, 20_000, most=128)
    assert given(plan, large(shift=0.2, noise=0.6, pairs=32)).pairs == 128
    assert given(plan, large(shift=0.25, noise=0.4, pairs=32)).pairs == 32
    assert given(plan, 4 * large(shift=0.2, noise=0.4, pairs=32)[1:]) is Status.CONVERGED
    assert given(plan, 4 * large(shift=0.2, noise=0.6, pairs=128)[1:]).phase == AVERAGE


def test_long_draws_of_a_large_problem_are_preconditioned_thoroughly_from_then_on():
    plan = large_plan(20_000, 20_000, most=128)
    long, short = large(shift=2.0, draw_cg=80)[1:], large(shift=2.0)[1:]
    assert given(plan, long + short).thorough
    assert not given(plan, short + short).thorough


def test_steps_of_a_large_problem_are_rough_only_while_its_mean_goes_far():
    plan = large_plan(20_000, 20_000, most=128)
    far, near = (given(plan, large(shift=shift, noise=0.1)) for shift in (0.9, 0.2))
    assert far.newton_residual > near.newton_residual
    assert far.newton_share > near.newton_share
    assert far.most_steps < near.most_steps


def test_large_problem_at_rest_measures_its_error_and_ends_if_its_kl_falls_no_more():
    plan = large_plan(800_000, 800_000, most=8)
    resting = large(shift=0.15, noise=0.3, pairs=8, measure=False)[1]
    measured = {**resting, "measure": True}
    assert given(plan, [resting]).measure
    assert given(plan, [resting, measured]) is Status.CONVERGED
    assert isinstance(given(plan, [resting, {**measured, "kl": 1e6 - 10_000}]), RoundSettings)  # still falling


def test_global_latents_of_a_large_problem_that_creep_are_led_on_and_are_not_at_rest():
    plan = large_plan(800_000, 800_000, most=8)
    creeping = large(shift=0.1, noise=0.3, pairs=8, contraction=0.75)[1:]
    step = given(plan, 2 * creeping)
    assert isinstance(step, RoundSettings) and step.lead == pytest.approx(4.0)
    assert given(plan, 2 * [{**creeping[0], "shift": 0.4}]).lead == pytest.approx(1.25)  # not farther than half an sd
