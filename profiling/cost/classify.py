"""The name, class and precision of a kernel (on a CPU: of an operator), by its name.

nvprof's databases and old traces contain mangled names; nvprof prints ``int=4, bool=1`` and Nsight tools
``(int)4, (bool)1`` where a demangler prints ``4, true``. All are normalized to what the C++ library's
demangler prints. The class is that of the first pattern of an ordered table that matches the name. Classes
that do not follow from a name (an elementwise kernel launched by an optimizer) are decided by the caller.
"""

import re
from functools import lru_cache

# A template argument with its type before it, as nvprof (type=value) and Nsight ((type)value) have it.
_SUFFIX = {
    "int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll",
    "unsigned long long": "ull", "__int64": "l", "size_t": "ul",
}  # fmt: skip
_TYPE = "|".join(sorted(_SUFFIX, key=len, reverse=True))
_TYPED = re.compile(rf"(?<=[<,\s])(?:({_TYPE})=|\(({_TYPE})\))(-?\d+)")
_BOOL = re.compile(r"(?<=[<,\s])(?:bool=|\(bool\))([01])")
_ENUM = re.compile(r"(?<=[<,\s])([A-Za-z_][\w:]*)=(-?\d+)")
_LAMBDA = re.compile(r"\[lambda(\([^()]*\)) \(instance (\d+)\)\]")
_SPACES = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\s*,\s*"), ", "),
    (re.compile(r"\s+([*&>])"), r"\1"),
    (re.compile(r"<\s+"), "<"),
    (re.compile(r"(?<=>)>"), " >"),
    (re.compile(r"\bconst ((?:unsigned |signed )?[A-Za-z_][\w:]*)(?=[*&])"), r"\1 const"),
)


def demangle(name: str) -> str:
    """A C++ name as people read it; what is not mangled, or where there is no C++ library, as it is."""
    if not name.startswith(("_Z", "__Z")):  # with a second underscore, as macOS has it
        return name
    try:
        import cxxfilt  # looks for the C++ library: only where a tool mangles
    except OSError:  # it found one that cannot be loaded
        return name
    try:
        return cxxfilt.demangle(name.removeprefix("_") if name.startswith("__Z") else name)
    except (cxxfilt.Error, UnicodeError):
        return name


_READ = 1 << 12  # letters of a name that are parsed; some patterns take the square of them


@lru_cache(maxsize=1 << 16)
def full_name(name: str) -> str:
    """One name for a kernel, whichever tool printed it: demangled, arguments as the demangler has them."""
    text = demangle(name.strip())
    if len(text) > _READ or ("<" not in text and "(" not in text):
        return text
    text = _TYPED.sub(lambda found: found[3] + _SUFFIX[found[1] or found[2]], text)
    text = _BOOL.sub(lambda found: "true" if found[1] == "1" else "false", text)
    text = _ENUM.sub(r"(\1)\2", text)
    text = _LAMBDA.sub(r"{lambda\1#\2}", text).replace("<unnamed>", "(anonymous namespace)")
    text = text.replace("operator ()", "operator()")
    for pattern, written in _SPACES:
        text = pattern.sub(written, text)
    return text


