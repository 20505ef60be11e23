/* A fake of NVIDIA's driver library for the tests: four devices, the last of which cannot be watched; an error, with
 * which its device falls off the bus; a wait that fails because of that; another device's error; then no more events. */
#include <unistd.h>

typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } event;
typedef struct { int freed, watched[4]; } event_set;

static char devices[4];
static event_set sets[4];
static int made, waits, lost;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, TIMEOUT = 10, GPU_IS_LOST = 15, XID = 8 };

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &devices[index]; return SUCCESS; }
int nvmlDeviceGetIndex(void *device, unsigned *index) {
    if (lost && device == &devices[1]) return GPU_IS_LOST;
    *index = (char *)device - devices;
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) {
    if (made == 4) return INVALID_ARGUMENT;
    *set = &sets[made++];
    return SUCCESS;
}
int nvmlEventSetFree(void *set) { ((event_set *)set)->freed = 1; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    event_set *into = set;
    if (types != XID || into->freed) return INVALID_ARGUMENT;
    if (device == &devices[3]) return GPU_IS_LOST;
    into->watched[(char *)device - devices] = 1;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *set, event *told, unsigned timeout_ms) {
    event_set *of = set;
    (void)timeout_ms;
    if (of->freed || !of->watched[1] || !of->watched[2]) return INVALID_ARGUMENT;
    switch (waits++) {
    case 0: lost = 1; *told = (event){&devices[1], XID, 79, 0, 0}; return SUCCESS;
    case 1: return GPU_IS_LOST;
    case 2: *told = (event){&devices[2], XID, 999, 0, 0}; return SUCCESS;
    default: sleep(1); return TIMEOUT;
    }
}
