"""What the loaders of real data return: arrays with names and units.

Arrays come in; immutable records go out.
Nothing here knows where the arrays come from.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FermiCounts:
    """Gamma rays from the Galactic centre above 10 GeV, counted by Fermi-LAT.

    Attributes
    ----------
    counts : int array (201, 401)
        Photons in pixels of 0.1 degrees; rows follow `glat`, columns `glon`.
    exposure : float array (201, 401)
        Area times time at 10 GeV, in cm^2 s, interpolated to the pixels.
    glon, glat : float arrays
        Galactic longitude (decreasing, as on the sky) and latitude of the pixel centres, in degrees.
    psf : float array (energies, angles)
        Point-spread function, in 1/sr, at the energies `psf_energy` (MeV) and the angles `psf_angle` (degrees).
    psf_energy, psf_angle : float arrays
        Axes of `psf`.
    """

    counts: np.ndarray
    exposure: np.ndarray
    glon: np.ndarray
    glat: np.ndarray
    psf: np.ndarray
    psf_energy: np.ndarray
    psf_angle: np.ndarray


@dataclass(frozen=True)
class BeiTrees:
    """Trees of the species Beilschmiedia pendula in a plot of rain forest on Barro Colorado Island.

    Attributes
    ----------
    x, y : float arrays (3604,)
        Where the trees are, in metres.
    width, height : float
        Extent of the plot along x and y, in metres: 1000 and 500.
    elevation : float array (101, 201)
        Height of the ground above sea level, in metres; rows follow `grid_y`, columns `grid_x`.
    gradient : float array (101, 201)
        Steepness of the ground, dimensionless.
    grid_x, grid_y : float arrays
        Where elevation and gradient were measured, in metres.
    """

    x: np.ndarray
    y: np.ndarray
    width: float
    height: float
    elevation: np.ndarray
    gradient: np.ndarray
    grid_x: np.ndarray
    grid_y: np.ndarray


@dataclass(frozen=True)
class Heather:
    """Presence of heather in a plot of 10 by 20 metres, at two resolutions.

    Attributes
    ----------
    coarse : bool array (200, 100)
        In pixels of 10 cm.
    medium : bool array (512, 256)
        In pixels of 3.9 cm.
    """

    coarse: np.ndarray
    medium: np.ndarray


@dataclass(frozen=True)
class Co2:
    """Weekly concentration of carbon dioxide on Mauna Loa, 1958 to 2001.

    Attributes
    ----------
    date : datetime64[D] array (2284,)
        Every week, without gaps.
    years : float array (2284,)
        The same in years of 365.25 days; 1970-01-01 is 1970.0.
    ppm : float array (2284,)
        Parts per million; nan in the 59 weeks without a measurement.
    """

    date: np.ndarray
    years: np.ndarray
    ppm: np.ndarray


@dataclass(frozen=True)
class Modis:
    """Simulated land surface temperature seen through real gaps in clouds (Heaton et al. 2019).

    Attributes
    ----------
    train : float array (300, 500)
        Temperature in degrees Celsius; nan where it is hidden.
    full : float array (300, 500)
        The same without gaps.
    lon, lat : float arrays
        Longitude of the columns and latitude of the rows, in degrees.
    """

    train: np.ndarray
    full: np.ndarray
    lon: np.ndarray
    lat: np.ndarray


@dataclass(frozen=True)
class FreyFaces:
    """Frames of a video of Brendan Frey's face.

    Attributes
    ----------
    images : uint8 array (1965, 28, 20)
        Upright, in the order of the video.
    """

    images: np.ndarray


@dataclass(frozen=True)
class ElectionPolls:
    """CBS polls before the US presidential election of 1988 (Gelman & Hill 2006, chapter 14).

    Attributes
    ----------
    polls : dict of arrays (13544,)
        One entry a respondent. "y": 1.0 for Bush, 0.0 for Dukakis, nan for the 1978 without an opinion. "state": 1 to
        51, alphabetical, District of Columbia 9. "age", "edu": 1 to 4. "age_edu": 4 (age - 1) + edu. "female",
        "black": 0 or 1. "weight": of the survey. "wave": 1 to 7. "survey": its name.
    states : dict of arrays (51,), or None
        One entry a state: "state", "abbr", "region" (1 Northeast, 2 Midwest, 3 South, 4 West, 5 District of
        Columbia), "v_prev" (Republican share in earlier elections), "v_prev_adjusted", "result_1988" (the true
        outcome). None where only the original file of the polls could be had.
    census : dict of arrays (3264,), or None
        One entry a cell: "female", "black", "age", "edu", "state" and the number "N" of people. None as above.
    """

    polls: dict[str, np.ndarray]
    states: dict[str, np.ndarray] | None
    census: dict[str, np.ndarray] | None
