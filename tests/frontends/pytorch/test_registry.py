"""Finding the frontend: packages that are missing, objects in memory, lightness of the caller."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from dippm.errors import FrameworkNotInstalledError, ModelFileError, UnknownNameError
from dippm.model import frontends
from dippm.model.frontends import registry
from dippm.model.graph import build


@pytest.mark.parametrize("entry", registry.BUILT_IN, ids=lambda e: e.framework)
def test_what_is_not_installed_names_its_extra(entry):
    lacking = registry.Entry(entry.framework, entry.module, ("no_such_package",), entry.extra)
    with pytest.raises(FrameworkNotInstalledError, match="no_such_package") as caught:
        lacking.check_installed("model.bin")
    assert isinstance(caught.value, ImportError)
    assert "pip install" in caught.value.hint
    assert not entry.extra or f"dippm[{entry.extra}]" in caught.value.hint


def test_frameworks_have_other_names(files):
    for name in ("pytorch", "PyTorch", "torch"):
        assert registry.find(files / "pickle.pt", name).framework == "pytorch"
    with pytest.raises(UnknownNameError, match="tensorflow"):
        registry.find(files / "pickle.pt", "tensorflo")


def test_an_exported_program_in_memory(small_cnn, files):
    program = torch.export.export(small_cnn, (torch.zeros(2, 3, 32, 32),))
    assert frontends.load(program) == frontends.load(files / "static.pt2", trust=True)


def test_an_onnx_model_in_memory(onnx_file):
    onnx = pytest.importorskip("onnx")
    of_object = build(frontends.load(onnx.load(onnx_file), "3,32,32"))
    assert of_object.nodes == build(frontends.load(onnx_file, "3,32,32")).nodes


def test_wrappers_are_taken_off():
    model = nn.Linear(4, 4)
    assert frontends.load(nn.DataParallel(model), "4") == frontends.load(model, "4")


def test_the_caller_imports_no_framework(files):
    code = (
        "import sys; from dippm.model import frontends;"
        f"frontends.load({str(files / 'pickle.pt')!r}, '3,32,32');"
        "print([m for m in ('torch', 'tvm', 'onnx', 'tensorflow', 'paddle') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_archive_that_claims_to_span_disks_is_damaged(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    content = bytearray(path.read_bytes())
    locator = content.rfind(b"PK\x06\x07")  # of the 64-bit end record: its last field counts disks
    assert locator > 0
    content[locator + 16] = 9
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="truncated or damaged"):
        registry.find(path)
