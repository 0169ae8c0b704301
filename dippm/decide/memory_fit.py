"""`fits`: whether a PyTorch module fits a GPU, in one line before its first step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, Unpack

from dippm.api import load
from dippm.base.answer import Answer
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.base.progress import stage
from dippm.base.written import is_finite
from dippm.errors import (
    ConditionsError,
    DoesNotFitError,
    InputShapeError,
    UnknownFormatError,
    shortened,
)
from dippm.estimate.conditions import (
    MAX_BATCH,
    OPTIMIZERS,
    Conditions,
    HowOptions,
    Optimizer,
    Precision,
    check_options,
)
from dippm.estimate.largest_batch import largest_batch_at
from dippm.estimate.models.targets import Interval, MemoryParts
from dippm.estimate.options import CheckpointLike
from dippm.estimate.place import DEFAULT_DEVICE, DeviceLike, MigLike
from dippm.estimate.prediction import Prediction
from dippm.model.convert import read_graph, source_name
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S
from dippm.model.graph.float_type import in_float32

if TYPE_CHECKING:
    from dippm.model.frontends.torch.sample import Sample
    from dippm.model.graph import ModelGraph

VALUES = ("fits", "batch", "peak_mb", "bound_mb", "room_mb", "headroom_mb", "largest_batch")
"""Keys of the row of an answer, and of its document."""


@dataclass(frozen=True, slots=True)
class MemoryFit(Answer):
    """Whether a model fits a GPU, with its peak memory; `dippm.fits` makes it.

    Its truth value is whether the 99 % bound of the memory fits: `if dippm.fits(model, x):`.

    Attributes:
        prediction: the full prediction, with latency and energy.
        batch: number of samples in the example inputs.
        room_mb: available memory in MiB.
        largest_batch: largest batch that fits at 99 %, of those that can be asked about (up to
            1,000,000); None if not even 1 does, or, with the reason in `absent`, if it is not
            known.
        absent: reason for each absent quantity.
        warnings: warnings of the prediction, and assumptions about module and optimiser.
    """

    prediction: Prediction = field(repr=False)
    batch: int
    room_mb: float
    largest_batch: int | None
    absent: dict[str, str]
    warnings: tuple[str, ...] = field(repr=False)

    @property
    def bound_mb(self) -> float | None:
        """Upper bound of the peak in MiB at 99 % confidence; None like `peak_mb`."""
        return self.prediction.memory_bound_mb

    @property
    def fits(self) -> bool | None:
        """Whether the 99 % bound fits; None, with the reason in `absent`, if not known."""
        return None if self.bound_mb is None else self.bound_mb <= self.room_mb

    @property
    def peak_mb(self) -> float | None:
        """Predicted peak in MiB as `nvidia-smi` shows it; None, with the reason in `absent`."""
        return self.prediction.memory_mb

    @property
    def interval(self) -> Interval | None:
        """Interval of the peak in MiB."""
        return self.prediction.intervals.get("memory_mb")

    @property
    def parts(self) -> MemoryParts | None:
        """Parts of the peak in MiB."""
        return self.prediction.memory_parts

    @property
    def headroom_mb(self) -> float | None:
        """Free memory at the 99 % bound in MiB; negative if the model does not fit."""
        return None if self.bound_mb is None else self.room_mb - self.bound_mb

    def __bool__(self) -> bool:
        return self.fits is True

    def raise_if_not(self) -> MemoryFit:
        """Return the answer if the model fits.

        Raises:
            DoesNotFitError: if it does not fit, or that is not known; the hint names what would.
        """
        if self.fits:
            return self
        c = self.prediction.conditions
        place = f"{c.mig} of {c.device.name}" if c.mig else c.device.name
        name = shortened(self.prediction.provenance.source)
        what = f"a training step of {name} ({c.optimizer})" if c.phase == "train" else name
        what = f"{what} at batch {self.batch} and {c.precision}"
        if self.bound_mb is None:
            reason = self.prediction.absent["fits"]
            raise DoesNotFitError(
                f"whether {what} fits {place} is not known: {reason}",
                "Name a device and conditions whose memory is predicted (`dippm models`).",
            )
        raise DoesNotFitError(
            f"{what} does not fit {place}: it needs up to {show(self.bound_mb)} MB at 99 %, "
            f"expected {show(self.peak_mb or self.bound_mb)}, of {show(self.room_mb)}",
            self._hint(),
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the answer as a single row."""
        values = {name: getattr(self, name) for name in VALUES}
        return [{**values, "absent": dict(self.absent), "warnings": list(self.warnings)}]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {**self.rows()[0], "prediction": self.prediction.to_dict()}

    def __str__(self) -> str:
        shown = replace(self.prediction, warnings=self.warnings)
        return f"{shown}\n {self.summary}"

    @property
    def summary(self) -> str:
        """Whether the model fits, and the largest batch that does, in one printable line."""
        if self.bound_mb is None:
            return printable(f"not known whether it fits: {self.absent['fits']}")
        left = self.room_mb - self.bound_mb
        words = f"fits, {show(left)} MB to spare" if self else f"does not fit, {show(-left)} short"
        words = f"{words} at the 99 % bound of {show(self.bound_mb)} MB, of {show(self.room_mb)}"
        if "largest_batch" in self.absent:
            return printable(f"{words}; largest batch: {self.absent['largest_batch']}")
        largest = "none: not even 1" if self.largest_batch is None else f"{self.largest_batch:,}"
        is_end = self.largest_batch == MAX_BATCH
        return f"{words}; largest batch {largest}{' or more' * is_end}"

    def _repr_html_(self) -> str:
        shown = replace(self.prediction, warnings=self.warnings)
        return f"<p><b>{escape(self.summary)}</b></p>{shown._repr_html_()}"

    def _hint(self) -> str:
        if self.largest_batch:
            return f"The largest batch that fits is {self.largest_batch:,}."
        c = self.prediction.conditions
        ways = ["take a GPU with more memory (`dippm choose`)"]
        if c.phase == "train" and not c.checkpointing:
            ways.insert(0, "checkpoint activations (checkpointing=True)")
        if "largest_batch" in self.absent:
            ways.insert(0, "take a smaller batch")
        advice = ", or ".join(ways)
        return f"{advice[0].upper()}{advice[1:]}."


