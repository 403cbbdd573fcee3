// A stand-in for cuBLASLt, as cublas.cpp.
#include <stdlib.h>
typedef long long i64;
extern "C" {
void fake_work(const char*, const char*, void*, i64, i64, int, const char*);
unsigned long cublasLtGetVersion() { return 130100; }
int cublasLtMatmulDescCreate(void** d, int, int) {
    *d = malloc(64);
    return 0;
}
int cublasLtMatmulPreferenceCreate(void** d) {
    *d = malloc(64);
    return 0;
}
int cublasLtMatrixLayoutCreate(void** d, int, unsigned long, unsigned long, i64) {
    *d = malloc(64);
    return 0;
}
int cublasLtMatmulDescDestroy(void* d) {
    free(d);
    return 0;
}
int cublasLtMatmulPreferenceDestroy(void* d) {
    free(d);
    return 0;
}
int cublasLtMatrixLayoutDestroy(void* d) {
    free(d);
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* n) {
    *n = 1;
    return 0;
}
int cublasLtMatmul(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                   unsigned long, void* s) {
    fake_work("kernel", "nvjet_hsh_lt", s, 5000, 0, 0, "cublasLt");
    return 0;
}
int cublasLtMatmulDescSetAttribute() { return 0; }
int cublasLtMatmulPreferenceSetAttribute() { return 0; }
int cublasLtMatrixLayoutSetAttribute() { return 0; }
}
