"""Values that early versions of UMLAUT pickled: lists, numbers, times and arrays, nothing else.

Reading a pickle can run code. Here only the constructors of plain values are found; any other name
is refused, and nothing else of the pickle is done.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

ALLOWED = {
    ("datetime", "datetime"),
    ("collections", "OrderedDict"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("_codecs", "encode"),
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it would make a {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def plain_pickle(data: bytes) -> Any:
    """Return what was pickled, as JSON could hold it.

    Raises:
        ValueError: if it is no pickle, or one of other than plain values.
    """
    from dippm.umlaut.plain_data import plain

    try:
        return plain(_Plain(io.BytesIO(data)).load())
    except Exception as error:  # a damaged pickle raises whatever it meets
        raise ValueError(f"its pickle is refused: {error}") from error
