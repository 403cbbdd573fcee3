"""FLOPs and bytes of an operator, from its name and the shapes of its inputs.

Convolutions and matrix products count exactly, with 2 FLOPs per multiply-add. Every other arithmetic operator
counts one FLOP per element read or per element written, whichever are more: a lower bound that needs no
knowledge of the algorithm, and keeps the sum over a convolutional network within 1 % of the analytic count.
Views and copies count none. Bytes are those of the tensors read plus the tensors written, each once, by
element type; broadcast elements (stride 0) are read once.

There is one formula per kind of operator. It takes the operator's name without its namespace, its inputs, the
sizes of its output if known, and (for a convolution's backward) which gradients are computed. It returns None
where the inputs do not determine the result.
"""

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

# --- inputs, as the profiler recorded them --------------------------------------------------------------

# Bytes of an element, by the names that Kineto and PyTorch print.
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long int": 8, "long": 8, "long long": 8, "int": 4,
    "short": 2, "short int": 2, "signed char": 1, "char": 1, "byte": 1, "unsigned char": 1, "bool": 1,
    "complexfloat": 8, "complexdouble": 16, "complex<float>": 8, "complex<double>": 16, "int64": 8,
    "int32": 4,
    "int16": 2, "int8": 1, "uint8": 1, "float32": 4, "float64": 8, "float16": 2,
}  # fmt: skip


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element of a type such as ``c10::BFloat16`` or ``Float``; None if no tensor has it."""
    plain = dtype.removeprefix("c10::").removeprefix("torch.").lower()
    return 1 if plain.startswith("float8") else _ELEMENT_BYTES.get(plain)


class Tensor(NamedTuple):
    """One input: its sizes, the elements that differ in memory, and bytes an element."""

    sizes: tuple[int, ...]
    elements: int
    element: int

    @property
    def bytes(self) -> int:
        return self.elements * self.element


@dataclass(frozen=True)
class Inputs:
    """An operator's inputs as recorded; one entry an argument, None where it is no tensor."""

    tensors: tuple[Tensor | None, ...] = ()
    lists: tuple[tuple[Tensor, ...], ...] = ()  # arguments that are lists of tensors, in order
    values: tuple[Any, ...] = ()  # concrete values: numbers, lists, bools; None where not recorded

    def tensor(self, index: int) -> Tensor | None:
        return self.tensors[index] if index < len(self.tensors) else None

    def value(self, index: int) -> Any:
        return self.values[index] if index < len(self.values) else None


def parse_inputs(dims: Any, types: Any, strides: Any = None, concrete: Any = None) -> Inputs:
    """Inputs from Kineto's fields; what is not of the expected form is left out, never guessed."""
    types = types if isinstance(types, list) else []
    dims = dims if isinstance(dims, list) else []
    strides = strides if isinstance(strides, list) and len(strides) == len(dims) else [None] * len(dims)
    single: list[Tensor | None] = []
    lists: list[tuple[Tensor, ...]] = []
    sizes_known = [element_bytes(kind) for kind in types if isinstance(kind, str)]
    usual = next((size for size in sizes_known if size), 4)  # a list of tensors does not say its type
    for position, size in enumerate(dims):
        kind = types[position] if position < len(types) and isinstance(types[position], str) else ""
        if _are_sizes(size) and element_bytes(kind):
            single.append(tensor_of(size, strides[position], element_bytes(kind) or usual))
        else:
            single.append(None)
            if isinstance(size, list) and size and all(_are_sizes(one) for one in size):
                lists.append(tuple(tensor_of(one, None, usual) for one in size))
    values = (
        tuple(_literal(value) if isinstance(value, str) else value for value in concrete)
        if isinstance(concrete, list)
        else ()
    )
    return Inputs(tuple(single), tuple(lists), values)


def _are_sizes(value: Any) -> bool:
    """Whether a recorded value can be a tensor's sizes: no dimension and no whole beyond any memory."""
    return (
        isinstance(value, list)
        and all(isinstance(size, int) and 0 <= size < 1 << 62 for size in value)
        and math.prod(size or 1 for size in value) < 1 << 62
    )


