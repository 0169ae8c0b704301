"""Utilisation, memory, power, energy, clocks and temperature of a GPU, by NVML."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dippm.measure.readings import Quantity, Scope, Source
from dippm.measure.sources.calls import Calls, CounterCall, Failure, NotHere
from dippm.measure.sources.nvml_session import DeviceContext, DeviceCounters, explain, open_at

MB = 2**20
SLOW = {"pcie_tx_mb_s", "pcie_rx_mb_s"}
REMEDIES = {
    "utilization_percent": "not given while MIG is on, `gpm` is (Hopper and later)",
    "energy_j": "Volta and later count it; else integrate power_w",
    "power_w": "boards for displays may lack a sensor",
    "power_instant_w": "power_w is a mean over a second on some GPUs",
    "power_cap_w": "boards without power management have none",
}
THROTTLE = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
Reader = Callable[[DeviceContext], tuple[float, ...]]


def _utilization(context: DeviceContext) -> tuple[float, ...]:
    rates = context.nvml.nvmlDeviceGetUtilizationRates(context.board)
    return float(rates.gpu), float(rates.memory)


def _memory(context: DeviceContext) -> tuple[float, ...]:
    info = context.nvml.nvmlDeviceGetMemoryInfo(context.handle)
    return info.used / MB, info.total / MB


def _power(context: DeviceContext) -> tuple[float, ...]:
    return (context.nvml.nvmlDeviceGetPowerUsage(context.board) / 1e3,)


def _power_instant(context: DeviceContext) -> tuple[float, ...]:
    nvml = context.nvml
    answer = nvml.nvmlDeviceGetFieldValues(context.board, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
    if answer.nvmlReturn == nvml.NVML_ERROR_INVALID_ARGUMENT:
        raise NotHere("the driver is older than this field: update it", lasts=True)
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(answer.nvmlReturn)
    return (answer.value.uiVal / 1e3,)


def _energy(context: DeviceContext) -> tuple[float, ...]:
    return (context.nvml.nvmlDeviceGetTotalEnergyConsumption(context.board) / 1e3,)


def _sm_clock(context: DeviceContext) -> tuple[float, ...]:
    nvml = context.nvml
    return (float(nvml.nvmlDeviceGetClockInfo(context.board, nvml.NVML_CLOCK_SM)),)


def _memory_clock(context: DeviceContext) -> tuple[float, ...]:
    nvml = context.nvml
    return (float(nvml.nvmlDeviceGetClockInfo(context.board, nvml.NVML_CLOCK_MEM)),)


def _temperature(context: DeviceContext) -> tuple[float, ...]:
    nvml = context.nvml
    sensor = nvml.NVML_TEMPERATURE_GPU
    try:
        return (float(nvml.nvmlDeviceGetTemperature(context.board, sensor)),)
    except (AttributeError, nvml.NVMLError_FunctionNotFound):  # CUDA 14 takes it away
        return (float(nvml.nvmlDeviceGetTemperatureV(context.board, sensor)),)


def _power_cap(context: DeviceContext) -> tuple[float, ...]:
    return (context.nvml.nvmlDeviceGetEnforcedPowerLimit(context.board) / 1e3,)


def _throttle(context: DeviceContext) -> tuple[float, ...]:
    nvml = context.nvml
    try:
        return (float(nvml.nvmlDeviceGetCurrentClocksEventReasons(context.board)),)
    except (AttributeError, nvml.NVMLError_FunctionNotFound):  # the name before driver R535
        return (float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(context.board)),)


def _performance_state(context: DeviceContext) -> tuple[float, ...]:
    state = context.nvml.nvmlDeviceGetPerformanceState(context.board)
    if state > 15:  # NVML_PSTATE_UNKNOWN is 32
        raise NotHere("NVML says that the state is unknown")
    return (float(state),)


def _pcie_sent(context: DeviceContext) -> tuple[float, ...]:
    nvml = context.nvml
    kb_s = nvml.nvmlDeviceGetPcieThroughput(context.board, nvml.NVML_PCIE_UTIL_TX_BYTES)
    return (kb_s / 1024,)


def _pcie_received(context: DeviceContext) -> tuple[float, ...]:
    nvml = context.nvml
    kb_s = nvml.nvmlDeviceGetPcieThroughput(context.board, nvml.NVML_PCIE_UTIL_RX_BYTES)
    return (kb_s / 1024,)


def _quantity(
    name: str, unit: str, about: str, *, scope: Scope = "device", counter: bool = False
) -> Quantity:
    return Quantity(name, unit, scope, about, counter)


READERS: tuple[tuple[tuple[Quantity, ...], Reader], ...] = (
    (
        (
            _quantity("utilization_percent", "%", "time in which any kernel ran"),
            _quantity("memory_utilization_percent", "%", "time in which device memory was busy"),
        ),
        _utilization,
    ),
    (
        (
            _quantity("memory_used_mb", "MiB", "in use, with what the driver reserves"),
            _quantity("memory_total_mb", "MiB", "capacity"),
        ),
        _memory,
    ),
    ((_quantity("power_w", "W", "drawn by the board, a mean on some GPUs"),), _power),
    ((_quantity("power_instant_w", "W", "drawn by the board when it is read"),), _power_instant),
    ((_quantity("energy_j", "J", "since the driver was loaded", counter=True),), _energy),
    ((_quantity("sm_clock_mhz", "MHz", "of the multiprocessors"),), _sm_clock),
    ((_quantity("memory_clock_mhz", "MHz", "of the memory"),), _memory_clock),
    ((_quantity("temperature_c", "°C", "of the GPU"),), _temperature),
    ((_quantity("power_cap_w", "W", "enforced limit"),), _power_cap),
    ((_quantity("throttle", "bit mask", "why clocks are held, `throttle_reasons`"),), _throttle),
    ((_quantity("performance_state", "P", "0 is the fastest"),), _performance_state),
    ((_quantity("pcie_tx_mb_s", "MiB/s", "sent by the GPU, over 20 ms"),), _pcie_sent),
    ((_quantity("pcie_rx_mb_s", "MiB/s", "received by the GPU, over 20 ms"),), _pcie_received),
)
QUANTITIES = tuple(quantity for quantities, _ in READERS for quantity in quantities)


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Return the names of the reasons in a mask of `throttle`; unknown bits as "bit_N"."""
    bits = (1 << position for position in range(mask.bit_length()))
    return tuple(THROTTLE.get(bit, f"bit_{bit.bit_length() - 1}") for bit in bits if mask & bit)


