// A fake CUDA runtime: memory is the host's, kernels do nothing but take time on a simulated timeline. A stream that
// is captured keeps what is issued into it; launching the graph does it, one piece of work after the other.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <functional>
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
static std::map<std::pair<int, void*>, i64> tails;
extern "C" {
struct FakeCounters {
    i64 kernels, h2d, d2h, d2d, h2d_bytes, pageable_h2d, sync_stream, sync_device, sync_event, events, waits, mallocs,
        frees, pageable_d2h, waited_ns, graph_launches;
} fake_counters;
// Of the graph that is being launched, the number of the piece of work, from 1; 0: none is.
int fake_graph_node;
// Graphs, captured or ready to be launched, in which NCCL has work.
int fake_graphs_of_nccl;
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

// --- capture: what is issued into a stream is kept instead of done
struct Work {
    std::string kind, name;
    i64 ns, bytes;
    int copy_kind;
    std::function<void()> act;
};
struct Graph {
    std::vector<Work> works;
};
static bool of_nccl(const Graph* graph) {
    for (auto& work : graph->works)
        if (work.name.rfind("nccl", 0) == 0) return true;
    return false;
}
// How much of each stream's work is known to be over: what an event says of a capture, and who waits for it.
typedef std::map<void*, i64> Seen;
struct Capture {
    unsigned long long id;
    void* origin;
    cudaStreamCaptureMode mode;
    pthread_t thread;
    Graph* graph;
    std::map<void*, Seen> streams;  // that take part
    cudaError_t broken;
};
struct Event {
    i64 t;
    unsigned long long capture;  // 0: of none
    Seen seen;
};
static Capture* capture;  // one at a time, as PyTorch has it
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static bool captured(void* s) { return capture && capture->streams.count(s); }
static void merge(Seen& into, const Seen& from) {
    for (auto& one : from)
        if (one.second > into[one.first]) into[one.first] = one.second;
}
// What may not be done while a capture is under way: it breaks it.
static cudaError_t unless_captured(bool forbidden) {
    std::lock_guard<std::mutex> g(mu);
    if (!forbidden || !capture) return cudaSuccess;
    capture->broken = cudaErrorStreamCaptureUnsupported;
    return last = cudaErrorStreamCaptureUnsupported;
}
static bool strict() {
    return capture && thread_mode != cudaStreamCaptureModeRelaxed && capture->mode != cudaStreamCaptureModeRelaxed &&
           (capture->mode == cudaStreamCaptureModeGlobal || pthread_equal(capture->thread, pthread_self()));
}
static void on_timeline(const Work& work, void* stream) {
    i64 h0 = now(), t0, t1;
    {
        std::lock_guard<std::mutex> g(mu);
        i64& t = tail(stream);
        t0 = t > h0 ? t : h0;
        t = t1 = t0 + work.ns;
    }
    if (fake_hook)
        fake_hook(work.kind.c_str(), work.name.c_str(), t0, t1, dev, stream, work.bytes, work.copy_kind, h0, now());
}
static void issue(void* stream, Work work) {
    {
        std::lock_guard<std::mutex> g(mu);
        if (captured(stream)) {
            capture->streams[stream][stream]++;
            capture->graph->works.push_back(work);
            return;
        }
    }
    on_timeline(work, stream);
    if (work.act) work.act();
}
extern "C" void fake_work(const char* kind, const char* name, void* stream, i64 ns, i64 bytes, int ck, const char*) {
    issue(stream, {kind, name, ns, bytes, ck, nullptr});
}
// The same of work that does something to a copy of `data`: now, or whenever its graph is launched.
extern "C" void fake_act(const char* name, void* stream, i64 ns, void (*act)(void*), const void* data, size_t size) {
    std::string kept((const char*)data, size);
    issue(stream, {"kernel", name, ns, 0, 0, [act, kept] { act((void*)kept.data()); }});
}
static i64 whole_pages(i64 bytes) { return (bytes + (2 << 20) - 1) & ~((i64)(2 << 20) - 1); }
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
    const std::map<cudaDeviceAttr, i64> known = {
        {cudaDevAttrComputeCapabilityMajor, p.major},
        {cudaDevAttrComputeCapabilityMinor, p.minor},
        {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, p.sharedMemPerBlockOptin},
        {cudaDevAttrMaxSharedMemoryPerBlock, p.sharedMemPerBlock},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, p.sharedMemPerMultiprocessor},
        {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
        {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
        {cudaDevAttrWarpSize, p.warpSize},
        {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
        {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrTextureAlignment, p.textureAlignment},
        {cudaDevAttrPciBusId, p.pciBusID},
    };
    auto found = known.find(a);
    *v = found == known.end() ? 0 : found->second;
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
    if (cudaError_t e = unless_captured(strict())) return e;
    std::lock_guard<std::mutex> g(mu);
    fake_counters.mallocs++;
    i64 rounded = whole_pages(n);
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
        used[i->second.second] -= whole_pages(i->second.first);
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
static i64 tail_of(void* s) {
    std::lock_guard<std::mutex> g(mu);
    return tail(s);
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
    if (cudaError_t e = unless_captured(block && (strict() || captured(st)))) return e;
    issue(st, {"memcpy", name, ns, (i64)n, ck, [=] { memcpy(d, s, n); }});
    if (block) until(tail_of(st));
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
    issue(s, {"memset", "Memset", 1500, (i64)n, 0, [=] { memset(d, v, n); }});
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
    *s = (cudaStream_t)malloc(64);  // an address of its own
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) { return cudaStreamCreateWithPriority(s, f, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) {
    *p = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    if (cudaError_t e = unless_captured(captured(s))) return e;
    return tail_of(s) > now() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (cudaError_t e = unless_captured(captured(s) || strict())) return e;
    fake_counters.sync_stream++;
    until(tail_of(s));
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    if (cudaError_t e = unless_captured(strict())) return e;
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
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    *e = (cudaEvent_t) new Event{};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete (Event*)e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) {
    std::lock_guard<std::mutex> g(mu);
    Event* e = (Event*)event;
    fake_counters.events++;
    e->capture = captured(s) ? capture->id : 0;
    if (e->capture) {
        e->seen = capture->streams[s];
        return cudaSuccess;
    }
    i64 n = now(), t = tail(s);
    e->t = t > n ? t : n;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }
static bool of_capture(cudaEvent_t e) { return capture && ((Event*)e)->capture == capture->id; }
cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (cudaError_t error = unless_captured(of_capture(e))) return error;
    return ((Event*)e)->t > now() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (cudaError_t error = unless_captured(of_capture(e))) return error;
    fake_counters.sync_event++;
    until(((Event*)e)->t);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
    *ms = (float)((((Event*)b)->t - ((Event*)a)->t) / 1e6);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned) {
    std::lock_guard<std::mutex> g(mu);
    Event* e = (Event*)event;
    if (of_capture(event)) {
        // The default stream cannot take part, and what waits for a part takes part.
        if (!s) return last = capture->broken = cudaErrorStreamCaptureImplicit;
        merge(capture->streams[s], e->seen);
        return cudaSuccess;
    }
    if (captured(s)) return cudaSuccess;  // for what was over before the graph is launched
    fake_counters.waits++;
    i64& t = tail(s);
    if (e->t > t) t = e->t;
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
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
    std::lock_guard<std::mutex> g(mu);
    *status = captured(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = captured(s) ? capture->id : 0;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
    return cudaStreamGetCaptureInfo(s, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    static unsigned long long id;
    std::lock_guard<std::mutex> g(mu);
    if (!s || capture) return last = cudaErrorStreamCaptureUnsupported;
    capture = new Capture{++id, s, mode, pthread_self(), new Graph, {{s, {}}}, cudaSuccess};
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
    std::lock_guard<std::mutex> g(mu);
    *graph = nullptr;
    if (!capture || capture->origin != s) return last = cudaErrorIllegalState;
    Capture done = *capture;
    delete capture;
    capture = nullptr;
    // Work that the first stream does not wait for would be cut off.
    for (auto& one : done.streams)
        if (!done.broken && done.streams[s][one.first] < one.second[one.first])
            done.broken = cudaErrorStreamCaptureUnjoined;
    if (done.broken) return last = done.broken;
    *graph = (cudaGraph_t)done.graph;
    fake_graphs_of_nccl += of_nccl(done.graph);
    return cudaSuccess;
}
// What is launched is the graph as it was captured: nobody changes it between.
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    *made = (cudaGraphExec_t) new Graph(*(Graph*)graph);
    fake_graphs_of_nccl += of_nccl((Graph*)graph);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
    *count = ((Graph*)graph)->works.size();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    fake_graphs_of_nccl -= of_nccl((Graph*)graph);
    delete (Graph*)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy((cudaGraph_t)graph); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) {
    fake_counters.graph_launches++;
    fake_graph_node = 0;
    for (auto& work : ((Graph*)graph)->works) {
        fake_graph_node++;
        on_timeline(work, s);
        if (work.act) work.act();
    }
    fake_graph_node = 0;
    return cudaSuccess;
}
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
