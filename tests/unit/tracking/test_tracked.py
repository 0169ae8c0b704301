"""Every kind of function stays what it is, and every call is a span of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from functools import partial

import pytest

from dippm.errors import UnknownNameError
from dippm.measure.readings import Absent
from dippm.runs.tracking import span, tracked


def test_every_call_is_a_span(open_run):
    @tracked
    def double(number):
        """Twice."""
        return 2 * number

    assert [double(n) for n in range(5)] == [0, 2, 4, 6, 8]
    assert double.__doc__ == "Twice."
    assert double.__name__ == "double"
    spans = open_run.read().spans
    assert len(spans) == 5
    assert len({s.id for s in spans}) == 5
    assert all(s.status == "ok" and s.end_ns >= s.start_ns for s in spans)
    assert spans[0].name.endswith("double")


def test_methods_of_every_kind(open_run):
    class Model:
        factor = 3

        @tracked(name="forward")
        def forward(self, x):
            return self.factor * x

        @tracked(name="make")
        @classmethod
        def make(cls):
            return cls()

        @tracked(name="scale")
        @staticmethod
        def scale(x):
            return -x

    assert Model.make().forward(2) == 6
    assert Model.scale(1) == -1
    assert [s.name for s in open_run.read().spans] == ["make", "forward", "scale"]


def test_nesting_and_threads(open_run):
    @tracked(name="outer")
    def outer():
        with span("inner"):
            pass

    together = threading.Barrier(4)

    def work():
        with span("work"):
            together.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    outer()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,), (two,) = open_run.named("outer"), open_run.named("inner")
    assert (one.parent, two.parent) == (0, one.id)
    work_spans = open_run.named("work")
    assert len({s.thread for s in work_spans}) == 4
    assert max(s.start_ns for s in work_spans) <= min(s.end_ns for s in work_spans)
    assert {s.parent for s in work_spans} == {0}


def test_an_exception_is_a_failed_span_and_goes_on(open_run):
    class OwnError(Exception):
        pass

    error = OwnError("mine")

    @tracked(name="fails")
    def fails():
        raise error

    with pytest.raises(OwnError) as caught:
        fails()
    assert caught.value is error
    (failed,) = open_run.named("fails")
    assert (failed.status, failed.error) == ("failed", "OwnError")


def test_concurrent_tasks_have_their_own_parents(open_run):
    @tracked(name="leaf")
    async def leaf(wait):
        await wait.wait()
        return 1

    @tracked(name="branch")
    async def branch(wait):
        return await leaf(wait)

    assert inspect.iscoroutinefunction(branch)

    async def main():
        wait = asyncio.Event()
        tasks = [asyncio.create_task(branch(wait), name=f"number {n}") for n in range(3)]
        await asyncio.sleep(0)
        wait.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [1, 1, 1]
    branches = {s.id: s for s in open_run.named("branch")}
    leaves = open_run.named("leaf")
    assert {s.parent for s in leaves} == set(branches)
    for s in leaves:
        assert branches[s.parent].thread == s.thread
        assert s.thread.split("/")[2].startswith("number ")


def test_a_cancelled_task_is_a_failed_span(open_run):
    @tracked(name="waits")
    async def waits():
        await asyncio.Event().wait()

    async def main():
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert open_run.named("waits")[0].error == "CancelledError"


def test_a_generator_stays_one(open_run):
    closed = []

    @tracked(name="items")
    def items(count):
        try:
            received = yield "first"
            with span("within"):
                pass
            for number in range(count):
                yield (received, number)
        except KeyError:
            yield "caught"
        finally:
            closed.append(True)
        return "result"

    def delegates():
        return (yield from items(1))

    assert inspect.isgeneratorfunction(items)
    generator = delegates()
    assert next(generator) == "first"
    with span("of the consumer"):
        assert generator.send("sent") == ("sent", 0)
    assert generator.throw(KeyError()) == "caught"
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "result"
    (whole,), (within,) = open_run.named("items"), open_run.named("within")
    assert whole.status == "ok"
    assert within.parent == whole.id
    assert open_run.named("of the consumer")[0].parent == 0
    assert closed == [True]


def test_a_generator_left_early_is_no_failure(open_run):
    closed = []

    @tracked(name="endless")
    def endless():
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    for _ in endless():
        break
    assert closed == [True]
    assert open_run.named("endless")[0].status == "ok"


def test_a_generator_that_fails(open_run):
    @tracked(name="breaks")
    def breaks():
        yield 1
        raise ValueError("second item")

    with pytest.raises(ValueError, match="second item"):
        list(breaks())
    assert open_run.named("breaks")[0].error == "ValueError"


def test_an_asynchronous_generator(open_run):
    @tracked(name="stream")
    async def stream():
        for number in range(3):
            with span("item"):
                await asyncio.sleep(0)
            try:
                yield number
            except KeyError:
                yield "caught"

    async def main():
        items = stream()
        found = [await anext(items)]
        with span("of the consumer"):
            found.append(await items.athrow(KeyError()))
        found += [item async for item in items]
        async for _ in stream():
            break
        return found

    assert inspect.isasyncgenfunction(stream)
    assert asyncio.run(main()) == [0, "caught", 1, 2]
    first = open_run.named("stream")[0]
    assert first.status == "ok"
    assert open_run.named("item")[0].parent == first.id
    assert open_run.named("of the consumer")[0].parent == 0


def test_outside_of_a_run_nothing_is_recorded():
    @tracked(metrics=["time"])
    def plain():
        return 1

    @tracked
    def items():
        yield 1

    with span("nowhere") as block:
        assert plain() == 1
        assert list(items()) == [1]
    assert block.id == 0


def test_time_of_each_call(open_run):
    @tracked(name="timed", metrics=["time"])
    def timed():
        pass

    began = time.perf_counter()
    timed()
    timed()
    whole_s = time.perf_counter() - began
    times_s = [s.values["time_s"] for s in open_run.named("timed")]
    assert len(times_s) == 2
    assert min(times_s) >= 0
    assert sum(times_s) <= whole_s


class Broken:
    name = "broken"

    def __init__(self, when):
        self.when = when

    def start(self):
        if self.when == "start":
            raise OSError("no such counter")
        return self

    def stop(self):
        if self.when == "stop":
            raise ZeroDivisionError("nothing")
        return {"energy_j": Absent("no counter of energy"), "power_w": "no number"}


def test_a_failing_metric_never_touches_the_work(open_run):
    metrics = [Broken("start"), "time", Broken("stop")]
    assert tracked(name="works", metrics=metrics)(partial(int, "7"))() == 7
    assert tracked(name="absent", metrics=[Broken("")])(lambda: 8)() == 8
    (works,), (absent,) = open_run.named("works"), open_run.named("absent")
    assert set(works.values) == {"time_s"}
    assert works.absent["broken"].split(":")[0] in ("OSError", "ZeroDivisionError")
    assert absent.absent["energy_j"] == "no counter of energy"
    assert "broken" in absent.absent


def test_an_unknown_metric_says_what_there_is():
    with pytest.raises(UnknownNameError, match="time"):
        tracked(metrics=["tim"])
