"""What is installed here: versions, devices, and the cache of compiled programs.

Nothing comes in; facts about this machine go out. It must not change anything.
"""

import importlib.metadata
import os
import platform
from typing import Any

import jax
import jax.numpy as jnp

from mgvi._version import __version__
from mgvi.cli import console

_REQUIRED = ("jax", "jaxlib", "numpyro", "numpy")
_EXTRAS = {"arviz": "arviz", "matplotlib": "plot", "rich": "cli", "safetensors": "files", "typer": "cli"}


def facts() -> dict[str, Any]:
    """Everything that a report of a problem should mention."""
    return {
        "mgvi": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in (*_REQUIRED, *_EXTRAS)},
        "precision": str(jnp.result_type(float)),
        "devices": [f"{device.platform} {device.id}: {device.device_kind}" for device in jax.devices()],
        "cores": os.cpu_count(),
        "compilation_cache": jax.config.values.get("jax_compilation_cache_dir"),
    }


def show(*, as_json: bool) -> None:
    """Print the facts."""
    found = facts()
    if as_json:
        console.print_json(found)
        return
    print(f"mgvi {found['mgvi']}, Python {found['python']}, {found['platform']}")
    print(f"{found['cores']} cores; devices: {', '.join(found['devices'])}; default precision {found['precision']}")
    none = "none; set JAX_COMPILATION_CACHE_DIR to a folder to keep compiled programs between runs"
    print(f"compilation cache: {found['compilation_cache'] or none}")
    print("\npackages")
    for name, version in found["packages"].items():
        extra = f": pip install 'mgvi[{_EXTRAS[name]}]'" if name in _EXTRAS else ""
        print(f"  {name:12} {version or f'not installed{extra}'}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
