"""Families as architectures of a design space."""

from __future__ import annotations

import pytest

from dataset.families.registry import FAMILIES
from dataset.families.searched import architecture
from dippm.decide.exploration import ExploreError, Space, explore
from dippm.decide.exploration.study import every_design


def test_a_family_has_an_axis_for_each_parameter():
    kind = architecture("resnet", (64, 64), block="basic")
    assert set(kind.parameters) == set(FAMILIES["resnet"].grid()[0])
    assert kind.parameters["block"].count == 1
    space = Space(kind)
    design = space.design(next(every_design(space)))
    assert space.input_of(design) == (3, 64, 64)
    module = kind.build(design)
    assert not module.training


def test_a_family_whose_members_differ_says_what_to_fix():
    with pytest.raises(ExploreError, match="expansion") as error:
        architecture("mobilenet")
    assert "version=" in error.value.hint
    with pytest.raises(ExploreError, match="no member"):
        architecture("mobilenet", version=4)


def test_a_search_of_a_family():
    pytest.importorskip("optuna")
    space = Space(architecture("mobilenet", (64, 64), version=1, kernel=3), batch=[1, 16])
    found = explore(space, ["throughput", "weights_mb"], trials=10, workers=2)
    assert {t.outcome.state for t in found.tried} == {"ok"}
    assert found.front
