"""Searches with real conversions in real processes, kept in real SQLite files."""

from __future__ import annotations

import functools
import os

import pytest

import dippm
from dippm.decide.exploration import (
    Architecture,
    ContradictionError,
    ExploreError,
    Ints,
    NoFeasibleDesignError,
    Objective,
    Space,
    StudyInUseError,
    StudyMismatchError,
    explore,
    weights_proxy,
)
from dippm.decide.exploration.evaluation import Evaluator, Task
from dippm.decide.exploration.study import every_design
from tests.fuzz import formats
from tests.samples import sampled
from tests.unit.exploration import searches
from tests.unit.exploration.networks import (
    build,
    build_and_die,
    build_and_die_once,
    count_parameters,
)

optuna = pytest.importorskip("optuna")
IMAGE = "3,32,32"


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path / 'search.db'}"


@pytest.fixture(scope="module")
def whole():
    """The whole of a small space: 3 widths, 2 depths, 2 batches and 2 places."""
    space = Space(
        build,
        {"width": [8, 16, 48], "depth": [1, 3]},
        input=IMAGE,
        batch=[1, 32],
        mig=[None, "1g.5gb"],
    )
    goals = ["latency_ms", "throughput", weights_proxy()]
    return explore(space, goals, {"memory_mb": "1g.5gb"}, workers=2)


@pytest.mark.nightly(part="processes")
def test_values_are_those_of_predict(whole):
    assert len(whole.tried) == whole.question.space.size == 24
    assert {t.outcome.state for t in whole.tried} == {"ok"}
    for tried in whole.tried[::5]:
        alone = dippm.predict(
            whole.build(tried),
            input=IMAGE,
            batch=tried.design.batch,
            device="A100",
            mig=tried.design.slice,
        )
        assert tried.values["latency_ms"] == pytest.approx(alone.latency_ms, rel=1e-9)
        assert tried.values["memory_bound_mb"] == pytest.approx(alone.memory_bound_mb, rel=1e-9)
        again = whole.predict(tried)
        assert again.latency_ms == pytest.approx(alone.latency_ms, rel=1e-9)
        assert again.operators


@pytest.mark.nightly(part="processes")
def test_the_front_and_what_is_read_off_it(whole):
    def beats(a, b):
        signs = [(o.name, o.sign) for o in whole.question.objectives]
        pairs = [(s * a.values[n], s * b.values[n]) for n, s in signs]
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    members = {t.number for t in whole.front}
    assert members
    for tried in whole.tried:
        assert (tried.number in members) != any(beats(other, tried) for other in whole.tried)
    assert whole.best().values["latency_ms"] == min(t.values["latency_ms"] for t in whole.tried)
    fastest = whole.best("samples_per_s")
    assert fastest.values["samples_per_s"] == max(t.values["samples_per_s"] for t in whole.tried)
    with pytest.raises(ExploreError, match="not an objective"):
        whole.best("accuracy")
    frame = whole.to_pandas()
    assert set(frame.loc[frame["front"], "number"]) == members
    assert frame["memory_mb"].notna().all()
    assert frame.loc[frame["slice"].notna(), "energy_j"].isna().all()  # measured for boards only
    assert "no accuracy" in " ".join(whole.notes())
    assert str(whole).startswith(whole.title)
    head, _ = whole.table()
    assert head[:4] == ["width", "depth", "slice", "batch"]  # searched, whatever the front has
    assert whole.to_csv().count("\n") == 25
    assert "<table>" in whole._repr_html_()


def test_designs_of_one_architecture_share_its_conversion():
    space = Space(
        build, {"width": [8, 16]}, input=IMAGE, batch=[1, 2, 4], precision=["fp32", "fp16"]
    )
    question = _question(space)
    evaluator = Evaluator(question)
    chosen = dict(enumerate(every_design(space)))
    first = {n: c for n, c in chosen.items() if c["width"] == 8}
    outcomes = evaluator.evaluate(Task(first))
    assert evaluator.conversions == 1
    assert len({o.values["latency_ms"] for o in outcomes.values()}) == 6
    evaluator.evaluate(Task(chosen))
    assert evaluator.conversions == 2


def _question(space):
    from dippm.decide.exploration.evaluation import SearchQuestion
    from dippm.decide.exploration.objectives import objectives_of

    return SearchQuestion(space, objectives_of("latency_ms"), (), dippm.load())


