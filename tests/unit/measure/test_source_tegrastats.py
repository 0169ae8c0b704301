"""`tegrastats` of Jetson boards: a stand-in that replays lines as NVIDIA's manual spells them."""

from __future__ import annotations

import pytest

from dippm.measure.sources.registry import open_source
from dippm.measure.sources.tegrastats import QUANTITIES, WAITING, readings_of

ORIN_NANO = (
    "11-25-2026 10:00:00 RAM 2448/7620MB (lfb 12x4MB) SWAP 0/3810MB (cached 0MB) "
    "CPU [12%@1510,off,0%@729] EMC_FREQ 7%@2133 GR3D_FREQ 63%@[611] cpu@46.5C gpu@47.25C "
    "tj@48C VDD_IN 6123mW/5990mW VDD_CPU_GPU_CV 1480mW/1200mW VDD_SOC 1441mW/1441mW"
)
NANO = (
    "RAM 1216/3964MB (lfb 330x4MB) SWAP 0/1982MB (cached 0MB) IRAM 0/252kB(lfb 252kB) "
    "CPU [27%@102,36%@307,6%@204,35%@518] EMC_FREQ 19%@204 GR3D_FREQ 5%@76 APE 25 PLL@25C "
    "CPU@30C PMIC@100C GPU@27C AO@34.5C thermal@28C POM_5V_IN 1943/1900 POM_5V_GPU 0/0"
)
AGX_ORIN_AS_A_USER = (
    "RAM 4722/30536MB (lfb 3x4MB) CPU [0%@729] GR3D_FREQ 0% gpu@41C VDD_GPU_SOC 2394mW/2394mW"
)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (ORIN_NANO, (2448, 63, 611, 7, 47.25, 6.123)),
        (NANO, (1216, 5, 76, 19, 27, 1.943)),
        (AGX_ORIN_AS_A_USER, (4722, 0, None, None, 41, None)),
        ("something else", (None,) * 6),
    ],
)
def test_lines_of_boards_are_read(line, values):
    readings = readings_of(line, 7)
    assert readings.time_ns == 7
    said = [readings.values.get(quantity.name) for quantity in QUANTITIES]
    assert said == [None if value is None else pytest.approx(value) for value in values]
    missing = {q.name for q, value in zip(QUANTITIES, values, strict=True) if value is None}
    assert set(readings.absent) == missing
    assert all(readings.absent.values())


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A board whose `tegrastats` says given lines, and goes on until it is ended."""

    def say(*lines, then="exec sleep 600"):
        program = tmp_path / "tegrastats"
        told = "\n".join(f"echo '{line}'" for line in lines)
        program.write_text(f'#!/bin/sh\n[ "$1" = --interval ] || exit 3\n{told}\n{then}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return open_source("tegrastats")

    return say


def read(source):
    """The first reading that is not the wait for one."""
    while WAITING in (readings := source.read()).absent.values():
        pass
    return readings


def test_a_board_is_read_until_it_is_closed(board):
    source = board(NANO, ORIN_NANO)
    while (readings := read(source)).values["gpu_mhz"] != 611:
        pass
    assert readings.values["power_w"] == pytest.approx(6.123)
    assert source.read().values == readings.values  # until there is news
    source.close()
    assert set(source.read().absent.values()) == {"the source is closed"}
    source.close()


def test_a_tegrastats_that_ends_says_why(board):
    source = board("tegrastats: no permission", then="exit 1")
    while not any("ended" in reason for reason in source.read().absent.values()):
        pass
    assert set(source.read().absent.values()) == {"tegrastats ended: tegrastats: no permission"}
    source.close()


def test_another_machine_has_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    readings = open_source("tegrastats").read()
    assert not readings.values
    assert all("not a Jetson board" in reason for reason in readings.absent.values())
