// A stand-in for cuBLAS: a product is a kernel that does nothing.
#include <stdlib.h>
typedef long long i64;
extern "C" {
void fake_work(const char*, const char*, void*, i64, i64, int, const char*);
struct H {
    void* stream;
    int math, ptr;
};
int cublasCreate_v2(void** h) {
    *h = calloc(1, sizeof(H));
    return 0;
}
int cublasDestroy_v2(void* h) {
    free(h);
    return 0;
}
int cublasSetStream_v2(void* h, void* s) {
    ((H*)h)->stream = s;
    return 0;
}
int cublasSetMathMode(void* h, int m) {
    ((H*)h)->math = m;
    return 0;
}
int cublasGetMathMode(void* h, int* m) {
    *m = ((H*)h)->math;
    return 0;
}
int cublasSetPointerMode_v2(void* h, int m) {
    ((H*)h)->ptr = m;
    return 0;
}
int cublasGetPointerMode_v2(void* h, int* m) {
    *m = ((H*)h)->ptr;
    return 0;
}
int cublasSetWorkspace_v2(void*, void*, unsigned long) { return 0; }
int cublasGetVersion_v2(void*, int* v) {
    *v = 130100;
    return 0;
}
#define PRODUCT(name)                                                                                      \
    int name(void* h) {                                                                                    \
        fake_work("kernel", "sm90_xmma_gemm_" #name, ((H*)h)->stream, 5000, 0, 0, "cublas");               \
        return 0;                                                                                          \
    }
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasSgemmBatched)
PRODUCT(cublasDgemmBatched)
PRODUCT(cublasSgemv_v2)
}
