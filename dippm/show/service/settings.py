"""`Settings`: settings of the operator of a service."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dippm.errors import ConditionsError
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the operator of a service.

    Attributes:
        roots: folders under which paths are allowed; without any, questions have no paths.
        workers: number of worker processes.
        upload_mb: largest size of one model file in MiB.
        uploads_mb: largest total size of uploads in MiB.
        kept_mb: largest total size of kept uploads in MiB.
        results_mb: size of the cache of answers in MiB; 0 for no cache.
        timeout_s: time limit of a conversion in s.
        memory_limit_mb: memory limit of a conversion in MiB.
        answer_s: time limit of an answer in s.
        queue: largest number of waiting jobs.
        queue_of_client: largest number of waiting jobs of one client.
        folder: folder of uploads; None takes the system's folder for temporary files.
        webhook: "open" admits a pod without an answer, "closed" refuses it, "off" has no webhook.
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
                    f"the root {root} is not a folder", "Give a folder with models: root=/models."
                )
