"""The sampler as a real process: killed, starved of disk, told to stop, left alone."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from dippm.errors import MeasurementError
from dippm.measure import sampler_writer
from dippm.measure.readings import Quantity, Readings
from dippm.measure.sampler import main, parse
from dippm.measure.sampler_file import read
from dippm.measure.sampler_start import start
from dippm.measure.sampler_writer import Writer
from dippm.measure.sources.recorded import RecordedSource, Recording
from dippm.measure.sources.registry import open_source


@pytest.fixture
def workload():
    """A process that sleeps until its input closes."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.stdin.close()
    child.wait()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "samples.dippm"


def wait_for(sampler, out, count):
    """Wait until the file holds so many readings of the tree."""
    assert sampler.wait_until_ready(30)
    deadline = time.monotonic() + 30
    while len(read(out).series["tree"].time_ns) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_samples_until_it_is_told_to_stop(workload, out):
    before = time.time_ns()
    sampler = start(out, pid=workload.pid, hz=50, sources=("tree", "host@10"))
    wait_for(sampler, out, 20)
    assert sampler.stop() == 0
    samples = read(out)
    tree, host = samples.series["tree"], samples.series["host"]
    assert samples.end["end"] == "SIGTERM"
    assert samples.header["pid"] == workload.pid
    assert samples.damaged_bytes == 0
    assert set(tree.values["processes"]) == {1.0}
    assert tree.values["rss_mb"][-1] > 1
    assert 2 < len(host.time_ns) < len(tree.time_ns) / 2
    assert before < samples.wall_ns(tree.time_ns[0]) < time.time_ns()
    lengths = {len(column) for column in (*tree.values.values(), *tree.fresh.values())}
    assert lengths == {len(tree.time_ns)}


def test_it_ends_with_the_watched_process_and_sees_its_last_cpu_seconds(out):
    code = (
        "import time\ninput()\ne = time.process_time() + 0.3\nwhile time.process_time() < e: pass"
    )
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)
    sampler = start(out, pid=child.pid, hz=2)
    wait_for(sampler, out, 1)
    child.communicate(b"\n")
    # The child is waited for at once, so its last figures may be gone; ours never go back.
    assert os.waitstatus_to_exitcode(os.waitpid(sampler.pid, 0)[1]) == 0
    samples = read(out)
    assert "has ended" in samples.end["end"]
    cpu = samples.series["tree"].values["cpu_s"]
    assert cpu == sorted(cpu)


def test_an_ended_process_shows_its_last_figures_until_it_is_waited_for(out):
    code = (
        "import time\ninput()\ne = time.process_time() + 0.3\nwhile time.process_time() < e: pass"
    )
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)
    sampler = start(out, pid=child.pid, hz=2)
    wait_for(sampler, out, 1)
    child.stdin.write(b"\n")
    child.stdin.close()
    assert os.waitstatus_to_exitcode(os.waitpid(sampler.pid, 0)[1]) == 0
    child.wait()
    assert read(out).series["tree"].values["cpu_s"][-1] >= 0.3


def test_a_kill_costs_at_most_what_was_not_yet_written(workload, out):
    sampler = start(out, pid=workload.pid, hz=100)
    wait_for(sampler, out, 60)
    os.kill(sampler.pid, signal.SIGKILL)
    os.waitpid(sampler.pid, 0)
    samples = read(out)
    assert samples.end is None
    assert samples.damaged_bytes == 0
    assert len(samples.series["tree"].time_ns) >= 60


