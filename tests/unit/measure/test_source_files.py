"""Sources that read files of the kernel: the host, and RAPL."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dippm.errors import SourceDroppedWarning, UnknownNameError
from dippm.measure.readings import AbsentSource, Quantity
from dippm.measure.sources.calls import Calls, CounterCall, NotHere, limit_cost
from dippm.measure.sources.registry import NAMES, open_source, survey

Q = Quantity("x_w", "W", "host", "")


def test_the_host_is_the_kernels(tmp_path):
    readings = open_source("host").read()
    with open("/proc/meminfo") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in file}
    used = sizes["MemTotal"] - sizes["MemAvailable"]
    assert readings.values["memory_used_mb"] == pytest.approx(used, rel=0.2)
    assert readings.values["load"] >= 0
    for counter in ("disk_read_mb", "disk_written_mb", "network_rx_mb", "network_tx_mb"):
        assert readings.values[counter] >= 0


@pytest.fixture
def machine(tmp_path):
    """Folders like /proc and /sys of a made-up machine."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    for folder in (
        proc / "net",
        sys / "block/sda/device",
        sys / "block/dm-0",
        sys / "block/loop0",
        sys / "class/net/eth0/device",
        sys / "class/net/lo",
        sys / "class/net/docker0",
    ):
        folder.mkdir(parents=True)  # fmt: skip
    (proc / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n")
    (proc / "loadavg").write_text("1.25 0.5 0.1 2/300 12345\n")
    (proc / "meminfo").write_text(
        "MemTotal: 4096 kB\nMemAvailable: 1024 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\n"
    )
    disk = " {} {} 9 9 2048 9 9 9 4096 9 9 9 9\n"
    names = ("8 0 sda", "8 1 sda1", "253 0 dm-0", "7 0 loop0")
    (proc / "diskstats").write_text(
        "".join(disk.format(*n.rsplit(" ", 1)).replace("{}", "") for n in names)
    )
    line = "{}: 1048576 1 0 0 0 0 0 0 2097152 1 0 0 0 0 0 0\n"
    (proc / "net/dev").write_text(
        "head\nhead\n" + "".join(line.format(n) for n in ("eth0", "lo", "docker0"))
    )
    return proc, sys


def test_partitions_and_virtual_devices_are_not_counted_twice(machine):
    proc, sys = machine
    values = open_source("host", proc=proc, sys=sys).read().values
    assert (values["disk_read_mb"], values["disk_written_mb"]) == (1, 2)
    assert (values["network_rx_mb"], values["network_tx_mb"]) == (1, 2)
    assert (values["memory_used_mb"], values["memory_available_mb"]) == (3, 1)
    assert (values["swap_used_mb"], values["load"]) == (1, 1.25)


def test_what_a_kernel_lacks_is_absent_alone(machine):
    proc, sys = machine
    (proc / "diskstats").unlink()
    shutil.rmtree(sys / "class")
    readings = open_source("host", proc=proc, sys=sys).read()
    assert "diskstats does not exist" in readings.absent["disk_read_mb"]
    assert "does not exist" in readings.absent["network_rx_mb"]
    assert readings.values["load"] == 1.25


def test_host_percent_is_the_share_of_time_that_was_not_idle(machine, monkeypatch):
    proc, sys = machine
    clock = iter(range(0, 10_000_000_000, 300_000_000))
    monkeypatch.setattr("dippm.measure.sources.host.time.monotonic_ns", lambda: next(clock))
    monkeypatch.setattr("dippm.measure.sources.host.limit_cost", lambda read: read)
    source = open_source("host", proc=proc, sys=sys)
    first = source.read()
    assert "read again" in first.absent["cpu_percent"]
    (proc / "stat").write_text("cpu  130 0 100 750 120 0 0 0 0 0\n")
    assert source.read().values["cpu_percent"] == pytest.approx(30)


def zone(folder, name, kind, energy_uj, range_uj=1_000_000):
    (folder / name).mkdir(parents=True)
    (folder / name / "name").write_text(kind + "\n")
    (folder / name / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return folder / name / "energy_uj"


def test_rapl_adds_packages_up_and_survives_wrapping(tmp_path):
    first = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 100_000)
    zone(tmp_path, "intel-rapl:2", "psys", 5)
    source = open_source("rapl", folder=tmp_path)
    assert source.read().values == {"package_energy_j": 0}
    first.write_text("100000\n")  # 0.2 J further, over the end of its range
    second.write_text("400000\n")
    readings = source.read()
    assert readings.values == {"package_energy_j": pytest.approx(0.5)}
    assert "memory" in readings.absent["dram_energy_j"]


def test_rapl_that_only_root_may_read_has_a_remedy(tmp_path):
    folder = tmp_path / "powercap"
    file = zone(folder, "intel-rapl:0", "package-0", 1)
    source = open_source("rapl", folder=folder)
    file.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            readings = source.read()
        finally:
            os.seteuid(0)
    else:
        readings = source.read()
    assert readings.values == {}
    assert "sudo chmod a+r" in readings.absent["package_energy_j"]


def test_no_rapl_is_a_reason(tmp_path):
    source = open_source("rapl", folder=tmp_path)
    assert isinstance(source, AbsentSource)
    assert "intel_rapl_msr" in source.read().absent["package_energy_j"]


def test_every_source_answers_for_each_of_its_quantities():
    for name in NAMES:
        if name == "recorded":
            continue
        source = open_source(name)
        for _ in range(2):
            readings = source.read()
            names = {quantity.name for quantity in source.quantities}
            assert set(readings.values) | set(readings.absent) == names
            assert not set(readings.values) & set(readings.absent)
        source.close()
        assert set(source.read().values) == set() or name == "cuda_allocator"


def test_the_survey_gives_a_value_or_a_reason():
    rows = survey(("tree", "host", "nvml"))
    assert {row.source for row in rows} == {"tree", "host", "nvml"}
    for row in rows:
        assert (row.value is None) == bool(row.reason)
    percent = next(r for r in rows if (r.source, r.quantity.name) == ("tree", "cpu_percent"))
    assert percent.value is not None


def test_another_distribution_can_bring_a_source(tmp_path, monkeypatch):
    (tmp_path / "fan.py").write_text(
        "import time\n"
        "from dippm.measure.readings import Quantity, Readings\n"
        "class Fan:\n"
        "    name = 'fan'\n"
        "    quantities = (Quantity('speed_rpm', 'rpm', 'host', 'of the fan'),)\n"
        "    def read(self): return Readings(time.monotonic_ns(), {'speed_rpm': 900.0})\n"
        "    def close(self): pass\n"
    )
    metadata = tmp_path / "fan-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fan\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dippm.sources]\nfan = fan:Fan\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert open_source("fan").read().values == {"speed_rpm": 900.0}


def test_names_are_checked():
    with pytest.raises(UnknownNameError, match="Did you mean nvml"):
        open_source("nvmml")


def test_a_torch_without_cuda_is_a_reason():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert "sees no CUDA device" in open_source("cuda_allocator").read().absent["allocated_mb"]


def test_a_call_that_keeps_failing_is_not_tried_for_ever():
    tried = []

    def read():
        tried.append(1)
        raise OSError("broken")

    calls = Calls("test", [CounterCall((Q,), read)])
    with pytest.warns(SourceDroppedWarning, match="failed 5 times"):
        reasons = [calls.read().absent["x_w"] for _ in range(9)]
    assert len(tried) == 5
    assert set(reasons) == {"OSError: broken"}


def test_not_yet_is_no_failure():
    answers = iter([NotHere("later")] * 20)

    def read():
        try:
            raise next(answers)
        except StopIteration:
            return (1.0,)

    calls = Calls("test", [CounterCall((Q,), read)])
    readings = [calls.read() for _ in range(21)]
    assert readings[19].absent == {"x_w": "later"}
    assert readings[20].values == {"x_w": 1.0}


def test_costly_reads_are_spaced(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dippm.measure.sources.calls.time.perf_counter", lambda: now[0])
    real = []

    def read():
        real.append(now[0])
        now[0] += 0.001
        return (float(len(real)),)

    sparing = limit_cost(read, share=0.01)
    for step in range(1000):
        now[0] = max(now[0], step * 0.001)
        sparing()
    assert len(real) == 10
    assert sparing() == (10.0,)


def test_sources_need_nothing_but_python():
    root = str(Path(__file__).parents[3])
    code = (
        f"import sys; sys.path[:0] = [{root!r}]\n"
        "from dippm.measure.sources.registry import NAMES, open_source\n"
        "import dippm.measure.sampler, dippm.measure.sampler_start\n"
        "for name in NAMES[:-1]:\n"
        "    readings = open_source(name).read()\n"
        "    assert readings.values or all(readings.absent.values()), name\n"
        "assert not [n for n in sys.modules if 'site-packages' in"
        " str(getattr(sys.modules[n], '__file__', ''))]\n"
        "print(open_source('nvml').read().absent['power_w'])"
    )
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert told.stdout == "nvidia-ml-py is not installed: pip install nvidia-ml-py\n", told.stderr
