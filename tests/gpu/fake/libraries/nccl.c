// A stand-in for NCCL: ranks exchange real bytes, through files in /dev/shm.
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
typedef long long i64;
void fake_work(const char*, const char*, void*, i64, i64, int, const char*);
typedef struct {
    int rank, n, dev;
    char name[64];
    i64 seq;
    i64 sseq[64], rseq[64];
    int async;
} Comm;
typedef struct {
    char b[128];
} Id;
static size_t esize(int t) {
    switch (t) {
        case 0:
        case 1:
            return 1;
        case 6:
        case 9:
            return 2;
        case 2:
        case 3:
        case 7:
            return 4;
        default:
            return 8;
    }
}
static void put(const char* p, const void* d, size_t n) {
    char tmp[300];
    snprintf(tmp, 300, "%s.tmp", p);
    int f = open(tmp, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    size_t k = 0;
    while (k < n) {
        ssize_t w = write(f, (char*)d + k, n - k);
        if (w <= 0) abort();
        k += w;
    }
    close(f);
    rename(tmp, p);
}
static void get(const char* p, void* d, size_t n) {
    int f;
    while ((f = open(p, O_RDONLY)) < 0) {
        struct timespec t = {0, 200000};
        nanosleep(&t, 0);
    }
    size_t k = 0;
    while (k < n) {
        ssize_t r = read(f, (char*)d + k, n - k);
        if (r <= 0) break;
        k += r;
    }
    close(f);
}
#define PATH(p, c, s, r) snprintf(p, 256, "/dev/shm/fnccl_%s_%lld_%d", (c)->name, (i64)(s), r)
static void share(Comm* c, const void* in, size_t bytes) {
    char p[256];
    c->seq++;
    PATH(p, c, c->seq, c->rank);
    put(p, in, bytes);
    if (c->seq > 3) {
        PATH(p, c, c->seq - 3, c->rank);
        unlink(p);
    }
}
static void fetch(Comm* c, int r, void* out, size_t bytes) {
    char p[256];
    PATH(p, c, c->seq, r);
    get(p, out, bytes);
}
static void acc(void* a, const void* b, size_t n, int t) {
    size_t i;
    if (t == 7)
        for (i = 0; i < n; i++) ((float*)a)[i] += ((float*)b)[i];
    else if (t == 8)
        for (i = 0; i < n; i++) ((double*)a)[i] += ((double*)b)[i];
    else if (t == 4 || t == 5)
        for (i = 0; i < n; i++) ((i64*)a)[i] += ((i64*)b)[i];
    else if (t == 2 || t == 3)
        for (i = 0; i < n; i++) ((int*)a)[i] += ((int*)b)[i];
    else if (t == 9)
        for (i = 0; i < n; i++) {
            unsigned x = ((unsigned short*)a)[i] << 16, y = ((unsigned short*)b)[i] << 16;
            float f, g;
            memcpy(&f, &x, 4);
            memcpy(&g, &y, 4);
            f += g;
            memcpy(&x, &f, 4);
            ((unsigned short*)a)[i] = x >> 16;
        }
    else if (t == 6) { /* fp16: left as it is */
    } else
        for (i = 0; i < n; i++) ((unsigned char*)a)[i] += ((unsigned char*)b)[i];
}
static void divide(void* a, size_t n, int t, int by) {
    size_t i;
    if (t == 7)
        for (i = 0; i < n; i++) ((float*)a)[i] /= by;
    else if (t == 8)
        for (i = 0; i < n; i++) ((double*)a)[i] /= by;
}
static i64 cost(size_t b, int n) { return 10000 + (n > 1 ? (i64)(b / 100) : 0); }
int ncclGetVersion(int* v) {
    *v = 22809;
    return 0;
}
int ncclGetUniqueId(Id* id) {
    memset(id, 0, sizeof *id);
    snprintf(id->b, 60, "%d_%ld", getpid(), (long)random() ^ (long)time(0));
    return 0;
}
int cudaGetDevice(int*);
int ncclCommInitRank(Comm** c, int n, Id id, int r) {
    *c = calloc(1, sizeof(Comm));
    (*c)->n = n;
    (*c)->rank = r;
    cudaGetDevice(&(*c)->dev);
    strcpy((*c)->name, id.b);
    if (getenv("FAKE_NCCL_LOG")) fprintf(stderr, "[fake nccl] init rank %d of %d on device %d\n", r, n, (*c)->dev);
    return 0;
}
int ncclCommInitRankConfig(Comm** c, int n, Id id, int r, void* cfg) { return ncclCommInitRank(c, n, id, r); }
int ncclCommInitRankScalable(Comm** c, int n, int r, int k, Id* id, void* cfg) {
    return ncclCommInitRank(c, n, id[0], r);
}
static struct {
    const void* s;
    void* d;
    size_t n;
    int t, root, kind;
    Comm* c;
} pend[4096];
static int npend, depth;
int ncclCommInitAll(Comm** c, int n, const int* devs) {
    for (int i = 0; i < n; i++) {
        c[i] = calloc(1, sizeof(Comm));
        c[i]->n = n;
        c[i]->rank = i;
        c[i]->async = 1;
        c[i]->dev = devs ? devs[i] : i;
    }
    return 0;
}
static void flush(void) {
    for (int i = 0; i < npend; i++) {
        if (pend[i].kind == 0) { /* bcast */
            if (pend[i].c->rank != pend[i].root) {
                for (int k = i - pend[i].c->rank; k < npend; k++)
                    if (k >= 0 && pend[k].c->rank == pend[i].root && pend[k].kind == 0) {
                        memcpy(pend[i].d, pend[k].s, pend[i].n * esize(pend[i].t));
                        break;
                    }
            }
        } else {
            void* root = 0;
            for (int k = 0; k < npend; k++)
                if (pend[k].c->rank == pend[i].root) root = pend[k].d;
            if (root && pend[i].c->rank == pend[i].root && root != pend[i].s)
                memcpy(root, pend[i].s, pend[i].n * esize(pend[i].t));
            if (root && pend[i].c->rank != pend[i].root) acc(root, pend[i].s, pend[i].n, pend[i].t);
        }
    }
    npend = 0;
}
int ncclCommCount(Comm* c, int* n) {
    *n = c->n;
    return 0;
}
int ncclCommUserRank(Comm* c, int* n) {
    *n = c->rank;
    return 0;
}
int ncclCommCuDevice(Comm* c, int* n) {
    *n = c->dev;
    return 0;
}
int ncclCommGetAsyncError(Comm* c, int* e) {
    *e = 0;
    return 0;
}
int ncclCommFinalize(Comm* c) {
    if (getenv("FAKE_NCCL_LOG")) fprintf(stderr, "[fake nccl] finalize rank %d\n", c->rank);
    return 0;
}
int ncclCommDestroy(Comm* c) {
    if (getenv("FAKE_NCCL_LOG")) fprintf(stderr, "[fake nccl] destroy rank %d\n", c->rank);
    if (getenv("FAKE_NCCL_COLLECTIVE") && c->n > 1) {
        char p[256], x;
        snprintf(p, 256, "/dev/shm/fnccl_%s_destroy_%d", c->name, c->rank);
        put(p, "", 0);
        for (int r = 0; r < c->n; r++) {
            snprintf(p, 256, "/dev/shm/fnccl_%s_destroy_%d", c->name, r);
            get(p, &x, 0);
        }
    }
    return 0;
}
int ncclCommAbort(Comm* c) { return 0; }
const char* ncclGetErrorString(int e) { return e ? "fake nccl error" : "no error"; }
const char* ncclGetLastError(Comm* c) { return ""; }
int ncclGroupStart() {
    depth++;
    return 0;
}
int ncclGroupEnd() {
    if (--depth == 0) flush();
    return 0;
}
int ncclAllReduce(const void* s, void* d, size_t n, int t, int op, Comm* c, void* st) {
    size_t b = n * esize(t);
    fake_work("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", st,
              cost(b, c->n), 0, 0, "nccl");
    if (c->n == 1) {
        if (s != d) memcpy(d, s, b);
        return 0;
    }
    share(c, s, b);
    char* sum = malloc(b);
    char* o = malloc(b);
    fetch(c, 0, sum, b);
    for (int r = 1; r < c->n; r++) {
        fetch(c, r, o, b);
        acc(sum, o, n, t);
    }
    if (op == 4) divide(sum, n, t, c->n);
    memcpy(d, sum, b);
    free(sum);
    free(o);
    return 0;
}
int ncclBroadcast(const void* s, void* d, size_t n, int t, int root, Comm* c, void* st) {
    size_t b = n * esize(t);
    fake_work("kernel", "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", st, cost(b, c->n), 0, 0,
              "nccl");
    if (c->n == 1) {
        if (s != d) memcpy(d, s, b);
        return 0;
    }
    share(c, s, c->rank == root ? b : 0);
    if (c->rank != root)
        fetch(c, root, d, b);
    else if (s != d)
        memcpy(d, s, b);
    for (int r = 0; r < c->n; r++) {
        char x;
        fetch(c, r, &x, 0);
    }
    return 0;
}
int ncclBcast(void* d, size_t n, int t, int root, Comm* c, void* st) {
    if (c->async) {
        fake_work("kernel", "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", st,
                  cost(n * esize(t), 2), 0, 0, "nccl");
        pend[npend].s = d;
        pend[npend].d = d;
        pend[npend].n = n;
        pend[npend].t = t;
        pend[npend].root = root;
        pend[npend].kind = 0;
        pend[npend++].c = c;
        return 0;
    }
    return ncclBroadcast(d, d, n, t, root, c, st);
}
int ncclAllGather(const void* s, void* d, size_t n, int t, Comm* c, void* st) {
    size_t b = n * esize(t);
    fake_work("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", st, cost(b, c->n), 0, 0,
              "nccl");
    if (c->n == 1) {
        if (s != d) memcpy(d, s, b);
        return 0;
    }
    share(c, s, b);
    for (int r = 0; r < c->n; r++) fetch(c, r, (char*)d + r * b, b);
    return 0;
}
int ncclReduce(const void* s, void* d, size_t n, int t, int op, int root, Comm* c, void* st) {
    if (c->async) {
        fake_work("kernel", "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", st,
                  cost(n * esize(t), 2), 0, 0, "nccl");
        pend[npend].s = s;
        pend[npend].d = d;
        pend[npend].n = n;
        pend[npend].t = t;
        pend[npend].root = root;
        pend[npend].kind = 1;
        pend[npend++].c = c;
        return 0;
    }
    return ncclAllReduce(s, d, n, t, op, c, st);
}
int ncclSend(const void* s, size_t n, int t, int peer, Comm* c, void* st) {
    char p[256];
    size_t b = n * esize(t);
    fake_work("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", st, cost(b, 2), 0, 0, "nccl");
    snprintf(p, 256, "/dev/shm/fnccl_%s_p_%d_%d_%lld", c->name, c->rank, peer, ++c->sseq[peer]);
    put(p, s, b);
    return 0;
}
int ncclRecv(void* d, size_t n, int t, int peer, Comm* c, void* st) {
    char p[256];
    size_t b = n * esize(t);
    fake_work("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", st, cost(b, 2), 0, 0, "nccl");
    snprintf(p, 256, "/dev/shm/fnccl_%s_p_%d_%d_%lld", c->name, peer, c->rank, ++c->rseq[peer]);
    get(p, d, b);
    unlink(p);
    return 0;
}
// What succeeds without doing anything: memory registered with a communicator, and windows of it.
#define NOTHING(name) \
    int name() { return 0; }
NOTHING(ncclCommRegister)
NOTHING(ncclCommDeregister)
NOTHING(ncclCommWindowRegister)
NOTHING(ncclCommWindowDeregister)
int cudaMalloc(void**, size_t);
int cudaFree(void*);
int ncclMemAlloc(void** p, size_t n) { return cudaMalloc(p, n); }
int ncclMemFree(void* p) { return cudaFree(p); }
