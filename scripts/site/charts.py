"""Charts of the pages, drawn during the build by the code of DIPPM's own reports.

A page says `<!-- chart NAME: what it shows -->`; a repository viewer shows nothing there. All
charts share one script, a file of the site, so that a page opens without a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from typing import Any

from scripts.site.prose import replace_in_prose

SCRIPT = "assets/plotly.min.js"
CHART = re.compile(r"<!-- chart (?P<name>[\w-]+): (?P<caption>.*?) -->", re.DOTALL)
SHAPE = {"batch": 32, "input": "3,224,224"}


def insert_charts(markdown: str, script: str) -> str:
    """Return a page with its charts inserted.

    Args:
        markdown: text of the page.
        script: relative path from the page to `SCRIPT`.

    Raises:
        KeyError: if a chart is not one of `CHARTS`.
    """

    def draw(match: re.Match[str]) -> str:
        caption = " ".join(match["caption"].split())
        return (
            f'<figure class="chart">\n{_markup(match["name"])}\n'
            f"<figcaption>{escape(caption)}</figcaption></figure>\n"
        )

    found = replace_in_prose(markdown, CHART, draw)
    if found == markdown:
        return markdown
    return f'{found}\n\n<script src="{escape(script)}"></script>\n<script>drawCharts()</script>\n'


def script() -> str:
    """Return the script that draws charts: plotly's library, and a function that waits for it."""
    from plotly.offline import get_plotlyjs

    return f"{get_plotlyjs()}\n{DRAW}"


DRAW = """
function drawCharts() {
  const narrow = window.matchMedia("(max-width: 600px)").matches;
  for (const data of document.querySelectorAll("script.chart-data")) {
    const figure = JSON.parse(data.textContent), place = data.previousElementSibling;
    if (narrow) {
      if (figure.layout.legend?.orientation !== "h")
        figure.layout.legend = {orientation: "h", x: 0, y: -0.2, yanchor: "top"};
      figure.layout.font = {...figure.layout.font, size: 10};
    }
    Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displaylogo: false,
      displayModeBar: false, scrollZoom: false});
  }
}
"""


@cache
def _markup(name: str) -> str:
    """Return a chart as an empty element and its data, which a browser does not execute."""
    figure = CHARTS[name]()
    if isinstance(figure, str):  # drawn already, without a script
        return figure
    figure.update_layout(autosize=True, width=None, dragmode=False)
    height = figure.layout.height or 450
    data = figure.to_json().replace("</", "<\\/")
    return (
        f'<div class="drawn" style="height: {height}px"></div>'
        f'<script type="application/json" class="chart-data">{data}</script>'
    )


def _sweep() -> Any:
    import dippm
    from dippm.show.report.sweep import batch_figure
    from scripts.sample_models import vgg16_pt

    return batch_figure(dippm.sweep(vgg16_pt(), batch="1:256", input=SHAPE["input"], device="A100"))


def _front() -> Any:
    import dippm
    from dippm.show.report.choice import front_figure
    from scripts.sample_models import vgg16_pt

    return front_figure(dippm.choose(vgg16_pt(), devices="all", by="latency", **SHAPE))


RUNTIMES: Mapping[str, Mapping[str, str]] = {
    "PyTorch, eager": {},
    "TorchScript": {"runtime": "torchscript"},
    "PyTorch, compiled": {"mode": "compiled"},
    "ONNX Runtime": {"runtime": "onnxruntime"},
    "TensorRT": {"runtime": "tensorrt"},
    "TensorRT, int8": {"runtime": "tensorrt", "precision": "int8"},
}


def _engines() -> Any:
    """Return images per second of a model in each runtime over the batch."""
    import plotly.graph_objects as go

    import dippm

    batches = [2**power for power in range(9)]
    asked: dict[str, Any] = {"input": SHAPE["input"], "device": "A100", "precision": "fp16"}
    figure = go.Figure()
    for name, how in RUNTIMES.items():
        found = dippm.sweep("torchvision:resnet50", batch=batches, **{**asked, **how})
        rates = [1e3 * p.conditions.batch / p.latency_ms for p in found.predictions]
        figure.add_scatter(x=batches, y=rates, name=name, mode="lines+markers")
    figure.update_xaxes(title="batch", type="log", tickvals=batches)
    figure.update_yaxes(title="images per second", type="log")
    return figure.update_layout(template="plotly_white", height=420)


def _roofline() -> Any:
    from dippm.show.report.explanation_page import roofline_figure

    return roofline_figure(_explained())


