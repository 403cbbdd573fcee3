// A stand-in for CUPTI: records of what the runtime's stand-in was asked for.
#include <cuda.h>
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
typedef long long i64;
extern "C" int fake_graph_node;
extern "C" void (*fake_hook)(const char*, const char*, i64, i64, int, void*, i64, int, i64, i64);
static i64 now() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static CUpti_BuffersCallbackRequestFunc req;
static CUpti_BuffersCallbackCompleteFunc comp;
static CUpti_TimestampCallbackFunc stamp;
static bool on[200];
static std::mutex mu;
static std::vector<std::string> recs;
static std::atomic<unsigned> corr{1};
static i64 base_now;
static unsigned long long base_cb;
static double ratio = 1;
static uint64_t conv(i64 t) { return stamp ? base_cb + (uint64_t)((t - base_now) * ratio) : (uint64_t)t; }
static thread_local std::vector<std::pair<int, uint64_t>> ext[8];
static uint8_t* cur;
static size_t cur_n;
template <class T>
static void add(const T& r) {
    if (!cur && req) {
        size_t m = 0;
        req(&cur, &cur_n, &m);
    }
    recs.emplace_back((const char*)&r, sizeof r);
}
static void hook(const char* kind, const char* name, i64 t0, i64 t1, int dev, void* stream, i64 bytes, int ck, i64 h0,
                 i64 h1) {
    std::lock_guard<std::mutex> g(mu);
    // All of a graph is of one call.
    bool called = fake_graph_node <= 1;
    unsigned c = called ? corr++ : corr - 1;
    bool k = !strcmp(kind, "kernel"), m = !strcmp(kind, "memcpy");
    if (called && on[CUPTI_ACTIVITY_KIND_RUNTIME]) {
        CUpti_ActivityAPI a;
        memset(&a, 0, sizeof a);
        a.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
        a.cbid = fake_graph_node ? 311 : k ? 211 : m ? 41 : 51;
        a.start = conv(h0);
        a.end = conv(h1);
        a.processId = getpid();
        a.threadId = syscall(SYS_gettid);
        a.correlationId = c;
        add(a);
    }
    if (called && on[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION])
        for (int e = 0; e < 8; e++)
            if (!ext[e].empty()) {
                CUpti_ActivityExternalCorrelation x;
                memset(&x, 0, sizeof x);
                x.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
                x.externalKind = (CUpti_ExternalCorrelationKind)e;
                x.externalId = ext[e].back().second;
                x.correlationId = c;
                add(x);
            }
    unsigned st = stream ? ((unsigned)(size_t)stream >> 4) & 0xff : 7;
    if (k && on[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) {
        CUpti_ActivityKernel10 a;
        memset(&a, 0, sizeof a);
        a.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        a.start = conv(t0);
        a.end = conv(t1);
        a.completed = a.end;
        a.deviceId = dev;
        a.contextId = 1;
        a.streamId = st;
        a.gridX = 132;
        a.gridY = a.gridZ = 1;
        a.blockX = 256;
        a.blockY = a.blockZ = 1;
        a.registersPerThread = 32;
        a.correlationId = c;
        a.name = strdup(name);
        add(a);
    } else if (m && on[CUPTI_ACTIVITY_KIND_MEMCPY]) {
        CUpti_ActivityMemcpy6 a;
        memset(&a, 0, sizeof a);
        a.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
        a.copyKind = ck;
        a.srcKind = ck == 1 ? 1 : 3;
        a.dstKind = ck == 2 ? 1 : 3;
        a.bytes = bytes;
        a.start = conv(t0);
        a.end = conv(t1);
        a.deviceId = dev;
        a.contextId = 1;
        a.streamId = st;
        a.correlationId = c;
        add(a);
    } else if (!strcmp(kind, "memset") && on[CUPTI_ACTIVITY_KIND_MEMSET]) {
        CUpti_ActivityMemset4 a;
        memset(&a, 0, sizeof a);
        a.kind = CUPTI_ACTIVITY_KIND_MEMSET;
        a.bytes = bytes;
        a.start = conv(t0);
        a.end = conv(t1);
        a.deviceId = dev;
        a.contextId = 1;
        a.streamId = st;
        a.correlationId = c;
        a.memoryKind = 3;
        add(a);
    }
}
static size_t size_of(const CUpti_Activity* a) {
    switch (a->kind) {
        case CUPTI_ACTIVITY_KIND_RUNTIME:
        case CUPTI_ACTIVITY_KIND_DRIVER:
            return sizeof(CUpti_ActivityAPI);
        case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
            return sizeof(CUpti_ActivityExternalCorrelation);
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
            return sizeof(CUpti_ActivityKernel10);
        case CUPTI_ACTIVITY_KIND_MEMCPY:
            return sizeof(CUpti_ActivityMemcpy6);
        case CUPTI_ACTIVITY_KIND_MEMSET:
            return sizeof(CUpti_ActivityMemset4);
        default:
            return 0;
    }
}
extern "C" {
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc a, CUpti_BuffersCallbackCompleteFunc b) {
    req = a;
    comp = b;
    fake_hook = hook;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind k) {
    if (getenv("FAKE_CUPTI_NO")) return CUPTI_ERROR_NOT_INITIALIZED;
    on[k] = true;
    if (getenv("FAKE_CUPTI_LOG")) fprintf(stderr, "[fake cupti] enable %d\n", k);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind k) {
    on[k] = false;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc f) {
    if (getenv("FAKE_CUPTI_LOG")) fprintf(stderr, "[fake cupti] stamp\n");
    stamp = f;
    if (f) {
        base_now = now();
        base_cb = f();
        timespec d{0, 20000000};
        nanosleep(&d, 0);
        i64 n = now();
        unsigned long long c = f();
        ratio = (double)(c - base_cb) / (n - base_now);
    }
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t) {
    std::vector<std::string> mine;
    {
        std::lock_guard<std::mutex> g(mu);
        mine.swap(recs);
    }
    if (getenv("FAKE_CUPTI_LOG")) fprintf(stderr, "[fake cupti] flush %zu hook %p\n", mine.size(), (void*)fake_hook);
    size_t i = 0;
    while (i < mine.size() && req) {
        uint8_t* b = cur;
        size_t n = cur_n, max = 0;
        cur = 0;
        if (!b) req(&b, &n, &max);
        if (!b) break;
        size_t at = 0;
        while (i < mine.size() && at + mine[i].size() <= n) {
            memcpy(b + at, mine[i].data(), mine[i].size());
            at += mine[i].size();
            i++;
        }
        if (getenv("FAKE_CUPTI_THREAD")) {
            std::thread t([=] { comp((CUcontext)0, 0, b, n, at); });
            t.join();
        } else
            comp((CUcontext)0, 0, b, n, at);
    }
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* b, size_t valid, CUpti_Activity** r) {
    if (!valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    uint8_t* next = *r ? (uint8_t*)*r + size_of(*r) : b;
    if (next >= b + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *r = (CUpti_Activity*)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* n) {
    *n = 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind k, uint64_t id) {
    ext[k & 7].push_back({k, id});
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind k, uint64_t* id) {
    auto& e = ext[k & 7];
    if (e.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
    if (id) *id = e.back().second;
    e.pop_back();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t*, void*) { return CUPTI_SUCCESS; }
CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) { return CUPTI_SUCCESS; }
CUptiResult cuptiFinalize() { return CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult, const char** s) {
    *s = "fake cupti";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetVersion(uint32_t* v) {
    *v = 130001;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* h, CUpti_CallbackFunc, void*) {
    if (getenv("FAKE_CUPTI_NO")) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *h = (CUpti_SubscriberHandle)1;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
CUptiResult cuptiGetTimestamp(uint64_t* t) {
    *t = now();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType) { return CUPTI_SUCCESS; }
CUptiResult cuptiGetThreadIdType(CUpti_ActivityThreadIdType* t) {
    *t = CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM;
    return CUPTI_SUCCESS;
}
}
