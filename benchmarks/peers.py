"""Us against NIFTy, mean-field SVI and NUTS: every contender on identical data, in fresh processes, one after another.

Names of problems come in; a row for each contender goes out.

A process first makes one cold run, without a cache of compiled programs: to its end for us and for NUTS, to the end of
the first round for NIFTy and of 100 steps for SVI. Its seconds, from the start of the process, its peak memory and its
compilations are counted; also the seconds to the first posterior, which for us comes with the first round that has the
whole likelihood. Then it makes warm runs, whose posteriors are judged after every round;
the time that takes is not counted. Common accuracy is reached when two rounds in a row, or the last one, have a
held-out predictive log-likelihood at most 1 % of the gap between prior and reference below the reference, and sds
within 5 % of it. Cold seconds to that are the warm ones plus what the cold run took longer. The reference is a long
run: of NUTS, or where that is not feasible of NIFTy with tight tolerances from our result on, averaged over its last
rounds.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

PROBLEMS = ("poisson", "128", "512", "logistic")
GAP, SD = 0.01, 0.05
SEEDS = (1, 2, 3)  # of warm runs; the median of their seconds is given
LIMIT = 60.0  # seconds of a warm run without an end of its own, and of all warm runs but the first
COMPILATION = "/jax/core/compile/backend_compile_duration"  # what JAX calls it
AVERAGED = 8  # last rounds of a reference


def run(problems: Sequence[str] = PROBLEMS) -> Iterator[dict]:
    """A row for each problem and contender; problems are as in `benchmarks._problems.make`."""
    for problem in problems:
        with tempfile.TemporaryDirectory() as folder:
            reference = Path(folder) / "reference.npz"
            process(problem, "reference", reference, reference)
            names = ["mgvi", "NIFTy, tuned", "NIFTy, default", "NumPyro SVI"]
            names += ["NumPyro NUTS"] if problem.isalpha() else []
            ours = None
            for name in names:
                out = Path(folder) / "found.json"
                process(problem, name, reference, out)
                found = json.loads(out.read_text())
                ours = ours or found
                yield row(name, found, ours)


def process(problem: str, name: str, reference: Path, out: Path) -> None:
    """Run one contender in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64")}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers", problem, name, str(reference), str(out)]
    command.append(str(time.time()))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[1], env=environment)


def row(name: str, found: dict, ours: dict) -> dict:
    """A line of the table from what a process and ours found."""
    warm, our_warm = median(found["accurate"]), median(ours["accurate"])
    extra, our_extra = found["cold"] - found["first"], ours["cold"] - ours["first"]
    cold, our_cold = (None if t is None else t + e for t, e in ((warm, extra), (our_warm, our_extra)))
    last = found["rows"][-1]
    near = [r["seconds"] for r in found["rows"] if r["mean_error"] <= ours["rows"][-1]["mean_error"]]
    return {
        "problem": found["title"],
        "contender": name,
        "first posterior, cold (s)": found["first posterior"],
        "cold start (s)": found["cold"],
        "accurate, cold (s)": cold,
        "over ours, cold": None if cold is None or our_cold is None else cold / our_cold,
        "accurate, warm (s)": warm,
        "over ours": None if warm is None or our_warm is None else warm / our_warm,
        "mean as near as ours (s)": near[0] if near else None,
        "whole warm run (s)": found["warm"],
        "log-likelihood": f"{last['log_likelihood']:.4f}",
        "mean error (sd)": last["mean_error"],
        "sd ratio": last["sd_ratio"],
        "peak memory (GB)": found["memory"],
        "compilations": found["compilations"],
        "floor (s)": found.get("floor"),
    }


def median(times: list[float | None]) -> float | None:
    """The median; None, which is never, counts as longest."""
    middle = sorted(np.inf if t is None else t for t in times)[len(times) // 2]
    return None if np.isinf(middle) else float(middle)


class Clock:
    """Is told samples after every round, and judges them off the clock."""

    def __init__(self, look=None, reference=None, limit: float = LIMIT):
        self.cold = look is None
        self.rows: list[dict[str, float]] = []
        self.verdicts, self.history, self.seconds, self.whole = [], [], 0.0, None
        self._look, self._reference, self._limit = look, reference, limit
        self._since = time.perf_counter()

    def __call__(self, xi, seconds: float | None = None) -> bool:
        import jax

        xi = xi if callable(xi) else jax.block_until_ready(xi)
        self.seconds = self.seconds + time.perf_counter() - self._since if seconds is None else seconds
        if self._look is not None:
            verdict = self._look(xi() if callable(xi) else xi)
            self.verdicts = [*self.verdicts, verdict][-AVERAGED:]
            if self._reference is not None:
                self.rows.append({"seconds": self.seconds, **verdict.against(self._reference)})
        self._since = time.perf_counter()
        return self.cold or self.seconds > self._limit


def accurate(rows: list[dict], level: float) -> float | None:
    """Seconds to the first of two accurate rounds in a row, or to the last if that is accurate."""
    good = [r["log_likelihood"] >= level and abs(r["sd_ratio"] - 1) <= SD for r in rows]
    for i, r in enumerate(rows):
        if good[i] and (i + 1 == len(rows) or good[i + 1]):
            return r["seconds"]
    return None


def begin(problem: str, name: str, began: float):
    """In a fresh process: the case, the contender, and what its cold run found."""
    import jax

    jax.config.update("jax_enable_x64", problem == "poisson")
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, duration_secs, **kwargs: events.append(event))
    from benchmarks import _contenders, _problems

    if name.startswith("NIFTy"):
        importlib.import_module("benchmarks._nifty")
    imports = time.time() - began
    case = _problems.make(problem)
    contender = _contenders.CONTENDERS[name](case, problem)
    clock, before = Clock(), time.time() - began
    contender(SEEDS[0], clock)
    found = {"title": case.title, "cold": time.time() - began, "compilations": events.count(COMPILATION)}
    found["imports"] = imports
    found["first posterior"] = before + until_whole(clock.history) if clock.history else found["cold"]
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return case, contender, found


