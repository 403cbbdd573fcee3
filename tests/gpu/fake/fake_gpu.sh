#!/usr/bin/env bash
# Run the host side of CUDA programs without a GPU: stand-ins for NVIDIA's libraries below PyTorch's own CUDA build.
#
#   fake_gpu.sh make DIR PYTHON     a new environment in DIR: PyTorch 2.11 for CUDA 13 without the libraries that it needs,
#                                   the stand-ins in their place, and of the environment of PYTHON all else but DALI
#   fake_gpu.sh build DIR           only the stand-ins, again
#   fake_gpu.sh run DIR ARGUMENTS   DIR's python, which then sees fake GPUs
#
# What is real: Python, PyTorch's C++, its allocator, autograd, DDP, c10d, Kineto, cupti-python, pynvml. What is made up:
# device memory is the host's; a kernel does nothing and takes FAKE_KERNEL_NS (2000) of a made-up timeline, on which
# streams and events run; ranks exchange real bytes over files; CUPTI hands out records. So it shows which
# calls are made, in which order and with what: no arithmetic, no speed, no cuDNN (switched off), no Triton, no DALI.
#
# FAKE_GPUS (1), FAKE_MEM_MB (81559), FAKE_CC (90: compute capability 9.0), FAKE_NVML_NO=1 (no NVML), FAKE_CUPTI_NO=1
# (CUPTI refuses), FAKE_NCCL_COLLECTIVE=1 (destroying a communicator waits for all ranks, as NCCL documents),
# FAKE_NCCL_FOLDER (/dev/shm: where ranks put what they exchange, and leave the last of it), FAKE_NCCL_LOG=1,
# FAKE_CUPTI_LOG=1. What was called is counted: FakeCounters in libraries/cudart.cpp.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 2 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2; }
what=$1 dir=$(realpath -m "$2")
shift 2

packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

case $what in
make)
    rm -rf "$dir"
    "$1" -m venv "$dir"
    site=$(packages "$dir/bin/python")
    # The oldest PyTorch that is supported, and of CUDA the headers; without dependencies, which are 3 GB of libraries.
    "$dir/bin/pip" -q --disable-pip-version-check install --no-deps torch==2.11.0 torchvision==0.26.0 \
        nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
    packages "$1" >"$site/beside.pth"
    touch "$site/nvidia/__init__.py" # hides what PYTHON has of NVIDIA: CUPTI, and DALI, which needs a driver
    "$0" build "$dir"
    "$0" run "$dir" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name(), torch.cuda.mem_get_info())'
    touch "$dir/.ready"
    ;;
build)
    site=$(packages "$dir/bin/python")
    cp "$here/sitecustomize.py" "$site/"
    "$dir/bin/python" "$here/build.py" "$site" "$dir/fake"
    ;;
run)
    export LD_LIBRARY_PATH=$dir/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    export FAKE_GPUS=${FAKE_GPUS:-1}
    exec "$dir/bin/python" "$@"
    ;;
*) "$0" ;;
esac
