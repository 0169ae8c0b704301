"""Towers that take the patches of all images in one row, and numbers that models compute with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import dippm
from dippm.errors import InputShapeError
from dippm.model import frontends
from dippm.model.frontends import named
from dippm.model.frontends.torch.constant_folding import constant_tensors

WIDTH = 3 * 14 * 14


class Tower(nn.Module):
    """Attends within each image, whose length it reads out of the grid."""

    main_input_name = "hidden_states"

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(patch_size=14, in_channels=3, spatial_merge_size=2)
        self.embed = nn.Linear(WIDTH, 8)
        self.register_buffer("speeds", torch.ones(4))

    def forward(self, hidden_states: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
        lengths = torch.repeat_interleave(grid_thw[:, 1] * grid_thw[:, 2], grid_thw[:, 0])
        places = torch.cat([torch.arange(n, device=grid_thw.device) for n in lengths.tolist()])
        angles = (places[:, None].float() * self.speeds).repeat(1, 2)
        x = self.embed(hidden_states) * angles.cos()
        parts = torch.split(x, lengths.tolist())
        return torch.cat([part @ part.transpose(0, 1) @ part for part in parts])


def test_a_tower_gets_one_square_image_by_default():
    graph = dippm.read_graph(Tower())
    rows = 16 * 16
    assert graph.inputs[0].shape == (rows, WIDTH)
    assert graph.macs == rows * WIDTH * 8 + 2 * rows * rows * 8
    assert any("16 × 16 patches" in note for note in graph.notes)


def test_patches_of_several_frames_are_as_wide_as_all_of_them():
    tower = Tower()
    tower.embed = nn.Linear(2 * WIDTH, 8)
    tower.config.patch_temporal = 2
    assert dippm.read_graph(tower).inputs[0].shape == (16 * 16, 2 * WIDTH)


@pytest.mark.parametrize("kind", [torch.LongTensor, torch.LongTensor | None, torch.IntTensor])
def test_a_grid_is_a_tensor_by_whatever_name_its_type_has(kind):
    class Typed(Tower):
        def forward(self, hidden_states, grid_thw):
            return super().forward(hidden_states, grid_thw)

    Typed.forward.__annotations__["grid_thw"] = kind
    graph = dippm.read_graph(
        Typed(), input=f"hidden_states=fixed:16,{WIDTH};grid_thw=value:[[1,4,4]]"
    )
    assert graph.macs == 16 * WIDTH * 8 + 2 * 8 * 16 * 16


def test_the_grid_says_how_many_images_there_are():
    graph = dippm.read_graph(
        Tower(), input=f"hidden_states=fixed:40,{WIDTH};grid_thw=value:[[1,4,4],[2,3,4]]"
    )
    assert graph.macs == 40 * WIDTH * 8 + 2 * 8 * (16 * 16 + 12 * 12 + 12 * 12)


def test_a_grid_that_does_not_fit_is_refused():
    with pytest.raises(InputShapeError):
        frontends.load(Tower(), f"hidden_states=fixed:40,{WIDTH};grid_thw=value:[[1,4,4]]")


def test_a_container_without_forward_names_its_parts():
    class Container(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.rest = nn.Linear(4, 4), nn.ModuleList()

    with pytest.raises(InputShapeError, match=r"Container has no forward\(\)") as caught:
        frontends.load(Container(), "4")
    assert "encoder" in caught.value.hint
    assert "rest" not in caught.value.hint


class Placed(nn.Module):
    """Brings its table of places to the size of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(1, 8, 4, 4))
        self.mix = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, grid_thw: torch.LongTensor) -> torch.Tensor:
        found = []
        for frames, rows, columns in grid_thw:
            table = nn.functional.interpolate(self.places, size=(rows, columns))
            found.append(table.flatten(2)[0].T.repeat(frames, 1))
        return self.mix(x + torch.cat(found))


def test_known_numbers_are_sizes():
    graph = dippm.read_graph(Placed(), input="x=fixed:30,8;grid_thw=value:[[1,2,3],[2,3,4]]")
    assert graph.macs == 30 * 8 * 8


class Codec(nn.Module):
    """Pads by what it computes from the stride that it keeps as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 8, stride=4)
        self.register_buffer("stride", torch.tensor(4), persistent=False)
        self.kernel = self.stride * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = (x.shape[-1] - self.kernel) / self.stride + 1
        whole = (torch.ceil(frames).to(torch.int64) - 1) * self.stride + self.kernel
        extra = whole - x.shape[-1]
        if extra > 0:
            x = torch.nn.functional.pad(x, (0, extra))
        return self.conv(x)


def test_the_numbers_that_a_module_keeps_are_known():
    module = Codec()
    graph = dippm.read_graph(module, input="1,99")
    assert graph.macs == graph.batch * 4 * 8 * 24  # 99 are padded to 100: 24 frames
    assert dict(module.named_buffers())["stride"].item() == 4
    assert "kernel" in vars(module)
    assert "stride" not in vars(module)


def test_a_model_by_name_is_built_with_the_numbers_that_it_keeps():
    module = named._build_on(Codec, torch.device("meta"))
    assert all(parameter.is_meta for parameter in module.parameters())
    assert {name: int(value) for name, value in constant_tensors(module)[""].items()} == {
        "stride": 4, "kernel": 8,
    }  # fmt: skip
