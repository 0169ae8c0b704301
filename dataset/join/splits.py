"""Splits as files: rows for training, validation and test.

In all of them a row belongs to the test side if any of its keys is held out. So an architecture
under test never trains, under any name or family.

Names as in the evaluation protocol: S0 random; S1 by architecture, 5 folds; S2 one family out, and
S2-20 with 20 folds of whole families; S3a one GPU out; S3b GPU and family both unseen; S4 one mode
or precision out; S5 one source out; S6 the largest out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dataset.join.grouping import family_version

SEED = 42
VALIDATION_SHARE = 0.1
SCHEMA = 1


def file_name(fold: str) -> str:
    """Return the name of a fold as one of a file: sources of our own sets have a slash."""
    return fold.replace(" ", "+").replace("/", "+")


@dataclass(frozen=True, slots=True)
class Fold:
    """One part of a split; rows in none of its lists train.

    Attributes:
        name: held-out value, such as a family.
        test: row ids for the test.
        validation: row ids for early stopping, grouped like the test part.
        left_out: row ids that neither train nor test in this fold.
    """

    name: str
    test: tuple[str, ...]
    validation: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """Folds over one table.

    Attributes:
        name: "S0" ... "S5".
        keys: columns that are held out together.
        seed: seed of every random choice.
        data: source, number and SHA-256 of the rows.
        families: version of the family table.
        rows: all row ids, in the order of the table.
        folds: the folds, at least one.
    """

    name: str
    keys: tuple[str, ...]
    seed: int
    data: tuple[dict[str, Any], ...]
    families: str
    rows: tuple[str, ...]
    folds: tuple[Fold, ...]

    def train(self, fold: Fold) -> list[str]:
        """Return the row ids that train in a fold."""
        away = {*fold.test, *fold.validation, *fold.left_out}
        return [row for row in self.rows if row not in away]

    def save(self, path: Path) -> str:
        """Write the split as JSON; return the SHA-256 of the file."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=None, separators=(",", ":"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def load(cls, path: Path) -> Split:
        """Return the split in a file written by `save`.

        Raises:
            ValueError: if the file has another schema.
        """
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("schema", None) != SCHEMA:
            raise ValueError(f"{path} is not a split of schema {SCHEMA}")
        folds = tuple(Fold(**{k: _frozen(v) for k, v in f.items()}) for f in document.pop("folds"))
        return cls(folds=folds, **{k: _frozen(v) for k, v in document.items()})


def random_split(table: pd.DataFrame, seed: int = SEED) -> Split:
    """S0: 70 % train, 15 % validation, 15 % test, at random without grouping.

    Rows of one "point", if the table has the column, were measured together and stay together.
    """
    points = table["point" if "point" in table else "row_id"]
    unique = points.unique()
    order = np.random.default_rng(seed).permutation(len(unique))
    n_test = n_validation = round(0.15 * len(unique))
    drawn = unique[order[:n_test]], unique[order[n_test : n_test + n_validation]]
    test, validation = (table["row_id"][points.isin(part)] for part in drawn)
    fold = Fold("random", _sort_ids(test), _sort_ids(validation))
    return _split("S0", (), table, [fold], seed=seed)


def by_architecture(table: pd.DataFrame, n_folds: int = 5, seed: int = SEED) -> Split:
    """S1: folds of whole architectures; needs the column "arch_id"."""
    parts = _deal(table["arch_id"], n_folds, seed)
    folds = [
        _fold(table, str(i), {"arch_id": part}, group="arch_id", seed=seed)
        for i, part in enumerate(parts)
    ]
    return _split("S1", ("arch_id",), table, folds, seed=seed)


def family_out(table: pd.DataFrame, n_folds: int | None = None, seed: int = SEED) -> Split:
    """S2: one fold per family, or `n_folds` folds of whole families of similar size.

    Needs the columns "family_id" and "arch_id".
    """
    families = sorted(table["family_id"].unique())
    parts = _deal(table["family_id"], n_folds, seed) if n_folds else [[f] for f in families]
    folds = []
    for part in parts:
        name = part[0] if n_folds is None else " ".join(sorted(part))
        folds.append(_fold(table, name, {"family_id": part}, group="family_id", seed=seed))
    name = f"S2-{n_folds}" if n_folds else "S2"
    return _split(name, ("family_id", "arch_id"), table, folds, seed=seed)