class NvmlSource(DeviceCounters):
    """One GPU, or one MIG slice: memory is that of the slice, everything else of its board."""

    name = "nvml"

    def __init__(self, context: DeviceContext, only: Collection[str] | None = None) -> None:
        scope: Scope = "slice" if context.is_slice else "device"
        self.quantities = tuple(_with_scope(quantity, scope) for quantity in QUANTITIES)
        super().__init__(Calls(self.name, _calls(context, only), _explain))


def open_nvml(device: str | int = 0, *, only: Collection[str] | None = None) -> Source:
    """Open the counters of one GPU.

    Args:
        device: see `nvml_session.locate`.
        only: names of the quantities to read, which makes reading cheaper. By default all but those
            of PCIe, whose calls take 20 ms each.
    """
    return open_at(
        device,
        lambda context: NvmlSource(context, only),
        name=NvmlSource.name,
        quantities=QUANTITIES,
    )


def _with_scope(quantity: Quantity, scope: Scope) -> Quantity:
    if quantity.name in {"memory_used_mb", "memory_total_mb"}:
        return Quantity(quantity.name, quantity.unit, scope, quantity.about)
    return quantity


def _calls(context: DeviceContext, only: Collection[str] | None) -> list[CounterCall]:
    calls = []
    for quantities, reader in READERS:
        names = {quantity.name for quantity in quantities}
        if only is not None and not names.intersection(only):
            calls.append(CounterCall(quantities, _refuse("was not asked for")))
        elif only is None and names & SLOW:
            calls.append(
                CounterCall(quantities, _refuse("each reading lasts 20 ms: ask by name, only="))
            )
        else:
            calls.append(CounterCall(quantities, _at(reader, context)))
    return calls


def _at(reader: Reader, context: DeviceContext) -> Callable[[], tuple[float, ...]]:
    return lambda: reader(context)


def _refuse(reason: str) -> Callable[[], tuple[float, ...]]:
    def refuse() -> tuple[float, ...]:
        raise NotHere(reason, lasts=True)

    return refuse


def _explain(error: Exception, call: CounterCall) -> Failure:
    return explain(error, call, REMEDIES)
