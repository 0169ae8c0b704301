"""Which sizes are the batch: loops over samples, sequences first, inputs without a batch."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from dippm.errors import ConversionError, InputShapeError
from dippm.model import frontends
from dippm.model.frontends import limits, pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.export import accepted_inputs
from dippm.model.frontends.torch.prepare import keeping_attributes
from dippm.model.graph import build
from tests.samples import sampled


class PerSample(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(8, 8)


class Iterated(PerSample):
    def forward(self, x):
        return torch.stack([self.dense(sample) for sample in x])


class Indexed(PerSample):
    def forward(self, x):
        return torch.stack([self.dense(x[i]) for i in range(len(x))])


class Unbound(PerSample):
    def forward(self, x):
        return torch.stack([self.dense(sample) for sample in x.unbind(0)])


class Split(PerSample):
    def forward(self, x):
        return torch.cat([self.dense(sample) for sample in torch.split(x, 1)])


class InGroups(PerSample):
    def forward(self, x):
        return torch.cat([self.dense(x[i : i + 4]) for i in range(0, len(x), 4)])


class Eaten(PerSample):
    def forward(self, x):
        out = []
        while len(x):
            out.append(self.dense(x[0]))
            x = x[1:]
        return torch.stack(out)


class Repeated(PerSample):
    def forward(self, x):
        y = x
        for _ in range(len(x)):
            y = self.dense(y)
        return y


class Halves(PerSample):
    def forward(self, x):
        return torch.cat([self.dense(half) for half in x.chunk(2)])


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Iterated()

    def forward(self, x):
        return self.inner(x.relu()).sum(1)


def convert(module, shape):
    return pytorch.convert_module(module.eval(), InputSpec.parse(shape))


LOOPS = [Iterated, Indexed, Unbound, Split, InGroups, Eaten, Repeated, Halves, Inner]


@pytest.mark.parametrize("kind", sampled(LOOPS, pytest.mark.nightly(part="frontends")))
def test_a_loop_over_samples_is_no_symbolic_batch(kind):
    raw = convert(kind(), "8")
    assert (raw.batch, raw.batch_is_symbolic) == (1, False)
    assert build(raw).macs == 64
    assert any("fixed batch 1" in note for note in raw.notes)


def test_a_loop_over_samples_may_compute_with_numbers():
    class Cut(PerSample):
        def forward(self, x):
            cuts = torch.tensor([2, 5]).tolist()
            return torch.stack([torch.cat(torch.split(self.dense(row), [*cuts, 1])) for row in x])

    raw = convert(Cut(), "8")
    assert (raw.batch, raw.batch_is_symbolic) == (1, False)
    assert build(raw).macs == 64


def test_a_loop_over_samples_that_reads_data_is_refused_for_that():
    class Reads(PerSample):
        def forward(self, x):
            return torch.stack([self.dense(row) if row.sum() > 0 else row for row in x])

    with pytest.raises(ConversionError) as caught:
        convert(Reads(), "8")
    assert "BatchMissedError" not in caught.value.message
    assert "data-dependent" in caught.value.message


def test_more_samples_are_given_as_the_complete_input():
    raw = convert(Iterated(), "fixed:5,8")
    assert build(raw).macs == 5 * 64
    assert not raw.batch_is_symbolic
    assert raw.notes


def test_a_scripted_loop_from_a_file(tmp_path):
    torch.jit.script(Indexed()).save(tmp_path / "loop.pt")
    raw = frontends.load(tmp_path / "loop.pt", "8", trust=True)
    assert build(raw).macs == 64
    assert "fixed batch 1" in raw.notes[0]


@pytest.mark.parametrize("example", [1, 4])
def test_a_traced_loop_counts_the_samples_of_its_trace(tmp_path, example):
    torch.jit.trace(Iterated(), torch.zeros(example, 8)).save(tmp_path / "loop.pt")
    raw = frontends.load(tmp_path / "loop.pt", f"fixed:{example},8", trust=True)
    assert build(raw).macs == example * 64
    program = torch.export.export(Iterated(), (torch.zeros(example, 8),))
    torch.export.save(program, tmp_path / "loop.pt2")
    raw = frontends.load(tmp_path / "loop.pt2", trust=True)
    assert (raw.batch, raw.batch_is_symbolic) == (example, False)
    assert build(raw).macs == example * 64


def test_half_a_batch_is_no_constant():
    class Half(PerSample):
        def forward(self, x):
            return self.dense(x[: (len(x) + 1) // 2])

    raw = convert(Half(), "8")
    assert not raw.batch_is_symbolic


@pytest.mark.parametrize("reduce", [lambda y: y.mean(0), lambda y: y[0], lambda y: y])
def test_what_scales_stays_symbolic(reduce):
    class Model(PerSample):
        def forward(self, x):
            return reduce(self.dense(x))

    raw = convert(Model(), "8")
    assert raw.batch_is_symbolic
    assert not raw.notes
    assert build(raw).at_batch(3).macs == 3 * 64


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 8), nn.GRU(8, 16)

    def forward(self, tokens):
        return self.layer(self.words(tokens))[0]


SEQUENCES = [
    (nn.LSTM(8, 16), "20,8", (20, 3, 8)),
    (nn.GRU(8, 16), "20,8", (20, 3, 8)),
    (nn.RNN(8, 16), "20,8", (20, 3, 8)),
    (nn.LSTM(8, 16, batch_first=True), "20,8", (3, 20, 8)),
    (Words(), "20", (20, 3)),
    (nn.TransformerEncoderLayer(8, 2), "20,8", (20, 3, 8)),
    (nn.TransformerEncoderLayer(8, 2, batch_first=True), "20,8", (3, 20, 8)),
    (nn.MultiheadAttention(8, 2), "query=20,8;key=20,8;value=20,8", (20, 3, 8)),
    (nn.Transformer(8, 2, 1, 1, 16), "src=20,8;tgt=9,8", (20, 3, 8)),
]


@pytest.mark.parametrize(
    ("model", "shape", "wanted"), sampled(SEQUENCES, pytest.mark.nightly(part="frontends"))
)
def test_models_that_declare_their_batch_axis_are_believed(model, shape, wanted):
    raw = convert(model, shape)
    assert raw.batch_is_symbolic
    assert build(raw).at_batch(3).inputs[0].shape == wanted
    assert bool(raw.notes) == (wanted[0] != 3)


@pytest.mark.parametrize(
    ("model", "shape", "wanted"), sampled(SEQUENCES[:5], pytest.mark.nightly(part="frontends"))
)
def test_what_is_measured_has_its_batch_where_it_is_predicted(model, shape, wanted):
    accepted = accepted_inputs(model, InputSpec.parse(shape), 3)
    assert next(iter(accepted.tensors.values())).shape == wanted


class Mixing(nn.Module):
    """A common mistake: a sequence-first layer after a batch-first body."""

    def __init__(self):
        super().__init__()
        self.conv, self.layer = nn.Conv2d(3, 8, 3), nn.LSTM(8, 16)

    def forward(self, x):
        return self.layer(self.conv(x).mean(2).permute(0, 2, 1))[0]


def test_samples_that_mix_are_refused_unless_named():
    with pytest.raises(InputShapeError, match="layer layer takes its sequence") as caught:
        convert(Mixing(), "3,10,10")
    assert 'input="N,3,10,10"' in caught.value.hint
    raw = convert(Mixing(), "N,3,10,10")
    assert raw.batch_is_symbolic
    assert not raw.notes


class Frames(nn.Module):
    """A network of video whose batch is frames of clips, twelve each."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        clips = self.conv(x).flatten(1).view(x.shape[0] // 12, 12, -1)
        return clips.mean(1)


