"""Models with reference answers: statisticians' everyday models, their data, and what a long run says of them."""

import csv
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and the reference mean and sd of its sites (None: take NUTS)."""

    name: str
    model: Callable
    arguments: tuple
    reference: dict[str, tuple[np.ndarray, np.ndarray]] | None


def folder() -> Path:
    """Where the data are."""
    if "MGVI_DATA_DIR" not in os.environ:
        raise SystemExit("Set MGVI_DATA_DIR to the folder with the data sets.")
    return Path(os.environ["MGVI_DATA_DIR"])


def eight_schools() -> Case:
    data, answer = _published("eight_schools-eight_schools_noncentered")

    def model(sigma, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    arguments = jnp.asarray(data["sigma"], float), jnp.asarray(data["y"], float)
    return Case("eight schools", model, arguments, answer)


def german_credit() -> Case:
    where = folder() / "reference_posteriors" / "german_credit_logistic"
    data, reference = np.load(where / "data.npz"), np.load(where / "reference.npz")
    features = (data["features"] - data["features"].mean(0)) / data["features"].std(0)
    design = np.concatenate([features, np.ones((len(features), 1))], axis=1)

    def model(design, bad):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([design.shape[1]]).to_event(1))
        numpyro.sample("bad", dist.Bernoulli(logits=design @ w), obs=bad)

    answer = {"w": (reference["identity_mean"], reference["identity_standard_deviation"])}
    return Case("german credit", model, (jnp.asarray(design), jnp.asarray(data["bad"])), answer)


def radon() -> Case:
    where = folder() / "reference_posteriors" / "radon_minnesota"
    data, reference = np.load(where / "data.npz"), np.load(where / "reference.npz")

    def model(county, log_uranium, floor, floor_by_county, log_radon):
        mean = numpyro.sample("county_mean", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("county_scale", dist.HalfNormal(1.0))
        weight = numpyro.sample("weight", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        noise = numpyro.sample("log_radon_scale", dist.HalfNormal(1.0))
        with numpyro.plate("counties", 85):
            effect = numpyro.sample("county", dist.Normal(mean, scale))
        linear = log_uranium * weight[0] + floor * weight[1] + floor_by_county * weight[2]
        numpyro.sample("log_radon", dist.Normal(linear + effect[county], noise), obs=log_radon)

    arguments = tuple(jnp.asarray(data[k]) for k in ("county", "log_uranium", "floor", "floor_by_county", "log_radon"))
    names = {
        "county": "county_effect",
        "county_mean": "county_effect_mean",
        "county_scale": "county_effect_scale",
        "log_radon_scale": "log_radon_scale",
        "weight": "weight",
    }
    answer = {
        site: (reference[f"identity_{name}_mean"], reference[f"identity_{name}_standard_deviation"])
        for site, name in names.items()
    }
    return Case("radon", model, arguments, answer)


def random_walk() -> Case:
    """Counts whose log-rate is a random walk of 198 steps, with unknown step size and level: 200 latents."""
    rng = np.random.default_rng(1)
    log_rate = 1.5 + np.cumsum(0.15 * rng.normal(size=198))

    def model(counts):
        level = numpyro.sample("level", dist.Normal(0.0, 2.0))
        step = numpyro.sample("step", dist.LogNormal(-2.0, 1.0))
        walk = numpyro.sample("walk", dist.GaussianRandomWalk(step, num_steps=198))
        numpyro.sample("counts", dist.Poisson(jnp.exp(level + walk)), obs=counts)

    return Case("random walk", model, (jnp.asarray(rng.poisson(np.exp(log_rate))),), None)


def item_response() -> Case:
    data, answer = _published("irt_2pl-irt_2pl")

    def model(y):
        sigma_theta = numpyro.sample("sigma_theta", dist.HalfCauchy(2.0))
        sigma_a = numpyro.sample("sigma_a", dist.HalfCauchy(2.0))
        mu_b = numpyro.sample("mu_b", dist.Normal(0.0, 5.0))
        sigma_b = numpyro.sample("sigma_b", dist.HalfCauchy(2.0))
        theta = numpyro.sample("theta", dist.Normal(0.0, sigma_theta).expand([y.shape[1]]).to_event(1))
        a = numpyro.sample("a", dist.LogNormal(0.0, sigma_a).expand([y.shape[0]]).to_event(1))
        b = numpyro.sample("b", dist.Normal(mu_b, sigma_b).expand([y.shape[0]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=a[:, None] * (theta - b[:, None])), obs=y)

    return Case("item response", model, (jnp.asarray(data["y"]),), answer)


def election() -> Case:
    with gzip.open(folder() / "election88" / "polls.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["y"]]
    female, black, state, bush = (
        jnp.asarray([int(float(row[key])) for row in rows]) for key in ("female", "black", "state", "y")
    )

    def model(female, black, state, bush):
        b0 = numpyro.sample("b0", dist.Normal(0.0, 1.0))
        gender = numpyro.sample("b_gender", dist.Normal(0.0, 1.0))
        ethnicity = numpyro.sample("b_ethnicity", dist.Normal(0.0, 1.0))
        sigma = numpyro.sample("sigma_state", dist.Uniform(0.0, 1.0))
        with numpyro.plate("states", 51):
            effect = numpyro.sample("b_state", dist.Normal(0.0, sigma))
        logits = b0 + gender * female + ethnicity * black + effect[state]
        numpyro.sample("bush", dist.Bernoulli(logits=logits), obs=bush)

    return Case("election", model, (female, black, state - 1, bush), None)


def counts_of_a_process() -> Case:
    """Eleven counts whose log-rate is a Gaussian process with unknown length and amplitude."""
    data, answer = _published("gp_pois_regr-gp_pois_regr")

    def model(x, k):
        rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
        alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
        covariance = alpha**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / rho**2) + 1e-10 * jnp.eye(len(x))
        f = numpyro.sample("f", dist.MultivariateNormal(0.0, covariance))
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)

    arguments = jnp.asarray(data["x"], float), jnp.asarray(data["k"])
    return Case("counts of a process", model, arguments, answer)


def autoregression() -> Case:
    data, answer = _published("arK-arK")
    y, order = np.asarray(data["y"], float), data["K"]
    past = np.stack([y[order - lag : len(y) - lag] for lag in range(1, order + 1)], axis=1)

    def model(past, y):
        alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([past.shape[1]]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
        numpyro.sample("y", dist.Normal(alpha + past @ beta, sigma), obs=y)

    arguments = jnp.asarray(past), jnp.asarray(y[order:])
    return Case("autoregression", model, arguments, answer)


def diamonds() -> Case:
    data, answer = _published("diamonds-diamonds")
    design = np.asarray(data["X"])[:, 1:]

    def model(design, y):
        intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([design.shape[1]]).to_event(1))
        sigma = numpyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
        numpyro.sample("y", dist.Normal(intercept + design @ b, sigma), obs=y)

    arguments = jnp.asarray(design - design.mean(axis=0)), jnp.asarray(data["Y"])
    return Case("diamonds", model, arguments, answer)


def test_scores() -> Case:
    data, answer = _published("kidiq-kidscore_momhsiq")
    score, school, iq = (np.asarray(data[name], float) for name in ("kid_score", "mom_hs", "mom_iq"))

    def model(design, score):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1000.0).expand([3]).to_event(1))  # flat in the original
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
        numpyro.sample("score", dist.Normal(design @ beta, sigma), obs=score)

    arguments = jnp.asarray(np.stack([np.ones_like(iq), school, iq], axis=1)), jnp.asarray(score)
    return Case("test scores", model, arguments, answer)


CASES = (
    eight_schools,
    german_credit,
    radon,
    random_walk,
    item_response,
    election,
    counts_of_a_process,
    autoregression,
    diamonds,
    test_scores,
)


def _published(name: str) -> tuple[dict, dict[str, tuple[Any, Any]]]:
    """The data of a published posterior, and its reference means and sds."""
    where = folder() / "reference_posteriors" / name
    packed = where / "data.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (where / "data.json").read_text()
    return json.loads(text), _summary(where / "reference_summary.csv")


def _summary(path: Path) -> dict[str, tuple[Any, Any]]:
    """Reference means and sds from a table with one row a number, such as `theta[3]`."""
    columns: dict[str, tuple[list, list]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            mean, sd = columns.setdefault(row["name"].split("[")[0], ([], []))
            mean.append(float(row["mean"]))
            sd.append(float(row["sd"]))
    return {name: (np.squeeze(np.array(m)), np.squeeze(np.array(s))) for name, (m, s) in columns.items()}
