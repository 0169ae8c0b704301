"""Several models on the slices of one GPU, by the shipped checkpoint."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.decide.choice import pack
from dippm.devices import arrangements, find
from dippm.errors import ConditionsError, ConstraintError
from dippm.estimate.model_list import Candidate

A100 = find("A100-40GB")
VALID = [sorted(place.profile for place in found) for found in arrangements(A100)]


@pytest.fixture(scope="module")
def slim_file(tmp_path_factory):
    import torch

    path = tmp_path_factory.mktemp("slim") / "slim.pt"
    layers = [torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.ReLU()]
    torch.save(torch.nn.Sequential(*layers), path)
    return path


@pytest.fixture(scope="module")
def slim(slim_file):
    return dippm.read_graph(slim_file, input="3,128,128")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def profiles(packing):
    return [model.placement and model.placement.profile for model in packing.models]


def score(ways):
    """What the docstring of the module says is best, of one slice or none for each model."""
    taken = [c for c in ways if c is not None]
    slow = sum(math.log(c.estimate("latency_ms").value) for c in taken)
    return len(taken), round(-slow, 9), -sum(c.mig.memory_slices for c in taken)


def test_no_other_way_is_better(wide, slim):
    cases = [Candidate(wide), Candidate(slim), Candidate(wide, batches=(64,))]
    packing = pack(cases, batch=16, slo_ms=400)
    choices = [
        dippm.smallest_slice(case.model, batch=case.batches or 16, slo_ms=400) for case in cases
    ]
    able = [[c for c in choice.contenders if c.feasible and c.mig] for choice in choices]
    best = max(
        score(ways)
        for ways in itertools.product(*[[None, *each] for each in able])
        if not any(ways) or sorted(c.mig.name for c in ways if c) in VALID
    )
    assert score([model.contender for model in packing.models]) == best
    assert best[0] == 3


def test_of_equal_models_the_first_has_the_larger_slice(wide, slim):
    packing = pack([wide, slim, slim], batch=16)
    first, second = (model.placement.size for model in packing.models[1:])
    assert first >= second
    slices = [model.placement.size for model in pack([slim] * 3, batch=16).models]
    assert slices == sorted(slices, reverse=True)


def test_the_places_go_together_and_hold_what_lies_there(wide, slim):
    packing = pack([wide, slim, slim, slim], batch=16)
    places = [model.placement for model in packing.placed]
    assert frozenset(places) in {frozenset(found) for found in arrangements(A100)}
    for model in packing.placed:
        assert model.contender.mig.name == model.placement.profile
        assert model.contender.memory_bound_mb <= model.contender.capacity_mb
        assert model.slowdown > 0
    taken = sum(place.size for place in places)
    assert packing.free_memory_slices == 8 - taken


def test_eight_models_do_not_fit_on_seven_slices(slim):
    packing = pack([slim] * 8)
    assert (len(packing.placed), len(packing.left_out)) == (7, 1)
    assert profiles(packing).count("1g.5gb") >= 6
    assert "there is no room for it next to the others" in packing.left_out[0].reason


def test_a_limit_that_no_slice_meets_is_the_reason(wide, slim):
    packing = pack([slim, Candidate(wide, batches=(256,))], slo_ms=50)
    assert packing.models[0].placement is not None
    reason = packing.models[1].reason
    assert reason.startswith("7g.40gb, the largest slice: ")
    assert "takes up to" in reason


def test_memory_is_a_reason(wide):
    (model,) = pack([wide], batch=4096).models
    assert model.placement is None
    assert "MB" in model.reason


def test_a_file_that_is_none_leaves_the_others_their_slices(slim, tmp_path):
    packing = pack([tmp_path / "none.pt", slim])
    assert profiles(packing)[0] is None
    assert profiles(packing)[1] is not None
    assert packing.models[0].error is not None
    assert packing.to_dict()["models"][0]["error"]["type"] == "ModelNotFoundError"


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"sources": []}, ConstraintError),
        ({"device": "V100"}, ConditionsError),
        ({"slo_ms": -1}, ConstraintError),
        ({"slo_at": "mean"}, ConstraintError),
    ],
)
def test_a_question_that_is_none_is_refused(slim, asked, error):
    with pytest.raises(error) as raised:
        pack(**{"sources": [slim], **asked})
    assert raised.value.hint


def test_the_command_says_where_each_goes(wide_file, slim_file):
    words = ("mig", "plan", wide_file, slim_file, "-i", "3,128,128", "-b", 16)
    answer = run(*words, "--device", "a100-80gb")
    assert answer.exit_code == 0, answer.output
    assert "A100-80GB · 2 of 2 models · batch 16" in answer.stdout
    assert "latencies are those of each slice alone" in answer.stdout
    document = json.loads(run(*words, "--device", "a100-80gb", "--json").stdout)
    assert document["placed"] == 2
    assert all(row["slice"] in answer.stdout for row in document["models"])


def test_a_list_gives_each_model_its_own_batch(wide_file, tmp_path):
    listed = tmp_path / "models.csv"
    listed.write_text(f'model,input,batch\n{wide_file},"3,64,64",4\n{wide_file},"3,64,64",8\n')
    document = json.loads(run("mig", "plan", "--from", listed, "--json").stdout)
    assert [row["batch"] for row in document["models"]] == [4, 8]


def test_what_gets_no_slice_is_a_row_and_exit_code_1(wide_file):
    answer = run("mig", "plan", wide_file, "-i", "3,128,128", "--slo-ms", "0.001")
    assert answer.exit_code == 1
    assert "why not" in answer.stdout
    assert run("mig", "plan").exit_code == 2


def test_mig_of_one_model_is_as_it_was(wide_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan").write_bytes(wide_file.read_bytes())
    answer = run("mig", "./plan", "-i", "3,128,128", "-f", "pytorch")
    assert "take 1g.5gb of A100-40GB" in answer.stdout
