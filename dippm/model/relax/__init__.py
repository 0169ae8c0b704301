"""The only place that knows TVM: a framework's program → Relax → plain data.

A model passes through Relax on every route, and what Relax gives is honestly less than that
sounds:

- **one spelling** for about sixty operators (convolutions, products, norms, element-wise
  arithmetic, shape changes), whichever framework wrote them, and
- **a second opinion on shapes**: Relax infers the type of each call that it knows on its own.

The rest is ours. What Relax lacks, or would break into pieces (recurrent layers, clips, resizes,
norms of ONNX), crosses it as one packed call with the exporter's shapes (`opaque`).

========== =================================== =================================================
route      TVM contributes                     we do
========== =================================== =================================================
torch      its importer of exported programs   weight-free tensors, operators that it lacks
onnx       spelling of operators               reading without weights, shape inference and
                                               folding (`onnx.trace`), translation
tensorflow spelling of operators               flattening, loops, translation; TensorFlow itself
                                               infers the shapes
========== =================================== =================================================

Paddle files come as ONNX, Keras files as exported torch programs. `walk` reads a Relax function
into a `RawGraph`, which is all that other packages see; `without_torch` loads TVM alone.
"""
