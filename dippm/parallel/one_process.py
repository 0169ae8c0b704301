"""One process for all GPUs of a node: `torch.nn.DataParallel`.

Each step it copies the parameters from the first GPU to the others, runs the copies in threads that
share one interpreter, and in training sums the gradients on the first GPU:

    T = broadcast + tensors · h + max(device, n · launches · h) [+ backward + reduce + tensors · h]

Nothing of the exchange is hidden. h is the host's time of a launch: threads launch one at a time,
and every tensor that is copied is flattened and unflattened by a launch of its own. In the backward
pass each GPU has a thread that needs no interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

from dippm.features.kernels import sequence_of, training_step
from dippm.models.host import Host, wall_ms
from dippm.parallel.collectives import Group
from dippm.parallel.work import BACKWARD_SHARE, HALF
from dippm.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Copied:
    """What is copied to every GPU in each step.

    Attributes:
        size: bytes of all parameters and buffers.
        tensors: how many they are.
    """

    size: float
    tensors: int


def forward_ms(
    group: Group, copied: Copied, device_ms: float, launches: float, launch_ms: float
) -> float:
    """Return the time of a forward pass on all GPUs, in ms.

    Args:
        group: the GPUs.
        copied: to each of them.
        device_ms: time of the kernels on one GPU.
        launches: on one GPU.
        launch_ms: host time of one.
    """
    host = Host(launch_ms, 1.0)
    if group.gpus == 1:
        return wall_ms(device_ms, launches, host)
    copies = group.broadcast_ms(copied.size) + copied.tensors * launch_ms
    return copies + wall_ms(device_ms, group.gpus * launches, host)


def reduce_ms(group: Group, copied: Copied, launch_ms: float) -> float:
    """Return the time in which the gradients are summed on the first GPU, in ms."""
    if group.gpus == 1:
        return 0.0
    return group.broadcast_ms(copied.size) + copied.tensors * launch_ms


def step_ms(one: Prediction, group: Group) -> float:
    """Return the time of a step of a predicted model on all GPUs, in ms.

    A training step is taken as a third forward pass and two thirds backward.
    """
    graph, c = one.source_graph, one.conditions
    costs = [cost for cost in one.operators if cost.node is not None]
    device_ms = sum(cost.time_ms for cost in costs)
    launches = float(sum(cost.kernels for cost in costs))
    counted = one.host is not None and c.timer != "kernel"
    launch_ms = one.host.launch_us / 1e3 if one.host and counted else 0.0
    batch = c.batch if graph.batch_is_symbolic else graph.batch
    parameters = training_step(sequence_of(graph).at_batch(batch), c.precision).parameters
    width = 2 if c.precision in HALF else 4
    copied = Copied(width * sum(parameters), len(parameters))
    assert one.latency_ms is not None
    beside = max(0.0, one.latency_ms - wall_ms(device_ms, launches, Host(launch_ms, 1.0)))
    if c.phase != "train":
        return beside + forward_ms(group, copied, device_ms, launches, launch_ms)
    forward = 1 - BACKWARD_SHARE
    return (
        beside
        + forward_ms(group, copied, forward * device_ms, forward * launches, launch_ms)
        + wall_ms(BACKWARD_SHARE * device_ms, BACKWARD_SHARE * launches, Host(launch_ms, 1.0))
        + reduce_ms(group, copied, launch_ms)
    )
