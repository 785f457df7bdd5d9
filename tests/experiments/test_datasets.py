import os
import subprocess
import sys
import types

import numpy as np
import pytest

from experiments import datasets
from mgvi.errors import FileError

LOADERS = {
    "fermi_counts": "fields/fermi_gc_counts.npz",
    "bei_trees": "fields/bei_trees.npz",
    "heather": "fields/heather.npz",
    "co2": "fields/co2_weekly.csv",
    "modis": "fields/modis_lst_simulated.npz",
    "frey_faces": "frey/frey_faces.npz",
    "election_polls": "election88/polls.csv.gz",
}
real_data = pytest.mark.skipif(not os.environ.get("MGVI_DATA_DIR"), reason="needs the folder MGVI_DATA_DIR")


@pytest.fixture
def nowhere(monkeypatch):
    monkeypatch.delenv("MGVI_DATA_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)  # importing it fails


@pytest.fixture
def fake_pooch(monkeypatch, tmp_path):
    """A pooch that records its calls and returns a file named by the test."""
    calls, files = [], {}

    def retrieve(url, known_hash, **options):
        calls.append((url, known_hash, options))
        if options["fname"] not in files:
            raise ConnectionError("no route to host")
        return str(files[options["fname"]])

    module = types.ModuleType("pooch")
    module.retrieve = retrieve
    module.os_cache = lambda project: tmp_path / project
    module.calls, module.files = calls, files
    monkeypatch.delenv("MGVI_DATA_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", module)
    return module


@pytest.mark.parametrize("name", LOADERS)
def test_a_missing_data_set_is_a_sentence_that_says_what_to_do(name, nowhere):
    with pytest.raises(FileError, match="MGVI_DATA_DIR is not set") as error:
        getattr(datasets, name)()
    assert f"Set MGVI_DATA_DIR to a folder that has {LOADERS[name]}" in str(error.value)


@pytest.mark.parametrize("name", LOADERS)
def test_a_folder_without_the_file_is_named(name, nowhere, monkeypatch, tmp_path):
    monkeypatch.setenv("MGVI_DATA_DIR", str(tmp_path))
    with pytest.raises(FileError) as error:
        getattr(datasets, name)()
    assert f"{str(tmp_path)!r}, which has no {LOADERS[name]}" in str(error.value)


@pytest.mark.parametrize("name", ["frey_faces", "election_polls"])
def test_without_pooch_the_message_says_how_to_install_it(name, nowhere):
    with pytest.raises(FileError, match=r"pip install pooch"):
        getattr(datasets, name)()


@pytest.mark.parametrize("name", ["frey_faces", "election_polls"])
def test_a_failed_download_is_a_sentence(name, fake_pooch):
    with pytest.raises(FileError, match=r"the download of https://\S+ failed \(no route to host\)"):
        getattr(datasets, name)()


def test_a_file_with_another_hash_is_refused(fake_pooch, monkeypatch):
    def retrieve(*args, **options):
        raise ValueError("SHA256 hash of downloaded file does not match")

    monkeypatch.setattr(fake_pooch, "retrieve", retrieve)
    with pytest.raises(FileError, match="does not match"):
        datasets.frey_faces()


def test_frey_faces_from_the_original_file(fake_pooch, tmp_path):
    savemat = pytest.importorskip("scipy.io").savemat
    images = np.random.default_rng(1).integers(8, 239, (5, 28, 20), dtype=np.uint8)
    fake_pooch.files["frey_rawface.mat"] = tmp_path / "frey_rawface.mat"
    savemat(fake_pooch.files["frey_rawface.mat"], {"ff": images.reshape(5, 560).T})
    np.testing.assert_array_equal(datasets.frey_faces().images, images)
    ((url, known_hash, options),) = fake_pooch.calls
    assert url.startswith("https://") and url.endswith(options["fname"])
    assert known_hash.startswith("sha256:") and len(known_hash) == len("sha256:") + 64
    assert options["path"] == tmp_path / "mgvi"


def test_election_polls_from_the_original_file(fake_pooch, tmp_path):
    pandas = pytest.importorskip("pandas")
    columns = {"year": [1, 7], "bush": [1.0, np.nan], "state": [7, 33], "edu": [2, 4], "age": [2, 3]}
    columns |= {
        "org": ["cbsnyt"] * 2,
        "survey": ["9152", "9158"],
        "female": [1, 0],
        "black": [0, 1],
        "weight": [3.0, 4],
    }
    fake_pooch.files["polls.dta"] = tmp_path / "polls.dta"
    pandas.DataFrame(columns).to_stata(fake_pooch.files["polls.dta"], write_index=False)
    data = datasets.election_polls()
    np.testing.assert_array_equal(data.polls["y"], [1.0, np.nan])
    np.testing.assert_array_equal(data.polls["age_edu"], [6, 12])
    assert data.polls["survey"].tolist() == ["9152", "9158"]
    assert data.states is None and data.census is None


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_named(content, monkeypatch, tmp_path):
    (tmp_path / "fields").mkdir()
    (tmp_path / "fields" / "heather.npz").write_bytes(content)
    monkeypatch.setenv("MGVI_DATA_DIR", str(tmp_path))
    with pytest.raises(FileError, match=r"heather\.npz is damaged"):
        datasets.heather()


def test_weeks_without_a_measurement_are_nan(monkeypatch, tmp_path):
    (tmp_path / "fields").mkdir()
    (tmp_path / "fields" / "co2_weekly.csv").write_text("date,co2\n19700101,325.0\n19700108,\n")
    monkeypatch.setenv("MGVI_DATA_DIR", str(tmp_path))
    data = datasets.co2()
    np.testing.assert_array_equal(data.ppm, [325.0, np.nan])
    np.testing.assert_allclose(data.years, [1970.0, 1970.0 + 7 / 365.25])
    assert data.date[1] == np.datetime64("1970-01-08")


def test_the_package_imports_no_reader():
    code = "import sys, experiments.datasets; print([m for m in ('pooch', 'scipy.io', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@real_data
def test_fermi_counts():
    data = datasets.fermi_counts()
    assert data.counts.shape == data.exposure.shape == (len(data.glat), len(data.glon)) == (201, 401)
    assert data.counts.sum() == 24803
    assert 1.2e11 < data.exposure.min() < data.exposure.max() < 2e11
    assert abs(data.glat[np.argmax(data.counts.sum(axis=1))]) < 0.5  # the Galactic plane


@real_data
def test_bei_trees():
    data = datasets.bei_trees()
    assert len(data.x) == len(data.y) == 3604
    assert (data.width, data.height) == (1000.0, 500.0)
    assert data.elevation.shape == data.gradient.shape == (len(data.grid_y), len(data.grid_x))


@real_data
def test_heather():
    data = datasets.heather()
    assert data.coarse.shape == (200, 100) and data.medium.shape == (512, 256)
    assert data.coarse.dtype == data.medium.dtype == bool


@real_data
def test_co2():
    data = datasets.co2()
    assert len(data.ppm) == 2284 and np.isnan(data.ppm).sum() == 59
    assert np.all(np.diff(data.date) == np.timedelta64(7, "D"))


@real_data
def test_modis():
    data = datasets.modis()
    seen = np.isfinite(data.train)
    assert data.train.shape == (len(data.lat), len(data.lon)) and (~seen).sum() == 44431
    np.testing.assert_array_equal(data.train[seen], data.full[seen])


@real_data
def test_frey_faces():
    images = datasets.frey_faces().images
    assert images.shape == (1965, 28, 20) and (images.min(), images.max()) == (8, 238)


@real_data
def test_election_polls():
    data = datasets.election_polls()
    assert len(data.polls["y"]) == 13544 and np.isnan(data.polls["y"]).sum() == 1978
    assert set(data.polls["wave"]) == set(range(1, 8))
    assert data.states["region"][8] == 5 and data.states["abbr"][8] == "DC"
    assert len(data.census["N"]) == 3264


def test_the_checkerboard_is_half_white_and_its_rate_is_that_of_the_data():
    board = datasets.checkerboard(3, size=256)
    assert board.white.mean() == 0.5
    assert np.all(board.white == np.roll(board.white, (16, 16), (0, 1)))
    assert not np.any(board.white & np.roll(board.white, 16, 0))
    assert abs(np.mean(board.data - board.rate)) < 0.01
    assert np.array_equal(datasets.checkerboard(3, size=256).data, board.data)


def test_the_field_of_the_checkerboard_has_the_spectrum_that_is_returned():
    spectra = []
    for seed in range(20):
        board = datasets.checkerboard(seed, size=64, bend=0.0)
        modes = np.abs(np.fft.fft2(np.arctanh(2 * board.rate - 1)) / 64**2) ** 2
        k = np.hypot(*np.meshgrid(*[np.fft.fftfreq(64, 1 / 64)] * 2))
        ring = (k > 7.5) & (k < 8.5)
        spectra.append(np.mean(modes[ring]) / np.interp(8.0, board.wave, board.power))
    assert abs(np.mean(spectra) - 1) < 0.1


def test_an_odd_number_of_squares_is_refused():
    with pytest.raises(ValueError, match="squares must be even, .* and divide the size: found 3 and 32"):
        datasets.checkerboard(1, size=32, squares=3)


def test_lognormal_counts_have_the_moments_that_were_asked_for():
    draws = [datasets.lognormal_counts(seed, mean=1.0, sd=0.5) for seed in range(200)]
    log_rate = np.array([d.log_rate for d in draws])
    assert abs(log_rate.mean() - 1.0) < 0.05 and abs(log_rate.std() - 0.5) < 0.05
    assert abs(np.mean([d.counts - np.exp(d.log_rate) for d in draws])) < 0.05
    neighbours = np.mean((log_rate - 1) * (np.roll(log_rate, 6, axis=1) - 1)) / 0.25
    assert abs(neighbours - np.exp(-((6 / 128) ** 2) / (2 * 0.05**2))) < 0.05
