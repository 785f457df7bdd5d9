"""Results as ArviZ objects, for ArviZ 0.23 (InferenceData) and 1.x (DataTree).

Groups of arrays come in; ArviZ's own container goes out. Only this file knows ArviZ, and only when it is asked.
"""

from typing import Any

import numpy as np


def container(groups: dict[str, dict[str, Any]]):
    """Groups of arrays as ArviZ's container; draws lie along the first axis, except for `observed_data`."""
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_arviz needs the package arviz: pip install 'mgvi[arviz]'.") from error
    shaped: Any = {
        group: {name: np.asarray(x) if group == "observed_data" else np.asarray(x)[None] for name, x in arrays.items()}
        for group, arrays in groups.items()
        if arrays
    }
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict(shaped)
    return arviz.from_dict(**shaped)
