from __future__ import annotations

import hashlib
import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest

from dataset import bundle as bundle_command
from dataset import fetch as fetch_command
from dataset.measured.location import REPOSITORY, DataNotFoundError, data_dir
from dataset.measured.sources import all_sources, read
from dataset.published import download, operators, registry
from dataset.published.bundle import credits_of
from dataset.published.download import Downloader, DownloadError
from dataset.published.fetching import CONVERTERS
from dataset.published.registry import all_published, select_sources
from dataset.published.tables import digest_of_table, write_table
from dippm.errors import UnknownNameError

COMMIT = "0" * 40
TIMM = {
    "results/benchmark-infer-amp-nchw-pt113-cu117-rtx3090.csv": (
        "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count\n"
        "resnet50,1000.5,255.9,256.0,224,25.56\n"
    ),
    "results/benchmark-infer-amp-nchw-pt291-cu130-5090-dynamo.csv": (
        "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count,"
        "infer_gmacs,infer_macts\n"
        "resnet50,224,4000.5,63.9,256,25.56,4.11,11.11\n"
        "vit_base,224,,,,,,\n"
    ),
    "results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv": (
        "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
        "resnet50,400.5,639.9,256,224,25.56\n"
    ),
}
SPLITWISE = {
    "data/perf_model.csv": (
        "model,hardware,prompt_size,batch_size,token_size,peak_power,average_power,prompt_time,"
        "token_time,e2e_time,tensor_parallel\n"
        "llama2-70b,a100-80gb,512,1,128,1.0,0.7,196.2,54.8,7168.9,2\n"
        "llama2-70b,h100-80gb,512,1,128,0,0,96.2,24.8,3168.9,2\n"
    )
}
PUBLISHED = {"timm": TIMM, "splitwise": SPLITWISE}
Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Return a folder with made-up files in the shape of the published ones."""
    for name, files in PUBLISHED.items():
        for path, text in files.items():
            file = tmp_path / "mirror" / "someone" / name / COMMIT / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return tmp_path / "mirror"


@pytest.fixture
def sources(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the made-up files, and a source that is only to be had packed."""
    lines = []
    for name, files in PUBLISHED.items():
        root = mirror / "someone" / name / COMMIT
        made = CONVERTERS[name]({path: root / path for path in files})
        for file, table in made.items():
            write_table(table, tmp_path / "expected" / name / file)
        lines += [_entry(name), f'commit = "{COMMIT}"', f"[{name}.files]"]
        for path, text in files.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            lines.append(f'"{path}" = [{len(text)}, "{digest}"]')
        lines += _tables(name, tmp_path / "expected" / name)
    write_table(pd.DataFrame({"step_ms": [1.5]}), tmp_path / "expected" / "miso" / "steps.csv")
    lines += [_entry("miso"), 'absent = "pickles"', *_tables("miso", tmp_path / "expected/miso")]
    (tmp_path / "sources.toml").write_text("\n".join(lines))
    monkeypatch.setattr(registry, "REGISTRY", tmp_path / "sources.toml")
    monkeypatch.setattr(download, "BACK_OFF_S", 0.0)
    all_published.cache_clear()
    yield
    all_published.cache_clear()


def _entry(name: str) -> str:
    return (
        f'[{name}]\nabout = "of {name}"\nuse = "trains"\nrepository = "someone/{name}"\n'
        f'licence = "MIT"\ncopyright = "Copyright (c) 2024 Someone of {name}"'
    )


def _tables(name: str, folder: Path) -> list[str]:
    digests = [f'"{path.name}" = "{digest_of_table(path)}"' for path in sorted(folder.iterdir())]
    return [f"[{name}.tables]", *digests]


class Server:
    """A mirror over HTTP; what it shall do otherwise than usual is queued in `next_answers`."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.next_answers: list[Answer] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append((self.path, self.headers["Range"]))
                path = folder / self.path.lstrip("/")
                if not path.is_file():
                    return self.send_error(404)
                answer = server.next_answers.pop(0) if server.next_answers else whole
                return answer(self, path.read_bytes())

            def log_message(self, *arguments: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(mirror: Path) -> Iterator[Server]:
    server = Server(mirror)
    yield server
    server.http.shutdown()
    server.http.server_close()


def whole(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer as servers of files do, with the rest of it if that is asked for."""
    first = int((request.headers["Range"] or "bytes=0-")[6:-1])
    if first >= len(content):
        request.send_response(416)
        request.send_header("Content-Range", f"bytes */{len(content)}")
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    request.send_response(206 if first else 200)
    request.send_header("Content-Length", str(len(content) - first))
    request.end_headers()
    request.wfile.write(content[first:])


