"""Fits the effects of GPUs beside the law of a checkpoint anew: minutes, where a training is hours.

    python -m training.hybrid.refit_effects checkpoints/hybrid-gpu/<version> \
        --data ../shared/data --graphs build/graphs --out checkpoints/<name>/<version> \
        [--collected dataset/data/<device>]

For new measurements of GPUs, one's own among them: networks, trees, memory, power and intervals
stay those of the checkpoint, and so do the errors that its card states, which are of its law.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import dippm
from dippm.models.kernel_law import KernelLaw
from dippm.pretrained.checkpoint import save_checkpoint
from training.hybrid.fit.checkpoint_law import effects_of, effects_part
from training.hybrid.rows.sources import load_rows


def main(
    checkpoint: Annotated[Path, typer.Argument(help="folder of the checkpoint whose law is kept")],
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write")],
    changes: Annotated[str, typer.Option(help="what is new, for the card")] = (
        "Effects of GPUs fitted anew; the law is that of the version before."
    ),
) -> None:
    """Fit the effects and write the checkpoint."""
    from safetensors.torch import load_file

    loaded = dippm.load(checkpoint).checkpoint
    law = loaded.predictor.law  # type: ignore[attr-defined]
    assert isinstance(law, KernelLaw)
    rows, graph = load_rows(data, graphs)
    config: dict[str, Any] = dict(loaded.info.config)
    heads = config["law"].get("heads") or [
        {"device": own["device"], "mode": own["mode"], "table": own["table"]}
        for own in config["law"]["tables"]
    ]
    found = effects_of(law, rows, graph, config["host"]["copy_bytes_per_ms"], heads)
    for level, sd in found.sd.items():
        typer.echo(f"{level}: standard deviation {sd:.3f}")
    part = {name: value for name, value in config["law"].items() if name not in ("tables", "usual")}
    config["law"] = {**part, "heads": heads, **effects_part(found)}
    config["card"] = {**config["card"], "changes": changes}
    tensors = load_file(loaded.info.path / "model.safetensors")
    metrics = json.loads((loaded.info.path / "metrics.json").read_text(encoding="utf-8"))
    save_checkpoint(out, tensors, config, metrics)
    typer.echo(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
