"""The same campaign on many GPUs and nodes, through Ray.

    python -m dataset.collect --out DIR --ray auto

One Ray actor ("station" in messages) owns each GPU of the cluster (`num_gpus=1`, and the lock of
its host), or each node when a CPU is measured. The next job goes to the first free actor; the
driver writes the rows. Losing an actor costs the point in flight, and its job continues on another
one. The checkout must be at the same path on every node.
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
from dataset.collect.options import Options, feasible_settings, new_runner
from dataset.collect.pace import Pace
from dataset.collect.plans import Pending
from dataset.collect.process.worker_process import CHECKOUT
from dataset.collect.rows import PointOutcome
from dataset.collect.runner import Runner
from dataset.collect.session import Keep, make_folder, run
from dataset.collect.supervisor import interruptible
from dataset.plan.configuration import Job, Point
from dippm.base.process.cluster import join

LOSSES = 5
"""Actors that may be lost without a measured row in between, before the campaign gives up."""
OPEN_S = 120.0
"""Time limit for an actor to be placed and to take its device."""
POLL_S = 0.2


class CollectActor:
    """Ray actor that measures jobs on one GPU or node.

    Args:
        options: options of the campaign, with the device of this actor.
        budget_s: time left of the campaign's budget, None if it has no budget.
    """

    def __init__(self, options: Options, budget_s: float | None) -> None:
        self._options = replace(
            options, settings=feasible_settings(options.settings, options.device)
        )
        self._pace = Pace(timeout_s=options.timeout_s, budget_s=budget_s)
        self._runner: Runner | None = None

    def open(self) -> None:
        """Take the device.

        Raises:
            LockedError: if a collector outside of this campaign has it.
        """
        self._runner = new_runner(self._options, self._pace, lock_device(self._options.device))

    def measure(self, item: Pending) -> Iterator[PointOutcome | str]:
        """Yield the outcomes of a job; a text at the end says why no further job may start."""
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
        jobs: jobs of the plan.
        options: options of the campaign; `device` is "cpu" or begins with "cuda".
        plan: entries about the plan for the campaign file.
        address: address of the cluster; "auto" for the one running here, "local" for a new one.

    Raises:
        CollectError: if Ray is not installed, cannot be reached or has no such device.
    """
    pace = Pace(timeout_s=options.timeout_s, budget_s=options.budget_s, limit=options.limit)
    if options.device.startswith("cuda"):
        options = replace(options, device="cuda:0")  # an actor sees its own GPU only
    make_folder(options.folder)
    options = replace(options, folder=options.folder.resolve())  # actors start in other folders
    # Ray prints to stdout, which is reserved for the summary.
    with redirect_stdout(sys.stderr), lock_folder(options.folder):
        ray = _connect(address)
        try:
            pool = _ActorPool(ray, options, pace)
            campaign = Campaign(
                {**plan, "ray": address, "stations": len(pool.actor_options)},
                options.device,
                options.settings,
                options.timeout_s,
                options.budget_s,
            )
            with interruptible(pace):
                run(jobs, options, campaign, measure=pool.measure, pace=pace)
        finally:
            ray.shutdown()
    return campaign


@dataclass(slots=True)
class _ActorState:
    """State of one actor.

    Attributes:
        options: keywords that place the actor on its GPU or node.
        actor: handle of the actor.
        began: monotonic time at which its present call began, in seconds.
        item: job under way; None while the actor opens.
        waiting: points of the job that have no outcome yet.
    """

    options: Mapping[str, Any]
    actor: Any
    began: float
    item: Pending | None = None
    waiting: deque[Point] = field(default_factory=deque)


