"""Models by name → raw graphs on disk: the slow half of building the training table.

    python -m dataset.raw_graphs --workers 2

Specs are "timm:resnet50@224", "torchvision:resnet50@224" and "hf:bert-base@128", where the number
is the image size or the sequence length, "gpt:..." as `dataset.measured.gpt` says, "nb101:..." as
`dataset.measured.nasbench101` does, "sd:unet-v1@64" as `dataset.measured.stable_diffusion` does,
"kernelbench:<trace>", and "own:family(name=value,...)@sizes" for the workloads of
`dataset.families`. Each has one file of compressed JSON; a model that cannot be converted has a
file with the reason instead, so that a second run converts only missing ones. Weights are never
allocated: models are on the meta device.
"""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset.join import model_files
from dippm.model.frontends.frontend import MARKER_BATCHES
from dippm.model.relax.raw_graph import RawGraph
from dippm.model.vision_operators import declare_vision_operators

if TYPE_CHECKING:
    import pandas as pd

BATCH = MARKER_BATCHES[0]
SOURCES = (
    "timm_infer",
    "timm_train",
    "pytorch_gpu_benchmark",
    "hwgpt",
    "kernelbench",
    "optimum_benchmark",
    "parvagpu",
    "sd_webui",
    "ecnas",
)
MODELS_PER_WORKER = 50
LONGEST_STEM = 200  # a file name may have 255 bytes, suffixes included
OTHER_MODELS = (
    "torchvision:resnet50@224",
    "torchvision:vit_b_16@224",
    *(f"hf:bert-base@{length}" for length in (32, 64, 128, 256, 512)),
    *("timm:densenet121@224", "timm:swin_base_patch4_window7_224@224", "timm:convnext_base@224"),
    *(f"timm:resnet{depth}@224" for depth in (50, 101, 152)),
    *(f"timm:resnetv2_{depth}@224" for depth in (50, 101, 152)),
    *(f"torchvision:vgg{depth}@224" for depth in (16, 19)),
    *(f"timm:densenet{depth}@224" for depth in (169, 201)),
    *("timm:tf_inception_v3@299", "timm:inception_resnet_v2@299", "timm:legacy_xception@299"),
    *(
        f"timm:tf_efficientnet_b{size}@{pixels}"
        for size, pixels in enumerate((224, 240, 260, 300, 380))
    ),
)
"""Models whose memory or power MIGPerf, D3.5 and Fischer measured, under other names."""


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """Outcome of a model's conversion; `error` is empty if its graph is on disk."""

    spec: str
    error: str = ""


def cache_dir() -> Path:
    """Return the default folder of raw graphs, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dippm" / "raw_graphs"


def path_of(spec: str, folder: Path) -> Path:
    """Return the file of a spec: "resnet50@224.json.gz" for timm, other zoos with their name."""
    zoo, _, name = spec.rpartition(":")
    if model_files.is_file(spec):
        return folder / f"{model_files.stem_of(spec)}.json.gz"
    stem = name if zoo in ("", "timm") else f"{zoo}.{name}"
    if len(stem.encode()) > LONGEST_STEM:
        digest = hashlib.sha256(stem.encode()).hexdigest()[:16]
        stem = f"{stem.partition('(')[0]}.{digest}"
    return folder / f"{stem}.json.gz"


def error_path_of(spec: str, folder: Path) -> Path:
    """Return the file with the reason for a failed conversion of a spec."""
    path = path_of(spec, folder)
    return path.with_name(path.name + ".err")


def read(spec: str, folder: Path) -> RawGraph:
    """Return the raw graph of a spec.

    Raises:
        FileNotFoundError: if it was not or could not be converted, with the reason.
    """
    error, path = error_path_of(spec, folder), path_of(spec, folder)
    if error.is_file():
        raise FileNotFoundError(f"{spec} could not be converted: {error.read_text()}")
    if not path.is_file():
        raise FileNotFoundError(f"{spec} could not be converted: nobody tried")
    with gzip.open(path, "rb") as file:
        return RawGraph.from_json(file.read())


def write(spec: str, text: str, folder: Path) -> None:
    """Write the raw graph of a spec as JSON, and remove an earlier failure's reason."""
    path = path_of(spec, folder)
    partial = path.with_name(path.name + ".part")
    with gzip.open(partial, "wt", compresslevel=3, encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)
    error_path_of(spec, folder).unlink(missing_ok=True)