# Order matters: collectives, copies and the loader first, because their names hold words of arithmetic
# (ncclKernel_AllReduce, dali::...Resample...Kernel); "gemm" after "convolution", because implicit
# convolutions are named after both; pointwise last, because its words are the most common ones. A kernel that
# the compiler wrote (triton_KIND_fused_OPERATORS) is of its kind, whatever operators it took in.
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("communication",
     r"nccl|rccl|msccl|oneccl|\bccl_|\bccl::|(deep_?ep|\bep|hybrid_ep|mori|pplx)::|^(gloo|mpi|ucc|xccl):|c10d::|record_param_comms|horovod|(nv|roc)shmem|\bMPI_"
     r"|cross_device_reduce|symm_mem::|^_c10d_functional::|all_?reduce|all_?gather|reduce_?scatter|alltoall"
     r"|(BatchedScaled|batched_)(D2D)?memcpy|scale_buffer|ScaleBuffer"
     # Expert parallelism, overlapped tensor parallelism and Ascend: DeepEP, mori, pplx, TensorRT-LLM,
     # TransformerEngine, HCCL.
     r"|\bEp(Dispatch|Combine)\w*|\ba2a_(dispatch|combine)|moeA2A|k?userbuffers_|\bhcom_"),
    ("pooling", r"^triton_poi_\w*pool"),
    # Triton's names before PyTorch 2.1 (triton__0d1d2d) say nothing: most such kernels are elementwise.
    ("pointwise", r"^triton_poi_|^triton__\d|\bcpp_fused_"),
    ("optimizer", r"^triton_for_"),
    ("memcpy", r"^\[?(CUDA |HIP )?memcpy\b|rocclr_copyBuffer|zeCommandListAppendMemoryCopy"
     r"|^Copy(Host|Device)To|^aten::(copy_|_to_copy|clone)$"),
    ("memset", r"^\[?(CUDA |HIP )?memset\b|rocclr_fillBuffer|zeCommandListAppendMemoryFill"
     r"|^aten::(zero_|fill_|zeros|ones)$"),
    ("loader", r"\bdali::|dali_|nvjpeg|jpeg|DataLoader|^image::|nvImageCodec"),
    ("optimizer",
     r"multi_tensor_apply|_foreach_|_fused_(adam|sgd|adagrad)|fused_?(adam|sgd|lamb|adagrad)|^Optimizer\."
     r"|distributed_adam|\b(adamw?|lamb|lion|adagrad|muon)_\w*(kernel|step)|amp_(non_finite|update_scale|foreach)|_amp_"),
    # Of the softmax kernels, those of a plain softmax are attention's, those of its logarithm a loss's.
    ("attention",
     r"flash|fmha|attention|_sdp|sdpa|\bmha_|\b_?attn_|_attn\b|\bsage_?(attn|fwd|quant)|\bmla_|kv_?cache|reshape_and_cache|softmax_warp_\w+<[^>]*,\s*(\(bool\)0|false),\s*\S+?>"
     r"|cunn_SoftMax\w*<.*\bSoftMax(For|Back)wardEpilogue|scaled_\w*softmax|^aten::_?softmax"
     r"|cudnn::fusion::compute_dot_do_o"),
    ("loss",
     r"nll_?loss|ClassNLL|cross_?entropy|mse_(kernel|loss|backward)|smooth_l1|l1_loss|kl_div|binary_cross|bce_"
     r"|soft_?max|ctc_?loss|ctc_|compute_(alpha|betas)_kernel"),
    ("normalization",
     r"batch_?norm|RowwiseMoments|\bbn_(fw|bw)|layer_?norm|group_?norm|instance_?norm|rms_?norm|GammaBeta|\blrn|response_norm"
     r"|cuComputeGrad|ComputeInternalGradients|ComputeGradientFusedParams|cuApplyLayer|SpatialBatchNorm|WelfordBatch|\bln_(fwd|bwd)|cuComputePart"),
    ("pooling", r"pool"),
    ("embedding",
     r"embedding|bounds_check_indices|permute_\dD_|jagged|index_?select|gather_kernel|^aten::(index|gather)$"
     r"|partials?_per_segment|partial_segments|compute_grad_weight|sum_and_scatter"),
    ("convolution",
     r"conv(?!ert)|wgrad|dgrad|fprop|[shi]cudnn|winograd|implicit_?gemm|igemm_(fwd|bwd|wrw)|\bfft[123]d|im2col"
     r"|col2im|vol2col|flip_filter|nchwToNhwc|nhwcToNchw|nchw2nhwc|scalePackedTensor|cask_cudnn|cudnn::gemm"
     r"|pointwise_mult_and_sum_complex|depthwise|bwd_weight|bwd_data|SubTensorOp|batched_transpose_\d"
     r"|transpose_(NCHW|CNHW)|cudnn::(cnn|ops|engines)|miopen|dgrad2d|first_layer|cudnn_.*_kernel_cudnn"),
    ("gemm",
     r"gemm|gemv|\bCijk_|cublas|splitK_?reduce|cutlass|nvjet|(?<!finalize_)matmul|epilogue::impl|\b_?b?mm_[A-Z]|rocblas|hipblas|wvSplitK|fused_moe|moe_mm|s16816|s1688|h884|h1688|wmma|\bdot_kernel|tensile"
     r"|compute_gemm_pointers|RNN_|rnn::|persist|region_transform_ABC|triton_(tem|mm)|^aten::(_?(add)?b?mm\w*|addr|dot|vdot|mv|addmv|linear|matmul"
     r"|baddbmm|einsum|_scaled_mm|mkldnn_linear\w*|mkldnn_rnn_layer\w*|lstm|gru)$|^mkl::|mkldnn::_linear"),
    ("reduction",
     r"reduce|reduction|triton_(red|per)|\bcub::|scan_kernel|kernel_scan|cumsum|logsumexp|\bnorm_kernel|argmax|argmin"
     r"|^aten::(_?(sum|mean|max|min|amax|amin|norm|linalg_vector_norm|var|std|var_mean|all|any|prod|topk|sort"
     r"|cumsum|argmax|argmin|_local_scalar_dense|item|equal))(_out)?$|radixSort|DeviceRadix|bitonic|TopK|routing|\bmoe::|moe_(align|sum|permute|unpermute)|sum_bitmatrix"),
    (
        "pointwise",
        r"elementwise|element_?wise|pointwise|triton_poi|TensorIterator|ApplyOp|dropout|\bscal_kernel|saxpy|axpy"
        r"|CatArray|transpose_readWrite|transpose|index_kernel|indexing|scatter|OpTensor|addTensor|activation"
        r"|^op_(generic_)?tensor|relu|LSTM_|GRU_|lstm_cell|gru_cell|elemWise|fill_kernel|copy_kernel|philox|distribution_|random"
        r"|silu|gelu|swiglu|rotary|\brope_|rope_kernel|quant|recat_|offsets_range|repeat_interleave|compute_cuda_kernel"
        r"|tril_triu|\bkernelPointwise|upsample|pad_|\bthrust::"
        r"|^aten::(_?(add|sub|rsub|mul|div|neg|abs|pow|sqrt|rsqrt|exp|log|sin|cos|tanh|sigmoid|silu|gelu|relu"
        r"|hardtanh|hardswish|hardsigmoid|leaky_relu|elu|selu|celu|mish|softplus|clamp|clamp_min|clamp_max"
        r"|threshold|where|masked_fill|maximum|minimum|addcmul|addcdiv|lerp|reciprocal|sign|floor|ceil|round|eq"
        r"|ne|lt|le|gt|ge|logical_and|logical_or|logical_not|bitwise_and|bitwise_or|bitwise_not|isfinite|isnan"
        r"|nan_to_num|normal|uniform|bernoulli|random|cat|stack|native_dropout|dropout|tanh|fmod|remainder|hypot"
        r"|square|special_\w+|to|contiguous|flip|roll|repeat|arange|scatter|scatter_add|index_put)_?"
        r"(_backward|_out|_backward_out|\w*_backward\w*)?)$"
        # On a CPU, what only views or allocates data, as the transposition and the concatenation above.
        r"|^aten::(_unsafe_view|view(_as)?|reshape|_reshape_alias|t|permute|movedim|expand(_as)?|squeeze|unsqueeze"
        r"|select|slice|narrow|split(_with_sizes)?|chunk|unbind|flatten|unflatten|unfold|as_strided|alias|detach"
        r"|diagonal|lift_fresh|resolve_(conj|neg)|(new_)?empty(_like|_strided)?|resize|set|record_stream|is_pinned"
        r"|_?pin_memory|index_(copy|add|fill)|bucketize|searchsorted)_?$",
    ),
)  # fmt: skip
# Small letters are found in small letters, in a third of the time that re.IGNORECASE takes.
_TABLE = tuple(
    (name, re.compile(re.sub(r"(?<!\\)[A-Z]", lambda letter: letter[0].lower(), pattern)))
    for name, pattern in _PATTERNS
)

