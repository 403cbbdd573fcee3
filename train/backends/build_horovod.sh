#!/usr/bin/env bash
# Build Horovod into an environment, keep the wheel, and see that two ranks agree:  make horovod
#
#   train/backends/build_horovod.sh VENV
#
# Horovod's last release (0.28.1) asks for C++14, and PyTorch's headers want C++20: a small wrapper in the place
# of the compiler rewrites that one flag; the source stays as it was released. The wrapper also leaves out what a
# debugger would read (19 of the wheel's 20 MB), and has the library look for PyTorch and MPI in the environment that it
# is installed into: a wheel may outlive the environment that it was built in. It takes some minutes on two cores; the
# wheel is kept in $HOROVOD_WHEELS [~/.cache/scaleprof/horovod], one for each Python, PyTorch and MPI. Needs g++, cmake,
# make; with an mpicxx on the PATH (or in VENV) that builds MPI programs it can talk over MPI, else over Gloo.
set -euo pipefail
VERSION=0.28.1
bin=$(cd "$1/bin" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for tool in g++ cmake make; do
    command -v "$tool" >/dev/null || { echo "horovod: $tool is missing (apt-get install g++ cmake make)" >&2; exit 2; }
done

builds_mpi() { # FOLDERS, as PATH has them: whether their mpicxx builds a program
    local mpicxx
    mpicxx=$(PATH=$1 command -v mpicxx) || return
    printf '#include <mpi.h>\nint main() { return MPI_Finalize(); }\n' >"$scratch/mpi.cpp"
    PATH=$1 "$mpicxx" "$scratch/mpi.cpp" -o "$scratch/mpi" >/dev/null 2>&1
}
# The site's MPI before one that is installed in the environment. Some have an mpicxx and no headers (Debian's
# openmpi-bin without libopenmpi-dev).
mpi=none
for path in "$PATH:$bin" "$bin:$PATH"; do
    if builds_mpi "$path"; then
        PATH=$path
        mpi=$(mpirun --version 2>/dev/null | grep -oE '(Open MPI|HYDRA|Intel).*' | head -1 | tr -cs 'A-Za-z0-9.\n' '-')
        echo "horovod: using $(command -v mpicxx)"
        break
    fi
done
PATH=$PATH:$bin
torch=$("$bin/python" -c 'import sys, torch; print(f"cp{sys.version_info[0]}{sys.version_info[1]}-{torch.__version__}")')
# The last digit counts the ways to build: no wheel is taken that an earlier one has left.
wheels=${HOROVOD_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/scaleprof/horovod}/$torch-${mpi:-unknown}-2
shopt -s nullglob
wheel=("$wheels"/horovod-*.whl)

if [[ ${#wheel[@]} -eq 0 ]]; then
    echo "horovod: building $VERSION for torch $torch, MPI: $mpi (some minutes)"
    cat >"$scratch/g++" <<'WRAPPER'
#!/usr/bin/env bash
here='$ORIGIN/../../torch/lib:$ORIGIN/../../../..' # from site-packages/horovod/torch
exec env PATH="$REAL_PATH" g++ "-Wl,-rpath,$here" "${@/#-std=*++14/-std=c++20}" -g0
WRAPPER
    chmod +x "$scratch/g++"
    # Its build asks the environment for these, and pins none of them.
    "$bin/python" -m pip install --quiet --disable-pip-version-check setuptools wheel packaging cffi cloudpickle psutil
    [[ $mpi == none ]] && with=() || with=(HOROVOD_WITH_MPI=1)
    if [[ $torch == *+cu* ]] && command -v nvcc >/dev/null; then
        nccl=$("$bin/python" -c 'import nvidia.nccl as n; print(list(n.__path__)[0])')
        mkdir -p "$scratch/nccl/lib"
        ln -s "$nccl"/lib/libnccl.so.2 "$scratch/nccl/lib/libnccl.so"
        ln -s "$nccl/include" "$scratch/nccl/include"
        with+=(HOROVOD_GPU_OPERATIONS=NCCL "HOROVOD_NCCL_HOME=$scratch/nccl")
    fi
    # pip's own cache does not know which MPI a wheel was built with. Horovod compiles several files at once, but one
    # after the other if it sees that make -j has called it.
    env -u MAKEFLAGS "${with[@]}" REAL_PATH="$PATH" CXX="$scratch/g++" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        "$bin/python" -m pip wheel --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir "$scratch/wheel" "horovod==$VERSION" >"$scratch/log" 2>&1 \
        || {
            # CMake and the compilers say why long before pip's traceback ends.
            grep -iE -A4 'cmake error|[^a-z]error:|undefined reference' "$scratch/log" | head -40 >&2
            tail -5 "$scratch/log" >&2
            cp "$scratch/log" "$1/horovod-build.log"
            echo "horovod: the build failed; its whole output: $1/horovod-build.log" >&2
            exit 1
        }
    mkdir -p "$wheels"
    mv "$scratch"/wheel/horovod-*.whl "$wheels"
    wheel=("$wheels"/horovod-*.whl)
fi
# One of the same release that another MPI was built into is no reason to leave it.
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "${wheel[0]}"
"$bin/python" -m pip install --quiet --disable-pip-version-check cloudpickle cffi packaging
# Two ranks train over each library that it was built with: the run fails unless they end with equal parameters.
# Sums of gradients would be equal, too: of 1 and 2 both ranks must have 1.5.
cat >"$scratch/averaged.py" <<'AVERAGED'
import os

import torch

from jobs.run import make_run
from train.backends.horovod import Horovod
from train.world import read_world

world = read_world(os.environ)
backend = Horovod(make_run({"gpus_per_node": 2}), world, torch.device("cpu"))
layer = torch.nn.Linear(1, 1)
model = backend.wrap(layer)
optimizer = backend.wrap_optimizer(torch.optim.SGD(layer.parameters(), lr=1.0), model)
model(torch.tensor([[world.rank + 1.0]])).sum().backward()
gradient = layer.weight.grad.item()
backend.barrier()
backend.close()
assert gradient == 1.5, f"horovod: a gradient of {gradient}, the average is 1.5"
AVERAGED
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
pair=(-m train --backend=horovod --device=cpu --model=resnet18 --image-size=32 --batch=2 --batches=2 --threads=1)
by_gloo=("$bin/python" -m torch.distributed.run --nproc-per-node=2)
"${by_gloo[@]}" "$scratch/averaged.py"
"${by_gloo[@]}" "${pair[@]}" --out="$scratch/gloo"
if [[ $mpi != none ]]; then
    ((EUID)) && root=() || root=(--allow-run-as-root)
    by_mpi=(mpirun "${root[@]}" -np 2 --oversubscribe "$bin/python")
    "${by_mpi[@]}" "$scratch/averaged.py"
    "${by_mpi[@]}" "${pair[@]}" --out="$scratch/by-mpi"
fi
