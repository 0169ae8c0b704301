"""A release: how its changes are cut, and what keeps a commit from being one."""

from __future__ import annotations

import pytest

from scripts import release

CHANGES = """# Changes

Newest first.

## 1.1.0, unreleased

What it is about.

* short

### Safe

* long

### Fast

* longer, see [the method](docs/method/index.md)

## 1.0.0, 2026-01-02

* the first
"""
CUT = """# Changes

Newest first.

## 1.1.0, 2026-02-03

What it is about.

* short

[Every change of 1.1.0](docs/changelog/1.1.0.md)

## 1.0.0, 2026-01-02

* the first
"""
REST = """# Changes of 1.1.0

## Safe

* long

## Fast

* longer, see [the method](../method/index.md)
"""


def test_the_details_of_a_version_go_to_a_page_of_their_own():
    assert release.cut(CHANGES, "1.1.0", "2026-02-03") == (CUT, REST)


def test_short_changes_stay_as_they_are():
    text = "# Changes\n\n## 1.1.0, unreleased\n\n* one\n"
    dated = text.replace("unreleased", "2026-02-03")
    assert release.cut(text, "1.1.0", "2026-02-03") == (dated, "")


@pytest.mark.parametrize(
    ("version", "said"), [("1.0.0", "raise the version"), ("2.0.0", "no line")]
)
def test_a_version_is_cut_once(version, said):
    with pytest.raises(release.ReleaseError, match=said):
        release.cut(CHANGES, version, "2026-02-03")


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "CITATION.cff").write_text("version: 1.0.0\n")
    release._git("init", "--quiet")
    faults = list(release.missing("1.1.0", "v1.0.0"))
    assert [fault.split(":")[0] for fault in faults] == [
        "CHANGELOG.md calls 1.1.0 unreleased",
        "CITATION.cff is not of 1.1.0",
        "files are not committed",
        "the tag v1.0.0 is not v1.1.0, the version in dippm/__init__.py",
    ]
    (tmp_path / "CHANGELOG.md").write_text(CUT.replace("* short", "* short\n" * release.SCREEN))
    assert "more than a screen" in next(release.missing("1.1.0", "v1.1.0"))


def test_the_next_version_has_changes_that_fit_a_screen():
    import dippm

    text = (release.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    date, body = release.section(text, dippm.__version__)
    short = body.partition("### ")[0] if date == "unreleased" else body
    assert len(short.splitlines()) <= release.SCREEN
