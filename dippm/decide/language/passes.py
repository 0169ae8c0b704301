"""`Passes`: time, power and energy of one pass of a language model, on one GPU or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from math import ceil, exp, hypot, log, log2
from typing import Any

from dippm.decide.language.architecture import Attention, Decoder, FeedForward, Layer
from dippm.decide.language.clock import KernelClock
from dippm.decide.language.corrections import Corrections
from dippm.decide.language.kernels import KernelList, Pass
from dippm.decide.language.pass_kernels import eager_kernels, engine_kernels
from dippm.decide.language.setting import ServingSetting
from dippm.decide.parallel.plan import Group
from dippm.devices import Device
from dippm.devices.links import Link, link_of
from dippm.errors import ConditionsError
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.host import latency_ms, launch_share
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import COVERAGE, Z90, interval_features, interval_group
from dippm.estimate.models.power import achieved_shares, idle_power_w
from dippm.estimate.models.targets import Estimate, Interval

EXCHANGE_FACTOR = 2.0
"""Factor by which exchanges between GPUs may be slower or faster: DIPPM measured none of them."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of one pass.

    Attributes:
        latency_ms: latency of the pass.
        power_w: mean power of one GPU; None if its power limit is not known.
        energy_j: energy of all GPUs; None likewise.
        launches: number of kernels of one GPU.
        exchange_ms: part of the latency for communication between GPUs.
        host_share: share of the latency that the host determines, 0 to 1.
        parts_ms: time of the kernels of each name on one GPU, longest first.
    """

    latency_ms: Estimate
    power_w: Estimate | None
    energy_j: Estimate | None
    launches: int
    exchange_ms: float
    host_share: float
    parts_ms: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return values, and their intervals by name, as JSON-ready data."""
        estimates = {n: getattr(self, n) for n in ("latency_ms", "power_w", "energy_j")}
        return {
            **{name: found and found.value for name, found in estimates.items()},
            "intervals": {n: asdict(e.interval) for n, e in estimates.items() if e is not None},
            "launches": self.launches,
            "exchange_ms": self.exchange_ms,
            "host_share": self.host_share,
            "parts_ms": dict(self.parts_ms),
        }


