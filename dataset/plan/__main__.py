"""`python -m dataset.plan`."""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

from dataset.plan.campaign import stages
from dataset.plan.limits import CPU, GPU
from dataset.plan.parts import PARTS
from dataset.plan.summary import stage_table, summary, text
from dippm.measure.protocol import Settings


def main() -> None:
    """Write a part of the plan as JSON lines, and print what is in it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--part", choices=list(PARTS), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, help="only so many jobs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", action="store_true", help="print a table")
    parser.add_argument("--stages", action="store_true", help="print the stages of a campaign")
    parser.add_argument("--energy-window-s", type=float, default=Settings().energy_window_s)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args()
    settings = Settings(energy_window_s=arguments.energy_window_s)
    if arguments.stages:
        print(stage_table(stages(arguments.seed), GPU, settings))
        return
    jobs = list(islice(PARTS[arguments.part](arguments.seed), arguments.first))
    if arguments.out:
        lines = (json.dumps(job.to_dict()) + "\n" for job in jobs)
        arguments.out.write_text("".join(lines), encoding="utf-8")
    figures = summary(jobs, CPU if arguments.part == "cpu" else GPU, settings)
    if arguments.json:
        print(json.dumps(figures))
    elif arguments.summary:
        print(text(figures))


if __name__ == "__main__":
    main()
