"""`Service`: cached answers by content, and jobs for the others. It is independent of HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dippm import __version__
from dippm.errors import DippmError, ModelNotFoundError
from dippm.model.frontends import cache, named
from dippm.show.service.answering import name_as_given
from dippm.show.service.errors import (
    BadQuestionError,
    ForbiddenError,
    JobCancelledError,
    NotHereError,
)
from dippm.show.service.jobs import FairQueue, Job
from dippm.show.service.metrics import Metrics
from dippm.show.service.pool import AnswerPool
from dippm.show.service.questions import SHA256, Conditions, KeptModel, ModelAtPath
from dippm.show.service.settings import Settings
from dippm.show.service.uploads import MB, UploadedModel, Uploads

ENDED_S = 600.0
"""Time for which an ended job is kept."""
MOST_ENDED = 200
GUESSED_S = 5.0
"""Assumed duration of a job until one has ended."""


@dataclass(slots=True)
class ResultCache:
    """LRU cache of answers by key."""

    most: int
    size: int = 0
    _texts: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, key: str) -> str | None:
        """Return an answer; None if it is not cached."""
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
            return text

    def keep(self, key: str, text: str) -> None:
        """Cache an answer, unless it alone is too large."""
        size = len(text)
        if size > self.most:
            return
        with self._lock:
            self.size += size - len(self._texts.pop(key, ""))
            self._texts[key] = text
            while self.size > self.most:
                _, gone = self._texts.popitem(last=False)
                self.size -= len(gone)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model of a question, with the identity of its content."""

    identity: str
    source: dict[str, Any]
    model: UploadedModel | None = None


