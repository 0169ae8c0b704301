"""Small real models of PyTorch, and their files."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def small_cnn() -> nn.Module:
    """Convolutions with a residual add; accepts any image of 3 channels."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    ).eval()


@pytest.fixture(scope="session")
def vision():
    """torchvision, beside a build of torch that lacks its operators."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    from dippm.model.vision_operators import declare_vision_operators

    declare_vision_operators()
    import torchvision

    return torchvision


@pytest.fixture(scope="session")
def files(small_cnn, tmp_path_factory):
    """One file of every kind that PyTorch writes, of the same model."""
    folder = tmp_path_factory.mktemp("torch-files")
    example = torch.zeros(2, 3, 32, 32)
    torch.save(small_cnn, folder / "pickle.pt")
    torch.save(small_cnn, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.jit.trace(small_cnn, example).save(folder / "traced.pt")
    torch.jit.script(small_cnn).save(folder / "scripted.pt")
    torch.export.save(torch.export.export(small_cnn, (example,)), folder / "static.pt2")
    dynamic = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(small_cnn, (example,), dynamic_shapes=dynamic)
    torch.export.save(program, folder / "dynamic.pt2")
    torch.save(small_cnn.state_dict(), folder / "state_dict.pt")
    return folder