@pytest.mark.nightly(part="processes")
def test_the_same_seed_tries_the_same_whatever_the_workers(storage):
    space = Space(
        build, {"width": Ints(4, 64, 4), "depth": [1, 2]}, input=IMAGE, batch=Ints(1, 64, log=True)
    )
    tried = []
    for workers, seed in ((1, 3), (2, 3), (0, 4)):
        found = explore(space, ["latency_ms", "throughput"], trials=36, seed=seed, workers=workers)
        tried.append([(str(t.design), t.values["latency_ms"]) for t in found.tried])
    assert tried[0] == tried[1] != tried[2]
    assert len({design for design, _ in tried[0]}) == len(tried[0]) == 36


SAMPLERS = ["nsga2", "tpe", "random", optuna.samplers.QMCSampler(seed=1)]


@pytest.mark.parametrize("sampler", sampled(SAMPLERS, pytest.mark.nightly(part="processes")))
def test_samplers_and_going_on(sampler, storage):
    space = Space(build, {"width": Ints(4, 64, 4)}, input=IMAGE, batch=Ints(1, 64, log=True))
    goals = ["latency_ms", "throughput"]
    some = explore(space, goals, trials=6, sampler=sampler, storage=storage, workers=0)
    more = explore(space, goals, trials=20, sampler=sampler, storage=storage, workers=0)
    assert len(some.tried) == 6
    assert [t.row() for t in more.tried[:6]] == [t.row() for t in some.tried]
    assert len(more.tried) == 20
    assert len({str(t.design) for t in more.tried}) > 10
    done = explore(space, goals, trials=20, sampler=sampler, storage=storage, workers=0)
    assert [t.row() for t in done.tried] == [t.row() for t in more.tried]


def test_what_is_proposed_again_does_not_count():
    space = Space(build, {"width": [8, 16, 32]}, input=IMAGE, batch=[1, 2, 4, 8])
    found = explore(space, ["latency_ms", "throughput"], trials=11, sampler="random", workers=0)
    assert len({str(t.design) for t in found.tried}) == len(found.tried) == 11


def test_a_sampler_with_nothing_new_to_propose_ends_the_search():
    class Stubborn(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, name, distribution):
            return distribution.choices[0]

    space = Space(build, {"width": [8, 16]}, input=IMAGE, batch=[1, 2])
    found = explore(space, trials=3, sampler=Stubborn(seed=1), workers=0)
    assert [str(t.design) for t in found.tried] == ["build(width=8) · batch 1 · A100-40GB · fp32"]


def test_what_fails_is_a_row_and_the_search_goes_on(onnx_file):
    space = Space(
        [
            Architecture.of(
                build, {"width": [8, 13], "act": ["relu", "data"]}, input=IMAGE, name="own"
            ),
            onnx_file,
            "timm:no_such_model",
        ],
        precision=["fp32", "bf16"],
        device=["A100", "T4"],
    )
    found = explore(space, "latency_ms", workers=0)
    assert len(found.tried) == 24
    reasons = {}
    for tried in found.tried:
        key = (*tried.design.built, tried.design.device, tried.design.precision)
        reasons[key] = tried.outcome.reason
    for (name, *labels, device, precision), reason in reasons.items():
        if name == "timm:no_such_model":
            assert "no_such_model" in reason
        elif ("width", 13) in labels:
            assert reason == "it cannot be built: ValueError: 13 is no width"
        elif ("act", "data") in labels:
            assert "torch.export cannot follow this model" in reason
        elif (device, precision) == ("T4", "bf16"):
            assert "no hardware for bf16" in reason
        else:
            assert reason == ""
    assert len(found.feasible) == 6  # own and the file, each on three places and precisions


