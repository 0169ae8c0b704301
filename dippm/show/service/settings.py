"""`Settings`: what whoever runs the service allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dippm.errors import ConditionsError
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What whoever runs the service allows.

    Attributes:
        roots: folders under which a path may lie; without one, no question has a path.
        workers: processes that answer.
        upload_mb: size of one model file, in MiB.
        uploads_mb: of all that are here.
        kept_mb: of those that are kept because somebody asked.
        results_mb: of answers that are kept; 0 keeps none.
        timeout_s: of a conversion.
        memory_limit_mb: of a conversion.
        answer_s: after which any answer is given up.
        queue: jobs that wait.
        queue_of_client: jobs of one client that wait.
        folder: in which uploads lie; None is the system's for temporary files.
        webhook: "open" lets a pod pass that has no answer, "closed" refuses it, "off" has none.
    """

    roots: tuple[Path, ...] = ()
    workers: int = 2
    upload_mb: int = 512
    uploads_mb: int = 4096
    kept_mb: int = 1024
    results_mb: int = 128
    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB
    answer_s: float = 600.0
    queue: int = 256
    queue_of_client: int = 64
    folder: Path | None = None
    webhook: str = "off"

    def __post_init__(self) -> None:
        Limits(self.timeout_s, self.memory_limit_mb)
        for name in ("workers", "upload_mb", "uploads_mb", "queue", "queue_of_client"):
            if getattr(self, name) < 1:
                raise ConditionsError(f"{name} is {getattr(self, name)}", "Give 1 or more.")
        if not (math.isfinite(self.answer_s) and self.answer_s > 0):
            raise ConditionsError(
                f"answer_s is {self.answer_s}", "Give seconds above 0, for instance answer_s=600."
            )
        if self.webhook not in ("open", "closed", "off"):
            raise ConditionsError(f"webhook is {self.webhook!r}", "Give open, closed or off.")
        for root in self.roots:
            if not root.is_dir():
                raise ConditionsError(
                    f"the root {root} is no folder", "Give a folder with models: root=/models."
                )
