"""NVML's sources: the real bindings against a small C library, in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from dippm.measure.sampler_file import read
from dippm.measure.sources.nvml import throttle_reasons
from tests import fake_nvml

pytestmark = pytest.mark.skipif(fake_nvml.compiler() is None, reason="needs a C compiler")
HELPERS = """
import json, sys, os, warnings
from dippm.measure.sources.registry import open_source
def write(text):
    with open(os.environ["FAKE_NVML"], "w") as file:
        file.write(text)
def answer(source):
    r = source.read()
    return {"values": dict(r.values), "absent": dict(r.absent)}
def tell(**what):
    print(json.dumps(what))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def ask(library, tmp_path):
    """Run code in a process that meets the fake GPU; return what it tells."""

    def run(code, answers="", within=(), **environment):
        file = tmp_path / "answers"
        file.write_text(answers)
        found = subprocess.run(
            [*within, sys.executable, "-c", HELPERS + code],
            env={**fake_nvml.environment(library, file), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    return run


def test_values_have_the_units_they_say(ask):
    told = ask("s = open_source('nvml', device=0); tell(first=answer(s), second=answer(s))")
    values = told["first"]["values"]
    assert values["power_w"] == 250
    assert values["power_instant_w"] == 251
    assert values["power_cap_w"] == 700
    assert values["memory_used_mb"] == 1500
    assert values["memory_total_mb"] == 81559
    assert (values["sm_clock_mhz"], values["memory_clock_mhz"]) == (1980, 2619)
    assert (values["utilization_percent"], values["memory_utilization_percent"]) == (87, 41)
    assert (values["temperature_c"], values["performance_state"], values["throttle"]) == (54, 0, 0)
    assert told["second"]["values"]["energy_j"] >= values["energy_j"] > 0
    assert set(told["first"]["absent"]) == {"pcie_tx_mb_s", "pcie_rx_mb_s"}
    fixed = ask("tell(**answer(open_source('nvml')))", "energy_mj 123456789012345")
    assert fixed["values"]["energy_j"] == 123456789012.345


WHAT_THE_DRIVER_KEEPS = """
from dippm.measure.readings import Absent
from dippm.measure.sources.nvml_session import driver_memory_mb
said = driver_memory_mb(0)
tell(mb=None, why=said.reason) if isinstance(said, Absent) else tell(mb=said, why="")
"""


def test_what_the_driver_keeps_is_told_by_the_second_version_alone(ask):
    assert ask(WHAT_THE_DRIVER_KEEPS) == {"mb": 563, "why": ""}
    old = ask(WHAT_THE_DRIVER_KEEPS, "nvmlDeviceGetMemoryInfo_v2 13")
    assert old == {"mb": None, "why": "the driver is older than this counter: update it"}
    binding = "import pynvml; del pynvml.nvmlMemory_v2\n"
    assert "too old" in ask(binding + WHAT_THE_DRIVER_KEEPS)["why"]
    hidden = ask(WHAT_THE_DRIVER_KEEPS.replace("(0)", "(9)"))
    assert "no device 9" in hidden["why"]


def test_slow_calls_are_made_when_asked_for_by_name(ask):
    told = ask("tell(**answer(open_source('nvml', only=['pcie_tx_mb_s', 'power_w'])))")
    assert told["values"] == {"pcie_tx_mb_s": 2, "power_w": 250}
    assert told["absent"]["energy_j"] == "was not asked for"


@pytest.mark.parametrize(
    ("code", "words"), [(3, "Volta"), (4, "refuses"), (13, "driver is older"), (999, "Unknown")]
)
def test_a_counter_that_fails_is_absent_alone(ask, code, words):
    told = ask(
        "tell(**answer(open_source('nvml')))", f"nvmlDeviceGetTotalEnergyConsumption {code}\n"
    )
    assert words in told["absent"]["energy_j"]
    assert "energy_j" not in told["values"]
    assert told["values"]["power_w"] == 250


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("power_instant_mw 0", "mean over a second"),  # GPUs before Hopper
        ("power_instant_mw -1", "driver is older"),
        ("nvmlDeviceGetFieldValues 13", "driver is older"),
    ],
)
def test_the_instant_power_is_absent_where_the_field_is_not_known(ask, answers, words):
    told = ask("tell(**answer(open_source('nvml')))", answers)
    assert words in told["absent"]["power_instant_w"]
    assert told["values"]["power_w"] == 250


