"""Formats that no frontend reads, and how to convert them to one that is read.

The content decides, and the suffix only if the content is inconclusive. To add a format: a row in
`KNOWN`, or a line in `_by_content` if fixed bytes do not identify it. Nothing is unpickled or run.
"""

from __future__ import annotations

import json
import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from dippm.base import files
from dippm.errors import ModelFileError, shortened
from dippm.model.frontends.containers import MAGIC as ZIP_MAGIC
from dippm.model.frontends.containers import member_names

CONFIG = "config.json"
MOST_JSON_BYTES = 4 << 20
_HEAD_BYTES = 1 << 16
_FOOTER_OF_TABLES = bytes.fromhex("57fb808b247547db")
"""Last bytes of the index of a TensorFlow checkpoint, which is a LevelDB table."""

WHOLE_OBJECT = "pass the model object itself to dippm.predict, or export it to ONNX"
_ORIGIN = "Give the model that it was converted from"


@dataclass(frozen=True, slots=True)
class Format:
    """One file format.

    Attributes:
        words: its description, as in "model.tflite: a TensorFlow Lite model".
        way: what to do instead; every command in it works as written.
        marks: identifying bytes at the start of a file, by offset.
        suffixes: suffixes of its files.
    """

    words: str
    way: str
    marks: tuple[tuple[int, bytes], ...] = ()
    suffixes: tuple[str, ...] = ()


_WEIGHTS = (
    "Weights alone say no architecture. Load them into their model and " + WHOLE_OBJECT + "; "
    "if the folder of a Hugging Face model has a config.json: hf-config:FOLDER."
)
_TREES = "DIPPM predicts neural networks; an estimator of trees or distances runs on no GPU."

SAFETENSORS = Format("weights in safetensors, without an architecture", _WEIGHTS, (),
                     (".safetensors",))  # fmt: skip
TF_CHECKPOINT = Format(
    "a checkpoint of TensorFlow: values of variables, without a signature",
    "Restore it where its model is built, and save that as a folder: model.export(FOLDER) in "
    "Keras, tf.saved_model.save(model, FOLDER) else.",
    ((0, b"model_checkpoint_path:"),),
    (".index", ".ckpt"),
)
TF_META = Format(
    "a graph of TensorFlow 1 without a signature (.meta of a checkpoint)",
    "In TensorFlow, under tf.Graph().as_default(), restore it with "
    "`tf.compat.v1.train.import_meta_graph(META).restore(session, PREFIX)`, and save it with "
    "`tf.compat.v1.saved_model.simple_save(session, FOLDER, {'x': input}, {'y': output})`.",
    (),
    (".meta",),
)
CORE_ML = Format(
    "a Core ML model", f"{_ORIGIN}: the PyTorch module, SavedModel or Keras file.", (),
    (".mlmodel", ".mlpackage", ".mlmodelc"),
)  # fmt: skip
OPENVINO = Format(
    "a model of OpenVINO", f"{_ORIGIN}: the ONNX file, PyTorch module or SavedModel.", (), ()
)
ESTIMATOR = Format(
    "a pickled estimator of scikit-learn",
    "A network (MLPClassifier and its pipeline) becomes ONNX with "
    "`skl2onnx.to_onnx(model, X[:1])`. " + _TREES,
)
PICKLED_MODULE = Format(
    "a pickled model, not written by torch.save",
    "Load it where its classes are and " + WHOLE_OBJECT + ".",
)
FLAX = Format(
    "weights of Flax (msgpack), without an architecture",
    "If the folder of a Hugging Face model has a config.json: hf-config:FOLDER. Else export the "
    "function to ONNX, for instance with `jax2onnx.to_onnx(function, [(1, 224, 224, 3)], "
    "return_mode='file', output_path='model.onnx')`.",
    (),
    (".msgpack",),
)
SCRIPT = Format(
    "a program in Python, which is not run",
    "In Python, import its model and pass the object: `dippm.predict(model, input=...)`.",
    (),
    (".py", ".ipynb"),
)
CONFIGURATION = Format(
    "a configuration of a Hugging Face model",
    "Give it by name: hf-config:FOLDER, or `dippm llm FOLDER` to serve a language model.",
)
KERAS_JSON = Format(
    "a Keras architecture as JSON (model.to_json)",
    "Save it as a model: `keras.models.model_from_json(open(PATH).read()).save('model.keras')`.",
)
TF_JS = Format("a model of TensorFlow.js", f"{_ORIGIN}: the Keras file or SavedModel.")
DIFFUSERS = Format(
    "a model of diffusers, or a pipeline of several",
    "Build the one to predict and pass the object to dippm.predict, for instance "
    "`UNet2DConditionModel.from_config(UNet2DConditionModel.load_config('FOLDER/unet'))`.",
)
ADAPTER = Format(
    "an adapter of PEFT: weights that are added to a model", "Give the model that it adapts."
)
JAX_CHECKPOINT = Format("a checkpoint of JAX (Orbax): weights, without an architecture", FLAX.way)
ONNX_WEIGHTS = Format(
    "the weights of an ONNX model (external data)",
    "Give the .onnx file that they belong to; the weights themselves are not needed.",
    (),
    (".onnx_data", ".onnx.data", ".onnx.weights"),
)
ARRAYS = Format("arrays of NumPy", _WEIGHTS, ((0, b"\x93NUMPY"),), (".npy", ".npz"))

