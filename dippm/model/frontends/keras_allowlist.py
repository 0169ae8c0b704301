"""Allowlist of the parts of Keras that an untrusted configuration may name, and their lookup.

A configuration names classes and functions, which Keras builds and calls with the file's arguments;
some parts of Keras load files or run code. So an untrusted configuration is checked before Keras
sees it, and within `allowed_parts_only` Keras looks its parts up here, where no import uses a name
from the file. Everything unlisted is refused, including additions of later Keras versions.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from dippm.errors import ConversionError, UnsafeModelError
from dippm.model.frontends.containers import objects_in

LAYERS = frozenset(
    """
    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D
    AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add
    AdditiveAttention AlphaDropout Attention AugMix AutoContrast Average AveragePooling1D
    AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D BatchNormalization Bidirectional
    CategoryEncoding CenterCrop Concatenate ContrastLimitedAdaptiveHistogramEqualization Conv1D
    Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D
    Convolution1D Convolution1DTranspose Convolution2D Convolution2DTranspose Convolution3D
    Convolution3DTranspose Cropping1D Cropping2D Cropping3D CutMix Dense DepthwiseConv1D
    DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Equalization Flatten GRU
    GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D
    GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GroupNormalization GroupQueryAttention HashedCrossing Hashing Identity InputLayer IntegerLookup
    LSTM LSTMCell LayerNormalization LeakyReLU Masking MaxNumBoundingBoxes MaxPool1D MaxPool2D
    MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp
    MultiHeadAttention Multiply Normalization PReLU Permute Pipeline RMSNormalization RNN
    RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop
    RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue
    RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation
    RandomSharpness RandomShear RandomTranslation RandomZoom ReLU RepeatVector Rescaling Reshape
    Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D
    SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization
    SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells
    StringLookup Subtract TextVectorization TimeDistributed UnitNormalization UpSampling1D
    UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    """.split()
)
MODELS = frozenset(("Functional", "Model", "Sequential"))
DTYPE_POLICIES = frozenset(
    (
        "DTypePolicy",
        "DTypePolicyMap",
        "FloatDTypePolicy",
        "QuantizedDTypePolicy",
        "QuantizedFloat8DTypePolicy",
    )
)
APPLICATIONS = {
    "CustomScaleLayer": "inception_resnet_v2",
    "LayerScale": "convnext",
    "StochasticDepth": "convnext",
}
"""Layers of Keras' own networks, and the modules that hold them."""

CLASSES = {
    "": MODELS | DTYPE_POLICIES,
    "models": MODELS,
    "engine": MODELS,
    "layers": LAYERS,
    "dtype_policies": DTYPE_POLICIES,
    "initializers": frozenset(
        """
        Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity IdentityInitializer
        LecunNormal LecunUniform Ones Orthogonal OrthogonalInitializer RandomNormal RandomUniform
        STFT STFTInitializer TruncatedNormal VarianceScaling Zeros
        """.split()
    ),
    "regularizers": frozenset(("L1", "L1L2", "L2", "OrthogonalRegularizer")),
    "constraints": frozenset(("MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm")),
    "random": frozenset(("SeedGenerator",)),
    "applications": frozenset(APPLICATIONS),
}
"""Classes by the part of Keras' name space that contains them."""

ACTIVATIONS = frozenset(
    """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu
    linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus
    softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold
    """.split()
)
OPERATION_MODULES = {
    "ops": ("core", "einops", "image", "linalg", "math", "nn", "numpy"),
    "activations": ("activations",),
}
"""Modules below `keras.src` whose operations compute tensors from tensors alone."""

PLAIN = frozenset(
    ("__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__")
)
"""Spellings of values that name no class."""

CODE = frozenset(
    (
        "FlaxLayer",
        "JaxLayer",
        "Lambda",
        "TFSMLayer",
        "TorchModuleWrapper",
        "__lambda__",
        "__typespec__",
    )
)
"""Parts known to run code; for the message only, because unlisted parts are never built."""

FILE_ARGUMENTS = frozenset(("vocabulary", "idf_weights"))
"""Arguments of preprocessing layers that Keras treats as a file path if they are a text."""

MAX_NAMES, MAX_NAME = 5, 100

