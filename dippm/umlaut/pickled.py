"""Read values that early versions of UMLAUT pickled, without unpickling.

UMLAUT called `pickle.dumps` on the data of its metrics and trackers: numbers, texts, lists and
dictionaries of them, times (`datetime`), and NumPy's scalars and arrays. The opcodes of a pickle
are interpreted here one by one; the names in `_MAKERS` stand for functions of this file, so nothing
in the pickle is imported or called, and none of its bytes reach native code of NumPy.

Work and memory are proportional to the length of the pickle: an opcode is executed once, arrays
hold as many bytes as the pickle does, and the expanded value is counted, see `Allowance`.
"""

from __future__ import annotations

import math
import pickletools
import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from dippm.errors import shortened

_FORMATS = {"b1": "?", "f2": "e", "f4": "f", "f8": "d"}
_FORMATS |= {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
"""Format characters of `struct` for NumPy's types of measured values."""
_ORDERS = {"<": "<", ">": ">", "|": "<", "=": "<"}
_DTYPE_STATE = 8
"""Length of the state of a plain dtype: version, order, three `None`, size, alignment, flags."""
MOST_DIMENSIONS = 32
WORK_PER_BYTE, LEAST_WORK = 8, 1000
"""Bytes and items that calls may read, per byte of the pickle and at least: each is stored once and
read at most three times."""
_MARK = object()


def plain_pickle(data: bytes, allowance: Allowance | None = None) -> Any:
    """Return a pickled value as plain JSON data; numbers that are not finite become None.

    Args:
        data: pickle of any protocol.
        allowance: limit for the expanded value; by default that for the pickle's length.

    Raises:
        ValueError: if it is not a pickle of plain values, or exceeds the limit.
    """
    try:
        value = _Interpreter().run(data)
        return (allowance or Allowance()).plain(value, len(data))
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error) as error:
        raise ValueError(f"its pickle is refused: {shortened(str(error))}") from error


class _Interpreter:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.work = 0

    def run(self, data: bytes) -> Any:
        self.work = WORK_PER_BYTE * len(data) + LEAST_WORK
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                (value,) = self.stack
                return value
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name]())
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"it does {name}, which no plain value needs")
        raise ValueError("it has no end")

    def above_mark(self) -> list[Any]:
        """Pop what was pushed since the last mark."""
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def last(self, count: int) -> list[Any]:
        """Pop the last values."""
        items = self.stack[-count:]
        if len(items) < count or any(item is _MARK for item in items):
            raise ValueError("it takes what it never gave")
        del self.stack[-count:]
        return items

    def append(self, items: list[Any]) -> None:
        held = self.stack[-1]
        if type(held) is not list:
            raise ValueError("it appends to what is no list")
        held.extend(items)

    def set_items(self, items: list[Any]) -> None:
        held = self.stack[-1]
        if type(held) is not dict or len(items) % 2:
            raise ValueError("it sets items of what is no dictionary")
        held.update(_entries(items))

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise ValueError("a name of it is no text")
        module = module.replace("numpy.core.", "numpy._core.", 1)
        maker = _MAKERS.get((module.replace("__builtin__", "builtins", 1), name))
        if maker is None:
            raise ValueError(f"it would make a {module}.{name}")
        self.stack.append(maker)

    def reduce(self) -> None:
        maker, arguments = self.last(2)
        if maker not in _MAKERS.values() or type(arguments) is not tuple:
            raise ValueError("it calls what is no maker of plain values")
        self.spend(arguments)
        self.stack.append(maker(*arguments))

    def build(self) -> None:
        held, state = self.last(2)
        if not isinstance(held, _DType | _Array) or type(state) is not tuple:
            raise ValueError("it sets the state of what has none")
        self.spend(state)
        held.build(*state)
        self.stack.append(held)

    def spend(self, parts: tuple[Any, ...]) -> None:
        """Count the input of a call: the same bytes may be read again and again."""
        sized = (str, bytes, bytearray, list, tuple)
        self.work -= 1 + sum(len(part) for part in parts if isinstance(part, sized))
        if self.work < 0:
            raise ValueError("it makes more than it holds")