def test_a_batch_of_whole_clips_is_asked_for_as_a_complete_input():
    with pytest.raises(InputShapeError, match="does not accept input 3,10,10") as caught:
        convert(Frames(), "3,10,10")
    assert "a multiple of 12" in caught.value.hint
    assert 'input="fixed:12,3,10,10"' in caught.value.hint
    assert not convert(Frames(), "fixed:12,3,10,10").batch_is_symbolic
    with pytest.raises(InputShapeError) as caught:
        convert(Frames(), "4,10,10")
    assert "multiple" not in caught.value.hint


def test_axes_are_named_by_input():
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(8, 16, batch_first=True)

        def forward(self, x, state):
            return self.layer(x, state)

    raw = convert(Stateful(), "x=20,8;state.0=1,N,16;state.1=1,N,16")
    shapes = [spec.shape for spec in build(raw).at_batch(3).inputs]
    assert shapes == [(3, 20, 8), (1, 3, 16), (1, 3, 16)]


class Messages(nn.Module):
    """One step of a graph network, with the names of PyTorch Geometric."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 4)

    def forward(self, x, edge_index):
        source, target = edge_index
        out = torch.zeros(x.size(0), 4, dtype=x.dtype, device=x.device)
        return out.index_add(0, target, self.lin(x)[source])


def test_the_edges_of_a_graph_are_no_batch():
    raw = convert(Messages(), "x=100,16;edge_index=2,300")
    assert [raw.values[i].shape for i in raw.inputs] == [(100, 16), (2, 300)]
    assert raw.values[raw.inputs[1]].dtype == "int64"
    assert (raw.batch, raw.batch_is_symbolic) == (1, False)
    assert "edges" in raw.notes[0]
    assert build(raw).macs == 100 * 16 * 4


def test_layers_of_geometric():
    geometric = pytest.importorskip("torch_geometric.nn")
    raw = convert(geometric.GCNConv(16, 4), "x=100,16;edge_index=2,300")
    assert build(raw).macs == 100 * 16 * 4
    with pytest.raises(ConversionError, match="same reduction dim"):
        convert(geometric.GCNConv(16, 4), "x=100,17;edge_index=2,300")


def test_programs_with_unequal_first_sizes_keep_them(tmp_path):
    class Pair(nn.Module):
        def forward(self, x, h):
            return x @ h.transpose(1, 2)

    inputs = (torch.zeros(6, 4, 8), torch.zeros(1, 2, 8))
    torch.export.save(torch.export.export(Pair(), inputs), tmp_path / "pair.pt2")
    raw = frontends.load(tmp_path / "pair.pt2", trust=True)
    assert [raw.values[i].shape for i in raw.inputs] == [(6, 4, 8), (1, 2, 8)]
    assert not raw.batch_is_symbolic
    assert "unequal" in raw.notes[0]


def test_a_program_says_which_size_varies(tmp_path):
    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x, scale):
            return self.layer(x) * scale

    sizes = ({1: torch.export.Dim("samples")}, None)
    inputs = (torch.zeros(6, 4, 8), torch.tensor(2.0))
    program = torch.export.export(Second(), inputs, dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "second.pt2")
    raw = frontends.load(tmp_path / "second.pt2", trust=True)
    assert raw.batch_is_symbolic
    assert build(raw).at_batch(3).inputs[0].shape == (6, 3, 8)


def test_an_export_in_the_caller_has_the_time_limit_too():
    class Endless(nn.Module):
        def forward(self, x):
            limits._raise_in(threading.get_ident())  # as the clock does, once it is here
            while True:
                x = x + 1

    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8), Endless()])

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    where = r"exporting, in blocks\.1 \(Endless\), line \d+ of test_batch\.py\)"
    with pytest.raises(ConversionError, match=rf"longer than 600 s \(step: {where}") as caught:
        frontends.load(Holds(), "8", timeout_s=600)
    assert "timeout_s" in caught.value.hint
    assert frontends.load(nn.Linear(8, 8), "8").batch_is_symbolic


class KeepsGrid(nn.Module):
    """Makes its anchors anew when the size of its input changes, as detectors do."""

    size, grid = None, torch.empty(0)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        if self.size != x.shape[2:]:
            self.grid = torch.ones(x.shape[2:])
            self.size = x.shape[2:]
        return self.conv(x * self.grid)


def test_scripted_parts_keep_what_they_have():
    model = nn.Sequential(torch.jit.script(nn.BatchNorm1d(4)), KeepsNothing())
    with keeping_attributes(model):
        model(torch.ones(2, 4))
    assert not hasattr(model[1], "seen")
    assert model[0].running_mean.shape == (4,)


class KeepsNothing(nn.Module):
    def forward(self, x):
        self.seen = x
        return x


def test_what_one_pass_keeps_for_the_next_is_forgotten():
    model = KeepsGrid()
    raw = pytorch.convert_module(model, InputSpec.parse("3,8,8"))
    assert build(raw).at_batch(1).macs == 4 * 6 * 6 * 27
    assert not {"size", "grid"} & vars(model).keys()


class Experts(nn.Module):
    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        counts = torch.histc(rows.argmax(-1).float(), bins=x.shape[-1])
        return x * counts.softmax(-1) + rows.mean(0)


def test_counting_over_the_batch_needs_no_second_export(monkeypatch):
    made = []
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: made.append(a) or export(*a, **k))
    raw = pytorch.convert_module(Experts(), InputSpec.parse("5,8"))
    assert raw.batch_is_symbolic
    assert len(made) == 1
