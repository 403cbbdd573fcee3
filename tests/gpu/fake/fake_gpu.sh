#!/usr/bin/env bash
# Run the host side of CUDA programs without a GPU: stand-ins for NVIDIA's libraries below PyTorch's own CUDA build.
#
#   fake_gpu.sh make DIR            a new environment in DIR (5 GB, 3 minutes): PyTorch 2.11 for CUDA 13, what scaleprof
#                                   needs beside it but DALI, and the stand-ins in place of NVIDIA's libraries
#   fake_gpu.sh build DIR           only the stand-ins, again
#   fake_gpu.sh run DIR ARGUMENTS   DIR's python, which then sees fake GPUs
#
# What is real: Python, PyTorch's C++, its allocator, autograd, DDP, c10d, Kineto, cupti-python, pynvml. What is made up:
# device memory is the host's; a kernel does nothing and takes FAKE_KERNEL_NS (2000) of a made-up timeline, on which
# streams and events run; ranks exchange real bytes over files in /dev/shm; CUPTI hands out records. So it shows which
# calls are made, in which order and with what: no arithmetic, no speed, no cuDNN (switched off), no Triton, no DALI.
#
# FAKE_GPUS (1), FAKE_MEM_MB (81559), FAKE_CC (90: compute capability 9.0), FAKE_NVML_NO=1 (no NVML), FAKE_CUPTI_NO=1
# (CUPTI refuses), FAKE_NCCL_COLLECTIVE=1 (destroying a communicator waits for all ranks, as NCCL documents),
# FAKE_NCCL_LOG=1, FAKE_CUPTI_LOG=1. What was called is counted: FakeCounters in libraries/cudart.cpp.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
[ $# -ge 2 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2; }
what=$1 dir=$(realpath -m "$2")
shift 2

library() { # NAME FOLDER VERSION SOURCES...
    local name=$1 folder=$2 version=$3
    shift 3
    local map=()
    [ -z "$version" ] || { printf '%s { global: *; };\n' "$version" >"$tmp/map"; map=("-Wl,--version-script=$tmp/map"); }
    g++ -O1 -fPIC -shared -w -fpermissive -I"$tmp/include" "-Wl,-soname,$name" "${map[@]}" "$@" -o "$folder/$name" -lpthread -ldl
}

build() {
    local site cuda runtime=libcudart.so.13 source=$here/libraries
    site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cuda=$site/nvidia/cu13
    cp "$here/sitecustomize.py" "$site/"
    mkdir -p "$dir/fake"
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    ln -s "$cuda/include" "$tmp/include"
    rm -f "$cuda"/lib/lib{cudart.so.13,cublas.so.13,cublasLt.so.13,cupti.so.13} "$site"/nvidia/nccl/lib/libnccl.so.2
    library $runtime "$cuda/lib" $runtime -x c++ "$source/cudart.cpp" "$source/missing.cpp"
    local on_runtime=(-x none "$cuda/lib/$runtime")
    library libcublas.so.13 "$cuda/lib" libcublas.so.13 -x c++ "$source/cublas.cpp" "${on_runtime[@]}"
    library libcublasLt.so.13 "$cuda/lib" libcublasLt.so.13 -x c++ "$source/cublaslt.cpp" "${on_runtime[@]}"
    library libcupti.so.13 "$cuda/lib" libcupti.so.13 -x c++ -std=c++17 "$source/cupti.cpp" "${on_runtime[@]}"
    library libcuda.so.1 "$dir/fake" "" -x c++ "$source/cuda.cpp"
    gcc -O1 -fPIC -shared -w -Wl,-soname,libnccl.so.2 "$source/nccl.c" "$cuda/lib/$runtime" -o "$site/nvidia/nccl/lib/libnccl.so.2"
    gcc -O1 -fPIC -shared -w -Wl,-soname,libnvidia-ml.so.1 "$source/nvml.c" -o "$dir/fake/libnvidia-ml.so.1"
}

case $what in
make)
    python3 -m venv "$dir"
    # All that the project pins but PyTorch, whose other release is tested here, and DALI, which wants a driver.
    python3 - "$root/pyproject.toml" >"$dir/requirements.txt" <<'END'
import sys, tomllib
needed = tomllib.load(open(sys.argv[1], "rb"))["project"]
tests = needed["optional-dependencies"]["test"]
wanted = [*needed["dependencies"], *(one for one in tests if one.startswith(("pytest==", "cupti")))]
print(*(one for one in wanted if not one.startswith(("torch", "nvidia-dali"))), sep="\n")
END
    "$dir/bin/pip" -q install torch==2.11.0 torchvision==0.26.0 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-cupti==13.0.85 -r "$dir/requirements.txt"
    build
    "$0" run "$dir" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name(), torch.cuda.mem_get_info())'
    touch "$dir/.ready"
    ;;
build) build ;;
run)
    export LD_LIBRARY_PATH=$dir/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    exec "$dir/bin/python" "$@"
    ;;
*) "$0" ;;
esac
