"""Callbacks of training frameworks that refuse a run before its first step if it does not fit.

    transformers.Trainer(..., callbacks=[transformers_guard()])
    lightning.Trainer(callbacks=[lightning_guard()])
    accelerate_guard(accelerator, model, batch, optimizer=optimizer)

Each asks `dippm.fits` about the first batch, on the GPU of the run. If there is no answer the run
goes on with a warning; `strict=True` refuses it too. Only a framework that the script has already
imported is used.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dippm.decide.memory_fit import MemoryFit, fits
from dippm.errors import ConditionsError, DippmError, DippmWarning, DoesNotFitError
from dippm.estimate.conditions import Precision
from dippm.runs.tracking.callbacks import LIGHTNING, callback_class

_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON", "TP")
_ACCELERATE: dict[str, Precision] = {"fp16": "amp", "bf16": "amp-bf16"}
_LIGHTNING: dict[str, Precision] = {
    "16-mixed": "amp",
    "bf16-mixed": "amp-bf16",
    "16-true": "fp16",
    "bf16-true": "bf16",
    "32-true": "fp32",
}


def transformers_guard(
    sample: Any = None, *, device: Any = None, strict: bool = False, **asked: Any
) -> Any:
    """Return a `transformers.TrainerCallback` that checks the memory in `on_train_begin`.

    Precision, gradient checkpointing and optimiser are those of the trainer.

    Args:
        sample: largest batch to expect, in the form that the model takes; None repeats the first
            item of the data set: give a batch where lengths differ.
        device: the GPU, see `fits`; None is the one that the trainer uses.
        strict: whether to refuse the run also if there is no answer.
        asked: further arguments of `fits`: `mig`, `room_mb`, `context_mb`, ...

    Raises:
        FrameworkNotInstalledError: without Transformers.
    """

    class MemoryGuard(callback_class("TrainerCallback", "transformers")):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            sharded = [name for name in ("deepspeed", "fsdp") if getattr(args, name, None)]
            precision = "amp-bf16" if args.bf16 else "amp" if args.fp16 else None
            known = {
                "optimizer": given.get("optimizer"),
                "precision": precision,
                "checkpointing": bool(args.gradient_checkpointing),
                "mode": "compiled" if args.torch_compile else "eager",
            }

            def check() -> MemoryFit:
                _refuse_sharded(sharded)
                batch = sample
                if batch is None:
                    size = args.per_device_train_batch_size
                    batch = _first_batch(given["train_dataloader"], size)
                on = _gpu(args.device) if device is None else {"device": device}
                return _fits(given["model"], batch, **{**known, **on, **asked})

            _guard(check, strict=strict)

    return MemoryGuard()


def lightning_guard(
    sample: Any = None, *, model: Any = None, device: Any = None, strict: bool = False, **asked: Any
) -> Any:
    """Return a callback of PyTorch Lightning that checks the memory in `on_train_start`.

    Precision and optimiser are those of the trainer. The step is that of `forward`: what
    `training_step` does beyond it, such as the loss, is not counted.

    Args:
        sample: largest batch to expect, in the form that the model takes; None repeats the first
            item of the data set, with as many of its tensors as `forward` needs.
        model: the trained module; None is the `LightningModule`, by its `forward`.
        device: the GPU, see `fits`; None is the one that the trainer uses.
        strict: whether to refuse the run also if there is no answer.
        asked: further arguments of `fits`.

    Raises:
        FrameworkNotInstalledError: without Lightning.
    """

    class MemoryGuard(callback_class("Callback", *LIGHTNING)):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            subject = module if model is None else model
            strategy = type(trainer.strategy).__name__.upper()

            def check() -> MemoryFit:
                _refuse_sharded([name for name in _SHARDED if name in strategy])
                precision = _LIGHTNING.get(str(trainer.precision))
                if precision is None:
                    raise ConditionsError(
                        f"the precision {trainer.precision} of the trainer is not predicted",
                        "Name the closest: precision=...",
                    )
                if len(trainer.optimizers) != 1:
                    raise ConditionsError(
                        f"the run has {len(trainer.optimizers)} optimisers",
                        "A step of one alone is predicted: optimizer=..., model=...",
                    )
                batch = sample
                if batch is None:
                    loader = trainer.train_dataloader
                    batch = _taken(subject, _first_batch(loader, getattr(loader, "batch_size", 0)))
                on = _gpu(trainer.strategy.root_device) if device is None else {"device": device}
                known = {"optimizer": trainer.optimizers[0], "precision": precision}
                return _fits(subject, batch, **{**known, **on, **asked})

            _guard(check, strict=strict)

    return MemoryGuard()


def accelerate_guard(
    accelerator: Any,
    model: Any,
    sample: Any,
    *,
    optimizer: Any,
    device: Any = None,
    strict: bool = False,
    **asked: Any,
) -> MemoryFit | None:
    """Check the memory of an Accelerate training loop, before or after `prepare`.

    Args:
        accelerator: accelerator with the mixed precision and the device.
        model: the trained model.
        sample: largest batch to expect, in the form that the model takes.
        optimizer: optimiser of the loop, see `fits`.
        device: the GPU, see `fits`; None is that of the accelerator.
        strict: whether to refuse the run also if there is no answer.
        asked: further arguments of `fits`.

    Returns:
        The answer; None, after a warning, if there is none.

    Raises:
        DoesNotFitError: if the step does not fit.
        DippmError: if there is no answer, and `strict`.
    """

    def check() -> MemoryFit:
        kind = accelerator.distributed_type.value
        _refuse_sharded([name for name in _SHARDED if name in kind.upper().split("_")])
        mixed = str(accelerator.mixed_precision)
        if mixed not in ("no", *_ACCELERATE):
            raise ConditionsError(f"mixed precision {mixed} is not predicted", "precision=...")
        on = _gpu(accelerator.device) if device is None else {"device": device}
        known = {"optimizer": optimizer, "precision": _ACCELERATE.get(mixed)}
        return _fits(model, sample, **{**known, **on, **asked})

    return _guard(check, strict=strict)


def _guard(check: Callable[[], MemoryFit], *, strict: bool) -> MemoryFit | None:
    """Return the answer if it fits.

    Raises:
        DoesNotFitError: if it does not.
        DippmError: if there is no answer, and `strict`.
    """
    try:
        found = check()
        if found.fits is not None or strict:
            return found.raise_if_not()
        reason = found.absent["fits"]
    except DoesNotFitError:
        raise
    except DippmError as error:
        if strict:
            raise
        reason = f"{error.message}. {error.hint}"
    warnings.warn(
        f"whether the run fits was not checked: {reason}", category=DippmWarning, stacklevel=3
    )
    return None


def _refuse_sharded(kinds: list[str]) -> None:
    """Refuse runs whose parameters, gradients or states are sharded over several GPUs.

    Raises:
        ConditionsError: if they are sharded, naming how.
    """
    if kinds:
        raise ConditionsError(
            f"the run is spread over GPUs by {', '.join(kinds)}, and one GPU is predicted",
            "dippm.parallelize estimates runs on several.",
        )


def _gpu(device: Any) -> dict[str, Any]:
    """Return device and slice by the catalogue's names.

    Raises:
        ConditionsError: if the run uses no GPU.
    """
    from dippm.measure.provenance import machine

    if device.type != "cuda":
        raise ConditionsError(
            f"the run is on the device {device.type}", 'Name the GPU to ask about: device="A100".'
        )
    here = machine(device)
    return {"device": here["device"], "mig": here["mig_profile"]}


def _fits(model: Any, sample: Any, **asked: Any) -> MemoryFit:
    with _own_forward(model):
        return fits(model, sample, **asked)


@contextlib.contextmanager
def _own_forward(model: Any) -> Iterator[None]:
    """Restore the `forward` that Accelerate wrapped in autocast: `precision` states it."""
    from dippm.model.frontends.torch.prepare import unwrapped

    held = vars(unwrapped(model))
    wrapper, own = held.get("forward"), held.get("_original_forward")
    if wrapper is None or own is None:
        yield
        return
    held["forward"] = own
    try:
        yield
    finally:
        held["forward"] = wrapper


def _first_batch(loader: Any, batch: int | None) -> Any:
    """Return the first item of a data set as a batch, without using loader or random numbers.

    Raises:
        ConditionsError: if the loader has no indexable data set, or its items cannot be read.
    """
    import torch

    hint = "Give a batch as the model takes it: sample=..."
    dataset: Any = getattr(loader, "dataset", None)
    collate = getattr(loader, "collate_fn", None)
    if not hasattr(dataset, "__getitem__") or collate is None or not batch:
        raise ConditionsError("the data set has no first item to ask about", hint)
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            return collate([dataset[0]] * batch)
    except Exception as error:  # code of the user
        words = f"{type(error).__name__}: {str(error)[:200]}"
        raise ConditionsError(f"the data set's first item gave no batch: {words}", hint) from error
    finally:
        random.setstate(state)


def _taken(module: Any, batch: Any) -> Any:
    """Return the tensors of a batch that `forward` needs, without labels."""
    import inspect

    from dippm.model.frontends.torch.signature import forward_parameters

    parameters = forward_parameters(module)
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if isinstance(batch, Mapping):
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        found = {name: part for name, part in batch.items() if name in names}
        return batch if takes_all or not found else found
    if isinstance(batch, tuple | list) and len(batch) > len(needed) > 0:
        return tuple(batch[: len(needed)])
    return batch