class _DType:
    """The type of an array's elements: kind and size, such as "f8", and byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        kind, size = (code[:1], code[1:]) if type(code) is str else ("", "")
        self.is_text = kind == "U" and size.isascii() and size.isdigit() and 0 < len(size) < 6
        if not (self.is_text or code == "O8" or code in _FORMATS):
            raise ValueError(f"it has an array of {code!r}")
        self.is_object = kind == "O"
        self.size = 4 * int(size) if self.is_text else int(size)
        self.format, self.order = _FORMATS.get(code, ""), "<"
        if self.size == 0:
            raise ValueError("it has an array of elements without a size")

    def build(self, *state: Any) -> None:
        """Read the byte order from a dtype's state; fields and subarrays are refused."""
        if len(state) != _DTYPE_STATE or any(part is not None for part in state[2:5]):
            raise ValueError("it has an array of records")
        if state[5] not in (-1, self.size):
            raise ValueError("an array of it is not as its type says")
        self.order = _ORDERS[state[1]]

    def read(self, data: Any, count: int) -> list[Any]:
        """Return elements as plain values."""
        if self.is_object:
            if type(data) is not list or len(data) != count:
                raise ValueError("an array of it has not the elements that its shape says")
            return data
        if not isinstance(data, bytes | bytearray) or len(data) != count * self.size:
            raise ValueError("an array of it has not the bytes that its shape says")
        if self.is_text:
            codec = "utf-32-le" if self.order == "<" else "utf-32-be"
            starts = range(0, len(data), self.size)
            return [data[n : n + self.size].decode(codec).rstrip("\0") for n in starts]
        return list(struct.unpack(f"{self.order}{count}{self.format}", data))


class _Array:
    """An array, empty until its state is set."""

    def __init__(self) -> None:
        self.nested: Any = []

    def build(self, _version: Any, shape: Any, dtype: Any, fortran: Any, data: Any) -> None:
        """Read elements into lists of lists."""
        sizes = shape if type(shape) is tuple else (-1,)
        known = all(type(size) is int and size >= 0 for size in sizes)
        if not known or len(sizes) > MOST_DIMENSIONS or type(dtype) is not _DType:
            raise ValueError("an array of it has no shape or type")
        count = math.prod(sizes)
        flat = dtype.read(data, count)
        self.nested = _nest(flat, sizes, fortran=bool(fortran)) if count else []


def _nest(flat: Sequence[Any], sizes: tuple[int, ...], *, fortran: bool) -> Any:
    """Return elements as lists of lists; in Fortran's order the first index varies fastest."""
    if not sizes:
        return flat[0]
    if len(sizes) == 1:
        return list(flat)
    step = math.prod(sizes[1:])
    if fortran:
        parts = [flat[n :: sizes[0]] for n in range(sizes[0])]
    else:
        parts = [flat[n * step : (n + 1) * step] for n in range(sizes[0])]
    return [_nest(part, sizes[1:], fortran=fortran) for part in parts]


def _array_type(*_: Any) -> Any:
    raise ValueError("it makes an array without elements")


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if kind is not _array_type:
        raise ValueError("it makes an array of another class")
    return _Array()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.build(1, shape, dtype, order == "F", data)
    return array


def _scalar(dtype: Any, data: Any) -> Any:
    if type(dtype) is not _DType or dtype.is_object:
        raise ValueError("it makes a number without a type")
    return dtype.read(data, 1)[0]


def _time(*parts: Any) -> str:
    """Parse a time of ten bytes: year, month, day, hour, minute, second, microsecond."""
    (packed,) = parts  # UMLAUT never used a second argument, the time zone
    if not isinstance(packed, bytes) or len(packed) != 10:
        raise ValueError("a time of it has not ten bytes")
    year, month, day, hour, minute, second = struct.unpack(">H5B", packed[:7])
    micros = int.from_bytes(packed[7:], "big")
    month &= 0x7F  # the high bit (fold) distinguishes repeated hours when clocks are set back
    moment = datetime(year, month, day, hour, minute, second, micros)
    return moment.isoformat()


def _encode(text: Any, codec: Any = "latin1") -> bytes:
    if type(text) is not str or codec != "latin1":
        raise ValueError("it encodes what are no bytes")
    return text.encode("latin-1")


def _no_bytes(*given: Any) -> bytes:
    if given:
        raise ValueError("it makes bytes of something")
    return b""


def _ordered_dict(*given: Any) -> dict[str, Any]:
    if given:
        raise ValueError("it makes a dictionary of something")
    return {}


