"""The columns of a measured row, with meaning, unit and type.

A row is a flat mapping from column to value. A missing value is None, and `absent` has the reason
for each missing measured column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 3
Kind = Literal["text", "texts", "integer", "integers", "real", "reals", "flag", "json"]
Status = Literal["ok", "oom", "timeout", "crash", "error", "skipped"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name (with the unit), type and meaning."""

    name: str
    kind: Kind
    about: str


IDENTITY = (
    Column("row_id", "text", "hash of configuration, repeat and campaign"),
    Column("configuration_id", "text", "hash of everything that was asked for, repeats share it"),
    Column("campaign", "text", "one start of the collector"),
    Column("schema_version", "integer", "of these columns"),
    Column("collector_version", "text", "version of DIPPM that measured"),
    Column("measured_at", "text", "UTC, ISO 8601"),
)
CONFIGURATION = (
    Column("kind", "text", '"model" or "operator"'),
    Column("family", "text", "of `dataset.families`, or class of operator"),
    Column("model", "text", "name of architecture and input sizes; graphs are joined by it"),
    Column("architecture", "text", "name of the architecture without input sizes"),
    Column("parameters", "json", "arguments of the family's `build`"),
    Column("sizes", "json", "sizes of one sample"),
    Column("phase", "text", '"inference" or "train" (forward, backward, optimiser step)'),
    Column("batch", "integer", "samples per step"),
    Column("precision", "text", "as in `dippm.Conditions`"),
    Column("mode", "text", '"eager" or "compiled"'),
    Column("channels_last", "flag", "memory layout of images"),
    Column("repeat", "integer", "0, or the number of the repetition for the noise floor"),
)
OUTCOME = (
    Column("status", "text", "ok, oom, timeout, crash, error or skipped"),
    Column("reason", "text", "why there is no measurement; null if status is ok"),
    Column("absent", "json", "reason by column, for measured columns that are null"),
)
LATENCY = (
    Column("timer", "text", '"wall": synchronised step, input on the device'),
    Column("latency_ms", "real", "mean wall time of the timed steps"),
    Column("latency_median_ms", "real", "median"),
    Column("latency_sd_ms", "real", "standard deviation"),
    Column("latency_min_ms", "real", "shortest"),
    Column("latency_p95_ms", "real", "95th percentile"),
    Column("latencies_ms", "reals", "every timed step, in order"),
    Column("event_ms", "real", "mean span between CUDA events around a step"),
    Column("event_median_ms", "real", "median of them"),
    Column("events_ms", "reals", "every span, in order"),
    Column("queued_ms", "real", "mean time of steps queued without waiting: launches overlap work"),
    Column("kernel_ms", "real", "sum of the kernels of one profiled step; operators on a CPU"),
    Column("kernel_launches", "integer", "rows of its kernel table"),
    Column("kernel_method", "text", "what the profiler saw"),
    Column("cold_latency_ms", "real", "operators: latency_ms with caches emptied before each step"),
    Column("cold_event_ms", "real", "event_ms likewise"),
    Column("cold_kernel_ms", "real", "kernel_ms likewise"),
    Column("first_call_ms", "real", "the first call, before the warm-up: loads, compiles"),
    Column("warm_up_steps", "integer", "untimed steps before"),
    Column("timed_steps", "integer", "timed steps"),
    Column("warm_up_settled", "flag", "whether medians of the last two windows agreed within 1 %"),
)
ENERGY = (
    Column("energy_j", "real", "of one step, gross"),
    Column("energy_net_j", "real", "of one step above idle"),
    Column("power_w", "real", "mean board power during the energy window"),
    Column("idle_power_w", "real", "mean board power just before, the context alive"),
    Column("idle_power_after_w", "real", "just after; the net energy is above the mean of both"),
    Column("energy_window_s", "real", "length of the window"),
    Column("energy_window_error_s", "real", "how far that length may be off at most"),
    Column("energy_steps", "integer", "steps in the window"),
    Column("energy_method", "text", "counter that the energy comes from"),
    Column("energy_resolution_s", "real", "update period of that counter, as seen"),
    Column("energy_sm_clock_mhz", "real", "mean over the energy window"),
    Column("energy_memory_clock_mhz", "real", "mean over it"),
    Column("energy_temperature_c", "real", "at its end"),
    Column("energy_throttle_reasons", "json", "names that were active in it, empty if none"),
    Column("energy_read_ms", "real", "what reading that counter once costs; no step waits for it"),
)
MEMORY = (
    Column("memory_mb", "real", "needed at the peak: reserved blocks and context; RSS on a CPU"),
    Column("memory_method", "text", "where `memory_mb` comes from"),
    Column("memory_before_mb", "real", "the same reading before the model was built"),
    Column("memory_allocated_mb", "real", "peak of the allocator: tensors"),
    Column("memory_reserved_mb", "real", "peak of the allocator: cached blocks"),
    Column("memory_context_mb", "real", "of the fresh process on the GPU, before any model"),
    Column("memory_nvml_mb", "real", "in use on the device after the run; drifts, see context.py"),
    Column("memory_driver_mb", "real", "what the driver keeps for itself, in none of the others"),
    Column("memory_fresh_process", "flag", "whether nothing ran in the process before"),
)
STATE = (
    Column("sm_clock_mhz", "real", "mean over the timed steps"),
    Column("memory_clock_mhz", "real", "mean over them"),
    Column("temperature_c", "real", "after the timed steps"),
    Column("utilization_percent", "real", "mean over the energy window"),
    Column("power_cap_w", "real", "enforced limit"),
    Column("throttle_reasons", "json", "names that were active amid them, empty if none"),
    Column("other_processes", "integer", "processes of others on the device"),
    Column("sm_active_percent", "real", "GPM, over the energy window"),
    Column("sm_occupancy_percent", "real", "GPM"),
    Column("tensor_active_percent", "real", "GPM"),
    Column("dram_active_percent", "real", "GPM"),
    Column("host_load", "real", "runnable processes per core of the host, one-minute mean"),
)
PROVENANCE = (
    Column("device", "text", "catalogue name of the GPU, or the CPU's model name"),
    Column("device_kind", "text", '"cuda" or "cpu"'),
    Column("device_uuid", "text", "of the GPU or MIG instance"),
    Column("device_memory_mb", "real", "capacity"),
    Column("mig_profile", "text", "slice, null for a whole GPU"),
    Column("driver", "text", "version"),
    Column("cuda", "text", "version that torch was built for"),
    Column("cudnn", "text", "version"),
    Column("framework", "text", 'for instance "torch 2.13.0"'),
    Column("libraries", "json", "versions of the model libraries"),
    Column("python", "text", "version"),
    Column("host_cpu", "text", "model name"),
    Column("host_cores", "integer", "cores of the host"),
    Column("threads", "integer", "CPU threads of the framework"),
    Column("os", "text", "kernel name and release"),
    Column("flags", "json", "TF32, cuDNN benchmark, deterministic algorithms"),
    Column("commit", "text", "of the checkout, with + if it was changed"),
    Column("build_s", "real", "seconds to build the model and move it to the device"),
)
KERNEL = (
    Column("row_id", "text", "of the measured row whose step was profiled"),
    Column("kernel", "text", "name as the compiler gave it; on a CPU the operator's"),
    Column("operators", "texts", "the framework's calls around the launch, the outermost first"),
    Column("instances", "integers", "numbers of these calls within the step"),
    Column(
        "path",
        "text",
        "module that called, as `named_modules` spells it; null where none can say (compiled)",
    ),
    Column("part", "text", "forward, backward or optimizer"),
    Column(
        "forward_instance", "integer", "of a backward kernel: the call whose gradient it computes"
    ),
    Column("start_ns", "integer", "from the beginning of the step"),
    Column("ns", "integer", "duration; on a CPU without the calls inside"),
    Column("grid", "integers", "blocks of the launch by axis; null on a CPU and for copies"),
    Column("block", "integers", "threads of a block by axis; null on a CPU and for copies"),
    Column("stream", "integer", "of the launch; null on a CPU"),
)
"""Columns of the kernel tables that belong to the rows."""
COLUMNS = (*IDENTITY, *CONFIGURATION, *OUTCOME, *LATENCY, *ENERGY, *MEMORY, *STATE, *PROVENANCE)
MEASURED = tuple(column.name for column in (*LATENCY, *ENERGY, *MEMORY, *STATE))
"""Columns whose absence needs a reason in a row with status "ok"."""
