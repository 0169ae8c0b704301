from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dataset.measured.location import DataNotFoundError, data_dir
from dataset.measured.sources import all_sources, deepbench, read, sd_webui
from dataset.measured.table import COLUMNS, tidy
from dippm.devices import all_devices
from dippm.errors import UnknownNameError

GPUS = {device.name for device in all_devices()}


def available() -> list[str]:
    try:
        folder = data_dir()
    except DataNotFoundError:
        return []
    return [
        name
        for name, source in all_sources().items()
        if all((folder / source.folder / file).is_file() for file in source.files)
    ]


@pytest.mark.parametrize("name", available())
def test_a_source_keeps_the_schema(name: str) -> None:
    table = read(name)
    assert tuple(table.columns[: len(COLUMNS)]) == COLUMNS
    assert table["row_id"].is_unique
    assert set(table["gpu"]) <= GPUS
    assert set(table["timer"]) <= set("KEWCD")
    assert set(table["phase"]) <= {"inference", "train"}
    assert not (table[["latency_ms", "power_w", "memory_mb"]] <= 0).any(axis=None)
    assert (table["model"].notna() ^ table["operator"].notna()).all()


def timm_folder(root: Path) -> Path:
    folder = root / "timm"
    folder.mkdir()
    row = {
        "gpu": "NVIDIA GeForce RTX 3090", "device_type": "gpu", "precision": "amp",
        "layout": "nchw", "torch": "2.4.0", "cuda": "12.4", "compiled": False,
        "model": "resnet50", "batch": 256, "img_size": 224, "step_ms": 80.5,
    }  # fmt: skip
    cpu = {**row, "gpu": "Intel Core i9", "device_type": "cpu"}
    pd.DataFrame([cpu, row]).to_parquet(folder / "infer.parquet")
    return root


def test_a_row_says_what_was_measured(tmp_path: Path) -> None:
    table = read("timm_infer", timm_folder(tmp_path))
    (row,) = table.to_dict("records")
    assert row["row_id"] == "timm_infer/1"
    assert (row["gpu"], row["mode"], row["software"]) == (
        "RTX-3090",
        "eager",
        "torch 2.4.0, cuda 12.4",
    )
    assert (row["model"], row["batch"], row["latency_ms"]) == ("timm:resnet50@224", 256, 80.5)
    assert row["memory_mb"] != row["memory_mb"]


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPPM_DATA_DIR", str(timm_folder(tmp_path)))
    assert len(read("timm_infer")) == 1


def test_a_missing_table_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="HW-GPT-Bench"):
        read("hwgpt", tmp_path)
    with pytest.raises(DataNotFoundError, match="DIPPM_DATA_DIR"):
        data_dir(tmp_path / "absent")


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="timm_infer"):
        read("timm_inference", tmp_path)


def test_a_column_outside_of_the_schema_is_refused() -> None:
    with pytest.raises(KeyError, match="latency_s"):
        tidy("x", pd.DataFrame({"a": [1]}), {"latency_s": 1})


def test_a_process_on_a_slice_is_one_of_as_many_as_share_it(tmp_path: Path) -> None:
    folder = tmp_path / "parvagpu"
    folder.mkdir()
    row = {
        "model": "inceptionv3", "gpu": "A100-80GB", "mig_slices": 7, "batch": 8,
        "processes_mps": 1, "throughput_per_s_total": 800.0, "latency_ms_printed": 10.0,
        "latency_ms_from_throughput": 10.25, "status": "ok",
    }  # fmt: skip
    shared = {**row, "mig_slices": 3, "processes_mps": 2, "latency_ms_from_throughput": 19.5}
    failed = {**row, "status": "out of memory"}
    pd.DataFrame([row, failed, shared]).to_csv(folder / "a100_mig_mps.csv")
    whole, slice_ = read("parvagpu", tmp_path).to_dict("records")
    assert (whole["model"], whole["precision"]) == ("torchvision:inception_v3@224", "tf32")
    assert (whole["mig_profile"], whole["timer"], whole["latency_ms"]) == ("7g.80gb", "C", 10.25)
    assert (slice_["mig_profile"], slice_["processes_mps"]) == ("3g.40gb", 2)
    assert slice_["latency_ms"] == 9.75, "that of one process, by the throughput of one"


def test_the_precision_of_a_sheet_is_that_of_its_products(tmp_path: Path) -> None:
    folder = tmp_path / "deepbench"
    folder.mkdir()
    shape = dict.fromkeys(deepbench.SHAPE_COLUMNS)
    kinds = [
        ("T4", "fp32", "gemm", "fp32-ieee"),
        ("T4", "fp16 (fp32 accumulate)", "conv2d", "fp16"),
        ("P100", "fp16 storage, fp32 math", "gemm", "fp16"),
        ("P100", "fp16 storage, fp32 math", "conv2d", None),
        ("TITAN-Xp", "int8 (gemm, conv); fp32 rnn", "gemm", "int8"),
        ("TITAN-Xp", "int8 (gemm, conv); fp32 rnn", "rnn lstm", "fp32-ieee"),
        ("M40", "fp32", "gemm", "left out"),
    ]
    pd.DataFrame(
        {**shape, "gpu": gpu, "precision": precision, "op": op, "fwd_ms": 0.5}
        for gpu, precision, op, _ in kinds
    ).to_csv(folder / "operators.csv")
    table = read("deepbench", tmp_path)
    found = table["precision"].astype(object).where(table["precision"].notna(), None)
    assert found.tolist() == [expected for *_, expected in kinds[:-1]]
    assert set(table["gpu"]) == {"T4", "P100-PCIe-16GB", "TITAN-Xp"}


def report(**said: object) -> dict[str, object]:
    return {
        "gpu": "NVIDIA GeForce RTX 3080", "gpu_mem_gb": 10.0, "weights_dtype": "float16",
        "autocast": "autocast",
        "attention": "xformers none", "compile": None, "model_family_guess": "sd1.x",
        "width": None, "height": None, "batch": 4, "unet_call_ms": 100.0, **said,
    }  # fmt: skip


def test_many_reports_are_one_call_of_the_network(tmp_path: Path) -> None:
    folder = tmp_path / "sd_webui"
    folder.mkdir()
    busy = [report(unet_call_ms=ms) for ms in (110, 120, 140, 300, 350, 400, 500, 600)]
    quick = [report(attention="sdp"), report(compile="none"), report(width=512, height=512)]
    others = [
        report(unet_call_ms=1.0, **other)
        for other in (
            {"attention": "Automatic none"},
            {"attention": "xformers medvram"},
            {"compile": "inductor"},
            {"weights_dtype": "fp32 weights"},
            {"autocast": None},
            {"model_family_guess": "sdxl"},
            {"width": 768},
            {"gpu_mem_gb": 12.0},
            {"gpu": "NVIDIA GeForce RTX 3080 Laptop GPU"},
        )
    ]
    few = [report(batch=1)] * (sd_webui.FEWEST_REPORTS - 1)
    pd.DataFrame([*busy, *quick, *others, *few]).to_csv(folder / "images_per_second.csv")
    (row,) = read("sd_webui", tmp_path).to_dict("records")
    assert (row["gpu"], row["precision"], row["timer"]) == ("RTX-3080", "fp16", "W")
    assert (row["model"], row["images"], row["batch"]) == ("sd:unet-v1@64", 4, 8)
    assert row["reports"] == len(busy) + len(quick)
    assert row["latency_ms_p90"] <= row["latency_ms"] == 100 <= row["latency_ms_p75"]
