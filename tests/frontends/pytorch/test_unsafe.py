"""Files that carry code do not run it, and say what they would have run."""

from __future__ import annotations

import os
import sys
import zipfile

import pytest
import torch
from torch import nn

from dippm.errors import ConversionError, FrameworkNotInstalledError, UnsafeModelError
from dippm.model import frontends
from dippm.model.frontends.torch.archive import allowed_global, load_pickled
from dippm.model.graph import build
from tests.samples import sampled


class Trap:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "it-ran"


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_malicious_pickle_does_not_run(tmp_path, marker, zipped, hidden):
    model = nn.Linear(3, 3)
    model.extra = Trap(marker)
    path = tmp_path / "model.pt"
    torch.save(model if hidden else Trap(marker), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UnsafeModelError, match=r"mkdir|before PyTorch 1\.6") as caught:
        frontends.load(path, "3")
    assert "ONNX" in caught.value.hint
    assert "trust=True" in caught.value.hint
    assert not marker.exists()


def test_the_trap_works_when_trusted(tmp_path, marker):
    """Otherwise the test above would prove nothing; the sandbox lets it try, and no more."""
    torch.save(Trap(marker), tmp_path / "model.pt")
    with pytest.raises(ConversionError, match=r"do not allow: PermissionError.*it-ran"):
        frontends.load(tmp_path / "model.pt", "3", trust=True)


def malicious_pt2(files, marker, path):
    """Replace the sample inputs of an exported program by a trap."""
    torch.save(Trap(marker), path.with_suffix(".trap"))
    with zipfile.ZipFile(files / "static.pt2") as source, zipfile.ZipFile(path, "w") as target:
        for item in source.infolist():
            data = source.read(item)
            if "sample_inputs" in item.filename:
                data = path.with_suffix(".trap").read_bytes()
            target.writestr(item.filename, data, zipfile.ZIP_STORED)


def test_a_malicious_pt2_does_not_run(files, tmp_path, marker):
    path = tmp_path / "model.pt2"
    malicious_pt2(files, marker, path)
    with pytest.raises(UnsafeModelError, match=r"exported program \(\.pt2\)"):
        frontends.load(path, "3,32,32")
    assert not marker.exists()


def test_torchscript_needs_trust(files):
    with pytest.raises(UnsafeModelError, match="TorchScript"):
        frontends.load(files / "traced.pt", "3,32,32")


def test_classes_of_the_user_are_named(tmp_path):
    class Own(nn.Module):
        def forward(self, x):
            return x

    Own.__module__, Own.__qualname__ = __name__, "Own"
    globals()["Own"] = Own
    try:
        torch.save(Own(), tmp_path / "own.pt")
    finally:
        del globals()["Own"]
    with pytest.raises(UnsafeModelError, match="Own"):
        frontends.load(tmp_path / "own.pt", "3")


def test_names_that_would_break_out_of_generated_code(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3))
    model._modules['x"); __import__("os").abort() #'] = nn.ReLU()
    torch.save(model, tmp_path / "names.pt")
    with pytest.raises(UnsafeModelError, match="a part named"):
        frontends.load(tmp_path / "names.pt", "3")


@pytest.mark.parametrize(
    "name",
    ["os.system", "builtins.eval", "builtins.getattr", "torch.hub.load", "torch.load",
     "torch.fx.graph_module.GraphModule", "torch.fx.graph_module.reduce_graph_module",
     "torch.jit._script.RecursiveScriptModule", "timm.models._hub.load_state_dict_from_hf",
     "timm.models._helpers.load_checkpoint", "torchvision.models.resnet.load_state_dict_from_url",
     "torchvision.models.feature_extraction.DualGraphModule", "torch.nn.modules.module.torch",
     "timm.models._builder.build_model_with_cfg", "torch.nn.functional.boolean_dispatch"],
)  # fmt: skip
def test_what_reaches_code_files_or_network_is_never_allowed(name, vision):
    assert allowed_global(name) is None


def test_layers_and_models_are_allowed(vision):
    for name in (
        "torch.nn.modules.conv.Conv2d",
        "torchvision.models.resnet.ResNet",
        "torchvision.ops.misc.Conv2dNormActivation",
        "torch.nn.functional.relu",
        "functools.partial",
    ):
        assert allowed_global(name) is not None


@pytest.mark.parametrize(
    "name",
    sampled(
        ["resnet18", "mobilenet_v2", "swin_t", "efficientnet_b0"],
        pytest.mark.nightly(part="frontends"),
    ),
)
def test_pickled_models_of_the_zoo_need_no_trust(name, tmp_path, vision):
    with torch.device("meta"):
        model = vision.models.get_model(name)
    torch.save(model, tmp_path / "zoo.pt")
    assert frontends.load(tmp_path / "zoo.pt", "3,224,224").batch_is_symbolic


@pytest.mark.parametrize("trust", [False, True])
def test_a_missing_package_is_named_with_its_extra(trust, tmp_path, vision, monkeypatch):
    with torch.device("meta"):
        torch.save(vision.models.resnet18(), tmp_path / "zoo.pt")
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *_: None if name == "torchvision" else sys
    )
    with pytest.raises(FrameworkNotInstalledError, match="torchvision") as caught:
        load_pickled(tmp_path / "zoo.pt", trust=trust)
    assert caught.value.hint == 'pip install "dippm[timm]"'


def test_torchscript_says_why_and_its_way_to_onnx_works(files, tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(UnsafeModelError, match="TorchScript") as caught:
        frontends.load(files / "traced.pt", "3,32,32")
    assert "__setstate__" in caught.value.message
    assert "torch.onnx.export" in caught.value.hint
    script = torch.jit.load(files / "traced.pt")
    torch.onnx.export(script, (torch.zeros(2, 3, 32, 32),), tmp_path / "m.onnx", dynamo=False)
    of_script = build(frontends.load(files / "traced.pt", "3,32,32", trust=True))
    assert build(frontends.load(tmp_path / "m.onnx")).at_batch(2).macs == of_script.at_batch(2).macs
