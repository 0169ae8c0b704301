"""radT's own example plans, from its authors' talks and examples, run as printed.

On a fake driver and fake MPS: three GPUs that are not there. Each run says what it was given.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import fake_mps, fake_nvml
from tests.samples import sampled
from tests.unit.plans.desks import interrupt, lines, next_line

pytestmark = pytest.mark.skipif(fake_nvml.compiler() is None, reason="needs a C compiler")

TALK_OF_2023 = """\
Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params
1,\t1,\t,\t,\t0,\t\t-,model.py,\tsmi+top+dcgmi,\tbatch-size=128
1,\t1,\t,\t,\t1,\t\t-,model.py,\tsmi+top+dcgmi,\tbatch-size=128
1,\t2,\t,\t,\t2,\t3g.20gb,\tmodel.py,\tsmi+top+dcgmi,\tbatch-size=128
1,\t2,\t,\t,\t2,\t3g.20gb,\tmodel.py,\tsmi+top+dcgmi,\tbatch-size=128
1,\t3,\t,\t,\t1,\t\t-,model.py,\tsmi+top+dcgmi,\tbatch-size=256
"""
NUMBERED = "".join(
    f"{number}\t{line}" for number, line in enumerate(TALK_OF_2023.splitlines(keepends=True), 1)
).replace(",", "\t", 8)
TALK_OF_2026 = """\
Experiment\tWorkload\tStatus\tRun\tDevices\tCollocation\tFile\tListeners\tParams
1,\t1,\t,\t,\t0,\t\t-,train.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t1,\t,\t,\t1,\t\t-,train.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t2,\t,\t,\t2,\t3g.20gb,\ttrain.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t2,\t,\t,\t2,\t3g.20gb,\ttrain.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t3,\t,\t,\t1,\tMPS,\ttrain.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t3,\t,\t,\t1,\tMPS,\ttrain.py,\tsmi+top+dcgm,\t--batch-size 128
"""
PADDED_EXAMPLE = """\
Experiment,Workload,Status,Run,Devices,Collocation,    File,    Listeners,Params
         1,       1,      ,   ,      0,          -,train.py,smi+top,--batch-size 128
         1,       2,      ,   ,      2,    3g.20gb,train.py,smi+top,--batch-size 128
         1,       2,      ,   ,      2,    1g.5gb ,train.py,smi+top,--batch-size 128
