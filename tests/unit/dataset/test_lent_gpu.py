"""A lent machine: each command goes on with what the last one left, and gives few files back."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dippm.measure.collected.journal import read_campaigns
from dippm.measure.collected.store import read_rows
from scripts import lent_gpu, lent_set

from .collect_runs import BARE, HERE, ROOT, _started, steady, write_plan
from .test_collect_bare import LACKING

FILE_BYTES = 16 << 20
PATIENCE_S = 300.0


def start(carried: Path, out: Path, plan: Path, *more: str, **environment: str):
    words = [sys.executable, "-m", "scripts.lent_gpu", str(carried), str(out), "--device", "cpu"]
    words += ["--", "--plan", str(plan), "--families", "collect_faults"]
    words += ["--bench", "collect_faults:QuickBench", "--jobs-per-worker", "100", *more]
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "DIPPM_LOCK_DIR": str(plan.parent / "locks"),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=ROOT, env=variables, **pipes)
    _started.append(process)
    return process


def command(carried: Path, out: Path, plan: Path, *more: str) -> str:
    process = start(carried, out, plan, *more)
    said, talk = process.communicate()
    assert process.returncode == 0, talk
    return said


def rows_in(out: Path, folder: Path) -> list[dict]:
    lent_set.unpack(out, folder, say=pytest.fail)
    return list(read_rows(folder))


def files_of(out: Path) -> list[Path]:
    return [path.relative_to(out) for path in out.rglob("*") if path.is_file()]


def names(out: Path) -> list[str]:
    return sorted(map(str, files_of(out)))


def as_it_comes_back(out: Path) -> Path:
    """Return a copy whose files and folders may be read only."""
    back = out.with_name(f"{out.name}-back")
    shutil.copytree(out, back)
    for path in (*back.rglob("*"), back):
        path.chmod(0o444 if path.is_file() else 0o555)
    return back


@pytest.mark.nightly(part="processes")
def test_commands_go_on_from_each_other_and_leave_few_files(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(6))
    carried = tmp_path / "nothing"
    for number, limit in enumerate(("7", "9", "100")):
        out = tmp_path / f"out{number}"
        said = command(carried, out, plan, "--limit", limit)
        (file,) = files_of(out)
        assert lent_set.PART.fullmatch(str(file))
        carried = as_it_comes_back(out)
    assert "finished: 14 rows in this call, 0 points left" in said
    rows = rows_in(carried, tmp_path / "set")
    assert all(os.stat(path).st_mode & 0o200 for path in (tmp_path / "set").rglob("*"))
    assert len(rows) == 30
    assert len({(row["configuration_id"], row["repeat"]) for row in rows}) == 30
    assert len({row["campaign"] for row in rows}) == 3
    campaigns, _ = read_campaigns(tmp_path / "set")
    assert [len(campaign["command"]) > 8 for campaign in campaigns] == [True] * 3
    assert campaigns[0]["command"][:4] == ["python", "-m", "dataset.collect", "--out"]


@pytest.mark.nightly(part="processes")
def test_it_says_the_next_command_and_the_one_at_home(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(2))
    back, out = tmp_path / "carried here", tmp_path / "out"
    said = command(back, out, plan, "--limit", "3")
    assert re.search(r"^1 files, 0\.\d MiB in ", said, re.MULTILINE)
    get_ready = re.search(r"^  (rm -rf .*?)   # at home$", said, re.MULTILINE)
    assert get_ready
    came_back = as_it_comes_back(out)
    shutil.rmtree(out)  # the next command finds it empty
    words = get_ready[1].replace("CAME_BACK", shlex.quote(str(came_back)))
    subprocess.run(words, shell=True, check=True)
    again = re.search(r"^  python3 -m scripts.lent_gpu (.*?)   # there", said, re.MULTILINE)
    assert again
    first = start(back, out, plan, "--limit", "3")
    assert shlex.split(again[1]) == list(first.args[3:])
    _, talk = first.communicate()
    assert first.returncode == 0, talk
    home = re.search(r"^To keep the rows, at home: (.*)$", said, re.MULTILINE)
    assert home
    line = home[1].replace("CAME_BACK", shlex.quote(str(out)))
    line = line.replace("dataset/data/NAME", shlex.quote(str(tmp_path / "home")))
    line = line.replace("python3", shlex.quote(sys.executable))
    kept = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert kept.returncode == 0, kept.stderr
    assert ": 6 rows, 6 configurations" in kept.stdout
    assert len(list(read_rows(tmp_path / "home"))) == 6


def test_a_folder_that_a_variable_names_is_named_so_again(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setenv("OUT", str(out))
    monkeypatch.setenv("DIPPM_COMMIT", "0123456789ab")
    lent_gpu._tell_next(Path("build/lent"), out, ["build/lent", str(out), "--minutes", "2"])
    said = capsys.readouterr().out
    command = 'DIPPM_COMMIT=0123456789ab python3 -m scripts.lent_gpu build/lent "$OUT" --minutes 2'
    assert f"  {command}   # there" in said


def wait_for_rows(out: Path, count: int, process) -> None:
    """Wait until so many rows of a running command are safe, in whatever file."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        seen = out.with_name("seen")
        shutil.rmtree(seen, ignore_errors=True)
        try:
            lent_set.unpack(out, seen, say=lambda _: None)
        except FileNotFoundError:  # replaced while it was read
            continue
        if len(list(read_rows(seen))) >= count:
            return
        time.sleep(0.2)
    raise AssertionError(files_of(out))


