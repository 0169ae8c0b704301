"""What a terminal shows: whole names, whole numbers, stages of long work, colour where wanted."""

from __future__ import annotations

import io
import os
import re
import signal
import sys

import pexpect
import pytest
from rich.console import Console

from dippm.base.progress import listening, stage, tell
from dippm.devices import all_devices
from dippm.show.report.console import console, device_table, print_text
from dippm.show.report.tables import PIPE_FOLD, Column, TerminalTable

NAMES = [device.name for device in all_devices()]


def printed(table, width):
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


def terminal(*words, columns, **environment):
    """Run the command on a terminal and return (exit code, what it showed)."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "dippm", *map(str, words)],
        dimensions=(50, columns),
        env={**os.environ, "TERM": "xterm-256color", **environment},
        encoding="utf-8",
        timeout=120,
    )
    child.expect(pexpect.EOF)
    child.wait()  # closing would hang it up on its way out
    child.close()
    return child.exitstatus, child.before


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_no_name_is_cut(width):
    text = printed(device_table(all_devices()), width)
    cells = [
        line[1 : max(map(len, NAMES)) + 1].split("  ")[0].strip() for line in text.splitlines()
    ]
    folded = "".join(cells)
    for name in NAMES:
        assert name in folded
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_columns_that_have_no_room_are_named():
    text = printed(device_table(all_devices()), 60)
    assert re.search(r"not shown in 60 columns: .*architecture", text)
    assert "not shown" not in printed(device_table(all_devices()), 300)


def test_numbers_are_never_broken_and_names_fold():
    table = TerminalTable((Column("model", folds=True), Column("ms")), [("x" * 50, "1,234,567.8")])
    text = printed(table, 40)
    assert "1,234,567.8" in text
    assert text.count("x") == 50


def test_markup_in_a_name_is_text():
    assert "[bold]x[/bold]" in printed(
        TerminalTable((Column("[red]a"),), [("[bold]x[/bold]",)]), 80
    )


def test_long_lines_go_on_below_their_last_column():
    file = io.StringIO()
    file.isatty = lambda: False  # type: ignore[method-assign]
    os.environ["COLUMNS"] = "40"
    try:
        print_text(" energy       not available: " + "no power was ever measured " * 3, file)
    finally:
        del os.environ["COLUMNS"]
    first, *rest = file.getvalue().splitlines()
    assert first.startswith(" energy       not available:")
    assert rest
    assert all(line.startswith(" " * 14) and len(line) <= 40 for line in rest)


def test_a_pipe_breaks_no_lines_unless_columns_says_so(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console(io.StringIO()).width > 1000
    monkeypatch.setenv("COLUMNS", "72")
    assert console(io.StringIO()).width == 72


def test_colour_is_asked_for_or_refused(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    table = TerminalTable((Column("state"),), [("ok",)])

    def shown():
        file = io.StringIO()
        console(file).print(table)
        return file.getvalue()

    assert "\x1b[" not in shown()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in shown()


def test_a_terminal_sees_stages_and_the_answer_without_a_trace(onnx_file, checkpoint_folder):
    code, seen = terminal(
        "predict",
        onnx_file,
        "--batch",
        3,
        columns=60,
        DIPPM_CACHE_DIR=str(onnx_file.parent / "new"),
    )
    assert code == 0, seen
    assert f"converting {onnx_file.name}" in seen
    answer = seen[seen.rindex("\x1b[?25h") :]  # the cursor is back
    assert "converting" not in answer
    assert "batch 3 · A100-40GB" in answer
    assert max(map(len, plain(answer).splitlines())) <= 60


def test_an_interrupt_gives_the_line_and_the_cursor_back(onnx_file, tmp_path):
    """The list of models comes from a terminal that does not end it, so the command waits."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "dippm", "compare", "--from", "-"],
        dimensions=(50, 80),
        env={**os.environ, "TERM": "xterm-256color"},
        encoding="utf-8",
        timeout=120,
    )
    child.expect("starting")
    child.kill(signal.SIGINT)
    child.expect(pexpect.EOF)
    child.wait()  # closing would hang it up on its way out
    child.close()
    assert child.exitstatus == 130
    assert "\x1b[?25h" in child.before


def test_quiet_and_dumb_terminals_see_no_stages(onnx_file):
    for words, environment in ((["--quiet"], {}), ([], {"TERM": "dumb"})):
        code, seen = terminal("predict", onnx_file, *words, columns=80, **environment)
        assert code == 0, seen
        assert "converting" not in seen
        assert "\x1b" not in seen


def test_no_color_on_a_terminal():
    code, seen = terminal("doctor", columns=80, NO_COLOR="1")
    assert code == 0, seen
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", seen)
    code, seen = terminal("doctor", columns=80)
    assert re.search(r"\x1b\[[0-9;]*32m", seen)


def test_a_measurement_is_not_disturbed_by_a_clock(monkeypatch):
    import threading

    from dippm.cli.output import progress_shown

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    before = threading.active_count()
    with progress_shown(still=True):
        tell("timing 30 steps")
        assert threading.active_count() == before
        assert "timing 30 steps" in screen.getvalue()


