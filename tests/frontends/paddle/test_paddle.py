"""Paddle programs of both formats, whole and damaged, converted in their own process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest

import dippm.model.frontends
import dippm.model.graph
from dippm.errors import ConversionError, InputShapeError, ModelFileError, ModelNotFoundError
from dippm.model.frontends import paddle as route
from dippm.model.frontends.frontend import MARKER_BATCHES
from dippm.model.frontends.paddle_rewrites import rewrite
from tests.samples import sampled

pytestmark = pytest.mark.paddle
MARKER = MARKER_BATCHES[0]
ROOT = Path(__file__).parents[3]


def run_module(module, *words):
    answer = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return answer.stdout


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paddle-models")
    run_module("tests.frontends.paddle.write_models", folder)
    return folder


def convert(path, inputs=None):
    return dippm.model.frontends.load(path, inputs, cache=False)


def names(raw):
    return Counter(operator.name for operator in raw.operators)


CNN = {"nn.conv2d": 1, "nn.batch_norm": 1, "onnx.HardSwish": 1, "nn.max_pool2d": 1, "matmul": 1}


@pytest.mark.parametrize("name", ["cnn.json", "old.pdmodel", "fixed.json"])
def test_both_formats_and_a_fixed_batch(models, name):
    raw = convert(models / name)
    assert CNN.items() <= names(raw).items()
    assert (raw.batch, raw.batch_is_symbolic) == (MARKER, True)
    assert raw.values[raw.outputs[0]].shape == (MARKER, 4)


def test_parameters_have_the_shapes_of_the_program(models):
    raw = convert(models / "cnn.json")
    stored = sorted(v.shape for v in raw.values if v.kind == "parameter")
    assert stored == [(4,), *[(8,)] * 5, (8, 3, 3, 3), (8, 4)]


def test_the_parameter_file_is_not_needed(models, tmp_path):
    for name in ("cnn.json", "old.pdmodel", "LSTM.json"):
        shutil.copy(models / name, tmp_path)
        assert convert(tmp_path / name) == convert(models / name)


def test_weight_values_do_not_change_the_graph(models):
    plain, zeros = (
        dippm.model.graph.build(convert(models / f"{n}.json")) for n in ("cnn", "zeros")
    )
    assert plain == zeros


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers_stay_whole(models, kind, gates):
    raw = convert(models / f"{kind}.json")
    assert names(raw)[f"onnx.{kind}"] == 2
    cells = 10 * 2 * gates * 32 * ((16 + 32) + (64 + 32))
    assert dippm.model.graph.build(raw).at_batch(1).macs == cells + 64 * 5


def test_a_batch_that_is_not_first(models):
    raw = convert(models / "time_major.json", "10,N,16")
    assert raw.values[raw.inputs[0]].shape == (10, MARKER, 16)
    assert dippm.model.graph.build(raw).at_batch(3).macs == 3 * 10 * 2 * 3 * 24 * (16 + 24)
    with pytest.raises(InputShapeError):
        convert(models / "time_major.json")


def test_a_decoder_keeps_its_encoder(models):
    graph = dippm.model.graph.build(convert(models / "encoder_decoder.json")).at_batch(1)
    assert graph.macs == (10 + 7) * 4 * 24 * (16 + 24)


def test_a_loop_reads_its_weights_and_is_counted_by_steps(models):
    graph = dippm.model.graph.build(convert(models / "loop.json")).at_batch(1)
    assert graph.macs == 3 * 16 * 16
    assert not graph.unknown_ops


def test_lists_of_tensors_are_refused_before_the_exporter_aborts(models):
    with pytest.raises(ConversionError, match="array_write_") as caught:
        convert(models / "own_cell.json")
    assert "paddle.nn.LSTM" in caught.value.hint


def test_a_transformer_encoder(models):
    graph = dippm.model.graph.build(convert(models / "encoder.json")).at_batch(1)
    assert graph.macs == 10 * 32 * (4 * 32 + 2 * 64) + 2 * 10 * 10 * 32
    assert not graph.unknown_ops


def test_several_inputs_and_their_types(models):
    raw = convert(models / "two.json")
    assert [(raw.values[i].name, raw.values[i].dtype) for i in raw.inputs] == [
        ("ids", "int64"),
        ("scale", "float32"),
    ]


def test_open_sizes(models):
    raw = convert(models / "anysize.json", (3, 32, 48))
    assert raw.values[raw.inputs[0]].shape == (MARKER, 3, 32, 48)
    with pytest.raises(InputShapeError, match="'x'"):
        convert(models / "anysize.json")
    with pytest.raises(InputShapeError, match="number of dimensions"):
        convert(models / "anysize.json", (3, 32))


@pytest.fixture
def only_cnn(models, tmp_path):
    for suffix in (".json", ".pdiparams"):
        shutil.copy(models / f"cnn{suffix}", tmp_path)
    return tmp_path


@pytest.mark.parametrize("which", ["", "cnn", "cnn.json", "cnn.pdiparams"])
def test_folder_prefix_program_and_parameters_name_the_same_model(only_cnn, which):
    path = only_cnn / which
    assert route.accepts(path)
    assert route.find_program(path) == only_cnn / "cnn.json"


def test_a_folder_with_several_programs(models):
    with pytest.raises(ModelFileError, match=r"LSTM.*cnn"):
        route.find_program(models)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"magic": "other"}', b"\x08\x01\x12\x00", b"PK\x03\x04"]
)
@pytest.mark.parametrize("suffix", [".json", ".pdmodel"])
def test_other_content_is_not_accepted(tmp_path, content, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    assert not route.accepts(path)


def test_nothing_there(tmp_path):
    assert not route.accepts(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"paddle\.jit\.save|absent"):
        route.find_program(tmp_path / "absent")


def test_an_empty_parameter_file(only_cnn):
    (only_cnn / "cnn.pdiparams").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"cnn\.pdiparams"):
        convert(only_cnn / "cnn.json")


@pytest.mark.parametrize(
    "keep", sampled([0.1, 0.6, 0.98], pytest.mark.nightly(part="frontends"), every=3)
)
@pytest.mark.parametrize("name", ["cnn.json", "old.pdmodel"])
def test_a_cut_program(models, tmp_path, name, keep):
    data = (models / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ModelFileError) as caught:
        convert(tmp_path / name)
    assert caught.value.hint


# DenseNet121 of the zoo is held against torch's in `test_parity.py`.
ZOO = {
    "resnet50": (4.089e9, {"conv2d": 53, "relu": 49, "add": 16, "max_pool": 1, "dense": 1}),
    "vgg16": (15.470e9, {"conv2d": 13, "relu": 15, "max_pool": 5, "dense": 3}),
    "mobilenetv2": (0.301e9, {"conv2d": 52, "relu6": 35, "add": 10, "dense": 1}),
}


@pytest.mark.nightly(part="frontends")
@pytest.mark.parametrize("name", ZOO)
def test_vision_models(writers, tmp_path, name):
    writers.write(tmp_path, "paddle", name, "random")
    graph = dippm.model.graph.build(convert(tmp_path))
    macs, counts = ZOO[name]
    assert graph.at_batch(1).macs == pytest.approx(macs, rel=0.01)
    assert counts.items() <= dict(graph.histogram()).items()
    assert not graph.unknown_ops


MENDED = {
    "upsample": ("resize", 0, (3, 32, 32)),
    "resize": ("resize", 0, (3, 32, 32)),
    "upsample_1d": ("resize", 0, (3, 16)),
    "conv_same": ("conv2d", 20 * 8 * 4 * 5, (8, 20)),
    "group_norm": ("group_norm", 18 * 8 * 4 * 3, (8, 18)),
    "mean": ("reduce_mean", 4 * 20 * 20, (4, 20)),
}


@pytest.mark.parametrize("prefix", ["{}.json", "old_{}.pdmodel"])
def test_what_paddle2onnx_fails_on_is_written_in_words_that_it_knows(models, prefix):
    for name, (operator, macs, shape) in MENDED.items():
        raw = convert(models / prefix.format(name))
        graph = dippm.model.graph.build(raw)
        assert graph.histogram()[operator] == 1, name
        assert not graph.unknown_ops
        assert graph.at_batch(1).macs == macs, name
        assert raw.values[raw.outputs[0]].shape[-len(shape) :] == shape


@pytest.mark.parametrize("prefix", ["{}.json", "old_{}.pdmodel"])
def test_what_paddle2onnx_cannot_export_is_named_before_it_ends_the_process(models, prefix):
    words = {"nms": "nms", "plain_rnn": "SimpleRNN", "inverse": "inverse", "irfft": "fft_c2r"}
    for name, what in words.items():
        path = models / prefix.format(name)
        if not path.is_file():
            continue
        with pytest.raises(ConversionError, match=what) as caught:
            convert(path)
        assert "SIG" not in caught.value.message
        assert "Try again" not in caught.value.hint


def test_the_ways_out_of_recurrent_cells_work(models):
    """Neither refusal recommends what the other refuses."""
    for name in ("own_cell", "plain_rnn"):
        with pytest.raises(ConversionError) as caught:
            convert(models / f"{name}.json")
        assert "LSTM" in caught.value.hint
        assert "SimpleRNN " not in caught.value.hint + " "
    assert (
        dippm.model.graph.build(convert(models / "stepped_rnn.json")).at_batch(1).macs == 4 * 28 * 8
    )


@pytest.mark.parametrize(("shape", "kept"), [([1], []), ([], [0])])
def test_a_slice_has_as_many_axes_as_its_result(shape, kept):
    """Programs older than Paddle 2.5 have no tensors without axes, as those of PaddleOCR."""

    def result(value, sizes):
        return {"%": value, "TT": {"#": "0.t_dtensor", "D": [{"#": "0.t_i32"}, sizes, "NCHW"]}}

    axes = {"#": "0.a_array", "D": [{"#": "0.a_i64", "D": 0}]}
    sliced = {
        "#": "1.slice",
        "A": [{"N": "axes", "AT": axes}, {"N": "decrease_axis", "AT": deepcopy(axes)}],
        "I": [{"%": 1}, {"%": 2}, {"%": 3}],
        "O": [result(4, shape)],
    }
    sizes = {"#": "1.shape", "A": [], "I": [{"%": 0}], "O": [result(1, [4])]}
    rewrite({"program": {"regions": [{"blocks": [{"ops": [sizes, sliced]}]}]}}, "old")
    assert sliced["A"][0]["AT"] == axes
    assert [item["D"] for item in sliced["A"][1]["AT"]["D"]] == kept
