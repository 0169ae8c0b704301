"""Laws that any user would notice, over models × GPUs × precisions × batches × slices.

Run: python -m benchmarks.physics_sweep [--models torchvision:resnet50,...] [--checkpoint FOLDER]

It prints how often each law was tried and violated, with the worst case. A law has a tolerance,
because a predictor is learned: what lies within is no surprise to anyone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import dippm
from dippm.devices import Device, MigProfile, all_devices, find
from dippm.estimate import pretrained
from dippm.estimate.conditions import (
    EIGHT_BITS,
    PRECISIONS,
    Conditions,
    Runtime,
    supported_precisions,
)
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.engine_law import as_pytorch, as_run
from dippm.estimate.models.memory import MIB
from dippm.estimate.models.targets import Estimates
from dippm.model.graph import ModelGraph

MODELS = (
    "torchvision:resnet50",
    "torchvision:mobilenet_v2",
    "torchvision:vgg16",
    "torchvision:densenet121",
    "torchvision:efficientnet_b0",
    "torchvision:vit_b_16",
    "torchvision:swin_t",
    "torchvision:convnext_tiny",
    "torchvision:regnet_y_8gf",
)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
RECURRENT = list(KERNEL_CLASSES).index("recurrent")
TOLERANCE = 0.02
SAME_NETWORK = 0.1
"""Tolerance of one network that two frameworks wrote. An exporter also works out what depends on
weights alone, so that networks of that kind which wait for the host are faster."""
EXPORTED = "torchvision:resnet50,torchvision:vit_b_16,torchvision:convnext_tiny"
"""Networks that are asked as their export to ONNX as well."""
FASTER = (
    ("tf32", "fp32"),
    ("fp32", "fp32-ieee"),
    ("fp16", "fp32"),
    ("bf16", "fp32"),
    ("fp16", "amp"),
    ("bf16", "amp-bf16"),
    ("int8", "fp16"),
    ("fp8", "fp16"),
)
"""The first is never slower than the second. Of fp16 and fp32 that holds where halves have a unit
of their own: on a TITAN Xp, 24 of 32 converted models ran longer."""

SIBLINGS = (
    ("H200", "H100"),
    ("B200", "H200"),
    ("A100-80GB", "A100-40GB"),
    ("A100-PCIe-80GB", "A100-PCIe-40GB"),
    ("A100-PCIe-80GB", "A30"),
    ("RTX-3090", "RTX-3080"),
    ("RTX-3090-Ti", "RTX-3090"),
    ("RTX-4090", "RTX-3090-Ti"),
    ("RTX-5090", "RTX-4090"),
    ("RTX-PRO-6000", "RTX-5090"),
    ("L40S", "L4"),
    ("V100-SXM2-32GB", "V100-PCIe-32GB"),
)
"""The first has more of everything than the second, so it is never slower."""

Place = tuple[str, str | None, str, int]
"""Device, slice, precision, batch."""


@dataclass
class Tally:
    """How a law fared: `worst` is the largest ratio of what should not be larger."""

    tried: int = 0
    violated: int = 0
    worst: float = 0.0
    example: str = ""

    def add(self, ratio: float, example: str, tolerance: float) -> None:
        """Count one case; above 1 + tolerance it violates the law."""
        self.tried += 1
        self.violated += ratio > 1 + tolerance
        if ratio > self.worst:
            self.worst, self.example = ratio, example


@dataclass
class Sweep:
    """The answers for one model, and what can be asked about them.

    Attributes:
        name: of the model.
        answers: by place.
        rooflines: least time of the kernels in ms, by place.
        compiled: the answers in compiled mode, by place.
        recurrent: device time of recurrent layers in compiled mode over that in eager mode.
        kept: 99 % bound of the memory without `torch.no_grad` in MiB, by place.
        other: latency of the same network as another framework has it, over that of this one, by
            place and mode.
        held: of an engine, the most that it may take in ms: compiled PyTorch's latency and its own
            interval on top, by place.
    """

    name: str
    answers: dict[Place, Estimates] = field(default_factory=dict)
    rooflines: dict[Place, float] = field(default_factory=dict)
    compiled: dict[Place, Estimates] = field(default_factory=dict)
    recurrent: dict[Place, float] = field(default_factory=dict)
    kept: dict[Place, float] = field(default_factory=dict)
    other: dict[tuple[Place, str], float] = field(default_factory=dict)
    held: dict[Place, float] = field(default_factory=dict)

    def value(self, place: Place, target: str = "latency_ms") -> float | None:
        """Return a predicted value; None if the place or the target has none."""
        answer = self.answers.get(place)
        estimate = answer.values.get(target) if answer else None
        return estimate.value if estimate else None

    def ratio(self, of: Place, to: Place, target: str = "latency_ms") -> float | None:
        """Return how much larger the first value is than the second."""
        first, second = self.value(of, target), self.value(to, target)
        return None if first is None or second is None else first / second


def sweep(
    predictor: Any,
    graph: ModelGraph,
    name: str,
    points: Sequence[Conditions],
    other: ModelGraph | None = None,
) -> Sweep:
    """Predict a model at every point.

    Args:
        predictor: of a checkpoint.
        graph: of the model.
        name: of the model.
        points: conditions.
        other: the same network as another framework has it, if there is one.
    """
    found = Sweep(name)
    tables: dict[str, KernelTable] = {}
    for c, answer in zip(points, predictor.predict_many(graph, points), strict=True):
        place = (c.device.name, c.mig and c.mig.name, c.precision, c.batch)
        if other is not None and "latency_ms" in answer.values:
            [elsewhere] = predictor.predict_many(other, [c])
            latency_ms = elsewhere.values["latency_ms"].value
            found.other[place, c.mode] = latency_ms / answer.values["latency_ms"].value
        if c.mode == "compiled":
            found.compiled[place] = answer
            eager_ms, compiled_ms = (
                predictor.class_ms(graph, c.replace(mode=mode))[0][RECURRENT]
                for mode in ("eager", "compiled")
            )
            if eager_ms:
                found.recurrent[place] = compiled_ms / eager_ms
            continue
        found.answers[place] = answer
        if c.runtime != "pytorch":
            run = as_run(c)
            if run.precision not in tables:  # products of float32 are TF32 where the GPU has it
                tables[run.precision] = KernelTable.of_engine(graph, run.precision)
            found.rooflines[place] = _at_peak_ms(tables[run.precision], run)
            own = answer.values["latency_ms"]
            [compiled] = predictor.predict_many(graph, [as_pytorch(c)])
            factor = own.interval.high / own.value
            found.held[place] = factor * compiled.values["latency_ms"].value
            continue
        found.kept[place] = predictor.memory_bound_mb(graph, c.replace(autograd=True))
        if c.precision not in tables:
            tables[c.precision] = KernelTable.of(graph, c.precision)
        table = tables[c.precision]
        found.rooflines[place] = _at_peak_ms(table, c)
    return found


def points(
    devices: Iterable[Device],
    batches: Sequence[int],
    precisions: Sequence[str],
    slices: bool,
    runtime: Runtime = "pytorch",
) -> list[Conditions]:
    """Return every point that the hardware has."""
    found = []
    for device in devices:
        has = [p for p in supported_precisions(device, runtime) if p in precisions]
        places: tuple[MigProfile | None, ...] = (None, *(device.mig_profiles if slices else ()))
        for mig, precision, batch in product(places, has, batches):
            found.append(
                Conditions(
                    device=device, batch=batch, precision=precision, mig=mig, runtime=runtime
                )
            )
    return found


def wider_units(s: Sweep) -> Iterator[tuple[float, str]]:
    """A format of less work or fewer bytes is never slower."""
    for (device, mig, precision, batch), (fast, slow) in product(s.answers, FASTER):
        rates = find(device).peak_tflops
        is_law = slow != "fp32" or fast == "tf32" or rates.get(fast, 0.0) > rates["fp32"]
        if precision != fast or not is_law:
            continue
        ratio = s.ratio((device, mig, fast, batch), (device, mig, slow, batch))
        if ratio is not None:
            yield ratio, f"{s.name} batch {batch} on {device} {mig or ''}: {fast} over {slow}"


def siblings(s: Sweep) -> Iterator[tuple[float, str]]:
    """A GPU with more of everything is never slower."""
    named = [(find(more).name, find(less).name) for more, less in SIBLINGS]
    for (device, mig, precision, batch), (more, less) in product(s.answers, named):
        ratio = s.ratio((more, None, precision, batch), (less, None, precision, batch))
        if device == more and mig is None and ratio is not None:
            yield ratio, f"{s.name} batch {batch} {precision}: {more} over {less}"


def larger_batch(s: Sweep) -> Iterator[tuple[float, str]]:
    """A larger batch is never done sooner."""
    for place, larger in _next_batches(s):
        ratio = s.ratio(place, larger)
        if ratio is not None:
            yield ratio, f"{_shown(s, place)} over batch {larger[3]}"


def per_sample(s: Sweep) -> Iterator[tuple[float, str]]:
    """A sample of a larger batch takes no longer."""
    for place, larger in _next_batches(s):
        ratio = s.ratio(larger, place)
        if ratio is not None:
            yield ratio * place[3] / larger[3], f"{_shown(s, larger)} over batch {place[3]}"


def memory(s: Sweep) -> Iterator[tuple[float, str]]:
    """A larger batch needs no less memory."""
    for place, larger in _next_batches(s):
        ratio = s.ratio(place, larger, "memory_mb")
        if ratio is not None:
            yield ratio, f"{_shown(s, place)} over batch {larger[3]}"


def autograd(s: Sweep) -> Iterator[tuple[float, str]]:
    """What keeps tensors for a backward pass needs no less memory."""
    for place, kept_mb in s.kept.items():
        bound_mb = s.answers[place].memory_bound_mb
        if bound_mb is not None:
            yield bound_mb / kept_mb, _shown(s, place)


def slices(s: Sweep) -> Iterator[tuple[float, str]]:
    """A slice with less of everything, or the same, is never faster."""
    for device, mig, precision, batch in s.answers:
        if mig is None:
            continue
        profiles = {p.name: p for p in find(device).mig_profiles}
        mine = profiles[mig]
        for other in (None, *profiles.values()):
            less = other is None or (
                mine.sm_count <= other.sm_count
                and mine.memory_slices <= other.memory_slices
                and mine != other
            )
            larger = (device, other and other.name, precision, batch)
            ratio = s.ratio(larger, (device, mig, precision, batch))
            if less and ratio is not None:
                where = f"{s.name} batch {batch} {precision} on {device}"
                yield ratio, f"{where}: {other or 'the whole'} over {mig}"


def power(s: Sweep) -> Iterator[tuple[float, str]]:
    """Power stays below the limit of the board, and above none."""
    for place in s.answers:
        value = s.value(place, "power_w")
        if value is not None:
            limit = find(place[0]).known("power_limit_w")
            yield max(value / limit, 0.02 * limit / max(value, 1e-9)), _shown(s, place)


def energy(s: Sweep) -> Iterator[tuple[float, str]]:
    """Energy is power times time."""
    for place in s.answers:
        joules, watts = s.value(place, "energy_j"), s.value(place, "power_w")
        time_ms = s.value(place)
        if joules and watts and time_ms:
            product_j = watts * time_ms / 1e3
            yield max(joules / product_j, product_j / joules), _shown(s, place)


def roofline(s: Sweep) -> Iterator[tuple[float, str]]:
    """A model takes no less than its kernels at peak rates."""
    for place, least_ms in s.rooflines.items():
        value = s.value(place)
        if value:
            yield least_ms / value, _shown(s, place)


def compiled_kernels(s: Sweep) -> Iterator[tuple[float, str]]:
    """A compiled model takes no longer than an eager one; only convolutions in groups may."""
    for place, answer in s.compiled.items():
        eager = s.value(place)
        if eager and "latency_ms" in answer.values:
            yield answer.values["latency_ms"].value / eager, f"{_shown(s, place)}: compiled"


def compiled_recurrent(s: Sweep) -> Iterator[tuple[float, str]]:
    """A recurrent layer takes as long compiled as it takes eagerly: the same library runs it."""
    for place, ratio in s.recurrent.items():
        yield max(ratio, 1 / ratio), f"{_shown(s, place)}: compiled"


def engines(s: Sweep) -> Iterator[tuple[float, str]]:
    """An engine takes no longer than compiled PyTorch by more than its interval."""
    for place, most_ms in s.held.items():
        value = s.value(place)
        if value:
            yield value / most_ms, _shown(s, place)


def same_network(s: Sweep) -> Iterator[tuple[float, str]]:
    """A network takes the same time whichever framework wrote it."""
    for (place, mode), ratio in s.other.items():
        yield max(ratio, 1 / ratio), f"{_shown(s, place)}, {mode}"


LAWS: dict[str, Callable[[Sweep], Iterator[tuple[float, str]]]] = {
    "wider unit never slower": wider_units,
    "larger sibling never slower": siblings,
    "larger batch never sooner": larger_batch,
    "no more per sample in a larger batch": per_sample,
    "no less memory at a larger batch": memory,
    "no less memory without no_grad": autograd,
    "smaller slice never faster": slices,
    "power between idle and limit": power,
    "energy is power x time": energy,
    "no less than the roofline": roofline,
    "compiled never slower": compiled_kernels,
    "compiled recurrent = eager": compiled_recurrent,
    "engine never slower than compiled": engines,
    "same network, another framework": same_network,
}
LEAST_TOLERANCE = {"same network, another framework": SAME_NETWORK}
"""Of laws that are no law of nature; others have the one that is asked for."""
OF_COMPILED = ("compiled never slower", "compiled recurrent = eager")
OF_ENGINES = (
    "wider unit never slower",
    "larger sibling never slower",
    "larger batch never sooner",
    "no less memory at a larger batch",
    "power between idle and limit",
    "energy is power x time",
    "no less than the roofline",
    "engine never slower than compiled",
)


HOLDING = tuple(
    law
    for law in LAWS
    if law not in ("no more per sample in a larger batch", *OF_COMPILED, *LEAST_TOLERANCE)
    and law != "engine never slower than compiled"
)
"""Laws that have to hold in eager mode. A sample may take longer in a larger batch, where the batch
leaves the second-level cache; that more of them do is for the next training."""


def tallies(sweeps: Iterable[Sweep], tolerance: float = TOLERANCE) -> dict[str, Tally]:
    """Return how each law fared."""
    found = {name: Tally() for name in LAWS}
    for one in sweeps:
        for name, law in LAWS.items():
            for ratio, example in law(one):
                found[name].add(ratio, example, max(tolerance, LEAST_TOLERANCE.get(name, 0.0)))
    return found


def _at_peak_ms(table: KernelTable, c: Conditions) -> float:
    """Return the time of all kernels at peak rates, whatever the predictor says of their class.

    Bytes that fit into the second-level cache may be there already: they take no time here.
    """
    view = DeviceView.of(c.device, c.mig)
    flops, read, write, weight = table.quantities(c.batch)[:, :4].T
    moved = read + write + weight
    cached = moved <= (c.device.l2_mb or 0.0) * MIB
    memory = np.where(cached, 0.0, moved / view.bytes_per_ms)
    return float(np.maximum(flops / view.peak_flops_per_ms[table.unit], memory).sum())


def _next_batches(s: Sweep) -> Iterator[tuple[Place, Place]]:
    by_place: dict[tuple[str, str | None, str], list[int]] = {}
    for device, mig, precision, batch in s.answers:
        by_place.setdefault((device, mig, precision), []).append(batch)
    for place, batches in by_place.items():
        for batch, larger in pairwise(sorted(batches)):
            yield (*place, batch), (*place, larger)


def _shown(s: Sweep, place: Place) -> str:
    device, mig, precision, batch = place
    return f"{s.name} batch {batch} {precision} on {' '.join(filter(None, (device, mig)))}"


def read_onnx_export(name: str) -> ModelGraph:
    """Return the graph of a network of torchvision as its export to ONNX has it.

    Norms are kept: folded into convolutions, as for inference, they leave another network, whose
    convolutions have a bias: with autocast it launches up to a third more, without it takes 0.7 to
    0.9 of the time at batch 16. Vectors of weights are random: of those that are equal, as biases
    of new layers, a file has one.
    """
    import torch
    from torchvision.models import get_model

    module = get_model(name.removeprefix("torchvision:")).eval()
    for parameter in module.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(
            module,
            (torch.zeros(2, 3, 224, 224),),
            path,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            input_names=["images"],
            dynamic_axes={"images": {0: "batch"}},
        )
        return dippm.read_graph(path)


def main() -> None:
    """Print the table of laws."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--devices", default="")
    options.add_argument("--batches", default=",".join(map(str, BATCHES)))
    options.add_argument("--exported", default=EXPORTED)
    options.add_argument("--checkpoint")
    options.add_argument("--tolerance", type=float, default=TOLERANCE)
    asked = options.parse_args()
    predictor = pretrained.load(asked.checkpoint).predictor
    devices = [find(d) for d in asked.devices.split(",") if d] or all_devices()
    where = points(devices, [int(b) for b in asked.batches.split(",")], PRECISIONS, slices=True)
    where += [c.replace(mode="compiled") for c in where if c.mig is None]
    batches = [int(b) for b in asked.batches.split(",")]
    formats = (*PRECISIONS, *EIGHT_BITS)
    engine = points(devices, batches, formats, slices=False, runtime="tensorrt")
    sweeps = []
    for name in asked.models.split(","):
        other = read_onnx_export(name) if name in asked.exported.split(",") else None
        graph = dippm.read_graph(name)
        sweeps.append(sweep(predictor, graph, name, where, other))
        sweeps.append(sweep(predictor, graph, f"{name} in tensorrt", engine))
        print(f"{name}: {len(where):,} points", flush=True)
    print(f"{'law':38}{'tried':>9}{'violated':>9}{'worst':>8}  worst case")
    for law, tally in tallies(sweeps, asked.tolerance).items():
        print(f"{law:38}{tally.tried:9,}{tally.violated:9,}{tally.worst:8.2f}  {tally.example}")


if __name__ == "__main__":
    main()
