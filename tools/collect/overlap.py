#!/usr/bin/env python3
"""Measures how kernels slow down beside a kernel that copies, as a collective's does.

    python3 overlap.py --gpu ID --output overlap.csv

The copy holds as many SMs as it has blocks, as NCCL's kernels hold one for each channel: 640 threads each, and clusters
of four blocks from Hopper on. One row is a kernel beside so many blocks: how long it takes alone and beside them, and
what the copy moves alone and beside it. Needs PyTorch and CuPy.
"""

import argparse
import csv
import sys

COLUMNS = (
    *("gpu", "kernel", "copy_blocks", "copy_limit_gbs", "alone_us", "beside_us", "slower", "copy_alone_gbs"),
    *("copy_beside_gbs", "alone_mhz", "beside_mhz", "torch", "cuda", "device"),
)
BIN_NS = 5_000_000  # of the copy's record of bytes
THREADS = 640
# Blocks, and GB/s that they move together at most (0: as fast as they can).
LOADS = ((4, 0), (8, 0), (16, 0), (20, 0), (24, 0), (32, 0), (8, 150), (16, 300), (24, 400), (24, 700))

# The registers of 16 loads in flight leave no room for a block of a large product on the same SM, as NCCL's do.
SOURCE = r"""
extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER
void copy(uint4* to, const uint4* from, unsigned long long elements, unsigned long long duration_ns,
          unsigned long long bin_ns, unsigned long long* bins, unsigned bin_count, double bytes_per_ns) {
  const unsigned long long part = elements / gridDim.x;
  const uint4* source = from + part * blockIdx.x;
  uint4* target = to + part * blockIdx.x;
  const unsigned long long step = THREADS * 16ull;
  __shared__ unsigned long long begin, now;
  if (threadIdx.x == 0) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  __syncthreads();
  unsigned long long at = 0;
  double moved = 0;
  while (true) {
    if (threadIdx.x == 0) {
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      while (bytes_per_ns > 0 && moved > bytes_per_ns * (now - begin))
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    }
    __syncthreads();
    if (now - begin > duration_ns) break;
    uint4 held[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) held[i] = source[at + THREADS * i + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 16; ++i) target[at + THREADS * i + threadIdx.x] = held[i];
    if (threadIdx.x == 0) {
      const unsigned bin = (unsigned)((now - begin) / bin_ns);
      if (bin < bin_count) atomicAdd(bins + bin, step * 16);
      moved += step * 16;
    }
    at += step;
    if (at + step > part) at = 0;
    __syncthreads();
  }
}
"""


