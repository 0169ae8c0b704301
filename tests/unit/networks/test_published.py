"""Networks by name: as large as they were published, and named where there is none."""

from __future__ import annotations

import importlib.util

import pytest

from dippm.errors import FrameworkNotInstalledError, UnknownNameError
from dippm.model.frontends import named
from dippm.model.networks.published import PUBLISHED

LIBRARIES = {one.library for one in PUBLISHED.values() if one.library}
PAPERS = {
    **{"sd15-unet": 860, "sdxl-unet": 2_567, "dit-xl-2": 675},
    **{"sd3-transformer": 2_028, "flux-transformer": 11_900},
}
MISSING = {name for name in LIBRARIES if importlib.util.find_spec(name) is None}


def parameters(name: str) -> int:
    """Return how many numbers a network has, as it is built here."""
    if PUBLISHED[name].library in MISSING:
        pytest.skip(f"{PUBLISHED[name].library} is not installed")
    module = named.build(f"dippm:{name}", "meta").module
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", [name for name, one in PUBLISHED.items() if one.parameters])
def test_a_network_is_as_large_as_it_was_published(name):
    assert parameters(name) == pytest.approx(PUBLISHED[name].parameters, rel=1e-2)


def test_parts_of_a_published_model_are_as_large_as_it():
    retina = parameters("retinanet-backbone") + parameters("retinanet-head")
    assert retina == 34_014_999
    parts = ("encoder", "heard", "step")
    assert sum(parameters(f"whisper-small-{part}") for part in parts) == 241_734_912


@pytest.mark.parametrize(("name", "millions"), PAPERS.items())
def test_papers_say_the_same(name, millions):
    assert parameters(name) / 1e6 == pytest.approx(millions, rel=1e-2)


def test_a_name_that_there_is_not_has_the_closest_ones():
    with pytest.raises(UnknownNameError, match="sdxl-unet"):
        named.build("dippm:sdxl-unt", "meta")


def test_a_library_that_is_missing_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "transformers" else find(name, *rest),
    )
    with pytest.raises(FrameworkNotInstalledError, match=r"transformers.*\n.*dippm\[hf\]"):
        named.build("dippm:clip-l", "meta")


def test_inputs_are_those_that_forward_takes():
    import torch

    for name in ("dit-xl-2", "sd15-unet", "whisper-small-step"):
        built = named.build(f"dippm:{name}", "meta")
        with torch.device("meta"):
            given = [torch.zeros(2, *sizes) for sizes in built.shapes.values()]
        assert built.module(*given) is not None