def _entries(items: Sequence[Any]) -> dict[str, Any]:
    """Return items by their keys as text: hashes of numbers could be chosen to collide."""
    keys = items[::2]
    if not all(key is None or isinstance(key, str | int | float) for key in keys):
        raise ValueError("a key of it is neither text nor a number")
    return dict(zip(map(str, keys), items[1::2], strict=True))


_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("datetime", "datetime"): _time,
    ("collections", "OrderedDict"): _ordered_dict,
    ("numpy", "ndarray"): _array_type,
    ("numpy", "dtype"): _DType,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytes"): _no_bytes,
}
"""Replacement of each name in UMLAUT's pickles; NumPy 1 has `numpy.core`."""

_LITERALS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE "
    "BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8".split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}


def _keep(machine: _Interpreter, place: int | None) -> None:
    machine.memo[len(machine.memo) if place is None else place] = machine.stack[-1]


def _fetch(machine: _Interpreter, place: int) -> None:
    machine.stack.append(machine.memo[place])


_STEPS: dict[str, Callable[[_Interpreter, Any], None]] = {
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _keep),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _fetch),
    "APPEND": lambda machine, _: machine.append(machine.last(1)),
    "APPENDS": lambda machine, _: machine.append(machine.above_mark()),
    "LIST": lambda machine, _: machine.stack.append(machine.above_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.above_mark())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.last(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.last(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.last(3))),
    "DICT": lambda machine, _: machine.stack.append(_entries(machine.above_mark())),
    "SETITEM": lambda machine, _: machine.set_items(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.above_mark()),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.last(2)),
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}
"""Opcodes that are not literals; an opcode that is in no table is refused."""


# A limit on data from files.


MOST_VALUES = 20_000_000
"""Most values in a file: ten metrics, ten times a second, for two days."""
VALUES_PER_BYTE, LEAST_VALUES = 4, 1000
"""A number or reference takes a byte or more; only shared data expands to more values."""
CHARACTERS_PER_VALUE = 32
DEEPEST = 64


class Allowance:
    """The number of values that may still be read from a file, counting shared ones repeatedly.

    Attributes:
        left: number of values.
    """

    def __init__(self, values: int = MOST_VALUES) -> None:
        self.left = values

    def plain(self, data: Any, size: int) -> Any:
        """Return data of `json` or `pickled` expanded, with None for numbers that are not finite.

        Args:
            data: lists, tuples, dictionaries, texts and numbers, or objects created by `pickled`.
            size: size of its encoding in bytes.

        Raises:
            ValueError: if it expands to more values than are left, or than its size explains; if it
                is deeper than `DEEPEST`; or if something in it is not a plain value.
        """
        most = min(self.left, VALUES_PER_BYTE * size + LEAST_VALUES)
        counted = Allowance(most)
        try:
            return counted._unfolded(data, DEEPEST)
        finally:
            self.left -= most - max(counted.left, 0)

    def check(self, values: int) -> None:
        """Refuse more values than are left.

        Raises:
            ValueError: if there are more.
        """
        if values > self.left:
            raise ValueError("the file has more values than can be read")

    def spend(self, values: int) -> None:
        """Subtract values.

        Raises:
            ValueError: if fewer are left.
        """
        self.left -= values
        if self.left < 0:
            raise ValueError("it unfolds to more values than can be")

    def _unfolded(self, data: Any, depth: int) -> Any:
        self.spend(1)
        if data is None or isinstance(data, bool):
            return data
        if isinstance(data, float):
            return data if math.isfinite(data) else None
        if isinstance(data, int):
            float(data)  # raises OverflowError: no measured number is as large
            return data
        if isinstance(data, str):
            self.spend(len(data) // CHARACTERS_PER_VALUE)
            return data if data.isascii() else data.encode(errors="backslashreplace").decode()
        if depth == 0:
            raise ValueError(f"it is deeper than {DEEPEST} levels")
        if isinstance(data, dict):
            return {
                self._unfolded(key, depth - 1): self._unfolded(value, depth - 1)
                for key, value in data.items()
            }
        if isinstance(data, list | tuple):
            return [self._unfolded(value, depth - 1) for value in data]
        if not hasattr(data, "nested"):
            raise ValueError("it holds what is no plain value")
        return self._unfolded(data.nested, depth - 1)
