"""Sources that a training goes without: which, and why.

Tables that may not be shared, or could not be fetched, stop no training. They are named when
it begins, and on its card with the lines that are then empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from dataset.measured.location import DataNotFoundError, data_dir
from dataset.measured.sources import all_sources, is_there
from dataset.published.registry import all_published

LATENCY, POWER, MEMORY = "latency", "power", "memory"
TEACHES: Mapping[str, tuple[str, ...]] = {
    "timm_infer": (LATENCY,),
    "pytorch_gpu_benchmark": (LATENCY,),
    "migperf": (LATENCY, MEMORY),
    "parvagpu": (LATENCY,),
    "sd_webui": (LATENCY,),
    "hwgpt": (LATENCY, POWER),
    "neusight_ops": (LATENCY,),
    "aiconfigurator": (LATENCY, POWER),
    "vidur": (LATENCY,),
    "flagperf": (LATENCY, POWER),
    "deepbench": (LATENCY,),
    "kernelbench": (LATENCY,),
    "optimum_benchmark": (LATENCY, MEMORY),
    "raphischer": (POWER,),
    "ecnas": (POWER,),
    "zeus": (POWER,),
    "splitwise": (POWER,),
}
"""What the default predictor learns from each source of others, in the order of reading."""


@dataclass(frozen=True, slots=True)
class AbsentSource:
    """A source whose tables are not on this machine.

    Attributes:
        name: name of the source.
        teaches: targets that it would have taught.
        why: it is absent, for people.
        remedy: way to get it; empty without one.
    """

    name: str
    teaches: tuple[str, ...]
    why: str
    remedy: str

    @property
    def said(self) -> str:
        """What is said of it, for people."""
        return f"Without {self.name} ({', '.join(self.teaches)}): {self.why}."


def absent_sources(data: Path, *, ours: bool = False) -> list[AbsentSource]:
    """Return the sources whose tables are not in the folder, in the order of reading.

    Args:
        data: folder of measured tables.
        ours: whether a set of our own teaches, too.

    Raises:
        DataNotFoundError: if there is no such folder, or nothing in it that teaches latency.
    """
    folder = data_dir(data)
    found = [_absent(name) for name in TEACHES if not _is_there(name, folder)]
    taught = {name for name in TEACHES if LATENCY in TEACHES[name]} - {each.name for each in found}
    if not taught and not ours:
        raise DataNotFoundError(
            f"{folder} has no table that teaches latency",
            "`python -m dataset.fetch` gets the tables; name another folder with --data.",
        )
    return found


def tell_absent(data: Path, *, ours: bool = False) -> list[AbsentSource]:
    """Say on standard error what is absent, and return it; see `absent_sources`."""
    found = absent_sources(data, ours=ours)
    for absent in found:
        typer.echo(f"{absent.said} {absent.remedy}".rstrip(), err=True)
    return found


def _is_there(name: str, folder: Path) -> bool:
    if name in all_sources():
        return is_there(name, folder)
    return all((folder / name / table.file).is_file() for table in all_published()[name].tables)


def _absent(name: str) -> AbsentSource:
    known = all_sources()
    folder = known[name].folder if name in known else name
    published = all_published()[folder]
    why, remedy = "its tables were not at hand", f"`python -m dataset.fetch {folder}` gets them."
    if published.absent:
        remedy = f"`python -m dataset.fetch {folder} --from BUNDLE` gets them."
    if published.unpacked:
        why, remedy = published.unpacked, ""
    return AbsentSource(name, TEACHES[name], why, remedy)
