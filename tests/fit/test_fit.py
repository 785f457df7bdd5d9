"""The fit against exact posteriors, and what it promises about seeds, stops and failure."""

import sys
import time
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from experiments.classification import model as classification
from mgvi import _files, _tree
from mgvi.fit import RoundSettings
from mgvi.fit.plan import AutoPlan
from mgvi.gaussian import DenseGaussian, Keys, KrylovCurvature, KrylovGaussian
from mgvi.gaussian.dense import restrained
from mgvi.gaussian.krylov import drawn_into
from mgvi.linalg import Stop
from mgvi.progress import ticking
from mgvi.samplers import MGVI, Point
from tests.fit import models


def equal(a, b):
    return all(np.array_equal(a.samples[name], b.samples[name]) for name in a.samples)


@pytest.fixture(scope="module")
def logistic():
    return models.logistic_problem()


@pytest.fixture(scope="module")
def reference(logistic):
    return mgvi.fit(logistic, seed=3, progress=False)


def test_linear_gaussian_problem_is_solved_exactly(precision):
    problem = models.regression_problem()
    mean, covariance = models.exact_regression()
    posterior = mgvi.fit(problem, seed=1, progress=False)
    sd = np.sqrt(np.diag(covariance))
    assert posterior.status is mgvi.Status.CONVERGED
    assert np.max(np.abs(posterior.at_mean["w"] - mean) / sd) < 1e-4
    many = posterior.sample(20_000, seed=2).samples["w"]
    whitened = (many - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    # 10 000 independent pairs: an entry of the covariance has a standard error of at most sqrt(2 / 10 000).
    assert np.max(np.abs(whitened.T @ whitened / len(whitened) - np.eye(len(mean)))) < 5 * np.sqrt(2 / 10_000)


def test_unconverged_draws_overestimate_the_variance(x64):
    problem = models.regression_problem().matrix_free()
    mean = {"w": jnp.zeros(4)}
    metric = problem.metric(mean)
    exact = np.diag(np.linalg.inv(np.stack([metric.mv({"w": e})["w"] for e in jnp.eye(4)])))
    curvature, total = KrylovCurvature(problem, mean, {"w": jnp.ones(())}), []
    for iterations in (0, 1, 2, 20):
        deviations, _ = curvature.draw(Keys(0, 0, 400), Stop(1e-10, 0.0, iterations), coupled=False)
        total.append(float(np.sum(np.var(deviations["w"], axis=0))))
    assert total[0] > total[1] > total[2] > total[3]
    # Two standard errors of a sum of four variances from 400 draws are 7 %.
    np.testing.assert_allclose(total[0], 4.0, rtol=0.12)
    np.testing.assert_allclose(total[3], exact.sum(), rtol=0.25)


def test_same_seed_gives_same_bits_whatever_is_watched(logistic, reference, tmp_path):
    seen = []
    again = mgvi.fit(
        logistic,
        seed=3,
        progress=True,
        checkpoint=tmp_path / "run",
        callbacks=[lambda r, p: seen.append((r, p.mean["a"]))],
    )
    assert equal(again, reference)
    assert [r["round"] for r, _ in seen] == list(range(len(reference.history)))
    assert not equal(mgvi.fit(logistic, seed=4, progress=False), reference)


def test_long_work_says_that_it_is_under_way():
    lines = []
    with ticking(lines.append, "round 3", every=0.02, doing=lambda: "drawing deviations"):
        time.sleep(0.2)
    assert len(lines) > 2 and lines[0] == "round 3: at work for 0 s, drawing deviations"
    count = len(lines)
    time.sleep(0.1)
    assert len(lines) == count


def test_long_rounds_say_which_step_they_are_at(monkeypatch):
    """Seen by another thread, as a user would: the steps of a round in their order, with iterations."""
    grid = mgvi.fields.Grid((384, 384))  # whose steps take long enough to be seen, also on a busy machine
    field = mgvi.fields.StationaryField(grid, mgvi.fields.Matern(nu=1.5, length=9.0, amplitude=1.0))

    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("s", field), 0.3), obs=y)

    problem = mgvi.from_numpyro(model, np.random.default_rng(1).normal(size=grid.shape))
    lines = []
    quick = partial(ticking, lines.append, every=0.002)
    monkeypatch.setattr("mgvi.driver.ticking", lambda _, what, doing: quick(what, doing=doing))
    mgvi.fit(problem, seed=1, max_rounds=3)
    steps = ("preparing the solves", "drawing deviations", "moving the mean")
    assert all(any(step in line for line in lines) for step in steps)
    assert any(line.startswith("round   3: ") and "iterations in the last round)" in line for line in lines)