KNOWN = (
    SAFETENSORS, TF_CHECKPOINT, TF_META, CORE_ML, FLAX, SCRIPT, ONNX_WEIGHTS, ARRAYS,
    Format(
        "a TensorFlow Lite model",
        f"{_ORIGIN}, or make ONNX of it: `python -m tf2onnx.convert --tflite FILE "
        "--output model.onnx`.",
        ((4, b"TFL3"),),
        (".tflite", ".lite"),
    ),
    Format(
        "an engine of TensorRT, compiled for one kind of GPU",
        "Give the ONNX file that it was built from (trtexec --onnx=FILE). What is predicted is "
        "PyTorch's execution, not TensorRT's.",
        ((0, b"ftrt"), (0, b"ptrt")),
        (".engine", ".plan", ".trt"),
    ),
    Format(
        "a GGUF file of llama.cpp: weights of a language model",
        "Give the config.json of the model that it was made from: `dippm llm FOLDER --weights "
        "int4` predicts serving it, hf-config:FOLDER its forward pass.",
        ((0, b"GGUF"), (0, b"lmgg"), (0, b"tjgg")),
        (".gguf", ".ggml"),
    ),
    Format(
        "a program of ExecuTorch", f"{_ORIGIN}: the module, or its exported program (.pt2).",
        ((4, b"ET12"), (4, b"ET11")), (".pte",),
    ),
    Format(
        "a model in the format of onnxruntime (.ort)", f"{_ORIGIN}: the .onnx file.",
        ((4, b"ORTM"),), (".ort",),
    ),
    Format("a model of RKNN", f"{_ORIGIN}: the ONNX file.", ((0, b"RKNN"),), (".rknn",)),
    Format("a model of ncnn", f"{_ORIGIN}: the ONNX file or PyTorch module.",
           ((0, b"7767517\n"),), (".param",)),
    Format("a model of MNN", f"{_ORIGIN}: the ONNX file or PyTorch module.", (), (".mnn",)),
    Format("a network of Caffe", f"{_ORIGIN}, or the same network of timm:NAME.", (),
           (".caffemodel", ".prototxt")),
    Format("an archive of files", "Unpack it and give the model in it.",
           ((257, b"ustar"),), (".tar", ".nemo", ".mar", ".zip")),
    Format("a compressed file", "Unpack it and give what is in it.",
           ((0, b"\x1f\x8b"), (0, b"BZh"), (0, b"\xfd7zXZ\x00"), (0, b"\x28\xb5\x2f\xfd"))),
    Format("an estimator that joblib wrote", ESTIMATOR.way, (), (".joblib",)),
    Format("parameters of Paddle, without a program",
           "Save program and parameters with paddle.jit.save, and give the .json or .pdmodel.",
           (), (".pdparams", ".pdopt", ".pdiparams")),
)  # fmt: skip

