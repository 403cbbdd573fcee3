// A stand-in for NCCL: ranks exchange real bytes, through files in FAKE_NCCL_FOLDER.
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
typedef long long i64;
void fake_act(const char*, void*, i64, void (*)(void*), const void*, size_t);
extern volatile int fake_graphs_of_nccl;
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
// The last messages stay: who has sent them does not know whether they have been read.
static const char* folder(void) {
    const char* of = getenv("FAKE_NCCL_FOLDER");
    return of ? of : "/dev/shm";
}
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
#define PATH(p, c, s, r) snprintf(p, 256, "%s/fnccl_%s_%lld_%d", folder(), (c)->name, (i64)(s), r)
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
// A collective or a message of one rank, as its kernel has it.
typedef struct {
    const void* s;
    void* d;
    size_t n;
    int t, op, root;  // root: or peer
    Comm* c;
} Call;
static struct {
    Call a;
    int reduce;
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
static size_t bytes(const Call* a) { return a->n * esize(a->t); }
static void move(void* d, const void* s, size_t n) {
    if (s != d) memcpy(d, s, n);
}
static void* of_root(int i) {
    for (int k = i - pend[i].a.c->rank; k < npend; k++)
        if (k >= 0 && pend[k].a.c->rank == pend[i].a.root && pend[k].reduce == pend[i].reduce) return pend[k].a.d;
    return 0;
}
static void flush(void) {
    for (int i = 0; i < npend; i++) {
        Call* a = &pend[i].a;
        void* root = of_root(i);
        if (!root) continue;
        if (!pend[i].reduce)
            move(a->d, root, bytes(a));
        else if (a->c->rank == a->root)
            move(root, a->s, bytes(a));
        else
            acc(root, a->s, a->n, a->t);
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
// As from NCCL 2.26 on: a communicator is destroyed, or aborted, when no graph holds work of it any more.
static void wait_for_graphs(void) {
    struct timespec t = {0, 200000};
    while (fake_graphs_of_nccl) nanosleep(&t, 0);
}
int ncclCommDestroy(Comm* c) {
    wait_for_graphs();
    if (getenv("FAKE_NCCL_LOG")) fprintf(stderr, "[fake nccl] destroy rank %d\n", c->rank);
    if (getenv("FAKE_NCCL_COLLECTIVE") && c->n > 1) {
        char p[256], x;
        snprintf(p, 256, "%s/fnccl_%s_destroy_%d", folder(), c->name, c->rank);
        put(p, "", 0);
        for (int r = 0; r < c->n; r++) {
            snprintf(p, 256, "%s/fnccl_%s_destroy_%d", folder(), c->name, r);
            get(p, &x, 0);
        }
    }
    return 0;
}
int ncclCommAbort(Comm* c) {
    wait_for_graphs();
    return 0;
}
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
static void enqueue(const char* name, void* st, int ranks, void (*act)(void*), Call a) {
    char kernel[128];
    snprintf(kernel, 128, "ncclDevKernel_%s(ncclDevKernelArgsStorage<4096ul>)", name);
    fake_act(kernel, st, cost(bytes(&a), ranks), act, &a, sizeof a);
}
static int alone(Call* a, size_t b) {
    if (a->c->n == 1) move(a->d, a->s, b);
    return a->c->n == 1;
}
static void all_reduce(void* of) {
    Call* a = of;
    size_t b = bytes(a);
    if (alone(a, b)) return;
    share(a->c, a->s, b);
    char *sum = malloc(b), *other = malloc(b);
    fetch(a->c, 0, sum, b);
    for (int r = 1; r < a->c->n; r++) {
        fetch(a->c, r, other, b);
        acc(sum, other, a->n, a->t);
    }
    if (a->op == 4) divide(sum, a->n, a->t, a->c->n);
    memcpy(a->d, sum, b);
    free(sum);
    free(other);
}
static void broadcast(void* of) {
    Call* a = of;
    size_t b = bytes(a);
    if (a->c->n > 1) {
        share(a->c, a->s, a->c->rank == a->root ? b : 0);
        if (a->c->rank != a->root) fetch(a->c, a->root, a->d, b);
        for (int r = 0; r < a->c->n; r++) {
            char x;
            fetch(a->c, r, &x, 0);
        }
    }
    if (a->c->rank == a->root) move(a->d, a->s, b);
}
static void all_gather(void* of) {
    Call* a = of;
    size_t b = bytes(a);
    if (alone(a, b)) return;
    share(a->c, a->s, b);
    for (int r = 0; r < a->c->n; r++) fetch(a->c, r, (char*)a->d + r * b, b);
}
static void message(char* p, Comm* c, int from, int to, i64 number) {
    snprintf(p, 256, "%s/fnccl_%s_p_%d_%d_%lld", folder(), c->name, from, to, number);
}
static void send_to(void* of) {
    Call* a = of;
    char p[256];
    message(p, a->c, a->c->rank, a->root, ++a->c->sseq[a->root]);
    put(p, a->s, bytes(a));
}
static void receive(void* of) {
    Call* a = of;
    char p[256];
    message(p, a->c, a->root, a->c->rank, ++a->c->rseq[a->root]);
    get(p, a->d, bytes(a));
    unlink(p);
}
static void nothing(void* of) {}
int ncclAllReduce(const void* s, void* d, size_t n, int t, int op, Comm* c, void* st) {
    enqueue("AllReduce_Sum_f32_RING_LL", st, c->n, all_reduce, (Call){s, d, n, t, op, 0, c});
    return 0;
}
int ncclBroadcast(const void* s, void* d, size_t n, int t, int root, Comm* c, void* st) {
    enqueue("Broadcast_RING_LL", st, c->n, broadcast, (Call){s, d, n, t, 0, root, c});
    return 0;
}
int ncclAllGather(const void* s, void* d, size_t n, int t, Comm* c, void* st) {
    enqueue("AllGather_RING_LL", st, c->n, all_gather, (Call){s, d, n, t, 0, 0, c});
    return 0;
}
// One process drives all GPUs (ncclCommInitAll): the group is done when it ends.
static void later(Call a, int reduce) {
    pend[npend].a = a;
    pend[npend++].reduce = reduce;
}
int ncclBcast(void* d, size_t n, int t, int root, Comm* c, void* st) {
    Call a = {d, d, n, t, 0, root, c};
    if (!c->async) return ncclBroadcast(d, d, n, t, root, c, st);
    enqueue("Broadcast_RING_LL", st, 2, nothing, a);
    later(a, 0);
    return 0;
}
int ncclReduce(const void* s, void* d, size_t n, int t, int op, int root, Comm* c, void* st) {
    Call a = {s, d, n, t, op, root, c};
    if (!c->async) return ncclAllReduce(s, d, n, t, op, c, st);
    enqueue("Reduce_Sum_f32_RING_LL", st, 2, nothing, a);
    later(a, 1);
    return 0;
}
int ncclSend(const void* s, size_t n, int t, int peer, Comm* c, void* st) {
    enqueue("SendRecv", st, 2, send_to, (Call){s, 0, n, t, 0, peer, c});
    return 0;
}
int ncclRecv(void* d, size_t n, int t, int peer, Comm* c, void* st) {
    enqueue("SendRecv", st, 2, receive, (Call){0, d, n, t, 0, peer, c});
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