def test_a_binding_without_the_function_gives_a_reason(ask):
    told = ask(
        "import pynvml; del pynvml.nvmlDeviceGetTotalEnergyConsumption\n"
        "del pynvml.nvmlDeviceGetCurrentClocksEventReasons\n"
        "tell(**answer(open_source('nvml')))",
        "throttle 4",
    )
    assert "pip install -U nvidia-ml-py" in told["absent"]["energy_j"]
    assert told["values"]["throttle"] == 4, "the older name of the call answers"


def test_older_drivers_know_throttling_by_another_name(ask):
    told = ask(
        "tell(**answer(open_source('nvml')))",
        "nvmlDeviceGetCurrentClocksEventReasons 13\nthrottle 36",
    )
    assert told["values"]["throttle"] == 36


def test_a_lost_gpu_ends_the_source_with_one_warning(ask):
    told = ask(
        "s = open_source('nvml')\n"
        "before = answer(s)\n"
        "write('all 15')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    after = [answer(s) for _ in range(10)]\n"
        "write('')\n"
        "tell(before=before, after=after, later=answer(s), caught=[str(w.message) for w in caught])"
    )
    assert told["before"]["values"]["power_w"] == 250
    for after in (*told["after"], told["later"]):
        assert after["values"] == {}
        assert len(after["absent"]) == 15
        assert "the GPU is lost" in after["absent"]["power_w"]
    (warning,) = told["caught"]
    assert "lost" in warning


def test_what_keeps_failing_is_dropped_once_and_the_rest_goes_on(ask):
    told = ask(
        "s = open_source('nvml')\n"
        "def calls(count):\n"
        "    return [answer(s)['absent'].get('power_w', '') for _ in range(count)]\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    write('nvmlDeviceGetPowerUsage 10'); failing = calls(4)\n"
        "    write(''); recovered = calls(1)\n"
        "    write('nvmlDeviceGetPowerUsage 10'); dropped = calls(6)\n"
        "    write(''); later = answer(s)\n"
        "tell(failing=failing, recovered=recovered, dropped=dropped, later=later,"
        " caught=[str(w.message) for w in caught])"
    )
    assert all("Timeout" in reason for reason in told["failing"])
    assert told["recovered"] == [""]
    assert "Timeout" in told["later"]["absent"]["power_w"]
    assert told["later"]["values"]["temperature_c"] == 54
    (warning,) = told["caught"]
    assert "power_w" in warning


