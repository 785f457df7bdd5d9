"""Loaders of real data sets.

The name of a data set comes in, as a function; NumPy arrays, read from a local folder or downloaded once, go out.
It must not know models or inference.

No data comes with the package. A loader looks in the folder that the environment variable MGVI_DATA_DIR names and,
where the original file is public and its SHA-256 known, downloads it with `pooch` into the user's cache.
"""

import numpy as np

from experiments.datasets.containers import BeiTrees, Co2, ElectionPolls, FermiCounts, FreyFaces, Heather, Modis
from experiments.datasets.files import (
    Remote,
    fetch,
    find,
    local,
    numbers,
    read_arrays,
    read_matlab,
    read_stata,
    read_table,
    typed,
)

_EXPOSURE_ENERGY = 1e4  # MeV: the lowest energy of the counted photons, near which most of them are

_FREY = Remote(
    "https://cs.nyu.edu/~roweis/data/frey_rawface.mat",
    "frey_rawface.mat",
    "265a83a23adb081755cd3de375509828e690324d1d60f076b8ecebc840d59c64",
)
_POLLS = Remote(
    "https://raw.githubusercontent.com/stan-dev/example-models/master/ARM/Ch.14/polls.dta",
    "polls.dta",
    "8b475b1defe2cc14255ed26df43d7bb0e318870656dca3160d37823db57dbacb",
)


def fermi_counts() -> FermiCounts:
    """Photon counts of the Galactic centre; see `FermiCounts`.

    Raises
    ------
    FileError
        If the data cannot be had; the message says what to do. All loaders do so.

    Examples
    --------
    >>> from experiments import datasets
    >>> datasets.fermi_counts().counts.sum()  # doctest: +SKIP
    24803
    """
    raw = local("the Fermi counts", "fields/fermi_gc_counts.npz", read_arrays)
    glon, glat = raw["glon"], raw["glat"]
    table = _at_energy(raw["exposure_cm2s"].astype(float), raw["exposure_energy_MeV"].astype(float), _EXPOSURE_ENERGY)
    return FermiCounts(
        counts=raw["counts"].astype(np.int32),
        exposure=_bilinear(raw["exposure_glat"], raw["exposure_glon"], table, glat, glon),
        glon=glon,
        glat=glat,
        psf=raw["psf"].astype(float),  # from the big-endian numbers of FITS to native ones
        psf_energy=raw["psf_energy_MeV"].astype(float),
        psf_angle=raw["psf_theta_deg"].astype(float),
    )


def bei_trees() -> BeiTrees:
    """Trees in a rain forest with the shape of the ground; see `BeiTrees`.

    Examples
    --------
    >>> from experiments import datasets
    >>> len(datasets.bei_trees().x)  # doctest: +SKIP
    3604
    """
    raw = local("the trees of Barro Colorado", "fields/bei_trees.npz", read_arrays)
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
    >>> from experiments import datasets
    >>> datasets.heather().coarse.shape  # doctest: +SKIP
    (200, 100)
    """
    raw = local("the heather map", "fields/heather.npz", read_arrays)
    return Heather(coarse=raw["coarse"], medium=raw["medium"])


def co2() -> Co2:
    """Weekly carbon dioxide with gaps; see `Co2`.

    Examples
    --------
    >>> from experiments import datasets
    >>> datasets.co2().ppm[:3]  # doctest: +SKIP
    array([316.1, 317.3, 317.6])
    """
    raw = local("the CO2 series", "fields/co2_weekly.csv", read_table)
    date = np.array([f"{d[:4]}-{d[4:6]}-{d[6:]}" for d in raw["date"]], "datetime64[D]")
    return Co2(date=date, years=1970.0 + date.astype(float) / 365.25, ppm=numbers(raw["co2"]))


def modis() -> Modis:
    """Surface temperature with gaps; see `Modis`.

    Examples
    --------
    >>> from experiments import datasets
    >>> datasets.modis().train.shape  # doctest: +SKIP
    (300, 500)
    """
    raw = local("the MODIS temperatures", "fields/modis_lst_simulated.npz", read_arrays)
    return Modis(train=raw["train"], full=raw["full"], lon=raw["lon"], lat=raw["lat"])


def frey_faces() -> FreyFaces:
    """The Frey faces, from a folder or from Sam Roweis' page at NYU; see `FreyFaces`.

    Examples
    --------
    >>> from experiments import datasets
    >>> datasets.frey_faces().images.shape  # doctest: +SKIP
    (1965, 28, 20)
    """
    name, relative = "the Frey faces", "frey/frey_faces.npz"
    if find(relative) is not None:
        return FreyFaces(local(name, relative, read_arrays)["images"])
    columns = fetch(name, relative, _FREY, read_matlab)["ff"]
    return FreyFaces(np.ascontiguousarray(columns.T.reshape(-1, 28, 20)))


def election_polls() -> ElectionPolls:
    """Polls of 1988, from a folder or from the examples of Stan; see `ElectionPolls`.

    Examples
    --------
    >>> from experiments import datasets
    >>> len(datasets.election_polls().polls["y"])  # doctest: +SKIP
    13544
    """
    name, relative = "the polls of 1988", "election88/polls.csv.gz"
    if find(relative) is not None:
        raw = local(name, relative, read_table)
        states = local("the results of 1988 by state", "election88/states.csv", read_table)
        census = local("the census of 1988", "election88/census_poststrat.csv.gz", read_table)
        return ElectionPolls(_polls(raw, raw["y"]), typed(states), typed(census))
    raw = fetch(name, relative, _POLLS, read_stata)
    return ElectionPolls(_polls(raw, raw["bush"]), None, None)


def _polls(raw, y):
    columns = {name: numbers(raw[name]).astype(int) for name in ("state", "age", "edu", "female", "black")}
    return {
        "y": numbers(y),
        **columns,
        "age_edu": 4 * (columns["age"] - 1) + columns["edu"],
        "weight": numbers(raw["weight"]),
        "wave": numbers(raw["year"]).astype(int),
        "survey": np.asarray(raw["survey"]).astype(str),
    }


def _at_energy(table, energies, energy):
    """A table whose first axis is energy at one energy, interpolated linearly in ln(energy)."""
    position = np.interp(np.log(energy), np.log(energies), np.arange(len(energies)))
    lower = min(int(position), len(energies) - 2)
    return table[lower] + (position - lower) * (table[lower + 1] - table[lower])


def _bilinear(y, x, table, new_y, new_x):
    """Bilinear interpolation of a table, whose axes may decrease, to new axes; constant beyond its edges."""
    y_order, x_order = np.argsort(y), np.argsort(x)
    rows = np.stack([np.interp(new_x, x[x_order], row[x_order]) for row in table])
    return np.stack([np.interp(new_y, y[y_order], column[y_order]) for column in rows.T], axis=1)