DTYPES = frozenset(
    """
    bool int4 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32 float64
    float8_e4m3fn float8_e5m2 complex64 complex128
    """.split()
)
ENUMERATIONS = DTYPES | frozenset(
    """
    valid same causal full channels_first channels_last nearest bilinear bicubic area linear
    lanczos3 lanczos5 constant reflect symmetric edge wrap zero lower higher midpoint left right
    backward forward ortho int binary multi_hot one_hot count tf_idf sum mean max min
    mul ave concat fro nuc L U hann hamming
    """.split()
)
"""Texts that may be arguments of an operation; none is a path or the name of a function."""


def check(config: Mapping[str, Any], path: object) -> None:
    """Refuse a configuration that names an unlisted part of Keras or of another package.

    Raises:
        UnsafeModelError: naming the code that would run or the files that would be read.
        ConversionError: naming classes that Keras does not have.
    """
    unsafe: set[str] = set()
    own: set[str] = set()
    for item in objects_in(config):
        if "class_name" in item:
            _check_part(item, unsafe, own)
        for argument in FILE_ARGUMENTS & item.keys():
            if isinstance(item[argument], str):
                unsafe.add(f"{argument} from the file {item[argument]!r}")
        if "inbound_nodes" in item:
            texts = _texts_in_calls(item["inbound_nodes"])
            unsafe.update(f"a call with the text {text!r}" for text in texts)
    if unsafe:
        raise UnsafeModelError(
            f"{path} has parts that can run code or read files when loaded: {_join_names(unsafe)}",
            "Export it with model.export(folder) where it was made, and give that folder, or to "
            "ONNX; or pass trust=True if you trust it.",
        )
    if own:
        raise ConversionError(
            f"{path} has classes that Keras does not have: {_join_names(own)}",
            "Export it with model.export(folder) where its classes are, and give that folder.",
        )


def _join_names(names: set[str]) -> str:
    ordered = [name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…" for name in sorted(names)]
    more = f" and {len(ordered) - MAX_NAMES} more" if len(ordered) > MAX_NAMES else ""
    return ", ".join(ordered[:MAX_NAMES]) + more


def _check_part(item: Mapping[str, Any], unsafe: set[str], own: set[str]) -> None:
    """Add an unlisted class or function to `unsafe`, or to `own` if it is not from Keras."""
    name, module, registered = (
        item.get(key) for key in ("class_name", "module", "registered_name")
    )
    is_function = name == "function"
    part = item.get("config") if is_function else name
    if not isinstance(part, str) or not isinstance(module, str | None):
        unsafe.add(f"a class_name of type {type(name).__name__}")
    elif name in PLAIN:
        if not _is_plain(item):
            unsafe.add(f"{name} of another type")
    elif not _is_allowed(part, module, is_function=is_function):
        if is_function or module is not None or part.rpartition(">")[2] in CODE:
            unsafe.add(f"{module}.{part}" if module else part)
        elif "module" in item or ">" in part:
            own.add(registered if isinstance(registered, str) else part)
        # Others are from HDF5 files: Keras reports them as unknown.
    elif registered not in (None, "", name, part):
        (own if isinstance(registered, str) else unsafe).add(f"{part} as {registered}")


def _is_plain(item: Mapping[str, Any]) -> bool:
    """Return whether an array or tensor is in Keras' own form, with a known type."""
    config = item.get("config")
    dtype = config.get("dtype") if isinstance(config, dict) else None
    return dtype is None or (isinstance(dtype, str) and dtype in DTYPES)


def _is_allowed(name: str, module: str | None, *, is_function: bool) -> bool:
    place, inside = _place(module)
    if is_function:
        if module in (None, "builtins") or place == "activations":
            return name in ACTIVATIONS
        known = place == "ops" and inside in ("", *OPERATION_MODULES["ops"])
        return known and name.isidentifier() and not name.startswith("_")
    if inside in OPERATION_MODULES.get(place, ()):
        return name.isidentifier()
    return name in CLASSES.get(place, ())


def _place(module: str | None) -> tuple[str, str]:
    """Return the part of Keras' name space that contains a module, and the module within it.

    Keras joins module and name before the lookup, so `keras` with `utils.get_file` would reach
    that function; names with a dot are on no list.
    """
    if module is None:  # HDF5 files and files of Keras 2 name layers only
        return "layers", ""
    package, _, rest = module.partition(".")
    if package != "keras":
        return "another package", ""
    place, _, inside = rest.removeprefix("src").removeprefix(".").partition(".")
    return place, inside


def _texts_in_calls(nodes: Any) -> Iterator[str]:
    """Yield the texts that a layer is called with, except values of an enumeration."""
    stack: list[Any] = []
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, list):  # Keras 2: [name of a layer, node, tensor, keywords], ...
            stack.extend(call[1:] if _is_named(call) else call for call in node)
        else:
            stack.append(node)
    while stack:
        item = stack.pop()
        if isinstance(item, str) and item not in ENUMERATIONS:
            yield item
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict) and item.get("class_name") not in ("function", *PLAIN):
            stack.extend(item.values())