def test_devices_are_found_by_index_and_uuid(ask):
    told = ask(
        "from dippm.measure.sources.nvml_session import Session, locate\n"
        "n = Session.open()\n"
        f"names = [0, '1', {fake_nvml.SECOND_GPU_UUID!r}, {fake_nvml.SLICE_UUID!r}]\n"
        "tell(uuids=[n.nvmlDeviceGetUUID(locate(n, name).handle) for name in names],\n"
        "     boards=[n.nvmlDeviceGetUUID(locate(n, name).board) for name in names],\n"
        "     missing=open_source('nvml', device=9).read().absent['power_w'])",
        "gpus 2\nmig 2",
    )
    first, second, slice_ = fake_nvml.GPU_UUID, fake_nvml.SECOND_GPU_UUID, fake_nvml.SLICE_UUID
    assert told["uuids"] == [first, second, second, slice_]
    assert told["boards"] == [first, second, second, first]
    assert "no device 9" in told["missing"]


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [
        ("1,0", fake_nvml.SECOND_GPU_UUID),
        (fake_nvml.SECOND_GPU_UUID, fake_nvml.SECOND_GPU_UUID),
        ("GPU-00000101", fake_nvml.SECOND_GPU_UUID),
        (fake_nvml.SLICE_UUID, fake_nvml.SLICE_UUID),
        ("0", fake_nvml.GPU_UUID),
    ],
)
def test_torch_counts_what_cuda_visible_devices_shows(ask, visible, uuid):
    told = ask(
        "from dippm.measure.sources.nvml_session import Session, locate\n"
        "n = Session.open()\n"
        "tell(uuid=n.nvmlDeviceGetUUID(locate(n, 'cuda:0').handle))",
        "gpus 2\nmig 2",
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert told["uuid"] == uuid


@pytest.mark.parametrize("uuid", [fake_nvml.SECOND_GPU_UUID, fake_nvml.SLICE_UUID])
def test_an_imported_torch_is_believed(ask, uuid):
    told = ask(
        "import types\n"
        f"properties = types.SimpleNamespace(uuid={uuid[4:]!r})\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(\n"
        "    is_available=lambda: True, device_count=lambda: 1,\n"
        "    get_device_properties=lambda index: properties))\n"
        "from dippm.measure.sources.nvml_session import Session, locate\n"
        "n = Session.open()\n"
        "tell(uuid=n.nvmlDeviceGetUUID(locate(n, 'cuda').handle))",
        "gpus 2\nmig 2",
    )
    assert told["uuid"] == uuid


@pytest.mark.parametrize("order", ["FASTEST_FIRST", "PCI_BUS_ID"])
def test_numbers_of_unlike_gpus_are_not_guessed(ask, order):
    told = ask(
        "tell(**answer(open_source('nvml', device='cuda:1')))",
        "gpus 2\nkinds 2",
        CUDA_DEVICE_ORDER=order,
    )
    if order == "PCI_BUS_ID":
        assert told["values"]["power_w"] == 250
    else:
        assert "by UUID" in told["absent"]["power_w"]


def test_the_sampler_reads_a_gpu(library, tmp_path):
    answers, out = tmp_path / "answers", tmp_path / "samples"
    answers.write_text("gpus 2\nenergy_period_ms 100")
    code = (
        "import os, sys, time\n"
        "from dippm.measure.sampler_start import start\n"
        "s = start(sys.argv[1], hz=50, sources=('nvml', 'gpm@10'), device='cuda:0')\n"
        "assert s.wait_until_ready(30)\n"
        "time.sleep(0.5)\n"
        "sys.exit(s.stop())"
    )
    environment = fake_nvml.environment(library, answers)
    environment["CUDA_VISIBLE_DEVICES"] = "1"
    subprocess.run([sys.executable, "-c", code, out], env=environment, check=True, timeout=60)
    series = read(out).series
    energy = [value for value in series["nvml"].values["energy_j"] if value is not None]
    assert energy == sorted(energy)
    # The counter moves every 100 ms and is read every 20 ms: most readings see no update.
    assert 0 < sum(series["nvml"].fresh["energy_j"]) < len(energy) / 2
    assert series["gpm"].values["sm_active_percent"][0] is None
    assert series["gpm"].values["sm_active_percent"][-1] == 75
    assert "read again" in series["gpm"].reasons[0][2]


def test_a_hidden_device_is_said_to_be_hidden(ask):
    told = ask("tell(**answer(open_source('nvml', device='cuda:1')))", CUDA_VISIBLE_DEVICES="0")
    assert "CUDA_VISIBLE_DEVICES" in told["absent"]["power_w"]


def test_nvml_is_shut_down_when_the_last_source_closes(ask):
    told = ask(
        "import pynvml\n"
        "a, b = open_source('nvml'), open_source('gpm')\n"
        "a.close(); a.close()\n"
        "between = bool(answer(b))\n"
        "closed = answer(a)\n"
        "b.close()\n"
        "try:\n"
        "    pynvml.nvmlDeviceGetHandleByIndex(0); after = 'open'\n"
        "except pynvml.NVMLError_Uninitialized: after = 'shut down'\n"
        "c = open_source('nvml')\n"
        "tell(closed=closed, after=after, again=answer(c))"
    )
    assert told["after"] == "shut down"
    assert told["closed"]["absent"]["power_w"] == "the source is closed"
    assert told["again"]["values"]["power_w"] == 250


def test_a_failed_start_is_a_reason(ask):
    told = ask("tell(**answer(open_source('nvml')))", "nvmlInitWithFlags 9")
    assert "driver is not loaded" in told["absent"]["power_w"]


def test_processes_are_ours_or_others(ask):
    told = ask(
        "s = open_source('nvml_processes'); tell(**answer(s))",
        "process self 500\nprocess 1 100\nprocess 2 50",
    )
    assert told["values"] == {"other_processes": 2, "other_memory_mb": 150, "tree_memory_mb": 500}
    told = ask(
        "tell(**answer(open_source('nvml_processes', mine=[1])))",
        "process self 500\nprocess 1 100",
    )
    assert told["values"] == {"other_processes": 1, "other_memory_mb": 500, "tree_memory_mb": 100}


def test_memory_that_the_driver_hides_is_absent(ask):
    told = ask("tell(**answer(open_source('nvml_processes')))", "process self -1\nprocess 1 100\n")
    assert told["values"] == {"other_processes": 1, "other_memory_mb": 100}
    assert "does not say" in told["absent"]["tree_memory_mb"]


def test_ids_of_another_pid_namespace_are_not_called_others(ask):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("may not make a PID namespace here")
    code, answers = "tell(**answer(open_source('nvml_processes')))", "process 4194000 100"
    inside = ask(code, answers, within=unshare)
    assert inside["values"] == {}
    assert "--pid=host" in inside["absent"]["other_processes"]
    among_ours = ask(code, answers + "\nprocess self 50", within=unshare)
    expected = {"other_processes": 1, "other_memory_mb": 100, "tree_memory_mb": 50}
    assert among_ours["values"] == expected


def test_a_list_that_cannot_be_had_leaves_no_figure(ask):
    told = ask(
        "s = open_source('nvml_processes'); tell(first=answer(s), second=answer(s))",
        "nvmlDeviceGetComputeRunningProcesses_v3 3",
    )
    for answer in told.values():
        assert answer["values"] == {}
        assert all("not supported" in reason for reason in answer["absent"].values())


def test_an_idle_device_has_no_processes(ask):
    told = ask("tell(**answer(open_source('nvml_processes')))")
    assert told["values"] == {"other_processes": 0, "other_memory_mb": 0}
    assert "no process of our tree" in told["absent"]["tree_memory_mb"]


def test_a_slice_has_its_own_memory_and_its_boards_power(ask):
    told = ask(
        f"d = {fake_nvml.SLICE_UUID!r}\n"
        "s = open_source('nvml', device=d)\n"
        "tell(nvml=answer(s), scopes={q.name: q.scope for q in s.quantities},\n"
        "     mig=answer(open_source('mig', device=d)),\n"
        "     processes=answer(open_source('nvml_processes', device=d)))",
        "mig 3\nprocess self 70 2\nprocess 1 33 4",
    )
    assert told["nvml"]["values"]["memory_total_mb"] == 9728
    assert told["nvml"]["values"]["power_w"] == 250
    assert "MIG is on" in told["nvml"]["absent"]["utilization_percent"]
    assert told["scopes"]["memory_used_mb"] == "slice"
    assert told["scopes"]["power_w"] == told["scopes"]["energy_j"] == "device"
    assert told["mig"]["values"]["instances"] == 3
    assert told["mig"]["values"]["slice_memory_used_mb"] == 300
    expected = {"other_processes": 0, "other_memory_mb": 0, "tree_memory_mb": 70}
    assert told["processes"]["values"] == expected


@pytest.mark.parametrize(("mig", "values"), [("0", {"instances": 0}), ("-1", {})])
def test_no_slices_differ_from_no_mig(ask, mig, values):
    told = ask("tell(**answer(open_source('mig')))", f"mig {mig}")
    assert told["values"] == values
    assert "instances" in {**told["values"], **told["absent"]}


def test_gpm_compares_two_samples(ask):
    told = ask(
        "s = open_source('gpm'); first, second = answer(s), answer(s)\n"
        "write('metric_5 -1\\nmetric_2 12'); third = answer(s); s.close()\n"
        "tell(first=first, second=second, third=third)"
    )
    assert told["first"]["values"] == {}
    assert "read again" in told["first"]["absent"]["sm_active_percent"]
    expected = {"sm_active_percent": 75, "sm_occupancy_percent": 40}
    expected |= {"tensor_active_percent": 20, "dram_active_percent": 55}
    assert told["second"]["values"] == expected
    assert told["third"]["values"]["sm_active_percent"] == 12
    assert "Not Supported" in told["third"]["absent"]["tensor_active_percent"]


def test_gpm_of_a_slice_asks_its_instance(ask):
    told = ask(
        f"s = open_source('gpm', device={fake_nvml.SLICE_UUID!r}); answer(s)\n"
        "tell(scope=s.quantities[0].scope, **answer(s))",
        "mig 2",
    )
    assert told["scope"] == "slice"
    assert told["values"]["sm_active_percent"] == 75 + 2


@pytest.mark.parametrize(
    ("answers", "words"), [("gpm 0", "Hopper"), ("nvmlGpmQueryDeviceSupport 13", "older")]
)
def test_gpus_without_gpm_are_said_so(ask, answers, words):
    told = ask("tell(**answer(open_source('gpm')))", answers)
    assert told["values"] == {}
    assert words in told["absent"]["dram_active_percent"]


def test_no_driver_is_a_reason(tmp_path):
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("this machine has a driver")
    code = HELPERS + "tell(**answer(open_source('nvml')))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    told = json.loads(found.stdout)
    assert told["values"] == {}
    assert "no NVIDIA driver" in told["absent"]["power_w"]


def test_no_binding_is_a_reason(ask):
    told = ask("sys.modules['pynvml'] = None\ntell(**answer(open_source('nvml')))")
    assert "pip install nvidia-ml-py" in told["absent"]["power_w"]


def test_throttle_reasons_have_names():
    assert throttle_reasons(0) == ()
    assert throttle_reasons(0x1 | 0x4 | 0x40) == ("gpu_idle", "sw_power_cap", "hw_thermal_slowdown")
    assert throttle_reasons(1 << 20) == ("bit_20",)
