"""Every model of every suite, or a sample of each.

    python -m tests.zoo [SUITE ...] [--sample N] [--only TEXT] [--timeout-s N]
                        [--out FILE.jsonl] [--table FILE.md] [--no-run] [--unrecorded]

It resumes: cases that FILE.jsonl has are not run again. With --table its outcomes go into the
record (`tests/zoo/outcomes/`) first, which keeps those of all other cases; --no-run does only that,
and --unrecorded runs the cases of which the record has no outcome.
Each suite runs in processes of its own, because frameworks do not get along in one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from tests.zoo.case import Case
from tests.zoo.record import merge, note_names, recorded
from tests.zoo.table import write_table

SUITES = (
    "onnx_backend",
    "torchvision",
    "timm_models",
    "smp_models",
    "monai_networks",
    "diffusers_models",
    "ultralytics_models",
    "transformers_models",
    "keras_applications",
    "paddle_vision",
)
CASES_PER_PROCESS = 40
MEMORY_LIMIT_BYTES = 16 << 30
"""A model that its own library builds only with data, and that is larger, is not built; without
the limit the kernel would end this process, or one that has nothing to do with it."""


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        return _run_here(arguments)
    for suite in () if arguments.no_run else arguments.suites or SUITES:
        while (code := _run_child(suite, arguments)) == 3:
            pass
        if code:
            print(f"{suite}: ended with exit code {code}", file=sys.stderr)
    if arguments.table:
        merge(arguments.out)
        write_table(arguments.table)
    return 0


def cases(suite: str, sample: int = 0, only: str = "") -> Iterator[Case]:
    """Yield the cases of a suite; with `sample` at most so many, spread evenly."""
    found = [case for case in import_module(f"tests.zoo.{suite}").cases() if only in case.name]
    step = max(1, len(found) // sample) if sample else 1
    yield from found[::step][: sample or None]


def _run_child(suite: str, arguments: argparse.Namespace) -> int:
    words = [sys.executable, "-m", "tests.zoo", suite, "--child", "--out", str(arguments.out)]
    words += ["--sample", str(arguments.sample), "--only", arguments.only]
    words += ["--timeout-s", str(arguments.timeout_s)]
    words += ["--unrecorded"] * arguments.unrecorded
    return subprocess.run(words, check=False).returncode


def _run_here(arguments: argparse.Namespace) -> int:
    """Run some cases that have no outcome yet; 3 says that there are more."""
    from tests.zoo.run import run

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    (suite,) = arguments.suites
    done = {name for found, name in _done(arguments.out) if found == suite}
    all_cases = list(cases(suite, arguments.sample, arguments.only))
    if not arguments.only and not arguments.sample:
        note_names(arguments.out, suite, [case.name for case in all_cases])
    done |= recorded(suite) if arguments.unrecorded else set()
    left = [case for case in all_cases if case.name not in done]
    started = arguments.out.with_suffix(".started")
    if started.exists() and started.read_text() in {c.name for c in left}:
        died = started.read_text()  # the process went down with this one
        outcome = {"suite": suite, "name": died, "verdict": "crashed", "detail": "the process died"}
        _append(arguments.out, outcome)
        left = [case for case in left if case.name != died]
    for case in left[:CASES_PER_PROCESS]:
        started.write_text(case.name)
        outcome = run(suite, case, arguments.timeout_s).to_dict()
        _append(arguments.out, outcome)
        print(f"{suite} {case.name}: {outcome['verdict']} {outcome['detail']}", flush=True)
    started.unlink(missing_ok=True)
    return 3 if len(left) > CASES_PER_PROCESS else 0


def _append(out: Path, outcome: dict[str, object]) -> None:
    with out.open("a") as file:
        file.write(json.dumps({**outcome, "date": str(datetime.now(UTC).date())}) + "\n")


def _done(out: Path) -> Iterator[tuple[str, str]]:
    if out.exists():
        for line in out.read_text().splitlines():
            row = json.loads(line)
            yield row["suite"], row["name"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--sample", type=int, default=0, help="so many cases of each suite")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--unrecorded", action="store_true", help="those without an outcome")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="more on a busy machine")
    parser.add_argument("--out", type=Path, default=Path("build/zoo/outcomes.jsonl"))
    parser.add_argument("--table", type=Path, help="write the table of coverage here")
    parser.add_argument("--no-run", action="store_true", help="only write the table anew")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