def kernels(torch):
    """Name and function of each kernel that is timed beside the copy."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    bf16 = torch.bfloat16

    def random(*size):
        return torch.randn(*size, device="cuda", dtype=bf16)

    def product(m, n, k):
        a, b = random(m, k), random(n, k).mT
        return lambda: torch.matmul(a, b)

    def in_8_bits(m, n, k):
        a, b = (torch.randn(*size, device="cuda").to(torch.float8_e4m3fn) for size in ((m, k), (n, k)))
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b.mT, one, one, out_dtype=bf16)

    sizes = (
        *((8192, 8192, 8192), (4096, 4096, 4096), (8192, 3584, 8192), (2048, 12288, 4096), (4096, 1024, 4096)),
        *((8192, 28672, 8192), (8192, 1280, 8192), (4096, 6144, 4096), (1024, 4096, 4096)),
    )
    for m, n, k in sizes:
        yield f"product {m} x {n} x {k}", product(m, n, k)
    if torch.cuda.get_device_capability(0) >= (8, 9):
        for m, n, k in ((8192, 8192, 8192), (4096, 6144, 4096)):
            yield f"product in fp8 {m} x {n} x {k}", in_8_bits(m, n, k)

    def attention(*values):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*values, is_causal=True)

    heads = [random(1, 32, 8192, 128) for _ in range(3)]
    yield "attention forward 32 heads of 128, 8192 tokens", lambda: attention(*heads)
    with torch.enable_grad():
        leaves = [one.clone().requires_grad_() for one in heads]
        output = attention(*leaves)
        grad = torch.randn_like(output)
    yield (
        "attention backward 32 heads of 128, 8192 tokens",
        lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True),
    )
    a, b, weight = random(16384, 8192), random(16384, 8192), random(8192)
    out = torch.empty_like(a)
    yield "add 16384 x 8192", lambda: torch.add(a, b, out=out)
    yield "RMSNorm 16384 x 8192", lambda: torch.nn.functional.rms_norm(a, (8192,), weight)


class Bench:
    """Times kernels, each for `seconds`, beside the copy."""

    def __init__(self, torch, cupy, meter_class, seconds):
        hopper = torch.cuda.get_device_capability(0) >= (9, 0)
        source = SOURCE.replace("THREADS", str(THREADS))
        source = source.replace("CLUSTER", "__cluster_dims__(4, 1, 1)" if hopper else "")
        self._torch, self._cupy, self._meter_class, self._seconds = torch, cupy, meter_class, seconds
        self._copy = cupy.RawKernel(source, "copy")
        self._from, self._to = (torch.empty(2**30, device="cuda", dtype=torch.uint8) for _ in range(2))
        self._side = torch.cuda.Stream(priority=-1)
        self._bins = torch.zeros(int(seconds * 1e9 / BIN_NS) + 1, device="cuda", dtype=torch.int64)

    def start(self, blocks, limit):
        cupy = self._cupy
        self._bins.zero_()
        self._torch.cuda.synchronize()
        arguments = (
            *(self._to.data_ptr(), self._from.data_ptr(), cupy.uint64(self._from.numel() // 16)),
            *(cupy.uint64(int(self._seconds * 1e9)), cupy.uint64(BIN_NS), self._bins.data_ptr()),
            *(cupy.uint32(len(self._bins)), cupy.float64(limit / blocks)),
        )
        with cupy.cuda.ExternalStream(self._side.cuda_stream):
            self._copy((blocks,), (THREADS,), arguments)

    def moved(self, first, last):
        """GB/s of the copy between two of its bins."""
        self._torch.cuda.synchronize()
        return self._bins[first:last].double().mean().item() / BIN_NS

    def alone(self, blocks, limit):
        self.start(blocks, limit)
        return self.moved(2, len(self._bins) - 2)

    def time(self, kernel, blocks=0, limit=0):
        """Microseconds of a call, MHz, and GB/s of the copy."""
        if blocks:
            self.start(blocks, limit)
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            kernel()
        start.record()
        kernel()
        end.record()
        end.synchronize()
        calls = max(3, int(self._seconds * 0.75e3 / max(start.elapsed_time(end), 5e-3)))
        with self._meter_class(self._torch) as meter:
            start.record()
            for _ in range(calls):
                kernel()
            end.record()
            end.synchronize()
        moved = self.moved(4, int(len(self._bins) * 0.6)) if blocks else None
        return start.elapsed_time(end) * 1e3 / calls, meter.clock(), moved


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gpu", required=True, metavar="ID", help="the GPU's id, of `ns-dist list gpus`")
    parser.add_argument("--output", required=True, metavar="CSV", help="where the rows go")
    parser.add_argument("--seconds", type=float, default=0.35, help="of each row [0.35]")
    options = parser.parse_args()
    try:
        import cupy
        import torch
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from kernels import BoardMeter

    provenance = {
        "gpu": options.gpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_properties(0).name,
    }
    with open(options.output, "w", newline="", encoding="utf-8") as output, torch.no_grad():
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        writer.writeheader()
        bench = Bench(torch, cupy, BoardMeter, options.seconds)
        alone = {load: bench.alone(*load) for load in LOADS}
        for name, kernel in kernels(torch):
            bench.time(kernel)  # warm
            base, base_clock, _ = bench.time(kernel)
            for blocks, limit in LOADS:
                beside, clock, moved = bench.time(kernel, blocks, limit)
                row = {
                    "kernel": name,
                    "copy_blocks": blocks,
                    "copy_limit_gbs": limit or "",
                    "alone_us": f"{base:.5g}",
                    "beside_us": f"{beside:.5g}",
                    "slower": f"{beside / base:.4g}",
                    "copy_alone_gbs": f"{alone[blocks, limit]:.4g}",
                    "copy_beside_gbs": f"{moved:.4g}",
                    "alone_mhz": base_clock,
                    "beside_mhz": clock,
                }
                writer.writerow({**row, **provenance})
                output.flush()
                print(f"{name} beside {blocks} blocks: {row['slower']} times", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
