"""Held-out predictions of a set of our own → metrics, intervals, card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dippm.estimate.features import FEATURE_VERSION
from dippm.estimate.models.pmgns_network import PmgnsConfig
from training.evaluation.held_out import HeldOut
from training.evaluation.intervals import residuals
from training.evaluation.metrics import bootstrap, card_columns, grouped_errors
from training.pmgns.examples import Examples
from training.pmgns.selection import Selection
from training.pmgns.trainer import TrainingConfig

D35_HEADLINE = "1.9 % MAPE, random split, three targets together (D3.5, 500 epochs, A100)"
SPLITS = {
    "S0": "random 70/15/15: other batches of a test architecture train; never to be read alone",
    "S1": "five folds of whole architectures: no test architecture trains",
    "S2": "one fold for each family: no architecture of a test family trains",
    "S2-5": "five folds of whole families: no architecture of a test family trains",
}
HEADLINE_SPLITS = ("S1", "S2", "S2-5")


def errors_of(held: HeldOut, target: str) -> dict[str, Any] | None:
    """Return the errors of one target in percent, with a 95 % interval over architectures.

    None if no test row has the label.
    """
    rows = held.rows[held.rows[target].notna() & held.rows[f"predicted {target}"].notna()]
    if rows.empty:
        return None
    actual, predicted = rows[target].to_numpy(), rows[f"predicted {target}"].to_numpy()
    grouped = grouped_errors(actual, predicted, list(rows["family_id"]))
    interval = bootstrap(actual, predicted, list(rows["arch_id"]))
    return {
        "target": target,
        "split": held.split,
        "predictor": held.predictor,
        "n": len(rows),
        "architectures": int(rows["arch_id"].nunique()),
        "families": int(rows["family_id"].nunique()),
        **card_columns(grouped, interval),
    }


def by_family(held: HeldOut, targets: Sequence[str]) -> list[dict[str, Any]]:
    """Return median and mean absolute percentage error of each family and target."""
    lines = []
    for family, rows in held.rows.groupby("family_id"):
        line: dict[str, Any] = {"family": family, "architectures": int(rows["arch_id"].nunique())}
        for target in targets:
            known = rows[rows[target].notna()]
            ape = (100 * (known[f"predicted {target}"] / known[target] - 1)).abs()
            line |= {
                f"n {target}": len(known),
                f"median {target}": round(float(ape.median()), 1) if len(known) else None,
                f"MAPE {target}": round(float(ape.mean()), 1) if len(known) else None,
            }
        lines.append(line)
    return lines


def metrics(
    held_out_sets: Sequence[HeldOut],
    selection: Selection,
    manifest: Mapping[str, Any],
    shipped: str,
) -> dict[str, Any]:
    """Return the content of `metrics.json`.

    Args:
        held_out_sets: predictions of every predictor and split.
        selection: the rows.
        manifest: manifest of the joined folder.
        shipped: name of the predictor whose errors are the headline.
    """
    gpu, data = selection.conditions["gpu"], data_name(selection)
    lines = [
        line for held in held_out_sets for t in selection.targets if (line := errors_of(held, t))
    ]
    summary = [
        {
            "gpu": gpu,
            "data": data,
            **{k: v for k, v in line.items() if k != "predictor"},
            "headline": line["split"] in HEADLINE_SPLITS,
        }
        for line in lines
        if line["predictor"] == shipped
    ]
    comparison = [
        {
            key: line[key]
            for key in (
                "split",
                "target",
                "predictor",
                "n",
                "median_ape",
                "mape",
                "mape_ci95",
                "macro_mape",
            )
        }
        for line in sorted(lines, key=lambda m: (m["split"], m["target"], m["mape"]))
    ]
    strictest = strictest_of(held_out_sets, shipped)
    return {
        "summary": summary,
        "all predictors on the same rows and folds, percent": comparison,
        f"{shipped} by family on {strictest.split}, percent": by_family(
            strictest, selection.targets
        ),
        "splits": {
            name: SPLITS[name] for name in dict.fromkeys(held.split for held in held_out_sets)
        },
        "noise floor, percent": manifest["noise_floor"] or dict(manifest["noise_floor_absent"]),
        "rows left out": [
            *({"reason": e["reason"], "rows": e["rows"]} for e in manifest["excluded"]),
            *({"reason": k, "rows": n} for k, n in selection.left_out.items()),
        ],
        "reported by D3.5 on other data": D35_HEADLINE,
        "seconds of training": [
            {"predictor": h.predictor, "split": h.split, "seconds": h.seconds}
            for h in held_out_sets
        ],
    }


def config(
    selection: Selection,
    examples: Examples,
    network: PmgnsConfig,
    training: TrainingConfig,
    *,
    strictest: HeldOut,
    manifest: Mapping[str, Any],
    command: str,
    epochs: int,
) -> dict[str, Any]:
    """Return the content of `config.json`; see `models.pmgns` for what is read from it."""
    conditions = selection.conditions
    batches = [int(graph.static[0, 1]) for graph in examples.graphs]
    nodes = [graph.x.shape[0] for graph in examples.graphs]
    return {
        "kind": "pmgns",
        "graph_version": examples.graph_version,
        "feature_version": FEATURE_VERSION,
        "seed": training.seed,
        "network": network.to_dict(),
        "conditions": {
            "devices": [conditions["gpu"]],
            "precision": sorted(selection.rows["precision"].unique()),
            "mode": [conditions["mode"]],
            "timer": ["wall"],
            "channels_last": sorted({bool(last) for last in selection.rows["layout"] == "nhwc"}),
            "phase": [conditions["phase"]],
            "framework": sorted(
                {str(s).split()[0] for s in selection.rows["software"].dropna() if str(s).strip()}
            ),
        },
        "residuals": {t: _residuals(strictest, t) for t in selection.targets},
        "absent": {**selection.absent, "power_w": "this network has no output for it"},
        "seen": {
            "operators": list(examples.operators),
            "batch": [min(batches), max(batches)],
            "nodes": [min(nodes), max(nodes)],
        },
        "trained_on": {
            "campaigns": manifest["campaigns"],
            "files": manifest["files"],
            "rows": len(examples),
            "epochs": epochs,
        },
        "card": card(selection, examples, strictest, command),
    }


def card(
    selection: Selection, examples: Examples, strictest: HeldOut, command: str
) -> dict[str, Any]:
    """Return the texts of the model card."""
    c, rows = selection.conditions, selection.rows
    batches = sorted(rows["batch"].unique())
    software = ", ".join(sorted(rows["software"].dropna().unique()))
    threads = ", ".join(f"{n:g}" for n in sorted(rows["threads"].dropna().unique()))
    on_cpu = bool((rows["device_kind"] == "cpu").all())
    limits = [
        f"{c['gpu']} only, {c['precision']}, {c['mode']}, {c['layout']}, {c['phase']}; other "
        "conditions are refused, not extrapolated.",
        f"Intervals are the 90 % range of errors on {strictest.split}: "
        f"{SPLITS[strictest.split]}. They are not conditional on the model.",
        "The network that is shipped trained on all these rows but a tenth of the architectures, "
        "which stopped it; the stated errors are those of networks of the same recipe on rows "
        "that they had not seen.",
        f"Batches from {batches[0]:g} to {batches[-1]:g}; beyond, it extrapolates and warns.",
    ]
    if on_cpu:
        limits.append(
            f"A CPU with {threads} thread(s) of the framework: another CPU, another number of "
            "threads or a busy machine is another device. Memory is resident memory of the "
            "process, libraries included."
        )
    return {
        "summary": f"D3.5's network trained on our own measurements of {c['gpu']}: "
        f"{', '.join(selection.targets)}.",
        "use": f"Predictions for {c['gpu']} under the conditions below, and comparing with D3.5's "
        "method on splits that do not leak.",
        "limits": limits,
        "devices": f"{c['gpu']} ({software})",
        "never_measured": [f"{t}: {reason}" for t, reason in selection.absent.items()]
        or "Nothing of the three targets.",
        "data": f"{len(examples)} rows of {data_name(selection)}, "
        f"{len(set(examples.architectures))} architectures, {len(set(examples.families))} "
        "families; see dataset/README.md.",
        "command": command,
    }


def data_name(selection: Selection) -> str:
    """Return source and conditions in a few words."""
    c = selection.conditions
    (source,) = selection.rows["source"].unique()
    return f"{source} ({c['precision']}, {c['mode']}, {c['layout']}, {c['phase']})"


def strictest_of(held_out_sets: Sequence[HeldOut], shipped: str) -> HeldOut:
    """Return the held-out predictions of the split that holds out most."""
    of_shipped = {held.split: held for held in held_out_sets if held.predictor == shipped}
    return next(of_shipped[name] for name in ("S2", "S2-5", "S1", "S0") if name in of_shipped)


def _residuals(held: HeldOut, target: str) -> dict[str, float]:
    rows = held.rows[held.rows[target].notna()]
    ratios = np.log(rows[target] / rows[f"predicted {target}"])
    return residuals(pd.Series(ratios).to_numpy())