def _flame() -> Any:
    from dippm.show.report.explanation_page import flame_figure

    return flame_figure(_explained())


@cache
def _explained() -> Any:
    import dippm
    from scripts.sample_models import vgg16_pt

    return dippm.explain(vgg16_pt(), device="A100", **SHAPE)


def _errors() -> Any:
    from scripts.site.accuracy import error_figure

    return error_figure()


MARK, OTHER, LIMIT = "#3b6fb6", "#8d99ae", "#d1495b"
PARTS = {
    "context_mb": ("context", OTHER),
    "weights_mb": ("weights", MARK),
    "gradients_mb": ("gradients", "#66a182"),
    "optimizer_mb": ("optimizer", "#2e4057"),
    "activations_mb": ("activations", "#edae49"),
    "workspace_mb": ("workspace", "#a05195"),
}


def _memory() -> Any:
    """Return the memory of a model by part, in inference, without no_grad, and in training."""
    import plotly.graph_objects as go

    import dippm
    from dippm.devices import find
    from scripts.sample_models import vgg16_pt

    uses: Mapping[str, Mapping[str, Any]] = {
        "inference": {},
        "inference with autograd": {"autograd": True},
        "training, SGD": {"phase": "train"},
        "training, AdamW": {"phase": "train", "optimizer": "adamw"},
    }
    found = {name: dippm.predict(vgg16_pt(), **SHAPE, **use) for name, use in uses.items()}
    figure = go.Figure()
    for key, (part, colour) in PARTS.items():
        sizes = [getattr(p.memory_parts, key) for p in found.values()]
        figure.add_bar(
            y=list(found), x=sizes, name=part, orientation="h", marker_color=colour,
            hovertemplate="%{x:,.0f} MB<extra>" + part + "</extra>",
        )  # fmt: skip
    figure.add_scatter(
        y=list(found), x=[p.memory_bound_mb for p in found.values()], mode="markers",
        name="99 % bound", hovertemplate="%{x:,.0f} MB<extra>99 % bound</extra>",
        marker={"symbol": "line-ns-open", "size": 22, "color": LIMIT, "line": {"width": 3}},
    )  # fmt: skip
    for profile in find("A100").mig_profiles:
        if profile.name in ("1g.5gb", "1g.10gb", "3g.20gb"):
            _limit_line(figure, profile.memory_mb, profile.name)
    figure.update_xaxes(title="memory, MB")
    return _laid_out(figure, barmode="stack")


def _request() -> Any:
    """Return the slices of a GPU with the latency of a batch on each, and the limit."""
    import plotly.graph_objects as go

    import dippm
    from dippm.devices import find
    from scripts.sample_models import vgg16_pt

    slo_ms, asked = 60.0, {"batch": 8, "input": SHAPE["input"], "device": "A100"}
    chosen = dippm.request_resources(
        vgg16_pt(), batch=8, input=SHAPE["input"], devices=["A100"], slo_ms=slo_ms
    )
    slices = [None, *(profile.name for profile in find("A100").mig_profiles)]
    found = {name or "whole GPU": dippm.predict(vgg16_pt(), mig=name, **asked) for name in slices}
    taken = chosen.to_dict()["slice"] or "whole GPU"
    figure = go.Figure()
    figure.add_scatter(
        x=[p.latency_ms for p in found.values()],
        y=list(found),
        mode="markers",
        marker={"size": 11, "color": [LIMIT if name == taken else MARK for name in found]},
        error_x=_error_bars([(p.latency_ms, p.intervals["latency_ms"]) for p in found.values()]),
        text=[
            f"99 % bound {p.memory_bound_mb:,.0f} of {p.capacity_mb:,} MB" for p in found.values()
        ],
        hovertemplate="%{y}: %{x:.1f} ms<br>%{text}<extra></extra>",
        showlegend=False,
    )
    _limit_line(figure, slo_ms, "limit")
    figure.update_xaxes(title="latency of a batch of 8, ms", rangemode="tozero")
    return _laid_out(figure)