def one_out(table: pd.DataFrame, name: str, key: str, seed: int = SEED) -> Split:
    """S3a (key "gpu"), S4 ("mode", "precision", "layout") or S5 ("source"): one value held out.

    The models under test occur in training with other values; only the value is new. The
    validation part is grouped by architecture if the table has "arch_id", else random.
    """
    folds = [
        _fold(table, str(value), {key: [value]}, seed=seed, close=False)
        for value in sorted(table[key].unique())
    ]
    return _split(name, (key,), table, folds, seed=seed)


def gpu_and_family_out(table: pd.DataFrame, n_folds: int = 5, seed: int = SEED) -> Split:
    """S3b: GPU and family both unseen, for each GPU and each of `n_folds` groups of families.

    Rows with only one of the two held out neither train nor test.
    """
    folds = []
    for gpu in sorted(table["gpu"].unique()):
        for i, part in enumerate(_deal(table["family_id"], n_folds, seed)):
            held = _close_over_architectures(table, table["family_id"].isin(part))
            on_gpu = table["gpu"] == gpu
            test, rest = held & on_gpu, held ^ on_gpu
            ids = table["row_id"]
            folds.append(Fold(f"{gpu} {i}", _sort_ids(ids[test]), left_out=_sort_ids(ids[rest])))
    return _split("S3b", ("gpu", "family_id", "arch_id"), table, folds, seed=seed)


def sha256_of(table: pd.DataFrame) -> str:
    """Return a hash of the measurements: ids, conditions and labels."""
    columns = ["row_id", "gpu", "precision", "mode", "model", "operator", "batch", "latency_ms"]
    text = table[[c for c in columns if c in table]].to_csv(index=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _fold(
    table: pd.DataFrame,
    name: str,
    held_out: dict[str, Sequence[Any]],
    *,
    seed: int,
    group: str | None = None,
    close: bool = True,
) -> Fold:
    test = pd.Series(False, index=table.index)
    for key, values in held_out.items():
        test |= table[key].isin(values)
    if close:
        test = _close_over_architectures(table, test)
    group = group or ("arch_id" if "arch_id" in table else "row_id")
    rest = table[~test]
    kept = _take(rest[group], VALIDATION_SHARE, seed)
    validation = rest[group].isin(kept)
    if close and "arch_id" in table:
        validation = _close_over_architectures(rest, validation)
    return Fold(name, _sort_ids(table["row_id"][test]), _sort_ids(rest["row_id"][validation]))


def _close_over_architectures(table: pd.DataFrame, chosen: pd.Series[bool]) -> pd.Series[bool]:
    """Return `chosen` extended to all rows of each chosen architecture."""
    if "arch_id" not in table:
        return chosen
    return chosen | table["arch_id"].isin(table["arch_id"][chosen].unique())


def _deal(keys: pd.Series[Any], n_parts: int, seed: int) -> list[list[Any]]:
    """Distribute groups over parts of similar row counts: large groups first, ties at random."""
    counts = keys.value_counts().sort_index()
    order = np.random.default_rng(seed).permutation(len(counts))
    shuffled = counts.iloc[order].sort_values(ascending=False, kind="stable")
    parts: list[list[Any]] = [[] for _ in range(n_parts)]
    sizes = [0] * n_parts
    for group, count in shuffled.items():
        smallest = sizes.index(min(sizes))
        parts[smallest].append(group)
        sizes[smallest] += int(count)
    return [part for part in parts if part]


def _take(keys: pd.Series[Any], share: float, seed: int) -> list[Any]:
    """Return randomly drawn groups that together have about `share` of the rows.

    A group that alone would exceed it is not drawn, so that training keeps a dominant family.
    """
    counts = keys.value_counts().sort_index()
    room = share * len(keys)
    taken = []
    for i in np.random.default_rng(seed).permutation(len(counts)):
        if counts.iloc[i] <= room:
            taken.append(counts.index[i])
            room -= counts.iloc[i]
    return taken


def _split(
    name: str, keys: tuple[str, ...], table: pd.DataFrame, folds: list[Fold], *, seed: int
) -> Split:
    if table["row_id"].duplicated().any():
        raise ValueError("row ids are not unique")
    data = tuple(
        {"source": str(source), "rows": len(rows), "sha256": sha256_of(rows)}
        for source, rows in table.groupby("source")
    )
    rows = tuple(table["row_id"])
    return Split(name, keys, seed, data, family_version(), rows, tuple(folds))


def _sort_ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ids))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
