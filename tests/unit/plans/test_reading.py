"""radT's tables and sweeps are read as radT's documents print them; what is wrong is said."""

from __future__ import annotations

import os

import pytest

from dippm.errors import CollocationError, DippmError, PlanError, UnknownNameError
from dippm.runs.plans import sweep
from dippm.runs.plans.plan import records, replaced
from dippm.runs.plans.row import (
    Process,
    Status,
    as_options,
    read_row,
    read_status,
    settings_of,
    words_of,
)
from dippm.runs.plans.sweep import read_sweep
from dippm.runs.plans.table import read_plan, read_table, write_table
from dippm.runs.plans.workload import workloads

PADDED = b"""Experiment,Workload,Status,Run,Devices,Collocation,    File,    Listeners,Params
         1,       1,      ,   ,      0,          -,train.py,smi+top,--batch-size 128
         1,       1,      ,   ,      1,          -,train.py,smi+top,--batch-size 128
         1,       2,      ,   ,      2,    3g.20gb,train.py,smi+top,--batch-size 128
         1,       2,      ,   ,      2,    3g.20gb,train.py,smi+top,--batch-size 128
         1,       3,      ,   ,    1+2,        MpS,train.py,smi+top,--batch-size 128
"""
SLIDE = b"""Experiment\tWorkload\tStatus\tRun\tDevices\tCollocation\tFile\tListeners\tParams
1,\t1,\t,\t,\t0,\t\t-,train.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t2,\t,\t,\t2,\t3g.20gb,\ttrain.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t2,\t,\t,\t2,\t3g.20gb,\ttrain.py,\tsmi+top+dcgm,\t--batch-size 128
1,\t3,\t,\t,\t1,\tMPS,\ttrain.py,\tsmi+top+dcgm,\t--batch-size 128
"""
"""As a slide of 2026 prints a plan of radT's, whose header has lost its commas."""
SWEEP = """
name: study
experiment: 4
devices: 1+2
collocation: "-"
listeners: smi+top
file: train.py
method: {method}
parameters:
  batch-size: {{values: [32, 64, 128]}}
  optimizer: {{values: [sgd, adam]}}
{more}
"""


def rows_of(text: str | bytes):
    return read_table(text if isinstance(text, bytes) else text.encode())[0]


def test_padded_cells_devices_and_ways_to_share():
    rows = rows_of(PADDED)
    assert [row.devices for row in rows] == [("0",), ("1",), ("2",), ("2",), ("1", "2")]
    assert [row.sharing for row in rows] == ["", "", "3g.20gb", "3g.20gb", "mps"]
    assert {(row.experiment, row.file, row.params) for row in rows} == {
        ("1", "train.py", "--batch-size 128")
    }
    assert rows[0].listeners == ("smi", "top")


def test_a_plan_copied_from_a_slide():
    rows = rows_of(SLIDE)
    assert [row.sharing for row in rows] == ["", "3g.20gb", "3g.20gb", "mps"]
    assert rows[0].listeners == ("smi", "top", "dcgm")
    assert words_of(rows[0].params) == ("--batch-size", "128")


def test_letters_are_those_of_radt():
    found = workloads(rows_of(PADDED))
    assert [one.letters for one in found] == [
        ("0", "1"),
        ("2_A_3g.20gb", "2_B_3g.20gb"),
        ("1+2_mps",),
    ]
    assert found[1].run_name(found[1].rows[1]) == "(2 2_B_3g.20gb) train.py"


def test_more_runs_on_a_device_than_letters():
    text = PADDED.splitlines(keepends=True)
    (one,) = workloads(rows_of(b"".join([text[0], *[text[1]] * 28])))
    assert one.letters[25:] == ("0_Z", "0_AA", "0_AB")


def test_only_two_cells_of_a_row_change():
    _, slots = read_table(PADDED)
    run = "0123456789abcdef0123456789abcdef"
    texts = {slots[3].status: "FAILED 1", slots[3].run: run}
    changed = replaced(PADDED, texts)
    before, after = PADDED.splitlines(), changed.splitlines()
    assert [n for n in range(6) if before[n] != after[n]] == [3]
    assert after[3].decode() == (
        f"         1,       2,FAILED 1,{run},      2,    3g.20gb,train.py,smi+top,--batch-size 128"
    )
    assert replaced(changed, {}) == changed


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_other_byte_is_kept(end, mark):
    text = mark + end.join(
        [
            '"Experiment" ,Workload,Status,Run,File,Params',
            "",
            '1,"a ""b""\n c",,,x.py,"--a 1,2"',
            ",",
        ]
    )
    (row,), slots = read_table(text.encode())
    assert (row.workload, row.params) == ('a "b"\n c', "--a 1,2")
    changed = replaced(text.encode(), {slots[1].status: "FINISHED"})
    assert changed.decode() == text.replace(",,,x.py", ",FINISHED,,x.py")
    assert read_table(changed)[0][0].status == Status("FINISHED")


