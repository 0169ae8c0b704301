"""Table of costs per sample of each workload, so that planning needs no framework.

    python -m dataset.families.costs        # adds missing rows, drops obsolete ones

Delete the table first if networks changed under the same names.

Costs are counted on the meta device without computing, so any network takes milliseconds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

from dataset.families.family import Family, Workload

TABLE = Path(__file__).with_name("costs.csv")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a workload; all fields except `parameters_m` and `operators` grow with the batch.

    Attributes:
        gmacs: 10⁹ multiply-accumulates per sample, by torch's flop counter.
        written_mb: MiB written by all operators per sample, in float32, which training keeps.
        peak_mb: MiB of the largest inputs and output of one operator per sample.
        parameters_m: 10⁶ parameters.
        operators: number of operators that run.
    """

    gmacs: float
    written_mb: float
    peak_mb: float
    parameters_m: float
    operators: int


def workloads(family: Family) -> Iterator[Workload]:
    """Yield every member of a family with each of its sizes."""
    for parameters in family.grid():
        for sizes in family.sizes(parameters):
            yield Workload(family.name, parameters, sizes)


@cache
def table() -> dict[str, Cost]:
    """Return the cost of each workload by its model name."""
    if not TABLE.is_file():
        return {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {
        model: Cost(float(gmacs), float(written), float(peak), float(parameters), int(operators))
        for model, gmacs, written, peak, parameters, operators in rows
    }


def cost(workload: Workload) -> Cost:
    """Return the cost of a workload.

    Raises:
        KeyError: if the table lacks it.
    """
    known = table().get(workload.model)
    if known is None:
        raise KeyError(f"{workload.model}: run `python -m dataset.families.costs`")
    return known


def count(workload: Workload) -> Cost:
    """Count the cost of a workload on the meta device."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from dataset.families import registry
    from dataset.families.tally import FusedOperators, OperatorTally

    module = registry.build(workload, "meta")
    inputs = registry.make_inputs(workload, 1, "meta")
    tally = OperatorTally()
    with torch.no_grad(), FlopCounterMode(display=False) as flops, tally, FusedOperators(tally):
        module(*inputs)
    return Cost(
        round(flops.get_total_flops() / 2e9, 6),
        round(tally.written / MIB, 4),
        round(tally.peak / MIB, 4),
        round(sum(p.numel() for p in module.parameters()) / 1e6, 4),
        tally.operators,
    )


def main() -> None:
    """Write the table, after each family so that no count is lost."""
    from dataset.families import registry

    known = table()
    rows: dict[str, Cost] = {}
    for family in {**registry.FAMILIES, **registry.OPERATORS, **registry.ZOO}.values():
        rows |= {w.model: known.get(w.model) or count(w) for w in workloads(family)}
        _write({**known, **rows})
    _write(rows)
    print(f"{len(rows)} workloads, {len(rows.keys() - known.keys())} new, in {TABLE}")


def _write(rows: dict[str, Cost]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", *(field.name for field in fields(Cost))])
        writer.writerows((model, *astuple(value)) for model, value in sorted(rows.items()))


if __name__ == "__main__":
    main()