_CLASSES = (
    (frozenset({"sklearn", "xgboost", "lightgbm", "catboost", "imblearn"}), ESTIMATOR),
    (frozenset({"torch", "torchvision", "timm", "transformers"}), PICKLED_MODULE),
)
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_SHARD = re.compile(r"\.data-\d{5}-of-\d{5}$")
_WEB_PAGE = re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE)
_READABLE = (".onnx", ".pt2", ".pt", ".pth", ".keras", ".h5")


def identify(path: Path) -> Format | None:
    """Return the format of a file or folder; None if it is unknown.

    Raises:
        ModelFileError: if it cannot be read.
    """
    if path.is_dir():
        return _of_folder(path)
    start = files.beginning(path, _HEAD_BYTES)
    found = _by_content(path, start) if start else None
    if found is None and start and (meant := of_suffix(path)) is not None:
        found = replace(meant, words=f"by its suffix {meant.words}")
    beside = hub_folder_hint(path.parent)
    if beside and found is not None and found.way in (_WEIGHTS, FLAX.way, CONFIGURATION.way):
        found = replace(found, way=beside)
    return found


def of_suffix(path: Path) -> Format | None:
    """Return the format with the suffix of this path, else None."""
    name = path.name.lower()
    if _SHARD.search(name):
        return TF_CHECKPOINT
    return next((one for one in KNOWN if one.suffixes and name.endswith(one.suffixes)), None)


def hub_folder_hint(folder: Path) -> str:
    """Return a hint for a folder that has the configuration of a model of the Hub."""
    document = _json(folder / CONFIG)
    if isinstance(document.get("model_type"), str):
        name = files.shown(folder)
        return (
            f"Its configuration says the architecture: give hf-config:{name}, "
            f"or `dippm llm {name}` to serve a language model."
        )
    of_timm = document.get("architecture")
    if isinstance(of_timm, str) and "pretrained_cfg" in document:
        return f"Its configuration names a model of timm: give timm:{shortened(of_timm)}."
    return ""


def _of_folder(folder: Path) -> Format | None:
    inside = {path.name for path in files.entries(folder)}
    readable = [n for suffix in _READABLE for n in sorted(inside) if n.endswith(suffix)]
    models = [name for name in readable if not name.endswith(".weights.h5")]
    hint = hub_folder_hint(folder)
    if hint:
        also = f" Or give the file {shortened(models[0])} in it." if models else ""
        return Format("the folder of a Hugging Face model", hint + also)
    if models:
        listed = ", ".join(map(shortened, models[:3]))
        return Format(f"a folder that holds {listed}", "Give the model's file.")
    checks = (
        ("model_index.json" in inside or "_class_name" in _json(folder / CONFIG), DIFFUSERS),
        ("adapter_config.json" in inside, ADAPTER),
        ("coremldata.bin" in inside or {"Manifest.json", "Data"} <= inside, CORE_ML),
        (bool({"_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt"} & inside), JAX_CHECKPOINT),
        (any(name.endswith(".meta") for name in inside), TF_META),
        ("checkpoint" in inside and any(n.endswith(".index") for n in inside), TF_CHECKPOINT),
        (any(n.endswith(".xml") and n[:-4] + ".bin" in inside for n in inside), OPENVINO),
        (any(n.endswith(".safetensors") for n in inside), SAFETENSORS),
        (any(n.endswith(".msgpack") for n in inside), FLAX),
        (any(n.endswith(".py") for n in inside), SCRIPT),
    )
    return next((one for holds, one in checks if holds), None)


