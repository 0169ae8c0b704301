"""radT's listeners: what they stand for, whether they work, and what a run has of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dippm.errors import ListenerError, UnknownNameError
from dippm.runs.store.columns import Column, read_columns
from dippm.runs.tracking.listeners import LISTENERS, named_series, sources_of
from dippm.runs.tracking.run_config import RunConfig, checked
from tests import fake_nvml
from tests.unit.tracking import commands

SECOND = 1_000_000_000
HAS_DRIVER = os.path.exists("/proc/driver/nvidia")
needs_compiler = pytest.mark.skipif(fake_nvml.compiler() is None, reason="needs a C compiler")
DCGMI = """#!/bin/sh
if [ "$1" = discovery ]; then
  [ -n "$FAKE_DCGM_DOWN" ] && { echo "Error: unable to establish a connection"; exit 1; }
  echo "| 0      | Name: NVIDIA Other            |"
  echo "|        | Device UUID: GPU-00000101-0000-0000-0000-00000000fa4e |"
  echo "| 1      | Name: NVIDIA Fake             |"
  echo "|        | Device UUID: GPU-00000100-0000-0000-0000-00000000fa4e |"
  exit 0
fi
echo "$@" > "$FAKE_DCGM_ASKED"
echo "#Entity  GRACT SMACT SMOCC TENSO DRAMA FP64A FP32A FP16A PCITX PCIRX NVLTX NVLRX"
echo "ID"
while sleep 0.05; do
  echo "GPU $3    0.500 0.250 0.125 0.000 0.750 0.000 0.100 0.000 2097152 1048576 N/A N/A"