def _costs() -> Any:
    """Return hours, energy and carbon of a million samples by GPU."""
    from plotly.subplots import make_subplots

    import dippm
    from dippm.estimate.carbon import Region
    from scripts.sample_models import vgg16_pt

    region = Region("example", g_per_kwh=350.0, pue=1.2)
    names = ("T4", "L4", "A10", "A100", "H100", "RTX-4090")
    found = {
        name: dippm.cost_of(dippm.predict(vgg16_pt(), device=name, **SHAPE), region=region)
        for name in names
    }
    quantities = {"gpu_hours": "GPU hours", "energy_kwh": "kWh", "carbon_g": "g CO₂"}
    figure = make_subplots(rows=1, cols=3, shared_yaxes=True, subplot_titles=[*quantities.values()])
    for column, quantity in enumerate(quantities, 1):
        documents = [cost.to_dict() for cost in found.values()]
        values = [document[quantity] for document in documents]
        intervals = [document["intervals"].get(quantity) for document in documents]
        figure.add_bar(
            row=1, col=column, y=list(found), x=values, orientation="h", marker_color=MARK,
            error_x=_error_bars(list(zip(values, intervals, strict=True))), showlegend=False,
            hovertemplate="%{y}: %{x:.3g}<extra></extra>",
        )  # fmt: skip
    return _laid_out(figure)


def _budgets() -> Any:
    """Return the shares of their limits that models of a budget file use."""
    import plotly.graph_objects as go

    from dippm.decide.budgets import check
    from scripts.site.links import ROOT

    checked = check(ROOT / "examples" / "budgets.toml")
    rows = [
        (f"{model['name']}: {finding['quantity']}", finding["held"] / finding["limit"], finding)
        for model in checked.to_dict()["models"]
        for finding in model["findings"]
        if isinstance(finding["limit"], int | float)
    ]
    figure = go.Figure()
    figure.add_bar(
        y=[name for name, _, _ in rows],
        x=[100 * share for _, share, _ in rows],
        orientation="h",
        marker_color=[MARK if finding["passed"] else LIMIT for _, _, finding in rows],
        hovertemplate="%{y}: %{x:.0f} % of the limit<extra></extra>",
        showlegend=False,
    )
    _limit_line(figure, 100.0, "limit")
    figure.update_xaxes(title="share of the limit, %", rangemode="tozero")
    return _laid_out(figure)


def _limit_line(figure: Any, at: float, name: str) -> None:
    figure.add_vline(
        x=at, line={"color": LIMIT, "dash": "dash", "width": 1}, annotation_text=name,
        annotation_position="top", annotation_font_size=11,
    )  # fmt: skip


def _error_bars(values: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Return plotly's error bars of 90 % intervals; zero for values without one."""
    pairs = [(value, _ends(interval, value)) for value, interval in values]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - (value or 0.0) for value, (_, high) in pairs],
        "arrayminus": [(value or 0.0) - low for value, (low, _) in pairs],
        "color": OTHER,
    }


def _ends(interval: Any, value: float | None) -> tuple[float, float]:
    if interval is None or value is None:
        return value or 0.0, value or 0.0
    if isinstance(interval, Mapping):
        return interval["low"], interval["high"]
    return interval.low, interval.high


def _laid_out(figure: Any, **more: Any) -> Any:
    figure.update_yaxes(automargin=True, autorange="reversed")
    return figure.update_layout(
        template="plotly_white",
        height=360,
        margin={"l": 10, "r": 10, "t": 50, "b": 40},
        legend={"orientation": "h", "y": -0.25, "x": 0},
        **more,
    )


def _errors_by_family() -> Any:
    from scripts.site.accuracy import family_figure

    return family_figure()


def _coverage() -> Any:
    from scripts.site.accuracy import coverage_figure

    return coverage_figure()


def _pipeline() -> Any:
    import dippm
    from dippm.show.report.pipelines import memory_picture

    return memory_picture(dippm.pipeline("sdxl", steps=5, device="A100"))


def _neighbours() -> Any:
    """Return the rows of one model in the study of neighbours, with the shipped law."""
    import json

    from dippm.estimate.models.neighbour_law import fitted
    from dippm.show.report.sharing import Rate, throughput_figure
    from scripts.site.links import ROOT
    from training.studies.neighbours import cells_of

    path = ROOT / "training" / "studies" / "results" / "neighbours.json"
    cells = cells_of(json.loads(path.read_text(encoding="utf-8")))
    drawn = [c for c in cells if (c.model, c.mig) == ("resnet101", "7g.80gb")]
    lines = {}
    for c in drawn:
        if c.batch not in (1, 4, 8, 32):
            continue
        rates = []
        for k in range(1, 6):
            together = fitted().together([c.load] * k, "mps")[0].value
            ms = c.measured_ms.get(k)
            samples = 1e3 * k * c.batch
            rates.append(Rate(k, samples / together, None if ms is None else samples / ms))
        lines[f"batch {c.batch}"] = rates
    return throughput_figure(lines)


