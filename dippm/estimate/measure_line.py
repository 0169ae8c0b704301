"""The line of `dippm measure` that would check a prediction, on a machine that has its GPU."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dippm.base import files
from dippm.devices import all_cpus, all_devices, all_hosts
from dippm.errors import DippmError
from dippm.estimate.conditions import Conditions
from dippm.model.frontends import InputSpec, registry

TORCH = "torch"


@dataclass(frozen=True, slots=True)
class Asked:
    """The model of a question, as far as a measurement needs it.

    Attributes:
        model: path or name of the model; "" for an object.
        input: sizes without the batch, as text; "" for the model's own.
        runtime: runtime of a measurement: "torch", "onnxruntime", ...; "" for an object, and for a
            file whose format can no longer be recognised.
        trust: whether the file may run code when it is read.
        checkpoint: checkpoint that the user named; "" without one.
    """

    model: str
    input: str = ""
    runtime: str = ""
    trust: bool = False
    checkpoint: str = ""

    @classmethod
    def of(
        cls, source: Any, input: Any = None, *, trust: bool = False, checkpoint: str | None = None
    ) -> Asked:
        """Return the model of a prediction from the arguments of its call."""
        named = checkpoint or ""
        if not isinstance(source, str | os.PathLike):
            return cls("", checkpoint=named)
        model = os.fspath(source)
        try:
            framework = registry.find(files.expand_home(model)).framework
        except DippmError:  # the file went away meanwhile, or only `framework=` knows it
            framework = ""
        runtime = TORCH if framework == "pytorch" else registry.RUNTIMES.get(framework, framework)
        return cls(str(model), str(InputSpec.parse(input)), runtime, trust, named)


def measure_line(asked: Asked | None, c: Conditions, frameworks: Sequence[str]) -> tuple[str, str]:
    """Return the line that would check a prediction, or "" and the reason why not.

    Args:
        asked: source of the model; None if it is not known.
        c: conditions of the prediction.
        frameworks: frameworks whose runs the checkpoint learned from.
    """
    if asked is None or not asked.model:
        return "", _cannot_measure(c) or (
            "a model in memory has no file that a command could be given; in Python, "
            "dippm.verify(prediction, dippm.measure_model(module, ...)) checks it"
        )
    reason = _cannot(asked, c, frameworks)
    if reason:
        return "", reason
    model = f"./{asked.model}" if asked.model.startswith("-") else asked.model
    words = ["dippm", "measure", model, "--batch", str(c.batch)]
    words += ["--input", asked.input] if asked.input else []
    words += ["--device", "cpu" if c.device.kind == "cpu" else "cuda:0"]
    words += ["--precision", c.precision] if c.precision != "fp32" else []
    words += ["--mode", c.mode] if c.mode != "eager" else []
    words += ["--phase", c.phase] if c.phase != "inference" else []
    words += ["--channels-last"] * c.channels_last
    if c.host is not None:
        is_class = c.host.name in {known.name for known in all_hosts()}
        words += ["--host", c.host.name if is_class else f"{c.host.launch_us:g}"]
    if c.context_mb is not None:
        is_number = isinstance(c.context_mb, float)
        words += ["--context-mb", f"{c.context_mb:g}" if is_number else str(c.context_mb)]
    words += ["--checkpoint", asked.checkpoint] if asked.checkpoint else []
    words += ["--trust"] * asked.trust
    return shlex.join([*words, "--compare"]), ""


def _cannot(asked: Asked, c: Conditions, frameworks: Sequence[str]) -> str:
    """Return what `dippm measure` cannot hold against the prediction, in words; "" if it can."""
    if asked.runtime not in frameworks:
        ran = asked.runtime or "nothing that is known here"
        return (
            f"the file runs in {ran}, and the prediction is for {' or '.join(frameworks)}: measure "
            "the model that it was exported from"
        )
    return _cannot_measure(c)


def _cannot_measure(c: Conditions) -> str:
    """Return which condition `dippm measure` cannot run under, in words; "" if there is none."""
    catalogue = {known.name: known for known in (*all_devices(), *all_cpus())}
    cannot = {
        "predicts for a device of the catalogue, and this is of a device file, or changed": (
            catalogue.get(c.device.name) != c.device
        ),
        f"times a whole call, wall, and the prediction is for timer {c.timer}": c.timer != "wall",
        f"cannot ask for {c.attention} attention": c.attention != "fused",
        "runs without autograd": c.autograd,
        f"runs PyTorch, and the prediction is for {c.runtime}": c.runtime != "pytorch",
        f"trains with sgd, and the prediction is for {c.optimizer}": c.optimizer != "sgd",
        "does not checkpoint activations": c.checkpointing,
    }
    found = next((words for words, is_so in cannot.items() if is_so), "")
    return f"dippm measure {found}" if found else ""
