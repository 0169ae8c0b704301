r"""What DIPPM says of three models beside what other tools say of them.

    python3.11 -m venv /tmp/alternatives
    /tmp/alternatives/bin/pip install torch==2.13.0 torchvision==0.28.0 torchinfo==1.8.0 \
        calflops==0.3.2 accelerate==1.15.0 transformers==5.23.0 aiconfigurator==0.12.0
    python -m benchmarks.alternatives --python /tmp/alternatives/bin/python [--json FILE]

Nothing is downloaded: architectures are built from code, and the language model from the numbers
below. A tool that cannot answer is a row with its words. "data sheet" is the arithmetic of a
vendor's spreadsheet: operations over the peak rate, weights over the bandwidth. Processor time is
of the whole process, imports included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.alternative_tools import (
    GENERATED,
    IMAGES,
    PROMPT,
    PROMPTS,
    TEXTS,
    TOKENS,
    TOOLS,
    Figures,
)

QUESTIONS = {
    "resnet50": f"ResNet-50, batch {IMAGES}, fp32, A100-40GB",
    "bert-base": f"BERT base, batch {TEXTS} of {TOKENS} tokens, fp32, A100-40GB",
    "llama-3.1-8b": f"Llama 3.1 8B, {PROMPTS} prompts of {PROMPT:,}, {GENERATED} tokens each, "
    "bf16, H100-SXM-80GB",
}
COLUMNS = (
    "parameters_m", "gmacs", "memory_mb", "training_memory_mb", "latency_ms", "first_token_ms",
    "step_ms", "tokens_per_s", "energy_j",
)  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DIPPM = "from benchmarks.alternatives import print_ours; import sys; print_ours(*sys.argv[1:])"


def main() -> None:
    """Ask every tool, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="of the environment with the other tools")
    parser.add_argument("--json", type=Path, help="also write the figures")
    options = parser.parse_args()
    found: dict[str, dict[str, Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA))
        for model in QUESTIONS:
            rows = found[model] = {}
            rows["DIPPM"] = asked([sys.executable, "-c", DIPPM, model, folder], f"{folder}/cache")
            for tool in TOOLS:
                command = [options.python, "-m", "benchmarks.alternative_tools", tool, model]
                rows[tool] = asked([*command, folder], f"{folder}/cache")
            rows["data sheet"] = data_sheet(model, rows["DIPPM"], rows["torchinfo"])
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def asked(command: list[str], cache: str) -> Figures:
    """Return what a process prints last, with the processor time that it took."""
    environment = {**os.environ, "DIPPM_CACHE_DIR": cache}  # nothing was converted before
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = done.stdout.strip().splitlines()
    found: Figures = (
        json.loads(lines[-1]) if lines and not done.returncode else {"cannot": done.stderr[-200:]}
    )
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found | {"cpu_s": cpu_s}


def print_ours(model: str, folder: str) -> None:
    """Print what DIPPM says."""
    print(json.dumps(llama(folder) if model == "llama-3.1-8b" else pass_of(model, folder)))


def pass_of(model: str, folder: str) -> Figures:
    """Return what a forward pass costs, and the memory of a training step with Adam."""
    import dippm

    if model == "resnet50":
        source, where = "torchvision:resnet50", {"input": "3,224,224", "batch": IMAGES}
    else:
        Path(folder, "bert").mkdir()
        Path(folder, "bert", "config.json").write_text(
            json.dumps({"model_type": "bert", "architectures": ["BertModel"]})
        )
        source, where = f"hf-config:{folder}/bert", {"input": str(TOKENS), "batch": TEXTS}
    out = dippm.predict(source, device="A100", **where)  # type: ignore[arg-type]
    step = dippm.predict(source, device="A100", phase="train", optimizer="adam", **where)  # type: ignore[arg-type]
    low_high = out.intervals["latency_ms"]
    return {
        "parameters_m": out.graph.param_bytes / 4e6,
        "gmacs": out.tree.macs / 1e9,
        "memory_mb": out.memory_mb,
        "training_memory_mb": step.memory_mb,
        "latency_ms": out.latency_ms,
        "latency_ms_low": low_high.low,
        "latency_ms_high": low_high.high,
        "energy_j": out.energy_j,
    }


def llama(folder: str) -> Figures:
    """Return what serving the language model costs."""
    import dippm

    found = dippm.language_model(
        folder, device="H100", batch=PROMPTS, prompt=PROMPT, generated=GENERATED
    ).to_dict()
    step = found["steps"][1]["cost"]
    assert found["steps"][1]["context"] == PROMPT + GENERATED
    return {
        "parameters_m": found["model"]["parameters"] / 1e6,
        "memory_mb": found["memory_mb"],
        "first_token_ms": found["first_token"]["latency_ms"]["value"],
        "step_ms": step["latency_ms"]["value"],
        "step_ms_low": step["latency_ms"]["interval"]["low"],
        "step_ms_high": step["latency_ms"]["interval"]["high"],
        "tokens_per_s": found["tokens_per_s"],
    }


def data_sheet(model: str, ours: Figures, counted: Figures) -> Figures:
    """Return 2 · MACs over the rate of the data sheet, or weights over the bandwidth."""
    from dippm.devices import find

    if model == "llama-3.1-8b":
        device = find("H100")
        weights_gb = 2 * counted.get("parameters_m", 8030) / 1e3
        return {"step_ms": 1e3 * weights_gb / device.bandwidth_gb_s}
    rate = find("A100").peak_tflops["tf32" if model == "resnet50" else "fp32"]
    return {"latency_ms": 2 * ours["gmacs"] / rate}


def table(found: dict[str, dict[str, Figures]]) -> str:
    """Return the figures as Markdown."""
    parts = []
    for model, rows in found.items():
        columns = [c for c in COLUMNS if any(c in row for row in rows.values())]
        parts += [f"**{QUESTIONS[model]}**", "", "| | " + " | ".join(columns) + " | cpu_s | |"]
        parts.append("|---" * (len(columns) + 3) + "|")
        for tool, row in rows.items():
            cells = [shown(row.get(column)) for column in (*columns, "cpu_s")]
            parts.append(f"| {tool} | {' | '.join(cells)} | {row.get('cannot', '')} |")
        parts.append("")
    return "\n".join(parts)


def shown(value: Any) -> str:
    """Return a figure; nothing where there is none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()
