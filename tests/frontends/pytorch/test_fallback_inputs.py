"""Inputs that are tried last: masks, latents, codebooks, half a canvas, patches of one image."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import dippm
from dippm.errors import ConversionError
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.export import export
from tests.samples import sampled

OWN = InputSpec({})


class Configured(nn.Module):
    def __init__(self, main: str, **settings: object) -> None:
        super().__init__()
        self.config, self.main_input_name = SimpleNamespace(**settings), main


class Decoder(Configured):
    """Takes latents channels first, as decoders of sound do."""

    def __init__(self) -> None:
        super().__init__("latents", hidden_size=6)
        self.up = nn.ConvTranspose1d(6, 4, 4, 4)

    def forward(self, latents, padding_mask=None):
        return self.up(latents)


class Codes(Configured):
    """One token of text and one of each codebook at every step."""

    def __init__(self) -> None:
        super().__init__("input_ids", num_codebooks=3)
        self.table = nn.Embedding(50, 8)
        self.offsets = nn.Buffer(torch.arange(4))

    def forward(self, input_ids=None):
        return self.table(input_ids + self.offsets).sum(2)


class Masked(Configured):
    def __init__(self) -> None:
        super().__init__("input_ids")
        self.table = nn.Embedding(50, 8)

    def forward(self, input_ids=None, attention_mask: torch.Tensor | None = None):
        return self.table(input_ids) * attention_mask[:, :, None]


class Stacked(Configured):
    """Takes two steps of a spectrogram as one."""

    def __init__(self) -> None:
        super().__init__("input_features", num_mel_bins=5)
        self.dense = nn.Linear(10, 4)

    def forward(self, input_features):
        return self.dense(input_features)


class Canvas(Configured):
    """Puts the image below another one."""

    def __init__(self) -> None:
        super().__init__("pixel_values", image_size=(16, 8))
        self.patches = nn.Conv2d(3, 4, 8, 8)

    def forward(self, pixel_values, prompt_pixel_values):
        both = torch.cat([prompt_pixel_values, pixel_values], 2)
        if tuple(both.shape[2:]) != self.config.image_size:
            raise ValueError("another canvas")
        return self.patches(both)


class Series(Configured):
    def __init__(self) -> None:
        super().__init__("past_values", context_length=20_000, patch_length=32)
        self.dense = nn.Linear(32, 4)

    def forward(self, past_values):
        return self.dense(past_values.view(len(past_values), -1, 32))


class Text(Configured):
    """Says that images come first, and takes none."""

    def __init__(self) -> None:
        super().__init__("pixel_values")
        self.table = nn.Embedding(50, 8)

    def forward(self, input_ids=None):
        return self.table(input_ids).flatten(2) * torch.ones(8)


@pytest.mark.parametrize(
    ("module", "shapes"),
    sampled(
        [
            (Decoder(), {"latents": (6, 100)}),
            (Codes(), {"input_ids": (128, 4)}),
            (Masked(), {"input_ids": (128,), "attention_mask": (128,)}),
            (Stacked(), {"input_features": (500, 10)}),
            (Canvas(), {"pixel_values": (3, 8, 8), "prompt_pixel_values": (3, 8, 8)}),
            (Series(), {"past_values": (1024,)}),
        ],
        pytest.mark.nightly(part="frontends"),
        every=3,
    ),
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_a_model_takes_is_found_though_it_is_not_the_usual(module, shapes):
    graph = dippm.read_graph(module)
    assert {tensor.name: tensor.shape[1:] for tensor in graph.inputs} == shapes
    assert graph.batch_is_symbolic
    for name in shapes:
        assert any(note.startswith(f"input {name}: ") for note in graph.notes)


class Lengths(Masked):
    """Reads from its mask how long each sequence is."""

    def forward(self, input_ids=None, attention_mask: torch.Tensor | None = None):
        parts = [
            self.table(row[: int(n)])
            for row, n in zip(input_ids, attention_mask.sum(1).tolist(), strict=True)
        ]
        return torch.stack([part @ part.T for part in parts])


def test_a_mask_that_is_read_leaves_nothing_out():
    graph = dippm.read_graph(Lengths())
    assert [tensor.shape for tensor in graph.inputs] == [(1, 128)]
    assert graph.macs == 128 * 128 * 8
    assert not graph.batch_is_symbolic
    assert any("no padding" in note for note in graph.notes)


def test_the_size_of_a_mask_is_enough_where_its_numbers_are_read():
    graph = dippm.read_graph(Lengths(), input="input_ids=40;attention_mask=40")
    assert graph.macs == 40 * 40 * 8
    assert any("without padding" in note for note in graph.notes)
    half = "input_ids=fixed:1,4;attention_mask=value:[[1,1,0,0]]"
    assert dippm.read_graph(Lengths(), input=half).macs == 2 * 2 * 8


class Reads(Masked):
    """Its way depends on what the text says, which no mask tells."""

    def forward(self, input_ids=None, attention_mask: torch.Tensor | None = None):
        return self.table(input_ids[:, : int(input_ids.max())]) @ torch.ones(8, 3)


def test_what_depends_on_the_text_itself_stays_refused():
    with pytest.raises(ConversionError):
        export(Reads(), InputSpec.parse("input_ids=40;attention_mask=40"))


class Patches(Configured):
    """Takes patches in rows, writes the places of each image into memory of its own."""

    def __init__(self) -> None:
        super().__init__("pixel_values", patch_size=4, num_patches=36)
        self.dense, self.places = nn.Linear(48, 8), nn.Parameter(torch.zeros(8, 6, 6))

    def forward(self, pixel_values, spatial_shapes: torch.Tensor, pixel_attention_mask=None):
        out = self.dense(pixel_values)
        places = torch.empty(len(out), out.shape[1], 8, device=out.device)
        for i in range(len(out)):
            height, width = spatial_shapes[i].tolist()
            resized = nn.functional.interpolate(self.places[None], (height, width))
            places[i, : height * width] = resized[0].flatten(1).T
        return (out + places) @ places.transpose(1, 2)


def test_a_square_image_comes_as_patches_with_its_rows_and_columns():
    graph = dippm.read_graph(Patches())
    assert [tensor.shape for tensor in graph.inputs] == [(1, 36, 48)]
    assert graph.macs == 36 * 48 * 8 + 36 * 36 * 8


class Windows(Configured):
    """Cuts one row of patches as numbers say that it moved to the device of its weights."""

    def __init__(self) -> None:
        super().__init__("pixel_values", patch_size=4)
        self.patches = nn.Conv2d(3, 8, 4, 4)

    def forward(self, pixel_values, target_sizes: torch.Tensor | None = None):
        lengths = (target_sizes[:, 0] * target_sizes[:, 1]).to(pixel_values.device)
        row = self.patches(pixel_values).flatten(2)
        parts = torch.split(row, lengths.tolist(), 2)
        return torch.cat([part.transpose(1, 2) @ part for part in parts])


def test_numbers_stay_known_that_move_to_another_device():
    graph = dippm.read_graph(Windows())
    assert [tensor.shape for tensor in graph.inputs] == [(1, 3, 4, 16 * 16 * 4)]
    assert graph.macs == 256 * 48 * 8 + 256 * 256 * 8


class Layers(nn.Module):
    """So many steps in each of its layers that all together are more than a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            for _ in range(130):
                x = layer(x)
        return x


def test_many_layers_of_many_steps_are_no_loop_over_samples(monkeypatch):
    from dippm.model.frontends.torch import candidates

    batches = []
    original = candidates.Attempt.export_at

    def at(self, batch, **rest):
        batches.append(batch)
        return original(self, batch, **rest)

    monkeypatch.setattr(candidates.Attempt, "export_at", at)
    exported = export(Layers(), InputSpec.parse("8"))
    assert exported.batch_is_symbolic
    assert batches == [exported.batch]


class Outside(nn.Module):
    """Works on as many numbers as lie outside of an interval, cut from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x):
        outside = x[x > 0].reshape(-1)
        return self.dense(outside[:, None] * torch.ones(4, device=x.device))


def test_a_size_without_a_number_is_no_piece_of_a_batch():
    with pytest.raises(ConversionError, match=r"depends on data") as caught:
        export(Outside(), InputSpec.parse("4"))
    assert "u0 > " not in str(caught.value)
