"""Health check of this machine, without importing a framework."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from dippm import __version__
from dippm.base import process
from dippm.base.printable import printable
from dippm.errors import DippmError, SandboxWarning
from dippm.estimate.pretrained import store
from dippm.estimate.pretrained.checkpoint import verify
from dippm.estimate.pretrained.store import available, find
from dippm.measure.context import probe
from dippm.measure.readings import Absent
from dippm.measure.sources.registry import survey
from dippm.model.frontends import cache, registry
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB
from dippm.model.frontends.worker import Worker
from dippm.model.vision_operators import missing_libraries

State = Literal["ok", "absent", "broken"]
REQUIRED = ("apache-tvm", "onnx", "onnxsim")
TORCH = {
    "torch": ("torch", "models of PyTorch and checkpoints of kind pmgns need it"),
    "torch-geometric": ("pmgns", "checkpoints of kind pmgns need it"),
}
"""Extra of each package that used to be a dependency, and its purpose."""
OPTIONAL = {
    "tensorflow": (("tensorflow-cpu", "tensorflow"), ("keras",), ("h5py",)),
    "paddle": (("paddlepaddle",), ("paddle2onnx",)),
    "timm": (("timm",), ("torchvision",)),
    "hf": (("transformers",),),
}
CONTEXT_ELSE = "predictions assume a class of software, --context-mb names another"
BESIDE_CPU_TORCH = (
    "its operators need {library}, which this build of torch lacks: `import dippm` before "
    "torchvision, timm or transformers declares them"
)


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """Result of one check.

    Attributes:
        what: name of the checked item.
        state: "ok", "absent" (which is allowed) or "broken".
        detail: version or path; otherwise the reason and the next step.
    """

    what: str
    state: State
    detail: str


def examine() -> tuple[HealthFinding, ...]:
    """Check versions, packages, checkpoints, GPU, memory, sandbox, cache and counter sources."""
    versions = (
        HealthFinding("dippm", "ok", __version__),
        HealthFinding("python", "ok", platform.python_version()),
    )
    ours = (*versions, *_packages(), *_plugins(), *_checkpoints())
    gpu = _gpu()
    return (*ours, gpu, _context(gpu), _memory(), _sandbox(), _cache(), *sources())


def sources() -> Iterator[HealthFinding]:
    """Check the counter sources: a finding per source, and one per reason of absence."""
    by_source: dict[str, dict[str, list[str]]] = {}
    for row in survey():
        by_reason = by_source.setdefault(row.source, {})
        by_reason.setdefault(row.reason, []).append(row.quantity.name)
    for source, by_reason in by_source.items():
        for reason in sorted(by_reason):  # working sources have none, so they come first
            names = ", ".join(by_reason[reason])
            whole = "" in by_reason or len(by_reason) > 1
            what = f"source {source}" if not (reason and whole) else f"source {source}: {names}"
            detail = f"absent: {reason}" if reason else names
            yield HealthFinding(what, "absent" if reason else "ok", detail)


def _packages() -> Iterator[HealthFinding]:
    for name in REQUIRED:
        found = _version(name)
        yield HealthFinding(name, "ok" if found else "broken", found or f"pip install {name}")
    for name, (extra, needed_by) in TORCH.items():
        found = _version(name)
        detail = found or f"absent: {needed_by}, {registry.install_hint(extra)}"
        if name == "torch" and (untested := registry.untested_torch()):
            detail += f"; {untested}"
        yield HealthFinding(name, "ok" if found else "absent", detail)
    for extra, packages in OPTIONAL.items():
        for names in packages:
            found = next(filter(None, map(_version, names)), "")
            detail = found or f"absent: not installed, {registry.install_hint(extra)}"
            if found and names[0] == "torchvision" and (library := missing_libraries()):
                detail += f"; {BESIDE_CPU_TORCH.format(library=library)}"
            yield HealthFinding(names[0], "ok" if found else "absent", detail)


def _plugins() -> Iterator[HealthFinding]:
    for entry in registry.entries():
        if entry.is_plugin:
            fault = registry.plugin_fault(entry.module)
            hint = f"{fault}; files that others read are not harmed. Reinstall or remove it."
            state: State = "broken" if fault else "ok"
            yield HealthFinding(
                f"plug-in {entry.framework}", state, hint if fault else entry.module
            )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _checkpoints() -> Iterator[HealthFinding]:
    try:
        find(store.DEFAULT)
    except DippmError as error:
        yield HealthFinding(f"default checkpoint {store.DEFAULT}", "broken", error.message)
    for folder, reason in store.damaged():
        yield HealthFinding(f"checkpoint in {folder}", "broken", reason.message)
    for info in available():
        what = f"checkpoint {info.name} {info.version}"
        try:
            verify(info)
        except DippmError as error:
            yield HealthFinding(what, "broken", error.message)
        else:
            yield HealthFinding(what, "ok", str(info.path))


def _gpu() -> HealthFinding:
    command = shutil.which("nvidia-smi")
    if command is None:
        return HealthFinding("GPU", "absent", "absent: no nvidia-smi; predicting needs no GPU")
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return HealthFinding("GPU", "absent", f"absent: nvidia-smi failed ({error})")
    return HealthFinding("GPU", "ok", "; ".join(answer.stdout.strip().splitlines()))


def _context(gpu: HealthFinding) -> HealthFinding:
    """Measure the context of a process on the GPU, which predictions otherwise assume."""
    if gpu.state != "ok":
        return HealthFinding(
            "context", "absent", f"absent: no GPU to measure it on; {CONTEXT_ELSE}"
        )
    found = probe()
    if isinstance(found, Absent):
        return HealthFinding(
            "context", "absent", f"absent: {printable(found.reason)}; {CONTEXT_ELSE}"
        )
    return HealthFinding(
        "context",
        "ok",
        f"{found['context_mb']:,.0f} MB on {printable(found['device'])}, torch {found['torch']}, "
        f"CUDA {found['cuda']}, what the driver keeps included: --context-mb "
        f"{found['context_mb']:.0f}",
    )


def _memory() -> HealthFinding:
    total_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    detail = f"{total_mb:,} MB; one conversion may use {DEFAULT_MEMORY_LIMIT_MB:,} MB"
    return HealthFinding("memory", "ok" if total_mb > DEFAULT_MEMORY_LIMIT_MB else "absent", detail)


def _sandbox() -> HealthFinding:
    """Report the sandbox layers that work, by a worker that tries what it may not do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SandboxWarning)  # this check reports it in full
        worker = Worker(process.__name__)
        try:
            found = worker.wait_for_sandbox()
        except DippmError as error:
            return HealthFinding("sandbox", "broken", error.message)
        finally:
            worker.stop()
    words = f"refused to conversions: {', '.join(found.refused) or 'nothing'}"
    if found.active:
        words += f" ({', '.join(found.active)})"
    if found.open_ways:
        words += f"; absent: {', '.join(found.open_ways)}"
    if found.missing:
        words += f"; {'; '.join(f'{name}: {reason}' for name, reason in found.missing.items())}"
    return HealthFinding("sandbox", "absent" if found.open_ways else "ok", words)


def _cache() -> HealthFinding:
    try:
        folder = cache.folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        return HealthFinding("cache", "absent", f"it cannot be made ({error}); set DIPPM_CACHE_DIR")
    if not os.access(folder, os.W_OK):
        return HealthFinding("cache", "absent", f"{folder} is not writable; set DIPPM_CACHE_DIR")
    return HealthFinding("cache", "ok", str(folder))
