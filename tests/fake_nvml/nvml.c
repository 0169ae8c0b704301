/* A stand-in for libnvidia-ml.so.1: a few calls of NVML with answers from a text file, so that the
 * real bindings and their struct layouts are exercised where there is no GPU.
 *
 * The file that FAKE_NVML names is read at every call. Lines are "KEY VALUE":
 *   nvmlDeviceGetPowerUsage 15   this call fails with code 15 (NVML_ERROR_GPU_IS_LOST)
 *   all 15                       every call on a device does
 *   gpus 2, mig 3                how many GPUs; MIG slices of the first one (places 0, 2, 4, ...)
 *   kinds 2                      the second GPU has another name
 *   power_instant_mw -1          the driver does not know the field of the instant power
 *   power_mw, energy_mj, ...     figures, see DEFAULTS; energy_mj 0 counts power over time
 *   process PID MIB INSTANCE     on the device, may be repeated; PID "self" is the caller;
 *                                MIB -1 is NVML_VALUE_NOT_AVAILABLE
 *   mig_mode 1, ...              instances that can be made and destroyed, see mig.c
 * Layouts follow NVIDIA's public nvml.h; no GPU stands behind any figure. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int Return;
typedef void *Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } Process;
typedef struct { char *short_name, *long_name, *unit; } MetricInfo;
typedef struct { unsigned id; Return result; double value; MetricInfo info; } Metric;
typedef struct { unsigned version, count; void *first, *second; Metric metrics[1]; } MetricsGet;
typedef struct { unsigned version, supported; } Support;
typedef struct {
    unsigned field, scope;
    long long at, took;
    unsigned type;
    Return result;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;
typedef struct { double at; long instance; } Sample;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
static const struct { const char *key; long long value; } DEFAULTS[] = {
    {"gpus", 1}, {"mig", 0}, {"utilization", 87}, {"memory_utilization", 41},
    {"memory_used_mb", 1500}, {"memory_total_mb", 81559}, {"slice_used_mb", 300}, {"driver_mb", 563},
    {"slice_total_mb", 9728}, {"power_mw", 250000}, {"power_instant_mw", 251000},
    {"energy_mj", 0}, {"energy_period_ms", 100},
    {"sm_clock", 1980}, {"memory_clock", 2619}, {"temperature", 54}, {"power_cap_mw", 700000},
    {"throttle", 0}, {"performance_state", 0}, {"pcie_tx_kb", 2048}, {"pcie_rx_kb", 4096},
    {"gpm", 1}, {"metric_2", 75}, {"metric_3", 40}, {"metric_5", 20}, {"metric_10", 55},
};
static int users = 0;

static long long ask(const char *key, long long otherwise) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], name[128];
    long long value;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%127s %lld", name, &value) == 2 && !strcmp(name, key)) {
            fclose(file);
            return value;
        }
    if (file) fclose(file);
    for (size_t i = 0; i < sizeof DEFAULTS / sizeof *DEFAULTS; i++)
        if (!strcmp(DEFAULTS[i].key, key)) return DEFAULTS[i].value;
    return otherwise;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Handles are small numbers: GPU i is 0x100 + i, slice j of it 0x10000 + 0x100 * i + j. */
static long number(Device device) { return (long)device; }
static int is_slice(Device device) { return number(device) >= 0x10000; }
static int exists(long handle);
static int managed(void) { return ask("mig_mode", -1) >= 0; }
static int mig_mode(long gpu) {
    int only = ask("mig_only", -1);
    return only < 0 || only == gpu ? ask("mig_mode", 0) : 0;
}
static Return check(const char *call, Device device) {
    if (!users) return UNINITIALIZED;
    long gpu = is_slice(device) ? (number(device) - 0x10000) / 0x100 : number(device) - 0x100;
    if (gpu < 0 || gpu >= ask("gpus", 1)) return INVALID;
    if (is_slice(device) && managed() && !exists(number(device))) return INVALID;
    Return all = ask("all", OK);
    return all ? all : ask(call, OK);
}
#define CHECK() do { Return code = check(__func__, device); if (code) return code; } while (0)
#define FIGURE(NAME, TYPE, KEY) \
    Return NAME(Device device, TYPE *value) { CHECK(); *value = ask(KEY, 0); return OK; }
#include "mig.c"