class Passes:
    """Cost of passes in one setting.

    Args:
        hybrid: the predictor.
        decoder: the whole model.
        setting: setting in which it runs.
        corrections: see `KernelClock`.

    Raises:
        ConditionsError: if the model cannot be split over so many GPUs, or no link connects them.
    """

    def __init__(
        self,
        hybrid: Hybrid,
        decoder: Decoder,
        setting: ServingSetting,
        corrections: Corrections | None,
    ) -> None:
        self.hybrid, self.setting = hybrid, setting
        self.part = part_of(decoder, setting.gpus)
        device = setting.conditions.device
        self._group = group_of(device, setting.gpus, setting.link)
        self._clock = KernelClock(hybrid, setting.conditions, setting.software, corrections)
        self._engine: KernelClock | None = None  # clock of engine kernels, which bound eager ones
        if setting.software == "eager":
            self._engine = KernelClock(hybrid, setting.conditions, "engine", corrections)
        self._prefill = OrderedSurface(lambda b, t: self._device_ms(Pass.prefill(b, t)))
        self._scored = OrderedSurface(lambda b, t: self._device_ms(Pass(b, t, t, t)))
        self._decode = OrderedSurface(lambda b, t: self._device_ms(Pass.decode(b, t)))
        self.host_use, self._host = hybrid.host_of(setting.conditions)

    def kernels(self, done: Pass) -> KernelList:
        """Return the kernels of one GPU in a pass."""
        s = self.setting
        if s.software == "eager":
            return eager_kernels(self.part, done, s.weights)
        return engine_kernels(self.part, done, s.weights, cache_width=s.cache_width)

    def cost(self, done: Pass) -> PassCost:
        """Return the cost of a pass: prefill, with logits of one or all tokens, or decode."""
        listed = self.kernels(done)
        surface = self._scored if done.scored > 1 else self._prefill
        surface = self._decode if done.is_decode else surface
        device_ms = surface.at(done.batch, done.context)
        timer = "kernel" if self.setting.software == "graph" and done.is_decode else "wall"
        launches = listed.launches
        work = device_ms, float(launches), 0.0, timer, self._host
        total = latency_ms(*work)  # type: ignore[arg-type]
        share = launch_share(*work)  # type: ignore[arg-type]
        exchanged = exchange_ms(self._group, listed.reduced_bytes)
        found = self._clock.times(listed)
        learned = self.hybrid.config["seen"]["devices"]
        device = self.setting.conditions.device
        group, gpu_novelty = interval_group(device, learned, found.novelty)
        described = interval_features(
            found.spread,
            0.0 if timer == "kernel" else launches * self._host.launch_ms / total,
            found.extrapolated,
            False,
            launches,
            found.novelty.on_any,
            gpu_novelty,
        )
        half = self.hybrid.intervals.half_width(described, group)
        half = hypot(
            half, Z90 * self.host_use.log_sd * share, log(EXCHANGE_FACTOR) * exchanged / total
        )
        latency = _around(total, half)
        power, energy = self._power(listed, device_ms, latency, half)
        parts = dict(sorted(found.by_name.items(), key=lambda item: -item[1]))
        return PassCost(latency, power, energy, launches, exchanged, share, parts)

    def _device_ms(self, done: Pass) -> float:
        """Return the device time of a pass in ms; eager is never faster than an engine.

        An engine does the same work in fewer, fused kernels. Its kernels take the shared law with
        corrections from operators of serving engines; eager kernels take the law with the offsets
        of this GPU's table, which can make matrix products alone faster (L4, RTX 3090, RTX 4090).
        """
        listed = self.kernels(done)
        ms = self._clock.times(listed).ms
        if self._engine is not None:
            fused = engine_kernels(self.part, done, self.setting.weights)
            ms = max(ms, self._engine.times(fused).ms)
        return ms + exchange_ms(self._group, listed.reduced_bytes)

    def power_w(self, done: Pass, latency_ms: float) -> float:
        """Return the mean power of one GPU in W for a pass with a measured latency.

        Raises:
            DeviceError: if the power limit of the GPU is not known.
        """
        surface = self._decode if done.is_decode else self._prefill
        device_ms = min(latency_ms, surface.at(done.batch, done.context))
        return self._watts(self.kernels(done), device_ms, latency_ms)

    def _watts(self, listed: KernelList, device_ms: float, latency_ms: float) -> float:
        table = KernelTable.of_kernels(listed.all())
        shares = achieved_shares(table, 1, self._clock.view, device_ms)
        device = self.setting.conditions.device
        return self.hybrid.power.power_w(device, device_ms / latency_ms, shares)

    def _power(
        self, listed: KernelList, device_ms: float, latency: Estimate, half: float
    ) -> tuple[Estimate | None, Estimate | None]:
        device, model = self.setting.conditions.device, self.hybrid.power
        if device.power_limit_w is None:
            return None, None
        watts = self._watts(listed, device_ms, latency.value)
        error = Z90 * model.log_error
        whole = _around(watts, error)
        low = max(whole.interval.low, idle_power_w(device))
        high = min(whole.interval.high, device.power_limit_w)
        power = Estimate(watts, Interval(low, high, COVERAGE))
        joules = self.setting.gpus * watts * latency.value / 1e3
        return power, _around(joules, hypot(error, half))


def _around(value: float, half: float) -> Estimate:
    return Estimate(value, Interval(value / exp(half), value * exp(half), COVERAGE))


# Times that are monotonic over batch and tokens, whatever the network has learned.
#
# A longer sequence or a larger batch never takes less time, and a batch takes no longer than its
# halves one after the other, so the throughput never falls. The law is evaluated at powers of two
# from 1 and LEAST_TOKENS on, and each value is clipped to the bounds that its smaller neighbours
# give. Between them the logarithm is linear, so its slope over the batch lies between 0 and 1. Only
# smaller points bound a point, so an answer does not depend on what else was asked.


LEAST_TOKENS = 64
"""Number of tokens below which the time is constant."""


