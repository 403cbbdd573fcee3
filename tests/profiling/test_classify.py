"""Every kernel name found in the reference data gets its class, and hardly any is left over."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from profiling.cost.classify import classify, full_name, short_name
from profiling.schemas import CLASSES
from tests.profiling.writers import DEMANGLED, MANGLED

NAMES = yaml.safe_load(Path(__file__).with_name("kernel_names.yaml").read_text())


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_has_its_class(kind):
    assert {name: classify(name) for name in NAMES[kind]} == dict.fromkeys(NAMES[kind], kind)


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


# One kernel as tools print it, and as a demangler does.
FULL = {
    "void k<bool=1, unsigned int=3>(float const *)": "void k<true, 3u>(float const*)",
    "void k<(bool)0, (cudnnMode_t)2>(T1 *, const T2 &)": "void k<false, (cudnnMode_t)2>(T1*, T2 const&)",
    "void <unnamed>::k<[lambda(float) (instance 3)]>(int)":
        "void (anonymous namespace)::k<{lambda(float)#3}>(int)",
    "volta_sgemm_32x128_tn": "volta_sgemm_32x128_tn",
    "[CUDA memcpy HtoD]": "[CUDA memcpy HtoD]",
    f"_{MANGLED}": DEMANGLED,  # on macOS
    "_Znot a mangled name": "_Znot a mangled name",
    "_Z1\udcff": "_Z1\udcff",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("printed", FULL)
def test_template_arguments_become_what_a_demangler_prints(printed):
    assert full_name(printed) == FULL[printed]
