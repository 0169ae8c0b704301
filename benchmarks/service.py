"""How fast `dippm serve` answers, whether it loses anything, and whether its memory stays flat.

    python -m benchmarks.service [--rate 200] [--seconds 20] [--uploads 16] [--requests 10000]

Three runs against a service in a process of its own, on this machine:

* cached: so many predictions a second that are known already, by clients that keep their
  connections; each is sent at its time whether the ones before were answered or not, and is timed
  from then (no coordinated omission).
* uploads: so many clients at once, each with another model, which nobody has converted; what comes
  back has to be about the model that was sent.
* flat: so many requests one after another, uploads, names, errors and jobs among them; resident
  memory of the service and of all that it started, after the first tenth and at the end.

`--limit-s` bounds each of them. Times are this machine's, and depend on who else works on it; the
processor's time for a request does not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from dippm.client import Client
from dippm.errors import DippmError

GOAL_P99_MS = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--uploads", type=int, default=16)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--limit-s", type=float, default=300.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models = [write_model(folder / f"model-{n}.onnx", n) for n in range(given.uploads)]
        service = Served(folder)
        try:
            cached(service, models[0], given)
            uploads(service, models, given)
            flat(service, models[0], given)
        finally:
            service.close()


class Served:
    """`dippm serve` on a free port."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "log.jsonl").open("wb")
        words = [sys.executable, "-m", "dippm", "serve", "--port", "0", "--root", str(folder)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]
        self.pid = self._process.pid
        with Client(self.address) as client:
            while client.health()["status"] != "ok":
                time.sleep(0.1)
            while "dippm_workers_started_total 2" not in client.metrics():
                time.sleep(0.1)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def memory_mb(self) -> tuple[float, float]:
        """Return the resident memory of the service, and with all that it started."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(words[1]), []).append(int(entry.name))
        below, left = [self.pid], [self.pid]
        while left:
            found = parents.get(left.pop(), [])
            below += found
            left += found
        return resident_mb(self.pid), sum(map(resident_mb, below))


def cpu_s(pid: int) -> float:
    """Return seconds of the processor that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int | str) -> float:
    """Return seconds that the threads of a process were ready to run and had no processor."""
    waited = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            waited += int((thread / "schedstat").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return waited / 1e9


def resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def write_model(path: Path, number: int) -> Path:
    """Write a convolutional network that no other number has."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    width, nodes, constants, before = 8 + number, [], [], "x"
    for depth in range(6):
        shape = (width, 3 if depth == 0 else width, 3, 3)
        constants.append(numpy_helper.from_array(np.ones(shape, np.float32), f"k{depth}"))
        convolution = helper.make_node("Conv", [before, f"k{depth}"], [f"c{depth}"], pads=[1] * 4)
        nodes += [convolution, helper.make_node("Relu", [f"c{depth}"], [f"r{depth}"])]
        before = f"r{depth}"
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 64, 64])
    out = helper.make_tensor_value_info(before, TensorProto.FLOAT, ["n", width, 64, 64])
    graph = helper.make_graph(nodes, f"model {number}", [image], [out], constants)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def cached(service: Served, model: Path, given: argparse.Namespace) -> None:
    """Ask at a steady rate for what is known."""
    batches = range(1, 33)
    with Client(service.address) as client:
        for batch in batches:
            client.predict({"path": model.name}, batch=batch)
    total = int(given.rate * min(given.seconds, given.limit_s))
    times: list[float] = []
    failed: list[str] = []
    lock, began = threading.Lock(), time.perf_counter() + 0.5
    used_s, waited = cpu_s(service.pid), waited_s(service.pid)

    def run(first: int) -> None:
        with Client(service.address) as client:
            client.health()
            for number in range(first, total, given.clients):
                due = began + number / given.rate
                time.sleep(max(0.0, due - time.perf_counter()))
                try:
                    client.predict({"path": model.name}, batch=batches[number % len(batches)])
                    took = time.perf_counter() - due
                    with lock:
                        times.append(took)
                except DippmError as error:
                    with lock:
                        failed.append(str(error))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(given.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    waited = waited_s(service.pid) - waited
    used_ms = 1e3 * (cpu_s(service.pid) - used_s) / max(len(times), 1)
    times.sort()
    p50, p95, p99 = (1e3 * times[int(q * (len(times) - 1))] for q in (0.5, 0.95, 0.99))
    print(
        f"cached: {len(times):,} of {total:,} answered, {len(failed)} failed, "
        f"{len(times) / took_s:.0f}/s (asked for {given.rate:g}); "
        f"median {p50:.1f} ms, p95 {p95:.1f}, p99 {p99:.1f} (goal {GOAL_P99_MS:g}), "
        f"most {1e3 * times[-1]:.1f}; {used_ms:.2f} ms of the processor each, "
        f"for which the service waited {waited:.1f} s of {took_s:.0f}"
    )


def uploads(service: Served, models: list[Path], given: argparse.Namespace) -> None:
    """Upload different models at once."""
    answers: dict[int, dict] = {}
    failed: list[str] = []

    def run(number: int) -> None:
        try:
            with Client(service.address, timeout_s=given.limit_s, name=f"c{number}") as client:
                answers[number] = client.predict(models[number], batch=4)
        except Exception as error:
            failed.append(f"{number}: {error}")

    began = time.perf_counter()
    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    right = sum(found["source"] == models[n].name for n, found in answers.items())
    own, all_mb = service.memory_mb()
    print(
        f"uploads: {right} of {len(models)} answered about their own model, {len(failed)} failed, "
        f"in {took_s:.1f} s; the service has {own:.0f} MB, with its processes {all_mb:.0f}"
    )
    for words in failed:
        print(f"  {words}")


def flat(service: Served, model: Path, given: argparse.Namespace) -> None:
    """Ask many times, in many ways, and watch the memory."""
    codes: Counter[str] = Counter()
    first_own = first_all = 0.0
    began, done = time.perf_counter(), 0
    content = model.read_bytes()
    with Client(service.address) as client:
        for number in range(given.requests):
            if time.perf_counter() - began > given.limit_s:
                break
            try:
                if number % 50 == 0:  # a new question: a job, answered by a process
                    client.predict(model, batch=100 + number)
                elif number % 10 == 1:  # an upload that is known
                    client.predict(model, batch=1 + number % 7)
                elif number % 10 == 2:  # what is wrong
                    client.predict({"path": "none.onnx"})
                elif number % 100 == 3:  # a file that is none
                    path = model.with_name("noise.bin")
                    path.write_bytes(content[:100] + str(number).encode())
                    client.predict(path)
                else:
                    client.predict({"path": model.name}, batch=1 + number % 32)
                codes["answered"] += 1
            except DippmError as error:
                codes[type(error).__name__] += 1
            done += 1
            if done == given.requests // 10:
                first_own, first_all = service.memory_mb()
    own, all_mb = service.memory_mb()
    took_s = time.perf_counter() - began
    print(
        f"flat: {done:,} of {given.requests:,} requests in {took_s:.0f} s ({dict(codes)}); "
        f"the service {first_own:.0f} -> {own:.0f} MB, with its processes "
        f"{first_all:.0f} -> {all_mb:.0f} MB"
    )


if __name__ == "__main__":
    main()
