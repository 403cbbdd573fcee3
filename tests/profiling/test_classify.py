"""Every kernel name found in the reference data gets its class, and hardly any is left over."""

import collections
import csv
import gzip
import re
import sqlite3
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.cost.classify import classify, is_helper, short_name
from profiling.schemas import CLASSES

# Of transformers and other devices: attention by its libraries, fused MLPs, optimizers, compiled kernels, and
# AMD's and Intel's names.
BEYOND = [
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 4, cutlass::bfloat16_t>>(int)", "attention"),
    ("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(int)", "attention"),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
    ("_attn_fwd", "attention"),
    ("attn_bwd", "attention"),
    ("triton_tem_fused_flex_attention_0", "attention"),
    ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<int>>(int)", "attention"),
    ("aiter::fmha_fwd_hd128_bf16_causal", "attention"),
    ("sage_fwd", "attention"),
    ("reshape_and_cache_flash_kernel", "attention"),
    ("micro_sdpa", "attention"),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "gemm"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "gemm"),
    ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2", "gemm"),
    ("void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long)", "gemm"),
    ("fused_moe_kernel", "gemm"),
    ("triton_tem_fused_addmm_3", "gemm"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_MT256x256x64_MI16x16x1", "gemm"),
    ("wvSplitK_hf_sml_", "gemm"),
    ("gemm_kernel", "gemm"),
    ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<int>>(int)", "gemm"),
    ("gen_conv", "convolution"),
    ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f3x2_stride1", "convolution"),
    ("MIOpenBatchNormFwdTrainSpatial", "normalization"),
    ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<int>(int)", "normalization"),
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_5", "reduction"),
    ("triton_per_fused_native_layer_norm_2", "normalization"),
    ("triton_poi_fused_silu_mul_1", "pointwise"),
    ("triton__0d1d2d3d4d5d", "pointwise"),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>(int)", "pointwise"),
    ("rotary_embedding_kernel", "embedding"),
    ("void tensorrt_llm::kernels::quantize_with_block_size<int>(int)", "pointwise"),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<int>>(int)", "optimizer"),
    ("void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>(int)", "optimizer"),
    ("triton_for_fused_foreach_adamw_0", "optimizer"),
    ("adamw_fused_step_kernel", "optimizer"),
    ("moe::dev::routing::routingIndicesHistogramKernel", "reduction"),
    ("void at::native::xpu::VectorizedElementwiseKernel<8, int>(int)", "pointwise"),
    ("zeCommandListAppendMemoryCopy(H2D)", "memcpy"),
    ("oneccl_allreduce_large_bf16", "communication"),
    ("ccl::allgatherv", "communication"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
    ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", "communication"),
    ("void deep_ep::internode::dispatch<int>(int)", "communication"),
    ("void dpsk::ep::intranode::combine<__nv_bfloat16>(int)", "communication"),
    ("void hybrid_ep::dispatch_kernel<int>(int)", "communication"),
    ("userbuffers_fp16_sum_inplace_gpu_rr_rs", "communication"),
    ("kuserbuffers_pushsend", "communication"),
    ("moeA2ACombineKernel", "communication"),
    ("hcom_allReduce__123", "communication"),
]  # fmt: skip

KNOWN = [
    # collectives, old and new, NVIDIA and AMD, CPU
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "communication"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
    ("ncclBroadcastKernel_copy_i8", "communication"),
    ("gloo:all_reduce", "communication"),
    ("c10d::allreduce_", "communication"),
    # copies and sets
    ("Memcpy HtoD (Pageable -> Device)", "memcpy"),
    ("[CUDA memcpy DtoD]", "memcpy"),
    ("aten::copy_", "memcpy"),
    ("Memset (Device)", "memset"),
    ("[CUDA memset]", "memset"),
    ("aten::zero_", "memset"),
    # the loader
    ("dali::kernels::resampling::BatchedSeparableResampleKernel", "loader"),
    ("nvjpeg::dctQuantInvJpegKernel", "loader"),
    ("dali::kernels::detail::SliceFlipNormalizePermutePadKernel", "loader"),
    ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "loader"),
    # convolutions: cuDNN by all its algorithms, MIOpen, CPU
    ("cudnn::detail::implicit_convolve_sgemm", "convolution"),
    ("void wgrad_alg0_engine<__half, int=128, int=5, int=5>(int, int, int, __half const *)", "convolution"),
    ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "convolution"),
    ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "convolution"),
    (
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3_nhwc_align4>"
        "(cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3_nhwc_align4::Params)",
        "convolution",
    ),
    ("_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11", "convolution"),
    ("fft2d_r2c_32x32", "convolution"),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8", "convolution"),
    ("aten::mkldnn_convolution", "convolution"),
    ("aten::convolution_backward", "convolution"),
    # matrix products
    ("volta_sgemm_128x32_tn", "gemm"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3", "gemm"),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(cutlass::Params)", "gemm"),
    ("Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0", "gemm"),
    ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "gemm"),
    ("maxwell_fp16_sgemm_fp16_128x32_nn", "gemm"),
    ("aten::addmm", "gemm"),
    ("aten::bmm", "gemm"),
    # the rest of a network
    ("cudnn::detail::bn_bw_1C11_kernel_new", "normalization"),
    ("void at::native::batch_norm_collect_statistics_kernel<at::native::Var>(float)", "normalization"),
    ("aten::native_batch_norm_backward", "normalization"),
    ("void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*)", "pooling"),
    ("MaxPoolForward", "pooling"),
    ("aten::max_pool2d_with_indices", "pooling"),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>)",
        "pointwise",
    ),
    ("kernelPointwiseApply2<tensorcaddop>", "pointwise"),
    ("aten::clamp_min_", "pointwise"),
    ("aten::threshold_backward", "pointwise"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float> > >()", "reduction"),
    ("aten::sum", "reduction"),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
        "TensorListMetadata<2>, at::native::BinaryOpListAlphaFunctor<float, 2, 2, 0> >()",
        "optimizer",
    ),
    ("aten::_foreach_add_", "optimizer"),
    ("aten::_fused_adam_", "optimizer"),
    ("Optimizer.step#SGD.step", "optimizer"),
    ("cunn_ClassNLLCriterion_updateOutput_kernel", "loss"),
    ("aten::_log_softmax", "loss"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(T*)", "loss"),
    ("void <unnamed>::softmax_warp_forward<float, float, float, (int)6, (bool)0, (bool)0>(T2)", "attention"),
    ("flash_fwd_kernel", "attention"),
    ("void split_embedding_codegen_forward_unweighted_kernel<float, float>(float)", "embedding"),
    ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", "embedding"),
    # libraries and versions that the reference data do not hold
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "communication"),
    ("void vllm::cross_device_reduce_2stage<float, 8>(vllm::RankData*)", "communication"),
    ("two_shot_all_reduce_kernel<c10::BFloat16, 8>", "communication"),
    ("void horovod::common::BatchedScaledD2DMemcpyCudaKernel<float>()", "communication"),
    ("NEGOTIATE_ALLREDUCE", "communication"),
    ("MPI_Allreduce()", "communication"),
    ("Memcpy PtoP (Device -> Device)", "memcpy"),
    ("CopyHostToDevice", "memcpy"),
    ("__amd_rocclr_fillBufferAligned.kd", "memset"),
    ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", "convolution"),
    ("cudnn::cnn::conv2d_grouped_direct_kernel", "convolution"),
    ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float>()", "convolution"),
    ("triton_tem_fused_convolution_3", "convolution"),
    ("nvjet_hsh_192x192_64x4_2x1_v_bz_coopB_TNT", "gemm"),
    ("cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64", "gemm"),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", "gemm"),
    ("triton_tem_fused_mm_7", "gemm"),
    ("cudnn::batchnorm_fwtr_nhwc_semiPersist", "normalization"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>()", "normalization"),
    ("void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<float>>()", "normalization"),
    ("triton_per_fused__native_batch_norm_legit_functional_0", "normalization"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1", "attention"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>()", "attention"),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", "attention"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::Half, float, c10::Half, "
     "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>()", "attention"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, "
     "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>()", "loss"),
    ("triton_red_fused__log_softmax_nll_loss_forward_2", "loss"),
    ("triton_poi_fused_convolution_relu_5", "pointwise"),
    ("triton_poi_fused__native_batch_norm_legit_functional_add_relu_3", "pointwise"),
    ("triton_poi_fused_max_pool2d_with_indices_6", "pooling"),
    ("void at::native::(anonymous namespace)::adaptive_average_pool<float>()", "pooling"),
    ("triton_red_fused_mean_9", "reduction"),
    ("void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >()", "reduction"),
    ("void at_cuda_detail::cub::DeviceSelectSweepKernel<at_cuda_detail::cub::X>()", "reduction"),
    ("void at::native::krn_partials_per_segment<int>()", "embedding"),
    ("void (anonymous namespace)::embedding_backward_feature_kernel<float>()", "embedding"),
    ("triton_for_fused_1", "optimizer"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
     "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float>>()",
     "optimizer"),
    ("aten::view", "pointwise"),
    ("aten::squeeze_", "pointwise"),
    ("aten::new_empty_strided", "pointwise"),
    ("aten::a_view_of_no_kind_known", "other"),
    ("a kernel of no kind known", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), KNOWN, ids=[name[:40] for name, _ in KNOWN])
