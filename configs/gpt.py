"""A GPT in plain PyTorch, under DDP, FSDP2 and tensor parallelism; it knows nothing of scaleprof.

    torchrun --nproc-per-node 4 configs/gpt.py --parallel fsdp --tensor-parallel 2

Llama's blocks (RMSNorm, rotary positions, SwiGLU) learn synthetic sequences that count in steps. A group of
--tensor-parallel neighbours shares its tokens: --tokens per step for each of its ranks. configs/gpt.yaml
sweeps it.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

HEAD_WIDTH = 64


class Sequences(Dataset):
    """Sequences of tokens that count in steps of 1 to 8, from a random start."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        start, stride = index * 7919, 1 + index % 8
        return (start + stride * torch.arange(self.length + 1)) % self.vocabulary


class Attention(nn.Module):
    """Causal attention of the heads of this rank, with rotary positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        frequencies = 1e4 ** -torch.linspace(0, 1, HEAD_WIDTH // 2, device=x.device)
        angles = torch.arange(query.shape[2], device=x.device)[:, None] * frequencies
        rotation = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        attended = functional.scaled_dot_product_attention(
            rotated(query, *rotation), rotated(key, *rotation), value, is_causal=True
        )
        return self.out(attended.transpose(1, 2).flatten(2))


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 64 * 64 or 64
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.feed_forward = Attention(width), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def divide_layers(model: GPT, mesh: DeviceMesh) -> None:
    """Tensor parallelism: matrices by heads and hidden units; between them, activations by position."""
    inputs = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "blocks.*.norm_1": SequenceParallel(), "blocks.*.norm_2": SequenceParallel(),
        "blocks.*.attention": inputs, "blocks.*.attention.out": row,
        **{f"blocks.*.attention.{name}": column for name in ("query", "key", "value")},
        "blocks.*.feed_forward": inputs, "blocks.*.feed_forward.down": row,
        **{f"blocks.*.feed_forward.{name}": column for name in ("gate", "up")},
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp", help="across groups of ranks")
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="RANKS", help="with --parallel fsdp"
    )
    parser.add_argument("--tokens", type=int, default=4096, help="per rank and step")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help=f"a multiple of {HEAD_WIDTH} x RANKS")
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="of the computation")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    if options.parallel == "ddp" and options.tensor_parallel > 1:
        parser.error("--tensor-parallel needs --parallel fsdp")

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    groups = dist.get_world_size() // options.tensor_parallel
    mesh = init_device_mesh(device.type, (groups, options.tensor_parallel), mesh_dim_names=("data", "tensor"))
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32

    torch.manual_seed(0)
    model = GPT(options.layers, options.width, options.vocabulary).to(device)
    trained: nn.Module = model
    if options.parallel == "ddp":
        trained = DistributedDataParallel(model)
    else:
        if options.tensor_parallel > 1:
            divide_layers(model, mesh["tensor"])
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh["data"], mp_policy=policy)

    sequences = options.tokens * options.tensor_parallel // options.length
    data = Sequences(options.steps * sequences * groups, options.length, options.vocabulary)
    sampler: DistributedSampler = DistributedSampler(data, groups, mesh.get_local_rank("data"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    for step, batch in enumerate(DataLoader(data, sequences, sampler=sampler)):
        tokens = batch.to(device)
        with torch.autocast(device.type, dtype, enabled=trained is not model and dtype != torch.float32):
            logits = trained(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