def convert(spec: str, data_dir: Path | None = None) -> RawGraph:
    """Convert a model by name; imports its zoo, torch and TVM.

    Args:
        spec: name of the model.
        data_dir: folder of the measured tables, with the problems of KernelBench.

    Raises:
        ValueError: if the spec names no known zoo or lacks its image size, or if a graph could not
            describe what was timed.
        RuntimeError: if the model is unknown to the zoo.
    """
    import torch

    from dippm.model.relax.torch import ShapeOnlyImporter
    from dippm.model.relax.walk import walk

    zoo, _, name = spec.partition(":")
    if model_files.is_file(spec):
        return model_files.convert_file(spec)
    if zoo == "own":
        model, examples = _own(spec)
        return walk(ShapeOnlyImporter().import_program(_export(model, examples)), BATCH)
    if zoo == "kernelbench":
        model, examples, batch = _problem(name, data_dir)
        module = ShapeOnlyImporter().import_program(_export(model, examples))
        return walk(module, batch, batch_is_symbolic=False)
    name, _, size = name.partition("@")
    if not size.isdigit():
        raise ValueError(f"{spec!r} does not say its image size, as in 'timm:resnet50@224'")
    if zoo == "sd":
        model, examples = _unet(name, int(size))
    elif zoo in ("hf", "gpt"):
        model = _language_model(name) if zoo == "hf" else _gpt(name)
        examples = (torch.zeros(BATCH, int(size), dtype=torch.int64, device="meta"),)
    else:
        model, channels = _cell(name) if zoo == "nb101" else _model(zoo, name, int(size))
        examples = (torch.empty(BATCH, channels, int(size), int(size), device="meta"),)
    return walk(ShapeOnlyImporter().import_program(_export(model, examples)), BATCH)


