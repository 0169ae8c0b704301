"""Model files for the demonstration, the README and the benchmarks; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "models"


def vgg16_pt() -> Path:
    """Return the path of torchvision's VGG16, saved as a whole module; created once."""
    path = FOLDER / "vgg16.pt"
    if not path.exists():
        import torch

        _save(path, lambda part: torch.save(_torchvision().vgg16().eval(), part))
    return path


def resnet50_onnx() -> Path:
    """Return the path of torchvision's ResNet-50 in ONNX with a dynamic batch; created once."""
    path = FOLDER / "resnet50.onnx"
    if not path.exists():
        import torch

        model = _torchvision().resnet50().eval()
        image = torch.zeros(1, 3, 224, 224)
        names = {"input_names": ["image"], "output_names": ["classes"]}
        _save(
            path,
            lambda part: torch.onnx.export(
                model, (image,), part, dynamo=False, dynamic_axes={"image": {0: "batch"}}, **names
            ),
        )
    return path


def _torchvision():
    from dippm.model.vision_operators import declare_vision_operators

    # torchvision's wheels are GPU builds, which do not import with a CPU build of torch.
    declare_vision_operators()
    import torchvision.models

    return torchvision.models


def _save(path: Path, write) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    write(part)
    part.rename(path)
