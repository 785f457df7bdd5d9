"""Real data sets for examples and benchmarks.

The name of a data set comes in, as a function; NumPy arrays, read from a local folder or downloaded once, go out.
It must not know models or inference.

No data comes with the package. A loader looks in the folder that the environment variable MGVI_DATA_DIR names and,
where the original file is public and its SHA-256 known, downloads it with `pooch` into the user's cache.
"""

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mgvi.errors import FileError

_VARIABLE = "MGVI_DATA_DIR"
_FERMI_ENERGY = 1e4  # MeV, where the counted photons begin and most of them lie
# What readers raise for files that are cut off, garbled or hold something else.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error)


class _Remote(NamedTuple):
    """A public file, as pooch wants it."""

    url: str
    file: str
    sha256: str


_FREY = _Remote(
    "https://cs.nyu.edu/~roweis/data/frey_rawface.mat",
    "frey_rawface.mat",
    "265a83a23adb081755cd3de375509828e690324d1d60f076b8ecebc840d59c64",
)
_POLLS = _Remote(
    "https://raw.githubusercontent.com/stan-dev/example-models/master/ARM/Ch.14/polls.dta",
    "polls.dta",
    "8b475b1defe2cc14255ed26df43d7bb0e318870656dca3160d37823db57dbacb",
)


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


def fermi_counts() -> FermiCounts:
    """Photon counts of the Galactic centre; see `FermiCounts`.

    Raises
    ------
    FileError
        If the data cannot be had; the message says what to do. All loaders do so.

    Examples
    --------
    >>> from mgvi import datasets
    >>> datasets.fermi_counts().counts.sum()  # doctest: +SKIP
    24803
    """
    raw = _local("the Fermi counts", "fields/fermi_gc_counts.npz", _arrays)
    glon, glat = raw["glon"], raw["glat"]
    table = _at_energy(raw["exposure_cm2s"].astype(float), raw["exposure_energy_MeV"].astype(float), _FERMI_ENERGY)
    return FermiCounts(
        counts=raw["counts"].astype(np.int32),
        exposure=_bilinear(raw["exposure_glat"], raw["exposure_glon"], table, glat, glon),
        glon=glon,
        glat=glat,
        psf=raw["psf"].astype(float),  # the file has the byte order of FITS
        psf_energy=raw["psf_energy_MeV"].astype(float),
        psf_angle=raw["psf_theta_deg"].astype(float),
    )


def bei_trees() -> BeiTrees:
    """Trees in a rain forest with the shape of the ground; see `BeiTrees`.

    Examples
    --------
    >>> from mgvi import datasets
    >>> len(datasets.bei_trees().x)  # doctest: +SKIP
    3604
    """
    raw = _local("the trees of Barro Colorado", "fields/bei_trees.npz", _arrays)
    (x_low, x_high), (y_low, y_high) = raw["xrange"], raw["yrange"]
    return BeiTrees(
        x=raw["x"] - x_low,
        y=raw["y"] - y_low,
        width=float(x_high - x_low),
        height=float(y_high - y_low),
        elevation=raw["elevation"],
        gradient=raw["gradient"],
        grid_x=raw["grid_x"] - x_low,
        grid_y=raw["grid_y"] - y_low,
    )


def heather() -> Heather:
    """Binary maps of heather; see `Heather`.

    Examples
    --------
    >>> from mgvi import datasets
    >>> datasets.heather().coarse.shape  # doctest: +SKIP
    (200, 100)
    """
    raw = _local("the heather map", "fields/heather.npz", _arrays)
    return Heather(coarse=raw["coarse"], medium=raw["medium"])


def co2() -> Co2:
    """Weekly carbon dioxide with gaps; see `Co2`.

    Examples
    --------
    >>> from mgvi import datasets
    >>> datasets.co2().ppm[:3]  # doctest: +SKIP
    array([316.1, 317.3, 317.6])
    """
    raw = _local("the CO2 series", "fields/co2_weekly.csv", _table)
    date = np.array([f"{d[:4]}-{d[4:6]}-{d[6:]}" for d in raw["date"]], "datetime64[D]")
    return Co2(date=date, years=1970.0 + date.astype(float) / 365.25, ppm=_numbers(raw["co2"]))


def modis() -> Modis:
    """Surface temperature with gaps; see `Modis`.

    Examples
    --------
    >>> from mgvi import datasets
    >>> datasets.modis().train.shape  # doctest: +SKIP
    (300, 500)
    """
    raw = _local("the MODIS temperatures", "fields/modis_lst_simulated.npz", _arrays)
    return Modis(train=raw["train"], full=raw["full"], lon=raw["lon"], lat=raw["lat"])


def frey_faces() -> FreyFaces:
    """The Frey faces, from a folder or from Sam Roweis' page at NYU; see `FreyFaces`.

    Examples
    --------
    >>> from mgvi import datasets
    >>> datasets.frey_faces().images.shape  # doctest: +SKIP
    (1965, 28, 20)
    """
    name, relative = "the Frey faces", "frey/frey_faces.npz"
    if _find(relative) is not None:
        return FreyFaces(_local(name, relative, _arrays)["images"])
    columns = _remote(name, relative, _FREY, _matlab)["ff"]
    return FreyFaces(np.ascontiguousarray(columns.T.reshape(-1, 28, 20)))