# Kernels that only prepare data for a convolution or a GEMM: they take none of its FLOPs.
_HELPER = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|transpose|computeOffsets|OffsetsKernel|scalePackedTensor|flip_filter"
    r"|SubTensorOp|generateWinogradTiles|compute_gemm_pointers|splitK_?reduce|ReduceSplitK|reduce_wgrad|im2col"
    r"|col2im|elementwise_kernel|Memcpy|Memset",
    re.IGNORECASE,
)


# Words that stand in many names and say nothing of the work: the library fbgemm's namespace, and, in mangled
# names of old compilers, the file that the kernel was compiled from.
_NOISE = re.compile(r"fbgemm_gpu::|_GLOBAL__N__\d+_tmpxft\w*?_cpp1_ii_[0-9a-f]{8}")


@lru_cache(maxsize=1 << 16)
def classify(name: str) -> str:
    """The class of a kernel or operator, one of :data:`profiling.schemas.CLASSES`; ``other`` if unknown.

    Template arguments count (they hold what an elementwise kernel does), parameter types do not.
    """
    text = _NOISE.sub("", _without_parameters(name[:_READ].strip())).lower()
    for kind, pattern in _TABLE:
        if pattern.search(text):
            return kind
    return "other"


@lru_cache(maxsize=1 << 16)
def is_helper(name: str) -> bool:
    """Whether a kernel only prepares or rearranges data for the arithmetic of the same operator."""
    return _HELPER.search(name[:_READ]) is not None


