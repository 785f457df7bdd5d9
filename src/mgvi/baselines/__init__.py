"""Other methods on the same problems: point estimates, Laplace, ADVI, linear response and NUTS.

A problem comes in; a Posterior with a timed history goes out. No baseline knows `mgvi.fit`.
"""

from mgvi.baselines.advi import advi_fullrank, advi_meanfield
from mgvi.baselines.chains import Tuning, nuts
from mgvi.baselines.modes import laplace, map_estimate
from mgvi.baselines.response import linear_response

__all__ = ["Tuning", "advi_fullrank", "advi_meanfield", "laplace", "linear_response", "map_estimate", "nuts"]