def cut(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Close the connection after the first 40 bytes."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content[:40])
    request.close_connection = True


def busy(request: BaseHTTPRequestHandler, content: bytes) -> None:
    request.send_response(503)
    request.send_header("Retry-After", "0")
    request.send_header("Content-Length", "0")
    request.end_headers()


def altered(request: BaseHTTPRequestHandler, content: bytes) -> None:
    whole(request, content.replace(b"1000.5", b"9000.5"))


def contents(folder: Path) -> dict[str, str]:
    """Return what every table of a folder says, by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): digest_of_table(path) for path in files}


def expected(tmp_path: Path, *names: str) -> dict[str, str]:
    found = contents(tmp_path / "expected")
    return {path: digest for path, digest in found.items() if path.split("/")[0] in names}


@pytest.mark.usefixtures("sources")
def test_tables_are_made_of_published_files(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "data"
    command = ["timm", "splitwise", "--out", str(out), "--from", server.url]
    assert fetch_command.main(command) == 0
    assert contents(out) == expected(tmp_path, "timm", "splitwise")
    rows = read("timm_infer", out)
    assert rows["row_id"].tolist() == ["timm_infer/0", "timm_infer/1"]
    assert rows["software"].tolist() == ["torch 1.13, cuda 11.7", "torch 2.9.1, cuda 13.0"]
    asked = len(server.asked)
    assert fetch_command.main(command) == 0
    assert len(server.asked) == asked  # they are there


@pytest.mark.usefixtures("sources")
def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.next_answers = [cut]
    assert fetch_command.main(["timm", "--out", str(tmp_path / "d"), "--from", server.url]) == 0
    assert [asked for _, asked in server.asked[:2]] == [None, "bytes=40-"]
    assert contents(tmp_path / "d") == expected(tmp_path, "timm")


@pytest.mark.usefixtures("sources")
def test_what_had_come_is_kept_for_the_next_command(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.next_answers = [cut, *[busy] * 100]
    command = ["splitwise", "--out", str(tmp_path / "d"), "--from", server.url]
    assert fetch_command.main(command) == 1
    assert "the same command goes on there" in " ".join(capsys.readouterr().err.split())
    server.next_answers = []
    assert fetch_command.main(command) == 0
    assert server.asked[-1][1] == "bytes=40-"
    assert contents(tmp_path / "d") == expected(tmp_path, "splitwise")


@pytest.mark.usefixtures("sources")
def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.next_answers = [busy, busy]
    assert fetch_command.main(["splitwise", "--out", str(tmp_path), "--from", server.url]) == 0
    assert len(server.asked) == 3


@pytest.mark.usefixtures("sources")
def test_another_file_than_the_pinned_one_is_refused(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.next_answers = [altered]
    out = tmp_path / "data"
    command = ["--json", "timm", "splitwise", "--out", str(out), "--from", server.url]
    assert fetch_command.main(command) == 1
    document = json.loads(capsys.readouterr().out)
    timm, splitwise = document["sources"]
    assert "is not the pinned file" in timm["error"]["message"]
    assert (timm["status"], splitwise["status"]) == ("failed", "fetched")
    assert not (out / "timm").exists()
    assert not list(out.rglob("*.part"))


@pytest.mark.usefixtures("sources")
def test_a_file_that_is_gone_is_not_asked_for_again(
    server: Server, mirror: Path, tmp_path: Path
) -> None:
    path = f"someone/splitwise/{COMMIT}/data/perf_model.csv"
    (mirror / path).unlink()
    with pytest.raises(DownloadError, match="404"):
        Downloader(server.url).bring(path, tmp_path / "file")
    assert len(server.asked) == 1


@pytest.mark.usefixtures("sources")
def test_a_part_longer_than_the_file_is_begun_anew(server: Server, tmp_path: Path) -> None:
    path = f"someone/splitwise/{COMMIT}/data/perf_model.csv"
    (tmp_path / "file.part").write_text("x" * 10_000)
    file = Downloader(server.url).bring(path, tmp_path / "file")
    assert file.read_text() == SPLITWISE["data/perf_model.csv"]


@pytest.mark.usefixtures("sources")
def test_a_folder_serves_as_a_mirror(mirror: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert fetch_command.main(["timm", "--out", str(out), "--from", str(mirror)]) == 0
    assert contents(out) == expected(tmp_path, "timm")


@pytest.mark.usefixtures("sources")
def test_a_source_that_cannot_be_made_says_why(
    mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data"
    assert fetch_command.main(["--out", str(out), "--from", str(mirror)]) == 1
    captured = capsys.readouterr()
    assert "pickles" in captured.err
    assert "--from BUNDLE" in captured.err
    assert captured.out.startswith("2 of 3 sources")
    assert contents(out) == expected(tmp_path, "timm", "splitwise")


@pytest.mark.usefixtures("sources")
def test_another_table_is_not_overwritten(mirror: Path, tmp_path: Path) -> None:
    mine = tmp_path / "data" / "splitwise" / "perf_power.csv"
    write_table(pd.DataFrame({"mine": [1]}), mine)
    assert fetch_command.main(["--out", str(tmp_path / "data"), "--from", str(mirror)]) == 1
    assert mine.read_text() == "mine\n1\n"


@pytest.mark.usefixtures("sources")
def test_a_bundle_gives_the_bytes_it_was_made_of(server: Server, tmp_path: Path) -> None:
    given, packed = tmp_path / "expected", tmp_path / "mirror" / "tables.tar"
    assert bundle_command.main(["--data", str(given), "--out", str(packed)]) == 0
    first = packed.read_bytes()
    assert bundle_command.main(["--data", str(given), "--out", str(packed)]) == 0
    assert packed.read_bytes() == first
    with tarfile.open(packed) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    assert "Copyright (c) 2024 Someone of timm" in (tmp_path / "unpacked" / "NOTICE").read_text()
    for origin in (str(packed), f"{server.url}/tables.tar", str(tmp_path / "unpacked")):
        out = tmp_path / re.sub(r"\W", "_", origin)
        assert fetch_command.main(["--out", str(out), "--from", origin]) == 0
        files = [path for path in out.rglob("*") if path.is_file()]
        assert len(files) == 4
        for path in files:
            assert path.read_bytes() == (given / path.relative_to(out)).read_bytes()


@pytest.mark.usefixtures("sources")
def test_a_damaged_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "tables.tar"
    bundle_command.main(["splitwise", "--data", str(tmp_path / "expected"), "--out", str(packed)])
    packed.write_bytes(packed.read_bytes().replace(b"7168.9", b"7168.8"))
    assert fetch_command.main(["splitwise", "--out", str(tmp_path), "--from", str(packed)]) == 1
    assert "is damaged" in capsys.readouterr().err
    packed.write_bytes(b"nothing of the kind")
    assert fetch_command.main(["--out", str(tmp_path), "--from", str(packed)]) == 1
    assert "no bundle of tables" in capsys.readouterr().err


@pytest.mark.usefixtures("sources")
def test_what_is_missing_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "expected" / "timm" / "infer.parquet").unlink()
    command = ["--data", str(tmp_path / "expected"), "--out", str(tmp_path / "tables.tar")]
    assert bundle_command.main(command) == 1
    assert "lacks the tables of timm" in capsys.readouterr().err


def test_the_registry_has_every_table_that_is_read() -> None:
    published = all_published()
    for source in all_sources().values():
        known = published[source.folder]
        assert set(source.files) <= {table.file for table in known.tables}
        assert source.licence == known.licence
    for known in published.values():
        assert known.use in ("trains", "judges")
        assert bool(known.files) != bool(known.absent)
        assert (known.name in CONVERTERS) == bool(known.files)
        for file in known.files:
            assert re.search("/[0-9a-f]{40}/", known.address(file))
        digests = [item.sha256 for item in (*known.files, *known.tables)]
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)


def test_the_notice_credits_every_source() -> None:
    assert credits_of(select_sources([])) in (REPOSITORY / "NOTICE").read_text(encoding="utf-8")


def test_what_its_licence_forbids_is_left_out_of_bundles() -> None:
    assert not all_published()["sd_webui"].packed
    assert all_published()["timm"].packed


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="timm"):
        select_sources(["tim"])


def test_the_list_names_licence_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_command.main(["--list", "--json"]) == 0
    described = {
        source["name"]: source for source in json.loads(capsys.readouterr().out)["sources"]
    }
    assert described["timm"]["licence"] == "Apache-2.0"
    assert described["timm"]["size"] > 1_000_000
    assert described["hwgpt"]["absent"]
    assert fetch_command.main(["--list"]) == 0
    assert "hwgpt comes from a bundle only" in capsys.readouterr().out


def test_a_missing_table_names_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"python -m dataset\.fetch timm"):
        read("timm_infer", tmp_path)
    with pytest.raises(DataNotFoundError, match=r"python -m dataset\.fetch"):
        data_dir(tmp_path / "absent")


@pytest.mark.parametrize("name", ["timm", "splitwise", "zeus", "parvagpu", "flagperf"])
def test_the_tables_at_hand_are_the_pinned_ones(name: str) -> None:
    try:
        folder = data_dir() / name
    except DataNotFoundError:
        pytest.skip("the measured tables are not on this machine")
    for table in all_published()[name].tables:
        if not (folder / table.file).is_file():
            pytest.skip(f"{name} is not on this machine")
        assert digest_of_table(folder / table.file) == table.sha256


def made_of(folder: Path, source: str, files: dict[str, str]) -> dict[str, pd.DataFrame]:
    """Return the tables that a converter makes of files with these texts."""
    paths = {}
    for number, (name, text) in enumerate(files.items()):
        paths[name] = folder / str(number) / Path(name).parent.name / Path(name).name
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_text(text)
    return CONVERTERS[source](paths)


def test_torchvision_files_have_a_column_for_each_model(tmp_path: Path) -> None:
    times = "resnet18,alexnet\n10.0,1.0\n12.0,3.0\n14.0,2.0\n"
    name = "results/{}_model_{}_benchmark.csv"
    made = made_of(
        tmp_path,
        "pytorch_gpu_benchmark",
        {
            name.format("TitanV/TITAN V_single", "training"): times,
            name.format("dgx-a100/A100-SXM4-40GB_2_gpus__half", "inference"): times,
        },
    )["torchvision_bs12.csv"]
    first = made.iloc[0]
    assert made["model"].tolist() == ["alexnet", "resnet18"] * 2
    assert (first["gpu"], first["batch_total"]) == ("NVIDIA A100-SXM4-40GB", 24)
    assert (first["ms_median"], first["ms_p90"], first["n"]) == (2.0, 2.8, 3)
    last = made.iloc[-1]
    assert (last["system"], last["dtype"], last["mode"]) == ("TitanV", "float", "train")
    assert not last["n_gpus_stated"]


def test_a_batch_that_did_not_fit_is_no_row(tmp_path: Path) -> None:
    text = "Mig instance,Batch size,Workload Number,Throughput,Latency\n1,8,3,80.0,0.3\n1,8,4,0,0\n"
    made = made_of(tmp_path, "parvagpu", {"prof_data/vgg19.csv": text})["a100_mig_mps.csv"]
    assert made["latency_ms_from_throughput"].tolist() == [300.0]


def test_windows_have_the_mean_of_their_gpus(tmp_path: Path) -> None:
    made = made_of(
        tmp_path,
        "zeus",
        {
            "trace/summary_power_p100.csv": (
                "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
                "cifar100,shufflenetv2,1024,adadelta,100,27.13,106.9\n"
            ),
            "profile_data/A40+resnet18+gpu0,1.csv": (
                "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy\n"
                "1.5,__GlobalPowerLimitOptimizer_300,10.0,1000.0,2000.0\n"
            ),
        },
    )
    assert made["nsdi23_power_limit_sweep.csv"]["gpu"].tolist() == ["NVIDIA P100"]
    window = made["power_limit_windows.csv"].iloc[0]
    assert (window["n_gpus"], window["power_limit_w"], window["avg_power_w"]) == (2, 300, 150.0)


def test_operators_are_sorted_and_those_kept_back_left_out(tmp_path: Path) -> None:
    head = (
        "OPName,Latency,Device,Kernel Name,Kernels,Warps per SM,Blocks per SM,Grid x,Grid y,Grid z,"
        "Block x,Block y,Block z,"
    )
    row = "{},{},{},k,;a;b,1.5,0.5,1,1,1,32,1,1,"
    bmm = [row.format("bmm", 0.5, "Tesla T4"), row.format("bmm", 0.1, "NVIDIA L4")]
    matrices = head + "B,M,N,K\n" + "".join(f"{r}2,{m},8,8\n" for m in (64, 32) for r in bmm)
    convolution = row.format("conv", 0.7, "Tesla P4") + "1,3,8,3,32,1,1\n"
    shape = "B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding\n"
    kinds = {name: operators.NEUSIGHT_TABLES[name] for name in ("bmm", "conv")}
    files = {"d/train/collect/conv.csv": head + shape + convolution, "d/test/bmm.csv": matrices}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "NEUSIGHT_TABLES", kinds)
        made = made_of(tmp_path, "neusight_ops", files)
    assert made["bmm.parquet"]["M"].tolist() == [32, 64]
    assert set(made["bmm.parquet"]["gpu"]) == {"Tesla T4"}
    assert made["conv.parquet"].iloc[0][["split", "out_channels", "n_kernels"]].tolist() == [
        "train",
        8,
        2,
    ]


def test_of_repeated_products_the_first_stands(tmp_path: Path) -> None:
    columns = {
        "framework": "VLLM",
        "version": "0.14.0",
        "device": "NVIDIA H200",
        "kernel_source": "vllm",
        "gemm_dtype": ["fp8", "bfloat16", "bfloat16", "int4"],
        "m": [1, 4, 4, 4],
        "n": 8,
        "k": 8,
        "latency": [0.5, 0.2, 0.3, 0.4],
    }
    path = tmp_path / "gemm_perf.parquet"
    pd.DataFrame(columns).to_parquet(path)
    parts = {"gemm": ("gemm_dtype", "m", "n", "k")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "AICONFIGURATOR_KEYS", parts)
        made = CONVERTERS["aiconfigurator"]({"gemm/gemm_perf.parquet": path})["gemm.parquet"]
    assert made["gemm_dtype"].tolist() == ["bfloat16", "fp8"]
    assert made["latency_ms"].tolist() == [0.2, 0.5]
    assert made["power_w"].isna().all()


def test_pages_of_operators_are_read_by_their_headings(tmp_path: Path) -> None:
    page = """
| 评测项  | correctness | TFLOPS(kernel clock) |
| ---- | ---- | ---- |
| nativetorch | True    | 127.09TFLOPS |

| 评测项  | cputime | kerneltime |
| ---- | ---- | ---- |
| nativetorch | 8637.72us  | 8651.78us |

| 监控项  | 系统平均功耗  | 单机TDP | 单卡平均功耗 | 单卡最大功耗 |
| ---- | ---- | ---- | ---- | ---- |
| nativetorch监控结果 | 1521.0W | / | 398.74W | 416.0W |

| 监控项  | 单卡平均温度 | 单卡最大显存占用 |
| ---- | ---- | ---- |
| nativetorch监控结果 | 64.89°C | 7.181% |
"""
    folder = "operation/benchmarks/mm/nvidia/A100_40_SXM"
    made = made_of(
        tmp_path,
        "flagperf",
        {f"{folder}/FP32_README.md": page, f"{folder}/case_config.yaml": "ITERS: 5000\n"},
    )["a100_40gb_op_time_power.csv"].iloc[0]
    assert (made["kernel_time_us"], made["gpu_power_avg_w"]) == (8651.78, 398.74)
    assert (made["loop_s"], made["power_reliable"]) == (43.2, True)
    assert made["fp32_matmul_mode"] == "TF32"


def test_reports_are_told_apart_by_what_ran(tmp_path: Path) -> None:
    head = (
        "experiment_name,model,backend.version,environment.gpus,backend.quantization_strategy,"
        "benchmark.input_shapes.batch_size,benchmark.input_shapes.sequence_length,"
        "benchmark.new_tokens,forward.latency(s),generate.latency(s)\n"
    )
    gpus = "\"['NVIDIA A100-SXM4-80GB', 'NVIDIA DGX Display']\""
    rows = f"gptq,b,2.0.1,{gpus},gptq,2,256,,0.2,1.0\nfp16,a,2.0.1,{gpus},,1,256,,0.1,0.5\n"
    steps = (
        "experiment_name,model,training.runtime(s),benchmark.dataset_shapes.sequence_length,"
        "benchmark.training_arguments.per_device_train_batch_size\npeft,a,56.9,256,16\n"
    )
    path = "{}/examples/{}/artifacts/A100-80GB/full_report.csv"
    folder = tmp_path / "reports"
    files = {}
    for commit, report, text in (
        ("0" * 40, "running-llamas", head + rows),
        ("1" * 40, "running-llamas", head + rows),
        ("1" * 40, "training-llamas", steps),
    ):
        name = path.format(commit, report)
        files[name] = folder / name
        files[name].parent.mkdir(parents=True)
        files[name].write_text(text)
    made = CONVERTERS["optimum_benchmark"](files)
    passes = made["a100_80gb_inference.csv"]
    assert passes["report"].tolist() == ["running-llamas/A100-80GB"] * 2  # once for both commits
    assert passes["model"].tolist() == ["a", "b"]
    assert passes["quantization"].tolist() == ["none", "gptq"]
    assert passes["gpus_visible"].tolist() == [1, 1]
    assert made["a100_80gb_llama_training.csv"]["train_runtime_s"].tolist() == [56.9]


def test_passes_of_both_forms_are_read(tmp_path: Path) -> None:
    gpu = {
        "total_power_draw": 10_000.0,
        "util.gpu": {"mean": 90.0},
        "util.memory": {"mean": 50.0},
        "power_usage": {"max": 220.0},
        "memory.used": {"max": 2**30},
    }
    ended = {"results": {"model": {"params": 7}}}
    first = {"model": "VGG16", "batch_size": 32, **ended}
    runs = {
        "a/first.json": {
            "VGG16": {
                "validation": {**first, "gpu_monitoring": {"0": {**gpu, "duration": 100.0}}},
                "train": {**first, "gpu_monitoring": None},
            }
        },
        "b/later.json": {
            "eval": {
                "config": {
                    "model": "VGG16",
                    "backend": "pytorch",
                    "batch_size": 32,
                    "timestamp": "2022_02_01_18_48_17",
                },
                "validation": {**ended, "monitoring_gpu": {"0": {**gpu, "total_duration": 50.0}}},
                "train": None,
            }
        },
    }
    texts = {name: json.dumps(run) for name, run in runs.items()}
    made = made_of(tmp_path, "raphischer", texts)["rtx5000_imagenet_eval_energy.csv"]
    assert made["source_run"].tolist() == ["2022-02-01", "2022-01 first run"]
    assert made["gpu_power_mean_w"].tolist() == [200.0, 100.0]
    assert made["ms_per_image"].tolist() == [1.0, 2.0]
    assert made["mem_used_max_mib"].fillna(0).tolist() == [1024.0, 0.0]


def test_slices_have_each_point_once(tmp_path: Path) -> None:
    head = "model_name,batch_size,latency,latency_std,throughput,mig_profile"
    files = {
        "data/infer/nlp/bsz.csv": f"{head},seq_length\nbert,32,10.0,0.1,9,1g.10gb,64\n",
        "data/infer/nlp/seq.csv": f"{head},seq_length\nbert,32,11.0,0.1,9,1g.10gb,64\n",
        "data/train/cv/integrated.csv": (
            f"{head},fb_used_mean,fb_used_std,gract_mean\nresnet,8,20.0,0.1,9,1g.10gb,2414,0,0.9\n"
        ),
        "data/train/cv/all.csv": (
            f"{head}\nresnet,4,15.0,0.1,9,1g.10gb\nresnet,8,21.0,0.1,9,1g.10gb\n"
            "resnet,256,0.0,0.0,0,1g.10gb\n"
        ),
    }
    made = made_of(tmp_path, "migperf", files)["a100_80gb_mig.csv"]
    assert made[["mode", "batch"]].values.tolist() == [
        ["inference", 32],
        ["train", 4],
        ["train", 8],
    ]
    assert made["latency_ms"].tolist() == [10.0, 15.0, 20.0]
    assert made["samples_per_s"].tolist() == [3200.0, 266.67, 400.0]
    assert made["fb_used_mib"].fillna(0).tolist() == [0.0, 0.0, 2414.0]