class OrderedSurface:
    """A quantity that is monotonic over (batch, tokens), see above.

    Args:
        raw: (batch, tokens) → value above 0, called at powers of two only.
    """

    def __init__(self, raw: Callable[[int, int], float]) -> None:
        self._raw = raw
        self._known: dict[tuple[int, int], float] = {}

    def at(self, batch: int, tokens: int) -> float:
        """Return the value at a batch and a number of tokens per sequence."""
        x, y = log2(batch), log2(max(tokens, LEAST_TOKENS) / LEAST_TOKENS)
        low, below = int(x), int(y)
        rows = [self._along(low, below, y)]
        if x > low:
            rows.append(self._along(low + 1, below, y))
        return exp(_between(rows, x - low))

    def _along(self, power: int, below: int, y: float) -> float:
        values = [log(self._point(power, below))]
        if ceil(y) > below:
            values.append(log(self._point(power, below + 1)))
        return _between(values, y - below)

    def _point(self, power: int, step: int) -> float:
        """Return the monotonic value at batch 2^power and LEAST_TOKENS · 2^step tokens."""
        key = power, step
        if key not in self._known:
            value = self._raw(1 << power, LEAST_TOKENS << step)
            least = self._point(power, step - 1) if step else 0.0
            if power:  # between the time of half the batch, and twice that time
                half = self._point(power - 1, step)
                value = min(max(value, half), 2.0 * half)
            self._known[key] = max(value, least)
        return self._known[key]


def _between(values: list[float], share: float) -> float:
    if len(values) == 1:
        return values[0]
    return (1.0 - share) * values[0] + share * values[1]


# Tensor parallelism: the shard of a model on each of n GPUs, and their communication.
#
# Heads, feed-forward widths and the vocabulary are split into n parts; key and value heads too,
# down to one per GPU. An all-reduce of the hidden states, by the α–β model of
# `dippm.decide.parallel`, follows attention and the feed-forward network (M. Shoeybi et al.,
# "Megatron-LM", 2019). This is an estimate: DIPPM measured no communication, and none is assumed to
# overlap with products.


def part_of(decoder: Decoder, gpus: int) -> Decoder:
    """Return the shard of a model on each GPU.

    Raises:
        ConditionsError: if heads or widths are not divisible by the number of GPUs.
    """
    if gpus == 1:
        return decoder
    made: dict[Layer, Layer] = {}
    for layer in decoder.layers:
        if layer not in made:
            made[layer] = replace(
                layer,
                attention=_attention(layer.attention, gpus),
                feed_forward=_feed_forward(layer.feed_forward, gpus),
            )
    return replace(
        decoder,
        vocabulary=-(-decoder.vocabulary // gpus),
        layers=tuple(made[layer] for layer in decoder.layers),
    )


def _attention(a: Attention, gpus: int) -> Attention:
    heads = _cut("heads of attention", a.heads, gpus)
    if a.latent is not None:
        return replace(a, heads=heads, kv_heads=heads)
    if a.kv_heads > gpus:
        return replace(a, heads=heads, kv_heads=_cut("heads of keys", a.kv_heads, gpus))
    if gpus % a.kv_heads:
        raise _uneven("heads of keys", a.kv_heads, gpus)
    return replace(a, heads=heads, kv_heads=1)


def _feed_forward(network: FeedForward, gpus: int) -> FeedForward:
    return replace(
        network,
        width=_cut("hidden width of the feed-forward network", network.width, gpus),
        shared_width=_cut("width of the shared experts", network.shared_width, gpus),
    )


def _cut(what: str, size: int, gpus: int) -> int:
    if size % gpus:
        raise _uneven(what, size, gpus)
    return size // gpus


def _uneven(what: str, size: int, gpus: int) -> ConditionsError:
    fitting = [str(n) for n in range(1, gpus) if size % n == 0]
    return ConditionsError(
        f"the {what} ({size:,}) cannot be cut into {gpus} parts",
        f"Give tensor_parallel={fitting[-1]} or another divisor.",
    )


def group_of(device: Device, gpus: int, link: str | None) -> Group | None:
    """Return the group of GPUs that share a model; None for one GPU.

    Raises:
        ConditionsError: if the link does not connect so many GPUs.
        DeviceError: if the links of the device are not known.
        UnknownNameError: if there is no such kind of link.
    """
    if gpus == 1:
        return None
    found: Link = link_of(device, link)
    if found.joins is not None and gpus > found.joins:
        raise ConditionsError(
            f"{found.name} of {device.name} joins at most {found.joins} GPUs, not {gpus}",
            f"Give tensor_parallel={found.joins} or less; models across servers are not estimated.",
        )
    return Group(gpus, gpus, found)


def exchange_ms(group: Group | None, reduced_bytes: Iterable[float]) -> float:
    """Return the time of all exchanges of a pass in ms.

    Args:
        group: the GPUs; None for one GPU.
        reduced_bytes: bytes of each all-reduce.
    """
    if group is None:
        return 0.0
    times: dict[float, float] = {}
    total = 0.0
    for size in reduced_bytes:
        if size not in times:
            times[size] = group.all_reduce_ms(size)
        total += times[size]
    return total
