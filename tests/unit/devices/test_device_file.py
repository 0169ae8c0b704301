"""A device of the user: what its file may say, and what is said when it may not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.devices import Device, check_device, find, read_device, write_device
from dippm.errors import DeviceError, DippmError, UnsupportedPrecisionError

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "my_gpu.toml"
SMALLEST = 'name = "Mine"\nmemory_mb = 16384\n'
WHOLE = SMALLEST + (
    "sm_count = 60\nbandwidth_gb_s = 500\nl2_mb = 6\npower_limit_w = 200\n"
    "peak_tflops = {fp32 = 20, fp16 = 80}\n"
)


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "gpu.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_example_is_a_device(onnx_file) -> None:
    device = read_device(EXAMPLE)
    assert (device.name, device.sm_count, device.peak_tflops["fp16"]) == ("My RTX 4080", 76, 97.5)
    answer = dippm.predict(onnx_file, device=EXAMPLE)
    assert answer.latency_ms
    assert answer.power_w
    assert any("My RTX 4080 was never measured" in warning for warning in answer.warnings)


def test_what_is_not_known_is_none(written) -> None:
    device = read_device(written(SMALLEST))
    assert (device.l2_mb, device.power_limit_w, device.compute_capability) == (None, None, None)
    assert device.peak_tflops == {}
    assert device.mig_profiles == ()


@pytest.mark.parametrize(
    ("memory_type", "family"),
    [("HBM4", "stacked"), ("hbm2E", "stacked"), ("GDDR6X", "board"), ("LPDDR5X", None)],
)
def test_the_kind_of_memory_is_read_and_written(written, tmp_path, memory_type, family) -> None:
    device = read_device(written(SMALLEST + f'memory_type = "{memory_type}"'))
    assert (device.memory_type, device.memory_family) == (memory_type, family)
    again = tmp_path / "again.toml"
    write_device(device, again)
    assert read_device(again) == device
    assert read_device(written(SMALLEST)).memory_family is None


def test_a_table_of_the_catalogue_can_be_copied(written) -> None:
    path = written(
        '["My A30"]\nmemory_mb = 24576\nmemory_slices = 4\nsm_count = 56\n'
        'mig_profiles = [["2g.12gb", 11968, 28, 2, 2], ["1g.6gb", 5952, 14, 1, 1]]'
    )
    device = read_device(path)
    assert device.name == "My A30"
    assert [str(profile) for profile in device.mig_profiles] == ["1g.6gb", "2g.12gb"]


@pytest.mark.parametrize("command", ["predict", "compare", "sweep"])
def test_every_command_takes_a_file(command, written, onnx_file) -> None:
    path = written(WHOLE)
    done = CliRunner().invoke(app, [command, str(onnx_file), "--device", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert "Mine" in json.dumps(json.loads(done.stdout))


def test_devices_shows_a_file(written) -> None:
    done = CliRunner().invoke(app, ["devices", str(written(WHOLE)), "--json"])
    (shown,) = json.loads(done.stdout)["devices"]
    assert (shown["name"], shown["l2_mb"], shown["boost_clock_mhz"]) == ("Mine", 6, None)


def test_power_is_absent_without_a_limit(written, onnx_file) -> None:
    path = written(WHOLE.replace("power_limit_w = 200\n", ""))
    answer = dippm.predict(onnx_file, device=str(path))
    assert answer.latency_ms
    assert answer.power_w is None
    assert "power limit of Mine is not known" in answer.absent["energy_j"]


def test_an_unknown_clock_is_assumed_and_the_answer_says_so(written, onnx_file) -> None:
    assumed = dippm.predict(onnx_file, device=written(WHOLE), batch=1)
    known = dippm.predict(onnx_file, device=written(f"boost_clock_mhz = 1700\n{WHOLE}"), batch=1)
    assert any("boost clock of Mine is not known" in warning for warning in assumed.warnings)
    assert not any("boost clock" in warning for warning in known.warnings)
    assert assumed.latency_ms == known.latency_ms


@pytest.mark.parametrize(
    ("left_out", "named"),
    [("l2_mb = 6\n", "l2_mb"), ("bandwidth_gb_s = 500\n", "bandwidth"), ("fp32 = 20, ", "fp32")],
)
def test_what_the_answer_needs_is_named(written, onnx_file, left_out, named) -> None:
    path = written(WHOLE.replace(left_out, ""))
    with pytest.raises(DippmError, match=f"{named}.*known"):
        dippm.predict(onnx_file, device=path)


def test_a_rate_that_is_left_out_is_no_hardware(written, onnx_file) -> None:
    with pytest.raises(UnsupportedPrecisionError) as caught:
        dippm.predict(onnx_file, device=written(WHOLE), precision="bf16")
    assert "write the rate into peak_tflops" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "named", "hint"),
    [
        (WHOLE + "sm = 3", "'sm'", "sm_count"),
        ("memory_mb = 1024", "name is missing", 'name = "My GPU"'),
        ('name = "Mine"', "memory_mb is missing", "24576"),
        ('name = "Mine"\nmemory_mb = 16', "memory_mb is 16", "16384"),
        ('name = "Mine"\nmemory_mb = 16.5', "16.5", "whole number"),
        ('name = "Mine"\nmemory_mb = "16 GB"', "'16 GB'", "MiB"),
        ('name = "Mine"\nmemory_mb = true', "True", "MiB"),
        ("name = 3\nmemory_mb = 16384", "name is 3", "quotes"),
        ('name = "A100"\nmemory_mb = 16384', "A100 is a device of the catalogue", "another name"),
        ('name = "  "\nmemory_mb = 16384', "name is empty", "name ="),
        ('name = "a\\u001b[31m"\nmemory_mb = 16384', "name is", "printed"),
        (SMALLEST + "bandwidth_gb_s = 1.8", "bandwidth_gb_s is 1.8", "1.8 TB/s are 1800"),
        (SMALLEST + "bandwidth_gb_s = -900", "-900", "GB/s"),
        (SMALLEST + "bandwidth_gb_s = nan", "nan", "Leave out"),
        (SMALLEST + "power_limit_w = inf", "inf", "W"),
        (SMALLEST + "boost_clock_mhz = 1.7", "boost_clock_mhz is 1.7", "1.7 GHz are 1700"),
        (SMALLEST + "sm_count = 1e3", "sm_count is 1000", "whole"),
        (SMALLEST + "sm_count = 99999999999999999999", "sm_count is 999", "10,000"),
        (SMALLEST + "sm_count = " + "9" * 5000, "not TOML", "README"),
        (SMALLEST + 'memory_type = "fast"', "memory_type is 'fast'", "HBM3"),
        (SMALLEST + "memory_type = 6", "memory_type is 6", "GDDR6X"),
        (SMALLEST + "peak_tflops = 20", "peak_tflops is 20", "{fp32 = 19.5"),
        (SMALLEST + "peak_tflops = {fp64 = 20}", "'fp64'", "fp32, tf32"),
        (SMALLEST + "peak_tflops = {fp32 = 0}", "peak_tflops.fp32 is 0", "TFLOP/s"),
        (SMALLEST + "peak_tflops = {fp32 = 20e12}", "20000000000000", "TFLOP/s"),
        (SMALLEST + 'mig_profiles = [["1g", 5000]]', "mig_profiles has the row", "1g.5gb"),
        (SMALLEST + 'mig_profiles = [["1g", 50000, 9, 1, 1]]', "more usable MiB", "part"),
        (SMALLEST + 'mig_profiles = "1g"', "not a list", "[..."),
        (SMALLEST + 'kind = "cpu"', "CPU", "measured"),
        (SMALLEST + 'kind = "tpu"', "kind", "gpu"),
        (SMALLEST + 'source = "' + "x" * 5000 + '"', "source is", "4,000"),
        ("name = ", "not TOML", "README"),
        ("a = " + "[" * 30_000, "not TOML", "README"),
        (b"name = '\xff'", "not text in UTF-8", "README"),
        (b"#" * 70_000, "larger than 64 KiB", "device"),
        ("", "name is missing", "name ="),
    ],
)
def test_a_wrong_file_says_what_is_wrong(written, text, named, hint) -> None:
    with pytest.raises(DeviceError) as caught:
        read_device(written(text))
    assert named in caught.value.message
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 600


def test_only_regular_files_are_read(tmp_path) -> None:
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, Path("/dev/zero"), tmp_path / "none.toml"):
        with pytest.raises(DeviceError):
            read_device(path)


def test_a_device_object_is_checked_too(onnx_file) -> None:
    with pytest.raises(DeviceError, match="bandwidth_gb_s is nan"):
        dippm.predict(onnx_file, device=replace(find("A100"), bandwidth_gb_s=float("nan")))
    given = Device(
        name="Mine",
        memory_mb=16384,
        sm_count=60,
        bandwidth_gb_s=500,
        l2_mb=6,
        peak_tflops={"fp32": 20},
    )
    assert check_device(given) is given
    assert dippm.predict(onnx_file, device=given).latency_ms


def test_a_catalogued_device_that_was_changed_says_so(onnx_file) -> None:
    changed = replace(find("A100"), power_limit_w=250.0)
    warnings = dippm.predict(onnx_file, device=changed).warnings
    assert any("differs from the catalogue" in warning for warning in warnings)
