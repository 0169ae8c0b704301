"""The only package that imports TVM: a framework's program → Relax → plain data.

A model passes through Relax on every route. Relax contributes:

- **one spelling** for about sixty operators (convolutions, products, norms, element-wise
  arithmetic, shape changes), whichever framework wrote them, and
- **a check of shapes**: Relax infers the type of each call that it knows independently.

The rest is ours. Operators that Relax lacks or would decompose (recurrent layers, clips, resizes,
norms of ONNX) cross it as one packed call with the exporter's shapes (`carried`).

========== =================================== =================================================
route      TVM contributes                     we do
========== =================================== =================================================
torch      its importer of exported programs   weight-free tensors, operators that it lacks
onnx       spelling of operators               reading without weights, shape inference and
                                               folding (`onnx.trace`), translation
tensorflow spelling of operators               flattening, loops, translation; TensorFlow itself
                                               infers the shapes
========== =================================== =================================================

Paddle files arrive as ONNX, Keras files as TensorFlow graphs. `walk` reads a Relax function into a
`RawGraph`, the only type that other packages see; `import_tvm` imports TVM without torch.
"""

from __future__ import annotations

import importlib
import sys


def import_tvm() -> None:
    """Import TVM, and prevent it from importing torch if that is not imported yet.

    Alone it imports torch if it can, which costs a second or more and 200 MB.
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
