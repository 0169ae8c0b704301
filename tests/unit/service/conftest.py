"""Models to ask about, and a service that many tests share."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from dippm.client import Client
from tests.conftest import write_onnx
from tests.unit.service.served import Process


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_onnx(folder / "net.onnx", batch="n")
    torch.save(torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU()), folder / "net.pt")
    (folder / "bad.onnx").write_text("nonsense")
    (folder.parent / "secret.onnx").write_bytes((folder / "net.onnx").read_bytes())
    (folder / "link.onnx").symlink_to(folder.parent / "secret.onnx")
    return folder


@pytest.fixture(scope="session")
def service(tmp_path_factory, root):
    folder = tmp_path_factory.mktemp("service")
    place = folder / "uploads"
    place.mkdir()
    process = Process(folder, "--root", str(root), "--folder", str(place), "--upload-mb", "8")
    process.place = place
    yield process
    process.end()


@pytest.fixture(scope="session")
def client(service):
    with Client(service.address, timeout_s=120) as client:
        yield client


@pytest.fixture(scope="session")
def net(root):
    return root / "net.onnx"
