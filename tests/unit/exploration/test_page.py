"""The page of a search: whole, offline, and with every design's numbers."""

from __future__ import annotations

import re

import pytest

from dippm.decide.exploration import NoFeasibleDesignError, Objective, Space, explore, weights_proxy
from dippm.show.report.exploration import (
    exploration_page,
    pareto_figure,
)
from tests.unit.exploration.networks import build

pytest.importorskip("optuna")
pytest.importorskip("plotly")


def search(goals, constraints=None, **axes):
    space = Space(build, {"width": [8, 13, 32], **axes}, input="3,32,32", batch=[1, 64])
    return explore(space, goals, constraints, workers=0)


def test_the_page_is_whole_and_says_what_a_proxy_is(tmp_path):
    found = search(["latency_ms", weights_proxy()], {"latency_ms": 50})
    path = tmp_path / "search.html"
    found.to_html(path)
    text = path.read_text(encoding="utf-8")
    assert "no accuracy and no prediction of one" in text
    assert 'content="width=device-width, initial-scale=1"' in text
    assert "Choices(" not in text
    assert "<td>8, 13, 32</td>" in text
    assert "`" not in text[text.rindex("</script></head>") : text.index("<h2>Everything</h2>")]
    assert "13 is no width" in text
    assert "latency_ms ≤ 50" in text
    body = text[text.index("<body>") :]
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', body)
    for tried in found.front:
        assert f'<tr title="{tried.design}' in text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_plot_has_every_design_that_was_predicted(count):
    goals = ["latency_ms", weights_proxy(), "memory_mb"][:count]
    found = search(goals)
    figure = pareto_figure(found)
    assert sum(len(trace.x) for trace in figure.data) == len(found.predicted) == 4
    (members,) = (trace for trace in figure.data if trace.name == "on the front")
    firsts = members.y if count == 1 else members.x
    assert sorted(firsts) == sorted(t.values["latency_ms"] for t in found.front)


def test_a_page_of_nothing_feasible():
    costly = Objective("costly", of=lambda parameters: 1.0)
    with pytest.raises(NoFeasibleDesignError) as error:
        search(["latency_ms", costly], {"latency_ms": 1e-3})
    text = exploration_page(error.value.exploration)
    assert "No design meets the constraints." in text
