"""The reference of the Python API: every public name, by package."""

from __future__ import annotations

from collections import defaultdict

GROUPS = {
    "predict": (
        "Predict",
        "One model under some conditions; whether it fits; budgets that it is held to.",
        ("api", "conditions", "prediction", "graph", "devices", "memory_fit"),
    ),
    "many": (
        "Compare and sweep",
        "Many models, batches, precisions, devices and power limits.",
        ("model_list", "comparison", "batch_sweep", "power_sweep"),
    ),
    "choose": (
        "Choose",
        "GPUs and MIG slices, ranked under limits and prices; what running a model costs, and "
        "several on one GPU.",
        ("choice", "costs", "sharing"),
    ),
    "explain": (
        "Explain",
        "Where time, energy and memory go; differences, what-ifs, many GPUs.",
        ("explanation", "parallel"),
    ),
    "explore": ("Explore", "Design spaces, searched.", ("exploration",)),
    "language": ("Language models", "What serving one costs, by its configuration.", ("language",)),
    "measure": (
        "Measure and calibrate",
        "Measured beside predicted, and predictions that fit your GPU.",
        ("measurement", "verification", "calibration"),
    ),
    "errors": (
        "Errors and the rest",
        "The tree of errors, and helpers.",
        ("errors", "vision_operators"),
    ),
}
"""Page → title, description, parts of wings. A new part gets its own page."""

EXTRA = {
    "choose": ["dippm.estimate.carbon"],
    "errors": ["dippm.errors"],
    "explore": ["dippm.decide.exploration"],
    "predict": ["dippm.runs.memory_guards", "dippm.decide.budgets"],
}
"""Modules shown in full in addition to the public names, with their contents."""


def pages() -> dict[str, tuple[str, str]]:
    """Return path on the site → (title, Markdown) of every page."""
    names = names_by_page()
    found = {}
    for page in [*(p for p in GROUPS if p in names), *sorted(set(names) - set(GROUPS))]:
        title, about, _ = GROUPS.get(page, (page.replace("_", " ").capitalize(), "", ()))
        blocks = [f"::: dippm.{name}" for name in names[page]]
        blocks += [_module(module) for module in EXTRA.get(page, ())]
        text = "\n\n".join([f"# {title}", about, *blocks])
        found[f"reference/{page}.md"] = (title, text + "\n")
    return found


def names_by_page() -> dict[str, list[str]]:
    """Return the names of `dippm.__all__` by page, functions first."""
    import dippm

    of_part = {part: page for page, (_, _, parts) in GROUPS.items() for part in parts}
    found = defaultdict(list)
    for name in sorted(dippm.__all__, key=lambda name: (name[:1].isupper(), name)):
        _, *home = _home(name).split(".")  # the wing and its part, or a module outside the wings
        part = home[min(1, len(home) - 1)]
        found[of_part.get(part, part)].append(name)
    return dict(found)


def _home(name: str) -> str:
    """Return the module that a public name comes from."""
    import dippm

    return dippm._HOMES.get(name) or getattr(dippm, name).__module__


def _module(name: str) -> str:
    return f"::: {name}\n    options:\n      heading_level: 2\n      show_root_toc_entry: true\n"
