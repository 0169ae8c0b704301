"""Large graphs: limits grow with them, and how far they are is told."""

from __future__ import annotations

import textwrap

import pytest

from dippm.base.progress import counted, listening, sized
from dippm.errors import ConversionError, ModelFileError
from dippm.model import frontends
from dippm.model.frontends.limits import time_factor
from dippm.model.frontends.worker import WorkerPool

FRONTEND = """
    import time
    from dippm.base.progress import counted
    from dippm.model.relax.raw_graph import RawGraph, RawOperator, RawValue

    NAME = "large"

    def load(path, inputs, *, trust):
        operators, seconds = path.name.split()
        for _ in counted(range(2), int(operators)):
            pass
        time.sleep(float(seconds))
        value = RawValue((1009,), "float32", "input", "x")
        return RawGraph((value,), (RawOperator("relu", (0,), (0,)),), (0,), (0,), 1009)
"""


@pytest.fixture
def convert(tmp_path, monkeypatch):
    (tmp_path / "large_frontend.py").write_text(textwrap.dedent(FRONTEND))
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = WorkerPool()

    def ask(operators, seconds, *, timeout_s):
        inputs = {"shapes": {}, "batch_axes": {}, "values": {}}
        request = {"source": f"{operators} {seconds}", "inputs": inputs, "trust": False}
        with pool.borrow("large_frontend", 2048) as worker:
            return worker.convert(request, timeout_s=timeout_s)

    yield ask
    pool.close()


def test_counting_tells_how_far_it_is():
    heard, sizes = [], []
    with listening(heard.append), sized(sizes.append):
        assert list(counted("abc", 3)) == ["a", "b", "c"]
        assert sum(1 for _ in counted(range(2500), 2500)) == 2500
    assert sizes == [3, 2500]
    assert heard == [f"operator {n} of 2,500" for n in ("0", "1,000", "2,000")]


def test_limits_are_in_proportion_and_have_an_end():
    assert [time_factor(n) for n in (0, 100_000, 250_000, 10**9)] == [1.0, 1.0, 2.5, 10.0]


@pytest.mark.nightly(part="frontends")
def test_a_large_graph_may_take_longer(convert):
    with pytest.raises(ConversionError, match="longer than 6 s"):
        convert(100_000, 600, timeout_s=6.0)
    assert convert(1_000_000, 13, timeout_s=6.0).operators  # also longer than the worker's leeway


@pytest.mark.nightly(part="frontends")
def test_a_large_graph_may_not_take_for_ever(convert):
    with pytest.raises(ConversionError, match="longer than 6 s"):
        convert(200_000, 600, timeout_s=3.0)


def chain(path, operators):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("t0", TensorProto.FLOAT, ["N", 16])
    y = helper.make_tensor_value_info(f"t{operators}", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("Relu" if i % 2 else "Sigmoid", [f"t{i}"], [f"t{i + 1}"])
        for i in range(operators)
    ]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets)
    onnx.save(model, path)
    return path


def test_a_conversion_tells_how_far_it_is(tmp_path):
    heard = []
    with listening(heard.append):
        frontends.load(chain(tmp_path / "chain.onnx", 2500), cache=False)
    told = {words.partition(" of ")[0].rstrip("0123456789,") for words in heard if " of " in words}
    assert told == {"operator ", "translating operator ", "reading operator "}
    assert "converting" in heard


@pytest.mark.nightly(part="zoo")
def test_two_hundred_thousand_operators(tmp_path):
    graph = frontends.load(chain(tmp_path / "chain.onnx", 200_000), cache=False)
    assert len(graph.operators) == 200_000


@pytest.mark.parametrize("depth", [20, 100, 2000])
def test_deep_nesting_ends(tmp_path, depth):
    """A graph in a graph in a graph, written by hand: the library has limits of its own."""
    pytest.importorskip("onnx")

    def field(number, payload):
        size, length = len(payload), b""
        while size > 0x7F:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + payload

    inner = field(1, field(2, b"y") + field(1, b"x") + field(4, b"Relu"))
    for _ in range(depth):
        branch = field(1, b"then_branch") + field(6, inner) + b"\xa0\x01\x05"
        inner = field(1, field(4, b"If") + field(1, b"c") + field(2, b"y") + field(5, branch))
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x08" + field(7, inner) + field(8, b"\x10\x11"))
    with pytest.raises(ModelFileError) as caught:
        frontends.load(path, cache=False)
    assert "took longer" not in caught.value.message
