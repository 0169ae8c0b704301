"""Worker processes: frames over pipes, resource limits, and descriptions of how they ended.

A worker is a fresh interpreter rather than a `multiprocessing` process, which would run the
caller's main script again and break scripts without a ``__main__`` guard. It may hang, produce
endless output or die at any moment: the caller waits with a time limit, and learns how the worker
ended. No worker outlives its caller, even a killed one: it has a guard (`start_guard`), or the
kernel ends it with its parent's thread (`follow_parent`); and it ends itself some time after its
limit (`end_after`) in case the caller no longer listens. A worker that reads an untrusted file
first gives up privileges (`enter_sandbox`).

Caller's side: `WorkerPipes`. Worker's side: the functions.
"""

from dippm.base.process.limits import (
    cpu_limit_s,
    end_after,
    end_after_cpu,
    end_before_cpu_limit,
    follow_parent,
    leave_guard,
    limit_files,
    limit_memory,
    start_guard,
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
