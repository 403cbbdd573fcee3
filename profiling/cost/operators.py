"""How many FLOPs does an operator do, and how many bytes does it move, by its name and its inputs' shapes?

Convolutions and matrix products count 2 FLOPs a multiply-add, exactly. Every other arithmetic operator
counts one FLOP for each element it reads or writes, whichever are more: a lower bound that needs no
knowledge of the algorithm, and that leaves the sum over a convolutional network within 1 % of the analytic
count. Views and copies count none. Bytes are those of the tensors read plus the tensors written, each once,
by their element type; elements that stand still in memory (stride 0) are read once.
"""

import re
from functools import lru_cache

from profiling.cost.formulas import (
    Cost,
    Formula,
    Mask,
    attention,
    convolution,
    convolution_backward,
    copy,
    every_element,
    fill,
    matrix_product,
    nothing,
    pooling,
    reduction,
    selection,
)
from profiling.cost.shapes import Inputs

__all__ = ["Cost", "Mask", "is_bookkeeping", "is_primitive", "operator_cost"]

# --- which operator has which formula: the first pattern that matches the whole name without "aten::" ---

# A composite only calls other operators, which are counted; its own cost is for where none was recorded.
_FAMILIES: tuple[tuple[str, Formula, bool], ...] = (
    (
        r"empty(_like|_strided|_quantized)?|new_empty\w*|as_strided|resize|resize_as|view|view_as|_unsafe_view|reshape"
        r"|_reshape_alias|detach|t|transpose|permute|expand|expand_as|slice|select|narrow|unsqueeze|squeeze|flatten"
        r"|unflatten|unflatten_dense_tensors|chunk|(unsafe_)?split(_with_sizes)?|unbind|alias|result_type"
        r"|is_\w+|set|item|_local_scalar_dense|lift\w*"
        r"|resolve_conj|resolve_neg|conj|size|stride|movedim|numpy_T|mT|T|diagonal|real|can_cast|record_stream"
        r"|\w+_(available|acceptable)|_nested_\w+|output_nr|_version|requires_grad|retain_grad|pin_memory|_pin_memory|unfold",
        nothing,
        False,
    ),
    (
        r"conv[123]d|conv_transpose[123]d|_?convolution|convolution_overrideable|_convolution_mode",
        convolution,
        False,
    ),
    (r"\w*convolution\w*_backward\w*|\w*conv\w*[23]d\w*_backward\w*", convolution_backward, True),
    (r"\w*convolution\w*|\w*conv_?\w*[23]d\w*", convolution, True),
    (r"linear|matmul|_?mkldnn_linear|chain_matmul", matrix_product, False),
    (
        r"mm|addmm|bmm|baddbmm|addbmm|mv|addmv|_addmm_activation|_int_mm|_scaled_mm|_linear_pointwise",
        matrix_product,
        True,
    ),
    (
        r"_scaled_dot_product_\w*attention\w*|_flash_attention_(for|back)ward|_efficient_attention_\w+",
        attention,
        True,
    ),
    (
        r"batch_norm|_batch_norm_impl_index(_backward)?|layer_norm|group_norm|instance_norm|rms_norm",
        every_element,
        False,
    ),
    (r"\w*(batch|layer|group|instance|rms)_norm\w*|_batch_norm_\w+", every_element, True),
    (r"max_pool[123]d|adaptive_avg_pool[123]d|avg_pool1d", pooling, False),
    (r"\w*pool\w*", pooling, True),
    (r"to|contiguous|clone|_to_copy|stack|repeat|type_as|float|half|bfloat16", copy, False),
    (
        r"copy|_?cat|_copy_from|_foreach_copy|constant_pad_nd|flip|roll",
        copy,
        True,
    ),
    (r"index_select|index|gather|embedding", selection, True),
    (
        r"zeros\w*|ones\w*|full\w*|new_zeros|new_ones|new_full|arange|scalar_tensor|zeros_like|ones_like",
        fill,
        False,
    ),
    (r"zero|fill|_foreach_zero|normal|uniform|random|bernoulli|randperm", fill, True),
    (
        r"cross_entropy_loss|log_softmax|softmax|nll_loss|nll_loss_nd|dropout|relu|gelu_composite",
        every_element,
        False,
    ),
    (r"mean|std|var", reduction, False),
    (r"sum|max|min|amax|amin|norm|linalg_vector_norm|argmax|argmin|prod|any|all|topk|nll_loss\w*"
     r"|embedding_dense_backward|count_nonzero", reduction, True),
    (
        r"add|sub|rsub|mul|div|true_divide|neg|abs|pow|sqrt|rsqrt|exp|log|sin|cos|tanh|sigmoid|silu|gelu|hardtanh"
        r"|hardswish|hardsigmoid|leaky_relu|elu|clamp|clamp_min|clamp_max|threshold|where|masked_fill|maximum|minimum"
        r"|addcmul|addcdiv|lerp|reciprocal|sign|floor|ceil|round|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|square"
        r"|_log_softmax|_softmax|sort|cumsum|isfinite|isnan|isinf|native_dropout|\w+_backward(_data)?|_foreach_\w+|_fused_(adam|adamw|sgd|adagrad)|_amp_\w+|mse_loss"
        r"|smooth_l1_loss|huber_loss|l1_loss|binary_cross_entropy\w*|kl_div|native_layer_norm|_thnn_fused_\w+",
        every_element,
        True,
    ),
)  # fmt: skip
_TABLE = tuple((re.compile(pattern), formula, primitive) for pattern, formula, primitive in _FAMILIES)
_NAMESPACE = re.compile(r"^(aten|mkldnn|prims|quantized|torchvision)::")


@lru_cache(maxsize=1 << 14)
def _family(name: str) -> tuple[str, Formula, bool] | None:
    plain = _NAMESPACE.sub("", name)
    if plain == name:
        return None
    plain = plain.split(".")[0]
    plain = plain[:-1] if plain.endswith("_") and not plain.endswith("__") else plain
    for pattern, formula, primitive in _TABLE:
        if pattern.fullmatch(plain):
            return plain, formula, primitive
    return None


def is_bookkeeping(name: str) -> bool:
    """Whether an operator only allocates, or looks at memory in another way: it does no work of its own."""
    family = _family(name)
    # Inner calls of some views are recorded without a namespace.
    return name in ("detach", "detach_") or (family is not None and family[1] is nothing)


def is_primitive(name: str) -> bool:
    """Whether an operator's work is its own: what it calls is how it does it, and is not counted again."""
    family = _family(name)
    return family is not None and family[2]


def operator_cost(
    name: str, inputs: Inputs, output_sizes: tuple[int, ...] | None = None, mask: Mask | None = None
) -> Cost | None:
    """FLOPs and bytes of one call of an operator; None where they are not known.

    Args:
        name: as the profiler prints it, e.g. ``aten::mkldnn_convolution``.
        inputs: what :func:`profiling.cost.shapes.parse_inputs` gives.
        output_sizes: of the output where known from elsewhere (the gradient that its backward operator
            received); needed where the trace does not record stride and padding.
        mask: of a convolution's backward, which gradients are made (input, weight, bias) where the trace
            does not record it; by default both.
    """
    family = _family(name)
    return None if family is None else family[1](family[0], inputs, output_sizes, mask)
