"""The folder in which the code of the pages runs, with the models and files that they use."""

from __future__ import annotations

from pathlib import Path

from scripts.sample_models import resnet50_onnx, vgg16_pt
from scripts.site.links import ROOT


def build(folder: Path) -> Path:
    """Write the files into a folder, and return it."""
    files = {
        "vgg16.pt": vgg16_pt(),
        "model.onnx": resnet50_onnx(),
        "prices.toml": ROOT / "examples" / "prices.toml",
        "my_gpu.toml": ROOT / "examples" / "my_gpu.toml",
    }
    for name, source in files.items():
        (folder / name).symlink_to(source)
    return folder
