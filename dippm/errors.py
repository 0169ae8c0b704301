"""Everything that DIPPM raises.

    DippmError
    ├── ModelFileError                 the model could not become a graph
    │   ├── UnknownFormatError         lists the known formats
    │   ├── FrameworkNotInstalledError also ImportError; names the extra
    │   ├── UnsafeModelError           names what would run; ONNX or trust=True
    │   ├── InputShapeError            got / expected
    │   ├── UnknownArchitectureError   a configuration that is none of a known language model
    │   └── ConversionError            exporter's message as __cause__; also the worker's limits
    ├── ConditionsError                batch, precision or mode out of range
    │   ├── UnsupportedPrecisionError  the device has no hardware for it; names what it has
    │   └── DoesNotFitError            it needs more memory than there is; names what would fit
    ├── ConstraintError                a limit that nothing can hold to, or one that lacks its means
    │   └── NothingFeasibleError       no GPU or slice is a choice; keeps every row
    ├── BudgetError                    a budget, its file or its baseline is wrong, or is exceeded
    ├── CarbonError                    intensities of regions are wrong, or of none that is known
    ├── PipelineError                  stages, or their file, make no pipeline
    ├── PriceError                     prices are wrong, or of a device that is not known
    ├── HostError                      a launch time of a host that is none
    ├── DeviceError                    a device, or its file, is wrong or lacks a figure
    ├── UnknownNameError               device, checkpoint, framework: "did you mean ...?"
    │   └── UnknownOptionError         a verb has no such option; also TypeError
    ├── CheckpointError                missing, checksum, graph or feature version mismatch
    ├── MeasurementError               the run failed, a counter or the device was lost
    │   └── OutOfMemoryError           the device's memory does not hold it
    ├── CollocationError               devices cannot be shared as asked; undoing it failed
    │   ├── DevicePermissionError      the driver refuses it to this user
    │   └── DeviceBusyError            a process of someone else is on the device
    ├── RunError                       a run's folder or record is none, or is damaged
    │   ├── StoreError                 the store of runs cannot be reached, read or written
    │   ├── ListenerError              a listener cannot work here, or a run has nothing of it
    │   └── ProfilerError              a profiler is missing, or its run is no measurement
    ├── PlanError                      a plan of runs, or a row of it, is wrong, or is in use
    └── UnexpectedError                a fault of ours; the command line names a report file
    DippmWarning ── UnseenOperatorWarning · OutOfRangeWarning · DeviceMismatchWarning
                 ├─ SourceDroppedWarning · PluginWarning · CollocationWarning · SandboxWarning
                 └─ UntestedVersionWarning

Each error says what happened, where, and in `hint` the next step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dippm.base.printable import legible, printable

LONGEST_NAME = 80


class DippmError(Exception):
    """Base of all errors of DIPPM.

    Attributes:
        message: what happened and where, with names from outside as they are; `str` escapes them
            and shortens those that nobody would write.
        hint: the next step for the user; empty if there is none.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        parts = (legible(part) for part in (self.message, self.hint) if part)
        return printable("\n".join(parts), keep="\n")

    def to_dict(self) -> dict[str, str]:
        """Return what `--json` prints: names as they are, long ones shortened."""
        message, hint = legible(self.message), legible(self.hint)
        return {"type": type(self).__name__, "message": message, "hint": hint}


class ModelFileError(DippmError, ValueError):
    """The model could not become a graph."""


class ModelNotFoundError(ModelFileError, FileNotFoundError):
    """The path does not exist."""


class UnknownFormatError(ModelFileError):
    """The file is none of the known formats."""


class FrameworkNotInstalledError(ModelFileError, ImportError):
    """The framework that reads this file is not installed."""


class UnsafeModelError(ModelFileError):
    """Loading the file could run code, and trust was not given."""


class InputShapeError(ModelFileError):
    """The requested input does not fit the model."""


class UnknownArchitectureError(ModelFileError):
    """The configuration describes no language model that is known here."""


class ConversionError(ModelFileError, RuntimeError):
    """The converter failed, crashed, or met a limit of its worker."""


class ConditionsError(DippmError, ValueError):
    """Batch size, precision or execution mode is not one that can be predicted."""


class UnsupportedPrecisionError(ConditionsError):
    """The device, or the runtime on it, does not support this precision."""


class ConstraintError(DippmError, ValueError):
    """A limit that nothing can hold to, or a wish that lacks what it needs."""


