"""Problems: where a model meets its data.

Traced programs and data come in; density, metric and predictions go out, in standard latents or in a chart.
Nothing here knows how a problem is minimised or sampled.
"""

from mgvi.problem.charts import Chart, Site
from mgvi.problem.metric import FisherMetric
from mgvi.problem.problem import Latent, Problem, Static, located

__all__ = ["Chart", "FisherMetric", "Latent", "Problem", "Site", "Static", "located"]
