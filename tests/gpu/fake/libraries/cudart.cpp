// A fake CUDA runtime: memory is the host's, kernels do nothing but take time on a simulated timeline.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>
typedef long long i64;
static std::mutex mu;
static thread_local int dev = 0;
static thread_local cudaError_t last = cudaSuccess;
static i64 now() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static i64 envn(const char* n, i64 d) {
    const char* s = getenv(n);
    return s ? atoll(s) : d;
}
static int ndev() {
    static int n = envn("FAKE_GPUS", 1);
    return n;
}
static i64 total() {
    static i64 n = envn("FAKE_MEM_MB", 81559) << 20;
    return n;
}
static i64 kernel_ns() {
    static i64 n = envn("FAKE_KERNEL_NS", 2000);
    return n;
}
static std::map<void*, std::pair<size_t, int>> devmem, hostmem;
static i64 used[64];
struct Stream {
    int device;
    i64 tail;
    unsigned flags;
};
static std::map<std::pair<int, void*>, i64> tails;
extern "C" {
struct FakeCounters {
    i64 kernels, h2d, d2h, d2d, h2d_bytes, pageable_h2d, sync_stream, sync_device, sync_event, events, waits, mallocs,
        frees, pageable_d2h, waited_ns;
} fake_counters;
// hook for fake cupti
void (*fake_hook)(const char* kind, const char* name, i64 t0, i64 t1, int device, void* stream, i64 bytes,
                  int copykind, i64 host0, i64 host1) = nullptr;
}
static i64& tail(void* s) { return tails[{dev, s}]; }
static void until(i64 t) {
    i64 n = now();
    if (t > n) {
        fake_counters.waited_ns += t - n;
        timespec d{(t - n) / 1000000000LL, (t - n) % 1000000000LL};
        nanosleep(&d, 0);
    }
}
extern "C" void fake_work(const char* kind, const char* name, void* stream, i64 ns, i64 bytes, int ck,
                          const char* api) {
    i64 h0 = now();
    i64 t0, t1;
    {
        std::lock_guard<std::mutex> g(mu);
        i64& t = tail(stream);
        t0 = t > h0 ? t : h0;
        t1 = t0 + ns;
        t = t1;
    }
    if (fake_hook) fake_hook(kind, name, t0, t1, dev, stream, bytes, ck, h0, now());
}
static cudaError_t fail(cudaError_t e) {
    last = e;
    return e;
}
extern "C" {
cudaError_t cudaGetDeviceCount(int* n) {
    *n = ndev();
    return *n ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* d) {
    *d = dev;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
    if (d < 0 || d >= ndev()) return fail(cudaErrorInvalidDevice);
    dev = d;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "NVIDIA H100 80GB HBM3");
    p->totalGlobalMem = total();
    p->major = envn("FAKE_CC", 90) / 10;
    p->minor = envn("FAKE_CC", 90) % 10;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->regsPerBlock = 65536;
    p->regsPerMultiprocessor = 65536;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerMultiprocessor = 233472;
    p->sharedMemPerBlockOptin = 232448;
    p->l2CacheSize = 52428800;
    for (int i = 0; i < 3; i++) {
        p->maxThreadsDim[i] = i == 2 ? 64 : 1024;
        p->maxGridSize[i] = i ? 65535 : 2147483647;
    }
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->memPitch = 2147483647;
    p->concurrentKernels = 1;
    p->unifiedAddressing = 1;
    p->managedMemory = 1;
    p->asyncEngineCount = 3;
    p->pciBusID = 0x1b + d;
    p->pciDeviceID = 0;
    p->pciDomainID = 0;
    p->maxBlocksPerMultiProcessor = 32;
    p->memoryBusWidth = 5120;
    for (int i = 0; i < 16; i++) p->uuid.bytes[i] = i * 16 + d;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, d);
    switch (a) {
        case cudaDevAttrComputeCapabilityMajor:
            *v = p.major;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *v = p.minor;
            break;
        case cudaDevAttrMultiProcessorCount:
            *v = 132;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *v = 232448;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *v = 49152;
            break;
        case cudaDevAttrMaxThreadsPerBlock:
            *v = 1024;
            break;
        case cudaDevAttrWarpSize:
            *v = 32;
            break;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *v = 2048;
            break;
        case cudaDevAttrMaxGridDimX:
            *v = 2147483647;
            break;
        case cudaDevAttrMaxGridDimY:
            *v = 65535;
            break;
        case cudaDevAttrL2CacheSize:
            *v = 52428800;
            break;
        case cudaDevAttrTextureAlignment:
            *v = 512;
            break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *v = 233472;
            break;
        case cudaDevAttrPciBusId:
            *v = 0x1b + d;
            break;
        default:
            *v = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* s, int n, int d) {
    snprintf(s, n, "0000:%02X:00.0", 0x1b + d);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) {
    if (a) *a = 0;
    if (b) *b = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* v, int, int) {
    *v = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) {
    *p = (cudaMemPool_t)1;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char* cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory" : e ? "fake error" : "no error";
}
const char* cudaGetErrorName(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorFake";
}
cudaError_t cudaMalloc(void** p, size_t n) {
    std::lock_guard<std::mutex> g(mu);
    fake_counters.mallocs++;
    i64 rounded = (n + (2 << 20) - 1) & ~((i64)(2 << 20) - 1);
    if (used[dev] + rounded + (500LL << 20) > total()) {
        *p = 0;
        return fail(cudaErrorMemoryAllocation);
    }
    void* m = mmap(0, n ? n : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
    devmem[m] = {n ? n : 1, dev};
    used[dev] += rounded;
    *p = m;
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    std::lock_guard<std::mutex> g(mu);
    auto i = devmem.find(p);
    if (i != devmem.end()) {
        fake_counters.frees++;
        munmap(p, i->second.first);
        used[i->second.second] -= (i->second.first + (2 << 20) - 1) & ~((i64)(2 << 20) - 1);
        devmem.erase(i);
    }
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
cudaError_t cudaMallocHost(void** p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
    if (posix_memalign(p, 4096, n ? n : 1)) return fail(cudaErrorMemoryAllocation);
    std::lock_guard<std::mutex> g(mu);
    hostmem[*p] = {n, 0};
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
    std::lock_guard<std::mutex> g(mu);
    hostmem.erase(p);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
    std::lock_guard<std::mutex> g(mu);
    hostmem[p] = {n, 0};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
    std::lock_guard<std::mutex> g(mu);
    hostmem.erase(p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
    std::lock_guard<std::mutex> g(mu);
    *t = total();
    *f = total() - used[dev] - (500LL << 20);
    return cudaSuccess;
}
static int where(const void* p, int* d) {
    std::lock_guard<std::mutex> g(mu);
    for (auto* m : {&devmem, &hostmem}) {
        auto i = m->upper_bound((void*)p);
        if (i != m->begin()) {
            --i;
            if ((char*)p < (char*)i->first + i->second.first) {
                if (d) *d = i->second.second;
                return m == &devmem ? 2 : 1;
            }
        }
    }
    return 0;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    memset(a, 0, sizeof *a);
    int d = 0;
    int w = where(p, &d);
    a->type = w == 2 ? cudaMemoryTypeDevice : w == 1 ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    a->device = w ? d : -2;
    a->devicePointer = w ? (void*)p : 0;
    a->hostPointer = w == 1 ? (void*)p : 0;
    return cudaSuccess;
}
static cudaError_t copy(void* d, const void* s, size_t n, cudaStream_t st, bool async) {
    int ds = where(d, 0), ss = where(s, 0);
    const char* name;
    i64 ns = 1500;
    int ck;
    bool block = !async;
    if (ds == 2 && ss == 2) {
        fake_counters.d2d++;
        name = "DtoD";
        ck = 8;
        ns += n / 1500;
    } else if (ds == 2) {
        fake_counters.h2d++;
        fake_counters.h2d_bytes += n;
        name = "HtoD";
        ck = 1;
        if (ss == 0) {
            fake_counters.pageable_h2d++;
            if (n > 65536) block = true;
            ns += n / 6;
        } else
            ns += n / 50;
    } else {
        fake_counters.d2h++;
        name = "DtoH";
        ck = 2;
        ns += n / 20;
        if (ds == 0) {
            fake_counters.pageable_d2h++;
            block = true;
        }
    }
    if (async && st && false) {
    }
    fake_work("memcpy", name, st, ns, n, ck, "cudaMemcpyAsync");
    i64 t;
    {
        std::lock_guard<std::mutex> g(mu);
        t = tail(st);
    }
    if (block) until(t);
    memcpy(d, s, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) { return copy(d, s, n, 0, false); }
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t st) {
    return copy(d, s, n, st, true);
}
cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
    return copy(d, s, n, st, true);
}
cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h, cudaMemcpyKind,
                              cudaStream_t) {
    for (size_t i = 0; i < h; i++) memcpy((char*)d + i * dp, (char*)s + i * sp, w);
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaMemset(void* d, int v, size_t n) {
    memset(d, v, n);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t s) {
    fake_work("memset", "Memset", s, 1500, n, 0, "cudaMemsetAsync");
    memset(d, v, n);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) {
    *s = (cudaStream_t) new Stream{dev, 0, 0};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) {
    *s = (cudaStream_t) new Stream{dev, 0, f};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int) {
    *s = (cudaStream_t) new Stream{dev, 0, f};
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) {
    *p = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    std::lock_guard<std::mutex> g(mu);
    return tail(s) > now() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    fake_counters.sync_stream++;
    i64 t;
    {
        std::lock_guard<std::mutex> g(mu);
        t = tail(s);
    }
    until(t);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    fake_counters.sync_device++;
    i64 t = 0;
    {
        std::lock_guard<std::mutex> g(mu);
        for (auto& k : tails)
            if (k.first.first == dev && k.second > t) t = k.second;
    }
    until(t);
    return cudaSuccess;
}
struct Ev {
    i64 t;
};
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    *e = (cudaEvent_t) new Ev{0};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete (Ev*)e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    std::lock_guard<std::mutex> g(mu);
    fake_counters.events++;
    i64 n = now(), &t = tail(s);
    ((Ev*)e)->t = t > n ? t : n;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }
cudaError_t cudaEventQuery(cudaEvent_t e) { return ((Ev*)e)->t > now() ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    fake_counters.sync_event++;
    until(((Ev*)e)->t);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
    *ms = (float)((((Ev*)b)->t - ((Ev*)a)->t) / 1e6);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    std::lock_guard<std::mutex> g(mu);
    fake_counters.waits++;
    i64& t = tail(s);
    if (((Ev*)e)->t > t) t = ((Ev*)e)->t;
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* d, unsigned) {
    f(s, cudaSuccess, d);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* d) {
    f(d);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
    *s = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long* id, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
    *s = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->ptxVersion = 90;
    a->binaryVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) {
    *n = 2;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
    *n = 2;
    return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** p, const void*) {
    static char b[1 << 20];
    *p = b;
    return cudaSuccess;
}
cudaError_t cudaProfilerStart() {
    fprintf(stderr, "[fake] cudaProfilerStart\n");
    return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
    fprintf(stderr, "[fake] cudaProfilerStop\n");
    return cudaSuccess;
}
static int noop() { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* n, void** f, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* r) {
    void* h = dlopen("libcuda.so.1", RTLD_NOW);
    *f = h ? dlsym(h, n) : 0;
    if (!*f) *f = (void*)noop;
    if (r) *r = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
// --- kernels
static std::map<const void*, std::string>* names;
void** __cudaRegisterFatBinary(void*) {
    static void* h = &h;
    return (void**)&h;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char* f, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    static std::mutex m;
    std::lock_guard<std::mutex> g(m);
    if (!names) names = new std::map<const void*, std::string>;
    (*names)[f] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
static thread_local std::vector<std::tuple<dim3, dim3, size_t, void*>> pushed;
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t s, CUstream_st* st) {
    pushed.emplace_back(g, b, s, st);
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* s, void* st) {
    if (pushed.empty()) return cudaErrorUnknown;
    auto [x, y, z, w] = pushed.back();
    pushed.pop_back();
    *g = x;
    *b = y;
    *s = z;
    *(void**)st = w;
    return cudaSuccess;
}
static void kernel(const void* f, void* s) {
    fake_counters.kernels++;
    const char* n = "kernel";
    if (names) {
        auto i = names->find(f);
        if (i != names->end()) n = i->second.c_str();
    }
    fake_work("kernel", n, s, kernel_ns(), 0, 0, "cudaLaunchKernel");
}
cudaError_t cudaLaunchKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t s) {
    kernel(f, s);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void**) {
    kernel(f, c->stream);
    return cudaSuccess;
}
cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t s) {
    kernel(f, s);
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* f) {
    *k = (cudaKernel_t)f;
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3, dim3, void**, size_t, cudaStream_t s) {
    kernel((const void*)k, s);
    return cudaSuccess;
}
}
