"""A raw graph is read from another process or a file: nothing of it is believed.

How long results are held is in the operators of a file.
"""

from __future__ import annotations

import gzip
import json

import pytest

from dippm.model.relax import raw_graph
from dippm.model.relax.raw_graph import (
    RawGraph,
    RawOperator,
    RawValue,
    last_operators,
    merge_lifetimes,
    pack,
    unpack,
)

GRAPH = RawGraph(
    values=(
        RawValue((1009, 8), "float32", "input", "x"),
        RawValue((), "float32", "constant", "", float("-inf")),
        RawValue((1009, 8), "float32", "operator"),
    ),
    operators=(RawOperator("maximum", (0, 1), (2,), {"axes": (0, -1), "mode": "up"}, "layer.1"),),
    inputs=(0,),
    outputs=(2,),
    batch=1009,
    notes=("a note",),
)
DOCUMENT = json.loads(GRAPH.to_json())
VALUE = DOCUMENT["values"][0]
CALL = DOCUMENT["operators"][0]


def changed(**changes):
    return json.dumps({**DOCUMENT, **changes})


def test_round_trip():
    assert RawGraph.from_json(GRAPH.to_json()) == GRAPH
    assert RawGraph.from_json(unpack(pack(GRAPH.to_json()))) == GRAPH


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        '{"version":' + "9" * 5000 + "}",
        changed(version="1"),
        changed(batch=None),
        changed(batch=0),
        changed(batch=True),
        changed(batch=1.5),
        changed(batch=1 << 63),
        changed(batch_is_symbolic=1),
        changed(notes=None),
        changed(notes="text"),
        changed(notes=[1]),
        changed(inputs=None),
        changed(inputs=[3]),
        changed(inputs=[-1]),
        changed(outputs=[1 << 70]),
        changed(outputs=["0"]),
        changed(values=None),
        changed(values=[VALUE[:4]]),
        changed(values=[[[-1, 8], *VALUE[1:]]]),
        changed(values=[[[1.0], *VALUE[1:]]]),
        changed(values=[[[True], *VALUE[1:]]]),
        changed(values=[[[1 << 63], *VALUE[1:]]]),
        changed(values=[[None, *VALUE[1:]]]),
        changed(values=[[VALUE[0], None, *VALUE[2:]]]),
        changed(values=[[*VALUE[:2], "output", *VALUE[3:]]]),
        changed(values=[[*VALUE[:2], {}, *VALUE[3:]]]),
        changed(values=[[*VALUE[:3], None, None]]),
        changed(values=[[*VALUE[:4], "1"]]),
        changed(values=[[*VALUE[:4], 10**400]]),
        changed(operators=[CALL[:4]]),
        changed(operators=[[*CALL[:3], {"layers": 10**400}, ""]]),
        changed(operators=[[None, *CALL[1:]]]),
        changed(operators=[[CALL[0], [2, 1], *CALL[2:]]]),
        changed(operators=[[*CALL[:2], [3], *CALL[3:]]]),
        changed(operators=[[*CALL[:3], None, ""]]),
        changed(operators=[[*CALL[:3], {"axes": [[0]]}, ""]]),
        changed(operators=[[*CALL[:3], {"axes": None}, ""]]),
        changed(operators=[[*CALL[:4], None]]),
        changed(operators=[]),
    ],
)
def test_what_does_not_hold_together_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011  whatever it says
        RawGraph.from_json(text)


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(raw_graph, "MAX_TEXT_BYTES", 1 << 20)
    assert len(unpack(gzip.compress(bytes(1 << 20)))) == 1 << 20
    for damaged in (gzip.compress(bytes((1 << 20) + 1)), b"", b"text", gzip.compress(b"x")[:-9]):
        with pytest.raises(ValueError):  # noqa: PT011
            unpack(damaged)


@pytest.mark.parametrize(
    ("held", "until"),
    [
        ([], []),
        ([None, None], [None, None]),
        ([(1, 3), (2, 2), (3, 3)], [2, 1, 2]),
        ([(10, 30), None, (20, 20), (30, 99)], [3, None, 2, 3]),
        ([(1, 1), None, None], [2, None, None]),
        ([(5, 2)], [0]),
    ],
)
def test_steps_of_the_program_are_operators_of_the_file(held, until):
    """An operator whose step is not known ran with the next one that is."""
    assert last_operators(held) == until


def test_a_result_of_two_names_lives_as_long_as_the_longer():
    assert merge_lifetimes(None, (3, 5)) == (3, 5)
    assert merge_lifetimes((3, 5), (4, 9)) == (3, 9)
    assert merge_lifetimes((3, 5), (4, 4)) == (3, 5)
