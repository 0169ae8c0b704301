"""Keeps former names of packages and modules importable: `dippm.graph` is `dippm.model.graph`.

Both names stand for the same module, also for submodules and for `python -m`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

_HOMES = {
    "base": "boot files interrupt printable process progress written",
    "model": "frontends graph relax vision_operators",
    "estimate": "batches comparison conditions epoch features largest_batch models module_tree "
    "operator_markup prediction pretrained",
    "measure": "calibration operator_verification verification",
    "decide": "batch_sweep choice explanation exploration language parallel power_sweep",
    "runs": "colocation plans store tracking",
    "show": "report ui",
}
MOVED = {name: f"{wing}.{name}" for wing, names in _HOMES.items() for name in names.split()} | {
    "candidates": "estimate.model_list",
    "figures": "base.number_format",
    "loaded": "estimate.predictor",
    "points": "estimate.grid",
    "reading": "model.convert",
    "shown": "base.answer",
}
"""Former name within `dippm` → present name."""

_SECTIONS = {
    "base.number_format": "numbers",
    "base.process.limits": "guard",
    "base.process.pipes": "ends frames",
    "decide.budgets.budget": "tolerance",
    "decide.choice.choice": "infeasible",
    "decide.choice.packing": "slices",
    "decide.choice.ranking": "question",
    "decide.explanation.explanation": "parts roofline",
    "decide.exploration.design": "axes",
    "decide.exploration.engines": "cluster local",
    "decide.exploration.evaluation": "question",
    "decide.exploration.objectives": "constraints proxies quantities",
    "decide.exploration.search": "screening",
    "decide.exploration.study": "driver storage",
    "decide.exploration.worker_pool": "crew",
    "decide.language.families": "fields",
    "decide.language.memory": "cache",
    "decide.language.pass_kernels": "eager engine routing",
    "decide.language.passes": "ordered parallel",
    "decide.language.reading": "config",
    "decide.language.serving": "remarks stated",
    "decide.language.setting": "formats",
    "decide.parallel.estimate": "overlap",
    "decide.parallel.one_process": "sharded_kernels",
    "decide.parallel.plan": "collectives",
    "decide.parallel.work": "stages",
    "decide.pipelines.running": "inputs",
    "decide.pipelines.stage": "file",
    "decide.scheduling.format": "registry",
    "decide.scheduling.manifest": "names",
    "decide.scheduling.request": "sizing",
    "devices.device_file": "imported",
    "devices.mig": "placements",
    "estimate.features.encode": "feature_spec",
    "estimate.features.kernel_table": "kernel_graph",
    "estimate.features.kernels.attention": "attention_steps",
    "estimate.features.kernels.backward.arithmetic": "elementwise norms products",
    "estimate.features.kernels.backward.gradients": "checkpointing tape",
    "estimate.features.kernels.backward.training": "attention convolution recurrent",
    "estimate.features.kernels.convolution": "depthwise",
    "estimate.features.kernels.launch": "node_calls recurrent trained",
    "estimate.features.kernels.run": "layouts",
    "estimate.model_list": "batches",
    "estimate.models.checkpoint_schemas": "step_schemas",
    "estimate.models.footprint": "node_program widths",
    "estimate.models.law_kernels": "message_passing",
    "estimate.models.monotonic_bounds": "order",
    "estimate.models.phases": "graph_parts",
    "estimate.models.pmgns": "pmgns_inputs",
    "estimate.models.pmgns_network": "encoders",
    "estimate.models.power": "energy_shares",
    "estimate.models.power_limit": "board_power",
    "estimate.models.training_memory": "step_memory",
    "estimate.prediction": "operator_markup",
    "estimate.pretrained.checkpoint": "weights",
    "estimate.pretrained.store": "choice",
    "measure.context": "counters",
    "measure.kernels.join": "alignment",
    "measure.kernels.profile": "paths",
    "measure.run": "energy_phase kernel_phase",
    "measure.sources.tree": "tree_quantities",
    "measure.timing": "timers",
    "measure.verification": "operator_verification",
    "model.frontends.containers": "objects zip_names",
    "model.frontends.keras_allowlist": "keras_allowed",
    "model.frontends.limits": "deadline",
    "model.frontends.paddle_rewrites": "paddle_layers paddle_mends",
    "model.frontends.registry": "plugins",
    "model.frontends.torch.call": "program",
    "model.frontends.torch.higher_order_operators": "control_flow",
    "model.frontends.torch.input_shapes": "fallback_inputs",
    "model.frontends.torch.paths": "places script_paths",
    "model.frontends.torch.prepare": "module_surgery quantized",
    "model.frontends.torch.script": "script_sizes",
    "model.frontends.torch.usual_inputs": "packed",
    "model.frontends.unsupported_formats": "unread_formats",
    "model.frontends.worker_errors": "unreadable",
    "model.graph.builder": "bounds order",
    "model.graph.calls": "batch_sizes",
    "model.graph.dialects.products": "einsum",
    "model.graph.dialects.reader": "static tables unread",
    "model.graph.dialects.readers": "quantised",
    "model.graph.liveness": "lifetimes",
    "model.graph.rules.layout": "identities",
    "model.graph.rules.products": "quantised",
    "model.graph.rules.prune": "duplicates",
    "model.networks.diffusion_unet": "autoencoder",
    "model.networks.library": "speech",
    "model.relax.carried": "opaque paths",
    "model.relax.onnx.control_flow": "branch_work sequences",
    "model.relax.onnx.converters": "dtypes",
    "model.relax.onnx.data_dependent_sizes": "stated",
    "model.relax.onnx.infer": "shapes",
    "model.relax.onnx.inputs": "batch declared",
    "model.relax.onnx.model": "functions well_formed",
    "model.relax.onnx.tracing": "block paths values",
    "model.relax.raw_graph": "holds lifetimes packed",
    "model.relax.torch_programs": "torch_data_flow torch_namespaces torch_tracing",
    "runs.colocation.allocation": "ending seating",
    "runs.colocation.instance_removal": "removal undoing",
    "runs.colocation.neighbour_runs": "shared_energy together",
    "runs.colocation.predicted_slowdowns": "foretold",
    "runs.colocation.sharing": "seat",
    "runs.plans.assumed": "devices",
    "runs.plans.command_line": "single",
    "runs.plans.executor": "carried_out",
    "runs.plans.journal": "place",
    "runs.plans.options": "terms",
    "runs.plans.row_process": "gate",
    "runs.plans.row_selection": "choice_of_rows",
    "runs.plans.run_configs": "orders",
    "runs.plans.table": "book reading",
    "runs.plans.workload": "workload_processes",
    "runs.store.attach_lock": "turn",
    "runs.store.location": "place",
    "runs.store.run_contents": "gathered logged",
    "runs.store.stored_run": "stored",
    "runs.tracking.accepted_runs": "accepted coverage",
    "runs.tracking.listeners": "listeners.asking",
    "runs.tracking.process_supervisor": "foreground",
    "runs.tracking.run_comparison": "conditions figures_of_run",
    "runs.tracking.run_config": "order ranks",
    "runs.tracking.sidecar": "keeper",
    "runs.tracking.sidecar_spawn": "keeper_start keeper_words",
    "runs.tracking.span_block": "threads",
    "show.report.exploration": "exploration_page",
    "show.ui.authentication": "gate",
    "show.ui.page.app": "layout",
    "umlaut.benchmark": "adapted supervisor",
    "umlaut.metric": "clocks sampled",
}
MERGED = {
    f"{where.rpartition('.')[0]}.{name}": where
    for where, names in _SECTIONS.items()
    for name in names.split()
} | {
    "model.frontends.torch.foreign_operators": "model.relax.torch_programs",
    "model.graph.dialects.names": "model.graph.operators",
    "model.relax.without_torch": "model.relax",
}
"""Modules that were renamed, or became a section of another one → that one, within `dippm`."""


def present_name(name: str) -> str | None:
    """Return the present name of a module; None if the given name is not a former one."""
    root, _, rest = name.partition(".")
    if root != "dippm":
        return None
    first, dot, within = rest.partition(".")
    moved = f"{MOVED[first]}{dot}{within}" if first in MOVED else rest
    present = MERGED.get(moved, moved)
    return None if present == rest else f"dippm.{present}"


class _FormerNames:
    """Finder of modules by their former names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        present = present_name(fullname) if fullname.startswith("dippm.") else None
        loader: Any = _Alias(present) if present else None
        return ModuleSpec(fullname, loader) if loader else None


class _Alias:
    """Loader that returns the module of another name."""

    def __init__(self, present: str) -> None:
        self._present = present
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._present)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set that of the former name

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code for `python -m`."""
        from importlib.util import find_spec

        loader: Any = getattr(find_spec(self._present), "loader", None)
        code: CodeType | None = loader.get_code(self._present) if loader else None
        return code


def keep_former_names() -> None:
    """Install the finder of former names."""
    if not any(isinstance(finder, _FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FormerNames())
