"""`tracked`: record every call of a function, of whatever kind, as a span."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from functools import wraps
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, TypeVar, cast, overload

from dippm.runs.tracking.metrics import CallMetric, call_metrics
from dippm.runs.tracking.run import Run, current
from dippm.runs.tracking.span_block import SpanBlock

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def tracked(function: Function, /) -> Function: ...


@overload
def tracked(
    *, name: str = "", metrics: Iterable[str | CallMetric] = (), run: Run | None = None
) -> Callable[[Function], Function]: ...


def tracked(
    function: Any = None,
    /,
    *,
    name: str = "",
    metrics: Iterable[str | CallMetric] = (),
    run: Run | None = None,
) -> Any:
    """Record every call of a function as a span of the run that is current at that time.

    Functions, methods, coroutines, generators and asynchronous generators keep their kind, their
    results and their exceptions. The span of a generator lasts from its first item to its last,
    without the time that its consumer takes between two items.

    Args:
        function: the function, for `@tracked` without parentheses.
        name: name of the spans, by default the qualified name of the function.
        metrics: metrics of each call: names in `dippm.runs.tracking.metrics`, or objects.
        run: run to record in, instead of the current one.

    Raises:
        UnknownNameError: if a metric does not exist.
    """
    chosen = call_metrics(metrics)
    if function is None:
        return lambda function: _tracked(function, name, chosen, run)
    return _tracked(function, name, chosen, run)


def _tracked(function: Any, name: str, metrics: tuple[CallMetric, ...], run: Run | None) -> Any:
    import inspect  # a tenth of this module's import time, so only when a function is decorated

    if isinstance(function, staticmethod | classmethod):
        return type(function)(_tracked(function.__func__, name, metrics, run))
    label = quoted(name or getattr(function, "__qualname__", type(function).__name__))

    def begin() -> SpanBlock:
        return SpanBlock(run or current(), label, metrics)

    if inspect.isasyncgenfunction(function):
        return _async_generator(function, begin)
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, begin)
    if inspect.isgeneratorfunction(function):
        return _generator(function, begin)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with begin():
            return function(*args, **kwargs)

    return call


def _coroutine(function: Any, begin: Callable[[], SpanBlock]) -> Any:
    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with begin():
            return await function(*args, **kwargs)

    return call


def _generator(function: Any, begin: Callable[[], SpanBlock]) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        items = function(*args, **kwargs)
        block = begin()
        resume, argument = items.send, None
        with _UntilClosed(block):
            while True:
                try:
                    item = resume(argument)
                except StopIteration as stop:
                    return stop.value
                block.leave()
                try:
                    argument = yield item
                    resume = items.send
                except GeneratorExit:
                    block.come_back()
                    items.close()
                    raise
                except BaseException as error:
                    resume, argument = items.throw, cast(Any, error)
                block.come_back()

    return call


def _async_generator(function: Any, begin: Callable[[], SpanBlock]) -> Any:
    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        items = function(*args, **kwargs)
        block = begin()
        resume, argument = items.asend, None
        with _UntilClosed(block):
            while True:
                try:
                    item = await resume(argument)
                except StopAsyncIteration:
                    return
                block.leave()
                try:
                    argument = yield item
                    resume = items.asend
                except GeneratorExit:
                    block.come_back()
                    await items.aclose()
                    raise
                except BaseException as error:
                    resume, argument = items.athrow, cast(Any, error)
                block.come_back()

    return call


class _UntilClosed:
    """The block of a generator: closing it early is not a failure."""

    __slots__ = ("_block",)

    def __init__(self, block: SpanBlock) -> None:
        self._block = block

    def __enter__(self) -> None:
        self._block.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is GeneratorExit:
            kind = error = traceback = None
        self._block.__exit__(kind, error, traceback)
