"""`Family`: the contract of one kind of architecture, and `Workload`: one member with its sizes.

To add a family: write `dataset/families/<name>.py` with a `FAMILY` and its modules in
`dataset/families/networks/`, list it in `dataset/families/registry.py`, and let
`python -m dataset.families.costs` count what its members cost.
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
"""Scalars by name; the family knows which name has which type."""
Sizes = tuple[int, ...]
Kind = Literal["model", "operator"]
ZOOS = ("timm", "hf")
"""Families whose members somebody else wrote: models go by the name that their zoo gives them."""


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input of a model.

    Attributes:
        name: of the argument of `forward`; positional order is the order of the list.
        shape: without the batch.
        high: 0 for normal floats; else whole numbers (int64) below it, such as token ids.
    """

    name: str
    shape: Sizes
    high: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of architecture, or one class of operator.

    Attributes:
        name: for instance "resnet".
        kind: "model" or "operator".
        about: one line, with the paper that the architecture comes from.
        grid: every member's parameters, in a fixed order, all distinct.
        sizes: sizes of one sample that suit a member, in a fixed order: (height, width) of images,
            (frames, height, width) of video, (tokens,) of text, the operator's own shape.
        build: parameters and sizes → module in evaluation mode. Under `torch.device("meta")` it
            must touch no data, so that weights can be made on any device without initialising.
        inputs: parameters and sizes → inputs of `forward`, which takes them in this order.
        images: whether its input is an image, so that `channels_last` means something.
        largest_batch: more is never planned.
        trains: whether a training step makes sense.
        compiles: whether `torch.compile` is tried.
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
    """One member of a family with the sizes of one sample: what is built once and run often."""

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
        """Read what `model` printed.

        Raises:
            ValueError: if it is not of that form.
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
