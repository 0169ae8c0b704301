"""The record keeps what was run, and the table says what was not, and what is not right."""

import json
from pathlib import Path

from tests.zoo.record import RECORD, merge, note_names, read
from tests.zoo.table import write_table

ROOT = Path(__file__).parents[2]


def row(name: str, verdict: str, detail: str = "", **more: object) -> dict[str, object]:
    return {"suite": "own", "name": name, "verdict": verdict, "detail": detail, **more}


def outcomes(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_a_table_says_what_was_not_run(tmp_path: Path) -> None:
    run, record = tmp_path / "run.jsonl", tmp_path / "record"
    table = tmp_path / "docs" / "coverage.md"
    day = {"date": "2026-01-02"}
    outcomes(
        run,
        [
            row("a", "right", "input x: 3 was taken", macs=7, **day),
            row("b", "refused", "SomeError: a|b", **day),
            row("c", "not built", **day),
            row("d", "not numeric", "it takes text", **day),
        ],
    )
    note_names(run, "own", "abcdefg")
    merge(run, record)
    write_table(table, record)
    text = table.read_text()
    assert "| own | 3 | 1 | 0 | 0 | 1 | 1 | 0 | 0 | 50.0 % | 2026-01-02 |" in text
    assert r"| own | b | refused | SomeError: a\|b |" in text
    assert "| own | d | not numeric | it takes text |" in text
    assert "3 models of own were not run yet." in text


def test_a_new_run_of_one_case_keeps_the_others(tmp_path: Path) -> None:
    record = tmp_path / "record"
    first = outcomes(tmp_path / "1.jsonl", [row("a", "right"), row("b", "refused", "no")])
    merge(first, record)
    second = outcomes(tmp_path / "2.jsonl", [row("b", "right", "a note", macs=3)])
    merge(second, record)
    assert read(record) == {
        "own": [
            {"name": "a", "verdict": "right"},
            {"name": "b", "verdict": "right", "macs": 3},
        ]
    }


def test_cases_that_a_suite_no_longer_has_leave_the_record(tmp_path: Path) -> None:
    record = tmp_path / "record"
    merge(outcomes(tmp_path / "1.jsonl", [row("a", "right"), row("b", "right")]), record)
    second = outcomes(tmp_path / "2.jsonl", [])
    note_names(second, "own", ["b", "c"])
    merge(second, record)
    assert [(r["name"], r["verdict"]) for r in read(record)["own"]] == [
        ("b", "right"),
        ("c", "not run"),
    ]


def test_sums_of_an_earlier_run_count_until_all_of_it_is_run_again(tmp_path: Path) -> None:
    record, table = tmp_path / "record", tmp_path / "coverage.md"
    merge(outcomes(tmp_path / "1.jsonl", [row("a", "refused", "no"), row("b", "right")]), record)
    group = {"date": "2026-01-01", "counts": {"right": 1, "not built": 1}, "names": ["b", "c"]}
    (record / "earlier.json").write_text(json.dumps({"own": group}))
    write_table(table, record)
    text = table.read_text()
    assert "| own | 2 | 1 | 0 | 0 | 0 | 1 | 0 | 0 | 50.0 % | 2026-01-01 |" in text
    assert "Of 2 cases of own, run on 2026-01-01, only the sums were kept" in text
    merge(outcomes(tmp_path / "2.jsonl", [row("c", "right")]), record)
    write_table(table, record)
    assert "| own | 3 | 2 | 0 | 0 | 0 | 1 | 0 | 0 | 66.7 % |" in table.read_text()
    assert "only the sums" not in table.read_text()


def test_the_committed_table_is_that_of_the_committed_record(tmp_path: Path) -> None:
    table = tmp_path / "coverage.md"
    write_table(table)
    assert RECORD.is_dir()
    assert table.read_text() == (ROOT / "docs" / "coverage.md").read_text()
