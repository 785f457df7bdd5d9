"""Coordinates between a latent and what its scale makes of it.

The logarithm of the scale that a hierarchy gives to a site, and a power for each of its latents, come in; the map from
such coordinates to the standard-normal latent, its density and its Fisher information go out.
It must not know the model.

A latent xi that data say little about is best kept as it is; of one that they determine well they know s = scale * xi,
whatever the scale: in terms of xi, posterior and scale are tied by a curved ridge. With the power c, the coordinate is
zeta = xi * (scale / origin)**c, which is xi for c = 0 and s for c = 1. To second order, c = 1 - var(xi | data, scale)
frees the scale from the latents: its marginal precision comes out right.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_Coordinates = dict[str, Any]  # powers, origin (logarithm of a scale) and, for some, a basis of the latents


@dataclass(frozen=True, eq=False)
class Site:
    """Which latents of a site share a power: each has its own, or groups of them have one.

    Parameters
    ----------
    shape : tuple of int
        Shape of the latent.
    groups : tuple of int, optional
        Shape of an array with an entry for each group; by default that of the latent.
    expand : callable, optional
        From such an array to one that broadcasts against the latent.
    shares_scale : bool
        Whether one scale holds for all latents, so that also sums of them can be coordinates.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.coordinates import Site
    >>> site = Site((3,))
    >>> at = {"power": jnp.array([0.0, 0.5, 1.0]), "origin": jnp.log(2.0)}
    >>> print(site.latent(at, jnp.log(8.0), jnp.ones(3)))
    [1.   0.5  0.25]
    """

    shape: tuple[int, ...]
    groups: tuple[int, ...] | None = None
    expand: Callable | None = None
    shares_scale: bool = False

    def start(self, log: Any, turned: bool) -> _Coordinates:
        """Coordinates that are the latent itself, if `turned` with a basis for sums of latents."""
        if turned:
            size = math.prod(self.shape)
            return {"power": np.zeros(size, log.dtype), "origin": log, "basis": np.eye(size, dtype=log.dtype)}
        groups = self.shape if self.groups is None else self.groups
        return {"power": np.zeros(groups, log.dtype), "origin": log}

    def latent(self, at: _Coordinates, log: Any, zeta: Any) -> Any:
        """The standard-normal latent where the scale has the logarithm `log`."""
        factor = jnp.exp(-_stretch(at, log))
        if "basis" in at or "columns" in at:
            basis, turned = _turned(at, zeta)
            return jnp.matmul(basis, factor * turned, precision=jax.lax.Precision.HIGHEST).reshape(self.shape)
        return zeta * (factor if self.expand is None else self.expand(factor))

    def neg_log_ratio(self, at: _Coordinates, log: Any, zeta: Any) -> Any:
        """Negative logarithm of the prior density of the coordinates over that of standard normals, by group."""
        stretch = _stretch(at, log)
        if "basis" in at or "columns" in at:
            _, zeta = _turned(at, zeta)
        return self._counts * stretch + 0.5 * jnp.expm1(-2 * stretch) * self._collect(zeta * zeta)

    def whitened(self, at: _Coordinates, log: Any) -> Any:
        """A function of the scale whose Jacobian is a root of the Fisher information of the coordinates' prior."""
        if jnp.size(log) == 1:
            log = jnp.reshape(log, ())
            return jnp.sqrt(2 * jnp.sum(self._counts * at["power"] ** 2)) * log
        return jnp.sqrt(2 * self._counts) * at["power"] * log

    def power(self, diagonal: Any) -> Any:
        """The best power, from the diagonal of the metric, which tells the variance if all other latents were known."""
        return 1 - self._counts / self._collect(diagonal).clip(self._counts)

    @staticmethod
    def turned(covariance: Any, eigh: Callable = jnp.linalg.eigh) -> dict[str, Any]:
        """The best powers and the basis that they are for, from the covariance of the site's latents."""
        values, basis = eigh(covariance)
        return {"power": (1 - values).clip(0.0, 1.0), "basis": basis}

    def _collect(self, latents):
        """Sums over the groups."""
        expand = self.expand
        if expand is None:
            return latents
        total = lambda groups: jnp.broadcast_to(expand(groups), self.shape)
        like = jax.ShapeDtypeStruct(self.groups, latents.dtype)
        return jax.linear_transpose(total, like)(latents)[0]

    @cached_property
    def _counts(self) -> Any:
        """Latents of each group."""
        if self.expand is None:
            return 1.0
        with jax.ensure_compile_time_eval():  # by one program, not by one for each operation
            return np.asarray(jax.jit(self._collect)(np.ones(self.shape, jnp.result_type(float))))


def _turned(at, zeta):
    """The basis, and coordinates along it, which they are already if the basis is called columns."""
    if "columns" in at:
        return at["columns"], zeta.ravel()
    return at["basis"], jnp.matmul(zeta.ravel(), at["basis"], precision=jax.lax.Precision.HIGHEST)


def _stretch(at, log):
    stretch = log - at["origin"]
    return at["power"] * (jnp.reshape(stretch, ()) if "basis" in at or "columns" in at else stretch)


def along_bases(coordinates: dict[str, _Coordinates]) -> tuple[dict[str, _Coordinates], Callable]:
    """Coordinates that are along their bases, and a function that turns a stack of points into them, or back.

    For those who take many derivatives at once: the turn is made once, not for each of them.
    """
    bases = {name: at["basis"] for name, at in coordinates.items() if "basis" in at}
    renamed = lambda at: {"columns" if kind == "basis" else kind: x for kind, x in at.items()}

    def turn(stack, back=False):
        def one(name, leaf):
            basis = bases[name].T if back else bases[name]
            rows = leaf.reshape(leaf.shape[0], -1)
            if isinstance(rows, np.ndarray) and isinstance(basis, np.ndarray):
                return (rows @ basis).reshape(leaf.shape)
            return jnp.matmul(rows, basis, precision=jax.lax.Precision.HIGHEST).reshape(leaf.shape)

        return {name: one(name, leaf) if name in bases else leaf for name, leaf in stack.items()}

    return {name: renamed(at) for name, at in coordinates.items()}, turn
