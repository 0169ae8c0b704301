"""The same campaign on many GPUs and nodes, through Ray.

    python -m dataset.collect --out DIR --ray auto

One station for each GPU of the cluster, which owns it (`num_gpus=1`, and the lock of its host), or
one for each node when a CPU is measured. Jobs go to whichever station is free; the driver writes
the rows. A station that is lost costs the point in flight, its job goes on elsewhere. The checkout
must be at the same path on every node.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

from dataset.collect.campaign import Campaign
from dataset.collect.errors import CollectError, DeviceLostError, Stop, first_line
from dataset.collect.locks import lock_device, lock_folder
from dataset.collect.options import Options, new_runner, possible
from dataset.collect.pace import Pace
from dataset.collect.plans import Pending
from dataset.collect.process.worker_process import CHECKOUT
from dataset.collect.rows import Outcome
from dataset.collect.runner import Runner
from dataset.collect.session import Keep, make_folder, run
from dataset.collect.supervisor import interruptible
from dataset.plan.configuration import Job, Point
from dippm.base.process.cluster import join

LOSSES = 5
"""Stations lost in a row, without a row between them, before the cluster counts as lost."""
OPEN_S = 120.0
"""For a station to be placed and to take its device."""
POLL_S = 0.2


class Station:
    """Measures jobs on one GPU or node; an actor.

    Args:
        options: of the campaign; the device is this station's.
        budget_s: what is left of it.
    """

    def __init__(self, options: Options, budget_s: float | None) -> None:
        self._options = replace(options, settings=possible(options.settings, options.device))
        self._pace = Pace(timeout_s=options.timeout_s, budget_s=budget_s)
        self._runner: Runner | None = None

    def open(self) -> None:
        """Take the device.

        Raises:
            LockedError: if a collector outside of this campaign has it.
        """
        self._runner = new_runner(self._options, self._pace, lock_device(self._options.device))

    def measure(self, item: Pending) -> Iterator[Outcome | str]:
        """Yield the outcomes of a job as they come; a last text says why no more may start."""
        assert self._runner is not None
        try:
            yield from self._runner.outcomes(item.job, item.points, item.known)
        except Stop as stop:
            yield stop.why


def collect_with_ray(
    jobs: Sequence[Job], options: Options, plan: Mapping[str, Any], *, address: str
) -> Campaign:
    """Measure on every GPU, or every node, of a Ray cluster; see `supervisor.collect`.

    Args:
        jobs: of the plan.
        options: how; `device` is "cpu" or begins with "cuda".
        plan: what the campaign file says about the plan.
        address: of the cluster, "auto" for the one that is running here, "local" for a new one.

    Raises:
        CollectError: if Ray is not installed, cannot be reached or has no such device.
    """
    pace = Pace(timeout_s=options.timeout_s, budget_s=options.budget_s, limit=options.limit)
    if options.device.startswith("cuda"):
        options = replace(options, device="cuda:0")  # Ray shows a station its own GPU only
    make_folder(options.folder)
    options = replace(options, folder=options.folder.resolve())  # stations start elsewhere
    # Ray talks on stdout, which is for the summary.
    with redirect_stdout(sys.stderr), lock_folder(options.folder):
        ray = _connect(address)
        try:
            crew = _Crew(ray, options, pace)
            campaign = Campaign(
                {**plan, "ray": address, "stations": len(crew.places)},
                options.device,
                options.settings,
                options.timeout_s,
                options.budget_s,
            )
            with interruptible(pace):
                run(jobs, options, campaign, measure=crew.measure, pace=pace)
        finally:
            ray.shutdown()
    return campaign


@dataclass(slots=True)
class _Work:
    """What a station does.

    Attributes:
        place: keywords of its actor.
        station: the actor.
        began: when it began.
        item: job under way; None while the station opens.
        waiting: points of it that are still to come.
    """

    place: Mapping[str, Any]
    station: Any
    began: float
    item: Pending | None = None
    waiting: deque[Point] = field(default_factory=deque)


class _Crew:
    """The stations of a cluster and what each is doing.

    Args:
        ray: the module, connected.
        options: of the campaign.
        pace: of the campaign.

    Attributes:
        places: keywords of the actor of each station.
    """

    def __init__(self, ray: Any, options: Options, pace: Pace) -> None:
        self._ray, self._options, self._pace = ray, options, pace
        self.places = _places(ray, options)
        self._works: dict[Any, _Work] = {}
        self._idle: deque[_Work] = deque()
        self._queue: deque[Pending] = deque()
        self._losses = 0
        self._why = "none could start"
        self._stop: Stop | None = None

    def measure(self, pending: Sequence[Pending], keep: Keep) -> None:
        """Have every job measured and keep what comes, in the order in which it comes."""
        self._queue.extend(pending)
        try:
            for place in self.places:
                self._open(place)
            while (self._may_begin() and self._queue) or self._running():
                if self._pace.spent:  # what is in flight is dropped
                    break
                while self._stop is None and self._queue and self._idle:
                    self._begin(self._idle.popleft(), self._queue.popleft())
                if not self._works:
                    raise DeviceLostError(
                        f"no station is left; the last: {self._why}",
                        "Everything measured is kept. Look at the nodes of the cluster.",
                    )
                ready, _ = self._ray.wait(list(self._works), timeout=POLL_S)
                for key in ready:
                    self._advance(key, keep)
                self._give_up_late_ones()
            if self._stop is not None:
                raise self._stop
        finally:
            for work in (*self._works.values(), *self._idle):
                self._ray.kill(work.station)

    def _may_begin(self) -> bool:
        """Return whether jobs may be given out; after a stop the stations finish what they have."""
        try:
            self._pace.check()
        except Stop as stop:
            self._stop = self._stop or stop
        return self._stop is None

    def _running(self) -> bool:
        return any(work.item for work in self._works.values())

    def _open(self, place: Mapping[str, Any]) -> None:
        make = self._ray.remote(Station).options(**place)
        station = make.remote(self._options, self._pace.budget_left())
        self._works[station.open.remote()] = _Work(place, station, time.monotonic())

    def _begin(self, work: _Work, item: Pending) -> None:
        stream = work.station.measure.options(num_returns="streaming").remote(item)
        self._works[stream] = replace(work, item=item, waiting=deque(item.points))

    def _advance(self, key: Any, keep: Keep) -> None:
        work = self._works[key]
        try:
            outcome = self._ray.get(key if work.item is None else next(key))
        except StopIteration:
            self._idle.append(self._works.pop(key))
        except self._ray.exceptions.RayActorError as error:
            self._lost(
                self._works.pop(key), f"the station was lost: {first_line(str(error))}", keep
            )
        except self._ray.exceptions.RayError as error:
            # Its device is gone or in use; the job itself is not to blame.
            cause = getattr(error, "cause", None) or error
            self._retire(self._works.pop(key), first_line(str(cause)))
        else:
            self._take(key, outcome, keep)

    def _take(self, key: Any, outcome: Outcome | str | None, keep: Keep) -> None:
        work = self._works[key]
        if isinstance(outcome, str):  # the stream ends with it
            self._stop = self._stop or Stop(outcome)
            return
        if work.item is None or outcome is None:  # it is open
            self._idle.append(self._works.pop(key))
            return
        self._losses = 0
        work.waiting.popleft()
        self._pace.count()
        keep(work.item.job, outcome)

    def _lost(self, work: _Work, why: str, keep: Keep) -> None:
        self._losses += 1
        if self._losses > LOSSES:
            raise DeviceLostError(f"{self._losses} stations were lost in a row; the last: {why}")
        if work.item is not None:
            self._pace.count()
            keep(work.item.job, Outcome(work.waiting.popleft(), "crash", why))
        self._retire(work, why)
        self._open(work.place)

    def _retire(self, work: _Work, why: str) -> None:
        """Give up a station; what is left of its job goes to the next one that is free."""
        self._why = why
        self._ray.kill(work.station)
        if work.item is not None and work.waiting:
            self._queue.appendleft(replace(work.item, points=tuple(work.waiting)))

    def _give_up_late_ones(self) -> None:
        """Retire stations that do not open: their node or GPU is gone."""
        now = time.monotonic()
        late = [k for k, w in self._works.items() if w.item is None and now - w.began > OPEN_S]
        for key in late:
            self._retire(self._works.pop(key), f"a station did not open within {OPEN_S:.0f} s")


def _connect(address: str) -> Any:
    try:
        return join(address, CHECKOUT)
    except ImportError as error:
        raise CollectError("Ray is not installed", "pip install 'dippm[ray]'") from error
    except ConnectionError as error:
        raise CollectError(str(error), 'Start one, or use --ray "local".') from error


def _places(ray: Any, options: Options) -> list[dict[str, Any]]:
    """Return where stations go: on every GPU, or on every node."""
    if options.device.startswith("cuda"):
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if not gpus:
            raise CollectError(
                "the Ray cluster has no GPU", "Use --device cpu, or another cluster."
            )
        return [{"num_gpus": 1, "num_cpus": 1}] * gpus
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return [
        {
            "num_cpus": 1,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        }
        for node in ray.nodes()
        if node["Alive"]
    ]