def until_whole(history: list[dict]) -> float:
    """Seconds of a fit to the end of the first round that has the whole likelihood."""
    whole = next(i for i, record in enumerate(history) if record["beta"] == 1)
    return sum(record["seconds"] + record["compile_seconds"] for record in history[: whole + 1])


def contend(problem: str, name: str, reference: Path, began: float) -> dict:
    """In a fresh process: a cold run, then warm ones."""
    case, contender, found = begin(problem, name, began)
    from benchmarks import _problems

    stored = dict(np.load(reference))
    truth = _problems.Verdict(float(stored["log_likelihood"]), stored["mean"], stored["sd"])
    level = truth.log_likelihood - GAP * (truth.log_likelihood - float(stored["prior"]))
    look = _problems.judge(case)
    clocks: list[Clock] = []
    for seed in SEEDS:
        if not clocks or sum(c.seconds for c in clocks) * (1 + 1 / len(clocks)) < LIMIT:
            clocks.append(Clock(look, truth))
            contender(seed, clocks[-1])
    ends = name in ("mgvi", "NumPyro NUTS")
    found["accurate"] = [accurate(clock.rows, level) for clock in clocks]
    whole = [clock.seconds if clock.whole is None else clock.whole for clock in clocks]
    found["warm"] = float(np.median(whole)) if ends else None
    found["first"] = whole[0] if ends else clocks[0].rows[0]["seconds"]
    found["rows"] = clocks[0].rows
    if name == "mgvi" and case.fft is not None:
        found["floor"] = floor(case.fft, clocks[0].history)
    return found


def refer(problem: str) -> dict:
    """In a fresh process: the reference, and the prior's log-likelihood."""
    import jax

    jax.config.update("jax_enable_x64", problem == "poisson")
    from benchmarks import _contenders, _problems

    case = _problems.make(problem)
    look = _problems.judge(case)
    clock = Clock(look, limit=np.inf)
    _contenders.REFERENCES.get(problem, _contenders.REFERENCES[""])(case, problem)(SEEDS[0], clock)
    mean = np.mean([v.mean for v in clock.verdicts], axis=0)
    sd = np.sqrt(np.mean([v.sd**2 for v in clock.verdicts], axis=0))
    level = np.mean([v.log_likelihood for v in clock.verdicts])
    return {"mean": mean, "sd": sd, "log_likelihood": level, "prior": look(_problems.prior(case)).log_likelihood}


def floor(shape: tuple[int, ...], history: list[dict], batch: int = 8, loops: int = 20) -> float | None:
    """Seconds that the real FFT pairs of a fit's metric products and gradients take alone; None if it made a matrix."""
    import jax
    import jax.numpy as jnp

    if not any(r["draw_cg"] for r in history):
        return None
    axes = tuple(range(1, len(shape) + 1))
    pair = lambda _, x: 0.5 * jnp.fft.irfftn(jnp.fft.rfftn(x, axes=axes), s=shape, axes=axes)
    chain = jax.jit(lambda x: jax.lax.fori_loop(0, loops, pair, x))
    x = jnp.ones((batch, *shape))
    jax.block_until_ready(chain(x))
    start = time.perf_counter()
    jax.block_until_ready(chain(x))
    each = (time.perf_counter() - start) / (batch * loops)
    used = sum(r["pairs"] * (r["draw_cg"] + 2 * r["newton_steps"]) + r["newton_cg"] for r in history)
    return used * each


if __name__ == "__main__":
    problem, name, reference, out, began = sys.argv[1:]
    if name == "reference":
        np.savez(out, **refer(problem))
    else:
        Path(out).write_text(json.dumps(contend(problem, name, Path(reference), float(began))))
