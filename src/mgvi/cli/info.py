"""What is installed here: versions, devices, caches, data.

Nothing comes in; facts about this machine go out.
It must not change anything.
"""

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mgvi._version import __version__
from mgvi.cli import console

_PACKAGES = ("jax", "jaxlib", "numpyro", "numpy")
_OPTIONAL = {
    "arviz": "arviz",
    "matplotlib": "plot",
    "pooch": "data",
    "rich": "cli",
    "safetensors": "files",
    "typer": "cli",
}
_LOCAL_DATA = {
    "Fermi counts": "fields/fermi_gc_counts.npz",
    "trees": "fields/bei_trees.npz",
    "heather": "fields/heather.npz",
    "CO2": "fields/co2_weekly.csv",
    "MODIS": "fields/modis_lst_simulated.npz",
    "Frey faces": "frey/frey_faces.npz",
    "polls": "election88/polls.csv.gz",
}


def facts() -> dict[str, Any]:
    """Everything that a report of a problem should mention."""
    return {
        "mgvi": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in (*_PACKAGES, *_OPTIONAL)},
        "precision": str(jnp.result_type(float)),
        "devices": [f"{device.platform} {device.id}: {device.device_kind}" for device in jax.devices()],
        "cores": os.cpu_count(),
        "caches": {
            "downloads": _download_cache(),
            "compiled programs": jax.config.values.get("jax_compilation_cache_dir"),
        },
        "data": _data(),
    }


def show(*, as_json: bool) -> None:
    """Print the facts."""
    found = facts()
    if as_json:
        console.print_json(found)
        return
    print(f"mgvi {found['mgvi']}, Python {found['python']}, {found['platform']}")
    print(f"{found['cores']} cores; devices: {', '.join(found['devices'])}; default precision {found['precision']}")
    print("\npackages")
    for name, version in found["packages"].items():
        print(f"  {name:12} {version or _how_to_get(name)}")
    print("\ncaches")
    for name, path in found["caches"].items():
        print(f"  {name:18} {path or _NO_CACHE[name]}")
    data = found["data"]
    print("\ndata sets")
    print(f"  MGVI_DATA_DIR      {data['MGVI_DATA_DIR'] or 'not set; public data are downloaded when needed'}")
    if data["MGVI_DATA_DIR"]:
        print(f"  found there        {', '.join(data['found']) or 'nothing that mgvi.datasets reads'}")


_NO_CACHE = {
    "downloads": "none: pooch is not installed",
    "compiled programs": "none; set JAX_COMPILATION_CACHE_DIR to a folder to keep them between runs",
}


def _how_to_get(name: str) -> str:
    return f"not installed: pip install 'mgvi[{_OPTIONAL[name]}]'" if name in _OPTIONAL else "not installed"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _download_cache() -> str | None:
    if importlib.util.find_spec("pooch") is None:
        return None
    import pooch

    return str(pooch.os_cache("mgvi"))


def _data() -> dict[str, Any]:
    folder = os.environ.get("MGVI_DATA_DIR")
    root = Path(folder).expanduser() if folder else None
    found = [name for name, file in _LOCAL_DATA.items() if root is not None and (root / file).is_file()]
    return {"MGVI_DATA_DIR": folder, "found": found}