def test_a_full_disk_ends_it_with_a_word_and_a_readable_file(workload, out):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    words = ["--pid", str(workload.pid), "--hz", "200", "--out", str(out)]
    ended = subprocess.run(
        [sys.executable, "-m", "dippm.measure.sampler", *words],
        preexec_fn=small_files,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "File too large" in ended.stderr
    assert "Traceback" not in ended.stderr
    samples = read(out)
    assert len(samples.series["tree"].time_ns) > 50
    assert out.stat().st_size == 6000
    assert samples.end is None


def test_two_samplers_never_share_a_file(workload, out):
    out.write_bytes(b"kept")
    sampler = start(out, pid=workload.pid)
    assert os.waitstatus_to_exitcode(os.waitpid(sampler.pid, 0)[1]) == 1
    assert out.read_bytes() == b"kept"


def test_times_lie_on_a_grid_without_drift(workload, out):
    sampler = start(out, pid=workload.pid, hz=100)
    wait_for(sampler, out, 100)
    sampler.stop()
    samples = read(out)
    times = samples.series["tree"].time_ns[:-1]  # the last reading is made at the end
    period = 10_000_000
    ticks = len(times) - 1
    passed = (times[-1] - times[0]) / period
    # Each reading is less than a period late, whatever the load: a later one is counted as missed.
    assert abs(passed - ticks - samples.end["missed"]) < 2


def test_a_workload_does_not_see_its_sampler_in_its_tree(tmp_path):
    code = (
        "import sys, time\n"
        "from dippm.measure.sampler_start import start\n"
        "heavy = {'numpy', 'torch', 'pyarrow', 'pandas', 'subprocess'} & set(sys.modules)\n"
        "sampler = start(sys.argv[1], hz=50)\n"
        "assert sampler.wait_until_ready(30)\n"
        "time.sleep(0.3)\n"
        "print(sampler.stop(), sampler.stop(), sorted(heavy))\n"
    )
    out = tmp_path / "own.dippm"
    told = subprocess.run(
        [sys.executable, "-c", code, out], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == "0 0 []\n"
    assert set(read(out).series["tree"].values["processes"]) == {1.0}


def test_files_of_the_current_folder_are_not_taken_for_modules(tmp_path):
    for name in ("select", "signal", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    code = (
        "import sys; from dippm.measure.sampler_start import start\n"
        "sampler = start('own.dippm')\n"
        "ready = sampler.wait_until_ready(30)\n"
        "print(ready, sampler.stop())\n"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (told.stdout, told.stderr) == ("True 0\n", "")
    assert set(read(tmp_path / "own.dippm").series["tree"].values["processes"]) == {1.0}


def test_nothing_heavy_is_imported():
    code = (
        "import sys, dippm.measure.sampler\n"
        "from dippm.measure.sources.registry import open_source\n"
        "for name in ('tree', 'host', 'nvml', 'rapl'): open_source(name).read()\n"
        "print(sorted({'numpy', 'torch', 'pyarrow', 'pandas', 'argparse', 'rich',"
        " 'typer', 'pydantic', 'psutil'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert told.stdout == "[]\n", told.stderr


def test_its_start_imports_only_what_the_tree_needs():
    code = (
        "import sys, dippm.measure.sampler\n"
        "from dippm.measure.sources.registry import open_source\n"
        "open_source('tree').read()\n"
        "print(sorted({'dataclasses', 'inspect', 'pathlib', 'tempfile', 'difflib', 'site',"
        " 'subprocess', 'importlib.resources', 'unicodedata'} & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert told.stdout == "[]\n", told.stderr


def test_sources_find_the_packages_that_are_installed(workload, out):
    here = set(open_source("nvml").read().absent.values())
    sampler = start(out, pid=workload.pid, sources=("tree", "nvml"))
    wait_for(sampler, out, 1)
    sampler.stop()
    assert {why for _, _, why in read(out).series["nvml"].reasons} == here


def test_memory_stays_below_its_target(workload, out):
    sampler = start(out, pid=workload.pid, hz=100, sources=("tree", "host", "rapl"))
    wait_for(sampler, out, 50)
    with open(f"/proc/{sampler.pid}/smaps_rollup") as file:
        sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in file if "kB" in line}
    sampler.stop()
    assert sizes["Rss:"] <= 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pid"], "has no value"),
        (["--pid", "1"], "needed"),
        (["--pid", "1", "--out", "x", "--hz", "0"], "--hz"),
        (["--pid", "1", "--out", "x", "--nice", "3"], "unknown option --nice"),
        (["--pid", "x", "--out", "x"], "invalid literal"),
        (["--pid", "99999999", "--out", "x"], "there is no process"),
    ],
)
def test_bad_command_lines_are_explained(words, message, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "usage:" in error


def test_sources_have_rates():
    words = ["--pid", "1", "--out", "x", "--hz", "100", "--sources", "tree,nvml@10,host@0.5"]
    order = parse(words)
    assert order.sources == (("tree", 1), ("nvml", 10), ("host", 200))


def test_unknown_sources_are_refused(workload, out):
    words = ["--pid", str(workload.pid), "--out", str(out), "--sources", "treee"]
    ended = subprocess.run(
        [sys.executable, "-m", "dippm.measure.sampler", *words], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "Did you mean tree" in ended.stderr
    assert not out.exists()


QUANTITIES = tuple(Quantity(f"q{n}", "J", "device", "", counter=True) for n in range(10))


def written(out, rows):
    """Write rows of values (None: absent) and return the file's path."""
    source = RecordedSource(Recording("made", "synthetic", "", "", "", QUANTITIES, ()))
    writer = Writer(out, [source], {"pid": 1, "hz": 1})
    for number, row in enumerate(rows):
        named = dict(zip((q.name for q in QUANTITIES), row, strict=True))
        values = {name: value for name, value in named.items() if value is not None}
        absent = {name: f"why {name}" for name in named if name not in values}
        writer.add(0, Readings(number, values, absent))
        writer.flush()
    writer.close()
    return out


def test_what_is_read_is_what_was_written(out):
    rows = [
        [float(n) for n in range(10)],
        [0.0, None, *(float(n) for n in range(2, 10))],
        [-1e300, 5e-324, *(float(n) for n in range(2, 10))],
        [None] * 10,
    ]
    series = read(written(out, rows)).series["made"]
    for place, quantity in enumerate(QUANTITIES):
        assert series.values[quantity.name] == [row[place] for row in rows]
    assert series.fresh["q0"] == [True, False, True, False]
    assert series.fresh["q2"] == [True, False, False, False]
    assert [why for _, name, why in series.reasons if name == "q1"] == ["why q1", "why q1"]
    readings = series.readings()
    assert readings[1].absent == {"q1": "why q1"}
    assert readings[0].values == dict(zip((q.name for q in QUANTITIES), rows[0], strict=True))
    assert series.quantities == QUANTITIES


def test_a_value_costs_less_than_ten_bytes_even_if_all_change(out):
    empty = written(out.with_name("empty"), []).stat().st_size
    rows = [[row + place / 7 for place in range(10)] for row in range(500)]
    size = written(out, rows).stat().st_size - empty
    assert size / 5000 < 10.2  # with a frame per reading; frames hold many when sampling
    again = written(out.with_name("again"), [[1.0] * 10] * 500).stat().st_size - empty
    assert again / 5000 < 2.5


def test_a_file_cut_anywhere_gives_what_was_whole(out, tmp_path):
    data = written(out, [[float(n)] * 10 for n in range(5)]).read_bytes()
    first = len(written(tmp_path / "one", [[0.0] * 10]).read_bytes())
    whole = []
    for size in range(first, len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        samples = read(tmp_path / "cut")
        values = samples.series["made"].values["q0"]
        assert values == [float(n) for n in range(len(values))]
        whole.append(len(values))
    assert whole == sorted(whole)
    assert whole[-1] == 4
    (tmp_path / "zeros").write_bytes(data + bytes(100))
    assert read(tmp_path / "zeros").damaged_bytes == 100
    flipped = bytearray(data)
    flipped[-3] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    assert len(read(tmp_path / "flipped").series["made"].time_ns) == 4


def test_other_files_are_refused(tmp_path):
    with pytest.raises(MeasurementError, match="no samples"):
        read(tmp_path / "missing")
    (tmp_path / "other").write_text("hello, this is no file of samples")
    with pytest.raises(MeasurementError, match="not written by the sampler"):
        read(tmp_path / "other")


def test_a_newer_version_is_refused(out, monkeypatch):
    monkeypatch.setattr(sampler_writer, "VERSION", 2)
    written(out, [[1.0] * 10])
    monkeypatch.undo()
    with pytest.raises(MeasurementError, match="cannot be read"):
        read(out)


def test_samples_can_be_replayed(workload, out):
    sampler = start(out, pid=workload.pid, hz=100)
    wait_for(sampler, out, 10)
    sampler.stop()
    series = read(out).series["tree"]
    kept = Recording("tree", "measured", "", "", "", series.quantities, series.readings())
    replayed = RecordedSource(kept)
    readings = replayed.read()
    assert readings.values["processes"] == 1
    assert set(readings.values) | set(readings.absent) == {
        quantity.name for quantity in open_source("tree").quantities
    }
    assert readings.absent["cpu_percent"]


def test_the_header_is_plain_to_read(workload, out):
    sampler = start(out, pid=workload.pid)
    wait_for(sampler, out, 1)
    sampler.stop()
    data = out.read_bytes()
    start_of_text = data.index(b'{"sampler"')
    header = json.JSONDecoder().raw_decode(data[start_of_text:].decode("latin-1"))[0]
    assert header["sources"][0]["quantities"][0] == {
        "name": "cpu_s",
        "unit": "s",
        "scope": "tree",
        "about": "CPU time of all threads, ended ones too",
        "counter": True,
    }