class NothingFeasibleError(ConstraintError):
    """No GPU or slice holds to the limits, or none has what they are ranked by.

    Attributes:
        choice: the `Choice` with every row and its reason: nothing is lost.
    """

    def __init__(self, message: str, hint: str, choice: Any) -> None:
        super().__init__(message, hint)
        self.choice = choice


class PipelineError(DippmError, ValueError):
    """A pipeline of models, or its file, is wrong: a stage, an input, a size or a repetition."""


class PriceError(DippmError, ValueError):
    """A file of prices is wrong, or prices a device or slice that is not known."""


class CarbonError(DippmError, ValueError):
    """Intensities of regions, or their file, are wrong, or of a region that is not known."""


class BudgetError(DippmError, ValueError):
    """A budget, its file or its baseline is wrong, or a model costs more than it may."""


class DoesNotFitError(ConditionsError):
    """The memory of the devices does not hold a model as it was asked for."""


class HostError(DippmError, ValueError):
    """The launch time of a host is no number, or none that a machine has."""


class DeviceError(DippmError, ValueError):
    """A device that the user gave, or its file, is wrong, or lacks a figure that is needed."""


def shortened(name: str) -> str:
    """Return a name as messages show it: the start of one that nobody would write."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}... ({len(name):,} long)"


class UnknownNameError(DippmError, ValueError):
    """No device, checkpoint, framework or encoder has this name."""

    @classmethod
    def of(
        cls, kind: str, name: str, known: Iterable[str], hint: str = "", meant: str = ""
    ) -> UnknownNameError:
        """Return the error for an unknown name, with the closest known names.

        Args:
            kind: kind of thing that has the name.
            name: the name as given.
            known: names that exist.
            hint: next step; the known names if empty.
            meant: known name of the same thing, if other tools call it by the given one.
        """
        from difflib import get_close_matches

        names, name = sorted(known), shortened(name)
        folded = {known_name.casefold(): known_name for known_name in names}
        close = [folded[c] for c in get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
        if meant in names:
            close = [meant]
        guess = f"Did you mean {' or '.join(close)}? " if close else ""
        return cls(f"unknown {kind} {name!r}", guess + (hint or f"Known: {', '.join(names)}"))


class UnknownOptionError(UnknownNameError, TypeError):
    """No option of a verb has this name."""


class CheckpointError(DippmError, ValueError):
    """The checkpoint is missing, damaged, or made for another graph or feature version."""


class MeasurementError(DippmError, RuntimeError):
    """The model failed while it was measured, or the device was lost."""


class OutOfMemoryError(MeasurementError):
    """The memory of the device does not hold the model at this batch."""


class CollocationError(DippmError, RuntimeError):
    """Devices cannot be shared as asked: the mode, the room, a server or the driver forbids it."""


class DevicePermissionError(CollocationError, PermissionError):
    """The driver refuses to change a device for this user."""


class DeviceBusyError(CollocationError):
    """A process of someone else uses the device, so it is left as it is."""


class RunError(DippmError):
    """The record of a run is missing, damaged or no such record."""


class StoreError(RunError):
    """The store of runs cannot be reached, read or written."""


class ListenerError(RunError):
    """A listener cannot work on this machine, or a run has no series of it."""


class ProfilerError(RunError):
    """A profiler is not installed or not allowed, or a profiled run was taken for a measurement."""


class PlanError(DippmError, ValueError):
    """A plan of runs, or a row of it, makes no sense, or another process carries it out."""


class UnexpectedError(DippmError, RuntimeError):
    """Something failed that nobody foresaw; raised by the command line only."""


class DippmWarning(UserWarning):
    """Base of all warnings of DIPPM."""


class UnseenOperatorWarning(DippmWarning):
    """The model has operators that the predictor never saw."""


class OutOfRangeWarning(DippmWarning):
    """The request lies outside of what the predictor was trained on."""


class DeviceMismatchWarning(DippmWarning):
    """The prediction is for a device that was never measured."""


class CollocationWarning(DippmWarning):
    """Someone else changed a shared device meanwhile, or something of ours is left on it."""


class PluginWarning(DippmWarning):
    """A frontend of another distribution is broken; files that others read are not harmed."""


class SandboxWarning(DippmWarning):
    """This machine refuses a part of the sandbox in which model files are converted."""


class UntestedVersionWarning(DippmWarning):
    """A library is used as it is installed, of a version that DIPPM was not tested with."""


class SourceDroppedWarning(DippmWarning):
    """A counter kept failing and is no longer read; its values are absent from here on."""
