"""Data sets for examples, experiments and benchmarks: real ones, and synthetic ones with known truth.

The name of a data set comes in, as a function; NumPy arrays go out.
Nothing here knows models or inference.
"""

from experiments.datasets.containers import BeiTrees, Co2, ElectionPolls, FermiCounts, FreyFaces, Heather, Modis
from experiments.datasets.real import bei_trees, co2, election_polls, fermi_counts, frey_faces, heather, modis
from experiments.datasets.synthetic import Checkerboard, LogNormalCounts, checkerboard, lognormal_counts

__all__ = [
    "BeiTrees",
    "Checkerboard",
    "Co2",
    "ElectionPolls",
    "FermiCounts",
    "FreyFaces",
    "Heather",
    "LogNormalCounts",
    "Modis",
    "bei_trees",
    "checkerboard",
    "co2",
    "election_polls",
    "fermi_counts",
    "frey_faces",
    "heather",
    "lognormal_counts",
    "modis",
]