def election_polls() -> ElectionPolls:
    """Polls of 1988, from a folder or from the examples of Stan; see `ElectionPolls`.

    Examples
    --------
    >>> from mgvi import datasets
    >>> len(datasets.election_polls().polls["y"])  # doctest: +SKIP
    13544
    """
    name, relative = "the polls of 1988", "election88/polls.csv.gz"
    if _find(relative) is not None:
        raw = _local(name, relative, _table)
        states = _local("the results of 1988 by state", "election88/states.csv", _table)
        census = _local("the census of 1988", "election88/census_poststrat.csv.gz", _table)
        return ElectionPolls(_polls(raw, raw["y"]), _typed(states), _typed(census))
    raw = _remote(name, relative, _POLLS, _stata)
    return ElectionPolls(_polls(raw, raw["bush"]), None, None)


def _polls(raw, y):
    columns = {name: _numbers(raw[name]).astype(int) for name in ("state", "age", "edu", "female", "black")}
    return {
        "y": _numbers(y),
        **columns,
        "age_edu": 4 * (columns["age"] - 1) + columns["edu"],
        "weight": _numbers(raw["weight"]),
        "wave": _numbers(raw["year"]).astype(int),
        "survey": np.asarray(raw["survey"]).astype(str),
    }


def _find(relative: str) -> Path | None:
    folder = os.environ.get(_VARIABLE)
    path = Path(folder).expanduser() / relative if folder else None
    return path if path is not None and path.is_file() else None


def _local(name: str, relative: str, read: Callable[[Path], Any]) -> Any:
    path = _find(relative)
    if path is None:
        raise FileError(f"{name} cannot be had: {_looked(relative)}. {_advice(relative)}")
    return _read(name, path, read)


def _remote(name: str, relative: str, remote: _Remote, read: Callable[[Path], Any]) -> Any:
    try:
        import pooch
    except ImportError:
        raise FileError(
            f"{name} cannot be had: {_looked(relative)}, and pooch, which downloads {remote.url}, is not installed. "
            f"{_advice(relative)[:-1]}, or install it: pip install 'mgvi[data]'."
        ) from None
    try:
        # Without the progress bar pooch needs no further package.
        path = pooch.retrieve(
            remote.url, f"sha256:{remote.sha256}", fname=remote.file, path=pooch.os_cache("mgvi"), progressbar=False
        )
    except (OSError, ValueError) as error:  # no network, or a file with another hash
        raise FileError(
            f"{name} cannot be had: {_looked(relative)}, and the download of {remote.url} failed ({error}). "
            f"{_advice(relative)}"
        ) from error
    return _read(name, Path(path), read)


def _looked(relative: str) -> str:
    folder = os.environ.get(_VARIABLE)
    return f"{_VARIABLE} is not set" if not folder else f"{_VARIABLE} is {folder!r}, which has no {relative}"


def _advice(relative: str) -> str:
    return f"Set {_VARIABLE} to a folder that has {relative}."


def _read(name: str, path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except ImportError as error:
        raise FileError(f"{name} cannot be read: {path} needs the package {error.name}. Install it.") from None
    except _UNREADABLE as error:
        raise FileError(f"{name} cannot be read: {path} is damaged ({error}). Get the file anew.") from error


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _table(path: Path) -> dict[str, list[str]]:
    """Columns of a CSV file by name, as text."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {column: list(values) for column, values in zip(header, zip(*rows, strict=True), strict=True)}


def _matlab(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    return loadmat(path)


def _stata(path: Path) -> dict[str, np.ndarray]:
    from pandas import read_stata

    frame: Any = read_stata(path, convert_categoricals=False)
    return {str(column): frame[column].to_numpy() for column in frame.columns}


def _numbers(values) -> np.ndarray:
    """Numbers from text or numbers; nan for nothing."""
    return np.array([np.nan if v is None or v == "" else float(v) for v in values])


def _typed(table: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Columns as integers, as numbers with nan for nothing, or as text: the first that fits."""
    columns = {}
    for name, values in table.items():
        try:
            column = _numbers(values)
        except ValueError:
            column = np.array(values)
        else:
            if not any("." in v or v == "" for v in values):
                column = column.astype(int)
        columns[name] = column
    return columns


def _at_energy(table, energies, energy):
    """One layer of a table whose first axis is energy: linear in its logarithm."""
    position = np.interp(np.log(energy), np.log(energies), np.arange(len(energies)))
    lower = min(int(position), len(energies) - 2)
    return table[lower] + (position - lower) * (table[lower + 1] - table[lower])


def _bilinear(y, x, table, new_y, new_x):
    """A table on axes that may decrease, at new rows and columns; constant beyond its edges."""
    y_order, x_order = np.argsort(y), np.argsort(x)
    rows = np.stack([np.interp(new_x, x[x_order], row[x_order]) for row in table])
    return np.stack([np.interp(new_y, y[y_order], column[y_order]) for column in rows.T], axis=1)
