"""A worker and the process that started it: frames over pipes, limits, and words for its end.

A worker is a plain fresh interpreter and not one of `multiprocessing`, because that runs the
caller's main script once more, which breaks scripts without a ``__main__`` guard. It may hang, talk
without end or die at any moment: the caller waits for no longer than it was told, and hears how it
ended. Nothing outlives the caller, also when that is killed: a worker has a guard (`start_guard`),
or the kernel ends it with its parent's thread (`follow_parent`); and it ends itself some time after
its limit (`end_after`), for a caller that no longer listens. One that reads a stranger's file gives
up what that does not need (`enter_sandbox`).

Caller's side: `WorkerPipes`. Worker's side: the functions.
"""

from dippm.base.process.guard import leave_guard, start_guard
from dippm.base.process.limits import (
    cpu_limit_s,
    end_after,
    end_after_cpu,
    end_before_cpu_limit,
    follow_parent,
    limit_files,
    limit_memory,
)
from dippm.base.process.pipes import (
    BadFrameError,
    Message,
    Remaining,
    TimedOutError,
    WorkerDiedError,
    WorkerPipes,
    describe_exit,
    is_out_of_memory,
    own_pipes,
    read_frame,
    signal_name,
    tells_out_of_memory,
    write_frame,
)
from dippm.base.process.sandbox import Sandbox, enter_sandbox

__all__ = [
    "BadFrameError",
    "Message",
    "Remaining",
    "Sandbox",
    "TimedOutError",
    "WorkerDiedError",
    "WorkerPipes",
    "cpu_limit_s",
    "describe_exit",
    "end_after",
    "end_after_cpu",
    "end_before_cpu_limit",
    "enter_sandbox",
    "follow_parent",
    "is_out_of_memory",
    "leave_guard",
    "limit_files",
    "limit_memory",
    "own_pipes",
    "read_frame",
    "signal_name",
    "start_guard",
    "tells_out_of_memory",
    "write_frame",
]