def test_curvature_is_made_positive_and_no_variance_exceeds_the_prior(logistic):
    size = sum(int(np.prod(leaf.shape)) for leaf in logistic.latent.values())
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
    matrix = (turn * np.linspace(-3.0, 40.0, size)) @ turn.T
    found = restrained(logistic, matrix, 0.1)
    assert np.linalg.eigvalsh(found)[0] > 0.1 - 1e-9
    assert np.max(np.diag(np.linalg.inv(found))) < 1 + 1e-6
    good = (turn * np.linspace(1.5, 40.0, size)) @ turn.T
    np.testing.assert_allclose(restrained(logistic, good.copy(), 0.1), good)


def test_history_tells_what_each_round_did(reference):
    keys = {"kl", "shift", "noise", "pairs", "draw_cg", "newton_steps", "seconds", "compile_seconds", "beta"}
    assert all(keys <= set(record) for record in reference.history)
    assert reference.history[-1]["shift"] < 0.05
    assert reference.history[-1]["noise"] < 0.1


def test_interrupted_fit_returns_what_it_has_and_resumes_to_the_same_bits(logistic, reference, tmp_path):
    def interrupt(record, posterior):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.warns(mgvi.MgviWarning, match="INTERRUPTED"):
        half = mgvi.fit(logistic, seed=3, progress=False, checkpoint=tmp_path, callbacks=[interrupt])
    assert half.status is mgvi.Status.INTERRUPTED
    assert len(half.history) == 2
    assert equal(mgvi.fit(logistic, seed=3, progress=False, checkpoint=tmp_path), reference)


def test_round_and_time_limits_end_cleanly(logistic):
    with pytest.warns(mgvi.MgviWarning, match="ITERATION_LIMIT"):
        assert mgvi.fit(logistic, seed=3, progress=False, max_rounds=1).status is mgvi.Status.ITERATION_LIMIT
    with pytest.warns(mgvi.MgviWarning, match="TIME_LIMIT"):
        assert mgvi.fit(logistic, seed=3, progress=False, time_limit=-1.0).status is mgvi.Status.TIME_LIMIT


@pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")
def test_large_fit_resumes_to_the_same_bits_also_with_a_recycled_preconditioner(tmp_path):
    problem = classification.make(64, 1).problem
    last = next(r["round"] for r in mgvi.fit(problem, seed=1, progress=False).history if r["recycle"]) + 1
    whole = mgvi.fit(problem, seed=1, progress=False, max_rounds=last)
    for rounds in (last - 2, last - 1, last):
        parts = mgvi.fit(problem, seed=1, progress=False, max_rounds=rounds, checkpoint=tmp_path)
    assert equal(parts, whole)


def test_large_fit_that_is_stuck_tries_smaller_deviations(monkeypatch):
    problem = classification.make(32, 1).problem.matrix_free()
    tried = []

    def is_stuck(self, record):
        tried.append(record.kl)
        return len(tried) in (1, 2)

    monkeypatch.setattr(AutoPlan, "is_stuck", is_stuck)
    posterior = mgvi.fit(problem, seed=1, progress=False, max_rounds=2)
    assert [record["shrink"] for record in posterior.history] == [0.25, 1.0]
    assert len(set(tried)) == 4


