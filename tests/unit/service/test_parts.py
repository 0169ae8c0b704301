"""Parts of the service by themselves: turns, results, uploads, zips, counts."""

from __future__ import annotations

import asyncio
import io
import subprocess
import threading
import zipfile

import pytest

from dippm.errors import DippmError, UnknownFormatError
from dippm.show.service.access import Access, TokenError
from dippm.show.service.answering import UNPACKED, _answer, unpack
from dippm.show.service.errors import (
    BadQuestionError,
    BusyError,
    ClosingError,
    JobCancelledError,
    NotHereError,
    TooLargeError,
    status_of,
)
from dippm.show.service.jobs import MOST_STAGES, FairQueue, Job
from dippm.show.service.metrics import Metrics
from dippm.show.service.pool import AnswerPool
from dippm.show.service.questions import Predict
from dippm.show.service.service import ResultCache
from dippm.show.service.uploads import Uploads

PREDICT = Predict().arguments()


def job(client: str, key: str = "k") -> Job:
    return Job("predict", key, client, {})


def test_clients_take_turns_and_positions_say_so():
    queue = FairQueue(100, 100)
    jobs = [job("a", f"a{n}") for n in range(3)] + [job("b", f"b{n}") for n in range(2)]
    jobs.append(job("c", "c0"))
    for one in jobs:
        queue.put(one, 1)
    positions = {one.key: queue.position(one) for one in jobs}
    order = [queue.take().key for _ in jobs]
    assert order == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert [positions[key] for key in order] == [1, 2, 3, 4, 5, 6]
    assert len(queue) == 0


def test_a_queue_that_is_full_or_closed_takes_nothing():
    queue = FairQueue(3, 2)
    queue.put(job("a"), 7)
    queue.put(job("a"), 7)
    with pytest.raises(BusyError, match="2 questions of this client wait") as error:
        queue.put(job("a"), 7)
    assert error.value.retry_after_s == 7
    queue.put(job("b"), 7)
    with pytest.raises(BusyError, match="3 questions wait"):
        queue.put(job("c"), 7)
    assert len(queue.close()) == 3
    assert queue.take() is None
    with pytest.raises(ClosingError):
        queue.put(job("d"), 7)


def test_a_job_that_lost_its_process_is_the_next():
    queue = FairQueue(10, 10)
    for one in (job("a", "a0"), job("b", "b0")):
        queue.put(one, 1)
    queue.put_first(job("b", "again"))
    assert [queue.take().key for _ in range(3)] == ["again", "a0", "b0"]


def test_what_waits_can_be_dropped():
    queue = FairQueue(10, 10)
    one, other = job("a", "a0"), job("a", "a1")
    queue.put(one, 1)
    queue.put(other, 1)
    assert queue.drop(one)
    assert not queue.drop(one)
    assert queue.position(one) is None
    assert queue.position(other) == 1
    assert queue.take() is other


def test_a_job_ends_once():
    one = job("a")
    ends = [one.finish("text"), one.finish(None, DippmError("late"))]
    assert ends == [True, False]
    assert (one.state, one.text, one.error) == ("done", "text", None)
    other = job("a")
    other.finish(None, JobCancelledError("x"))
    assert other.state == "cancelled"


def test_an_answer_is_kept_before_anybody_hears_that_it_is_there(tmp_path):
    job, seen = Job("predict", "key", "client", {}), []
    pool = AnswerPool(
        FairQueue(1, 1),
        tmp_path,
        workers=0,
        memory_limit_mb=1,
        metrics=Metrics(),
        keep=lambda key, text: seen.append((key, text, job.ended)),
        ended=lambda job: seen.append(job.ended),
    )
    pool._end(job, "{}", None)
    assert seen == [("key", "{}", False), True]


def test_a_talkative_job_keeps_its_first_and_last_stages():
    one = job("a")
    for number in range(3 * MOST_STAGES):
        one.tell(str(number))
    assert len(one.stages) == MOST_STAGES
    assert one.stages[0][1] == "0"
    assert one.to_dict()["stage"] == str(3 * MOST_STAGES - 1)


def test_whoever_listens_hears_of_changes_from_any_thread():
    one = job("a")

    async def listen():
        event, end = one.listen(asyncio.get_running_loop())
        threading.Thread(target=one.tell, args=("working",)).start()
        await asyncio.wait_for(event.wait(), 60)
        end()
        return one.version

    assert asyncio.run(listen()) == 1
    one.tell("nobody listens")  # and the loop is closed


def test_results_go_by_their_size_and_last_use():
    results = ResultCache(10)
    results.keep("a", "1234")
    results.keep("b", "1234")
    assert results.find("a") == "1234"
    results.keep("c", "1234")  # b was used least
    assert [results.find(key) for key in "abc"] == ["1234", None, "1234"]
    results.keep("a", "12")
    assert results.size == 6
    results.keep("huge", "x" * 11)
    assert results.find("huge") is None
    off = ResultCache(0)
    off.keep("a", "1")
    assert off.find("a") is None