def tensor_of(sizes: list[int], strides: Any, element: int) -> Tensor:
    """A tensor by its sizes, strides (None: not known) and bytes an element."""
    distinct = sizes
    if isinstance(strides, list) and len(strides) == len(sizes):
        distinct = [size for size, stride in zip(sizes, strides, strict=True) if stride != 0]
    return Tensor(tuple(sizes), math.prod(distinct), element)


@lru_cache(maxsize=4096)
def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text if text in ("same", "valid") else None


# --- formulas -------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    flops: float
    bytes: float


Sizes = tuple[int, ...]
Mask = tuple[bool, ...]
Formula = Callable[[str, Inputs, Sizes | None, Mask | None], Cost | None]

# Where stride, padding and dilation stand among a convolution's arguments.
_CONVOLUTION_ARGUMENTS = (
    (re.compile(r"^(cudnn|miopen_depthwise)_convolution$|^cudnn_convolution_transpose$"), (3, 2, 4)),
    (re.compile(r"^(miopen|mkldnn)_(depthwise_)?convolution|^_convolution_pointwise"), (4, 3, 5)),
    (re.compile(r"^cudnn_convolution_add_relu$"), (5, 6, 7)),
    (re.compile(r"^(thnn_conv|_?slow_conv|_conv_depthwise|conv_depthwise)"), (4, 5, 6)),
    (re.compile(r""), (3, 4, 5)),
)


def _per_dimension(value: Any, dimensions: int, default: int) -> list[int] | None:
    if value is None:
        return None
    numbers = [value] if isinstance(value, int) else value
    if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
        return None
    return (numbers or [default]) * (dimensions if len(numbers) <= 1 else 1)