@pytest.mark.nightly(part="processes")
def test_what_a_killed_command_left_is_gone_on_with(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(40))
    carried = tmp_path / "nothing"
    before = 0
    for number in range(2):
        out = tmp_path / f"killed{number}"
        process = start(carried, out, plan, QUICK_S="0.05")
        wait_for_rows(out, before + 3, process)
        process.kill()
        process.communicate()
        left = files_of(out)
        assert len(left) <= lent_set.MOST_FILES
        assert all(len(path.parts) == 1 for path in left), "no folders"
        assert all((out / path).stat().st_size <= FILE_BYTES for path in left)
        carried = as_it_comes_back(out)
        before = len(rows_in(carried, tmp_path / f"before{number}"))
    command(carried, tmp_path / "out", plan)
    rows = rows_in(tmp_path / "out", tmp_path / "set")
    assert len({(row["configuration_id"], row["repeat"]) for row in rows}) == len(rows) == 200
    ends = [campaign["ended"] for campaign in read_campaigns(tmp_path / "set")[0]]
    assert ends == ["killed", "killed", "finished"]


def test_a_set_in_the_folder_that_comes_back_is_not_removed(tmp_path, capsys):
    out = tmp_path / "out"
    lent_set.SetArchiver(set_of(tmp_path / "set", b"x"), out).pack()
    with pytest.raises(SystemExit):
        lent_gpu.main([str(tmp_path / "none"), str(out), "--device", "cpu"])
    assert "name it as CARRIED" in capsys.readouterr().err
    assert len(files_of(out)) == 1