done
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def told(library, tmp_path):
    """Run code in a process that meets the fake GPU, and perhaps a fake dcgmi."""

    def run(code, answers="", *, dcgmi=False, **environment):
        file = tmp_path / "answers"
        file.write_text(answers)
        held = fake_nvml.environment(library, file)
        if dcgmi:
            (tmp_path / "dcgmi").write_text(DCGMI)
            (tmp_path / "dcgmi").chmod(0o755)
            held["PATH"] = f"{tmp_path}:{held['PATH']}"
            held["FAKE_DCGM_ASKED"] = str(tmp_path / "asked")
        answer = subprocess.run(
            [sys.executable, "-c", "import json\nfrom dippm.errors import *\n" + code],
            env={**held, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    return run


ASK = "from dippm.runs.tracking.listeners import sources_of\nprint(json.dumps(sources_of({})))"
REFUSED = """
from dippm.runs.tracking.listeners import sources_of
try:
    sources_of({})
except ListenerError as error:
    print(json.dumps(str(error)))
"""


def column(series, values, *, hz=1.0, scope="tree", counter=False, reasons=()):
    time_ns = np.arange(len(values), dtype=np.int64) * int(SECOND / hz)
    return Column(series, "", scope, counter, time_ns, np.array(values, dtype=float), reasons)


def test_names_become_sources():
    assert sources_of(["top", "free"]) == ("tree", "host")
    assert sources_of(["TOP@2", "tree", "host@1"]) == ("tree@2", "host@2")
    assert sources_of([" top+free ", "-", ""]) == ("tree", "host")
    assert sources_of(["iostat", "ps"]) == ("disks", "tree", "cores", "processes", "host")
    assert sources_of([]) == ()


def test_every_series_of_a_listener_is_of_its_sources():
    for listener in LISTENERS.values():
        sampled = {source for group in listener.sources for source in group}
        for metric in listener.metrics:
            named = {*metric.series, metric.part_of} - {""}
            assert {series.partition(".")[0] for series in named} <= sampled, metric.name


def test_what_is_no_listener_is_an_error_that_guesses():
    with pytest.raises(UnknownNameError, match="iostat"):
        sources_of(["iostats"])
    with pytest.raises(ListenerError, match="Apple"):
        sources_of(["macmon"])


@pytest.mark.parametrize("name", ["nsys", "nsysraw", "ncu", "ncuraw", "ncuattach"])
def test_a_profiler_is_not_silently_ignored(name):
    with pytest.raises(ListenerError, match="profiler"):
        sources_of(["top", name])


@pytest.mark.skipif(HAS_DRIVER, reason="this machine has a driver")
@pytest.mark.parametrize("name", ["smi", "dcgmi"])
def test_a_listener_that_cannot_work_is_an_error_before_the_start(name, tmp_path):
    with pytest.raises(ListenerError, match=f"{name} cannot work here on device 0"):
        checked(RunConfig(("true",), metrics=(name,)))
    made = subprocess.run(
        [sys.executable, "-m", "dippm", "run", "--metrics", name, "--", "touch", "started"],
        cwd=tmp_path,
        env=commands.environment(tmp_path / "spool"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 1
    assert "libnvidia-ml" in made.stderr or "nvidia-ml-py" in made.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "spool").exists()


@needs_compiler
def test_dcgmi_is_gpm_where_the_gpu_has_it(told):
    assert told(ASK.format(["smi", "dcgmi"])) == ["nvml", "gpm"]


@needs_compiler
def test_dcgmi_is_dcgm_where_only_its_daemon_answers(told, tmp_path):
    assert told(ASK.format(["dcgmi"]), "gpm 0", dcgmi=True) == ["dcgm", "nvml"]
    # DCGM counts in its own order: NVML's first GPU is its second.
    assert (tmp_path / "asked").read_text().startswith("dmon -i 1 -e 1001,1002")


@needs_compiler
def test_dcgmi_without_either_says_both_reasons(told):
    said = told(REFUSED.format(["dcgmi"]), "gpm 0", dcgmi=True, FAKE_DCGM_DOWN="1")
    assert "Hopper and later" in said
    assert "unable to establish a connection" in said


@needs_compiler
def test_dcgm_has_the_units_it_says_and_ends_with_us(told):
    answer = told(
        "import time\nfrom dippm.measure.sources.registry import open_source\n"
        "s = open_source('dcgm')\n"
        "while not (r := s.read()).values: time.sleep(0.02)\n"
        "process = s._lines._process; s.close()\n"
        "print(json.dumps([dict(r.values), dict(r.absent), process.poll() is not None]))",
        dcgmi=True,
    )
    values, absent, ended = answer
    assert (values["sm_active_percent"], values["dram_active_percent"]) == (25, 75)
    assert (values["pcie_tx_mb_s"], values["pcie_rx_mb_s"]) == (2, 1)
    assert absent["nvlink_tx_mb_s"] == "DCGM says 'N/A'"
    assert ended


@needs_compiler
def test_of_several_devices_each_has_series_of_its_own(told):
    first, second = fake_nvml.GPU_UUID, fake_nvml.SECOND_GPU_UUID
    code = (
        "from dippm.runs.tracking.listeners import sources_of\n"
        f"print(json.dumps(sources_of(['smi@5'], devices=({first!r}, {second!r}))))"
    )
    words = told(code, "gpus 2")
    assert words == ["nvml:GPU-00000100@5", "nvml:GPU-00000101@5"]


@needs_compiler
def test_series_of_two_gpus_are_never_mixed(library, tmp_path):
    file = tmp_path / "answers"
    file.write_text("gpus 2\nkinds 2\n")
    held = {**fake_nvml.environment(library, file), **commands.environment(tmp_path / "spool")}
    metrics = ["nvml:0", f"nvml:{fake_nvml.SECOND_GPU_UUID}", "tree"]
    commands.run(tmp_path / "spool", "sleep", "0.5", given={"metrics": metrics}, env=held)
    columns, remarks = read_columns(commands.ended(tmp_path / "spool").samples)
    assert not remarks
    by_name = {one.series: one for one in columns}
    assert {name for name in by_name if name.endswith("power_w")} == {
        "nvml:0.power_w",
        f"nvml:{fake_nvml.SECOND_GPU_UUID}.power_w",
    }
    names = {one.name for one in named_series(columns, ["smi"])}
    assert {"SMI - Power Draw [0]", f"SMI - Power Draw [{fake_nvml.SECOND_GPU_UUID}]"} <= names


def test_files_of_two_devices_are_never_mixed(tmp_path):
    """Samplers that were started for one device each write a file each, of the same names."""
    from tests.run_folders import write_samples

    write_samples(tmp_path, 20, name="samples-1-1-0.dippm")
    write_samples(tmp_path, 30, name="samples-1-2-1.dippm")
    columns, _ = read_columns(sorted(tmp_path.iterdir()))
    lengths = {one.series: len(one.values) for one in columns if one.series.endswith("rss_mb")}
    assert lengths == {"tree:0.rss_mb": 20, "tree:1.rss_mb": 30}


def test_views_have_radts_names_and_units():
    columns = [
        column("tree.cpu_percent", [np.nan, 150], reasons=((0, "read again"),)),
        column("tree.rss_mb", [2048, 4096]),
        column("host.memory_total_mb", [8192, 8192], scope="host"),
        column("host.cpu_percent", [40, 60], scope="host"),
        column("host.swap_used_mb", [0, 512], scope="host"),
    ]
    found = {one.name: one for one in named_series(columns, ["top"])}
    assert found["TOP - Memory Usage GB"].values.tolist() == [2, 4]
    assert found["TOP - Memory Utilization"].values.tolist() == [25, 50]
    assert found["TOP - Swap Memory GB"].values.tolist() == [0, 0.5]
    cpu = found["TOP - CPU Utilization"]
    assert (cpu.origin, cpu.scope, cpu.reason) == ("tree.cpu_percent", "tree", "read again")
    assert np.isnan(cpu.values[0])
    assert found["TOP - Host CPU Utilization"].scope == "host"


def test_the_origin_of_activity_is_told():
    columns = [column("dcgm.sm_active_percent", [5]), column("gpm.sm_active_percent", [6])]
    (found,) = named_series(columns, ["dcgmi"])
    assert (found.name, found.origin) == ("DCGMI - SM Active", "gpm.sm_active_percent")
    (found,) = named_series(columns[:1], ["dcgmi"])
    assert found.origin == "dcgm.sm_active_percent"


def test_iostat_tells_each_disk_and_their_sum():
    columns = [
        column("disks.sda_read_mb", [10, 10, 16, 16], scope="host", counter=True),
        column("disks.sda_transfers", [100, 100, 160, 160], scope="host", counter=True),
        column("disks.total_read_mb", [20, 22, 24, 26], scope="host", counter=True),
    ]
    found = {one.name: one for one in named_series(columns, ["iostat"])}
    assert set(found) == {
        "sda - tps",
        "sda - MB read/s",
        "sda - MB read",
        "iostat - Total MB read/s",
        "iostat - Total MB read",
    }
    assert found["sda - MB read"].values.tolist() == [0, 0, 6, 6]
    assert found["sda - MB read/s"].values.tolist() == [3, 0]
    assert found["iostat - Total MB read/s"].values.tolist() == [2, 2, 2]


def test_a_run_without_the_series_of_a_listener_says_so():
    with pytest.raises(ListenerError, match="no series of the listener smi"):
        named_series([column("tree.rss_mb", [1])], ["smi"])
    assert named_series([column("nvml_other.power_w", [1])]) == ()


def test_cpu_is_that_of_the_runs_tree_alone(tmp_path):
    """T2: radT adds up every process of the machine that is named python."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        spool = tmp_path / "spool"
        metrics = {"metrics": ["tree", "host", "cores"]}
        process = commands.start(spool, "sh", "-c", "read x", stdin=-1, given=metrics)
        file = commands.folder(spool) / "samples-1.dippm"
        commands.until(lambda: commands.ticks(file) > 30, "three seconds of samples")
        process.communicate(b"\n")
    finally:
        busy.kill()
        busy.wait()
    columns, _ = read_columns(commands.ended(tmp_path / "spool").samples)
    found = {one.name: one for one in named_series(columns)}
    mine = found["TOP - CPU Utilization"]
    assert np.nanmax(mine.values[len(mine.values) // 2 :]) < 50
    assert np.nanmax(found["TOP - Host CPU Utilization"].values) > 20
    assert any(name.startswith("PS - MEM ") for name in found)