def test_a_cell_keeps_its_width():
    data = b"a,        ,b    ,c\n"
    (record,) = records(data)
    assert replaced(data, {record.cells[1]: "RUN", record.cells[2]: "x,y"}) == (
        b'a,     RUN,"x,y",c\n'
    )


def test_a_table_that_is_written_is_read_as_the_same():
    rows = rows_of(PADDED.replace(b"--batch-size 128", b'"--a ""x, y"""'))
    assert rows_of(write_table(rows)) == rows


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", Status()),
        ("-", Status()),
        ("FINISHED", Status("FINISHED")),
        ("FINISHED funny-bird-12 (0_A)", Status("FINISHED")),
        ("finished", Status("FINISHED")),
        ("FAILED 3", Status("FAILED", "3")),
        ("KILLED sad-cat-3 (1)", Status("INTERRUPTED")),
        ("RUNNING here:12:345", Status("RUNNING", "here:12:345")),
        ("RUNNING sad-cat-3 (1)", Status("LOST")),
    ],
)
def test_a_status_is_read(text, status):
    assert read_status(text) == status


def test_a_process_is_not_taken_for_a_later_one_of_its_number():
    ours = Process.of(os.getpid())
    assert ours.goes_on
    assert Process.parse(str(ours)) == ours
    assert not ours._replace(start=ours.start - 1).goes_on
    assert not ours._replace(host="elsewhere").goes_on


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("batch-size=128 lr=0.1", ["--batch-size", "128", "--lr", "0.1"]),
        ("--batch-size 128", ["--batch-size", "128"]),
        ("-- batch-size=128", ["batch-size=128"]),
        ("train lr=0.1", ["train", "lr=0.1"]),
        ("'a b' --c=\"d e\"", ["a b", "--c=d e"]),
        ("-", []),
        ("", []),
    ],
)
def test_params_are_words(params, words):
    assert list(as_options(words_of(params))) == words


def test_params_of_a_run():
    words = ("--lr", "0.1", "--amp", "--size=3", "data", "seed=4")
    assert settings_of(words) == {"lr": "0.1", "amp": "true", "size": "3", "seed": "4"}


HEAD = "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params\n"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", PlanError, "there is nothing in it"),
        (HEAD, PlanError, "it has no rows"),
        (HEAD.replace("Colloc", "Coloc"), UnknownNameError, "unknown column 'Colocation'"),
        (HEAD.replace("File,", ""), PlanError, "there is no column File"),
        (HEAD.replace("Run,", "File,"), PlanError, "there are two columns File"),
        (
            HEAD + "1,1,,,0,-,a.py,top\n",
            PlanError,
            "line 2: it has 8 cells where the first line has 9",
        ),
        (HEAD + "1,1,,,0,-,,top,\n", PlanError, "line 2: the cell File is empty"),
        (HEAD + "1,1,,,x,-,a.py,top,\n", PlanError, "line 2: 'x' are not devices"),
        (HEAD + "1,1,,,1+1,-,a.py,top,\n", PlanError, "names a device twice"),
        (HEAD + "\n1,1,,,0,mpz,a.py,top,\n", CollocationError, "line 3: 'mpz' is not a way"),
        (HEAD + "1,1,DONE,,0,-,a.py,top,\n", UnknownNameError, "line 2: unknown status 'DONE'"),
        (HEAD + "1,1,,,0,-,a.py,top,'x\n", PlanError, 'Params "\'x" cannot be split'),
        (HEAD + '1,1,,,0,-,a.py,top,"x\n', PlanError, "line 2 has a quote that is not closed"),
        (HEAD.encode() + b"1,1,,,0,-,\xff.py,top,\n", PlanError, "line 2 is no UTF-8 text"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(text, kind, said):
    with pytest.raises(kind) as caught:
        rows_of(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD.replace("\n", ",File" * 900 + "\n"), "there are two columns File"),
        (HEAD.replace("\n", ",File" * 500_000 + "\n"), "line 1 has more than 1,000 cells"),
        (HEAD + "1,1,,,0,-,a.py,top,\n" * 2_001, "it has more than 2,000 rows"),
    ],
)
def test_a_table_of_a_size_that_no_plan_has_is_refused(text, said, monkeypatch):
    monkeypatch.setattr("dippm.runs.plans.plan.MOST_ROWS", 2_000)
    with pytest.raises(PlanError, match=said):
        rows_of(text)


