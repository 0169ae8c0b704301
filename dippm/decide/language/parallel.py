"""Tensor parallelism: the shard of a model on each of n GPUs, and their communication.

Heads, feed-forward widths and the vocabulary are split into n parts; key and value heads too, down
to one per GPU. An all-reduce of the hidden states, by the α–β model of `dippm.decide.parallel`,
follows attention and the feed-forward network (M. Shoeybi et al., "Megatron-LM", 2019). This is an
estimate: DIPPM measured no communication, and none is assumed to overlap with products.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dippm.decide.language.architecture import Attention, Decoder, FeedForward, Layer
from dippm.decide.parallel.collectives import Group
from dippm.devices import Device
from dippm.devices.links import Link, link_of
from dippm.errors import ConditionsError


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
