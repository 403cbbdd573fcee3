"""FLOPs and bytes of operators, against the arithmetic done by hand and against PyTorch's own counter."""

import pytest

from profiling.cost.operators import (
    Cost,
    element_bytes,
    operator_cost,
    parse_inputs,
)
from tests.profiling.traces import convolution, cudnn, tensors


def cost(name, inputs, output=None, mask=None) -> Cost | None:
    parsed = parse_inputs(
        *(inputs.get(key) for key in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"))
    )
    return operator_cost(name, parsed, output, mask)


def conv_inputs(data, weight, stride, padding, dilation="[1, 1]", transposed="False", groups="1"):
    return tensors(data, weight, values=["", stride, padding, dilation, transposed, "[0, 0]", groups])


@pytest.mark.parametrize(
    ("inputs", "flops"),
    [
        (conv_inputs([2, 3, 8, 8], [4, 3, 3, 3], "[1, 1]", "[1, 1]"), 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3)),
        (conv_inputs([1, 3, 224, 224], [64, 3, 7, 7], "[2, 2]", "[3, 3]"), 2 * 64 * 112 * 112 * 3 * 49),
        (conv_inputs([1, 2, 9, 9], [2, 2, 3, 3], "[1, 1]", "[0, 0]", "[2, 2]"), 2 * 2 * 5 * 5 * 2 * 9),
        # Of a group the group's channels; of a transposed one the input's.
        (conv_inputs([1, 8, 4, 4], [8, 1, 3, 3], "[1, 1]", "[1, 1]", groups="8"), 2 * 8 * 16 * 9),
        (conv_inputs([1, 8, 4, 4], [8, 5, 3, 3], "[2, 2]", "[1, 1]", transposed="True"), 2 * 8 * 16 * 5 * 9),
    ],
)
def test_a_convolution_counts_two_flops_a_multiply_add(inputs, flops):
    assert cost("aten::convolution", inputs).flops == flops


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("aten::conv2d", ["", "[2, 2]", "[1, 1]", "[1, 1]", "1"]),
        ("aten::mkldnn_convolution", ["", "[1, 1]", "[2, 2]", "[1, 1]", "1"]),
        ("aten::miopen_convolution", ["", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False"]),
        ("aten::cudnn_convolution", ["[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]),
        ("aten::_slow_conv2d_forward", ["[3, 3]", "", "[2, 2]", "[1, 1]"]),
    ],
)
def test_each_library_has_its_own_order_of_arguments(name, values):
    got = cost(name, tensors([1, 3, 9, 9], [4, 3, 3, 3], values=values))
    assert got.flops == 2 * 4 * 5 * 5 * 27


def test_without_stride_the_gradient_of_the_output_says_its_size():
    silent = tensors([2, 3, 8, 8], [4, 3, 3, 3])
    assert cost("aten::cudnn_convolution", silent) is None
    assert cost("aten::cudnn_convolution", silent, (2, 4, 4, 4)).flops == 2 * 2 * 4 * 16 * 27
    # The gradient of another operator is not taken for it.
    assert cost("aten::cudnn_convolution", silent, (2, 99, 4, 4)) is None


@pytest.mark.parametrize(("mask", "parts"), [("[True, True, False]", 2), ("[False, True, True]", 1)])
def test_a_convolutions_backward_counts_the_gradients_that_are_made(mask, parts):
    sizes = ([2, 4, 8, 8], [2, 3, 8, 8], [4, 3, 3, 3])
    got = cost("aten::convolution_backward", tensors(*sizes, values=["[0]", "[1, 1]", "[1, 1]", mask]))
    forward = cost("aten::convolution", convolution()).flops
    assert got.flops == parts * forward
    # Where the trace does not record it, the caller may know.
    assert cost("aten::convolution_backward", tensors(*sizes), mask=(False, True, False)).flops == forward


def test_a_librarys_backward_takes_input_first():
    sizes = ([2, 3, 8, 8], [2, 4, 8, 8], [4, 3, 3, 3])
    got = cost("aten::cudnn_convolution_backward", tensors(*sizes))
    assert got.flops == 2 * cost("aten::cudnn_convolution", cudnn(convolution())).flops


@pytest.mark.parametrize(
    ("name", "sizes", "flops"),
    [
        ("aten::mm", ([3, 5], [5, 7]), 2 * 3 * 5 * 7),
        ("aten::addmm", ([7], [3, 5], [5, 7]), 2 * 3 * 5 * 7),
        ("aten::linear", ([2, 3, 5], [7, 5], [7]), 2 * 6 * 5 * 7),
        ("aten::bmm", ([4, 3, 5], [4, 5, 7]), 2 * 4 * 3 * 5 * 7),
        ("aten::baddbmm", ([4, 3, 7], [4, 3, 5], [4, 5, 7]), 2 * 4 * 3 * 5 * 7),
        ("aten::mv", ([3, 5], [5]), 2 * 3 * 5),
        ("aten::matmul", ([2, 4, 3, 5], [5, 7]), 2 * 8 * 3 * 5 * 7),
        ("aten::matmul", ([3, 5], [4, 5, 7]), 2 * 4 * 3 * 5 * 7),
        (
            "aten::_scaled_dot_product_flash_attention",
            ([1, 2, 6, 4], [1, 2, 6, 4], [1, 2, 6, 4]),
            4 * 2 * 6 * 6 * 4,
        ),
        ("aten::_flash_attention_forward", ([1, 6, 2, 4], [1, 6, 2, 4], [1, 6, 2, 4]), 4 * 2 * 6 * 6 * 4),
        (
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            ([1, 2, 6, 4], [1, 2, 6, 4], [1, 2, 6, 4], [1, 2, 6, 4]),
            10 * 2 * 6 * 6 * 4,
        ),
    ],
)
def test_matrix_products(name, sizes, flops):
    assert cost(name, tensors(*sizes)).flops == flops


def test_bytes_follow_the_element_type():
    whole, half = (
        cost("aten::mm", tensors([3, 5], [5, 7], kind=kind)).bytes for kind in ("float", "c10::Half")
    )
    assert whole == 2 * half == 4 * (15 + 35 + 21)
    assert element_bytes("c10::BFloat16") == 2
    assert element_bytes("ScalarList") is None


def test_what_stands_still_in_memory_is_read_once():
    expanded = {**tensors([4, 1000]), "Input Strides": [[1, 0]]}
    assert cost("aten::relu", expanded).bytes == 4 * (4 + 4000)


@pytest.mark.parametrize(
    ("name", "inputs", "flops", "moved"),
    [
        ("aten::conv_transpose2d", tensors([1, 8, 4, 4], [8, 5, 3, 3]), 2 * 8 * 16 * 5 * 9, 4 * (128 + 360)),
        ("aten::add_", tensors([4, 8], [4, 8]), 32, 4 * 96),
        ("aten::native_batch_norm", tensors([2, 4, 8, 8], [4], [4], [4], [4]), 512, 4 * (512 + 16 + 512)),
        (
            "aten::native_batch_norm_backward",
            tensors([2, 4, 8, 8], [2, 4, 8, 8], [4]),
            512,
            4 * (3 * 512 + 4),
        ),
        (
            "aten::max_pool2d_with_indices",
            tensors([1, 2, 8, 8], values=["[2, 2]", "[2, 2]"]),
            128,
            4 * 128 + 12 * 32,
        ),
        ("aten::sum", tensors([10, 10]), 100, 404),
        ("aten::mean", tensors([2, 4, 5, 5], values=["[-1, -2]", "True"]), 200, 4 * (200 + 8)),
        ("aten::_log_softmax", tensors([8, 10]), 80, 640),
        ("aten::nll_loss_forward", tensors([8, 10]), 80, 324),
        ("aten::copy_", tensors([10], [10]), 0, 80),
        ("aten::zero_", tensors([10]), 0, 40),
        ("aten::view", tensors([10]), 0, 0),
        ("aten::empty", {}, 0, 0),
    ],
)
def test_other_operators_count_an_element_once(name, inputs, flops, moved):
    assert cost(name, inputs) == Cost(flops, moved)


INDEX = {"Input type": ["float", "long int"], "Input Dims": [[100, 16], [5]]}


@pytest.mark.parametrize(
    ("name", "inputs", "read", "written"),
    [
        ("aten::mkldnn_convolution", tensors([1, 3, 8, 8], [4, 3, 3, 3], [4], values=["[1, 1]", "[1, 1]"]),
         3 * 64 + 4 * 27 + 4, 4 * 64),
        ("aten::convolution_backward",
         tensors([1, 4, 8, 8], [1, 3, 8, 8], [4, 3, 3, 3], values=["[4]", "[1, 1]", "[True, True, True]"]),
         4 * 64 + 3 * 64 + 4 * 27, 3 * 64 + 4 * 27 + 4),
        ("aten::max_pool2d_with_indices", tensors([1, 2, 7, 7], values=["[3, 3]", "[2, 2]", "[1, 1]"]),
         98, 3 * 2 * 16),  # the indices are as long as two floats
        ("aten::max_pool2d_with_indices",
         tensors([1, 2, 6, 6], values=["[3, 3]", "[2, 2]", "[0, 0]", "[1, 1]", "True"]), 72, 3 * 2 * 9),
        ("aten::avg_pool2d", tensors([1, 2, 8, 8], values=["[2, 2]", "[]"]), 128, 32),
        ("aten::_adaptive_avg_pool2d", tensors([1, 2, 9, 9], values=["[6, 6]"]), 162, 72),
        ("aten::embedding", INDEX, 2 * 5 + 5 * 16, 5 * 16),
        ("aten::index_select", {"Input type": ["float", "Scalar", "long int"],
         "Input Dims": [[100, 16], [], [5]], "Concrete Inputs": ["", "1", ""]}, 2 * 5 + 5 * 100, 5 * 100),
        ("aten::gather", {"Input type": ["float", "Scalar", "long int"], "Input Dims": [[9, 9], [], [9, 2]]},
         2 * 18 + 18, 18),
        ("aten::index", {"Input type": ["float", "TensorList"], "Input Dims": [[100, 16], [[5]]]},
         5 + 5 * 16, 5 * 16),  # a list does not say its type: as the first input's
        ("aten::_fused_adam_", {"Input type": ["TensorList"] * 4, "Input Dims": [[[10], [6]]] * 4}, 64, 48),
        ("aten::_fused_sgd_", {"Input type": ["TensorList"] * 3, "Input Dims": [[[10], [6]]] * 3}, 48, 32),
    ],
)  # fmt: skip
def test_bytes_are_what_is_read_and_what_is_written(name, inputs, read, written):
    """By hand, in floats."""
    assert cost(name, inputs).bytes == 4 * (read + written)