def test_a_status_file_that_is_no_file_is_not_waited_for(tmp_path):
    plan = tmp_path / "plan.csv"
    plan.write_text(HEAD + "1,1,,,-,-,a.py,,\n")
    os.mkfifo(tmp_path / "plan.csv.status.csv")
    with pytest.raises(PlanError, match=r"plan.csv.status.csv cannot be read: .* is no file"):
        read_plan(plan)


def sweep_of(parameters: str, more: str = "runs: 4") -> bytes:
    text = f"experiment: 1\nfile: a.py\nmethod: random\nparameters: {parameters}\n{more}\n"
    return text.encode()


HEX = "0x" + "f" * 5000
"""A number that YAML reads, and that Python writes as no text."""
SIXTIES = ":".join(["1"] * 3000)


@pytest.mark.parametrize(
    "data",
    [
        sweep_of(f"{{a: {{min: 0, max: 1{'0' * 400}}}}}"),
        sweep_of(f"{{a: {{min: 0, max: {HEX}}}}}"),
        sweep_of(f"{{a: {{values: [{HEX}]}}}}"),
        sweep_of(f"{{a: {{values: [{SIXTIES}]}}}}"),
        sweep_of("{a: [1, 2]}", f"runs: {HEX}"),
        sweep_of("{a: [1, 2]}", f"seed: -{HEX}"),
        sweep_of("{a: [1, 2]}", f"name: {HEX}"),
        sweep_of("{a: [1, 2]}", f"status: {{a: {HEX}}}"),
    ],
)
def test_a_number_that_no_run_takes_is_refused(data):
    with pytest.raises(PlanError, match="a whole number of more than 64 bits"):
        read_sweep(data)


def test_a_sweep_that_merges_its_parts_without_end_is_refused():
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 30)]
    with pytest.raises(PlanError, match="merges more than 500,000 parts"):
        read_sweep("\n".join(lines).encode())
    plain = sweep_of("{a: {<<: &range {min: 1, max: 9}}, b: {<<: [{log: true}, *range]}}")
    assert len(read_sweep(plain)) == 4


def test_a_sweep_whose_runs_have_more_parameters_than_fit_is_refused(monkeypatch):
    monkeypatch.setattr(sweep, "MOST_CHARACTERS", 1 << 20)
    many = ", ".join(f"a{i}: [1]" for i in range(5000))
    data = sweep_of(f"{{{many}, b: {{min: 1, max: 9}}}}", "runs: 100000")
    with pytest.raises(PlanError, match="the parameters of its runs have more than 1,048,576"):
        read_sweep(data)


def test_params_that_no_process_takes_are_refused():
    with pytest.raises(PlanError, match="Params of 4,000,000 characters"):
        rows_of(HEAD + f"1,1,,,0,-,a.py,top,{'x' * 4_000_000}\n")
    with pytest.raises(PlanError, match="Params of 200,004 characters"):
        read_sweep(sweep_of(f"{{a: [{'x' * 200_000}]}}"))


def test_a_grid_is_every_combination():
    rows = read_sweep(SWEEP.format(method="grid", more="").encode())
    assert [row.workload for row in rows] == ["000", "001", "002", "003", "004", "005"]
    assert rows[0].params == "--batch-size 32 --optimizer sgd"
    assert len({row.params for row in rows}) == 6
    assert {row.devices for row in rows} == {("1", "2")}


def test_a_random_sweep_is_some_of_them_and_always_the_same():
    """T5: radT's random sweeps fail, for they shuffle what cannot be shuffled."""
    every = {row.params for row in read_sweep(SWEEP.format(method="grid", more="").encode())}
    whole = read_sweep(SWEEP.format(method="random", more="").encode())
    assert {row.params for row in whole} == every
    some = SWEEP.format(method="random", more="runs: 4").encode()
    assert len({row.params for row in read_sweep(some)}) == 4
    assert read_sweep(some) == read_sweep(some)
    orders = {
        tuple(
            row.params
            for row in read_sweep(SWEEP.format(method="random", more=f"seed: {n}").encode())
        )
        for n in range(5)
    }
    assert len(orders) > 1


