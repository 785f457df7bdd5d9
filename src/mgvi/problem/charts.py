"""Charts: coordinates between a latent and what its scale makes of it.

The logarithm of the scale that a hierarchy gives to a site, and a power for each of its latents, come in; the map from
such coordinates to the standard-normal latent and back, its density and its Fisher information go out.
It must not know the model.

A latent xi about which the data say little is best kept as it is. If the data determine scale * xi well, then xi and
the scale are tied by a curved ridge, and scale * xi is the better coordinate. With the power c, the coordinate is
zeta = xi * (scale / origin)**c, which is xi for c = 0 and proportional to scale * xi for c = 1 (partial non-centring:
Papaspiliopoulos, Roberts and Skold, 2007). To second order, c = 1 - var(xi | data, scale) makes latents and scale
independent, so that the marginal precision of the scale comes out right; `docs/method.md` derives it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Of one site: "power", "origin" (the logarithm of a scale), and for some a "basis" (columns that the coordinates are
# along; called "columns" where points are along it already).
SiteChart = dict[str, Any]
Chart = dict[str, SiteChart]


@dataclass(frozen=True, eq=False)
class Site:
    """A site whose scale depends on other latents, and which of its latents share a power.

    Parameters
    ----------
    shape : tuple of int
        Shape of the latent.
    groups : tuple of int, optional
        Shape of an array with an entry for each group of latents that share a power; by default each has its own.
    expand : callable, optional
        From such an array to one that broadcasts against the latent.
    shares_scale : bool
        Whether one scale holds for all latents, so that sums of them can be coordinates too.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.problem.charts import Site
    >>> site = Site((3,))
    >>> at = {"power": jnp.array([0.0, 0.5, 1.0]), "origin": jnp.log(2.0)}
    >>> print(site.latent(at, jnp.log(8.0), jnp.ones(3)))
    [1.   0.5  0.25]
    >>> print(site.coordinate(at, jnp.log(8.0), jnp.array([1.0, 0.5, 0.25])))
    [1. 1. 1.]
    """

    shape: tuple[int, ...]
    groups: tuple[int, ...] | None = None
    expand: Callable | None = None
    shares_scale: bool = False

    def start(self, log: Any, turned: bool) -> SiteChart:
        """A chart in which coordinates are the latent itself, if `turned` with a basis for sums of latents."""
        if turned:
            size = math.prod(self.shape)
            return {"power": np.zeros(size, log.dtype), "origin": log, "basis": np.eye(size, dtype=log.dtype)}
        groups = self.shape if self.groups is None else self.groups
        return {"power": np.zeros(groups, log.dtype), "origin": log}

    def latent(self, at: SiteChart, log: Any, zeta: Any) -> Any:
        """The standard-normal latent of a coordinate, where the scale has the logarithm `log`."""
        factor = jnp.exp(-_stretch(at, log))
        if _is_turned(at):
            basis, along = _along(at, zeta)
            return jnp.matmul(basis, factor * along, precision=jax.lax.Precision.HIGHEST).reshape(self.shape)
        return zeta * (factor if self.expand is None else self.expand(factor))

    def coordinate(self, at: SiteChart, log: Any, xi: Any) -> Any:
        """The inverse of `latent`; not for coordinates that are along their basis already."""
        factor = jnp.exp(_stretch(at, log))
        if "basis" not in at:
            return xi * (factor if self.expand is None else self.expand(factor))
        turn = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
        return turn(at["basis"], factor * turn(xi.ravel(), at["basis"])).reshape(self.shape)

    def log_volume(self, at: SiteChart, log: Any) -> Any:
        """Logarithm of the determinant of `coordinate`, by group."""
        return self._counts * _stretch(at, log)

    def neg_log_ratio(self, at: SiteChart, log: Any, zeta: Any) -> Any:
        """Negative logarithm of the prior density of the coordinates over that of standard normals, by group."""
        stretch = _stretch(at, log)
        if _is_turned(at):
            _, zeta = _along(at, zeta)
        return self._counts * stretch + 0.5 * jnp.expm1(-2 * stretch) * self._collect(zeta * zeta)

    def whitened(self, at: SiteChart, log: Any) -> Any:
        """A function of the scale whose Jacobian is a root of the Fisher information of the coordinates' prior."""
        if jnp.size(log) == 1:
            return jnp.sqrt(2 * jnp.sum(self._counts * at["power"] ** 2)) * jnp.reshape(log, ())
        return jnp.sqrt(2 * self._counts) * at["power"] * log

    def power(self, diagonal: Any) -> Any:
        """The best power, from the diagonal of the metric: it tells the variance if all other latents were known."""
        counts = self._counts
        return 1 - counts / self._collect(diagonal).clip(counts)

    @staticmethod
    def turned(covariance: Any, eigh: Callable = jnp.linalg.eigh) -> SiteChart:
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

    @property
    def _counts(self) -> Any:
        """How many latents each group has; made within the program, as a table it would be a large constant."""
        return 1.0 if self.expand is None else self._collect(jnp.ones(self.shape, jnp.result_type(float)))


def _is_turned(at) -> bool:
    return "basis" in at or "columns" in at


def _along(at, zeta):
    """The basis, and coordinates along it."""
    if "columns" in at:
        return at["columns"], zeta.ravel()
    return at["basis"], jnp.matmul(zeta.ravel(), at["basis"], precision=jax.lax.Precision.HIGHEST)


def _stretch(at, log):
    stretch = log - at["origin"]
    return at["power"] * (jnp.reshape(stretch, ()) if _is_turned(at) else stretch)


def along_bases(chart: Chart) -> tuple[Chart, Callable]:
    """A chart whose points are along its bases, and a function that turns a stack of points into such, or back.

    It is for those who take many derivatives at once: points are turned once, not for each derivative.
    """
    bases = {name: at["basis"] for name, at in chart.items() if "basis" in at}
    renamed = lambda at: {"columns" if kind == "basis" else kind: x for kind, x in at.items()}

    def turn(stack, back=False):
        def one(name, leaf):
            basis = bases[name].T if back else bases[name]
            rows = leaf.reshape(leaf.shape[0], -1)
            if isinstance(rows, np.ndarray) and isinstance(basis, np.ndarray):
                return (rows @ basis).reshape(leaf.shape)
            return jnp.matmul(rows, basis, precision=jax.lax.Precision.HIGHEST).reshape(leaf.shape)

        return {name: one(name, leaf) if name in bases else leaf for name, leaf in stack.items()}

    return {name: renamed(at) for name, at in chart.items()}, turn
