"""torchvision and its friends beside a CPU build of torch, in whatever order they are imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from dippm.model.vision_operators import missing_libraries

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None or not missing_libraries(),
    reason="torchvision finds its libraries here, or is not installed",
)


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "library", ["torchvision", pytest.param("timm", marks=pytest.mark.nightly(part="frontends"))]
)
def test_after_dippm_they_import(library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert run(f"import dippm, {library}; print({library}.__name__)") == [library]


@pytest.mark.nightly(part="frontends")
def test_after_dippm_models_of_transformers_import():
    """transformers imports torchvision where a model is named, not before."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    wanted = "from transformers import ViTForImageClassification as model"
    assert run(f"import dippm; {wanted}; print(model.__name__)") == ["ViTForImageClassification"]


@pytest.mark.nightly(part="frontends")
def test_before_dippm_the_import_fails_and_can_be_repeated():
    code = """
try:
    import torchvision
except RuntimeError as error:
    print("failed")
import dippm
dippm.declare_vision_operators()
import torchvision
print(torchvision.__name__)
"""
    assert run(code) == ["failed", "torchvision"]


def test_operators_have_shapes():
    code = """
import dippm, torch, torchvision
x = torch.empty(1, 8, 9, 9, device="meta")
boxes = torch.empty(5, 5, device="meta")
print(*torchvision.ops.roi_align(x, boxes, 7).shape)
print(*torchvision.ops.ps_roi_align(x, boxes, 2).shape)
print(*torchvision.ops.DeformConv2d(8, 4, 3).to("meta")(x, x.new_empty(1, 18, 7, 7)).shape)
"""
    assert list(map(int, run(code))) == [5, 8, 7, 7, 5, 2, 2, 2, 1, 4, 7, 7]


def test_doctor_explains_it():
    from dippm.show.report.health import examine

    (finding,) = (f for f in examine() if f.what == "torchvision")
    assert "`import dippm` before" in finding.detail