Return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    Return code = ask(__func__, OK);
    users += code == OK;
    return code;
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) {
    if (!users) return UNINITIALIZED;
    users--;
    return OK;
}
const char *nvmlErrorString(Return code) {
    static char text[64];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}
Return nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.00.fake");
    return OK;
}
Return nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
Return nvmlDeviceGetCount_v2(unsigned *count) { *count = ask("gpus", 1); return OK; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if (!users) return UNINITIALIZED;
    if (index >= (unsigned)ask("gpus", 1)) return INVALID;
    *device = (Device)(long)(0x100 + index);
    return ask("all", OK);
}
Return nvmlDeviceGetUUID(Device device, char *text, unsigned size) {
    CHECK();
    snprintf(text, size, "%s-%08lx-0000-0000-0000-00000000fa4e", is_slice(device) ? "MIG" : "GPU",
             number(device));
    return OK;
}
Return nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    if (!users) return UNINITIALIZED;
    if (strlen(uuid) != 40 || (strncmp(uuid, "GPU-", 4) && strncmp(uuid, "MIG-", 4)))
        return INVALID;
    *device = (Device)strtol(uuid + 4, NULL, 16);
    if (is_slice(*device) != !strncmp(uuid, "MIG-", 4)) return NOT_FOUND;
    return check(__func__, *device) ? NOT_FOUND : OK;
}
Return nvmlDeviceGetName(Device device, char *text, unsigned size) {
    CHECK();
    const char *kind = number(device) & 0xff && ask("kinds", 1) > 1 ? "NVIDIA Other" : "NVIDIA Fake";
    const char *profile = managed() && is_slice(device) ? profile_of(number(device)) : "1g.10gb";
    snprintf(text, size, is_slice(device) ? "NVIDIA Fake MIG %s" : "%s",
             is_slice(device) ? profile : kind);
    return OK;
}
Return nvmlDeviceGetIndex(Device device, unsigned *index) {
    CHECK();
    *index = number(device) & 0xff;
    return OK;
}
Return nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
    CHECK();
    if (ask("mig", 0) || mig_mode(number(device) & 0xff) > 0) return UNSUPPORTED;
    rates->gpu = ask("utilization", 0);
    rates->memory = ask("memory_utilization", 0);
    return OK;
}
Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    CHECK();
    memory->total = (unsigned long long)
        ask(is_slice(device) ? "slice_total_mb" : "memory_total_mb", 0) << 20;
    memory->used = (unsigned long long)
        ask(is_slice(device) ? "slice_used_mb" : "memory_used_mb", 0) << 20;
    memory->free = memory->total - memory->used;
    return OK;
}
Return nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *memory) {
    CHECK();
    Memory first;
    nvmlDeviceGetMemoryInfo(device, &first);
    memory->total = first.total, memory->free = first.free;
    memory->reserved = (unsigned long long)ask("driver_mb", 0) << 20;
    memory->used = first.used - memory->reserved;
    return OK;
}
FIGURE(nvmlDeviceGetPowerUsage, unsigned, "power_mw")
Return nvmlDeviceGetFieldValues(Device device, int count, Field *fields) {
    CHECK();
    for (int i = 0; i < count; i++) {
        long long instant = ask("power_instant_mw", 0);
        fields[i].result = fields[i].field != 186 || !instant ? UNSUPPORTED
                         : instant < 0 ? INVALID : OK;
        fields[i].value.u = (unsigned)instant;
    }
    return OK;
}
FIGURE(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_cap_mw")
FIGURE(nvmlDeviceGetPowerManagementLimit, unsigned, "power_cap_mw")
FIGURE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle")
FIGURE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle")
FIGURE(nvmlDeviceGetPerformanceState, unsigned, "performance_state")
Return nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *energy) {
    CHECK();
    long long fixed = ask("energy_mj", 0), period = ask("energy_period_ms", 100);
    long long periods = (long long)(now() * 1000) / period;
    *energy = fixed ? fixed : periods * period * ask("power_mw", 0) / 1000;
    return OK;
}
Return nvmlDeviceGetClockInfo(Device device, unsigned type, unsigned *clock) {
    CHECK();
    *clock = ask(type == 2 ? "memory_clock" : "sm_clock", 0);
    return OK;
}
Return nvmlDeviceGetMaxClockInfo(Device device, unsigned type, unsigned *clock) {
    return nvmlDeviceGetClockInfo(device, type, clock);
}
Return nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *celsius) {
    CHECK();
    *celsius = ask("temperature", 0);
    return sensor ? INVALID : OK;
}
Return nvmlDeviceGetPcieThroughput(Device device, unsigned counter, unsigned *rate) {
    CHECK();
    usleep(20000);
    *rate = ask(counter ? "pcie_rx_kb" : "pcie_tx_kb", 0);
    return OK;
}
Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *found) {
    CHECK();
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], pid[32];
    unsigned listed = 0, room = *count;
    while (file && fgets(line, sizeof line, file)) {
        long long mib = 0;
        unsigned instance = 0xffffffff;
        if (sscanf(line, "process %31s %lld %u", pid, &mib, &instance) < 2) continue;
        if (found && listed < room) {
            found[listed].pid = strcmp(pid, "self") ? (unsigned)atoi(pid) : (unsigned)getpid();
            found[listed].used = mib < 0 ? ~0ULL : (unsigned long long)mib << 20;
            found[listed].gpu = instance;
            found[listed].compute = instance == 0xffffffff ? instance : 0;
        }
        listed++;
    }
    if (file) fclose(file);
    *count = listed;
    return listed > room ? TOO_SMALL : OK;
}
Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    CHECK();
    if (ask("mig", 0) < 0) return UNSUPPORTED;
    *current = *pending = managed() ? mig_mode(number(device) & 0xff) : ask("mig", 0) > 0;
    if (managed()) *pending = ask("mig_pending", *current);
    return OK;
}
Return nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    CHECK();
    *count = 7;
    return OK;
}
Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *slice) {
    CHECK();
    if (managed()) return device_at(number(device) & 0xff, index, (long *)slice) ? OK : NOT_FOUND;
    if (index % 2 || index / 2 >= (unsigned)ask("mig", 0)) return NOT_FOUND;
    *slice = (Device)(0x10000 + 0x100 * (number(device) - 0x100) + index);
    return OK;
}
Return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *board) {
    CHECK();
    *board = (Device)(0x100 + (number(device) - 0x10000) / 0x100);
    return is_slice(device) ? OK : INVALID;
}
Return nvmlDeviceIsMigDeviceHandle(Device device, unsigned *answer) {
    CHECK();
    *answer = is_slice(device);
    return OK;
}
Return nvmlDeviceGetGpuInstanceId(Device device, unsigned *id) {
    CHECK();
    *id = number(device) & (managed() ? 0xf : 0xff);
    return is_slice(device) ? OK : INVALID;
}
Return nvmlDeviceGetComputeInstanceId(Device device, unsigned *id) {
    CHECK();
    *id = managed() ? number(device) >> 4 & 0xf : 0;
    return is_slice(device) ? OK : INVALID;
}
Return nvmlGpmQueryDeviceSupport(Device device, Support *support) {
    CHECK();
    if (support->version != 1) return INVALID;
    support->supported = ask("gpm", 1) != 0;
    return OK;
}
Return nvmlGpmSampleAlloc(void **sample) {
    *sample = calloc(1, sizeof(Sample));
    return OK;
}
Return nvmlGpmSampleFree(void *sample) {
    free(sample);
    return OK;
}
Return nvmlGpmSampleGet(Device device, void *sample) {
    CHECK();
    *(Sample *)sample = (Sample){now(), -1};
    return OK;
}
Return nvmlGpmMigSampleGet(Device device, unsigned instance, void *sample) {
    CHECK();
    if (is_slice(device)) return INVALID; /* wants the board */
    *(Sample *)sample = (Sample){now(), instance};
    return OK;
}
/* On a slice, every figure is that of the board plus the number of its GPU instance. */
Return nvmlGpmMetricsGet(MetricsGet *question) {
    Sample *first = question->first, *second = question->second;
    char key[32];
    if (question->version != 1 || !first || !second || second->at < first->at) return INVALID;
    for (unsigned i = 0; i < question->count; i++) {
        Metric *metric = &question->metrics[i];
        snprintf(key, sizeof key, "metric_%u", metric->id);
        long long value = ask(key, -1);
        metric->result = value < 0 ? UNSUPPORTED : OK;
        metric->value = value + (second->instance > 0 ? second->instance : 0);
    }
    return OK;
}
