"""torchvision together with a CPU build of torch.

Its wheels from the package index are GPU builds. With a CPU build of torch their C++ library does
not load, and the import of torchvision, and with it of timm and transformers, fails with
``operator torchvision::nms does not exist``. Schemas and shapes are enough to convert models, so
`import dippm` provides them to torchvision at its import, if its library did not load.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every `import dippm` pays for what is imported here
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_BOXES = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_BOXES}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_BOXES}) -> (Tensor, Tensor)",
    f"ps_roi_align({_BOXES}, int sampling_ratio) -> (Tensor, Tensor)",
    f"ps_roi_pool({_BOXES}) -> (Tensor, Tensor)",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
)


class _BeforeRegistrations:
    """Declares the operators when torchvision, after trying its library, is about to use them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision._meta_registrations":
            _declare()
        return None


def watch_imports() -> None:
    """Make later imports of torchvision work with a CPU build of torch."""
    if not any(isinstance(finder, _BeforeRegistrations) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeRegistrations())


@cache
def declare_vision_operators() -> None:
    """Make torchvision, timm and transformers importable with a CPU build of torch.

    `import dippm` does this for imports that follow it. Call it after an import of them has
    failed: half-imported modules are dropped, so that the import can be repeated.
    """
    from importlib.util import find_spec

    watch_imports()
    if find_spec("torchvision") is None:
        return
    try:
        import torchvision
    except (RuntimeError, OSError, AttributeError):
        _forget("torchvision")
        import torchvision  # noqa: F401


def missing_libraries() -> str:
    """Return the name of a library that torchvision needs and torch lacks; "" if none is known.

    Checks the files alone, and imports neither.
    """
    from importlib.util import find_spec
    from pathlib import Path

    spec, torch_spec = (find_spec(name) for name in ("torchvision", "torch"))
    if spec is None or torch_spec is None or not (spec.origin and torch_spec.origin):
        return ""
    libraries = Path(torch_spec.origin).parent / "lib"
    for extension in Path(spec.origin).parent.glob("_C*.so"):
        content = extension.read_bytes()
        for name in ("libc10_cuda.so", "libtorch_cuda.so"):
            if name.encode() in content and not (libraries / name).exists():
                return name
    return ""


def _declare() -> None:
    """Define the operators of the C++ library."""
    import torch

    extension: Any = sys.modules.get("torchvision.extension")
    if extension is None or extension._has_ops():
        return
    extension._assert_has_ops = lambda: None  # it guards shapes, which are known now
    _library(torch)


@cache
def _library(torch: Any) -> Any:
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    shapes: dict[str, Callable[..., Any]] = {
        "roi_align": _boxes,
        "roi_pool": _two(_boxes),
        "ps_roi_align": _two(_position_sensitive),
        "ps_roi_pool": _two(_position_sensitive),
        "deform_conv2d": _deformed,
    }
    for name, shape in shapes.items():  # torchvision itself defines those of nms and qnms
        torch.library.register_fake(f"torchvision::{name}", shape, lib=library)
    return library


def _boxes(input: Any, rois: Any, scale: float, height: Any, width: Any, *_: Any) -> Any:
    return input.new_empty((rois.shape[0], input.shape[1], height, width))


def _position_sensitive(
    input: Any, rois: Any, scale: float, height: Any, width: Any, *_: Any
) -> Any:
    return input.new_empty((rois.shape[0], input.shape[1] // (height * width), height, width))


def _two(shape: Callable[..., Any]) -> Callable[..., Any]:
    """Return the shape function of an operator that also returns the indices of its elements."""

    def shapes(*args: Any) -> Any:
        result = shape(*args)
        return result, result.new_empty(result.shape, dtype=_int32())

    return shapes


def _int32() -> Any:
    import torch

    return torch.int32


def _deformed(input: Any, weight: Any, offset: Any, *_: Any) -> Any:
    return input.new_empty((input.shape[0], weight.shape[0], *offset.shape[2:]))


def _forget(package: str) -> None:
    """Drop the modules of a half-imported package, so that it can be imported again."""
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]