def _is_named(call: Any) -> bool:
    return isinstance(call, list) and bool(call) and isinstance(call[0], str)


@contextlib.contextmanager
def allowed_parts_only() -> Iterator[None]:
    """Restrict Keras' lookup to listed classes and functions; ignore registrations of others.

    Keras has one function that turns a name into an object, and one table for HDF5 files.

    Raises:
        ConversionError: if this version of Keras lacks either.
    """
    from keras.src import layers, models
    from keras.src.legacy.saving import saving_utils
    from keras.src.saving import object_registration, serialization_lib

    registered = getattr(object_registration, "GLOBAL_CUSTOM_OBJECTS", None)
    table = getattr(saving_utils, "MODULE_OBJECTS", None)
    find = getattr(serialization_lib, FINDER, None)
    if find is None or table is None or not isinstance(registered, dict):
        raise ConversionError(
            "this version of Keras cannot be restricted to classes that are known to be safe",
            "Install the version that DIPPM is tested with, or pass trust=True if you trust it.",
        )
    theirs = dict(registered)
    registered.clear()
    setattr(serialization_lib, FINDER, _find)
    table.ALL_OBJECTS = {name: getattr(layers, name) for name in LAYERS if hasattr(layers, name)}
    table.ALL_OBJECTS |= {name: getattr(models, name) for name in MODELS}
    try:
        yield
    finally:
        del table.ALL_OBJECTS  # Keras builds its own if it is missing
        setattr(serialization_lib, FINDER, find)
        registered.clear()
        registered.update(theirs)


FINDER = "_retrieve_class_or_fn"


def _find(
    name: str,
    registered_name: object,
    module: str | None,
    obj_type: str,
    full_config: object,
    custom_objects: Mapping[str, Any] | None = None,
) -> Any:
    """Return a listed class or function, with the signature of Keras' own lookup.

    Raises:
        UnsafeModelError: if it is not listed; `check` normally raises earlier.
        TypeError: if this version of Keras does not have it, like Keras' own lookup.
    """
    is_function = obj_type == "function"
    if not _is_allowed(name, module, is_function=is_function):
        raise UnsafeModelError(
            f"the file has a part that can run code when loaded: {module}.{name}",
            "Export it with model.export(folder) where it was made, and give that folder, or to "
            "ONNX; or pass trust=True if you trust it.",
        )
    place, inside = _place(module)
    if is_function:
        owner = importlib.import_module("keras.ops" if place == "ops" else "keras.activations")
    elif place in OPERATION_MODULES:
        owner = importlib.import_module(f"keras.src.{place}.{inside}")
    elif place == "applications":
        owner = importlib.import_module(f"keras.src.applications.{APPLICATIONS[name]}")
    elif name in MODELS:
        owner = importlib.import_module("keras.src.models")
    else:
        owner = importlib.import_module(f"keras.{place or 'dtype_policies'}")
    found = getattr(owner, name, None)
    if found is None or not (is_function or _is_operation(found, place)):
        raise TypeError(f"Could not locate {obj_type} '{name}' in Keras' {place or 'models'}")
    return found


def _is_operation(found: Any, place: str) -> bool:
    """Return whether a class in a module of operations is one itself, not an import."""
    from keras import Operation

    own = inspect.isclass(found) and issubclass(found, Operation)
    return place not in OPERATION_MODULES or (own and found.__module__.startswith("keras.src."))