def test_a_machine_with_torch_alone_shows_its_first_row_and_the_rest(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BARE.format(absent=LACKING))
    plan = tmp_path / "plan.jsonl"
    plan.write_text(
        '{"model": "timm:resnet50@224", "points": [{"batch": 1}]}\n'
        '{"model": "own:dense(n=64,k=64,bias=false)@64", "points": [{"batch": 64}]}\n'
    )
    words = [sys.executable, "-m", "scripts.lent_gpu", str(tmp_path / "none")]
    words += [str(tmp_path / "out"), "--device", "cpu", "--", "--plan", str(plan)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "PATH": str(tmp_path),  # no git
        "DIPPM_LOCK_DIR": str(tmp_path / "locks"),
        "OMP_NUM_THREADS": "1",
    }
    settings = ["--timed-steps", "3", "--settle-s", "0.1"]  # and nothing was carried
    done = subprocess.run(
        [*words, *settings], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "first row: own:dense(bias=false,k=64,n=64)@64 batch 64 fp32" in done.stderr
    assert f"{tmp_path / 'none'} holds no set: a new one begins" in done.stderr
    skipped, measured = rows_in(tmp_path / "out", tmp_path / "set")
    assert (skipped["status"], measured["status"]) == ("skipped", "ok")
    assert measured["commit"] is None


def set_of(folder: Path, journal: bytes, **campaigns: bytes) -> Path:
    (folder / "campaigns").mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes(journal)
    for name, content in campaigns.items():
        (folder / "campaigns" / f"{name}.json").write_bytes(content)
    return folder


@pytest.mark.parametrize("part_bytes", [1000, 1 << 20])
def test_a_large_set_comes_in_parts(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(lent_set, "PART_BYTES", part_bytes)
    content = random.Random(0).randbytes(2500)
    out = tmp_path / "out"
    lent_set.SetArchiver(set_of(tmp_path / "from", b"", c=content), out).pack()
    assert all(path.stat().st_size <= part_bytes for path in out.iterdir())
    assert (len(files_of(out)) > 1) == (part_bytes < len(content))
    lent_set.unpack(out, tmp_path / "set", say=pytest.fail)
    assert (tmp_path / "set" / "campaigns" / "c.json").read_bytes() == content


LINE = '{{"row_id":"{}"}}\n'


def lines(*ids: str) -> bytes:
    return "".join(map(LINE.format, ids)).encode()


def ids_in(out: Path, folder: Path, said: list[str]) -> list[str]:
    shutil.rmtree(folder, ignore_errors=True)
    lent_set.unpack(out, folder, say=said.append)
    text = (folder / "journal.jsonl").read_text() if (folder / "journal.jsonl").exists() else ""
    return re.findall(r'"row_id":"(\w+)"', text)


def test_rows_since_a_packing_are_whole_lines_and_come_once(tmp_path):
    folder, out, said = set_of(tmp_path / "from", lines("a")), tmp_path / "out", []
    keeper = lent_set.SetArchiver(folder, out)
    keeper.pack()
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(lines("b") + b'{"row_id":"torn')
    keeper.look()
    assert (out / "since.jsonl").read_bytes() == lines("b")
    assert ids_in(out, tmp_path / "set", said) == ["a", "b"]
    (out / "since.jsonl").write_bytes(lines("a", "b", "c") + b'{"row_id":"d')
    assert ids_in(out, tmp_path / "set", said) == ["a", "b", "c"]
    assert said == ["1 lines of since.jsonl are torn and were left out"]


@pytest.mark.parametrize("change", ["a campaign", "a shard", "many rows", "a cleared journal"])
def test_what_no_line_says_brings_a_new_packing(tmp_path, monkeypatch, change):
    monkeypatch.setattr(lent_set, "SINCE_BYTES", 100)
    folder, out = set_of(tmp_path / "from", lines("a")), tmp_path / "out"
    keeper = lent_set.SetArchiver(folder, out)
    keeper.pack()
    keeper.look()
    assert names(out) == ["collected-001.1of1.tar.gz"]
    if change == "a campaign":
        (folder / "campaigns" / "c.json").write_bytes(b"{}")
    elif change == "a shard":
        (folder / "shard-0000.jsonl.gz").write_bytes(b"...")
    elif change == "many rows":
        (folder / "journal.jsonl").write_bytes(lines("a", *map(str, range(20))))
    else:
        (folder / "journal.jsonl").write_bytes(b"")
    keeper.look()
    assert names(out) == ["collected-002.1of1.tar.gz"]


@pytest.mark.parametrize("harm", ["truncated", "a part is missing", "flipped"])
def test_a_packing_that_was_cut_off_does_not_hide_the_one_before(tmp_path, monkeypatch, harm):
    monkeypatch.setattr(lent_set, "PART_BYTES", 400)
    noise = random.Random(0).randbytes(1000)
    folder, old = set_of(tmp_path / "from", lines("a"), c=noise), tmp_path / "old"
    keeper = lent_set.SetArchiver(folder, tmp_path / "out")
    keeper.pack()
    shutil.copytree(tmp_path / "out", old)
    (folder / "journal.jsonl").write_bytes(lines("a", "b"))
    keeper.pack()
    parts = sorted(path for path in (tmp_path / "out").iterdir())
    for part in parts:
        shutil.copy(part, old)
    victim = old / parts[-1].name
    if harm == "truncated":
        victim.write_bytes(victim.read_bytes()[:-50])
    elif harm == "a part is missing":
        victim.unlink()
    else:
        content = bytearray(victim.read_bytes())
        content[20] ^= 0xFF
        victim.write_bytes(content)
    said: list[str] = []
    assert ids_in(old, tmp_path / "set", said) == ["a"]
    assert len(said) == 1
    assert "packing 2 is" in said[0]


def test_a_damaged_packing_does_not_hide_the_folder_beside_it(tmp_path):
    carried = set_of(tmp_path / "carried", lines("a"), c=b"{}")
    (carried / "collected-004.1of1.tar.gz").write_bytes(b"\x1f\x8b\x08half")
    for path in (*carried.rglob("*"), carried):
        path.chmod(0o444 if path.is_file() else 0o555)
    said: list[str] = []
    assert ids_in(carried, tmp_path / "set", said) == ["a"]
    assert "damaged" in said[0]
    assert names(tmp_path / "set") == ["campaigns/c.json", "journal.jsonl"]
    assert all(os.stat(path).st_mode & 0o200 for path in (tmp_path / "set").rglob("*"))


def test_a_kill_at_any_moment_of_packing_leaves_a_whole_set_in_few_files(tmp_path, monkeypatch):
    """Every write, rename and removal of a packing is the last one that happens."""
    monkeypatch.setattr(lent_set, "PART_BYTES", 1000)
    noise = random.Random(0).randbytes(2500)
    real_write, real_unlink = lent_set.write_whole, Path.unlink
    for moment in range(12):
        folder, out = (
            set_of(tmp_path / f"from{moment}", lines("a"), c=noise),
            tmp_path / f"{moment}",
        )
        keeper = lent_set.SetArchiver(folder, out)
        keeper.pack()
        (folder / "journal.jsonl").write_bytes(lines("a", "b"))
        keeper.look()
        left = [moment]

        def count(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        def write(path: Path, content: bytes, count=count) -> None:
            count()
            path.with_name(f"{path.name}.part").write_bytes(content)
            count()
            real_write(path, content)

        def unlink(path: Path, missing_ok: bool = False, count=count) -> None:
            if path.parent.parent == tmp_path and path.parent.name.isdigit():
                count()
            real_unlink(path, missing_ok=missing_ok)

        with monkeypatch.context() as killing:
            killing.setattr(lent_set, "write_whole", write)
            killing.setattr(Path, "unlink", unlink)
            try:
                keeper.pack()
            except KeyboardInterrupt:
                ended = False
            else:
                ended = True
        assert len(files_of(out)) <= lent_set.MOST_FILES
        assert ids_in(out, tmp_path / "set", []) == ["a", "b"]
    assert ended, "the last moments lie behind the packing"


def test_a_full_set_stops_the_collector(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lent_set, "FULL_BYTES", 100)
    noise = random.Random(0).randbytes(1000)
    keeper = lent_set.SetArchiver(set_of(tmp_path / "from", lines("a"), c=noise), tmp_path / "out")
    assert lent_gpu._collect([], keeper) == 1
    assert "bring it home" in capsys.readouterr().err
