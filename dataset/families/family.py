"""`Family`: the interface of a kind of architecture, and `Workload`: one member with its sizes.

To add a family: write `dataset/families/<name>.py` with a `FAMILY` and its modules in
`dataset/families/networks/`, list it in `dataset/families/registry.py`, and count the costs of its
members by `python -m dataset.families.costs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Scalar = int | float | str | bool
Parameters = Mapping[str, Any]
"""Scalars by name, with types defined by the family."""
Sizes = tuple[int, ...]
Kind = Literal["model", "operator"]
ZOOS = ("timm", "hf")
"""Families from model zoos, whose models keep their zoo's names."""


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input of a model.

    Attributes:
        name: name of the argument of `forward`, in positional order.
        shape: shape without the batch.
        high: 0 for normal floats, else the upper bound of integers (int64) such as token ids.
    """

    name: str
    shape: Sizes
    high: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of architecture, or one class of operator.

    Attributes:
        name: its name, such as "resnet".
        kind: "model" or "operator".
        about: description in one line, with the paper of the architecture.
        grid: function that returns the distinct parameters of all members, in a fixed order.
        sizes: function from a member to suitable sizes of one sample, in a fixed order: (height,
            width) of images, (frames, height, width) of video, (tokens,) of text, an operator's
            shape.
        build: parameters and sizes → module in evaluation mode. Under `torch.device("meta")` it
            must not access data, so that weights can be allocated without initialisation.
        inputs: parameters and sizes → inputs of `forward`, in positional order.
        images: whether its input is an image, so that `channels_last` applies.
        largest_batch: maximum planned batch.
        trains: whether training steps are planned.
        compiles: whether `torch.compile` is planned.
    """

    name: str
    kind: Kind
    about: str
    grid: Callable[[], Sequence[Parameters]]
    sizes: Callable[[Parameters], Sequence[Sizes]]
    build: Callable[[Parameters, Sizes], torch.nn.Module]
    inputs: Callable[[Parameters, Sizes], tuple[InputTensor, ...]]
    images: bool = False
    largest_batch: int = 1024
    trains: bool = True
    compiles: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """One member of a family with the sizes of one sample, which is built once and run often."""

    family: str
    parameters: Parameters
    sizes: Sizes

    @property
    def architecture(self) -> str:
        """Name without sizes: "resnet(block=basic,depth=18,width=64)", "timm:resnet50"."""
        if self.family in ZOOS:
            return f"{self.family}:{self.parameters['name']}"
        inside = ",".join(f"{k}={_text(v)}" for k, v in sorted(self.parameters.items()))
        return f"{self.family}({inside})"

    @property
    def model(self) -> str:
        """Name with sizes: "own:resnet(depth=18,width=64)@224x224", "timm:resnet50@224"."""
        maker = "" if self.family in ZOOS else "own:"
        return f"{maker}{self.architecture}@{'x'.join(map(str, self.sizes))}"

    @classmethod
    def parse(cls, model: str) -> Workload:
        """Return the workload for a name from `model`.

        Raises:
            ValueError: if the name has another form.
        """
        head, _, sizes = model.removeprefix("own:").rpartition("@")
        zoo, _, name = head.partition(":")
        if zoo in ZOOS and name and sizes:
            return cls(zoo, {"name": name}, tuple(int(size) for size in sizes.split("x")))
        family, _, inside = head.partition("(")
        if not family or not inside.endswith(")") or not sizes:
            raise ValueError(f"{model!r} is not 'own:family(name=value,...)@sizes'")
        pairs = [pair.partition("=") for pair in filter(None, inside[:-1].split(","))]
        parameters = {name: _scalar(value) for name, _, value in pairs}
        return cls(family, parameters, tuple(int(size) for size in sizes.split("x")))


def _text(value: Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scalar(text: str) -> Scalar:
    try:
        value: Scalar = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value
