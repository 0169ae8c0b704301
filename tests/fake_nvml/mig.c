/* MIG of the fake driver, part of nvml.c: an A100-40GB whose instances are made and destroyed.
 *
 *   mig_mode 1           MIG is on and instances live in a file beside the answers (".mig"), which
 *                        all processes share; 0: it is off; without the line see "mig" of nvml.c
 *   mig_only 2           the mode of this GPU only; it is off on the others
 *   mig_pending 0        what the mode would be after a reset
 *   mig_permission 0     the caller may look at devices, not change them
 *   deadly CALL          the caller is killed when this call has done its work
 * Lines of the file: "gi GPU ID PROFILE START SIZE" and "ci GPU GI ID PROFILE START SIZE".
 *
 * Refused as by the driver: instances that overlap or exceed their number (INSUFFICIENT_RESOURCES),
 * places that a profile does not have (INVALID_ARGUMENT), destroying what has processes or compute
 * instances in it (IN_USE), everything without permission or with MIG off. Identifiers of profiles
 * and instances are those that listings of A100 show. */

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

typedef struct { unsigned start, size; } Placement;
typedef struct { Device device; unsigned id, profile; Placement placement; } InstanceInfo;
typedef struct { Device device; void *parent; unsigned id, profile; Placement placement; } PartInfo;
typedef struct {
    unsigned version, id, p2p, slices, most, sms, engines[5];
    unsigned long long memory_mb;
    char name[96];
} ProfileInfo;
typedef struct { unsigned version, id, slices, most, sms, engines[5]; char name[96]; } PartProfile;

enum { NO_PERMISSION = 4, IN_USE = 19, NO_ROOM = 23, WRONG_VERSION = 25 };
enum { KINDS = 7, MOST = 64 };
static const struct {
    unsigned asked, id, slices, most, sms, memory_mb, size, starts;
    const char *name;
} PROFILES[KINDS] = {
    {0, 19, 1, 7, 14, 4864, 1, 0x7f, "1g.5gb"}, {7, 20, 1, 1, 14, 4864, 1, 0x7f, "1g.5gb+me"},
    {9, 15, 1, 4, 14, 9856, 2, 0x55, "1g.10gb"}, {1, 14, 2, 3, 28, 9856, 2, 0x15, "2g.10gb"},
    {2, 9, 3, 2, 42, 19968, 4, 0x11, "3g.20gb"}, {3, 5, 4, 1, 56, 19968, 4, 0x01, "4g.20gb"},
    {4, 0, 7, 1, 98, 40192, 8, 0x01, "7g.40gb"},
};
typedef struct { int part; unsigned gpu, parent, id, profile, start, size; } Entry;
static Entry entries[MOST];
static int listed, file = -1;

static int kind_of(unsigned id) {
    for (int i = 0; i < KINDS; i++)
        if (PROFILES[i].id == id) return i;
    return -1;
}

