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

from dippm.decide.parallel.collectives import Group
from dippm.decide.parallel.work import HALF, OneGpu
from dippm.estimate.features.kernels import sequence_of, training_step
from dippm.estimate.models.host import Host, wall_ms
from dippm.estimate.prediction import Prediction


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

    Launches of a training step are shared between its passes as their time is.
    """
    graph, c = one.source_graph, one.conditions
    alone = OneGpu.of(one)
    device_ms, launches, launch_ms = alone.device_ms, float(alone.launches), alone.launch_ms
    batch = c.batch if graph.batch_is_symbolic else graph.batch
    parameters = training_step(sequence_of(graph).at_batch(batch), c.precision).parameters
    width = 2 if c.precision in HALF else 4
    copied = Copied(width * sum(parameters), len(parameters))
    beside = alone.beside_ms + alone.update_ms
    if c.phase != "train":
        return beside + forward_ms(group, copied, device_ms, launches, launch_ms)
    first_ms = sum(share.forward_ms for share in alone.shares.values())
    forward = first_ms / max(device_ms, 1e-12)
    back = wall_ms(device_ms - first_ms, (1 - forward) * launches, Host(launch_ms, 1.0))
    first = forward_ms(group, copied, first_ms, forward * launches, launch_ms)
    return beside + first + back + reduce_ms(group, copied, launch_ms)
