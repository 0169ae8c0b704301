"""Kernels on a device: roofline time and what the efficiency network sees.

Features are relative to the device (how full it is, which side of the roofline), so that they mean
the same on a GPU that was never measured; raw descriptors come last, behind dropout in training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Device, MigProfile, memory_fraction, sm_fraction
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_table import QUANTITIES, SETTINGS, KernelTable

Floats = NDArray[np.float64]

KERNEL_FEATURE_VERSION = "7"
LAUNCH_CYCLES = 3400
"""Shortest time of a kernel on the device: 2 µs at 1.7 GHz.

It goes by the clock: the fastest hundredth of AIConfigurator's operators take 3.7 µs on an A100
(1.41 GHz), 2.8 on an H100 and 2.6 on an H200 (1.98 GHz), 2.3 on an L40S (2.52 GHz).
"""
USUAL_CLOCK_MHZ = 1700
"""Of a device whose clock is not known."""

SERIAL_STEP_MS = 0.0003
"""One step of a serial walk over images and channels: about 0.3 µs, the latency of memory."""

GENERATIONS = ("Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")
SHAPE_FEATURES = (
    "log_ridge log_cycles log_m log_n log_k log_copies log_window stride log_waves wave_fill "
    "fill_n8 fill_n64 fill_k8 fill_k64 fill_m64 log_l2 weight_share write_share in_half out_half "
    "mixed strided channels_last compiled log_elements log_flops aligned_n aligned_k log_width "
    "images_last in_place repeated log_run"
).split()
DEVICE_FEATURES = ("log_sm", "log_ridge_half", "log_ridge_fp32", "log_l2_mb", *GENERATIONS)
FEATURE_UNITS = UNITS[:3]
"""What the network tells apart; it has seen no products of integers, they look like half."""

N_KINDS, N_UNITS = len(KERNEL_CLASSES), len(FEATURE_UNITS)
FEATURE_NAMES = (*KERNEL_CLASSES, *FEATURE_UNITS, *SHAPE_FEATURES, *DEVICE_FEATURES)
N_FEATURES = len(FEATURE_NAMES)
N_DEVICE_FEATURES = len(DEVICE_FEATURES)
BREAKS_GRAPH: NDArray[np.bool_] = np.array([row.breaks_graph for row in KERNEL_CLASSES.values()])
"""Which classes a compiler leaves to their library, in the order of the table."""
_MATRIX = np.array([row.matrix for row in KERNEL_CLASSES.values()])
_SLOTS = np.array([row.slots for row in KERNEL_CLASSES.values()])


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device, or a slice of it, as the roofline sees it.

    Attributes:
        peak_flops_per_ms: by unit in the order of UNITS, shape (4,); without a known rate for
            8-bit integers that of half precision stands in.
        bytes_per_ms: memory bandwidth.
        l2_bytes: second-level cache.
        sm_count: streaming multiprocessors.
        clock_mhz: boost clock.
        descriptors: DEVICE_FEATURES, shape (11,).
    """

    peak_flops_per_ms: Floats
    bytes_per_ms: float
    l2_bytes: float
    sm_count: int
    clock_mhz: float
    descriptors: Floats

    @property
    def launch_ms(self) -> float:
        """Return the shortest time of a kernel, in ms."""
        return LAUNCH_CYCLES / (1e3 * self.clock_mhz)

    @classmethod
    def of(cls, device: Device, mig: MigProfile | None = None) -> DeviceView:
        """Scale a device to a slice: compute by multiprocessors, memory by memory slices.

        Raises:
            DeviceError: if a figure that the roofline needs is not known.
        """
        sm_count, l2_mb = int(device.known("sm_count")), device.known("l2_mb")
        bandwidth_gb_s, fp32 = device.known("bandwidth_gb_s"), device.known_rate("fp32")
        compute = sm_fraction(mig, device) if mig else 1.0
        memory = memory_fraction(mig, device) if mig else 1.0
        peak = device.peak_tflops
        half = peak.get("fp16") or peak.get("bf16") or fp32
        tf32 = peak.get("tf32") or fp32
        bandwidth = bandwidth_gb_s * 1e6 * memory
        generation = [float(device.architecture.startswith(g)) for g in GENERATIONS]
        descriptors = [
            np.log(sm_count / 80),
            np.log(half * 1e3 / bandwidth_gb_s / 150),
            np.log(fp32 * 1e3 / bandwidth_gb_s / 20),
            np.log(l2_mb / 16),
            *generation,
        ]
        return cls(
            peak_flops_per_ms=np.array([half, tf32, fp32, peak.get("int8", half)]) * 1e9 * compute,
            bytes_per_ms=bandwidth,
            l2_bytes=l2_mb * 2**20 * memory,
            sm_count=mig.sm_count if mig else sm_count,
            clock_mhz=device.boost_clock_mhz or USUAL_CLOCK_MHZ,
            descriptors=np.array(descriptors, dtype=np.float64),
        )


