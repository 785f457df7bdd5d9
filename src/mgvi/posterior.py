"""The result of an inference: a mean and deviations in the latent space of a problem.

A problem, a mean and deviations come in; samples, moments, predictions and files in the model's own coordinates go out.
It must not know how the mean was found.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _arviz, _files, _table, _tree, importance
from mgvi.evaluation import constrain_many, log_likelihood_many, neg_log_density_many, simulate_many, squared_residuals
from mgvi.gaussian import APPROXIMATIONS, Approximation, KrylovGaussian
from mgvi.importance import Check
from mgvi.problem import Problem
from mgvi.status import Status

_MAPPED = 32  # samples in one call of a user's function
_SHIFTED = 64  # samples that tell how the error of the mean shows in each site
_FEWEST_WEIGHED = 100  # samples whose importance weights tell anything


class Mapped(NamedTuple):
    """Mean, standard deviation and samples of a function of the parameters."""

    mean: Any
    sd: Any
    samples: Any


class Posterior:
    """Samples around a latent mean, with everything in the model's own coordinates.

    Made by `mgvi.fit`, by `mgvi.baselines`, `mgvi.load` or `Posterior.sample`.

    Parameters
    ----------
    problem : Problem
        The problem it solves.
    latent_mean : dict
        Standard-normal latent that is the best guess.
    deviations : dict
        Deviations from it of the samples, in standard-normal latents too, stacked along a leading axis.
    history : list of dict
        One record a round.
    status : Status
        How the inference ended.
    approximation : Approximation, optional
        The distribution that samples are drawn from; by default a Gaussian with the inverse Fisher metric at the mean
        as covariance.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> posterior = mgvi.fit(mgvi.from_numpyro(model, jnp.array([1.0, 3.0])), seed=1, progress=False)
    >>> print(f"{posterior.mean['mu']:.2f}, exactly {16 / 9:.2f}")
    1.78, exactly 1.78
    >>> round(float(posterior.sd["mu"]), 1)  # exactly 2/3
    0.7
    """

    def __init__(
        self,
        problem: Problem,
        latent_mean: dict[str, Any],
        deviations: dict[str, Any],
        *,
        history: list[dict] | None = None,
        status: Status = Status.CONVERGED,
        approximation: Approximation | None = None,
    ):
        self.problem = problem
        self.latent_mean = latent_mean
        self.deviations = deviations
        self.history = history or []
        self.status = status
        self.approximation = approximation or KrylovGaussian(latent_mean)
        self._is_weighted = False

    def __len__(self) -> int:
        return jax.tree.leaves(self.deviations)[0].shape[0]

    def __repr__(self) -> str:
        return f"Posterior({len(self)} samples of {', '.join(self.problem.latent)}; {self.status.name.lower()})"

    @classmethod
    def drawn(cls, problem: Problem, approximation: Approximation, n: int, seed: int, **known: Any) -> "Posterior":
        """`n` samples of an approximation; `known` are `stream`, `history` and `status`.

        `stream` tells apart draws with the same seed; `fit` uses its own for those that it returns.
        """
        stream, status = known.pop("stream", 0), known.pop("status", Status.CONVERGED)
        centre, deviations, worst = approximation.draw(problem, n, seed, stream)
        if worst is Status.NOT_FINITE or (status.ok and worst is Status.ITERATION_LIMIT):
            status = worst
        return cls(problem, centre, deviations, status=status, approximation=approximation, **known)

    def _batched(self, function, *extra):
        """Apply a compiled function to the latent samples, some at a time, and stack the results on the host."""
        compiled, parts = self.problem.static.compiled, []
        for (some, *others), count in _tree.batches((self.deviations, *extra), self.problem.budget.evaluated):
            found = compiled.call(function, self.problem, self.latent_mean, some, *others)
            parts.append(found if compiled.rehearses else _tree.first_of(_tree.on_host(found), count))
        return _tree.joined(parts)

    def rehearse(self) -> None:
        """Call what users ask for first, so that its programs may begin to compile."""
        self._batched(constrain_many)
        if self._refusal is None:
            self._weights()

    @cached_property
    def samples(self) -> dict[str, np.ndarray]:
        """Samples of every site in the model's own coordinates, deterministic ones included."""
        return self._batched(constrain_many)

    @property
    def latent_samples(self) -> dict[str, np.ndarray]:
        """Samples of the standard-normal latent, by site."""
        return {name: np.asarray(self.latent_mean[name]) + np.asarray(d) for name, d in self.deviations.items()}

    @cached_property
    def mean(self) -> dict[str, np.ndarray]:
        """Mean over the samples, by site."""
        return {name: x.mean(axis=0, dtype=np.float64).astype(x.dtype) for name, x in self.samples.items()}

    @cached_property
    def sd(self) -> dict[str, np.ndarray]:
        """Standard deviation over the samples, by site."""
        return {name: x.std(axis=0, dtype=np.float64).astype(x.dtype) for name, x in self.samples.items()}

    @cached_property
    def mcse(self) -> dict[str, np.ndarray]:
        """Monte Carlo error of the mean of every site, in its posterior sds; empty if nothing is known of it.

        It is what the finite number of samples in the fit leaves of uncertainty in the mean; its variance is part of
        that of the samples. Errors are known for latent sites; how they show in others is told by some samples.
        """
        errors = self.approximation.mcse
        if not errors:
            return {}
        apart = _tree.first_of(self.deviations, _SHIFTED)
        # Where the mean may be: the deviations of some samples, as long as its errors are.
        part = {name: errors.get(name, 0.0) / (1 + errors.get(name, 0.0) ** 2) ** 0.5 for name in apart}
        shifted = {name: d * np.asarray(part[name], d.dtype) for name, d in apart.items()}
        here = Posterior(self.problem, self.latent_mean, shifted, approximation=self.approximation)
        found, sds = here.samples, self.sd
        ratio = lambda x, sd: np.where(sd > 0, x.std(axis=0, dtype=np.float64) / np.where(sd > 0, sd, 1.0), 0.0)
        return {name: ratio(found[name], sds[name]) for name in found}

    def quantile(self, q: Any) -> dict[str, np.ndarray]:
        """Quantiles over the samples, by site."""
        return {name: np.quantile(x, q, axis=0) for name, x in self.samples.items()}

    @cached_property
    def at_mean(self) -> dict[str, jax.Array]:
        """The model at the latent mean: the best guess."""
        return self.problem.constrain(self.latent_mean)

    def map(self, function: Callable[[dict[str, Any]], Any]) -> Mapped:
        """Mean, sd and samples of a function of the parameters (a dict by site)."""
        samples = jax.lax.map(function, {name: jnp.asarray(x) for name, x in self.samples.items()}, batch_size=_MAPPED)
        return Mapped(
            jax.tree.map(lambda x: jnp.mean(x, axis=0), samples),
            jax.tree.map(lambda x: jnp.std(x, axis=0), samples),
            samples,
        )

    def predictive(self, seed: int) -> dict[str, np.ndarray]:
        """Data drawn from the model, one set for each sample, by observed site."""
        return self._batched(simulate_many, jax.random.split(jax.random.key(seed), len(self)))

    def log_likelihood(self) -> dict[str, np.ndarray]:
        """Log-likelihood of each datum for each sample, by observed site."""
        return self._batched(log_likelihood_many)

    def sample(self, n: int, seed: int, stream: int = 0) -> "Posterior":
        """A new Posterior with `n` freshly drawn samples around the same mean.

        `stream` tells apart draws with the same seed; `fit` uses its own for those that it returns.
        """
        known = {"history": self.history, "status": self.status, "stream": stream}
        return Posterior.drawn(self.problem, self.approximation, n, seed, **known)

    @cached_property
    def check(self) -> Check | None:
        """Importance weights of the samples against the exact posterior.

        None for problems too large for them, for point estimates, for draws of a chain, and for samples that were drawn
        by such weights.
        """
        if self._is_weighted or self._refusal or len(self) < _FEWEST_WEIGHED:
            return None
        return Check.of(self.samples, *self._weights())

    def corrected(self, seed: int, n: int | None = None) -> "Posterior":
        """A new Posterior whose `n` samples are drawn by their importance weights against the exact posterior.

        Worth doing where `check` finds sites to correct; refused where its weights cannot be trusted.
        """
        if self._refusal:
            raise ValueError(f"no importance weights: {self._refusal}")
        n = len(self) if n is None else n
        pool = self.sample(8 * n, seed)
        weights, k = pool._weights()
        if not k < importance.TRUSTED:
            raise ValueError(
                f"importance weights cannot be trusted here: Pareto k {k:.2f}, expected below {importance.TRUSTED}."
            )
        steps = (np.arange(n) + np.random.default_rng(seed).random()) / n
        index = np.minimum(np.searchsorted(np.cumsum(weights), steps), len(pool) - 1)
        pool.deviations = {name: np.asarray(d)[index] for name, d in pool.deviations.items()}
        pool._is_weighted = True
        return pool

    @property
    def _refusal(self) -> str | None:
        """Why the samples cannot be weighed against the exact posterior, or None if they can."""
        if not self.problem.budget.weighed:
            return "they need a problem of at most a thousand latents."
        return self.approximation.refusal

    def _weights(self) -> tuple[np.ndarray, float]:
        """Smoothed importance weights of the samples, and the shape of their tail."""
        log_p = self._batched(neg_log_density_many)
        log_q = self.approximation.log_density(self.problem, self.latent_mean, self.deviations)
        if self.problem.static.compiled.rehearses:
            return log_p, 0.0
        log_weights = -log_q - log_p
        return importance.smoothed(np.where(np.isnan(log_weights), -np.inf, log_weights))

    def summary(self, max_rows: int = 16) -> _table.Table:
        """Mean, sd and quantiles: one row for each number, or one for a whole field of more than `max_rows`.

        After a fit `mcse` is the Monte Carlo error of the mean, in sds.
        """
        columns = ["mean", "sd", "5%", "50%", "95%", *(["mcse"] if self.mcse else [])]
        rows = []
        for name, x in self.samples.items():
            flat = x.reshape(len(x), -1)
            stats = [flat.mean(0), flat.std(0), *np.quantile(flat, [0.05, 0.5, 0.95], axis=0)]
            stats = np.stack([*stats, *([np.ravel(self.mcse[name])] if self.mcse else [])], axis=-1)
            if flat.shape[1] > max_rows:
                rows.append((f"{name}{list(x.shape[1:])}, average", stats.mean(axis=0)))
                continue
            for index, row in zip(np.ndindex(x.shape[1:]), stats, strict=True):
                label = f"[{','.join(map(str, index))}]" if index else ""
                rows.append((name + label, row))
        return _table.Table("site", columns, rows)

    def report(self) -> str:
        """A few lines on whether to trust the result: how it ended, and reduced chi^2 of data and latent."""
        lines = [f"{self.status.name.lower().replace('_', ' ')}: {self.status.advice}"]
        if self.check is not None:
            lines.append(str(self.check))
        for name, value in self.data_chi2().items():
            lines.append(f"reduced chi^2 of data {name!r}: {value:.3g}")
        for name, value in self.latent_chi2().items():
            lines.append(f"reduced chi^2 of latent {name!r}: {value:.3g}")
        return "\n".join(lines)

    def data_chi2(self) -> dict[str, float]:
        """Mean squared residual of the data in predicted standard deviations, over data and samples, by site.

        About 1 where the model explains the data; sites whose distribution has no mean or variance are left out.
        """
        parts = self._batched(squared_residuals)
        return {name: float(np.mean(x)) for name, x in parts.items()}

    def latent_chi2(self) -> dict[str, float]:
        """Mean square of the latent samples, by site: at most about 1 where the prior agrees with the data."""
        return {name: float(np.mean(np.square(x))) for name, x in self.latent_samples.items()}

    def to_arviz(self, seed: int = 0) -> Any:
        """The samples as ArviZ's container, with predictions (drawn with `seed`), log-likelihood and observed data."""
        return _arviz.container(
            {
                "posterior": self.samples,
                "posterior_predictive": self.predictive(seed),
                "log_likelihood": self.log_likelihood(),
                "sample_stats": {"lp": -self._batched(neg_log_density_many)},
                "observed_data": self.problem.data,
            }
        )

    def save(self, path: Any) -> None:
        """Write mean, deviations and history to a folder; `mgvi.load` reads them back."""
        arrays, options = self.approximation.to_files()
        arrays = {"latent_mean": self.latent_mean, "deviations": self.deviations, **arrays}
        facts = {"kind": "posterior", "history": self.history, "status": int(self.status)}
        facts["approximation"] = [type(self.approximation).__name__, options]
        _files.write(path, arrays, facts, self.problem)


def load(path: Any, problem: Problem) -> Posterior:
    """Read a posterior that `Posterior.save` wrote.

    Parameters
    ----------
    path : path-like
        The folder.
    problem : Problem
        The problem it belongs to; a posterior of another one is refused.

    Returns
    -------
    Posterior

    Examples
    --------
    >>> import tempfile, jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> posterior = mgvi.fit(problem, seed=1, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     posterior.save(folder)
    ...     again = mgvi.load(folder, problem)
    >>> bool(jnp.all(again.samples["mu"] == posterior.samples["mu"]))
    True
    """
    arrays, facts = _files.read(path, problem)
    name, options = facts["approximation"]
    return Posterior(
        problem,
        arrays["latent_mean"],
        arrays["deviations"],
        history=facts["history"],
        status=Status(facts["status"]),
        approximation=APPROXIMATIONS[name].from_files(arrays, options),
    )
