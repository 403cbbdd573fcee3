// A stand-in for NVML: H100s that draw 400 W each.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static int n() {
    const char* s = getenv("FAKE_GPUS");
    return s ? atoi(s) : 1;
}
// 9: the driver is not loaded.
int nvmlInit_v2() { return getenv("FAKE_NVML_NO") ? 9 : 0; }
int nvmlInitWithFlags(unsigned f) { return nvmlInit_v2(); }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* c) {
    *c = n();
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** h) {
    if (i >= n()) return 2;
    *h = (void*)(long)(i + 1);
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char* u, void** h) {
    char w[64];
    for (int i = 0; i < n(); i++) {
        char* p = w;
        p += sprintf(p, "GPU-");
        for (int k = 0; k < 16; k++) {
            p += sprintf(p, "%02x", (k * 16 + i) & 255);
            if (k == 3 || k == 5 || k == 7 || k == 9) *p++ = '-';
        }
        *p = 0;
        if (!strcmp(u, w)) {
            *h = (void*)(long)(i + 1);
            return 0;
        }
    }
    return 6;
}
int nvmlDeviceGetUUID(void* h, char* u, unsigned len) {
    char* p = u;
    p += sprintf(p, "GPU-");
    for (int k = 0; k < 16; k++) {
        p += sprintf(p, "%02x", (k * 16 + (int)(long)h - 1) & 255);
        if (k == 3 || k == 5 || k == 7 || k == 9) *p++ = '-';
    }
    *p = 0;
    return 0;
}
int nvmlDeviceGetName(void* h, char* s, unsigned l) {
    strcpy(s, "NVIDIA H100 80GB HBM3");
    return 0;
}
int nvmlSystemGetDriverVersion(char* s, unsigned l) {
    strcpy(s, "580.159.04");
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* h, int* a, int* b) {
    *a = 9;
    *b = 0;
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* h, unsigned long long* e) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *e = t.tv_sec * 400000ULL + t.tv_nsec / 2500;
    return 0;
}
int nvmlDeviceGetPowerUsage(void* h, unsigned* p) {
    *p = 400000;
    return 0;
}
const char* nvmlErrorString(int e) { return e == 6 ? "Not Found" : "error"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* s, void** h) {
    *h = (void*)1;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void* h, unsigned* n, void* p) {
    *n = 0;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* h, unsigned* n, void* p) {
    *n = 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* h, unsigned l, int* t) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* h, unsigned l, void* t) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(int* v) {
    *v = 13000;
    return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void* h, void* i) { return 3; }
int nvmlDeviceGetGpuFabricInfo(void* h, void* i) { return 3; }