def _by_content(path: Path, start: bytes) -> Format | None:
    for one in KNOWN:
        if any(start[at : at + len(mark)] == mark for at, mark in one.marks):
            suffixed = of_suffix(path)  # also for a compressed .joblib
            return suffixed if one.words == "a compressed file" and suffixed else one
    if _is_safetensors(path, start):
        return SAFETENSORS
    if start.startswith(ZIP_MAGIC):
        return _of_zip(path)
    if start[:2] in _PICKLES:
        return _of_pickle(start)
    if start.lstrip()[:1] == b"{":
        return _of_json(_json(path))
    if start.startswith((b"<?xml", b"<net")) and b"<net" in start[:4096]:
        return OPENVINO
    if _WEB_PAGE.match(start):
        return Format(
            "a web page, not a model",
            "The download brought a page (of a login, or an error): fetch the file itself.",
        )
    if _is_flax(start):
        return FLAX
    if _ends_like_a_table(path):
        return TF_CHECKPOINT
    if path.suffix.lower() == ".bin" and path.with_suffix(".xml").is_file():
        return OPENVINO
    return None


def _is_safetensors(path: Path, start: bytes) -> bool:
    """Return whether a file begins with the length of a JSON object that ends within the file."""
    length = int.from_bytes(start[:8], "little")
    return start[8:9] == b"{" and 2 <= length <= path.stat().st_size - 8


def _is_flax(start: bytes) -> bool:
    """Return whether a file begins with a msgpack map whose first key is that of a state."""
    keys = (b"params", b"step", b"batch_stats", b"opt_state", b"model", b"target")
    is_map = 0x81 <= start[0] <= 0x8F
    return is_map and any(start[1:].startswith(bytes([0xA0 + len(k)]) + k) for k in keys)


def _ends_like_a_table(path: Path) -> bool:
    with files.open_regular(path) as file:
        size = path.stat().st_size
        file.seek(max(0, size - len(_FOOTER_OF_TABLES)))
        return file.read(len(_FOOTER_OF_TABLES)) == _FOOTER_OF_TABLES


def _of_zip(path: Path) -> Format | None:
    try:
        names = list(islice(member_names(path), 10_000))
    except (BadZipFile, ModelFileError):
        return None
    if names and all(name.endswith(".npy") for name in names):
        return ARRAYS
    inside = [name for name in names if name.endswith((*_READABLE, "saved_model.pb"))]
    if inside:
        what = f"a zip archive that holds {shortened(inside[0])}"
        return Format(what, "Unpack it and give the model in it.")
    return None


def _of_pickle(start: bytes) -> Format:
    """Return a format that names the first class a pickle builds, read from its operations."""
    homes = list(islice(_named_in(start), 100))
    roots = {home.partition(".")[0] for home in homes}
    for packages, one in _CLASSES:
        if roots & packages:
            return one
    what = f" of {shortened(homes[0])}" if homes else ""
    return Format(
        f"a pickle{what}, which is not opened: opening it can run code",
        f"If it holds a model, {WHOLE_OBJECT}.",
    )


def _named_in(start: bytes) -> Iterator[str]:
    """Yield the modules that the start of a pickle imports from."""
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(start):
            if opcode.name == "GLOBAL":
                yield str(argument).partition(" ")[0]
            elif opcode.name == "STACK_GLOBAL" and len(texts) > 1:
                yield texts[-2]
            elif isinstance(argument, str):
                texts = [*texts[-1:], argument]
    except Exception:  # the excerpt ends in mid-operation
        return


def _of_json(document: Mapping[str, Any]) -> Format | None:
    checks: Iterable[tuple[bool, Format]] = (
        (isinstance(document.get("model_type"), str), CONFIGURATION),
        ("pretrained_cfg" in document, CONFIGURATION),
        ("modelTopology" in document, TF_JS),
        ("class_name" in document and "config" in document, KERAS_JSON),
        ("weight_map" in document, SAFETENSORS),
        ("_class_name" in document, DIFFUSERS),
        ("cells" in document and "nbformat" in document, SCRIPT),
    )
    return next((one for holds, one in checks if holds), None)


def _json(path: Path) -> Mapping[str, Any]:
    """Return the JSON object of a file of moderate size; empty if there is none."""
    try:
        with files.open_regular(path) as file:
            text = file.read(MOST_JSON_BYTES + 1)
        found = json.loads(text) if len(text) <= MOST_JSON_BYTES else None
    except (ModelFileError, OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