class _ActorPool:
    """The actors of a cluster and the job of each.

    Args:
        ray: the connected Ray module.
        options: options of the campaign.
        pace: time limits of the campaign.

    Attributes:
        actor_options: keywords of each actor, by position.
    """

    def __init__(self, ray: Any, options: Options, pace: Pace) -> None:
        self._ray, self._options, self._pace = ray, options, pace
        self.actor_options = _actor_options(ray, options)
        self._active: dict[Any, _ActorState] = {}
        self._idle: deque[_ActorState] = deque()
        self._queue: deque[Pending] = deque()
        self._losses = 0
        self._why = "none could start"
        self._stop: Stop | None = None

    def measure(self, pending: Sequence[Pending], keep: Keep) -> None:
        """Measure every job, and keep the outcomes in the order in which they arrive."""
        self._queue.extend(pending)
        try:
            for actor_options in self.actor_options:
                self._open(actor_options)
            while (self._may_begin() and self._queue) or self._running():
                if self._pace.spent:  # points in flight are dropped
                    break
                while self._stop is None and self._queue and self._idle:
                    self._begin(self._idle.popleft(), self._queue.popleft())
                if not self._active:
                    raise DeviceLostError(
                        f"no station is left; the last: {self._why}",
                        "Everything measured is kept. Look at the nodes of the cluster.",
                    )
                ready, _ = self._ray.wait(list(self._active), timeout=POLL_S)
                for key in ready:
                    self._advance(key, keep)
                self._give_up_late_ones()
            if self._stop is not None:
                raise self._stop
        finally:
            for state in (*self._active.values(), *self._idle):
                self._ray.kill(state.actor)

    def _may_begin(self) -> bool:
        """Return whether jobs may be handed out; after a stop the actors only finish theirs."""
        try:
            self._pace.check()
        except Stop as stop:
            self._stop = self._stop or stop
        return self._stop is None

    def _running(self) -> bool:
        return any(state.item for state in self._active.values())

    def _open(self, actor_options: Mapping[str, Any]) -> None:
        make = self._ray.remote(CollectActor).options(**actor_options)
        actor = make.remote(self._options, self._pace.budget_left())
        self._active[actor.open.remote()] = _ActorState(actor_options, actor, time.monotonic())

    def _begin(self, state: _ActorState, item: Pending) -> None:
        stream = state.actor.measure.options(num_returns="streaming").remote(item)
        self._active[stream] = replace(state, item=item, waiting=deque(item.points))

    def _advance(self, key: Any, keep: Keep) -> None:
        state = self._active[key]
        try:
            outcome = self._ray.get(key if state.item is None else next(key))
        except StopIteration:
            self._idle.append(self._active.pop(key))
        except self._ray.exceptions.RayActorError as error:
            self._lost(
                self._active.pop(key), f"the station was lost: {first_line(str(error))}", keep
            )
        except self._ray.exceptions.RayError as error:
            # Its device is gone or in use; the job is not the reason.
            cause = getattr(error, "cause", None) or error
            self._retire(self._active.pop(key), first_line(str(cause)))
        else:
            self._take(key, outcome, keep)

    def _take(self, key: Any, outcome: PointOutcome | str | None, keep: Keep) -> None:
        state = self._active[key]
        if isinstance(outcome, str):  # the stream ends with it
            self._stop = self._stop or Stop(outcome)
            return
        if state.item is None or outcome is None:  # the actor is open
            self._idle.append(self._active.pop(key))
            return
        self._losses = 0
        state.waiting.popleft()
        self._pace.count()
        keep(state.item.job, outcome)

    def _lost(self, state: _ActorState, why: str, keep: Keep) -> None:
        self._losses += 1
        if self._losses > LOSSES:
            raise DeviceLostError(f"{self._losses} stations were lost in a row; the last: {why}")
        if state.item is not None:
            self._pace.count()
            keep(state.item.job, PointOutcome(state.waiting.popleft(), "crash", why))
        self._retire(state, why)
        self._open(state.options)

    def _retire(self, state: _ActorState, why: str) -> None:
        """Give up an actor; the rest of its job goes to the next free one."""
        self._why = why
        self._ray.kill(state.actor)
        if state.item is not None and state.waiting:
            self._queue.appendleft(replace(state.item, points=tuple(state.waiting)))

    def _give_up_late_ones(self) -> None:
        """Retire actors that do not open in time: their node or GPU is gone."""
        now = time.monotonic()
        late = [k for k, s in self._active.items() if s.item is None and now - s.began > OPEN_S]
        for key in late:
            self._retire(self._active.pop(key), f"a station did not open within {OPEN_S:.0f} s")


def _connect(address: str) -> Any:
    try:
        return join(address, CHECKOUT)
    except ImportError as error:
        raise CollectError("Ray is not installed", "pip install 'dippm[ray]'") from error
    except ConnectionError as error:
        raise CollectError(str(error), 'Start one, or use --ray "local".') from error


def _actor_options(ray: Any, options: Options) -> list[dict[str, Any]]:
    """Return the placement of the actors: one on every GPU, or one on every node."""
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
