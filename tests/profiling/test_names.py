"""One kernel has one name, as each tool prints it."""

import pytest

from profiling.cost.classify import classify, full_name, short_name

DEMANGLED = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
FILL = "at::native::FillFunctor<float>"
ARRAYS = "std::array<char*, unsigned long=1>", "std::array<char *, (unsigned long)1>"
AS_PRINTED = {
    "nvprof's and Nsight Systems' databases": MANGLED,
    "macOS": f"_{MANGLED}",
    "PyTorch": DEMANGLED,
    "nvprof": "void at::native::vectorized_elementwise_kernel"
    f"<int=4, {FILL}, {ARRAYS[0]}>(int, {FILL}, {ARRAYS[0]})",
    "Nsight": "void at::native::vectorized_elementwise_kernel"
    f"<(int)4, {FILL}, {ARRAYS[1]}>(int, {FILL}, {ARRAYS[1]})",
}


@pytest.mark.parametrize("tool", AS_PRINTED)
def test_full_short_and_class_are_the_same_from_every_tool(tool):
    name = full_name(AS_PRINTED[tool])
    assert name == DEMANGLED
    assert short_name(name) == "at::native::vectorized_elementwise_kernel"
    assert classify(name) == "pointwise"


CASES = {
    "void k<bool=1, unsigned int=3>(float const *)": "void k<true, 3u>(float const*)",
    "void k<(bool)0, (cudnnMode_t)2>(T1 *, const T2 &)": "void k<false, (cudnnMode_t)2>(T1*, T2 const&)",
    "void <unnamed>::k<[lambda(float) (instance 3)]>(int)":
        "void (anonymous namespace)::k<{lambda(float)#3}>(int)",
    "volta_sgemm_32x128_tn": "volta_sgemm_32x128_tn",
    "[CUDA memcpy HtoD]": "[CUDA memcpy HtoD]",
    "_Znot a mangled name": "_Znot a mangled name",
    "_Z1\udcff": "_Z1\udcff",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("printed", CASES)
def test_template_arguments_become_what_a_demangler_prints(printed):
    assert full_name(printed) == CASES[printed]