class Service:
    """Answers questions at once or by jobs; thread-safe.

    Attributes:
        settings: settings of the service.
        metrics: metrics of the service.
        uploads: uploaded files.
    """

    def __init__(self, settings: Settings) -> None:
        """Start the worker processes.

        Raises:
            NoRoomError: if the folder of uploads cannot be created.
        """
        self.settings, self.metrics = settings, Metrics()
        self.uploads = Uploads(settings.folder, settings.uploads_mb, settings.kept_mb)
        self._results = ResultCache(settings.results_mb * MB)
        self._roots = tuple(Path(os.path.realpath(root)) for root in settings.roots)
        self._queue = FairQueue(settings.queue, settings.queue_of_client)
        self._digests: OrderedDict[tuple[Any, ...], str] = OrderedDict()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._by_key: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._mean_s = GUESSED_S
        self._pool = AnswerPool(
            self._queue,
            self.uploads.folder,
            workers=settings.workers,
            memory_limit_mb=settings.memory_limit_mb,
            metrics=self.metrics,
            keep=self._results.keep,
            ended=self._end,
        )
        self.metrics.look("dippm_queue_jobs", lambda: len(self._queue))
        self.metrics.look("dippm_running_jobs", lambda: len(self._pool.running))
        self.metrics.look("dippm_results_bytes", lambda: self._results.size)
        self.metrics.look("dippm_uploads_bytes", lambda: self.uploads.size)

    @property
    def retry_after_s(self) -> float:
        """Estimated time in s until the queue is shorter."""
        waiting = len(self._queue) + len(self._pool.running)
        return max(1.0, round(self._mean_s * waiting / self.settings.workers))

    def check_room(self, client: str) -> None:
        """Refuse a client before its file is read.

        Raises:
            BusyError: if its job would not fit the queue.
        """
        self._queue.check(client, self.retry_after_s)

    def find_model(self, given: KeptModel | ModelAtPath | str) -> FoundModel:
        """Return the model that a question names.

        Raises:
            ForbiddenError: if its path is under no root.
            NotHereError: if it is not kept.
            ModelNotFoundError: if the file does not exist.
            BadQuestionError: if it is not a valid name.
        """
        if isinstance(given, KeptModel):
            match = SHA256.fullmatch(given.sha256)
            assert match is not None, "pydantic has looked at it"
            return self.uploaded(self.uploads.find(match[1]))
        if isinstance(given, ModelAtPath):
            path, inside = self._under_root(given.path)
            source = _source(path=str(path), shown=given.path, inside=inside)
            try:
                digest = self._digest(path)
            except DippmError as error:
                name_as_given(error, source)
                raise
            return FoundModel(f"path:{inside}:{digest}", source)
        if given.startswith("hf-config:"):
            path, inside = self._under_root(given.removeprefix("hf-config:"))
            name = f"hf-config:{path}"
            digest = cache._named_digest(name)
            source = _source(name=name, shown=given, inside=f"hf-config:{inside}")
            return FoundModel(f"name:{inside}:{digest}", source)
        if not named.is_name(given):
            raise BadQuestionError(
                f"{given[:80]!r} is not the name of a model",
                'Give one such as "timm:resnet50", {"path": ...}, {"sha256": ...}, or the file as'
                " the body.",
            )
        return FoundModel(f"name:{given}", _source(name=given, shown=given))

    def find_models(self, question: Conditions) -> list[FoundModel]:
        """Return the models that a question names; on an error none of them is held.

        Raises:
            BadQuestionError: if it names no model; else as `find_model`.
        """
        names: Sequence[Any] = getattr(question, "models", [getattr(question, "model", None)])
        if None in names:
            raise BadQuestionError(
                "the question names no model",
                'Give "model": "timm:resnet50", {"path": ...} or {"sha256": ...}; or send the file'
                " as the body.",
            )
        found: list[FoundModel] = []
        try:
            for name in names:
                found.append(self.find_model(name))
        except BaseException:
            self.release(found)
            raise
        return found

    def uploaded(self, model: UploadedModel) -> FoundModel:
        """Return an upload as the model of a question."""
        source = _source(path=str(model.file), shown=model.name, unpack_mb=self.settings.upload_mb)
        return FoundModel(f"sha256:{model.sha256}:{model.name}", source, model)

    def answer(self, question: Conditions, found: Sequence[FoundModel], client: str) -> str | Job:
        """Return the answer, or a job that will have it; the caller has to `leave` the job.

        The models in `found` are released when they are no longer needed.

        Raises:
            BusyError: if the queue is full.
        """
        try:
            arguments = question.arguments()
            limits = self._limits(question)
            asked = [question.NAME, arguments, limits, [one.identity for one in found]]
            text = json.dumps([__version__, *asked], sort_keys=True, default=str)
            key = hashlib.sha256(text.encode()).hexdigest()
            known = self._results.find(key)
            if known is not None:
                self.metrics.count("dippm_results_total", how="hit")
                return known
            with self._lock:  # one job per key: later clients join the job of the first
                job = self._by_key.get(key)
                joins = job is not None and not job.ended and not job.is_cancelled
                if job is None or not joins:
                    job = self._put(question.NAME, key, client, arguments, limits, found)
                job.waiters += 1
            self.metrics.count("dippm_results_total", how="joined" if joins else "new")
            return job
        finally:
            self.release(found)

    def release(self, found: Sequence[FoundModel]) -> None:
        """Release models that are no longer needed."""
        for one in found:
            if one.model is not None:
                self.uploads.release(one.model)

    def job(self, name: str) -> Job:
        """Return the job with an id.

        Raises:
            NotHereError: if it does not exist, or no longer.
        """
        with self._lock:
            job = self._jobs.get(name)
        if job is None:
            raise NotHereError(
                "no such job is here",
                f"Jobs are forgotten {ENDED_S:.0f} s after their end: ask the question again.",
            )
        return job

    def position(self, job: Job) -> int | None:
        """Return the position of a job in the queue."""
        return self._queue.position(job)

    def cancel(self, job: Job) -> None:
        """Cancel a job: a waiting one at once, a running one with its process."""
        job.cancel()
        if self._queue.drop(job) and job.finish(None, JobCancelledError("the job was cancelled")):
            self.metrics.count("dippm_jobs_total", question=job.kind, state=job.state)
            self._end(job)

    def leave(self, job: Job) -> None:
        """Record that a request no longer waits for a job; an unwanted job is cancelled."""
        with self._lock:
            job.waiters -= 1
            unwanted = job.waiters <= 0 and not job.is_detached
            if unwanted and job.ended:  # no client has its address
                self._jobs.pop(job.id, None)
        if unwanted and not job.ended:
            self.cancel(job)

    def close(self) -> None:
        """End all processes, and remove all uploads."""
        self._pool.close()
        self.uploads.close()

    def _put(
        self,
        kind: str,
        key: str,
        client: str,
        arguments: dict[str, Any],
        limits: dict[str, Any],
        found: Sequence[FoundModel],
    ) -> Job:
        models = tuple(one.model for one in found if one.model is not None)
        message = {
            "kind": kind,
            "arguments": arguments,
            "limits": limits,
            "sources": [one.source for one in found],
            "limit_s": self.settings.answer_s,
            "cache": str(models[0].folder / "cache") if models else None,
        }
        job = Job(kind, key, client, message, models)
        self._queue.put(job, self.retry_after_s)
        for model in models:
            self.uploads.use(model)
        self._jobs[job.id] = self._by_key[key] = job
        self._forget_ended()
        return job

    def _end(self, job: Job) -> None:
        """Record the duration of a job, and release its models."""
        if job.text is not None:
            worked_s = (job.ended_s or 0.0) - (job.started_s or 0.0)
            self._mean_s += 0.1 * (worked_s - self._mean_s)
        with self._lock:
            if self._by_key.get(job.key) is job:
                del self._by_key[job.key]
        for model in job.models:
            self.uploads.release(model)

    def _forget_ended(self) -> None:
        """Forget jobs that ended long ago, and the oldest if there are too many."""
        ended = [job for job in self._jobs.values() if job.ended]
        for number, job in enumerate(ended):
            old = job.age_s - (job.ended_s or 0.0) > ENDED_S
            if old or len(ended) - number > MOST_ENDED:
                del self._jobs[job.id]

    def _limits(self, question: Conditions) -> dict[str, Any]:
        wanted = self.settings.timeout_s if question.timeout_s is None else question.timeout_s
        if wanted > self.settings.timeout_s:
            raise BadQuestionError(
                f"timeout_s is {wanted:g}, more than the limit here, {self.settings.timeout_s:g}",
                "Leave it out, or give less.",
            )
        return {"timeout_s": wanted, "memory_limit_mb": self.settings.memory_limit_mb}

    def _under_root(self, given: str) -> tuple[Path, str]:
        """Resolve a path, which has to be under a root; also return it relative to that root."""
        if not self._roots:
            raise ForbiddenError(
                "this service does not read paths",
                "Upload the file as the body, or ask the operator of the service for root=... .",
            )
        if "\x00" in given:
            raise BadQuestionError("the path contains a zero byte", "Give a path.")
        for root in self._roots:
            real = Path(os.path.realpath(root / given))
            if real.is_relative_to(root) and real != root and os.path.exists(real):
                return real, str(real.relative_to(root))
        outside = [
            Path(os.path.normpath(root / given)).is_relative_to(root) for root in self._roots
        ]
        if not any(outside):
            raise ForbiddenError(
                "the path is outside the roots of this service",
                "Give a path under a root, relative to it or absolute.",
            )
        raise ModelNotFoundError(
            f"no model is at {re.sub(r'[^ -~]', '?', given)[:200]}",
            "Give a path under a root of the service; a link that leads out of it is not followed.",
        )

    def _digest(self, path: Path) -> str:
        """Return the hash of a path's content, cached for unchanged files."""
        status = path.stat()
        at = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if path.is_dir():
            return cache.digest(path)
        with self._lock:
            known = self._digests.get(at)
        if known is None:
            known = cache.digest(path)
            with self._lock:
                self._digests[at] = known
                while len(self._digests) > 10_000:
                    self._digests.popitem(last=False)
        return known


