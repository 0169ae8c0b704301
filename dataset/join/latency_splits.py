"""The splits for judging the default predictor, and the hashes that tie its errors to them.

Rows of whole models, single operators and short chains are split together if all have the key, so
that one fit serves every question of a split. Operators and chains do not belong to families of
models: if families are held out, all of them train.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from dataset.join.splits import Split, by_architecture, family_out, one_out, random_split

HASHES = Path(__file__).with_name("latency_splits.json")
ARCHITECTURE_FOLDS, FAMILY_FOLDS = 5, 10
GPU_GROUPS = {
    "A100": ("A100-40GB", "A100-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB"),
    "H100": ("H100-SXM-80GB", "H100-PCIe-80GB", "H200"),
    "RTX-3090": ("RTX-3090", "RTX-3090-Ti"),
}
"""Variants of one chip, which are held out together."""
_GROUP_OF = {gpu: group for group, gpus in GPU_GROUPS.items() for gpu in gpus}
HELD_OUT_GPUS = ("A100", "H100", "RTX-3090", "RTX-4090", "RTX-5090")
LARGEST_SCALE = "l"

TRAINING_ONLY = ("deepbench", "sd_webui")
"""Sources with conditions unlike a user's: they train the law common to all GPUs but no effect of a
GPU, and are never held out. DeepBench times the fastest of cuDNN's algorithms, for which PyTorch
does not search, and reports of Stable Diffusion come from desktops with other work."""

SPLITS = {
    "L": "L laboratory held out",
    "S0": "S0 random",
    "S1": "S1 architectures held out",
    "S2-10": "S2 families held out",
    "S3a": "S3a GPU held out, with its variants",
    "S6": "S6 largest GPTs held out",
}
"""Names of the splits in text."""


def gpu_group(gpu: str) -> str:
    """Return the name under which a GPU is held out: its own, or that of its group."""
    return _GROUP_OF.get(gpu, gpu)


def latency_splits(table: pd.DataFrame) -> dict[str, Split]:
    """Return every split of the default predictor's training rows.

    Args:
        table: "row_id", "source", "gpu", "arch_id", "family_id", "is_model", "scale", "point" if
            points gave several rows each, and what `dataset.join.splits.sha256_of` reads.
    """
    models = table[table["is_model"]]
    grouped = table.assign(gpu=table["gpu"].map(gpu_group))
    by_gpu = one_out(grouped, "S3a", "gpu")
    large = table[table["scale"] == LARGEST_SCALE]
    found = [
        laboratory_out(table),
        random_split(table),
        by_architecture(table, ARCHITECTURE_FOLDS),
        family_out(models, FAMILY_FOLDS),
        replace(by_gpu, folds=tuple(f for f in by_gpu.folds if f.name in HELD_OUT_GPUS)),
    ]
    if len(large):
        scale = one_out(table.assign(scale=table["scale"].fillna("")), "S6", "scale")
        found.append(replace(scale, folds=tuple(f for f in scale.folds if f.name == LARGEST_SCALE)))
    return {split.name: split for split in found}


def laboratory_out(table: pd.DataFrame) -> Split:
    """L: one source held out on all GPUs, tested on GPUs that another source trains.

    This is the case of a user in another laboratory, whose software, driver and machines are
    unknown. A GPU without rows of another source would be S3a's question, so its rows of this
    source neither train nor test. Sources of TRAINING_ONLY train nothing about a GPU and differ
    from a user's conditions, so they are never held out.
    """
    split = one_out(table, "L", "source")
    as_users = table[~table["source"].isin(TRAINING_ONLY)]
    taught = as_users.groupby("gpu")["source"].nunique()
    elsewhere = set(as_users["row_id"][as_users["gpu"].map(taught) > 1])
    folds = []
    for fold in split.folds:
        test = tuple(row for row in fold.test if row in elsewhere)
        away = tuple(row for row in fold.test if row not in elsewhere)
        if test:
            folds.append(replace(fold, test=test, validation=(), left_out=away))
    return replace(split, folds=tuple(folds))


def hashes_of(splits: dict[str, Split], folder: Path) -> dict[str, str]:
    """Write every split to a folder and return the SHA-256 of each file."""
    return {name: split.save(folder / f"{name}.json") for name, split in splits.items()}
