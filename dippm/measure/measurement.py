"""`Measurement`: one measured model and its table; `measure_model` creates it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dippm import __version__
from dippm.base.files import expand_home
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.base.progress import tell
from dippm.errors import ConditionsError, DippmError, MeasurementError, OutOfMemoryError
from dippm.estimate.conditions import MAX_BATCH, MODES, PRECISIONS, spelt
from dippm.measure import sessions
from dippm.measure.columns import SCHEMA_VERSION
from dippm.measure.kernels import TracedKernel
from dippm.measure.protocol import PHASES, Regime, Settings
from dippm.measure.state import LoadWatch, MachineLoad
from dippm.model.frontends import InputSpec, registry

if TYPE_CHECKING:
    from dippm.measure.run import Bench
    from dippm.model.frontends.registry import Entry

NO_MEMORY = ("out of memory", "can't allocate memory")
"""Torch's messages for exhausted memory of a device or of the host."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measured cost of a model on this machine.

    Attributes:
        source: file name, specification or class of the model.
        batch: samples per step.
        regime: precision, mode, phase, layout.
        settings: measuring protocol.
        columns: values by column, see `dippm.measure.columns`; None where absent.
        absent: reason by column.
        kernels: kernels of one profiled step; empty if they are absent.
        load: load of the machine meanwhile; None if it was not watched.
    """

    source: str
    batch: int
    regime: Regime
    settings: Settings
    columns: Mapping[str, Any] = field(repr=False)
    absent: Mapping[str, str] = field(repr=False)
    kernels: tuple[TracedKernel, ...] = field(default=(), repr=False)
    load: MachineLoad | None = None

    @property
    def latency_ms(self) -> float:
        """Mean wall time of the timed steps, in ms."""
        return float(self.columns["latency_ms"])

    @property
    def memory_mb(self) -> float | None:
        """Memory in use at the peak, in MiB."""
        return _number(self.columns["memory_mb"])

    @property
    def energy_j(self) -> float | None:
        """Gross energy of one step, in J."""
        return _number(self.columns["energy_j"])

    @property
    def power_w(self) -> float | None:
        """Mean power in the energy window, in W."""
        return _number(self.columns["power_w"])

    @property
    def device(self) -> str:
        """Catalogue name of the GPU, or the CPU's model name."""
        return str(self.columns["device"])

    @property
    def title(self) -> str:
        """Model and conditions in one printable line."""
        r = self.regime
        layout = ["channels last"] if r.channels_last else []
        conditions = [r.precision, r.mode, *layout, r.phase]
        return printable(" · ".join([self.source, f"batch {self.batch}", self.device, *conditions]))

    def __str__(self) -> str:
        lines = [" " + self.title, f"{'':14}{'measured':<14}"]
        lines += [f" {label:<13}{value:<14}{rest}".rstrip() for label, value, rest in self._rows()]
        if self.load is not None:
            lines.append(f" {'machine':<13}{self.load.words}")
        lines += [f" ! {warning}" for warning in self.warnings]
        return "\n".join([*lines, " " + self.footer])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the reliability of the numbers."""
        if self.load is None or not self.load.is_busy:
            return ()
        return (
            f"the machine was busy while this was measured ({self.load.words}): times are longer "
            "than on an idle one; measure again when nothing else runs",
        )

    @property
    def footer(self) -> str:
        """Protocol and software in one line."""
        c = self.columns
        steps = f"{c['warm_up_steps']} warm-up and {c['timed_steps']} timed steps"
        return " · ".join([steps, c["framework"], c["measured_at"]])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "source": self.source,
            "batch": self.batch,
            "regime": asdict(self.regime),
            "settings": asdict(self.settings),
            "measured": dict(self.columns),
            "absent": dict(self.absent),
            "load": self.load and self.load.to_dict(),
            "warnings": list(self.warnings),
        }

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        c = self.columns
        spread = f"median {_show(c['latency_median_ms'])}, p95 {_show(c['latency_p95_ms'])}"
        yield "latency", f"{_show(c['latency_ms'])} ms", f"{spread}, sd {_show(c['latency_sd_ms'])}"
        yield self._row("memory", "memory_mb", "MB", c["memory_method"])
        if c["memory_allocated_mb"] is not None:
            kept = f"blocks {_show(c['memory_reserved_mb'])} MB"
            yield "tensors", f"{_show(c['memory_allocated_mb'])} MB", kept
        net = f"net of idle {_show(c['energy_net_j'])} J, {c['energy_method']}"
        yield self._row("energy", "energy_j", "J", net)
        yield self._row("power", "power_w", "W", f"idle {_show(c['idle_power_w'])} W")

    def _row(self, label: str, column: str, unit: str, rest: str) -> tuple[str, str, str]:
        value = self.columns[column]
        if value is None:
            return label, f"absent: {printable(self.absent.get(column, 'no reason given'))}", ""
        return label, f"{_show(value)} {unit}", rest


def measure_model(
    source: Any,
    *,
    input: Any = None,
    batch: int = 1,
    device: str | None = None,
    regime: Regime | None = None,
    settings: Settings | None = None,
    trust: bool = False,
) -> Measurement:
    """Run a model on this machine and measure it.

    Args:
        source: a module, a model file, or a name such as "timm:resnet50". Files of other
            frameworks run unchanged in their own, on the CPU.
        input: sizes without the batch; None takes the sizes that the model states.
        batch: samples per step.
        device: "cuda:0", "cpu", ...; None is the first GPU, or the CPU without one.
        regime: precision, mode, phase and layout; float32 inference by default.
        settings: number of steps and lengths of windows.
        trust: allow a file that can run code when it is read.

    Raises:
        ModelFileError: if the model cannot be read or the inputs do not fit.
        ConditionsError: if the machine has no such device or cannot run the regime.
        FrameworkNotInstalledError: if torch is missing, which times the steps of every framework.
    """
    registry.check_torch("measuring", extra="measure")
    from dippm.measure.run import Bench
    from dippm.measure.subject import device_of

    regime, settings = regime or Regime(), settings or Settings()
    regime = _normalise_regime(batch, regime)
    spec, source = InputSpec.parse(input), expand_home(source)
    tell("looking at the counters")
    bench = Bench(device_of(device), settings)
    entry, watch = sessions.entry_of(source), LoadWatch()
    try:
        if entry is None:
            name, columns = _measure_torch(
                bench, source, spec, batch=batch, regime=regime, trust=trust
            )
        else:
            name, columns = _measure_session(
                bench, entry, Path(source), spec, batch=batch, regime=regime, trust=trust
            )
    except DippmError:
        raise
    except Exception as error:  # any error of the model itself
        raise _explain_error(error, source, batch) from error
    finally:
        bench.close()
    absent, kernels = columns.pop("absent"), map(TracedKernel.of, columns.pop("kernels"))
    columns = {**_identity(), **columns}
    return Measurement(
        name, batch, regime, settings, columns, absent, tuple(kernels), load=watch.load()
    )


def _measure_torch(
    bench: Bench, source: Any, spec: InputSpec, *, batch: int, regime: Regime, trust: bool
) -> tuple[str, dict[str, Any]]:
    from dippm.measure.subject import load_subject

    before, start = bench.memory_mb(), time.monotonic()
    tell("loading the model")
    subject = load_subject(source, spec, batch=batch, device=bench.device, trust=trust)
    build_s = time.monotonic() - start
    columns = bench.measure(subject.module, subject.inputs, regime, memory_before_mb=before)
    return subject.name, {**columns, "build_s": build_s}


def _measure_session(
    bench: Bench,
    entry: Entry,
    path: Path,
    spec: InputSpec,
    *,
    batch: int,
    regime: Regime,
    trust: bool,
) -> tuple[str, dict[str, Any]]:
    from dippm.measure.run import Wanted, as_row

    before, start = bench.memory_mb(), time.monotonic()
    on_cpu = bench.device.type == "cpu"
    tell("loading the model")
    session = sessions.open_session(
        entry, path, spec, batch=batch, regime=regime, on_cpu=on_cpu, trust=trust
    )
    build_s = time.monotonic() - start
    columns = bench.measure_step(session.run, wanted=Wanted(kernels=False))
    own = {"framework": session.framework, "memory_before_mb": before, "build_s": build_s}
    return path.name, as_row({**columns, **own})


def _normalise_regime(batch: int, regime: Regime) -> Regime:
    """Return the regime with canonical names."""
    if not 1 <= batch <= MAX_BATCH:
        raise ConditionsError(f"batch is {batch}", f"Give a batch size from 1 to {MAX_BATCH:,}.")
    known = {"precision": PRECISIONS, "mode": MODES, "phase": PHASES}
    names = {kind: spelt(kind, getattr(regime, kind), those) for kind, those in known.items()}
    return replace(regime, **cast(Any, names))


def _identity() -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "collector_version": __version__,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _explain_error(error: Exception, source: Any, batch: int) -> DippmError:
    """Return our error for a failure inside the framework."""
    words = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    name = source if isinstance(source, str | Path) else type(source).__name__
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY):
        return OutOfMemoryError(
            f"{name} does not fit at batch {batch}: {words}",
            "Give a smaller batch=...; `dippm predict` says beforehand what fits.",
        )
    return MeasurementError(
        f"{name} failed while it ran: {words}",
        "Check input=..., and that the model runs by itself.",
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _show(value: float | None) -> str:
    return "–" if value is None else show(value)