def test_damaged_checkpoint_falls_back_to_the_round_before(logistic, reference, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mgvi.fit(logistic, seed=3, progress=False, checkpoint=tmp_path, max_rounds=3)
    newest = sorted(tmp_path.glob("round-*"))[-1] / "arrays.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.warns(mgvi.MgviWarning, match="damaged or truncated.*round before"):
        posterior = mgvi.fit(logistic, seed=3, progress=False, checkpoint=tmp_path)
    assert equal(posterior, reference)


def test_checkpoint_of_another_problem_or_seed_is_refused(logistic, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mgvi.fit(logistic, seed=3, progress=False, checkpoint=tmp_path, max_rounds=1)
    with pytest.raises(mgvi.FileError, match="another problem"):
        mgvi.fit(models.regression_problem(), seed=3, progress=False, checkpoint=tmp_path)
    with pytest.raises(mgvi.FileError, match="other settings"):
        mgvi.fit(logistic, seed=4, progress=False, checkpoint=tmp_path)


def test_point_sampler_gives_the_maximum_a_posteriori(logistic):
    posterior = mgvi.fit(logistic, seed=1, progress=False, sampler=Point())
    gradient = jax.grad(logistic.neg_log_density)(posterior.latent_mean)
    assert max(float(jnp.max(jnp.abs(g))) for g in gradient.values()) < 0.05
    assert all(np.all(sd == 0) for sd in posterior.sd.values())


def test_point_estimates_have_no_spread_and_constants_do_not_move(logistic):
    posterior = mgvi.fit(logistic, seed=1, progress=False, point_estimates=["s"], constants=["a"])
    assert np.all(posterior.sd["s"] == 0)
    assert posterior.latent_mean["s"] != 0
    assert np.all(posterior.samples["a"] == 0.0)
    assert posterior.sd["b"] > 0
    with pytest.raises(ValueError, match="names no latent site.*nothing"):
        mgvi.fit(logistic, seed=1, constants=["nothing"])


@pytest.mark.parametrize(
    "schedule",
    [pytest.param("paper", marks=pytest.mark.slow), (mgvi.Stage(pairs=2, cg=20, newton=3, rounds=4),)],
)
def test_given_schedules_run_as_written(logistic, schedule):
    posterior = mgvi.fit(logistic, seed=1, progress=False, schedule=schedule)
    rounds = [(r["pairs"], r["newton_steps"] <= 13) for r in posterior.history]
    assert len(rounds) == (30 if schedule == "paper" else 4)
    assert rounds[0][0] == (1 if schedule == "paper" else 2)
    assert np.all(np.isfinite(posterior.mean["u"]))


def test_breakdown_names_round_and_site_and_carries_the_last_good_state():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.where(jnp.abs(x) > 1e-4, jnp.nan, 0.0), 1.0), obs=y)

    problem = mgvi.from_numpyro(model, jnp.ones(3))
    with pytest.raises(mgvi.FitError, match="round 2.*'y'.*not finite") as caught:
        mgvi.fit(problem, seed=1, progress=False)
    assert np.all(np.isfinite(caught.value.posterior.mean["x"]))


def test_gradient_that_is_not_finite_is_a_breakdown_not_convergence():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x + jnp.sqrt(0.0 * x), 1.0), obs=y)  # the slope of sqrt at 0

    with pytest.raises(mgvi.FitError, match="round 2.*not finite"):
        mgvi.fit(mgvi.from_numpyro(model, jnp.ones(3)), seed=1, progress=False)


def eight_schools(sd, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]))
    numpyro.sample("y", dist.Normal(theta, sd), obs=y)


SCHOOLS = (jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18]), jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12]))


@pytest.mark.parametrize("is_mended", [False, True])
def test_eight_schools_agree_with_a_long_run_also_when_resampled_by_importance_weights(is_mended):
    posterior = mgvi.fit(mgvi.from_numpyro(eight_schools, *SCHOOLS), seed=1, progress=False)
    assert posterior.status.ok
    found = posterior.corrected(seed=2) if is_mended else posterior
    # Long-run reference of posteriordb: tau 3.60 +- 3.20, mu 4.41 +- 3.31; 2048 samples, weights with ESS above 400.
    assert abs(found.mean["tau"] - 3.60) < 0.15 * 3.20
    assert abs(np.log(found.sd["tau"] / 3.20)) < np.log(1.2)
    assert abs(found.mean["mu"] - 4.41) < 0.15 * 3.31


def test_well_measured_groups_with_a_scale_multiplied_by_hand_are_reported_as_not_gaussian():
    rng = np.random.default_rng(0)
    y = np.array([-2.0, 0.5, 2.5])[:, None] + 0.5 * rng.normal(size=(3, 20))

    def groups(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(3.0))
        theta = mu + tau * numpyro.sample("z", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(theta[:, None], 0.5), obs=y)

    problem = mgvi.from_numpyro(groups, jnp.asarray(y))
    for seed in (1, 2, 3):
        with pytest.warns(mgvi.MgviWarning, match="not Gaussian in the latent space.*NUTS|importance weights.*'tau'"):
            posterior = mgvi.fit(problem, seed=seed, progress=False)
        assert not posterior.check.ok and posterior.check.pareto_k > 0.5
    laplace = mgvi.baselines.laplace(problem, seed=1, progress=False)
    assert laplace.check.pareto_k > 0.7 and "not Gaussian in the latent space" in str(laplace.check)
    with pytest.raises(ValueError, match="cannot be trusted.*Pareto k"):
        laplace.corrected(seed=1)