def test_a_random_sweep_over_ranges():
    text = """
file: train.py
method: random
runs: 200
parameters:
  lr: {min: 0.0001, max: 0.1, log: true}
  depth: {min: 2, max: 5}
  wide: {values: [true, false]}
"""
    found = [words_of(row.params) for row in read_sweep(text.encode())]
    rates = sorted(float(words[1]) for words in found)
    assert 0.0001 <= rates[0] < 0.001 < 0.01 < rates[-1] <= 0.1
    assert 0.001 < rates[100] < 0.01  # half of them below the middle of the decades
    assert {words[3] for words in found} == {"2", "3", "4", "5"}


def test_what_radt_noted_in_a_sweep_counts():
    more = "status: {0: 'FINISHED 0a1b (--batch-size 64 --optimizer sgd)'}\nparent: 0a1b"
    rows = read_sweep(SWEEP.format(method="grid", more=more).encode())
    assert [row.number for row in rows if row.status.word == "FINISHED"] == [3]


def test_a_sweep_that_unfolds_without_end_is_refused():
    """A billion words from ten lines, where a field is taken as text."""
    lines = ["file: a.py", "parameters: {a: [1]}", "status: &s0 [x, x]"]
    lines += [f"x{n}: &s{n} [{', '.join([f'*s{n - 1}'] * 10)}]" for n in range(1, 10)]
    text = "file: a.py\nparameters: {a: [1]}\nstatus:\n" + "".join(f"  {x}\n" for x in lines[3:])
    bomb = text.replace("*s0", "word")
    with pytest.raises(PlanError, match="more than 500,000 parts"):
        read_sweep(bomb.encode())
    for odd in ("a: 2001-99-01\n", f"runs: {'9' * 5000}\n"):
        with pytest.raises(PlanError, match="no YAML"):
            read_sweep((odd + "file: a.py\nparameters: {b: [1]}\n").encode())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "it is no YAML mapping"),
        ("a: [", "it is no YAML"),
        ("file: a.py\nmethods: grid\nparameters: {a: [1]}", "unknown field 'methods'"),
        ("file: a.py\nmethod: bayes\nparameters: {a: [1]}", "unknown method 'bayes'"),
        ("file: a.py", "holds no parameter"),
        ("file: a.py\nparameters: {a: {value: 1}}", "has neither values nor a range"),
        ("file: a.py\nparameters: {a: {values: []}}", "neither text nor number"),
        ("file: a.py\nparameters: {a: &x [*x]}", "more than 500,000 parts"),
        ("file: a.py\nparameters: {a: {min: 1, max: 2}}", "a grid has no values"),
        ("file: a.py\nmethod: random\nparameters: {a: {min: 1, max: 2}}", "Say how many runs"),
        ("file: a.py\nmethod: random\nruns: 0\nparameters: {a: [1]}", "runs: 0 is no whole number"),
        ("file: [a.py]\nparameters: {a: [1]}", "the field file holds neither"),
        ("parameters: {a: [1]}", "the cell File is empty"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said(text, said):
    with pytest.raises(DippmError) as caught:
        read_sweep(text.encode())
    assert said in str(caught.value)


def test_a_grid_that_nobody_could_run():
    axes = "\n".join(f"  p{n}: {{values: {list(range(10))}}}" for n in range(12))
    with pytest.raises(PlanError, match="more than 100,000 combinations"):
        read_sweep(f"file: a.py\nparameters:\n{axes}".encode())
    assert (
        len(read_sweep(f"file: a.py\nmethod: random\nruns: 7\nparameters:\n{axes}".encode())) == 7
    )


def test_files_that_are_no_plan(tmp_path):
    with pytest.raises(PlanError, match="is not a plan by its name"):
        read_plan(tmp_path / "plan.txt")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(tmp_path / "plan.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(PlanError, match="is no file"):
        read_plan(tmp_path / "folder.csv")
    loop = tmp_path / "loop.csv"
    loop.symlink_to(loop)
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(loop)


def test_a_row_without_what_is_optional():
    row = read_row(1, {"Experiment": "1", "Workload": "a", "File": "echo"})
    assert (row.devices, row.sharing, row.listeners, row.params) == ((), "", (), "")


def test_line_numbers_stand_before_all_lines_or_none():
    numbered = "1\tExperiment,Workload,File\n2\t7,1,a.py\n3\t7,1,b.py\n"
    rows, _ = read_table(numbered.encode())
    assert [(row.experiment, row.file) for row in rows] == [("7", "a.py"), ("7", "b.py")]
    for wrong in (numbered.replace("3\t", ""), numbered.replace("3\t", "4\t")):
        with pytest.raises(PlanError, match="line 3 does not begin with its number, 3"):
            read_table(wrong.encode())
