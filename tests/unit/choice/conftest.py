"""A model whose memory, time and power grow with the batch."""

import pytest


@pytest.fixture(scope="session")
def wide_file(tmp_path_factory):
    import torch

    path = tmp_path_factory.mktemp("wide") / "wide.pt"
    layers = [torch.nn.Conv2d(3, 256, 3, padding=1), torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(256, 256, 3, padding=1), torch.nn.ReLU()] * 4
    torch.save(torch.nn.Sequential(*layers), path)
    return path


@pytest.fixture(scope="session")
def wide(wide_file):
    """The same as a graph, converted once."""
    import dippm

    return dippm.read_graph(wide_file, input="3,128,128")