def _convolved(name: str, inputs: Inputs, size: Sizes, kernel: Sizes) -> Sizes | None:
    """Spatial sizes of a convolution's output from its recorded stride, padding and dilation."""
    at = next(places for pattern, places in _CONVOLUTION_ARGUMENTS if pattern.search(name))
    stride = _per_dimension(inputs.value(at[0]), len(kernel), 1)
    dilation = _per_dimension(inputs.value(at[2]), len(kernel), 1) or [1] * len(kernel)
    padding: Any = inputs.value(at[1])
    if stride is None or min(stride) < 1:
        return None
    if padding == "same":
        return tuple(-(-extent // step) for extent, step in zip(size, stride, strict=False))
    padding = _per_dimension(0 if padding == "valid" else padding, len(kernel), 0)
    if padding is None:
        return None
    each = zip(size, kernel, stride, padding, dilation, strict=False)
    return tuple((n + 2 * pad - reach * (k - 1) - 1) // step + 1 for n, k, step, pad, reach in each)


def convolution(name: str, inputs: Inputs, output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """2 x output elements x (input channels of a group x kernel places)."""
    data, weight = inputs.tensor(0), inputs.tensor(1)
    if data is None or weight is None or len(weight.sizes) < 3:
        return None
    kernel = weight.sizes[2:]
    batched = len(data.sizes) == len(weight.sizes)
    moved = sum(tensor.bytes for tensor in inputs.tensors if tensor)  # with a bias, or what is added
    if "transpose" in name or (name in ("convolution", "_convolution") and inputs.value(6) is True):
        # Every input element is multiplied into (output channels of its group) x kernel places.
        flops = 2 * math.prod(data.sizes) * math.prod(weight.sizes[1:])
        written = math.prod(output) * data.element if output else 0
        return Cost(flops, moved + written)
    batch = data.sizes[0] if batched else 1
    spatial = _convolved(name, inputs, data.sizes[2 if batched else 1 :], kernel)
    if (
        spatial is None
        and output
        and len(output) == len(data.sizes)
        and output[-len(kernel) - 1] == weight.sizes[0]
    ):
        spatial = output[-len(kernel) :]
    if spatial is None:
        return None
    elements = batch * weight.sizes[0] * math.prod(max(0, extent) for extent in spatial)
    return Cost(2 * elements * math.prod(weight.sizes[1:]), moved + elements * data.element)


def convolution_backward(name: str, inputs: Inputs, _output: Sizes | None, mask: Mask | None) -> Cost | None:
    """The forward pass's arithmetic, once for each of the input's and the weight's gradients that is made."""
    first, second, weight = (inputs.tensor(index) for index in range(3))
    if name.endswith("_backward_input"):
        first, mask = None, (True, False, False)
    if name.endswith("_backward_weight") or weight is None or second is None or len(weight.sizes) < 3:
        return None  # a weight gradient alone does not record the weight's sizes; its parent does
    # Library operators take (input, gradient, weight), the generic ones (gradient, input, weight).
    library = re.match(r"(cudnn|miopen|mkldnn)_", name) is not None
    gradient, data = (second, first) if library else (first, second)
    if gradient is None:
        return None
    recorded = next((value for value in reversed(inputs.values) if _is_mask(value)), None)
    made = tuple(recorded) if recorded is not None else mask or (True, True, False)
    transposed = "transpose" in name or (name.startswith("convolution_backward") and inputs.value(7) is True)
    across = data if transposed and data else gradient
    one = 2 * math.prod(across.sizes) * math.prod(weight.sizes[1:])
    data_bytes = data.bytes if data else 0
    moved = gradient.bytes + (made[0] + made[1]) * (weight.bytes + data_bytes)
    if len(made) > 2 and made[2]:
        moved += weight.sizes[0] * weight.element  # the bias's gradient
    return Cost(one * (made[0] + made[1]), moved)


def _is_mask(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (2, 3) and all(isinstance(flag, bool) for flag in value)


def matrix_product(name: str, inputs: Inputs, _output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """2 x rows x inner x columns, for every matrix of a stack."""
    start = 1 if name.startswith(("addmm", "baddbmm", "addmv", "addbmm", "_addmm")) else 0
    left, right = inputs.tensor(start), inputs.tensor(start + 1)
    if left is None or right is None or not left.sizes or not right.sizes:
        return None
    linear = "linear" in name
    inner = left.sizes[-1]
    columns = right.sizes[0] if linear else right.sizes[-1] if len(right.sizes) > 1 else 1
    rows = math.prod(left.sizes[:-1])
    if not linear and len(right.sizes) > 2:
        stacked = math.prod(right.sizes[:-2])
        rows = stacked * left.sizes[-2] if len(left.sizes) > 1 else stacked
        rows = max(rows, math.prod(left.sizes[:-1]))
    extra = sum(tensor.bytes for tensor in inputs.tensors if tensor not in (left, right) and tensor)
    return Cost(2 * rows * inner * columns, left.bytes + right.bytes + extra + rows * columns * left.element)


def attention(name: str, inputs: Inputs, _output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """Fused attention: every query by every key, also where a mask would spare some of it.

    Tensors are (batch, heads, length, width); those of the inner operators (batch, length, heads, width).
    """
    first = 1 if "backward" in name else 0
    query, key, value = (inputs.tensor(first + index) for index in range(3))
    if query is None or key is None or value is None or len(query.sizes) != 4 or len(key.sizes) != 4:
        return None
    # Two products forward, five backward (the scores are computed again).
    length = key.sizes[1 if name.startswith(("_flash", "_efficient")) else 2]
    product = 2 * math.prod(query.sizes) * length
    moved = 2 * query.bytes + key.bytes + value.bytes
    return Cost((5 if first else 2) * product, moved * (2 if first else 1))


def every_element(name: str, inputs: Inputs, output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """One FLOP an element, read or written; all tensors read, one like the largest written."""
    if inputs.lists:
        # Lists (foreach, fused optimizers): each tensor is read; those of the first list are written, by a
        # fused optimizer those of all lists but the second, the gradients.
        first = inputs.lists[0]
        written = [first, *inputs.lists[2:]] if name.startswith("_fused") else [first]
        moved = sum(one.bytes for many in (*inputs.lists, *written) for one in many)
        return Cost(sum(math.prod(one.sizes) for one in first), moved)
    tensors = [tensor for tensor in inputs.tensors if tensor]
    if not tensors:
        return None
    largest = max(tensors, key=lambda tensor: math.prod(tensor.sizes))
    elements = math.prod(largest.sizes)
    return Cost(elements, sum(tensor.bytes for tensor in tensors) + elements * largest.element)


def reduction(name: str, inputs: Inputs, output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """One FLOP an element read; what is left of the reduced dimensions is written."""
    data = next((tensor for tensor in inputs.tensors if tensor), None)
    if data is None:
        return None
    written = math.prod(output or _left(data.sizes, inputs))
    return Cost(max(math.prod(data.sizes), written), data.bytes + written * data.element)


def _left(sizes: Sizes, inputs: Inputs) -> Sizes:
    """Sizes after a reduction over the recorded dimensions; of none if there are none (all are reduced)."""
    dimensions = next((value for value in inputs.values[1:] if isinstance(value, list)), [])
    if not dimensions or not all(type(one) is int and -len(sizes) <= one < len(sizes) for one in dimensions):
        return ()
    reduced = {one % len(sizes) for one in dimensions}
    return tuple(size for number, size in enumerate(sizes) if number not in reduced)


def pooling(name: str, inputs: Inputs, output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """One FLOP an element of the larger side."""
    data = inputs.tensor(0)
    if data is None:
        return None
    if "backward" in name:
        # The gradient and, where recorded, the indices are read; a tensor like the input is written.
        moved = sum(tensor.bytes for tensor in inputs.tensors if tensor)
        largest = max(math.prod(tensor.sizes) for tensor in inputs.tensors if tensor)
        return Cost(largest, moved)
    written = math.prod(output or _pooled(name, inputs, data.sizes))
    index = 8 if "indices" in name else 0
    return Cost(max(math.prod(data.sizes), written), data.bytes + written * (data.element + index))


def _pooled(name: str, inputs: Inputs, sizes: Sizes) -> Sizes:
    """Sizes after a pooling by its recorded window; the input's own where that is not recorded."""
    digit = re.search(r"pool(\d)d", name)
    count = int(digit[1]) if digit else 2
    window = _per_dimension(inputs.value(1), count, 1)
    if window is None or len(window) != count or len(sizes) < count:
        return sizes
    leading, spatial = sizes[:-count], sizes[-count:]
    if "adaptive" in name:
        return (*leading, *window)
    step = _per_dimension(inputs.value(2) or window, count, 1)
    padding = _per_dimension(inputs.value(3) or 0, count, 0)
    if step is None or padding is None or min(step) < 1:
        return sizes
    up = inputs.value(5 if "max" in name else 4) is True
    each = zip(spatial, window, step, padding, strict=False)
    return (*leading, *(max(0, (n + 2 * pad - k + (s - 1) * up) // s + 1) for n, k, s, pad in each))


def selection(name: str, inputs: Inputs, _output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """No arithmetic; the indices and the elements that they select are read, the latter are written."""
    data = inputs.tensor(0)
    lists = inputs.lists[0] if inputs.lists else ()
    indices = [tensor for tensor in inputs.tensors[1:] if tensor] or list(lists)
    if data is None or not indices:
        return None
    count = max(math.prod(tensor.sizes) for tensor in indices)
    whole = 1 if name == "gather" else math.prod(data.sizes[len(lists) or 1 :])
    if name == "index_select" and isinstance(inputs.value(1), int) and data.sizes:
        whole = math.prod(data.sizes) // max(1, data.sizes[inputs.value(1) % len(data.sizes)])
    return Cost(0, sum(tensor.bytes for tensor in indices) + 2 * count * whole * data.element)


def copy(name: str, inputs: Inputs, _output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """No arithmetic; what is read is written. ``copy_`` names both sides."""
    tensors = [tensor for tensor in inputs.tensors if tensor] + [one for many in inputs.lists for one in many]
    if not tensors:
        return None
    moved = sum(tensor.bytes for tensor in tensors)
    return Cost(0, moved if name == "copy" else 2 * moved)


def fill(name: str, inputs: Inputs, _output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """No arithmetic; the tensor is written."""
    data = inputs.tensor(0)
    return Cost(0, data.bytes) if data else None


def nothing(name: str, inputs: Inputs, _output: Sizes | None, _mask: Mask | None) -> Cost | None:
    """Memory is allocated, or looked at in another way."""
    return Cost(0, 0)


# --- which operator has which formula: the first pattern that matches the whole name without "aten::" ---

# A composite only calls other operators, which are counted; its own cost is for where none was recorded.
_FAMILIES: tuple[tuple[str, Formula, bool], ...] = (
    (r"empty(_like|_strided|_quantized)?|new_empty\w*|as_strided|resize|resize_as|view|view_as|_unsafe_view|reshape"
     r"|_reshape_alias|detach|t|transpose|permute|expand|expand_as|slice|select|narrow|unsqueeze|squeeze|flatten"
     r"|unflatten|unflatten_dense_tensors|chunk|(unsafe_)?split(_with_sizes)?|unbind|alias|result_type"
     r"|is_\w+|set|item|_local_scalar_dense|lift\w*"
     r"|resolve_conj|resolve_neg|conj|size|stride|movedim|numpy_T|mT|T|diagonal|real|can_cast|record_stream"
     r"|\w+_(available|acceptable)|_nested_\w+|output_nr|_version|requires_grad|retain_grad|pin_memory|_pin_memory|unfold",
     nothing, False),
    (r"conv[123]d|conv_transpose[123]d|_?convolution|convolution_overrideable|_convolution_mode", convolution,
     False),
    (r"\w*convolution\w*_backward\w*|\w*conv\w*[23]d\w*_backward\w*", convolution_backward, True),
    (r"\w*convolution\w*|\w*conv_?\w*[23]d\w*", convolution, True),
    (r"linear|matmul|_?mkldnn_linear|chain_matmul", matrix_product, False),
    (r"mm|addmm|bmm|baddbmm|addbmm|mv|addmv|_addmm_activation|_int_mm|_scaled_mm|_linear_pointwise",
     matrix_product, True),
    (r"_scaled_dot_product_\w*attention\w*|_flash_attention_(for|back)ward|_efficient_attention_\w+",
     attention, True),
    (r"batch_norm|_batch_norm_impl_index(_backward)?|layer_norm|group_norm|instance_norm|rms_norm",
     every_element, False),
    (r"\w*(batch|layer|group|instance|rms)_norm\w*|_batch_norm_\w+", every_element, True),
    (r"max_pool[123]d|adaptive_avg_pool[123]d|avg_pool1d", pooling, False),
    (r"\w*pool\w*", pooling, True),
    (r"to|contiguous|clone|_to_copy|stack|repeat|type_as|float|half|bfloat16", copy, False),
    (r"copy|_?cat|_copy_from|_foreach_copy|constant_pad_nd|flip|roll", copy, True),
    (r"index_select|index|gather|embedding", selection, True),
    (r"zeros\w*|ones\w*|full\w*|new_zeros|new_ones|new_full|arange|scalar_tensor|zeros_like|ones_like", fill,
     False),
    (r"zero|fill|_foreach_zero|normal|uniform|random|bernoulli|randperm", fill, True),
    (r"cross_entropy_loss|log_softmax|softmax|nll_loss|nll_loss_nd|dropout|relu|gelu_composite",
     every_element, False),
    (r"mean|std|var", reduction, False),
    (r"sum|max|min|amax|amin|norm|linalg_vector_norm|argmax|argmin|prod|any|all|topk|nll_loss\w*"
     r"|embedding_dense_backward|count_nonzero", reduction, True),
    (r"add|sub|rsub|mul|div|true_divide|neg|abs|pow|sqrt|rsqrt|exp|log|sin|cos|tanh|sigmoid|silu|gelu|hardtanh"
     r"|hardswish|hardsigmoid|leaky_relu|elu|clamp|clamp_min|clamp_max|threshold|where|masked_fill|maximum|minimum"
     r"|addcmul|addcdiv|lerp|reciprocal|sign|floor|ceil|round|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|square"
     r"|_log_softmax|_softmax|sort|cumsum|isfinite|isnan|isinf|native_dropout|\w+_backward(_data)?|_foreach_\w+|_fused_(adam|adamw|sgd|adagrad)|_amp_\w+|mse_loss"
     r"|smooth_l1_loss|huber_loss|l1_loss|binary_cross_entropy\w*|kl_div|native_layer_norm|_thnn_fused_\w+",
     every_element, True),
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
    """FLOPs and bytes of one call of an operator (``aten::mkldnn_convolution``); None: not known.

    Args:
        inputs: what :func:`parse_inputs` gives.
        output_sizes: of the output where known from elsewhere (the gradient that its backward operator
            received); needed where the trace does not record stride and padding.
        mask: of a convolution's backward, which gradients are made (input, weight, bias) where the trace
            does not record it; by default both.
    """
    family = _family(name)
    return None if family is None else family[1](family[0], inputs, output_sizes, mask)
