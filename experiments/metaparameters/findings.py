"""The paper's findings on meta-parameters, each as a comparison of numbers.

Metrics of every setting come in; claims with whether they hold, and by how much, go out.
It must not know how the metrics were made.
"""

import statistics
from typing import Any

from experiments._common import CALIBRATED

EARLY = 2  # rounds after which the early RMS is taken
METRICS = ("log_likelihood", "log_likelihood_at_mean", "rms", "average_significance")
_EQUAL_WITHIN = 0.005  # nats a datum: smaller differences do not count
_FAILURE_GAP = 0.02  # nats a datum: a setting that is worse by more has failed


def summarize(rows: list[dict[str, float]], rounds: int) -> dict[str, float]:
    """Median and scatter of metrics over the last third of the rounds; a fit that broke down has fewer rounds."""
    last = rows[-max(rounds // 3, 1) :]
    found: dict[str, float] = {}
    for name in METRICS:
        values = [row[name] for row in last]
        centre = statistics.median(values)
        found[name] = centre
        found[f"{name}_scatter"] = statistics.median([abs(v - centre) for v in values])
    found["early_rms"] = rows[min(EARLY, len(rows)) - 1]["rms"]
    return {**found, "seconds": rows[-1]["seconds"], "compile_seconds": rows[-1]["compile_seconds"]}


def findings(sweeps: dict[str, dict[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each claim of section 8.2.3 with the numbers that decide it."""
    return [
        *_on_conjugate_gradients(sweeps["cg"]),
        *_on_natural_gradients(sweeps["newton"]),
        *_on_samples(sweeps["samples"]),
        *_on_pairs(sweeps["pairs"], sweeps["samples"]),
    ]


def _on_conjugate_gradients(cg):
    nine, most = cg[9]["log_likelihood"], cg[max(cg)]["log_likelihood"]
    significances = {n: run["average_significance"] for n, run in cg.items()}
    return [
        _claim(
            "9 conjugate gradient steps suffice",
            nine >= most - _EQUAL_WITHIN,
            f"log-likelihood with 9 steps {nine:.4f}, with {max(cg)} {most:.4f}",
        ),
        _claim(
            "too few conjugate gradient steps show in the error",
            cg[3]["rms"] > cg[9]["rms"],
            f"RMS with 3 steps {cg[3]['rms']:.4f}, with 9 {cg[9]['rms']:.4f}",
        ),
        _claim(
            "the average significance stays consistent whatever the accuracy",
            all(0.5 < s / CALIBRATED < 2 for s in significances.values()),
            "average significance " + ", ".join(f"{s:.2f} with {n} steps" for n, s in significances.items()),
        ),
    ]


def _on_natural_gradients(newton):
    few, ten, most = newton[min(newton)], newton[10], newton[max(newton)]
    return [
        _claim(
            "with too few natural-gradient steps the first rounds lag behind",
            few["early_rms"] > ten["early_rms"],
            f"RMS after {EARLY} rounds of {min(newton)} step {few['early_rms']:.4f}, of 10 {ten['early_rms']:.4f}",
        ),
        _claim(
            "more natural-gradient steps reduce the scatter from round to round",
            few["rms_scatter"] > most["rms_scatter"],
            f"scatter of the RMS with {min(newton)} step {few['rms_scatter']:.5f}, "
            f"with {max(newton)} {most['rms_scatter']:.5f}",
        ),
        _claim(
            "too few natural-gradient steps give worse results in the end",
            few["rms"] > ten["rms"],
            f"RMS with {min(newton)} step {few['rms']:.4f}, with 10 {ten['rms']:.4f}",
        ),
        _claim(
            "many natural-gradient steps over-fit few samples",
            most["log_likelihood_at_mean"] < few["log_likelihood_at_mean"],
            f"log-likelihood at the mean with {min(newton)} step {few['log_likelihood_at_mean']:.4f}, "
            f"with {max(newton)} {most['log_likelihood_at_mean']:.4f}",
        ),
    ]


def _on_samples(samples):
    plateau = samples[max(samples)]["log_likelihood"]
    return [
        _claim(
            f"{n} independent samples fail",
            samples[n]["broke_down"] or not samples[n]["log_likelihood"] > plateau - _FAILURE_GAP,
            f"log-likelihood with {n} samples {_level(samples[n])}, with {max(samples)} {plateau:.4f}",
        )
        for n in (2, 4)
    ]


def _on_pairs(pairs, samples):
    one, two, most = pairs[1], samples[2], pairs[max(pairs)]
    works = not one["broke_down"]
    return [
        _claim(
            "one antithetic pair is far more robust than two independent samples",
            works and (two["broke_down"] or one["log_likelihood"] > two["log_likelihood"] + _FAILURE_GAP),
            f"log-likelihood with one pair {_level(one)}, with two samples {_level(two)}",
        ),
        _claim(
            "more pairs reduce the scatter from round to round",
            most["rms_scatter"] < one["rms_scatter"],
            f"scatter of the RMS with 1 pair {one['rms_scatter']:.5f}, with {max(pairs)} {most['rms_scatter']:.5f}",
        ),
    ]


def _level(run) -> str:
    return f"{run['log_likelihood']:.4f}" + (" (broke down)" if run["broke_down"] else "")


def _claim(claim: str, holds: bool, numbers: str) -> dict[str, Any]:
    return {"claim": claim, "holds": bool(holds), "numbers": numbers}
