"""FLOPs and bytes of operators, against the arithmetic done by hand; classes and names of kernels."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from profiling.cost.classify import classify, full_name, short_name
from profiling.cost.operators import Cost, element_bytes, operator_cost, parse_inputs
from profiling.schemas import CLASSES
from tests.profiling.traces import convolution, cudnn, tensors
from tests.profiling.writers import DEMANGLED, MANGLED


def cost(name, inputs, output=None, mask=None) -> Cost | None:
    parsed = parse_inputs(
        *(inputs.get(key) for key in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"))
    )
    return operator_cost(name, parsed, output, mask)


def conv_inputs(data, weight, stride, padding, dilation="[1, 1]", transposed="False", groups="1"):
    return tensors(data, weight, values=["", stride, padding, dilation, transposed, "[0, 0]", groups])


NINE = ([1, 3, 9, 9], [4, 3, 3, 3])  # with a stride of 2 and a padding of 1: 5 x 5 outputs
QKV = [1, 2, 6, 4]


@pytest.mark.parametrize(
    ("name", "inputs", "flops"),
    [
        ("convolution", conv_inputs([2, 3, 8, 8], [4, 3, 3, 3], "[1, 1]", "[1, 1]"), 2 * (2 * 4 * 64) * 27),
        ("convolution", conv_inputs([1, 3, 224, 224], [64, 3, 7, 7], "[2, 2]", "[3, 3]"),
         2 * 64 * 112 * 112 * 3 * 49),
        ("convolution", conv_inputs([1, 2, 9, 9], [2, 2, 3, 3], "[1, 1]", "[0, 0]", "[2, 2]"),
         2 * 2 * 5 * 5 * 2 * 9),
        # Of a group the group's channels; of a transposed one the input's.
        ("convolution", conv_inputs([1, 8, 4, 4], [8, 1, 3, 3], "[1, 1]", "[1, 1]", groups="8"),
         2 * 8 * 16 * 9),
        ("convolution", conv_inputs([1, 8, 4, 4], [8, 5, 3, 3], "[2, 2]", "[1, 1]", transposed="True"),
         2 * 8 * 16 * 5 * 9),
        # Each library has its own order of arguments.
        ("conv2d", tensors(*NINE, values=["", "[2, 2]", "[1, 1]", "[1, 1]", "1"]), 2 * 4 * 25 * 27),
        ("mkldnn_convolution", tensors(*NINE, values=["", "[1, 1]", "[2, 2]", "[1, 1]", "1"]),
         2 * 4 * 25 * 27),
        ("miopen_convolution", tensors(*NINE, values=["", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False"]),
         2 * 4 * 25 * 27),
        ("cudnn_convolution", tensors(*NINE, values=["[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False"]),
         2 * 4 * 25 * 27),
        ("_slow_conv2d_forward", tensors(*NINE, values=["[3, 3]", "", "[2, 2]", "[1, 1]"]), 2 * 4 * 25 * 27),
        ("mm", tensors([3, 5], [5, 7]), 2 * 3 * 5 * 7),
        ("addmm", tensors([7], [3, 5], [5, 7]), 2 * 3 * 5 * 7),
        ("linear", tensors([2, 3, 5], [7, 5], [7]), 2 * 6 * 5 * 7),
        ("bmm", tensors([4, 3, 5], [4, 5, 7]), 2 * 4 * 3 * 5 * 7),
        ("baddbmm", tensors([4, 3, 7], [4, 3, 5], [4, 5, 7]), 2 * 4 * 3 * 5 * 7),
        ("mv", tensors([3, 5], [5]), 2 * 3 * 5),
        ("matmul", tensors([2, 4, 3, 5], [5, 7]), 2 * 8 * 3 * 5 * 7),
        ("matmul", tensors([3, 5], [4, 5, 7]), 2 * 4 * 3 * 5 * 7),
        ("_scaled_dot_product_flash_attention", tensors(QKV, QKV, QKV), 4 * 2 * 6 * 6 * 4),
        ("_flash_attention_forward", tensors(*[[1, 6, 2, 4]] * 3), 4 * 2 * 6 * 6 * 4),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", tensors(QKV, QKV, QKV, QKV),
         10 * 2 * 6 * 6 * 4),
    ],
)  # fmt: skip
def test_a_convolution_or_product_counts_two_flops_a_multiply_add(name, inputs, flops):
    assert cost(f"aten::{name}", inputs).flops == flops


def test_without_stride_the_gradient_of_the_output_says_its_size():
    silent = tensors([2, 3, 8, 8], [4, 3, 3, 3])
    assert cost("aten::cudnn_convolution", silent) is None
    assert cost("aten::cudnn_convolution", silent, (2, 4, 4, 4)).flops == 2 * 2 * 4 * 16 * 27
    # The gradient of another operator is not taken for it.
    assert cost("aten::cudnn_convolution", silent, (2, 99, 4, 4)) is None


@pytest.mark.parametrize(("mask", "parts"), [("[True, True, False]", 2), ("[False, True, True]", 1)])
def test_a_convolutions_backward_counts_the_gradients_that_are_made(mask, parts):
    gradient, data, weight = [2, 4, 8, 8], [2, 3, 8, 8], [4, 3, 3, 3]
    backward, forward = "aten::convolution_backward", cost("aten::convolution", convolution()).flops
    recorded = tensors(gradient, data, weight, values=["[0]", "[1, 1]", "[1, 1]", mask])
    assert cost(backward, recorded).flops == parts * forward
    # Where the trace does not record it, the caller may know.
    assert cost(backward, tensors(gradient, data, weight), mask=(False, True, False)).flops == forward
    # A library's takes the input first.
    librarys = cost("aten::cudnn_convolution_backward", tensors(data, gradient, weight))
    assert librarys.flops == 2 * cost("aten::cudnn_convolution", cudnn(convolution())).flops


def test_bytes_follow_the_element_type():
    whole, half = (cost("aten::mm", tensors([3, 5], [5, 7], kind=of)).bytes for of in ("float", "c10::Half"))
    assert whole == 2 * half == 4 * (15 + 35 + 21)
    assert element_bytes("c10::BFloat16") == 2
    assert element_bytes("ScalarList") is None


INDEX = {"Input type": ["float", "long int"], "Input Dims": [[100, 16], [5]]}


@pytest.mark.parametrize(
    ("name", "inputs", "flops", "moved"),
    [
        ("conv_transpose2d", tensors([1, 8, 4, 4], [8, 5, 3, 3]), 2 * 8 * 16 * 5 * 9, 128 + 360),
        ("add_", tensors([4, 8], [4, 8]), 32, 96),
        ("native_batch_norm", tensors([2, 4, 8, 8], [4], [4], [4], [4]), 512, 512 + 16 + 512),
        ("native_batch_norm_backward", tensors([2, 4, 8, 8], [2, 4, 8, 8], [4]), 512, 3 * 512 + 4),
        ("max_pool2d_with_indices", tensors([1, 2, 8, 8], values=["[2, 2]", "[2, 2]"]), 128, 128 + 3 * 32),
        ("sum", tensors([10, 10]), 100, 101),
        ("mean", tensors([2, 4, 5, 5], values=["[-1, -2]", "True"]), 200, 200 + 8),
        ("_log_softmax", tensors([8, 10]), 80, 160),
        ("nll_loss_forward", tensors([8, 10]), 80, 81),
        ("copy_", tensors([10], [10]), 0, 20),
        ("zero_", tensors([10]), 0, 10),
        ("view", tensors([10]), 0, 0),
        ("empty", {}, 0, 0),
        # What stands still in memory is read once.
        ("relu", {**tensors([4, 1000]), "Input Strides": [[1, 0]]}, None, 4 + 4000),
        ("mkldnn_convolution", tensors([1, 3, 8, 8], [4, 3, 3, 3], [4], values=["[1, 1]", "[1, 1]"]), None,
         3 * 64 + 4 * 27 + 4 + 4 * 64),
        ("convolution_backward",
         tensors([1, 4, 8, 8], [1, 3, 8, 8], [4, 3, 3, 3], values=["[4]", "[1, 1]", "[True, True, True]"]),
         None, 4 * 64 + 3 * 64 + 4 * 27 + 3 * 64 + 4 * 27 + 4),
        # The indices are as long as two floats.
        ("max_pool2d_with_indices", tensors([1, 2, 7, 7], values=["[3, 3]", "[2, 2]", "[1, 1]"]), None,
         98 + 3 * 2 * 16),
        ("max_pool2d_with_indices",
         tensors([1, 2, 6, 6], values=["[3, 3]", "[2, 2]", "[0, 0]", "[1, 1]", "True"]), None,
         72 + 3 * 2 * 9),
        ("avg_pool2d", tensors([1, 2, 8, 8], values=["[2, 2]", "[]"]), None, 128 + 32),
        ("_adaptive_avg_pool2d", tensors([1, 2, 9, 9], values=["[6, 6]"]), None, 162 + 72),
        ("embedding", INDEX, None, 2 * 5 + 5 * 16 + 5 * 16),
        ("index_select", {"Input type": ["float", "Scalar", "long int"],
         "Input Dims": [[100, 16], [], [5]], "Concrete Inputs": ["", "1", ""]}, None, 2 * 5 + 5 * 100 * 2),
        ("gather", {"Input type": ["float", "Scalar", "long int"], "Input Dims": [[9, 9], [], [9, 2]]}, None,
         2 * 18 + 18 + 18),
        ("index", {"Input type": ["float", "TensorList"], "Input Dims": [[100, 16], [[5]]]}, None,
         5 + 5 * 16 + 5 * 16),  # a list does not say its type: as the first input's
        ("_fused_adam_", {"Input type": ["TensorList"] * 4, "Input Dims": [[[10], [6]]] * 4}, None, 64 + 48),
        ("_fused_sgd_", {"Input type": ["TensorList"] * 3, "Input Dims": [[[10], [6]]] * 3}, None, 48 + 32),
    ],
)  # fmt: skip
def test_an_element_is_counted_once_and_bytes_are_what_is_read_and_written(name, inputs, flops, moved):
    """By hand, bytes in floats."""
    found = cost(f"aten::{name}", inputs)
    assert found.bytes == 4 * moved and (flops is None or found == Cost(flops, 4 * moved))


# --- every kernel name found in the reference data gets its class, and hardly any is left over ---------

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