/* Take the file, and read it; every `take` is followed by a `give`. */
static void take(void) {
    char path[4096], line[256];
    snprintf(path, sizeof path, "%s.mig", getenv("FAKE_NVML"));
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(file, LOCK_EX);
    FILE *text = fdopen(dup(file), "r");
    for (listed = 0; listed < MOST && fgets(line, sizeof line, text);) {
        Entry e = {0};
        if (sscanf(line, "gi %u %u %u %u %u", &e.gpu, &e.id, &e.profile, &e.start, &e.size) == 5)
            entries[listed++] = e;
        else if (sscanf(line, "ci %u %u %u %u %u %u", &e.gpu, &e.parent, &e.id, &e.profile,
                        &e.start, &e.size) == 6)
            e.part = 1, entries[listed++] = e;
    }
    fclose(text);
}
static void write_all(void) {
    char text[MOST * 64] = "";
    size_t length = 0;
    for (int i = 0; i < listed; i++) {
        Entry *e = &entries[i];
        length += e->part
            ? sprintf(text + length, "ci %u %u %u %u %u %u\n", e->gpu, e->parent, e->id,
                      e->profile, e->start, e->size)
            : sprintf(text + length, "gi %u %u %u %u %u\n", e->gpu, e->id, e->profile,
                      e->start, e->size);
    }
    lseek(file, 0, SEEK_SET);
    if (ftruncate(file, 0) || write(file, text, length) != (ssize_t)length) abort();
}
static Return give(Return code) {
    close(file);
    return code;
}
static void remove_entry(int index) {
    memmove(entries + index, entries + index + 1, (--listed - index) * sizeof *entries);
}
static int find(int part, unsigned gpu, unsigned parent, unsigned id) {
    for (int i = 0; i < listed; i++)
        if (entries[i].part == part && entries[i].gpu == gpu && entries[i].id == id &&
            (!part || entries[i].parent == parent))
            return i;
    return -1;
}
static int parts_of(unsigned gpu, unsigned id) {
    int parts = 0;
    for (int i = 0; i < listed; i++)
        parts += entries[i].part && entries[i].gpu == gpu && entries[i].parent == id;
    return parts;
}

static void die_after(const char *call) {
    char line[256], name[128];
    FILE *answers = fopen(getenv("FAKE_NVML"), "r");
    while (answers && fgets(line, sizeof line, answers))
        if (sscanf(line, "deadly %127s", name) == 1 && !strcmp(name, call)) raise(SIGKILL);
    if (answers) fclose(answers);
}
static int has_process(unsigned instance) {
    char line[256], pid[32];
    unsigned found = 0, of;
    long long mib;
    FILE *answers = fopen(getenv("FAKE_NVML"), "r");
    while (answers && fgets(line, sizeof line, answers))
        found |= sscanf(line, "process %31s %lld %u", pid, &mib, &of) == 3 && of == instance;
    if (answers) fclose(answers);
    return found;
}

/* Handles: GPU instance i of GPU g is 0x1000000 + 0x100 * g + i; compute instance c of it
 * 0x2000000 + 0x10000 * c + 0x100 * g + i. */
static void *instance_handle(unsigned gpu, unsigned id) {
    return (void *)(long)(0x1000000 + 0x100 * gpu + id);
}
static void *part_handle(unsigned gpu, unsigned parent, unsigned id) {
    return (void *)(long)(0x2000000 + 0x10000 * id + 0x100 * gpu + parent);
}
static unsigned gpu_of(void *handle) { return (long)handle >> 8 & 0xff; }
static unsigned instance_of(void *handle) { return (long)handle & 0xff; }
static unsigned part_of(void *handle) { return (long)handle >> 16 & 0xff; }

static Return allowed(const char *call, Device device) {
    Return code = check(call, device);
    if (code) return code;
    if (!ask("mig_permission", 1)) return NO_PERMISSION;
    return mig_mode(number(device) & 0xff) ? OK : UNSUPPORTED;
}
#define ALLOWED(DEVICE) \
    do { Return code = allowed(__func__, DEVICE); if (code) return code; } while (0)
#define BOARD(HANDLE) ((Device)(long)(0x100 + gpu_of(HANDLE)))