_COPY = re.compile(r"^\[?(?:CUDA |HIP )?(mem(?:cpy|set))\s*([A-Za-z]+)?", re.IGNORECASE)
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|_GLOBAL__N_\w*::")
_RETURN_TYPE = re.compile(
    r"^(?:static |inline |const |__global__ )*(?:void|bool|int|float|double|long|char|size_t)\s+"
)


@lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """A name without return type, template arguments and parameters.

    ``void at::native::reduce_kernel<512, 1, ...>(...)`` is ``at::native::reduce_kernel``;
    ``Memcpy HtoD (Pageable -> Device)`` and ``[CUDA memcpy HtoD]`` are ``Memcpy HtoD``.
    Of a mangled name the outermost qualified name is kept.
    """
    text = name[:_READ].strip()
    copy = _COPY.match(text)
    if copy:
        kind = copy[2] if copy[2] and copy[1].lower() == "memcpy" else ""
        return f"{copy[1].capitalize()} {kind}".rstrip()
    if text.startswith("_Z"):
        return _outermost_name(text) or text
    if "#" in text and "<" not in text:
        return text  # a range such as enumerate(DataLoader)#... or Optimizer.step#SGD.step
    plain = _without_arguments(_RETURN_TYPE.sub("", _ANONYMOUS.sub("", text)))
    if plain != text and ("<" in text or "(" in text):
        plain = plain.split()[-1] if plain.split() else ""
    return plain.strip(": ") or text


_IN_NAMES = ("(anonymous", "()")  # "(anonymous namespace)::" and "operator()(...)"


def _without_parameters(text: str) -> str:
    """A C++ name up to its parameter list; other names as they are."""
    if "#" in text and "<" not in text:
        return text  # a range, see short_name
    depth = 0
    for position, character in enumerate(text):
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
        elif character == "(" and depth == 0 and position and not text.startswith(_IN_NAMES, position):
            return text[:position]
    return text


def _without_arguments(text: str) -> str:
    """``text`` up to its parameter list, without what stands between ``<`` and ``>``."""
    characters, depth = [], 0
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
        elif character in "([" and depth == 0:
            break
        elif depth == 0:
            characters.append(character)
    return "".join(characters)


def _outermost_name(mangled: str) -> str:
    position, parts = 2, []
    while position < len(mangled) and mangled[position] in "NKL":
        position += 1
    while match := re.compile(r"\d+").match(mangled, position):
        start, length = match.end(), int(match[0])
        part = mangled[start : start + length]
        if len(part) < length:
            break
        position = start + length
        if not part.startswith("_GLOBAL__N_"):
            parts.append(part)
    return "::".join(parts)


# The first that is found counts: inputs' types before what a library's abbreviations imply. Tensile's names
# hold the types of inputs, outputs and computation (BBS: bf16 in and out, single for the sums).
_PRECISIONS = (
    ("fp8", r"e4m3|e5m2|fp8|float8|_f8|qqtst|nvjet_qq"),
    ("bf16", r"bf16|bfloat16|\bCijk_\w*?_BB[SH]|\bCijk_\w*?_BS?S_B|nvjet_tst|nvjet_\w*bf"),
    ("fp16", r"fp16|half|[^a-z]f16|_h16816|h884|hgemm|h1688|hmma|hsh_|hhs_|\bCijk_\w*?_HH?S|nvjet_hs"),
    ("tf32", r"tf32|s1688"),
    ("fp32", r"sgemm|f32|float|scudnn|\bCijk_\w*?_S_?B|simt"),
    ("bf16", r"s16816|16816|wgmma"),
)
_OF_PRECISIONS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PRECISIONS)


@lru_cache(maxsize=1 << 14)
def precision_in(name: str) -> str:
    """fp32, tf32, bf16, fp16 or fp8; "": the name does not say it."""
    return next((precision for precision, pattern in _OF_PRECISIONS if pattern.search(name[:_READ])), "")
