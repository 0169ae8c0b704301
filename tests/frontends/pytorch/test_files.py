"""Every kind of file, name and object gives the graph of the module itself."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from dippm.errors import ModelFileError, ModelNotFoundError, UnknownNameError, UnsafeModelError
from dippm.model import frontends
from dippm.model.frontends.torch.archive import archive_kind
from dippm.model.graph import build
from tests.samples import sampled

SHAPE = "3,32,32"
KINDS = {
    "pickle.pt": "pickle",
    "legacy.pth": "legacy pickle",
    "traced.pt": "torchscript",
    "scripted.pt": "torchscript",
    "static.pt2": "pt2",
    "dynamic.pt2": "pt2",
    "state_dict.pt": "pickle",
}


@pytest.fixture(scope="module")
def reference(small_cnn):
    return build(frontends.load(small_cnn, SHAPE))


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_kinds_are_told_apart_without_loading(files, name, kind):
    assert archive_kind(files / name) == kind


@pytest.mark.parametrize(
    "name",
    sampled(
        [n for n in KINDS if n != "state_dict.pt"], pytest.mark.nightly(part="frontends"), every=3
    ),
)
def test_all_files_give_one_graph(files, name, reference):
    graph = build(frontends.load(files / name, SHAPE, trust=True))
    assert graph.batch_is_symbolic
    assert graph.nodes == reference.nodes
    assert graph.edges == reference.edges
    assert graph.param_bytes == reference.param_bytes


@pytest.mark.parametrize("name", ["static.pt2", "dynamic.pt2"])
def test_an_exported_program_knows_its_shapes(files, name, reference):
    assert build(frontends.load(files / name, trust=True)).nodes == reference.nodes


def test_a_batch_that_is_baked_in_stays(tmp_path):
    class Baked(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(12, 5)

        def forward(self, x):
            return self.dense(x.reshape(4, 12))

    program = torch.export.export(Baked(), (torch.zeros(4, 3, 4),))
    torch.export.save(program, tmp_path / "baked.pt2")
    raw = frontends.load(tmp_path / "baked.pt2", trust=True)
    assert (raw.batch, raw.batch_is_symbolic) == (4, False)
    assert build(raw).macs == 4 * 12 * 5


def test_the_module_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    model[1].eval()
    weight = model[0].weight
    frontends.load(model, "4")
    assert [m.training for m in model.modules()] == [True, True, False]
    assert model[0].weight is weight
    assert weight.device.type == "cpu"


def test_weights_never_matter(small_cnn):
    graphs = set()
    for fill in (0.0, 1.0):
        with torch.no_grad():
            for tensor in (*small_cnn.parameters(), *small_cnn.buffers()):
                tensor.fill_(fill)
        graphs.add(frontends.load(small_cnn, SHAPE).to_json())
    assert len(graphs) == 1


def test_a_class_that_no_one_can_import():
    class Local(nn.Module):
        def forward(self, x):
            return {"sum": x + 1, "pair": (x, [x * 2])}

    raw = frontends.load(Local(), "7")
    assert len(raw.outputs) == 3


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18"])
def test_by_name(name, vision):
    graph = build(frontends.load(name)).at_batch(1)
    assert graph.inputs[0].shape == (1, 3, 224, 224)
    assert graph.macs == 1_814_073_344
    weights = vision.models.resnet18().state_dict().values()
    assert graph.param_bytes == sum(w.numel() * 4 for w in weights if w.is_floating_point())


def test_unknown_names_are_guessed(vision):
    with pytest.raises(UnknownNameError, match="resnet18"):
        frontends.load("torchvision:resnet8")


def test_a_configuration_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = {"model_type": "bert", "num_hidden_layers": 2, "architectures": ["BertModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = build(frontends.load(f"hf-config:{tmp_path}", "32")).at_batch(2)
    assert graph.histogram()["attention"] == 2
    built = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2))
    assert graph.inputs[0].dtype == "int64"
    used = sum(p.numel() * 4 for n, p in built.named_parameters())
    assert graph.param_bytes == used
    raw = frontends.load(f"hf-config:{tmp_path}")
    assert raw.values[raw.inputs[0]].shape[1:] == (128,)
    assert "input_ids: 128 was taken" in raw.notes[0]


def test_bad_configurations(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ModelNotFoundError):
        frontends.load(f"hf-config:{tmp_path}", "32")
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ModelFileError, match="configuration"):
        frontends.load(f"hf-config:{tmp_path}", "32")


def test_a_configuration_brings_no_code_of_its_own(tmp_path):
    """Classes beside it are not imported, and what would load code or weights is refused."""
    pytest.importorskip("transformers")
    witness = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(witness)!r}, 'w').close()\nclass Own: ...\n")
    file = tmp_path / "config.json"
    known = {"model_type": "bert", "num_hidden_layers": 1}
    file.write_text(json.dumps(known))
    plain = frontends.load(f"hf-config:{tmp_path}", "32")
    file.write_text(
        json.dumps({**known, "auto_map": {"AutoModel": "own.Own", "AutoConfig": "own.Own"}})
    )
    assert frontends.load(f"hf-config:{tmp_path}", "32") == plain
    wrapped = {"model_type": "timm_wrapper", "architecture": "resnet18"}
    hostile = [
        {**known, "attn_implementation": "somebody/kernels"},
        {**known, "_attn_implementation": {"": "somebody/kernels:function"}},
        {"model_type": "clip", "text_config": {"experts_implementation": "somebody/kernels"}},
        {**wrapped, "architecture": "hf-hub:somebody/model"},
        {**wrapped, "architecture": f"local-dir:{tmp_path}"},
        {**wrapped, "model_args": {"checkpoint_path": str(tmp_path / "own.py")}},
    ]
    for config in hostile:
        file.write_text(json.dumps(config))
        with pytest.raises(UnsafeModelError, match="would load"):
            frontends.load(f"hf-config:{tmp_path}", "3,224,224")
    assert not witness.exists()


class Attends(nn.Module):
    """Attention whose result is viewed as it lies in memory: on a CPU, heads after tokens."""

    def __init__(self, *, contiguous: bool) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(100, 32), nn.Linear(32, 96)
        self.contiguous, self.out = contiguous, nn.Linear(32, 100)

    def forward(self, tokens):
        x = self.embedding(tokens)
        heads = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.project(x).split(32, 2))
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
        y = y.contiguous() if self.contiguous else y
        return self.out(y.view(*tokens.shape, 32))


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("contiguous", [False, True])
def test_programs_that_a_cpu_exported_keep_its_order_of_axes(is_static, contiguous, tmp_path):
    module = Attends(contiguous=contiguous).eval()
    sizes = None if is_static else ({0: torch.export.Dim("batch")},)
    tokens = torch.zeros(2, 6, dtype=torch.long)
    program = torch.export.export(module, (tokens,), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "gpt.pt2")
    macs = 2 * (6 * 32 * 96 + 2 * 6 * 6 * 32 + 6 * 32 * 100)
    of_file = build(frontends.load(tmp_path / "gpt.pt2", trust=True))
    assert of_file.at_batch(2).macs == macs
    assert of_file.batch_is_symbolic is not is_static
    assert build(frontends.load(module, "6")).at_batch(2).macs == macs