def test_a_name_has_its_class(name, kind):
    assert classify(name) == kind


SHORT = [
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::X)",
        "at::native::reduce_kernel",
    ),
    (
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)",
        "at::native::max_pool_forward_nchw",
    ),
    ("void <unnamed>::softmax_warp_forward<float, (int)6>(T2 *, const T1 *)", "softmax_warp_forward"),
    (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
        "ncclKernel_AllReduce_RING_LL_Sum_float",
    ),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
    ("_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemm", "cutlass_cudnn_train::Kernel"),
    ("_Z21indexSelectLargeIndexIfjLi2ELi2ELin2ELb1EEv10TensorInfoIT_T0_E", "indexSelectLargeIndex"),
    ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
    ("[CUDA memcpy HtoD]", "Memcpy HtoD"),
    ("Memset (Device)", "Memset"),
    ("sm80_xmma_fprop_implicit_gemm_f32", "sm80_xmma_fprop_implicit_gemm_f32"),
    ("aten::mkldnn_convolution", "aten::mkldnn_convolution"),
    ("gloo:all_reduce", "gloo:all_reduce"),
    ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
    ("kernelPointwiseApply2<tensorcaddop>", "kernelPointwiseApply2"),
    ("void fft2d_c2r_32x32<__half, bool=1, unsigned int=0>(__half*, float2 const *)", "fft2d_c2r_32x32"),
    (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(cublasGemvParamsEx<int>)",
        "internal::gemvx::kernel",
    ),
]


