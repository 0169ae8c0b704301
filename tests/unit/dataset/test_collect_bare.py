"""A machine that has torch and nothing else: the collector runs there, zoos are skipped."""

from __future__ import annotations

import os
import subprocess
import sys

from dippm.measure.collected.store import read_rows

from .collect_runs import BARE, ROOT

LACKING = (
    "apache_tvm", "jinja2", "matplotlib", "ml_dtypes", "mlflow", "onnx", "onnxsim", "pandas",
    "plotly", "psutil", "pyarrow", "pydantic", "pynvml", "ray", "rich", "safetensors", "scipy",
    "timm", "tomli_w", "torch_geometric", "torchvision", "transformers", "tvm", "typer", "yaml",
)  # fmt: skip


def test_the_collector_needs_torch_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BARE.format(absent=LACKING))
    plan = tmp_path / "plan.jsonl"
    plan.write_text(
        '{"model": "timm:resnet50@224", "points": [{"batch": 1}, {"batch": 8}]}\n'
        '{"model": "own:dense(n=64,k=64,bias=false)@64", "points": [{"batch": 64}]}\n'
    )
    words = [sys.executable, "-m", "dataset.collect", "--out", str(tmp_path / "out")]
    words += ["--device", "cpu", "--plan", str(plan), "--timed-steps", "3", "--settle-s", "0.1"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "DIPPM_LOCK_DIR": str(tmp_path / "locks"),
        "DIPPM_COMMIT": "0123456789ab",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, measured = read_rows(tmp_path / "out")
    assert (first["status"], second["status"], measured["status"]) == ("skipped", "skipped", "ok")
    assert first["reason"] == "ModuleNotFoundError: No module named 'timm'"
    assert measured["commit"] == "0123456789ab"
    assert [path.suffix for path in (tmp_path / "out").glob("shard-*")] == [".gz"]
