from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends import InputSpec
from dippm.model.frontends.frontend import MARKER_BATCHES, marker_batch


@pytest.mark.parametrize(
    ("given_input", "shapes"),
    [
        ("3,224,224", {"": (3, 224, 224)}),
        ("3x224x224", {"": (3, 224, 224)}),
        (" (3, 224, 224) ", {"": (3, 224, 224)}),
        ("128", {"": (128,)}),
        ((3, 224, 224), {"": (3, 224, 224)}),
        ([1], {"": (1,)}),
        (128, {"": (128,)}),
        ({"ids": (128,), "mask": "128"}, {"ids": (128,), "mask": (128,)}),
        ("ids=128;mask=1,128", {"ids": (128,), "mask": (1, 128)}),
        (None, {}),
    ],
)
def test_forms(given_input, shapes):
    spec = InputSpec.parse(given_input)
    assert dict(spec.shapes) == shapes
    assert InputSpec.parse(spec) is spec


@pytest.mark.parametrize(
    "bad",
    ["", "3,0,224", "3,-1,224", "3,batch,224", "3.5", (3, 2.5), (True,), "a=1;a=2", "=3", "a=1;3",
     object(), (3, None), 1 << 30, {"ids": ""}, b"abc"],
)  # fmt: skip
def test_bad_forms_name_the_next_step(bad):
    with pytest.raises(InputShapeError) as caught:
        InputSpec.parse(bad)
    assert '"3,224,224"' in caught.value.hint


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        spec = InputSpec.parse(text)
    except InputShapeError:
        return
    assert all(size >= 1 for shape in spec.shapes.values() for size in shape)
    assert InputSpec.parse(str(spec)) == spec


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.lists(st.integers(1, 10_000), min_size=1, max_size=4).map(tuple),
        min_size=1,
        max_size=4,
    )
)
def test_text_and_mapping_agree(shapes):
    text = ";".join(f"{n}={','.join(map(str, s))}" for n, s in shapes.items())
    assert InputSpec.parse(text) == InputSpec.parse(shapes)
    assert InputSpec.parse(text).key() == InputSpec.parse(dict(reversed(shapes.items()))).key()


def test_the_marker_divides_no_size():
    assert marker_batch([3, 224, 64]) == MARKER_BATCHES[0]
    assert marker_batch([3, 2 * MARKER_BATCHES[0], 64]) == MARKER_BATCHES[1]
    with pytest.raises(ConversionError):
        marker_batch(MARKER_BATCHES)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,3,640,640", (1, 3, 640, 640)), ("7", 7), ("[7]", (7,)), ("0.5,2", (0.5, 2)),
     ("[[1,2],[3,4]]", ((1, 2), (3, 4)))],
)  # fmt: skip
def test_values_of_inputs(text, value):
    spec = InputSpec.parse(f"sizes=value:{text}")
    assert spec.values == {"sizes": value}
    assert InputSpec.parse(str(spec)) == spec
    assert InputSpec.from_dict(spec.to_dict()) == spec
    assert InputSpec({}, values={"sizes": np.array(value)}) == spec


@pytest.mark.parametrize(
    "bad", ["[1,[2]]", "[", "1,a", '["a"]', "[null]", "1e999", "[[[[[[[[[1]]]]]]]]]"]
)
def test_values_that_are_no_numbers(bad):
    with pytest.raises(InputShapeError):
        InputSpec.parse(f"sizes=value:{bad}")


def test_values_are_not_for_data():
    with pytest.raises(InputShapeError, match="more than 1,024") as caught:
        InputSpec({}, values={"x": np.zeros((40, 40))})
    assert "sizes of the input" in caught.value.hint


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_a_number_that_no_input_holds_is_refused(digits):
    for value in (10**digits, -(10**digits)):
        with pytest.raises(InputShapeError, match="a number of more than 64 bits"):
            InputSpec({}, values={"a": (1, value)})
    if digits < 4300:  # more are refused by the reader of JSON
        with pytest.raises(InputShapeError, match="a number of more than 64 bits"):
            InputSpec.parse(f"a=value:[1, {10**digits}]")