def _source(
    *,
    name: str | None = None,
    path: str | None = None,
    shown: str,
    inside: str | None = None,
    unpack_mb: int | None = None,
) -> dict[str, Any]:
    """Return a model for a worker process.

    Args:
        name: name of the model; None for a path.
        path: path that is read; None for a name.
        shown: the model as its client gave it.
        inside: path relative to its root, or name, for answers, which other clients get too; None
            is `shown`.
        unpack_mb: largest unpacked size of an upload in MiB; None for other models.
    """
    known = {"name": name, "path": path, "shown": shown}
    return {**known, "inside": shown if inside is None else inside, "unpack_mb": unpack_mb}


def options_document(settings: Settings) -> dict[str, Any]:
    """Return the valid names of every kind and the limits, for a page that offers them."""
    from dippm.decide.choice.contender import BY
    from dippm.decide.choice.limits import SLO_AT
    from dippm.decide.scheduling import all_formats
    from dippm.decide.sharing.ways import WAYS
    from dippm.devices import all_hosts
    from dippm.estimate.conditions import (
        ATTENTIONS,
        EIGHT_BITS,
        MODES,
        OPTIMIZERS,
        PHASES,
        PRECISIONS,
        RUNTIMES,
        SOFTWARE_CLASSES,
        TIMERS,
    )
    from dippm.estimate.pretrained.store import DEFAULT, available
    from dippm.model.frontends.registry import BUILT_IN

    limits = {
        name: value
        for name, value in asdict(settings).items()
        if name not in ("roots", "folder", "webhook")
    }
    return {
        "schema": "dippm.options/1",
        "version": __version__,
        "precisions": [*PRECISIONS, *EIGHT_BITS],
        "modes": list(MODES),
        "timers": list(TIMERS),
        "attentions": list(ATTENTIONS),
        "runtimes": list(RUNTIMES),
        "phases": list(PHASES),
        "optimizers": list(OPTIMIZERS),
        "software": list(SOFTWARE_CLASSES),
        "rankings": list(BY),
        "slo_at": list(SLO_AT),
        "sharing": list(WAYS),
        "hosts": [host.name for host in all_hosts()],
        "checkpoints": [
            {"name": one.name, "version": one.version, "default": one.name == DEFAULT}
            for one in available()
        ],
        "frontends": [entry.framework for entry in BUILT_IN],
        "formats": {name: one.SUMMARY for name, one in all_formats().items()},
        "paths": bool(settings.roots),
        "webhook": settings.webhook,
        "limits": limits,
    }


def devices_text() -> str:
    """Return the document of `dippm devices --json`."""
    from dippm.devices import all_cpus, all_devices

    found = [asdict(device) for device in (*all_devices(), *all_cpus())]
    return json.dumps({"schema": "dippm.devices/1", "devices": found}, ensure_ascii=False)
