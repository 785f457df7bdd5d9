"""Short texts for error messages: names of models, values, constraints, statements.

Objects of the user come in; short texts in one line go out, without addresses of objects or long dumps.
It must not know what is checked.
"""

import inspect
import re
import traceback

import jax
import numpy as np


def _written(model):
    """The function that the user wrote, inside handlers, decorators or functools.partial."""
    return inspect.unwrap(getattr(model, "func", model))


def model_name(model) -> str:
    """The name that messages use for a model."""
    return getattr(_written(model), "__name__", type(model).__name__)


def statement(model, error) -> str:
    """The statement of the model's source file that raised an exception, as part of a sentence, or an empty text."""
    code = getattr(_written(model), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.line for f in frames if code is not None and f.filename == code.co_filename and f.line]
    return f", in `{shortened(lines[-1], 100)}`" if lines else ""


def shortened(text, limit=240) -> str:
    """A text in one line without addresses of objects, and without its middle if it is long."""
    text = " ".join(re.sub(" at 0x[0-9a-f]+", "", str(text)).split())
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-(limit // 2) :]}"


def kind_of(value) -> str:
    """The type of a value, in words."""
    return "an array" if isinstance(value, jax.Array | np.ndarray) else type(value).__name__


def words(constraint) -> str:
    """A constraint, in words."""
    text = str(constraint) if "object at" not in str(constraint) else type(constraint).__name__
    text = text.replace("()", "").replace("ThanEq", "ThanOrEqual")
    apart = re.sub("(?<=[a-z])(?=[A-Z(])", " ", text)
    return shortened(apart.strip("_").replace("_", " ").lower(), 120)


def brief(value) -> str:
    """A value in few digits, long arrays without their middle."""
    value = np.asarray(value)
    if value.ndim == 0:
        return f"{value:.6g}" if value.dtype.kind == "f" else str(value)
    return shortened(np.array2string(value, precision=6, threshold=8), 120)


def index(flags):
    """Index of the first flag that is set: an int for a vector, a tuple otherwise."""
    index = tuple(int(i) for i in np.argwhere(flags)[0]) if np.ndim(flags) else ()
    return index[0] if len(index) == 1 else index


def first(value, flags) -> str:
    """The first entry of an array whose flag is set, in few digits."""
    return brief(np.asarray(value)[index(np.broadcast_to(flags, np.shape(value)))])