"""
SAYS = """
import argparse, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
given = parser.parse_args()
names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")
told = {name: os.environ.get(name, "") for name in names}
print(json.dumps({"batch": given.batch_size, **told}), flush=True)
"""
UUIDS = [f"GPU-0000010{n}-0000-0000-0000-00000000fa4e" for n in range(3)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(desk, library):
    """A desk before three GPUs of which all allow MIG."""
    answers = desk.folder / "answers"
    answers.write_text("gpus 3\nmig_mode 1\nmig_only 2\n")
    programs = fake_mps.put(desk.folder / "programs")
    held = {name: text for name, text in desk.environment.items() if not name.startswith("CUDA")}
    desk.environment = {
        **held,
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML": str(answers),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    for name in ("train.py", "model.py"):
        desk.script(name, SAYS)
    return desk


def layout(desk):
    path = fake_nvml.instances(desk.folder / "answers")
    return path.read_text().splitlines() if path.exists() else []


def given(heard):
    """What each run was given, in the order of the rows."""
    found = {}
    for words in heard:
        if "line" in words:
            found[words["by"]] = json.loads(words["line"])
    return found


def visible(heard):
    return {name: words["CUDA_VISIBLE_DEVICES"] for name, words in given(heard).items()}


@pytest.mark.parametrize(
    "text",
    sampled(
        [TALK_OF_2023, NUMBERED, TALK_OF_2026, PADDED_EXAMPLE],
        pytest.mark.nightly(part="processes"),
    ),
)
def test_a_plan_runs_as_printed(gpus, text):
    gpus.plan.write_text(text)
    heard = gpus.run()
    assert heard[-1].get("well") is True, heard
    assert layout(gpus) == []
    assert set(gpus.statuses()) == {"FINISHED"}
    batches = [words["batch"] for words in given(heard).values()]
    assert set(batches) == ({128, 256} if text in (TALK_OF_2023, NUMBERED) else {128})
    seen = visible(heard)
    assert seen["1 0"] == UUIDS[0]
    if text is not PADDED_EXAMPLE:
        assert seen["1 1"] == UUIDS[1]
    slices = [uuid for name, uuid in seen.items() if name.startswith("2 2_")]
    assert len(set(slices)) == 2
    assert all(uuid.startswith("MIG-") for uuid in slices)
    if text is TALK_OF_2026:
        pipes = {words["CUDA_MPS_PIPE_DIRECTORY"] for words in given(heard).values()} - {""}
        assert len(pipes) == 1
        assert not Path(pipes.pop()).exists()
        assert seen["3 1_A_mps"] == seen["3 1_B_mps"] == UUIDS[1]


def test_what_is_recorded_of_runs_that_share_a_gpu(gpus):
    gpus.plan.write_text(TALK_OF_2026)
    assert gpus.run()[-1]["well"] is True
    rows = gpus.read().rows
    first, alone = gpus.recorded(rows[2].run), gpus.recorded(rows[0].run)
    assert first.start.name == "(2 2_A_3g.20gb) train.py"
    tags = first.start.tags
    assert tags["beside"] == "2_B_3g.20gb"
    assert tags["mig.before"] == "none"
    assert tags["mig.slice"].startswith("3g.20gb")
    assert tags["listeners"] == "smi+top+dcgm"
    assert "beside" not in alone.start.tags


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    sampled(
        [
            ("1,1,,,3,-,train.py,-,", "CollocationError", "row 1: "),
            ("1,1,,,2,5g.40gb,train.py,-,", "UnknownNameError", "unknown MIG profile"),
            ("1,1,,,0,3g.20gb,train.py,-,", "CollocationError", "MIG mode of"),
            ("1,1,,,2,-,train.py,-,", "CollocationError", "is in MIG mode"),
            ("1,1,,,-,mps,train.py,-,", "CollocationError", "no devices are named"),
        ],
        pytest.mark.nightly(part="processes"),
        every=5,
    ),
)
def test_devices_that_cannot_be_had_are_an_error_before_the_start(gpus, row, kind, said):
    gpus.rows(row)
    heard = gpus.run()
    assert heard[-1]["error"] == kind
    assert said in heard[-1]["message"]
    assert not gpus.spool.exists()


def test_runs_together_share_in_one_way(gpus):
    gpus.rows("1,1,,,0,mps,train.py,-,", "1,1,,,0,-,train.py,-,")
    assert "cannot share by" in gpus.run()[-1]["message"]


def test_slices_of_others_stay_and_what_does_not_fit_is_said(gpus):
    """The rows of that workload fail, for they were never seated; the next one runs."""
    others = ["gi 2 1 9 0 4", "ci 2 1 0 2 0 3"]
    fake_nvml.instances(gpus.folder / "answers").write_text("".join(f"{one}\n" for one in others))
    gpus.rows(
        "1,1,,,2,3g.20gb,train.py,-,",
        "1,1,,,2,3g.20gb,train.py,-,",
        "1,2,,,2,3g.20gb,train.py,-,--batch-size 4",
    )
    heard = gpus.run()
    assert gpus.statuses() == ["FAILED devices", "FAILED devices", "FINISHED"]
    says = [words["say"] for words in heard if "say" in words]
    assert any("does not fit" in text for text in says)
    assert len(lines(heard)) == 1
    assert layout(gpus) == others


WAITS = "import os, sys\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\nsys.stdin.close()\n"
WAITS += "import time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


@pytest.mark.parametrize("sharing", ["3g.20gb", "mps"])
def test_a_killed_scheduler_leaves_nothing_that_is_not_undone(gpus, sharing):
    device = 2 if sharing == "3g.20gb" else 0
    gpus.script("waits.py", WAITS)
    gpus.rows(*[f"1,1,,,{device},{sharing},waits.py,-,"] * 2)
    process = gpus.start()
    next_line(process, "line")
    next_line(process, "line")
    process.kill()
    process.communicate()
    made = layout(gpus)
    assert bool(made) == (sharing == "3g.20gb")
    said = gpus.recover()
    assert said[-2:] == ["row 1 is INTERRUPTED", "row 2 is INTERRUPTED"]
    assert len(said) > 2
    assert layout(gpus) == []
    assert gpus.recover() == []
    (gpus.folder / "go").touch()
    assert gpus.run()[-1]["well"] is True
    assert layout(gpus) == []


def test_ctrl_c_restores_the_layout(gpus):
    gpus.script("waits.py", WAITS)
    gpus.rows(*["1,1,,,2,3g.20gb,waits.py,-,"] * 2)
    process = gpus.start()
    next_line(process, "line")
    assert layout(gpus)
    interrupt(process)
    process.communicate(timeout=60)
    assert layout(gpus) == []
    assert gpus.statuses() == ["INTERRUPTED", "INTERRUPTED"]


def test_a_row_is_repeated_with_those_that_share_its_device(gpus):
    """Alone it would be another measurement; rows on other devices are skipped."""
    gpus.script("once.py", "import os, sys\nsys.exit(not os.path.exists('go'))")
    gpus.rows(
        "1,1,,,0,-,once.py,-,",
        "1,1,,,0,-,train.py,-,--batch-size 1",
        "1,1,,,1,-,train.py,-,--batch-size 2",
    )
    assert gpus.run()[-1]["ran"] == [1, 2, 3]
    assert gpus.statuses() == ["FAILED 1", "FINISHED", "FINISHED"]
    (gpus.folder / "go").touch()
    again = gpus.run(rerun_failed=True)
    assert again[-1]["ran"] == [1, 2]
    assert again[-1]["skipped"] == [3]
