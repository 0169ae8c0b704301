"""The table says what was not run, and what is not right."""

import json
from pathlib import Path

from tests.zoo.table import note_size, write_table


def test_a_table_says_what_was_not_run(tmp_path: Path) -> None:
    outcomes, table = tmp_path / "outcomes.jsonl", tmp_path / "docs" / "coverage.md"
    rows = [("a", "right", ""), ("b", "refused", "SomeError: a|b"), ("c", "not built", "")]
    outcomes.write_text(
        "".join(
            json.dumps({"suite": "zoo", "name": name, "verdict": verdict, "detail": detail}) + "\n"
            for name, verdict, detail in rows
        )
    )
    note_size(outcomes, "zoo", 10)
    write_table(outcomes, table)
    text = table.read_text()
    assert "| zoo | 2 | 1 | 0 | 0 | 1 | 0 | 0 |" in text
    assert r"| zoo | b | refused | SomeError: a\|b |" in text
    assert "7 models of zoo were not run yet." in text
