"""Trackers: results that the workload itself logs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dippm.umlaut.benchmark import Benchmark, plain


class _Tracker:
    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark


class ConfusionMatrixTracker(_Tracker):
    """Logs confusion matrices."""

    def track(self, matrix: Any, labels: Any, description: str = "confusion matrix") -> None:
        """Log a matrix; rows are predicted, columns true classes, as in UMLAUT.

        Args:
            matrix: square matrix of numbers.
            labels: labels of the classes.
            description: name of the matrix.
        """
        data = {"matrix": plain(matrix), "labels": plain(labels)}
        self.benchmark.run.tell(description, "confusion_matrix", data)


class HyperparameterTracker(_Tracker):
    """Logs sets of hyperparameters with their result; a context manager, or `close` it."""

    def __init__(
        self,
        benchmark: Benchmark,
        description: str,
        hyperparameters: Sequence[str],
        target: str,
        low_means_good: bool = True,
    ) -> None:
        super().__init__(benchmark)
        self.description = description
        self.hyperparameters = list(hyperparameters)
        self.target = target
        self.low_means_good = low_means_good
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> HyperparameterTracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def track(self, measurement: Mapping[str, Any]) -> None:
        """Add a set.

        Raises:
            ValueError: if the target or a hyperparameter is missing.
        """
        wanted = [*self.hyperparameters, self.target]
        missing = [name for name in wanted if name not in measurement]
        if missing:
            raise ValueError(f"the measurement has no {', '.join(missing)}")
        self.rows.append({name: plain(measurement[name]) for name in wanted})

    def close(self) -> None:
        """Log the sets; a second call does nothing."""
        rows, self.rows = self.rows, []
        if not rows:
            return
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        data = {
            "hyperparameters": self.hyperparameters,
            "target": self.target,
            "low_means_good": self.low_means_good,
            "columns": columns,
        }
        self.benchmark.run.tell(self.description, "hyperparameters", data)


class LossTracker(_Tracker):
    """Logs losses, one per epoch."""

    def track(self, loss_values: Any, description: str = "loss") -> None:
        """Log a list of losses."""
        self.benchmark.run.tell(description, "loss", _to_list(loss_values), unit="loss")


class TTATracker(_Tracker):
    """Logs accuracies, one per epoch."""

    def track(self, accuracies: Any, description: str = "time to accuracy") -> None:
        """Log a list of accuracies."""
        self.benchmark.run.tell(
            description, "time_to_accuracy", _to_list(accuracies), unit="accuracy"
        )


class TimedTTATracker(_Tracker):
    """Logs the time from its creation to each accuracy, and to the target accuracy.

    Attributes:
        seconds: time to the target; None before it was reached.
    """

    def __init__(
        self, benchmark: Benchmark, target_acc: float, description: str = "time to accuracy"
    ) -> None:
        super().__init__(benchmark)
        self.target_acc = float(target_acc)
        self.description = description
        self.seconds: float | None = None
        self._began_ns = time.monotonic_ns()
        self._step = 0

    def track(self, accuracy: Any, description: str = "") -> None:
        """Log an accuracy with the elapsed time.

        Args:
            accuracy: a number, or an object that holds one.
            description: name of the accuracy, by default that of the tracker.

        Raises:
            ValueError: if it is not a single number.
        """
        reached, number = (time.monotonic_ns() - self._began_ns) / 1e9, plain(accuracy)
        while isinstance(number, list) and len(number) == 1:
            number = number[0]
        if not isinstance(number, int | float):
            raise ValueError(f"an accuracy is one number, not {accuracy!r}")
        if self.seconds is None and number >= self.target_acc:
            self.seconds = reached
        data = {
            "accuracy": number,
            "seconds": reached,
            "target": self.target_acc,
            "seconds_to_target": self.seconds,
        }
        name = description or self.description
        self.benchmark.run.tell(name, "timed_time_to_accuracy", data, unit="s", step=self._step)
        self._step += 1


def _to_list(data: Any) -> list[Any]:
    found = plain(data)
    return found if isinstance(found, list) else [found]
