"""The machine that launches the kernels: what names it, and what it does to an answer."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.devices import (
    HostMachine,
    all_devices,
    all_hosts,
    assumed_hosts,
    default_host,
    find,
    host_of,
    unknown_host_log_sd,
)
from dippm.errors import ConditionsError, DippmError, HostError, UnknownNameError
from dippm.estimate.pretrained import load


def test_every_class_says_what_it_is_and_where_it_comes_from() -> None:
    assert default_host() in all_hosts()
    for host in all_hosts():
        assert 1 < host.launch_us < 100
        assert 0.05 < host.log_sd < 1
        assert host.hosts >= 1
        assert host.what
        assert host.source


def test_the_assumed_class_is_the_one_that_the_checkpoint_was_fitted_to() -> None:
    launch_us = 1e3 * load().config["host"]["launch_ms"]
    assert default_host().launch_us == pytest.approx(launch_us), "train again"


def test_the_assumed_class_follows_the_board() -> None:
    old = ("GTX-10", "RTX-20", "TITAN", "Quadro")
    for device in all_devices():
        desktop = device.name.startswith(("GTX", "RTX", "TITAN", "Quadro"))
        is_old = device.name.startswith(old) and device.name != "RTX-2000-Ada"
        server = not desktop or device.name == "RTX-PRO-6000-Server"
        expected = "server-2022" if server else "desktop-2019" if is_old else "desktop-2024"
        assert default_host(device).name == expected, device.name
    own = replace(find("RTX-3080"), name="NVIDIA GeForce RTX 3080 Laptop GPU")
    assert default_host(own).name == "desktop-2024"
    assert default_host(replace(own, name="my-gpu")) is default_host()


def test_an_answer_has_the_host_of_its_board(onnx_file) -> None:
    server, desktop, old = (
        dippm.predict(onnx_file, device=name) for name in ("A100", "RTX-4090", "RTX-2080-Ti")
    )
    assert [one.host.name for one in (server, desktop, old)] == [
        "server-2022",
        "desktop-2024",
        "desktop-2019",
    ]
    assert all(one.host.assumed for one in (server, desktop, old))
    assert "host desktop-2024 (assumed)" in desktop.footer
    assert any("desktop-2024, which was assumed" in warning for warning in desktop.warnings)
    assert desktop.latency_ms == pytest.approx(20.5 / 33.0 * server.latency_ms, rel=0.02)
    named = dippm.predict(onnx_file, device="RTX-4090", host="server-2022")
    assert named.latency_ms == pytest.approx(server.latency_ms, rel=0.02)


def test_machines_differ_more_than_those_of_one_class() -> None:
    assert min(host.log_sd for host in all_hosts()) < unknown_host_log_sd() < 0.6


@pytest.mark.parametrize(
    ("given", "launch_us"), [(12, 12), (12.5, 12.5), ("12.5", 12.5), ("9 us", 9), ("9µs", 9)]
)
def test_a_number_is_the_time_of_a_launch(given, launch_us) -> None:
    host = host_of(given)
    assert host is not None
    assert (host.launch_us, host.log_sd) == (launch_us, 0)


def test_a_name_is_a_class() -> None:
    assert host_of(" Server-2022 ") is default_host()
    assert host_of(default_host()) is default_host()
    assert host_of(None) is None


@pytest.mark.parametrize("given", [0, -5, math.nan, math.inf, 1e9, True, "nan", "-1", "1e400"])
def test_a_number_that_is_no_time_is_refused(given) -> None:
    with pytest.raises(HostError) as caught:
        host_of(given)
    assert "server-2022" in caught.value.hint


def test_an_unknown_name_lists_the_classes() -> None:
    with pytest.raises(UnknownNameError) as caught:
        host_of("server-2021")
    assert "Did you mean server-202" in caught.value.hint
    assert "microseconds" in caught.value.hint


def test_the_host_is_in_the_answer(onnx_file) -> None:
    assumed = dippm.predict(onnx_file)
    assert assumed.host is not None
    assert (assumed.host.name, assumed.host.assumed) == (default_host().name, True)
    assert "host server-2022 (assumed)" in assumed.footer
    assert any("the host decides" in w and "--host" in w for w in assumed.warnings)
    document = assumed.to_dict()
    assert document["conditions"]["host"] is None
    assert document["host"]["launch_us"] == pytest.approx(default_host().launch_us)
    assert document["host"]["share"] > 0.9

    named = dippm.predict(onnx_file, host=10)
    assert named.host is not None
    assert (named.host.name, named.host.assumed) == ("10 us", False)
    assert named.latency_ms < 0.9 * assumed.latency_ms
    assert named.to_dict()["conditions"]["host"] == "10 us"


def test_intervals_widen_where_the_host_decides(onnx_file) -> None:
    def width(**asked) -> float:
        interval = dippm.predict(onnx_file, **asked).intervals["latency_ms"]
        return math.log(interval.high / interval.low) / 2

    exact = HostMachine("mine", 34.1)
    assert width() > width(host="server-2022") > width(host=exact)
    assert width(timer="kernel") == pytest.approx(width(timer="kernel", host=exact))


def test_a_large_batch_does_not_depend_on_the_host(onnx_file) -> None:
    large = dippm.predict(onnx_file, batch=100_000)
    assert large.host is not None
    assert large.host.share < 0.01
    assert not any("the host decides" in warning for warning in large.warnings)


def test_a_checkpoint_of_one_machine_refuses_another(onnx_file) -> None:
    assert dippm.predict(onnx_file, device="cpu").host is None
    with pytest.raises(ConditionsError, match="host"):
        dippm.predict(onnx_file, device="cpu", host="server-2022")


@pytest.mark.parametrize("command", ["predict", "compare", "sweep"])
def test_commands_take_a_host(command, onnx_file) -> None:
    words = [command, str(onnx_file), "--host", "20", "--json"]
    if command == "sweep":
        words += ["--batch", "1,8"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert not isinstance(found, dict) or "error" not in found
    wrong = CliRunner().invoke(app, [*words[:2], "--host", "fast", "--json"])
    assert json.loads(wrong.stdout)["error"]["type"] == "UnknownNameError"


def test_hosts_are_listed() -> None:
    found = json.loads(CliRunner().invoke(app, ["hosts", "--json"]).stdout)["hosts"]
    assumed = {host.name for host in assumed_hosts().values()}
    assert {h["name"] for h in found if h["default"]} == assumed
    assert "server-2022 (assumed)" in CliRunner().invoke(app, ["hosts"]).stdout


def test_an_error_of_a_host_is_ours() -> None:
    assert issubclass(HostError, DippmError)


def test_the_warning_says_how_much_of_the_interval_is_the_hosts(onnx_file) -> None:
    for asked in ({}, {"device": "RTX-4090"}, {"device": "H100", "batch": 4, "precision": "fp16"}):
        assumed = dippm.predict(onnx_file, **asked)
        assert assumed.host is not None
        exact = dippm.predict(onnx_file, **asked, host=assumed.host.launch_us)
        stated = next(
            re.search(r"a factor of (\d+\.\d\d) either way, not (\d+\.\d\d);", warning)
            for warning in assumed.warnings
            if "the host decides" in warning
        )
        assert stated is not None
        widths = [one.intervals["latency_ms"].high / one.latency_ms for one in (exact, assumed)]
        assert [float(said) for said in stated.groups()] == pytest.approx(widths, abs=0.01)
        assert widths[0] < widths[1]