@pytest.mark.parametrize(("name", "short"), SHORT, ids=[short for _, short in SHORT])
def test_a_short_name_has_no_types(name, short):
    assert short_name(name) == short


@given(st.text())
def test_any_text_has_a_class_and_a_short_name(name):
    assert classify(name) in CLASSES
    assert short_name(name) or not name.strip()


def test_helpers_do_no_arithmetic():
    assert is_helper("void cudnn::ops::nchwToNhwcKernel<float>(float)")
    assert not is_helper("cudnn::detail::implicit_convolve_sgemm")


# --- the reference data --------------------------------------------------------------------------------

Times = collections.Counter  # kernel name -> time, in any one unit a file


def kineto(path: Path) -> Times:
    times: Times = Times()
    for event in orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("ph") == "X" and event["cat"].lower().removeprefix("gpu_") in (
            "kernel",
            "memcpy",
            "memset",
        ):
            times[event["name"]] += event["dur"]
    return times


def sqlite(path: Path) -> Times:
    with sqlite3.connect(path) as file:
        tables = {name for (name,) in file.execute("select name from sqlite_master")}
        if "StringTable" in tables:
            query = "select value, sum(end - start) from {} join StringTable s on s._id_ = name group by 1"
            return Times(dict(file.execute(query.format("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"))))
        join = "CUPTI_ACTIVITY_KIND_KERNEL join StringIds s on s.id = demangledName"
        return Times(dict(file.execute(f"select value, sum(end - start) from {join} group by 1")))


def parquet(path: Path) -> Times:
    table = pq.ParquetFile(path).read(columns=["Kernel", "Sil(ns)"])
    summed = table.group_by("Kernel").aggregate([("Sil(ns)", "sum")])
    return Times(dict(zip(summed["Kernel"].to_pylist(), summed["Sil(ns)_sum"].to_pylist(), strict=True)))