def test_a_search_without_a_feasible_design_says_what_came_nearest(storage):
    space = Space(build, {"width": [8, 16, 64]}, input=IMAGE, batch=[64, 256])
    asked = (["latency_ms", "memory_mb"], {"latency_ms": 0.001})
    with pytest.raises(NoFeasibleDesignError, match="none of 6 designs") as error:
        explore(space, *asked, storage=storage, workers=0)
    assert "the whole space: widen it" in error.value.hint
    found = error.value.exploration
    assert len(found.tried) == 6
    assert {t.outcome.state for t in found.tried} == {"infeasible"}
    least = min(t.values["latency_ms"] for t in found.tried)
    assert found.nearest.values["latency_ms"] == least
    assert str(found.nearest.design) in error.value.message
    assert found.front == ()
    assert found.to_pandas()["latency_ms"].notna().all()
    with pytest.raises(NoFeasibleDesignError):  # kept: nothing is converted again
        explore(space, *asked, storage=storage, workers=0)


def test_a_quantity_that_no_place_has_is_the_reason(storage):
    space = Space(build, {"width": [8, 16]}, input=IMAGE, mig="1g.5gb")
    with pytest.raises(NoFeasibleDesignError, match="measured for the board, not for a MIG slice"):
        explore(space, "energy_j", workers=0)


def test_contradictions_cost_nothing(tmp_path, storage):
    with pytest.raises(ContradictionError):
        explore(
            Space(build, {"width": [8]}, input=IMAGE),
            constraints={"latency_ms": 5, "throughput": 1},
            storage=storage,
        )
    assert not (tmp_path / "search.db").exists()


def test_a_design_that_does_not_fit_its_slice_is_not_feasible():
    space = Space("timm:resnet50", input="3,224,224", batch=[1, 2048], mig=["1g.5gb", None])
    found = explore(space, "throughput", workers=0)
    states = {(t.design.batch, t.design.slice): t.outcome for t in found.tried}
    assert states[1, "1g.5gb"].state == "ok"
    assert states[2048, "1g.5gb"].state == "infeasible"
    assert "not memory_bound_mb ≤ 4,864" in states[2048, "1g.5gb"].reason


def test_functions_of_the_user_are_asked_and_spared():
    space = Space(build, {"width": [8, 64], "depth": [1, 2]}, input=IMAGE, batch=[1, 1024])
    accuracy = Objective("accuracy", of=count_parameters)
    found = explore(space, ["latency_ms", accuracy], {"latency_ms": 0.5}, workers=1)
    states = {t.outcome.state for t in found.tried}
    assert states == {"ok", "pruned"}
    for tried in found.tried:
        slow = tried.values["latency_ms"] > 0.5
        assert ("accuracy" in tried.values) != slow
        assert ("latency_ms is" in tried.outcome.reason) == slow
    expected = sum(p.numel() for p in build(64, 2).parameters())
    assert found.best("accuracy").values["accuracy"] == expected
    asked = explore(space, ["latency_ms", accuracy], {"latency_ms": 0.5}, workers=0, prune=False)
    assert {t.outcome.state for t in asked.tried} == {"ok", "infeasible"}


def test_a_function_that_fails_is_a_reason():
    def broken(parameters):
        return {8: 1.0, 16: float("nan")}[parameters["width"]]

    space = Space(build, {"width": [8, 16, 32]}, input=IMAGE)
    found = explore(space, ["latency_ms", Objective("mine", of=broken)], workers=0)
    assert [t.outcome.state for t in found.tried] == ["ok", "failed", "failed"]
    assert found.tried[1].outcome.reason == "mine: ValueError: the function returned nan"
    assert found.tried[2].outcome.reason == "mine: KeyError: 32"
    assert found.tried[2].values["latency_ms"] > 0


