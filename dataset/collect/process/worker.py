"""The worker: a process that builds models and measures them, one point per request.

    python -m dataset.collect.process.worker --device cuda:0

It reads requests from stdin and answers on its original stdout, in the frames of
`dippm.base.process`; the output of libraries goes to stderr. The answers:

* `{"event": "ready", "machine": {...}}` once, after the initialisation of the device
* `{"event": "built", ...}` to `{"do": "build", "model": "own:..."}`
* `{"event": "measured", "columns": {...}}` to `{"do": "measure", "point": {...}}`
* `{"event": "failed", "status": "oom", "reason": "...", "fatal": false}` instead of any of them;
  after a fatal one it exits, because its CUDA context has become unusable.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from dataset.collect.errors import classify, first_line
from dataset.families.family import Workload
from dataset.plan.configuration import Point
from dippm.base import process
from dippm.measure.protocol import Regime, Settings
from dippm.measure.run import Wanted

REGISTRY = "dataset.families.registry"
BENCH = "dippm.measure.run:Bench"
Message = process.Message


class Worker:
    """Builds one model at a time and measures it at one point after another.

    Args:
        device: device of the models.
        registries: modules with `FAMILIES`, `build` and `make_inputs`; the first one that has the
            family builds it.
        bench: measuring object, see `dippm.measure.run.Bench`.
    """

    def __init__(self, device: torch.device, registries: Sequence[ModuleType], bench: Any) -> None:
        self.device, self._registries, self._bench = device, registries, bench
        self._workload: Workload | None = None
        self._module: torch.nn.Module | None = None
        self._memory_before_mb: Any = None
        self._build_s = 0.0
        self._fresh = True

    def build(self, model: str) -> Message:
        """Build a model on the device, and drop the previous one."""
        self._workload, self._module = Workload.parse(model), None
        self._memory_before_mb = self._bench.memory_mb()
        began = time.perf_counter()
        self._module = self._registry(self._workload).build(self._workload, self.device)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._build_s = time.perf_counter() - began
        return {"event": "built"}

    def measure(self, asked: Point) -> Message:
        """Measure the model at a point."""
        if self._workload is None:
            raise ValueError("nothing was built yet")
        if self._module is None:  # the last point failed, perhaps during a conversion of the model
            self.build(self._workload.model)
        module, self._module = self._module, None
        fresh, self._fresh = self._fresh, False
        registry = self._registry(self._workload)
        inputs = registry.make_inputs(self._workload, asked.batch, self.device)
        if asked.phase == "train" and self._is_operator():
            _ask_for_gradients(inputs)
        columns = self._bench.measure(
            module,
            inputs,
            Regime(asked.precision, asked.mode, asked.phase, asked.channels_last),
            wanted=Wanted(energy=asked.energy, cold=self._is_operator()),
            memory_before_mb=self._memory_before_mb,
        )
        self._module = module
        own = {"build_s": self._build_s, "memory_fresh_process": fresh}
        return {"event": "measured", "columns": {**columns, **own}}

    def drop(self) -> None:
        """Drop the model after a failure, to free its memory for the next one."""
        self._module, self._fresh = None, False
        self._bench.memory_mb()

    def _is_operator(self) -> bool:
        assert self._workload is not None
        operators = getattr(self._registry(self._workload), "OPERATORS", {})
        return self._workload.family in operators

    def _registry(self, workload: Workload) -> Any:
        for registry in self._registries:
            tables = (getattr(registry, name, {}) for name in ("FAMILIES", "OPERATORS", "ZOO"))
            if any(workload.family in table for table in tables):
                return registry
        return self._registries[-1]  # its error lists the known names


def main(argv: Sequence[str] | None = None) -> int:
    """Serve requests until stdin closes."""
    arguments = _arguments(argv)
    if arguments.parent:  # never measure without the process that keeps the rows
        process.follow_parent(arguments.parent)
    requests, answers = process.own_pipes()
    if arguments.memory_limit_mb:
        process.limit_memory(arguments.memory_limit_mb)
    try:
        worker, machine = _start(arguments)
    except Exception as error:  # the supervisor must learn of any error
        process.write_frame(answers, _failure(error, fatal=True))
        raise
    process.write_frame(answers, {"event": "ready", "machine": machine})
    while True:
        try:
            request = process.read_frame(requests)
        except EOFError:
            return 0
        reply = _serve(worker, request)
        process.write_frame(answers, reply)
        if reply.get("fatal"):
            return 1


def _start(arguments: argparse.Namespace) -> tuple[Worker, dict[str, Any]]:
    from dippm.measure.provenance import machine

    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    registries = [importlib.import_module(name) for name in (*arguments.families, REGISTRY)]
    module, _, name = arguments.bench.partition(":")
    settings = Settings(**json.loads(arguments.settings))
    bench = getattr(importlib.import_module(module), name)(device, settings)
    gc.collect()
    gc.freeze()  # keeps imported objects out of each measurement's garbage collection
    return Worker(device, registries, bench), dict(machine(device))


def _serve(worker: Worker, request: Message) -> Message:
    try:
        if request["do"] == "build":
            return worker.build(request["model"])
        return worker.measure(Point(**request["point"]))
    except Exception as error:  # every failure of a model is an outcome
        reply = _failure(error)
        # The traceback refers to the tensors of the failed step.
        error.__traceback__ = error.__context__ = error.__cause__ = None
    if not reply["fatal"]:
        worker.drop()
    return reply


def _ask_for_gradients(inputs: Sequence[torch.Tensor]) -> None:
    """Make an operator's inputs require gradients, like results of a previous layer."""
    for tensor in inputs:
        if tensor.is_floating_point():
            tensor.requires_grad_(True)


def _failure(error: BaseException, *, fatal: bool | None = None) -> Message:
    status, broken = classify(error)
    reason = f"{type(error).__name__}: {first_line(str(error))}"
    return {
        "event": "failed",
        "status": status,
        "reason": reason,
        "fatal": broken if fatal is None else fatal,
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dataset.collect.process.worker")
    parser.add_argument("--device", required=True)
    parser.add_argument("--families", action="append", default=[], metavar="MODULE")
    parser.add_argument("--bench", default=BENCH, metavar="MODULE:CLASS")
    parser.add_argument("--settings", default="{}", metavar="JSON")
    parser.add_argument("--memory-limit-mb", type=int, default=0)
    parser.add_argument("--parent", type=int, default=0, help="process to die with")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