def fits(
    model: Any,
    sample: Any,
    *,
    optimizer: Any = None,
    device: DeviceLike = DEFAULT_DEVICE,
    mig: MigLike = None,
    precision: Precision | None = None,
    batch_axis: int | None = 0,
    room_mb: float | None = None,
    checkpoint: CheckpointLike = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
    **options: Unpack[HowOptions],
) -> MemoryFit:
    """Predict whether a module fits a GPU without running it: before `.cuda()`, on any machine.

    Module and inputs are not moved, copied or computed with: their sizes and types are read, and
    `forward` is traced on tensors without data.

    Args:
        model: a `torch.nn.Module` with its parameters on any device, also meta and fake ones.
        sample: example inputs of `forward`: a tensor, a tuple or list of arguments, or a mapping
            by name. Tensors may be nested, and on any device.
        optimizer: optimiser of a training step: an instance of `torch.optim.SGD`, `Adam` or
            `AdamW`, one of these classes, or "sgd", "adam", "adamw". None stands for inference.
        device: the GPU, as `predict` takes it.
        mig: a MIG slice of the GPU.
        precision: see `Conditions`; None takes that of the parameters.
        batch_axis: batch axis of every tensor; None without a batch.
        room_mb: available memory in MiB, if others use the GPU too; None is all of it.
        checkpoint: checkpoint of the predictor, see `predict`.
        timeout_s: see `predict`.
        memory_limit_mb: see `predict`.
        **options: see `dippm.Options`.

    Raises:
        InputShapeError: if the sample does not fit `forward`.
        ModelFileError: if the module cannot become a graph.
        UnknownNameError: if device, slice or checkpoint is not known.
        ConditionsError: if the optimiser or the precision cannot be predicted.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UnknownFormatError(
            f"a {type(model).__module__}.{type(model).__qualname__} is not a torch.nn.Module",
            "Give a module; for files and names there is dippm.predict(...).fits.",
        )
    from dippm.model.frontends.torch.sample import sample_of

    if room_mb is not None and not (is_finite(room_mb) and room_mb > 0):
        raise ConditionsError(f"room_mb is {room_mb!r}", "Give memory in MiB, above 0.")
    held = sample_of(model, sample, batch_axis=batch_axis)
    update, remarks = _optimizer_of(optimizer)
    if update is not None:
        remarks += _frozen(model)
    check_options(options, HowOptions)
    asked = Conditions.of(
        **options,
        device=device,
        mig=mig,
        batch=held.batch,
        precision=precision or _precision_of(model),
        phase="inference" if update is None else "train",
        optimizer="sgd" if update is None else update,
    )
    loaded = load(checkpoint, device=asked.device, phase=asked.phase)
    name = source_name(model)
    limits: dict[str, Any] = {"timeout_s": timeout_s, "memory_limit_mb": memory_limit_mb}
    with stage(f"converting {name}"):
        graph = _graph_of(model, held, limits)
    if not graph.batch_is_symbolic:
        asked = asked.replace(batch=graph.batch)
    prediction = loaded.predict_at(graph, asked, name=name)
    absent = {k: v for k, v in prediction.absent.items() if k in ("memory_mb", "fits")}
    room = float(prediction.capacity_mb if room_mb is None else room_mb)
    largest = None
    if prediction.memory_bound_mb is None:
        absent["largest_batch"] = prediction.absent["fits"]
    elif not graph.batch_is_symbolic:
        absent["largest_batch"] = "not known: the module's work does not scale with a batch"
    else:
        predictor = loaded.checkpoint_for(asked.device, asked.phase).predictor
        largest = largest_batch_at(predictor, in_float32(graph), asked, room)
    warnings = (*remarks, *prediction.warnings)
    return MemoryFit(prediction, held.batch, room, largest, absent, warnings)


def _graph_of(model: Any, held: Sample, limits: dict[str, Any]) -> ModelGraph:
    """Return the graph at a marker batch, or at the exact sizes if the module needs them.

    Raises:
        ModelFileError: as `read_graph` does, with an error about the given sizes if both fail.
        InputShapeError: if `forward` refuses the sample.
    """
    try:
        graph = read_graph(model, input=held.inputs, **limits)
        if graph.batch_is_symbolic or graph.batch == held.batch:
            return graph
    except InputShapeError:  # the module accepts only one batch
        pass
    from dippm.model.frontends.torch.sample import forms

    try:
        return read_graph(model, input=held.whole, **limits)
    except InputShapeError as error:
        before, sizes, why = error.message.partition(f" input {held.whole}: ")
        if not sizes:
            raise
        # The sizes stand in it as `predict` takes them, and the user gave tensors.
        raise InputShapeError(f"{before} the sample: {why}", forms(model)) from error


def _optimizer_of(optimizer: Any) -> tuple[Optimizer | None, tuple[str, ...]]:
    """Return the modelled optimiser for a given one, and remarks on what differs.

    Raises:
        ConditionsError: if there is none.
    """
    if optimizer is None or isinstance(optimizer, str):
        return optimizer, ()  # type: ignore[return-value]  # `Conditions` checks the name
    if not isinstance(optimizer, type):
        optimizer = _inner(optimizer)
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    known = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
    found = known.get(kind.__name__) if kind.__module__.startswith("torch.optim") else None
    if found is None:
        raise ConditionsError(
            f"the memory of the optimiser {shortened(kind.__qualname__)} is not modelled",
            f"Known: {', '.join(OPTIMIZERS)}; give optimizer=NAME of one that stores as much.",
        )
    settings = getattr(optimizer, "defaults", {}) if not isinstance(optimizer, type) else {}
    if settings.get("amsgrad"):
        raise ConditionsError(
            "amsgrad keeps one more tensor for each parameter, which is not modelled",
            f"Use optimizer={found!r}: it needs less memory, by the size of the weights.",
        )
    if found == "sgd" and settings and not settings.get("momentum"):
        return "sgd", ("SGD was counted with momentum, and this one has none: it needs less",)
    return found, ()  # type: ignore[return-value]


def _inner(optimizer: Any) -> Any:
    """Unwrap an optimiser of PyTorch from the wrappers of Accelerate and Lightning."""
    inner = getattr(optimizer, "optimizer", None)
    if inner is None or type(optimizer).__module__.startswith("torch."):
        return optimizer
    return _inner(inner)


def _frozen(model: Any) -> tuple[str, ...]:
    """Return a remark if parameters without a gradient were counted as if they had one."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    frozen, total = sum(n for n, grad in sizes if not grad), sum(n for n, _ in sizes)
    if not frozen:
        return ()
    return (
        f"{frozen:,} of {total:,} parameters are frozen, and were counted with gradients and "
        "states of the optimiser: it needs less",
    )


def _precision_of(model: Any) -> Precision:
    """Return the precision of the parameters.

    Raises:
        ConditionsError: if it cannot be predicted.
    """
    import torch

    held = {p.dtype for p in model.parameters() if p.is_floating_point()}
    names: dict[Any, Precision] = {
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
    }
    if not held or torch.float32 in held:
        return "fp32"
    for dtype in held:
        if dtype in names:
            return names[dtype]
    kinds = ", ".join(sorted(str(dtype) for dtype in held))
    raise ConditionsError(
        f"the parameters are {kinds}, whose arithmetic is not predicted",
        "Name the precision that they will have on the GPU: precision=...",
    )