def test_a_worker_that_is_killed_costs_nothing(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    make = functools.partial(build_and_die_once, str(flag))
    found = explore(Space(make, {"width": [8, 16, 32, 64]}, input=IMAGE), workers=2)
    assert not flag.exists()
    assert [t.outcome.state for t in found.tried] == ["ok"] * 4


@pytest.mark.nightly(part="processes")
def test_worn_out_workers_are_replaced(monkeypatch):
    monkeypatch.setattr("dippm.decide.exploration.worker_pool.WORN_OUT", 2)
    process = Objective("process", of=lambda parameters: float(os.getpid()))
    space = Space(build, {"width": [4, 8, 12, 16, 20]}, input=IMAGE)
    found = explore(space, ["latency_ms", process], workers=1)
    pids = [t.values["process"] for t in found.tried]
    assert len(set(pids)) == 3
    assert os.getpid() not in pids


@pytest.mark.nightly(part="processes")
def test_a_design_that_kills_its_worker_each_time_is_a_row():
    found = explore(Space(build_and_die, {"width": [8, 16, 32]}, input=IMAGE), workers=2)
    assert [t.outcome.state for t in found.tried] == ["ok", "failed", "ok"]
    assert "SIGKILL" in found.tried[1].outcome.reason


def test_a_conversion_that_takes_too_long_is_a_row():
    space = Space(build, {"width": [8], "depth": [1, 400]}, input=IMAGE)
    with pytest.raises(NoFeasibleDesignError, match="took longer than") as error:
        explore(space, workers=1, timeout_s=0.01)
    assert len(error.value.exploration.failed) == 2


@pytest.mark.nightly(part="processes")
def test_a_killed_search_goes_on_where_it_was(tmp_path, storage):
    process = searches.begin(tmp_path, storage)
    try:
        searches.wait_until_it_waits(process, storage)
        with pytest.raises(StudyInUseError, match=str(process.pid)):
            searches.search(str(tmp_path), storage)
    finally:
        begun = searches.kill(process, tmp_path)
    (tmp_path / "go").touch()
    found = searches.search(str(tmp_path), storage)
    assert [t.outcome.state for t in found.tried] == ["ok"] * 12
    assert len({str(t.design) for t in found.tried}) == 12
    # What was answered before the kill is not built again.
    assert searches.begun_since(tmp_path, begun) == {"begun-24-1"}


def test_another_question_needs_another_name(storage):
    space = Space(build, {"width": [8, 16]}, input=IMAGE)
    explore(space, "latency_ms", storage=storage, workers=0)
    for other, goals in (
        (space, "memory_mb"),
        (space, ["latency_ms", "memory_mb"]),
        (Space(build, {"width": [8, 32]}, input=IMAGE), "latency_ms"),
        (Space(build, {"width": [8, 16]}, input=IMAGE, batch=2), "latency_ms"),
    ):
        with pytest.raises(StudyMismatchError, match="another name="):
            explore(other, goals, storage=storage, workers=0)
    assert len(explore(space, "memory_mb", storage=storage, name="other", workers=0).tried) == 2


@pytest.mark.parametrize(
    "given",
    ["search.db", "sqlite:////no/such/folder/search.db", "nonsense://x"],
)
def test_storages_that_are_none(given):
    with pytest.raises(ExploreError, match="storage"):
        explore(Space(build, {"width": [8]}, input=IMAGE), storage=given)


def test_a_study_of_another_machine_is_taken_over_on_demand(storage, monkeypatch):
    space = Space(build, {"width": [8, 16]}, input=IMAGE)
    explore(space, "latency_ms", storage=storage, workers=0)
    study = optuna.load_study(study_name="dippm", storage=storage)
    study.set_user_attr("dippm_driver", {"host": "elsewhere", "pid": 1, "began": 5})
    with pytest.raises(StudyInUseError, match="take_over=True"):
        explore(space, "latency_ms", storage=storage, workers=0)
    found = explore(space, "latency_ms", storage=storage, workers=0, take_over=True)
    assert len(found.tried) == 2


def test_the_table_names_what_the_space_leaves_open_even_if_one_only_was_tried():
    """Which of two models won is in the table, the text, the CSV and the JSON."""
    import torch

    from dippm.decide.exploration import Architecture

    models = [
        Architecture.of(torch.nn.Conv2d(3, width, 3), name=f"of {width}") for width in (4, 4096)
    ]
    found = explore(Space(models, input="3,32,32"), ["latency_ms"], trials=1, workers=0)
    assert len({tried.design.architecture for tried in found.tried}) == 1
    winner = found.front[0].design.architecture
    columns, cells = found.table()
    assert columns[0] == "architecture"
    assert cells[0][0] == winner
    assert winner in str(found)
    assert winner in found.to_csv()
    assert found.to_dict()["designs"][0]["architecture"] == winner
    assert "batch" not in columns


def test_what_a_storage_keeps_is_checked(tmp_path):
    place = tmp_path / "outcome.json"
    for bad in ("{}", "[]", '{"state": "ok", "warnings": [], "values": {"latency_ms": "1"}}'):
        place.write_text(bad)
        with pytest.raises(ExploreError, match="cannot be read") as caught:
            formats._read_outcome(place)
        assert "storage=" in caught.value.hint