def _d35_results() -> Mapping[str, Any]:
    """Return the committed results of D3.5's experiment, by job."""
    import json

    from scripts.site.links import ROOT

    path = ROOT / "training" / "studies" / "results" / "d35.json"
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return found


def _held_out_families() -> Any:
    """Return the errors of GraphSAGE on what it has not seen: batches, architectures, families."""
    import plotly.graph_objects as go

    found = _d35_results()
    families = sorted(
        (run["test"]["mape"], run["fold"])
        for key, run in found.items()
        if key.startswith("families/")
    )
    bars = [
        ("random split", found["narrow/S0/0/sage"]["test"]["mape"], OTHER),
        ("architectures held out", found["architectures/S1/0/sage"]["test"]["mape"], OTHER),
        *((f"{name} held out", error, MARK) for error, name in families),
    ]
    names, errors, colours = zip(*reversed(bars), strict=True)
    figure = go.Figure(
        go.Bar(y=names, x=[100 * e for e in errors], orientation="h", marker_color=colours)
    )
    return _laid_out(figure, xaxis_title="MAPE of the test part, %")


def _epochs() -> Any:
    """Return the validation errors of GraphSAGE by epoch, of two widths and two splits."""
    import plotly.graph_objects as go

    found = _d35_results()
    runs = {
        "random split": ("narrow/S0/0/sage", OTHER, "solid"),
        "random split, width 512": ("wide/S0/0/sage", OTHER, "dot"),
        "architectures held out": ("architectures/S1/0/sage", MARK, "solid"),
    }
    figure = go.Figure()
    for name, (key, colour, dash) in runs.items():
        errors = [100 * error for error in found[key]["validation_curve"]]
        figure.add_scatter(y=errors, mode="lines", name=name, line={"color": colour, "dash": dash})
    _laid_out(figure, xaxis_title="epoch")
    return figure.update_yaxes(type="log", autorange=True, title="MAPE of the validation part, %")


def _range_test() -> Any:
    """Return the loss by learning rate of the range test, and the rates that were used."""
    import plotly.graph_objects as go

    from training.pmgns.trainer import D35_LEARNING_RATE

    run = _d35_results()["finder/S0/0/sage"]
    tried = run["range_test"]
    figure = go.Figure()
    figure.add_scatter(
        x=tried["rates"], y=tried["losses"], mode="lines", name="loss", line={"color": OTHER}
    )
    of_table2 = D35_LEARNING_RATE * run["batch_size"]
    rates = (
        ("Table 2, for the batch", of_table2, "dot"),
        ("range test", tried["suggestion"], "dash"),
    )
    heights = [min(tried["losses"]), max(tried["losses"])]
    for name, rate, dash in rates:  # traces: labels of layout lines are misplaced on a log axis
        line = {"color": MARK, "dash": dash}
        figure.add_scatter(x=[rate, rate], y=heights, mode="lines", name=name, line=line)
    _laid_out(figure, xaxis_title="learning rate")
    figure.update_xaxes(type="log")
    return figure.update_yaxes(title="smoothed loss")


def _networks() -> Any:
    """Return the errors of D3.5's five networks beside ours after 10 epochs."""
    import plotly.graph_objects as go

    from training.d35.report import D35_TABLE3, NETWORKS

    found = _d35_results()
    ours = {gnn: found[key] for gnn in NETWORKS if (key := f"table3/S0/0/{gnn}") in found}
    errors = {
        "D3.5, its measured labels": [D35_TABLE3[gnn][2] for gnn in ours],
        "ours, predicted labels": [run["test"]["mape"] for run in ours.values()],
    }
    names = [NETWORKS[gnn] for gnn in ours]
    figure = go.Figure(
        [
            go.Bar(y=names, x=[100 * e for e in part], name=name, orientation="h", marker_color=c)
            for (name, part), c in zip(errors.items(), (OTHER, MARK), strict=True)
        ]
    )
    return _laid_out(figure, xaxis_title="MAPE of the test part, %")


CHARTS: Mapping[str, Callable[[], Any]] = {
    "pipeline": _pipeline,
    "sweep": _sweep,
    "front": _front,
    "engines": _engines,
    "roofline": _roofline,
    "flame": _flame,
    "errors": _errors,
    "families": _errors_by_family,
    "coverage": _coverage,
    "memory": _memory,
    "request": _request,
    "costs": _costs,
    "budgets": _budgets,
    "neighbours": _neighbours,
    "networks": _networks,
    "held_out_families": _held_out_families,
    "epochs": _epochs,
    "range_test": _range_test,
}
"""Function that draws each chart, by name."""