Return nvmlDeviceGetGpuInstanceProfileInfoV(Device device, unsigned asked, ProfileInfo *info) {
    CHECK();
    if (ask("mig", 0) < 0) return UNSUPPORTED;
    if (info->version != 0x02000098) return WRONG_VERSION;
    for (int i = 0; i < KINDS; i++)
        if (PROFILES[i].asked == asked) {
            info->id = PROFILES[i].id, info->slices = PROFILES[i].slices;
            info->most = PROFILES[i].most, info->sms = PROFILES[i].sms;
            info->memory_mb = PROFILES[i].memory_mb;
            snprintf(info->name, sizeof info->name, "MIG %s", PROFILES[i].name);
            return OK;
        }
    return UNSUPPORTED;
}
Return nvmlDeviceGetGpuInstancePossiblePlacements_v2(Device device, unsigned profile,
                                                     Placement *places, unsigned *count) {
    CHECK();
    if (!ask("mig_permission", 1)) return NO_PERMISSION;
    int kind = kind_of(profile);
    unsigned found = 0;
    if (kind < 0) return INVALID;
    for (unsigned start = 0; start < 8; start++)
        if (PROFILES[kind].starts >> start & 1) {
            if (places && found < *count) places[found] = (Placement){start, PROFILES[kind].size};
            found++;
        }
    Return code = places && found > *count ? TOO_SMALL : OK;
    *count = found;
    return code;
}
Return nvmlDeviceCreateGpuInstanceWithPlacement(Device device, unsigned profile,
                                                const Placement *place, void **made) {
    ALLOWED(device);
    unsigned gpu = number(device) & 0xff, of_profile = 0;
    int kind = kind_of(profile);
    if (kind < 0 || place->size != PROFILES[kind].size || place->start > 7 ||
        !(PROFILES[kind].starts >> place->start & 1))
        return INVALID;
    take();
    for (int i = 0; i < listed; i++) {
        Entry *e = &entries[i];
        if (e->part || e->gpu != gpu) continue;
        of_profile += e->profile == profile;
        if (e->start < place->start + place->size && place->start < e->start + e->size)
            return give(NO_ROOM);
    }
    if (of_profile >= PROFILES[kind].most || listed >= MOST) return give(NO_ROOM);
    /* Instances are numbered as the nodes of a binary tree over the memory. */
    unsigned id = 8 / place->size - 1 + place->start / place->size;
    entries[listed++] = (Entry){0, gpu, 0, id, profile, place->start, place->size};
    write_all();
    give(OK);
    die_after(__func__);
    *made = instance_handle(gpu, id);
    return OK;
}
Return nvmlGpuInstanceDestroy(void *instance) {
    ALLOWED(BOARD(instance));
    take();
    unsigned gpu = gpu_of(instance), id = instance_of(instance);
    int index = find(0, gpu, 0, id);
    if (index < 0) return give(INVALID);
    if (parts_of(gpu, id) || has_process(id)) return give(IN_USE);
    remove_entry(index);
    write_all();
    give(OK);
    die_after(__func__);
    return OK;
}
Return nvmlDeviceGetGpuInstances(Device device, unsigned profile, void **found, unsigned *count) {
    ALLOWED(device);
    take();
    *count = 0;
    for (int i = 0; i < listed; i++)
        if (!entries[i].part && entries[i].gpu == (number(device) & 0xff) &&
            entries[i].profile == profile)
            found[(*count)++] = instance_handle(entries[i].gpu, entries[i].id);
    return give(kind_of(profile) < 0 ? INVALID : OK);
}
Return nvmlGpuInstanceGetInfo(void *instance, InstanceInfo *info) {
    ALLOWED(BOARD(instance));
    take();
    int index = find(0, gpu_of(instance), 0, instance_of(instance));
    if (index >= 0) {
        Entry *e = &entries[index];
        *info = (InstanceInfo){BOARD(instance), e->id, e->profile, {e->start, e->size}};
    }
    return give(index < 0 ? INVALID : OK);
}
/* Profiles of compute instances have the same numbers as they are asked for by, as on A100. */
Return nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *instance, unsigned asked,
                                                     unsigned engines, PartProfile *info) {
    static const unsigned SLICES[] = {1, 2, 3, 4, 7};
    ALLOWED(BOARD(instance));
    if (info->version != 0x02000088) return WRONG_VERSION;
    take();
    int index = find(0, gpu_of(instance), 0, instance_of(instance));
    if (index < 0 || engines) return give(INVALID);
    unsigned slices = PROFILES[kind_of(entries[index].profile)].slices;
    if (asked > 4 || SLICES[asked] > slices) return give(UNSUPPORTED);
    info->id = asked, info->slices = SLICES[asked], info->most = slices / SLICES[asked];
    return give(OK);
}
Return nvmlGpuInstanceCreateComputeInstance(void *instance, unsigned profile, void **made) {
    static const unsigned SLICES[] = {1, 2, 3, 4, 7};
    ALLOWED(BOARD(instance));
    take();
    unsigned gpu = gpu_of(instance), parent = instance_of(instance), used = 0, id = 0;
    int index = find(0, gpu, 0, parent);
    if (index < 0 || profile > 4) return give(INVALID);
    for (int i = 0; i < listed; i++)
        if (entries[i].part && entries[i].gpu == gpu && entries[i].parent == parent)
            used += entries[i].size;
    if (used + SLICES[profile] > PROFILES[kind_of(entries[index].profile)].slices)
        return give(NO_ROOM);
    while (find(1, gpu, parent, id) >= 0) id++;
    entries[listed++] = (Entry){1, gpu, parent, id, profile, used, SLICES[profile]};
    write_all();
    give(OK);
    die_after(__func__);
    *made = part_handle(gpu, parent, id);
    return OK;
}
Return nvmlComputeInstanceDestroy(void *part) {
    ALLOWED(BOARD(part));
    take();
    int index = find(1, gpu_of(part), instance_of(part), part_of(part));
    if (index < 0) return give(INVALID);
    if (has_process(instance_of(part))) return give(IN_USE);
    remove_entry(index);
    write_all();
    give(OK);
    die_after(__func__);
    return OK;
}
Return nvmlGpuInstanceGetComputeInstances(void *instance, unsigned profile, void **found,
                                          unsigned *count) {
    ALLOWED(BOARD(instance));
    take();
    *count = 0;
    for (int i = 0; i < listed; i++)
        if (entries[i].part && entries[i].gpu == gpu_of(instance) &&
            entries[i].parent == instance_of(instance) && entries[i].profile == profile)
            found[(*count)++] = part_handle(entries[i].gpu, entries[i].parent, entries[i].id);
    return give(OK);
}
Return nvmlComputeInstanceGetInfo_v2(void *part, PartInfo *info) {
    ALLOWED(BOARD(part));
    take();
    int index = find(1, gpu_of(part), instance_of(part), part_of(part));
    if (index >= 0) {
        Entry *e = &entries[index];
        *info = (PartInfo){BOARD(part), instance_handle(e->gpu, e->parent), e->id, e->profile,
                           {e->start, e->size}};
    }
    return give(index < 0 ? INVALID : OK);
}