def build(
    specs: Iterable[str], folder: Path, workers: int = 2, data_dir: Path | None = None
) -> Iterator[BuildOutcome]:
    """Convert models that a folder lacks; yield each model when it is done or found.

    A model whose conversion failed earlier is not retried: delete its ".err" file for that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    todo = []
    for spec in specs:
        error = error_path_of(spec, folder)
        if path_of(spec, folder).is_file():
            yield BuildOutcome(spec)
        elif error.is_file():
            yield BuildOutcome(spec, error.read_text(encoding="utf-8"))
        else:
            todo.append((spec, folder, data_dir))
    if not todo:
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, maxtasksperchild=MODELS_PER_WORKER) as pool:
        yield from pool.imap_unordered(_convert_to_file, todo)


def specs_of(sources: Iterable[str], data_dir: Path | str | None = None) -> list[str]:
    """Return the models named in the tables of some sources, without duplicates.

    Sources without tables on this machine are skipped, see `absent`.
    """
    from dataset.measured import sources as readers

    names: list[str] = []
    for source in sources:
        table = readers.read_if_there(source, data_dir)
        if table is None:
            continue
        names += NAMES[source](table) if source in NAMES else table["model"].tolist()
    return list(dict.fromkeys(names))


def _sampled_gpts(table: pd.DataFrame) -> list[str]:
    from dataset.measured import gpt

    architectures = gpt.sample_architectures(table).drop_duplicates("arch_id")
    return [gpt.key_of(record) for record in architectures.to_dict("records")]


def _language_models(table: pd.DataFrame) -> list[str]:
    from dataset.measured import language_models

    rows = language_models.forward_passes(table)
    return [*rows["model"], *rows["graph"]]


def _sampled_cells(table: pd.DataFrame) -> list[str]:
    from dataset.measured import nasbench101

    names: list[str] = nasbench101.sample_architectures(table)["model"].tolist()
    return names


NAMES = {"hwgpt": _sampled_gpts, "optimum_benchmark": _language_models, "ecnas": _sampled_cells}
"""Functions for sources whose rows do not name graphs, or that are converted as a sample."""


def _convert_to_file(task: tuple[str, Path, Path | None]) -> BuildOutcome:
    spec, folder, data_dir = task
    warnings.filterwarnings("ignore")
    if path_of(spec, folder).is_file():  # converted by another run on the same folder
        return BuildOutcome(spec)
    try:
        text = convert(spec, data_dir).to_json()
    except Exception as error:  # a failing model must not stop the others
        reason = f"{type(error).__name__}: {error}"[:1000]
        error_path_of(spec, folder).write_text(reason, encoding="utf-8")
        return BuildOutcome(spec, reason)
    write(spec, text, folder)
    return BuildOutcome(spec)


def _export(model: Any, examples: tuple[Any, ...]) -> Any:
    """Return an exported model that says how long its code holds each tensor, as a user's does."""
    import torch

    from dippm.model.frontends.torch.lifetimes import annotate_lifetimes, watch_lifetimes
    from dippm.model.relax.torch_programs import without_source

    with torch.no_grad(), without_source(), watch_lifetimes(model) as lifetimes:
        program = torch.export.export(model, examples, strict=False)
    return annotate_lifetimes(program, lifetimes)


def _own(spec: str) -> tuple[Any, tuple[Any, ...]]:
    from dataset.families import registry
    from dataset.families.family import Workload

    workload = Workload.parse(spec)
    return registry.build(workload, "meta"), registry.make_inputs(workload, BATCH, "meta")


def _problem(trace_id: str, data_dir: Path | None) -> tuple[Any, tuple[Any, ...], int]:
    from dataset.measured import traces
    from dataset.measured.location import data_dir as found

    trace = traces.problems(found(data_dir) / "kernelbench")[trace_id]
    if reason := traces.why_not(trace):
        raise ValueError(reason)
    return traces.TracedProblem(trace), traces.inputs_of(trace), traces.batch_of(trace)


def _gpt(name: str) -> Any:
    from dataset.measured import gpt

    return gpt.module_of(name)


def _unet(name: str, size: int) -> tuple[Any, tuple[Any, ...]]:
    from dataset.measured import stable_diffusion

    return stable_diffusion.module_of(name), stable_diffusion.inputs_of(BATCH, size)


def _language_model(name: str) -> Any:
    from dataset.families.language_models import module_of

    declare_vision_operators()
    return module_of(name)


def _cell(name: str) -> tuple[Any, int]:
    from dataset.measured import nasbench101

    return nasbench101.module_of(name), 3


def _model(zoo: str, name: str, size: int) -> tuple[Any, int]:
    import torch

    declare_vision_operators()
    if zoo == "torchvision":
        import torchvision

        with torch.device("meta"):
            return torchvision.models.get_model(name, weights=None).eval(), 3
    if zoo != "timm":
        raise ValueError(f"unknown zoo {zoo!r}; known: timm, torchvision")
    import timm

    try:
        with torch.device("meta"):
            model = timm.create_model(name).eval()
    except RuntimeError as error:
        if "Unknown model" in str(error):
            raise
        model = timm.create_model(name).eval().to("meta")
    except (NotImplementedError, TypeError, ValueError):
        # Some models compute tables at construction, which needs real numbers.
        model = timm.create_model(name).eval().to("meta")
    config = model.pretrained_cfg
    return model, int(config.get("input_size", (3, size, size))[0])
