/* What the tests load in the place of NVIDIA's driver library: three devices, two errors, then silence. */
#include <unistd.h>

typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } event;

static char devices[3];
static int waits;

enum { SUCCESS = 0, TIMEOUT = 10, XID = 8 };

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &devices[index]; return SUCCESS; }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (char *)device - devices; return SUCCESS; }
int nvmlEventSetCreate(void **set) { *set = &waits; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)device; (void)set;
    return types == XID ? SUCCESS : 2;
}
int nvmlEventSetWait_v2(void *set, event *told, unsigned timeout_ms) {
    (void)set; (void)timeout_ms;
    switch (waits++) {
    case 0: *told = (event){&devices[1], XID, 79, 0, 0}; return SUCCESS;
    case 1: *told = (event){&devices[2], XID, 999, 0, 0}; return SUCCESS;
    default: sleep(1); return TIMEOUT;
    }
}