@pytest.fixture
def uploads(tmp_path):
    made = Uploads(tmp_path, 3, 1)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def arrive(uploads, content: bytes, name="m.onnx", *, keep=False):
    with uploads.receive(name, 2) as arriving:
        arriving.take(content)
        return arriving.whole(keep=keep)


def test_an_upload_goes_with_its_last_user(uploads):
    one, same = arrive(uploads, b"abc"), arrive(uploads, b"abc")
    assert one is same
    assert one.file.read_bytes() == b"abc"
    uploads.release(one)
    assert one.file.exists()
    uploads.release(same)
    assert not one.folder.exists()
    assert len(uploads) == uploads.size == 0


def test_what_is_kept_stays_until_there_is_no_room(uploads):
    first = arrive(uploads, b"1" * (700 << 10), keep=True)
    uploads.release(first)
    assert uploads.find(first.sha256) is first
    uploads.release(first)
    second = arrive(uploads, b"2" * (700 << 10), keep=True)
    assert not first.folder.exists()
    with pytest.raises(NotHereError):
        uploads.find(first.sha256)
    uploads.forget(second.sha256)  # it is in use once more
    assert second.folder.exists()
    uploads.release(second)
    assert not second.folder.exists()


def test_uploads_have_limits_and_leave_nothing_behind(uploads):
    with pytest.raises(TooLargeError):
        arrive(uploads, b"x" * (2 << 20) + b"y")
    with pytest.raises(BadQuestionError, match="empty"):
        arrive(uploads, b"")
    for name in ("", "..", "a/b", ".hidden", "x" * 101, "a\n"):
        with pytest.raises(BadQuestionError):
            uploads.receive(name, 1)
    assert uploads.size == 0
    assert [entry.name for entry in uploads.folder.iterdir()] == ["lock"]


def packed(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def test_a_folder_is_unpacked_once(tmp_path):
    path = packed(tmp_path / "a.zip", ("m/saved_model.pb", b"x"), ("m/variables/v", b"y"))
    folder = unpack(path, tmp_path / "out", 1 << 20)
    assert folder == tmp_path / "out" / "m"
    assert unpack(path, tmp_path / "out", 0) == folder
    assert (folder / "variables" / "v").read_bytes() == b"y"


@pytest.mark.parametrize(
    "members",
    [
        [("m/a.onnx", b"1"), ("m/a.onnx", b"2")],
        [("a", b""), ("a/b.onnx", b"")],
        [("x" * 300 + ".onnx", b"")],
        [("a\\b.onnx", b"")],
        [("../a.onnx", b"")],
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_that_cannot_be_a_folder_is_refused(tmp_path, members):
    path = packed(tmp_path / "a.zip", *members)
    with pytest.raises(UnknownFormatError):
        unpack(path, tmp_path / "out", 1 << 20)
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_unpacked_goes_with_the_answer(tmp_path):
    path = packed(tmp_path / "a.zip", ("m/saved_model.pb", b"x"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / f"{UNPACKED}{ended.pid}").mkdir()  # of a process that was killed
    (tmp_path / f"{UNPACKED}1").mkdir()  # of another that works
    given = {"name": None, "path": str(path), "unpack_mb": 1}
    question = {"kind": "predict", "sources": [given], "limits": {}, "arguments": PREDICT}
    assert "error" in _answer(question, io.BytesIO())
    assert {one.name for one in tmp_path.iterdir()} == {"a.zip", f"{UNPACKED}1"}


def test_the_token_is_the_one_or_none():
    assert Access().lets_in("")
    access = Access("a-token-that-nobody-guesses")
    assert access.lets_in("Bearer a-token-that-nobody-guesses")
    assert access.lets_in("", "a-token-that-nobody-guesses")
    for given in ("", "Basic a-token-that-nobody-guesses", "Bearer x", "Bearer"):
        assert not access.lets_in(given, "")
    assert Access().forbids("127.0.0.1:8060", None) is None
    assert Access().forbids("evil.example", None)
    assert access.forbids("evil.example", None) is None
    assert access.forbids("a.example", "http://b.example")
    with pytest.raises(TokenError):
        Access("short")


def test_metrics_add_up():
    metrics = Metrics()
    for seconds in (0.0001, 0.02, 500):
        metrics.time("dippm_request_seconds", seconds, route="/x")
    lines = metrics.text().splitlines()
    bucket = 'dippm_request_seconds_bucket{route="/x",le='
    assert f'{bucket}"0.001"}} 1' in lines
    assert f'{bucket}"0.025"}} 2' in lines
    assert f'{bucket}"+Inf"}} 3' in lines
    assert 'dippm_request_seconds_count{route="/x"} 3' in lines


def test_every_error_of_a_prediction_has_a_status():
    import dippm.errors

    kinds = [k for k in vars(dippm.errors).values() if isinstance(k, type)]
    for kind in kinds:
        if issubclass(kind, DippmError) and kind is not dippm.errors.NothingFeasibleError:
            assert 400 <= status_of(kind("x", "y")) < 600
