"""Callbacks of training frameworks: each training step is a span of the current run.

    model.fit(x, y, callbacks=[keras_callback()])
    transformers.Trainer(..., callbacks=[transformers_callback()])
    lightning.Trainer(callbacks=[lightning_callback()])

What the framework logs is recorded too. Outside of a run the callbacks do nothing. Only a framework
that the workload has already imported is used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from dippm.errors import FrameworkNotInstalledError, RunError
from dippm.runs.tracking.metrics import CallMetric
from dippm.runs.tracking.run import current, span
from dippm.runs.tracking.span_block import SpanBlock

STEP = "step"
LIGHTNING = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")


class _Steps:
    """Opens and closes spans where a framework says that a step begins and ends."""

    def __init__(self, name: str, metrics: Iterable[CallMetric]) -> None:
        self._name, self._metrics = name, tuple(metrics)
        self._open: SpanBlock | None = None

    def begin(self) -> None:
        """Open a span; one that is still open is left as failed."""
        self.close()
        self._open = span(self._name, metrics=self._metrics)
        self._open.__enter__()

    def end(self) -> None:
        """Close the span of a step that succeeded."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def close(self) -> None:
        """Close a span that an exception or a skipped end left open."""
        if self._open is not None:
            self._open.__exit__(RuntimeError, None, None)
            self._open = None

    def log(self, numbers: Mapping[str, Any] | None, step: int) -> None:
        """Record the numbers that the framework logs; everything else is dropped."""
        run = current()
        if run is None or numbers is None:
            return
        for name, value in numbers.items():
            with contextlib.suppress(RunError):
                run.log(name, value, step=step)


def keras_callback(name: str = STEP, *, metrics: Iterable[CallMetric] = ()) -> Any:
    """Return a `keras.callbacks.Callback`: one span per training batch, and each epoch's logs.

    Args:
        name: name of the spans.
        metrics: metrics of each span, see `dippm.runs.tracking.metrics`.

    Raises:
        FrameworkNotInstalledError: without Keras.
    """
    steps = _Steps(name, metrics)

    class TrackedSteps(callback_class("Callback", "keras.callbacks")):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            steps.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.end()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            steps.log(logs, epoch)

        def on_train_end(self, logs: Any = None) -> None:
            steps.close()

    return TrackedSteps()


def transformers_callback(name: str = STEP, *, metrics: Iterable[CallMetric] = ()) -> Any:
    """Return a `transformers.TrainerCallback`: one span per optimiser step, and all logs.

    Args:
        name: name of the spans; batches whose gradients are accumulated are one step.
        metrics: metrics of each span, see `dippm.runs.tracking.metrics`.

    Raises:
        FrameworkNotInstalledError: without Transformers.
    """
    steps = _Steps(name, metrics)

    class TrackedSteps(callback_class("TrainerCallback", "transformers")):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.end()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if state.is_world_process_zero:
                steps.log(logs, state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.close()

    return TrackedSteps()


def lightning_callback(name: str = STEP, *, metrics: Iterable[CallMetric] = ()) -> Any:
    """Return a PyTorch Lightning callback: one span per training batch, and each epoch's metrics.

    Args:
        name: name of the spans.
        metrics: metrics of each span, see `dippm.runs.tracking.metrics`.

    Raises:
        FrameworkNotInstalledError: without Lightning.
    """
    steps = _Steps(name, metrics)

    class TrackedSteps(callback_class("Callback", *LIGHTNING)):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any, **__: Any) -> None:
            steps.begin()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            steps.end()

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            steps.log(trainer.callback_metrics, trainer.current_epoch)

        def on_exception(self, *_: Any, **__: Any) -> None:
            steps.close()

    return TrackedSteps()


def callback_class(name: str, *modules: str) -> Any:
    """Return the base class of a framework's callbacks from the module that is imported."""
    for module in sorted(modules, key=lambda name: name.partition(".")[0] not in sys.modules):
        try:
            return getattr(import_module(module), name)
        except ImportError:
            continue
    package = modules[0].partition(".")[0]
    raise FrameworkNotInstalledError(f"{package} is not installed", f"pip install {package}")
