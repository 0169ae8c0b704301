"""What other tools say of a model; run by `benchmarks.alternatives`, in their environment.

    python -m benchmarks.alternative_tools TOOL MODEL CONFIG

Prints one JSON object: figures with their units in the names, or "cannot" with the reason. TOOL is
a key of `TOOLS`, MODEL one of `resnet50`, `bert-base` and `llama-3.1-8b`, CONFIG the folder with
the configuration of the last.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dippm  # noqa: F401  (before torchvision: a CPU build of torch lacks its operators)

MIB = 2**20
IMAGES, TEXTS, TOKENS = 32, 8, 128
PROMPTS, PROMPT, GENERATED = 8, 1024, 128
Figures = dict[str, Any]


def built(model: str, config: str, device: str) -> tuple[Any, dict[str, Any]]:
    """Return a module and the inputs of one pass."""
    import torch

    with torch.device(device):
        if model == "resnet50":
            import torchvision

            network = torchvision.models.resnet50(weights=None)
            return network.eval(), {"x": torch.empty(IMAGES, 3, 224, 224)}
        from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertModel

        if model == "bert-base":
            ids = torch.zeros(TEXTS, TOKENS, dtype=torch.long)
            return BertModel(BertConfig()).eval(), {"input_ids": ids}
        asked = AutoConfig.from_pretrained(config)
        asked.use_cache = False
        ids = torch.zeros(PROMPTS, PROMPT, dtype=torch.long)
        network = AutoModelForCausalLM.from_config(asked, dtype=torch.bfloat16)
        return network.eval(), {"input_ids": ids}


def torchinfo(model: str, config: str) -> Figures:
    """Hooks at modules: parameters, MACs of layers, bytes of parameters and outputs."""
    from torchinfo import summary

    module, inputs = built(model, config, "meta" if model == "llama-3.1-8b" else "cpu")
    device = next(module.parameters()).device
    found = summary(module, input_data=inputs, device=device, verbose=0)
    total = found.total_input + found.total_output_bytes + found.total_param_bytes
    return {
        "parameters_m": found.total_params / 1e6,
        "gmacs": found.total_mult_adds / 1e9,
        "memory_mb": total / MIB,
    }


def calflops(model: str, config: str) -> Figures:
    """Patched functions: operations, MACs, parameters."""
    from calflops import calculate_flops

    module, inputs = built(model, config, "meta" if model == "llama-3.1-8b" else "cpu")
    asked: Figures = {"kwargs": inputs}
    if model == "resnet50":
        asked = {"input_shape": tuple(inputs["x"].shape)}
    _, macs, parameters = calculate_flops(
        module, **asked, print_results=False, print_detailed=False, output_as_string=False
    )
    return {"parameters_m": parameters / 1e6, "gmacs": macs / 1e9}


def accelerate(model: str, config: str) -> Figures:
    """The arithmetic of `accelerate estimate-memory`, whose command asks the Hub for the model."""
    from accelerate.utils import calculate_maximum_sizes

    module, _ = built(model, config, "meta")
    total, (largest, _) = calculate_maximum_sizes(module)
    return {
        "parameters_m": sum(p.numel() for p in module.parameters()) / 1e6,
        "memory_mb": total / MIB,
        "largest_layer_mb": largest / MIB,
        "training_memory_mb": 4 * total / MIB,
    }


def aiconfigurator(model: str, config: str) -> Figures:
    """A serving engine's operators, looked up in tables of one GPU and put together."""
    if model == "resnet50":
        raise ValueError("it reads configurations of language models")
    asked = config if model == "llama-3.1-8b" else f"{config}/bert"
    command = [
        str(Path(sys.executable).with_name("aiconfigurator")), "cli", "estimate",
        "--model-path", asked, "--system", "h100_sxm", "--backend", "vllm",
        "--estimate-mode", "static", "--isl", str(PROMPT), "--osl", str(GENERATED),
        "--batch-size", str(PROMPTS), "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    said = dict(re.findall(r"^ +([\w/ ()]+): +(.*\S)", done.stdout, re.MULTILINE))
    if "TPOT" not in said:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(lines[-1] if lines else f"exit code {done.returncode}")
    return {
        "first_token_ms": _number(said["TTFT"]),
        "step_ms": _number(said["TPOT"]),
        "tokens_per_s": _number(said["tokens/s"]),
        "memory_mb": _number(said["Memory (GPU)"]) * 1e9 / MIB,
        "power": said["Power (per GPU)"],
    }


def _number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


TOOLS: dict[str, Callable[[str, str], Figures]] = {
    tool.__name__: tool for tool in (torchinfo, calflops, accelerate, aiconfigurator)
}


def main() -> None:
    """Print what one tool says of one model."""
    tool, model, config = sys.argv[1:]
    try:
        found = TOOLS[tool](model, config)
    except Exception as error:  # whatever a tool does with a model that is none of its own
        words = (str(error).strip().splitlines() or [""])[0]
        found = {"cannot": f"{type(error).__name__}: {words}"[:200]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
