from __future__ import annotations

import os
import shutil
import signal

import pytest

from tests import fake_nvml
from tests.unit.colocation.machine import Machine


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if fake_nvml.compiler() is None:
        pytest.skip("needs a C compiler")
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(tmp_path, library):
    made = Machine(tmp_path, library)
    yield made
    for pid in (*made.mps(), *made.mps(tmp_path)):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(made.tmp)