def test_stages_stand_before_what_is_told_inside():
    heard: list[str] = []
    with listening(heard.append), stage("1 of 2: a.onnx"), stage("converting"):
        tell("exporting")
    assert heard == [
        "1 of 2: a.onnx",
        "1 of 2: a.onnx: converting",
        "1 of 2: a.onnx: converting: exporting",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_had(shell):
    # Without a shell above the tests (a service, a job in the background) none would be found.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code, seen = terminal("--show-completion", shell, columns=120, **named)
    assert code == 0, seen
    assert "_DIPPM_COMPLETE" in seen or "complete" in seen


def test_devices_and_precisions_complete():
    from dippm.cli.options import _completing, _devices, _precisions

    assert _completing(_devices)("a100-4") == ["A100-40GB"]
    assert _completing(_precisions)("fp16,bf") == ["fp16,bf16"]


def test_devices_are_filtered(monkeypatch):
    from typer.testing import CliRunner

    from dippm.cli.app import app

    monkeypatch.delenv("COLUMNS", raising=False)
    answer = CliRunner().invoke(app, ["devices", "A100", "40gb"])
    lines = [line.split()[0] for line in answer.stdout.splitlines() if "Ampere" in line]
    assert lines == ["A100-PCIe-40GB", "A100-40GB"]
    assert "measured CPUs" not in answer.stdout
    assert "no device matches" in CliRunner().invoke(app, ["devices", "a1000"]).stderr


def test_what_is_absent_for_the_same_reason_shares_a_row():
    from dippm.show.report.console import findings_table
    from dippm.show.report.health import HealthFinding

    findings = [
        HealthFinding("source nvml", "absent", "absent: no driver"),
        HealthFinding("source mig", "absent", "absent: no driver"),
        HealthFinding("torch", "ok", "2.13.0"),
    ]
    table = findings_table(findings)
    assert [[str(cell) for cell in row] for row in table.rows] == [
        ["source nvml, source mig", "absent", "no driver"],
        ["torch", "ok", "2.13.0"],
    ]
    assert table.caption == " 1 ok, 2 absent, which is allowed, nothing broken"


@pytest.mark.nightly(part="processes")
def test_long_commands_tell_their_stages(onnx_file, checkpoint_folder):
    """What a terminal would show, heard directly: each verb says what it does."""
    import dippm
    from dippm.measure.protocol import Settings
    from dippm.measure.selftest import Plan, overhead

    heard: list[str] = []
    with listening(heard.append):
        dippm.compare([onnx_file], batch=range(1, 131), checkpoint=checkpoint_folder)
        dippm.sweep(onnx_file, batch="1:4")
        dippm.measure_model(onnx_file, device="cpu", settings=Settings(1, 2, energy_window_s=0))
        overhead(Plan(0.1, 0, 0, 1, sources=("tree",)), progress=tell)
    words = "\n".join(heard)
    for stage_name in (
        "loading checkpoint roofline-test",
        f"1 of 1: {onnx_file.name}: predicting 128 of 130",
        f"converting {onnx_file.name}",
        "looking for the largest batches",
        "loading the model",
        "warming up",
        "timing 2 steps",
        "step 3 of 3: sleep, sampled at 100 Hz",
    ):
        assert stage_name in words


def test_lines_of_a_piped_table_end_with_their_text(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    console(file).print(device_table(all_devices()))
    lines = file.getvalue().splitlines()
    assert len(lines) > len(NAMES)
    assert [line for line in lines if line != line.rstrip()] == []


def test_long_cells_fold_in_a_pipe_and_numbers_stay_whole():
    columns = (Column("what", folds=True), Column("ms"), Column("why", folds=True))
    rows = [("a name " * 90, "1,234,567.8", "because " * 90), ("b", "2", "c")]
    shown = printed(TerminalTable(columns, rows), 10_000)
    assert max(map(len, shown.splitlines())) <= 2 * PIPE_FOLD + 30
    assert "1,234,567.8" in shown
    assert shown.count("because") == 90


def test_the_answer_of_doctor_and_models_is_no_wider_in_a_pipe():
    from typer.testing import CliRunner

    from dippm.cli.app import app

    for name in ("doctor", "models", "devices", "hosts"):
        answer = CliRunner().invoke(app, [name])
        assert answer.exit_code == 0, answer.output
        assert max(map(len, answer.stdout.splitlines())) <= 200, name


def test_help_calls_values_by_what_they_are():
    from typer.testing import CliRunner

    from dippm.cli.app import app

    for words in (["predict"], ["mig"], ["plan", "run"], ["selftest", "overhead"], []):
        answer = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
        assert answer.exit_code == 0
        assert not re.search(r"<(bool|int|str|float|path)>", answer.stdout), words
    shown = CliRunner().invoke(app, ["predict", "--help"], env={"COLUMNS": "200"}).stdout
    assert re.search(r"--batch\s+-b\s+N\s+Samples", shown)
    assert re.search(r"--json\s+Print one", shown)
    assert re.search(r"--html\s+FILE\s", shown)