/* Nobody may call these: they would end the work of others. */
Return nvmlDeviceSetMigMode(Device device, unsigned mode, Return *status) {
    fprintf(stderr, "MIG mode of %ld would be %u, %p\n", number(device), mode, (void *)status);
    abort();
}

/* The MIG devices of a GPU are its compute instances, in the order of their GPU instances. */
static int device_at(unsigned gpu, unsigned index, long *handle) {
    unsigned seen = 0;
    take();
    for (unsigned id = 0; id < 16; id++)
        for (int i = 0; i < listed; i++)
            if (entries[i].part && entries[i].gpu == gpu && entries[i].parent == id &&
                seen++ == index) {
                *handle = 0x10000 + 0x100 * gpu + 0x10 * entries[i].id + id;
                give(OK);
                return 1;
            }
    give(OK);
    return 0;
}
static const char *profile_of(long handle) {
    take();
    int index = find(0, (handle - 0x10000) / 0x100, 0, handle & 0xf);
    give(OK);
    return index < 0 ? "" : PROFILES[kind_of(entries[index].profile)].name;
}
static int exists(long handle) {
    take();
    int index = find(1, (handle - 0x10000) / 0x100, handle & 0xf, handle >> 4 & 0xf);
    give(OK);
    return index >= 0;
}
