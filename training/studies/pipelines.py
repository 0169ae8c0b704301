"""Pipelines compared with the reports of users of Stable Diffusion 1.x.

    python -m training.studies.pipelines --data ../shared/data

A report is a run of 10, 20 or 50 steps at 512 x 512 with guidance, in half precision: steps times
images over its wall time, text encoder, decoder, scheduler and the web interface included. The
table has the 80 % quantile of their rates, for the GPUs with most reports. The checkpoint was
trained on these reports for calls of the U-Net, so this is not a test of it: it shows the time that
is omitted between the stages.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Annotated

import typer

import dippm
from dataset.measured.location import data_dir, table_path
from dataset.measured.sources import sd_webui

GPUS, IMAGES, STEPS = 8, (1, 8, 16), 20


def main(data: Annotated[Path | None, typer.Option(help="Of the measured tables.")] = None) -> None:
    """Print reported and predicted rates as Markdown."""
    table = sd_webui.read(table_path(data_dir(data), "sd_webui", sd_webui.FILE).parent)
    table = table.assign(images=table["batch"] // sd_webui.CALLS_AT_ONCE)
    table = table[table["images"].isin(IMAGES)]
    whole = table.groupby("gpu")["images"].count().loc[lambda n: n == len(IMAGES)].index
    counts = table[table["gpu"].isin(whole)].groupby("gpu")["reports"].sum()
    chosen = [*counts.nlargest(GPUS).index]
    loaded = dippm.load()
    heads = [f"{n} image{'s' * (n > 1)}: reported" for n in IMAGES]
    print("| GPU | " + " | ".join(f"{head} | predicted" for head in heads) + " |")
    print("|---" + "|--:" * (2 * len(IMAGES)) + "|")
    ratios: dict[int, list[float]] = {n: [] for n in IMAGES}
    for gpu in chosen:
        cells = []
        for images in IMAGES:
            row = table[(table["gpu"] == gpu) & (table["images"] == images)].iloc[0]
            theirs = images * 1e3 / float(row["latency_ms"])
            found = dippm.pipeline("sd15", steps=STEPS, batch=images, device=gpu, checkpoint=loaded)
            ours = images * STEPS * 1e3 / found.latency_ms
            ratios[images].append(ours / theirs)
            cells += [f"{theirs:.1f}", f"{ours:.1f}"]
        print(f"| {gpu} | " + " | ".join(cells) + " |", flush=True)
    print("| median | " + " | ".join(f" | {median(ratios[n]):.2f} times" for n in IMAGES) + " |")


if __name__ == "__main__":
    typer.run(main)