def table(path: Path, name: str, time: str | None) -> Times:
    times: Times = Times()
    with path.open(newline="") as file:
        lines = (line for line in file if not line.startswith("=="))
        for row in csv.DictReader(lines):
            if row[name] and (time is None or re.fullmatch(r"[\d.e+-]+", row[time])):
                times[row[name]] += 1.0 if time is None else float(row[time])
    return times


def nvprof_text(path: Path) -> Times:
    times: Times = Times()
    row = re.compile(r"\s*(?:GPU activities:)?\s+([\d.]+)%\s+\S+\s+\d+\s+\S+\s+\S+\s+\S+\s+(.+)")
    for line in path.read_text(errors="replace").splitlines():
        if line.strip().startswith("API calls"):
            break
        if match := row.match(line):
            times[match[2]] += float(match[1])
    return times


def metric_text(path: Path) -> Times:
    return Times(re.findall(r"^\s*Kernel: (.+)$", path.read_text(errors="replace"), re.MULTILINE))


def all_names(data: Path) -> dict[str, Times]:
    """Every kernel name of the reference data, by file."""
    nvprof = data / "nvprof"
    found = {path.name: kineto(path) for path in sorted((data / "kineto").rglob("*.gz"))}
    found |= {path.name: sqlite(path) for path in sorted((data / "nsys").glob("*.sqlite"))}
    found |= {path.name: parquet(path) for path in sorted((data / "surfboard/pyprof_kernels").glob("*.gzip"))}
    found["net.sql"] = sqlite(nvprof / "lstm_pyprof/net.sql")
    found["lm.csv"] = table(nvprof / "lstm_pyprof/lm.csv", "Kernel", "Sil(ns)")
    found["alexnet"] = table(nvprof / "alexnet_gpu_activities.csv", "kernel", "time_s")
    found["ncu raw"] = table(data / "ncu/resnet18_a100_raw.csv", "Kernel Name", None)
    found["ncu long"] = table(data / "ncu/resnet50_v100_long.csv", "Kernel Name", None)
    found["nvprof trace"] = table(nvprof / "resnet50_v100_gputrace_metrics.csv", "Kernel", None)
    found |= {path.name: nvprof_text(path) for path in sorted(nvprof.glob("deepspeech_p100/summary*.txt"))}
    found["nvprof metrics"] = metric_text(nvprof / "deepspeech_p100/metrics_bs32.txt")
    return found


def test_hardly_any_kernel_time_of_the_reference_data_is_without_a_class(shared_data):
    found = all_names(shared_data)
    assert len(found) > 50
    for source, times in found.items():
        total = sum(times.values())
        assert total > 0, source
        left = {name: time / total for name, time in times.items() if classify(name) == "other"}
        # Measured: 0 everywhere but in DeepSpeech's files (0.1 %).
        assert sum(left.values()) < 0.005, (source, left)


def test_what_communicates_in_the_other_reference_files_is_communication(shared_data):
    """Horovod's timeline, and MPI as TAU names it."""
    text = gzip.decompress((shared_data / "horovod/timeline_4ranks_cpu.json.gz").read_bytes()).decode()
    names = set(re.findall(r'"name": *"([A-Z_]*ALL\w+)"', text))
    for path in sorted((shared_data / "tau").rglob("profile.0.0.*")):
        names |= set(re.findall(r'^"(MPI_\w+\(\)) *"', path.read_text(errors="replace"), re.MULTILINE))
    assert {"MPI_Allreduce()", "NEGOTIATE_ALLREDUCE"} <= names
    assert {classify(name) for name in names} == {"communication"}


def test_the_share_of_communication_in_the_reference_traces(shared_data):
    shares = {}
    for name in ("nccl_data", "resnet18_ddp_mi300_rank0of8", "resnet_kineto"):
        times = kineto(shared_data / "kineto" / f"{name}.json.gz")
        collective = sum(time for kernel, time in times.items() if classify(kernel) == "communication")
        shares[name] = round(100 * collective / sum(times.values()), 2)
    # One GPU has none; the MI300 ranks wait for one another inside their collectives.
    assert shares == {"nccl_data": 28.38, "resnet18_ddp_mi300_rank0of8": 71.35, "resnet_kineto": 0}


@pytest.mark.parametrize(("name", "kind"), BEYOND)
def test_names_of_transformers_and_of_other_devices_have_their_class(name, kind):
    assert classify(name) == kind
