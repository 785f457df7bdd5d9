"""Saved results: folders with arrays and facts, replaced atomically.

Arrays by group and name, facts that JSON can hold and a problem come in; a folder with a safetensors and a JSON file
goes out, and the arrays and facts come back from it if it was written for the same problem. It must not know what the
arrays mean.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

from mgvi._canonical import label, label_array
from mgvi._version import __version__
from mgvi.errors import FileError, MgviWarning

_ARRAYS, _FACTS = "arrays.safetensors", "facts.json"


def fingerprint(problem) -> dict[str, str]:
    """Hashes of a problem's data, with its latent, and of its model: the same in another process."""
    arrays, static = problem.arrays, problem.static
    latent = [(name, leaf.shape, str(leaf.dtype)) for name, leaf in sorted(problem.latent.items())]
    given = jax.tree_util.tree_leaves_with_path({name: arrays[name] for name in ("data", "weight")})
    data = [(jax.tree_util.keystr(path), label_array(leaf)) for path, leaf in given]
    constants = [label_array(constant) for constant in arrays["constants"]]
    programs = [p.label(constants) for p in (static.observe, static.constrain, static.scales) if p is not None]
    return {"data": label(latent, data), "model": label(programs)}


def _made_with() -> dict[str, str]:
    """Versions that decide into which operations a model is traced."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, "jax": jax.__version__, "numpyro": numpyro.__version__, "mgvi": __version__}


def write(path: Any, arrays: dict[str, dict[str, Any]], facts: dict, problem) -> None:
    """Write a folder under a temporary name, then rename it: a crash leaves the old folder or the new one, complete."""
    safetensors = _safetensors()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = {f"{group}/{name}": np.asarray(x, order="C") for group, tree in arrays.items() for name, x in tree.items()}
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        payload = safetensors.save(flat)
        facts = {
            **facts,
            "made_with": _made_with(),
            "fingerprint": fingerprint(problem),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
        _write_synced(temporary / _ARRAYS, payload)
        _write_synced(temporary / _FACTS, json.dumps(facts).encode())
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
        _sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_synced(path, payload):
    with open(path, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path):
    """Write a folder's entries to disk, so that a rename in it survives a power failure; some systems cannot."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: Any, problem) -> tuple[dict[str, dict[str, np.ndarray]], dict]:
    """Arrays and facts of a folder that `write` wrote for this problem."""
    safetensors = _safetensors()
    path = Path(path)
    try:
        facts = json.loads((path / _FACTS).read_text())
        payload = (path / _ARRAYS).read_bytes()
    except FileNotFoundError as error:
        raise FileError(f"{path} does not hold a saved result: {error.filename} is missing.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path / _FACTS} is damaged ({error}). Delete the folder and run again.") from error
    if hashlib.sha256(payload).hexdigest() != facts.get("sha256"):
        raise FileError(f"{path / _ARRAYS} is damaged or truncated. Delete the folder and run again.")
    _check_fingerprint(path, facts, fingerprint(problem))
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, array in safetensors.load(payload).items():
        group, _, leaf = name.partition("/")
        arrays.setdefault(group, {})[leaf] = array
    return arrays, facts


def _check_fingerprint(path, facts, expected):
    """Refuse the files of another problem; warn where other versions may have traced the same model differently."""
    found, now = facts["fingerprint"], _made_with()
    if found["data"] == expected["data"] and found["model"] == expected["model"]:
        return
    if found["data"] != expected["data"] or facts["made_with"] == now:
        raise FileError(f"{path} belongs to another problem: its model, data or latent differ. Choose another folder.")
    other = {name: version for name, version in facts["made_with"].items() if version != now.get(name)}
    before = ", ".join(f"{name} {version}" for name, version in other.items())
    after = ", ".join(f"{name} {now.get(name)}" for name in other)
    warnings.warn(
        f"{path} was written with {before}, and this is {after}: whether its model is the same cannot be told. Make "
        "sure that it is.",
        MgviWarning,
        stacklevel=4,
    )


def flattened(tree: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A dict of dicts of arrays as one dict, with names `outer/inner`."""
    return {f"{name}/{kind}": x for name, arrays in tree.items() for kind, x in arrays.items()}


def nested(flat: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The inverse of `flattened`; outer names may contain slashes, inner names do not."""
    tree: dict[str, dict[str, Any]] = {}
    for name, x in flat.items():
        outer, _, inner = name.rpartition("/")
        tree.setdefault(outer, {})[inner] = x
    return tree


def packed(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of any tree, random keys included, as arrays with numbers for names."""
    return {f"{i:04d}": np.asarray(_raw(leaf)) for i, leaf in enumerate(jax.tree.leaves(tree))}


def unpacked(arrays: dict[str, Any], like: Any) -> Any:
    """What `packed` was given, a tree of the same structure."""
    leaves, treedef = jax.tree.flatten(like)
    found = [arrays[f"{i:04d}"] for i in range(len(leaves))]
    keyed = [jax.random.wrap_key_data(x) if _is_key(leaf) else x for x, leaf in zip(found, leaves, strict=True)]
    return jax.tree.unflatten(treedef, keyed)


def _is_key(leaf) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf):
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _safetensors():
    try:
        import safetensors.numpy
    except ImportError as error:
        raise FileError("saving needs the package safetensors: pip install 'mgvi[files]'.") from error
    return safetensors.numpy