def test_check_agrees_with_a_posterior_that_is_gaussian():
    posterior = mgvi.fit(models.regression_problem(), seed=1, progress=False)
    assert posterior.check.ok
    assert max(posterior.check.shift.values()) < 0.02


def test_scale_of_many_weak_groups_does_not_collapse():
    """With the metric at the mean alone, the scale falls towards zero: its effects vanish there."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(40), 5)
    y = rng.normal(0.3, 1.0, 40)[group] + rng.normal(0, 2.0, 200)

    def model(group, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        effect = numpyro.sample("effect", dist.Normal(mu, tau).expand([40]).to_event(1))
        numpyro.sample("y", dist.Normal(effect[group], 2.0), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = mgvi.fit(mgvi.from_numpyro(model, group, jnp.asarray(y)), seed=1, progress=False)
    # Exact: effects and mu integrate out, and tau is one-dimensional.
    means, weight = y.reshape(40, 5).mean(1), 4.0 / 5
    tau = np.linspace(1e-3, 4, 4000)
    variance = tau**2 + weight
    precision = 40 / variance + 1
    log_p = -20 * np.log(variance) - 0.5 * (means**2).sum() / variance - 0.5 * np.log(precision)
    log_p += 0.5 * (means.sum() / variance) ** 2 / precision - 0.5 * tau**2
    p = np.exp(log_p - log_p.max())
    mean = (p * tau).sum() / p.sum()
    sd = np.sqrt((p * tau**2).sum() / p.sum() - mean**2)
    assert abs(posterior.mean["tau"] - mean) < 0.3 * sd
    assert 0.5 < posterior.sd["tau"] / sd < 1.2


def test_wiener_filter_of_a_field_with_gaps_is_exact(precision):
    rng = np.random.default_rng(11)
    where = np.arange(64)
    prior = np.exp(-0.5 * (np.subtract.outer(where, where) / 6.0) ** 2)
    values, vectors = np.linalg.eigh(prior)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    seen = where[where % 3 != 1]
    noise = rng.uniform(0.2, 0.8, len(seen))
    y = (root @ rng.normal(size=64))[seen] + noise * rng.normal(size=len(seen))

    def model(root, seen, noise, y):
        xi = numpyro.sample("xi", dist.Normal(0.0, 1.0).expand([64]).to_event(1))
        field = numpyro.deterministic("field", root @ xi)
        numpyro.sample("y", dist.Normal(field[seen], noise), obs=y)

    gain = prior[:, seen] @ np.linalg.inv(prior[np.ix_(seen, seen)] + np.diag(noise**2))
    mean, covariance = gain @ y, prior - gain @ prior[seen]
    sd = np.sqrt(np.diag(covariance))
    problem = mgvi.from_numpyro(model, jnp.asarray(root), seen, jnp.asarray(noise), jnp.asarray(y))
    posterior = mgvi.fit(problem, seed=1, progress=False)
    assert posterior.status is mgvi.Status.CONVERGED
    assert np.max(np.abs(posterior.at_mean["field"] - mean) / sd) < 1e-4
    many = posterior.sample(20_000, seed=2).samples
    # 10 000 independent pairs: a covariance in units of both sds has a standard error of at most sqrt(2 / 10 000).
    error = 5 * np.sqrt(2 / 10_000)
    deviation = (many["field"] - mean) / sd
    assert np.max(np.abs(deviation.T @ deviation / len(deviation) - covariance / np.outer(sd, sd))) < error
    # The field's covariance is singular to rounding; that of the latent is not, and can be whitened.
    precision_matrix = np.eye(64) + (root[seen].T / noise**2) @ root[seen]
    latent_mean = np.linalg.solve(precision_matrix, root[seen].T @ (y / noise**2))
    whitened = (many["xi"] - latent_mean) @ np.linalg.cholesky(precision_matrix)
    assert np.max(np.abs(whitened.T @ whitened / len(whitened) - np.eye(64))) < error


def test_posteriors_that_callbacks_keep_outlive_the_next_rounds():
    def model(counts):
        log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
        numpyro.sample("counts", dist.Poisson(jnp.exp(log_rate)), obs=counts)

    problem, kept = mgvi.from_numpyro(model, jnp.arange(20)), []
    stages = [mgvi.Stage(pairs=4, cg=10, newton=2, rounds=3)]  # as many as there is room for
    options = {"schedule": stages, "sampler": MGVI(antithetic=False), "progress": False}
    mgvi.fit(problem, seed=1, callbacks=[lambda record, posterior: kept.append(posterior)], **options)
    means = [posterior.mean["log_rate"] for posterior in kept]
    assert len(means) == 3 and len(kept[0]) == 4
    assert np.all(np.isfinite(means)) and np.any(means[0] != means[1])


@pytest.mark.parametrize("finished", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_fit_that_is_interrupted_while_deviations_are_drawn_gives_what_it_has(finished, monkeypatch):
    problem, calls = classification.make(16, seed=1, squares=4).problem.matrix_free(), []

    def interrupted(curvature, *given, **options):
        if not curvature.problem.static.compiled.rehearses:
            calls.append(given)
        if len(calls) == finished + 1:
            raise KeyboardInterrupt
        return drawn_into(curvature, *given, **options)

    monkeypatch.setattr(sys.modules["mgvi.fit.krylov"], "drawn_into", interrupted)
    with pytest.warns(mgvi.MgviWarning, match="INTERRUPTED"):
        posterior = mgvi.fit(problem, seed=1, progress=False)
    assert posterior.status is mgvi.Status.INTERRUPTED and len(posterior.history) == finished
    assert np.all(np.isfinite(posterior.mean["rate"]))


def test_fewer_pairs_than_in_the_last_round_leave_nothing_behind(tmp_path):
    problem = classification.make(32, seed=1, squares=4).problem  # drawn in several batches, then in one
    stages = [mgvi.Stage(pairs=6, cg=10, newton=2, rounds=1), mgvi.Stage(pairs=2, cg=10, newton=2, rounds=1)]
    options = {"schedule": stages, "sampler": MGVI(antithetic=False), "progress": False}
    mgvi.fit(problem, seed=1, checkpoint=tmp_path, **options)
    arrays, _ = _files.read(tmp_path / "round-00002", problem)
    field = arrays["deviations"]["s"]
    assert len(field) >= 6 and np.all(np.any(field[:2] != 0, axis=(1, 2, 3))) and not np.any(field[2:])


def test_draws_with_new_keys_start_at_the_prior_in_every_round(tmp_path):
    problem = classification.make(32, seed=1, squares=4).problem
    stages = [mgvi.Stage(pairs=2, cg=0, newton=1, rounds=2)]  # what no iteration has reached stays where it started
    mgvi.fit(problem, seed=1, checkpoint=tmp_path, schedule=stages, progress=False)
    first, second = (_files.read(tmp_path / f"round-0000{i}", problem)[0]["deviations"]["s"] for i in (1, 2))
    np.testing.assert_allclose([first[:2].std(), second[:2].std()], 1.0, atol=0.05)
    assert np.any(first[:2] != second[:2])


def test_given_schedule_of_a_small_problem_multiplies_with_the_metric_in_rounds_and_in_final_draws(logistic):
    stages = [mgvi.Stage(pairs=2, cg=20, newton=3, rounds=2)]
    posterior = mgvi.fit(logistic, seed=1, progress=False, schedule=stages)
    assert isinstance(posterior.approximation, KrylovGaussian)
    assert all(record["draw_cg"] > 0 for record in posterior.history)
    assert isinstance(mgvi.fit(logistic, seed=1, progress=False, max_rounds=1).approximation, DenseGaussian)
    metric = logistic.metric(posterior.latent_mean)
    rows = [_tree.to_row(metric.mv(_tree.from_row(e, logistic.latent))) for e in jnp.eye(8)]
    expected = np.linalg.inv(np.stack(rows))
    samples = _tree.to_rows(posterior.sample(8000, seed=4).deviations)
    np.testing.assert_allclose(samples.T @ samples / 8000, expected, atol=0.06)


def test_plan_of_a_user_decides_every_round(logistic):
    class TwoRounds:
        def next(self, history):
            return (
                RoundSettings("settle", pairs=16, fresh=False, spread=8) if len(history) < 2 else mgvi.Status.CONVERGED
            )

    posterior = mgvi.fit(logistic, seed=1, progress=False, schedule=TwoRounds())
    assert posterior.status.ok and [record["pairs"] for record in posterior.history] == [16, 16]

    class TooMany(TwoRounds):
        def next(self, history):
            return RoundSettings("settle", pairs=100_000)

    with pytest.raises(ValueError, match="asks for 100000 pairs, expected at most"):
        mgvi.fit(logistic, seed=1, progress=False, schedule=TooMany())
