// A stand-in for cuBLAS: a product is a kernel that does nothing.
#include <stdlib.h>
#include <string.h>
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
int cublasDestroy_v2(void* h) { return 0; }
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
int cublasCaxpy_v2() { return 0; }
int cublasCcopy_v2() { return 0; }
int cublasCdotc_v2() { return 0; }
int cublasCdotu_v2() { return 0; }
int cublasCgelsBatched() { return 0; }
int cublasCgemmBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasCgemmBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasCgemmStridedBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasCgemmStridedBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasCgemm_v2(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasCgemm_v2", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasCgemv_v2() { return 0; }
int cublasCgeqrfBatched() { return 0; }
int cublasCgerc_v2() { return 0; }
int cublasCgeru_v2() { return 0; }
int cublasCgetrfBatched() { return 0; }
int cublasCgetrsBatched() { return 0; }
int cublasChemm_v2() { return 0; }
int cublasChemv_v2() { return 0; }
int cublasCher2_v2() { return 0; }
int cublasCher2k_v2() { return 0; }
int cublasCher_v2() { return 0; }
int cublasCherk_v2() { return 0; }
int cublasCrot_v2() { return 0; }
int cublasCrotg_v2() { return 0; }
int cublasCscal_v2() { return 0; }
int cublasCsrot_v2() { return 0; }
int cublasCsscal_v2() { return 0; }
int cublasCswap_v2() { return 0; }
int cublasCsymm_v2() { return 0; }
int cublasCsymv_v2() { return 0; }
int cublasCsyr2_v2() { return 0; }
int cublasCsyr2k_v2() { return 0; }
int cublasCsyr_v2() { return 0; }
int cublasCsyrk_v2() { return 0; }
int cublasCtrmm_v2() { return 0; }
int cublasCtrmv_v2() { return 0; }
int cublasCtrsmBatched() { return 0; }
int cublasCtrsm_v2() { return 0; }
int cublasCtrsv_v2() { return 0; }
int cublasDasum_v2() { return 0; }
int cublasDaxpy_v2() { return 0; }
int cublasDcopy_v2() { return 0; }
int cublasDdot_v2() { return 0; }
int cublasDgelsBatched() { return 0; }
int cublasDgemmBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasDgemmBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasDgemmStridedBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasDgemmStridedBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasDgemm_v2(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasDgemm_v2", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasDgemv_v2() { return 0; }
int cublasDgeqrfBatched() { return 0; }
int cublasDger_v2() { return 0; }
int cublasDgetrfBatched() { return 0; }
int cublasDgetrsBatched() { return 0; }
int cublasDnrm2_v2() { return 0; }
int cublasDotEx() { return 0; }
int cublasDrot_v2() { return 0; }
int cublasDrotg_v2() { return 0; }
int cublasDrotm_v2() { return 0; }
int cublasDrotmg_v2() { return 0; }
int cublasDscal_v2() { return 0; }
int cublasDswap_v2() { return 0; }
int cublasDsymm_v2() { return 0; }
int cublasDsymv_v2() { return 0; }
int cublasDsyr2_v2() { return 0; }
int cublasDsyr2k_v2() { return 0; }
int cublasDsyr_v2() { return 0; }
int cublasDsyrk_v2() { return 0; }
int cublasDtrmm_v2() { return 0; }
int cublasDtrmv_v2() { return 0; }
int cublasDtrsmBatched() { return 0; }
int cublasDtrsm_v2() { return 0; }
int cublasDtrsv_v2() { return 0; }
int cublasDzasum_v2() { return 0; }
int cublasDznrm2_v2() { return 0; }
int cublasGemmEx(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasGemmEx", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasGemmStridedBatchedEx(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasGemmStridedBatchedEx", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasGetMatrixAsync() { return 0; }
int cublasGetVectorAsync() { return 0; }
int cublasIcamax_v2() { return 0; }
int cublasIcamin_v2() { return 0; }
int cublasIdamax_v2() { return 0; }
int cublasIdamin_v2() { return 0; }
int cublasIsamax_v2() { return 0; }
int cublasIsamin_v2() { return 0; }
int cublasIzamax_v2() { return 0; }
int cublasIzamin_v2() { return 0; }
int cublasSasum_v2() { return 0; }
int cublasSaxpy_v2() { return 0; }
int cublasScasum_v2() { return 0; }
int cublasScnrm2_v2() { return 0; }
int cublasScopy_v2() { return 0; }
int cublasSdot_v2() { return 0; }
int cublasSetMatrixAsync() { return 0; }
int cublasSetVectorAsync() { return 0; }
int cublasSgelsBatched() { return 0; }
int cublasSgemmBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasSgemmBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasSgemmEx(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasSgemmEx", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasSgemmStridedBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasSgemmStridedBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasSgemm_v2(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasSgemm_v2", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasSgemv_v2() { return 0; }
int cublasSgeqrfBatched() { return 0; }
int cublasSger_v2() { return 0; }
int cublasSgetrfBatched() { return 0; }
int cublasSgetrsBatched() { return 0; }
int cublasSnrm2_v2() { return 0; }
int cublasSrot_v2() { return 0; }
int cublasSrotg_v2() { return 0; }
int cublasSrotm_v2() { return 0; }
int cublasSrotmg_v2() { return 0; }
int cublasSscal_v2() { return 0; }
int cublasSswap_v2() { return 0; }
int cublasSsymm_v2() { return 0; }
int cublasSsymv_v2() { return 0; }
int cublasSsyr2_v2() { return 0; }
int cublasSsyr2k_v2() { return 0; }
int cublasSsyr_v2() { return 0; }
int cublasSsyrk_v2() { return 0; }
int cublasStrmm_v2() { return 0; }
int cublasStrmv_v2() { return 0; }
int cublasStrsmBatched() { return 0; }
int cublasStrsm_v2() { return 0; }
int cublasStrsv_v2() { return 0; }
int cublasZaxpy_v2() { return 0; }
int cublasZcopy_v2() { return 0; }
int cublasZdotc_v2() { return 0; }
int cublasZdotu_v2() { return 0; }
int cublasZdrot_v2() { return 0; }
int cublasZdscal_v2() { return 0; }
int cublasZgelsBatched() { return 0; }
int cublasZgemmBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasZgemmBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasZgemmStridedBatched(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasZgemmStridedBatched", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasZgemm_v2(void* h) {
    fake_work("kernel", "sm90_xmma_gemm_cublasZgemm_v2", ((H*)h)->stream, 5000, 0, 0, "cublas");
    return 0;
}
int cublasZgemv_v2() { return 0; }
int cublasZgeqrfBatched() { return 0; }
int cublasZgerc_v2() { return 0; }
int cublasZgeru_v2() { return 0; }
int cublasZgetrfBatched() { return 0; }
int cublasZgetrsBatched() { return 0; }
int cublasZhemm_v2() { return 0; }
int cublasZhemv_v2() { return 0; }
int cublasZher2_v2() { return 0; }
int cublasZher2k_v2() { return 0; }
int cublasZher_v2() { return 0; }
int cublasZherk_v2() { return 0; }
int cublasZrot_v2() { return 0; }
int cublasZrotg_v2() { return 0; }
int cublasZscal_v2() { return 0; }
int cublasZswap_v2() { return 0; }
int cublasZsymm_v2() { return 0; }
int cublasZsymv_v2() { return 0; }
int cublasZsyr2_v2() { return 0; }
int cublasZsyr2k_v2() { return 0; }
int cublasZsyr_v2() { return 0; }
int cublasZsyrk_v2() { return 0; }
int cublasZtrmm_v2() { return 0; }
int cublasZtrmv_v2() { return 0; }
int cublasZtrsmBatched() { return 0; }
int cublasZtrsm_v2() { return 0; }
int cublasZtrsv_v2() { return 0; }
}
