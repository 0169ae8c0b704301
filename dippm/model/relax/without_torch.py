"""Import of TVM without PyTorch, for conversions that need no PyTorch.

`import tvm` imports torch if it can, which costs a second or more and 200 MB.
"""

from __future__ import annotations

import importlib
import sys


def import_tvm() -> None:
    """Import TVM, and prevent it from importing torch if that is not imported yet.

    TVM works without torch, except for the direct exchange of tensors between the two, which no
    conversion uses. Torch itself can still be imported later.
    """
    if "tvm" in sys.modules or "torch" in sys.modules:
        importlib.import_module("tvm")
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("tvm")
        importlib.import_module("tvm.relax")
    finally:
        del sys.modules["torch"]