def roofline_ms(table: KernelTable, batch: int, view: DeviceView) -> Floats:
    """Return the least time of each kernel, in ms, shape (K,): max(F/P, Q/B) + launch."""
    compute, memory = roofline_parts_ms(table, batch, view)
    launches = table.settings[:, SETTINGS.index("launches")]
    return np.asarray(np.maximum(compute, memory) + view.launch_ms * launches)


def serial_ms(table: KernelTable, batch: int) -> Floats:
    """Return the time that each kernel spends in serial steps, in ms, shape (K,).

    It adds to the slowed roofline and is not slowed itself: latency of memory, not throughput.
    """
    return np.asarray(SERIAL_STEP_MS * table.quantities(batch)[:, QUANTITIES.index("serial")])


def roofline_parts_ms(table: KernelTable, batch: int, view: DeviceView) -> tuple[Floats, Floats]:
    """Return (compute, memory) time of each kernel at peak rates, in ms, each of shape (K,).

    A class whose multiply-adds take several issue slots has a peak that is so much lower, see
    `KernelClass.slots`.
    """
    flops, read, write, weight = table.quantities(batch)[:, :4].T
    compute = flops * _SLOTS[table.kind] / view.peak_flops_per_ms[table.unit]
    return compute, (read + write + weight) / view.bytes_per_ms


def kernel_features(
    table: KernelTable,
    batch: int,
    view: DeviceView,
    *,
    channels_last: bool = False,
    compiled: bool = False,
) -> NDArray[np.float32]:
    """Return what the efficiency network sees, shape (K, N_FEATURES)."""
    q = table.quantities(batch)
    flops, read, write, weight, m, n, k, copies, _ = q.T
    window, stride, in_bytes, out_bytes, strided, _ = table.settings.T[:6]
    images_last, in_place, repeated, run = table.settings.T[6:10]
    compute, memory = roofline_parts_ms(table, batch, view)
    roofline = roofline_ms(table, batch, view)
    moved = read + write + weight
    matrix = _MATRIX[table.kind]
    tiles = np.where(matrix, np.ceil(m / 128) * np.ceil(n / 128) * copies, write / 4 / 2048)
    waves = np.maximum(tiles, 1.0) / view.sm_count
    columns = [
        np.log((compute + 1e-7) / (memory + 1e-7)),
        np.log(roofline * view.clock_mhz / USUAL_CLOCK_MHZ),
        np.log1p(m),
        np.log1p(n),
        np.log1p(k),
        np.log1p(copies),
        np.log(window),
        np.minimum(stride, 4),
        np.log(waves),
        waves / np.ceil(waves),
        _fill(n, 8) * matrix,
        _fill(n, 64) * matrix,
        _fill(k, 8) * matrix,
        _fill(k, 64) * matrix,
        _fill(m, 64) * matrix,
        np.log((moved + 1.0) / view.l2_bytes),
        weight / (moved + 1.0),
        write / (moved + 1.0),
        in_bytes == 2,
        out_bytes == 2,
        in_bytes != out_bytes,
        strided,
        np.full_like(m, channels_last),
        compiled & ~BREAKS_GRAPH[table.kind],
        np.log1p(write / out_bytes),
        np.log1p(flops),
        (n % 8 == 0) * matrix,
        (k % 8 == 0) * matrix,
        np.log(in_bytes),
        images_last,
        in_place,
        repeated,
        np.log(run),
    ]
    shape = np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)
    kind = np.eye(N_KINDS)[table.kind]
    unit = np.eye(N_UNITS)[np.where(table.unit < N_UNITS, table.unit, UNITS.index("half"))]
    device = np.broadcast_to(view.descriptors, (len(m), N_DEVICE_FEATURES))
    return np.concatenate([kind, unit, shape, device], axis=1).astype(np.float32)


def _fill(size: Floats, tile: int) -> Floats:
    """Return the useful share of tiles."""
    return np.asarray(size / (np.ceil(np.maximum(size, 1e-9) / tile) * tile))


assert QUANTITIES[:4] == ("flops", "read_bytes", "write_bytes", "weight_bytes")
