"""The command line: `python -m dataset.collect`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dataset.collect.errors import CollectError
from dataset.collect.pace import seconds
from dataset.collect.plans import plan_hash, read_plan, share
from dataset.plan.parts import PARTS
from dippm.errors import DippmError
from dippm.measure.protocol import Settings

DEFAULTS = Settings()
CLEAN = ("finished", "budget", "limit")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 for our errors, 2 for usage, 128 + signal if interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {"status": _status, "pack": _pack}
    command = commands.get(words[0]) if words else None
    try:
        return command(words[1:]) if command else _collect(words)
    except DippmError as error:
        if "--json" in words:
            print(json.dumps({"error": error.to_dict()}))
        print(f"error: {error}", file=sys.stderr)
        return 1


def _collect(words: list[str]) -> int:
    from dataset.collect.options import Options
    from dataset.collect.runner import JOBS_PER_WORKER
    from dataset.collect.supervisor import collect

    parser = _parser()
    arguments = parser.parse_args(words)
    part = arguments.part or ("cpu" if arguments.device == "cpu" else "all")
    jobs = read_plan(arguments.plan) if arguments.plan else PARTS[part](arguments.seed)
    if arguments.shard:
        jobs = share(jobs, arguments.shard)
    plan = {
        "part": None if arguments.plan else part,
        "file": str(arguments.plan) if arguments.plan else None,
        "seed": arguments.seed,
        "shard": arguments.shard,
        "hash": plan_hash(jobs),
        "jobs": len(jobs),
        "points": sum(len(job.points) for job in jobs),
    }
    options = Options(
        folder=arguments.out,
        device=arguments.device,
        settings=Settings(
            timed_steps=arguments.timed_steps,
            settle_s=arguments.settle_s,
            energy_window_s=arguments.energy_window_s,
        ),
        timeout_s=arguments.timeout_s,
        budget_s=arguments.budget,
        limit=arguments.limit,
        retry_failed=arguments.retry_failed,
        disk_wait_s=arguments.disk_wait_s,
        jobs_per_worker=arguments.jobs_per_worker
        or (1 if arguments.device == "cpu" else JOBS_PER_WORKER),
        memory_limit_mb=arguments.memory_limit_mb,
        families=tuple(arguments.families),
        bench=arguments.bench,
    )
    if arguments.ray:
        from dataset.collect.distributed import collect_with_ray

        campaign = collect_with_ray(jobs, options, plan, address=arguments.ray)
    else:
        campaign = collect(jobs, options, plan)
    return _report(campaign, arguments.out, as_json=arguments.json)


def _report(campaign: Any, folder: Path, *, as_json: bool) -> int:
    counts = ", ".join(f"{n} {status}" for status, n in campaign.statuses.most_common())
    if campaign.disturbed:
        counts += f"; {campaign.disturbed} of the ok ones were disturbed and are no labels"
    print(
        f"{campaign.ended}: {campaign.rows} rows ({counts or 'none'}) in {campaign.seconds:.0f} s, "
        f"{campaign.per_minute:.1f}/min; {campaign.left} points left; {folder}",
        file=sys.stderr,
    )
    if as_json:
        print(json.dumps(campaign.to_dict()))
    if campaign.ended in CLEAN:
        return 0
    if campaign.ended in signal.Signals.__members__:
        return 128 + signal.Signals[campaign.ended]
    return 1


def _status(words: list[str]) -> int:
    from dataset.collect.status import status, text

    found = status(_folder("status", "counts of a collected folder", words))
    print(json.dumps(found) if "--json" in words else text(found))
    return 0


def _pack(words: list[str]) -> int:
    """Move everything to as few shards as possible, Parquet where pyarrow is installed."""
    from dataset.collect.locks import lock_folder
    from dataset.collect.progress import tell
    from dippm.measure.collected.store import Store

    folder = _folder("pack", "move every row to Parquet", words)
    if not folder.is_dir():
        raise CollectError(f"{folder} is no folder", "Name the folder given to --out.")
    with lock_folder(folder):
        Store(folder, say=tell).close()
    return _status(words)


def _folder(command: str, about: str, words: list[str]) -> Path:
    parser = argparse.ArgumentParser(prog=f"python -m dataset.collect {command}", description=about)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    folder: Path = parser.parse_args(words).folder
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dataset.collect",
        description="Measure the plan on a GPU or CPU. The same command goes on where it stopped.",
        epilog="also: status DIR, pack DIR",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder of rows; is made")
    add("--device", default="cuda:0", help="cuda:N or cpu (default: %(default)s)")
    add("--part", choices=list(PARTS), help="of the plan (default: cpu on a CPU, else all)")
    add("--plan", type=Path, metavar="FILE", help="a plan of your own, one job a line, for --part")
    add("--budget", type=_duration, metavar="TIME", help="stop after 90s, 8m, 2h")
    add("--limit", type=_positive, metavar="N", help="stop after N rows")
    add("--seed", type=int, default=0, help="of the plan (default: %(default)s)")
    add("--shard", type=_share, metavar="I/N", help="every N-th job from the I-th on, from 1")
    add("--timeout-s", type=_duration, default=60.0, help="for a point (default: %(default)s)")
    add("--retry-failed", action="store_true", help="try points without a measurement again")
    add("--ray", metavar="ADDRESS", help='spread over the nodes of a cluster; "local" for here')
    add("--json", action="store_true", help="summary as one document on stdout")
    add("--energy-window-s", type=_duration, default=DEFAULTS.energy_window_s, metavar="S")
    add("--settle-s", type=_duration, default=DEFAULTS.settle_s, metavar="S")
    add("--timed-steps", type=_positive, default=DEFAULTS.timed_steps, metavar="N")
    add("--disk-wait-s", type=_duration, default=60.0, metavar="S", help="for space on a full disk")
    add(
        "--jobs-per-worker",
        type=_positive,
        metavar="N",
        help="before a worker is replaced "
        "(default: 1 on a CPU, where memory is that of the process, else 100)",
    )
    add("--memory-limit-mb", type=_positive, metavar="N", help="for a model on a CPU")
    add("--families", action="append", default=[], metavar="MODULE", help="with more families")
    add("--bench", default="", metavar="MODULE:CLASS", help="in place of dippm.measure.run:Bench")
    return parser


def _duration(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _share(text: str) -> str:
    try:
        share((), text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
