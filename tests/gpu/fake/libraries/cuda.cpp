// A stand-in for CUDA's driver: it counts devices, and does nothing else.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) {
    *v = 13000;
    return 0;
}
int cuDeviceGet(int* d, int n) {
    *d = n;
    return 0;
}
int cuDeviceGetCount(int* n) {
    const char* s = getenv("FAKE_GPUS");
    *n = s ? atoi(s) : 1;
    return 0;
}
int cuDevicePrimaryCtxGetState(int, unsigned* f, int* a) {
    *f = 0;
    *a = 1;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int) {
    *c = (void*)1;
    return 0;
}
int cuCtxGetCurrent(void** c) {
    *c = (void*)1;
    return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuDeviceGetAttribute(int* v, int which, int) {
    const char* s = getenv("FAKE_CC");
    int capability = s ? atoi(s) : 90;
    *v = which == 75 ? capability / 10 : which == 76 ? capability % 10 : 0;
    return 0;
}
int cuDeviceGetName(char* name, int length, int) {
    snprintf(name, length, "NVIDIA H100 80GB HBM3");
    return 0;
}
int cuGetErrorString(int e, const char** s) {
    *s = "fake driver error";
    return 0;
}
int cuPointerGetAttribute(void* v, int, unsigned long long) {
    memset(v, 0, 4);
    return 0;
}
}
