"""Every call is a row of its own, however it is made."""

from __future__ import annotations

import asyncio
import functools
import inspect
import multiprocessing
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from dippm.umlaut import Benchmark, BenchmarkSupervisor, TimeMetric


def names(benchmark: Benchmark) -> list[tuple[str, str]]:
    return [(row.method_name, row.status) for row in benchmark.rows()]


def test_a_function_keeps_what_it_is(benchmark: Benchmark) -> None:
    def train(epochs: int = 3) -> int:
        """Train."""
        return epochs

    supervised = BenchmarkSupervisor([TimeMetric()], benchmark)(train)
    assert supervised(epochs=4) == 4
    assert (supervised.__name__, supervised.__doc__) == ("train", "Train.")
    assert inspect.signature(supervised) == inspect.signature(train)


def test_every_call_is_a_row_with_its_own_time(benchmark: Benchmark) -> None:
    waits = [threading.Event() for _ in range(2)]

    @BenchmarkSupervisor([TimeMetric()], benchmark)
    def step(wait: float) -> None:
        waits[0].wait(wait)

    for wait in (0.0, 0.05, 0.0):
        step(wait)
    short, long, last = [row.value for row in benchmark.rows()]
    assert short is not None
    assert long is not None
    assert last is not None
    assert long >= 0.05 > 0.045 > 0
    assert long > short > 0
    assert [row.measure_type for row in benchmark.rows()] == ["time"] * 3


def test_nested_calls_have_both_rows(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([TimeMetric()], benchmark)
    def outer(depth: int) -> None:
        if depth:
            outer(depth - 1)

    outer(2)
    seconds = [row.value or 0.0 for row in benchmark.rows()]
    assert len(seconds) == 3
    assert seconds == sorted(seconds, reverse=True)


def test_threads_at_once_have_a_row_each(benchmark: Benchmark) -> None:
    together = threading.Barrier(4)

    @BenchmarkSupervisor([TimeMetric()], benchmark)
    def work() -> None:
        together.wait(30)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(benchmark) == [("work", "ok")] * 4


def test_async_functions_are_timed_while_they_run(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([TimeMetric()], benchmark)
    async def fetch(wait: float) -> float:
        await asyncio.sleep(wait)
        return wait

    async def both() -> list[float]:
        return await asyncio.gather(fetch(0.05), fetch(0.05))

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(both()) == [0.05, 0.05]
    assert [(row.value or 0) >= 0.04 for row in benchmark.rows()] == [True, True]


def test_generators_last_from_the_first_value_to_the_end(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([TimeMetric()], benchmark)
    def numbers() -> Iterator[int]:
        yield 1
        yield 2

    @BenchmarkSupervisor([TimeMetric()], benchmark)
    async def later() -> AsyncIterator[int]:
        yield 3

    async def gather() -> list[int]:
        return [number async for number in later()]

    made = numbers()
    assert benchmark.rows() == []
    assert list(made) == [1, 2]
    assert asyncio.run(gather()) == [3]
    assert next(iter(numbers())) == 1
    assert names(benchmark) == [("numbers", "ok"), ("later", "ok"), ("numbers", "ok")]


def test_a_generator_takes_what_is_sent_and_returns(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([], benchmark)
    def echo() -> Iterator[int]:
        got = yield 1
        try:
            yield got
        except KeyError:
            yield -1
        return 7

    made = echo()
    assert (next(made), made.send(5), made.throw(KeyError())) == (1, 5, -1)
    with pytest.raises(StopIteration) as end:
        next(made)
    assert end.value.value == 7


def test_methods_of_every_kind(benchmark: Benchmark) -> None:
    class Model:
        @BenchmarkSupervisor([], benchmark)
        def fit(self) -> str:
            return type(self).__name__

        @BenchmarkSupervisor([], benchmark)
        @staticmethod
        def load() -> int:
            return 1

        @classmethod
        @BenchmarkSupervisor([], benchmark)
        def build(cls) -> str:
            return cls.__name__

    assert (Model().fit(), Model.load(), Model.build()) == ("Model", 1, "Model")
    assert [name for name, _ in names(benchmark)] == ["fit", "load", "build"]


def test_what_has_no_name_is_supervised_too(benchmark: Benchmark) -> None:
    assert BenchmarkSupervisor([], benchmark)(functools.partial(max, 3))(4) == 4
    assert names(benchmark) == [("partial", "ok")]


def test_a_block_is_a_row(benchmark: Benchmark) -> None:
    stage = BenchmarkSupervisor([TimeMetric()], benchmark, name="stage")
    with stage, stage:
        pass
    with pytest.raises(ZeroDivisionError), stage:
        1 / 0  # noqa: B018
    assert names(benchmark) == [("stage", "ok"), ("stage", "ok"), ("stage", "failed")]


def _work(supervised: object) -> None:
    supervised()  # type: ignore[operator]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_processes_write_to_the_same_run(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([TimeMetric()], benchmark)
    def work() -> None:
        pass

    work()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    work()
    assert names(benchmark) == [("work", "ok")] * 5


def test_spawned_processes_join_the_run_of_their_parent(script: object, here: object) -> None:
    text = """
import multiprocessing
from dippm.umlaut import Benchmark, BenchmarkSupervisor, TimeMetric

bm = Benchmark("runs.db")

@BenchmarkSupervisor([TimeMetric()], bm)
def work(number):
    return number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(work, range(4)) == [0, 1, 2, 3]
    print(len([row for row in bm.rows() if row.status == "ok"]))
    bm.close()
"""
    assert script(text).stdout.split() == ["4"]  # type: ignore[operator]
    assert len(list((here / "spool").iterdir())) == 1  # type: ignore[operator]
