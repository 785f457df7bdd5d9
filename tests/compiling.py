"""Compilation for tests, most of which wait for it: what they compile runs once or twice."""

from functools import partial

import jax

quick_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)
