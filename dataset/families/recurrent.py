"""Families "rnn" (stacks of LSTM and GRU) and "physics_rnn" (emulators of an air column)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Scalar, Sizes
from dataset.families.grids import rotate_choices, spread

if TYPE_CHECKING:
    import torch


def rnn_grid() -> list[dict[str, Scalar]]:
    """Return stacks over tokens and over series."""
    return spread(
        26,
        cell=("lstm", "gru", "rnn"),
        features=(64, 128, 256, 512, 32),
        vocabulary=(0, 10000, 32000),
        width=(64, 128, 256, 384, 512, 768, 1024),
        depth=(1, 2, 3, 4, 6),
        bidirectional=(False, True),
        output=("last", "sequence"),
    )


def build_rnn(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the stack."""
    from dataset.families.networks.recurrent import Recurrent

    return Recurrent(**p)


def rnn_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return token ids or a series."""
    if p["vocabulary"]:
        return (InputTensor("tokens", sizes, high=int(p["vocabulary"])),)
    return (InputTensor("series", (*sizes, int(p["features"]))),)


def physics_grid() -> list[dict[str, Scalar]]:
    """Return emulators of radiation and moist physics of several widths."""
    return spread(
        24,
        cell=("gru", "lstm"),
        profiles=(6, 12, 20, 9),
        surface=(4, 8, 17),
        width=(32, 48, 64, 96, 128, 192, 256),
        depth=(1, 2, 3),
        mlp=(0, 64, 128, 256),
        outputs=(2, 4, 8),
        two_way=(True, False),
    )


def build_physics(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the emulator."""
    from dataset.families.networks.recurrent import ColumnEmulator

    return ColumnEmulator(**p)


def physics_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return profiles over levels and values at the surface."""
    return (
        InputTensor("profiles", (sizes[0], int(p["profiles"]))),
        InputTensor("surface", (int(p["surface"]),)),
    )


RNN = Family(
    name="rnn",
    kind="model",
    about="stacks of LSTM (Hochreiter 1997) and GRU (Cho 2014), also in both directions",
    grid=rnn_grid,
    sizes=lambda p: rotate_choices(((64,), (32,), (128,), (256,), (16,), (96,)), p, 4),
    build=build_rnn,
    inputs=rnn_inputs,
    compiles=False,
)
PHYSICS_RNN = Family(
    name="physics_rnn",
    kind="model",
    about="recurrent emulators over vertical levels (after Ukkonen 2022), a batch of columns",
    grid=physics_grid,
    sizes=lambda p: rotate_choices(((60,), (137,), (91,), (31,), (47,)), p, 4),
    build=build_physics,
    inputs=physics_inputs,
    largest_batch=16384,
    compiles=False,
)
