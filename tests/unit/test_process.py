"""Pipes to a worker that talks, hangs, dies, or leaves children behind."""

from __future__ import annotations

import os
import sys
import time

import pytest

from dippm.base.process import (
    BadFrameError,
    TimedOutError,
    WorkerDiedError,
    WorkerPipes,
    describe_exit,
)

SERVER = """
import os, subprocess, sys, time
from dippm.base.process import own_pipes, read_frame, write_frame
requests, answers = own_pipes()
while True:
    try:
        request = read_frame(requests)
    except EOFError:
        break
    exec(request["do"])
    write_frame(answers, {"echo": request.get("text", ""), "stdin": sys.stdin.read()})
"""


@pytest.fixture
def worker():
    paths = os.pathsep.join(p for p in sys.path if p)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = WorkerPipes([sys.executable, "-c", SERVER], {**buffered, "PYTHONPATH": paths})
    yield pipes
    pipes.kill()


def ask(worker, do, *, text="", seconds=60.0):
    worker.send({"do": do, "text": text})
    end = time.monotonic() + seconds
    return worker.receive(lambda: end - time.monotonic())


def test_long_frames_pass_a_worker_that_talks(worker):
    text = "ä" * (4 << 20)
    answer = ask(worker, "print('noise ' * 500_000, flush=True)", text=text)
    assert answer == {"echo": text, "stdin": ""}
    assert worker.last_words().endswith("noise")
    assert len(worker.last_words(100)) == 100


def test_talking_without_end_does_not_hold_up_the_caller(worker):
    with pytest.raises(TimedOutError):
        ask(worker, "while True: os.write(2, b'x' * 65536)", seconds=1.0)
    assert worker.alive


def test_an_end_is_told_at_once_and_with_its_last_words(worker):
    with pytest.raises(WorkerDiedError, match="exit code 7") as caught:
        ask(worker, "print('the last words', flush=True); os._exit(7)")
    assert caught.value.code == 7
    assert worker.last_words() == "the last words"
    with pytest.raises(WorkerDiedError, match="exit code 7"):
        ask(worker, "pass")


def test_a_printed_line_is_not_lost_with_its_worker(worker):
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        ask(worker, "print('printed, not flushed'); os.kill(os.getpid(), 9)")
    assert worker.last_words() == "printed, not flushed"


def test_a_child_that_keeps_the_pipes_does_not_hide_the_end(worker):
    lingering = "subprocess.Popen(['sleep', '600'], close_fds=False); os.kill(os.getpid(), 11)"
    with pytest.raises(WorkerDiedError) as caught:
        ask(worker, "os.set_inheritable(answers.fileno(), True); " + lingering)
    assert str(caught.value) == describe_exit(-11) == "killed by SIGSEGV"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("(1 << 62).to_bytes(8, 'little')", "4,611,686,018,427,387,904 bytes"),
        ("(2).to_bytes(8, 'little') + b'{]'", "invalid JSON"),
        ("(90_000).to_bytes(8, 'little') + b'[' * 90_000", "invalid JSON"),
        ("(2).to_bytes(8, 'little') + b'[]'", "invalid message"),
    ],
)
def test_what_is_no_message_is_not_waited_for(worker, sent, words):
    with pytest.raises(BadFrameError, match=words) as caught:
        ask(worker, f"answers.write({sent}); sys.stdin = open(0, closefd=False); time.sleep(600)")
    assert caught.value.code is None


def test_closing_lets_the_worker_end_by_itself(worker):
    ask(worker, "pass")
    worker.close()
    assert worker.wait(0) == 0


def test_what_a_worker_started_ends_with_it(worker):
    answers, writes = os.pipe()
    os.set_inheritable(writes, True)
    paths = os.pathsep.join(p for p in sys.path if p)
    parent = WorkerPipes(
        [sys.executable, "-c", SERVER], {**os.environ, "PYTHONPATH": paths}, inherited=[writes]
    )
    os.close(writes)
    ask(parent, "subprocess.Popen(['sleep', '600'], close_fds=False)")
    parent.kill()
    with open(answers, "rb") as all_ended:
        assert all_ended.read() == b""  # the child of the worker held the other end
