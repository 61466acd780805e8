#!/usr/bin/env python3
"""Measures how kernels slow down beside a kernel that copies, as a collective's does.

    python3 overlap.py --gpu ID --output overlap.csv

A copy kernel of 640 threads a block holds as many SMs as it has blocks, as NCCL's kernels hold one for each channel. One
row is a kernel beside so many blocks: how long it takes alone and beside the copy, and what the copy moves alone and
beside it. Needs PyTorch and CuPy.
"""

import argparse
import csv
import os
import sys

COLUMNS = (
    *("gpu", "kernel", "copy_blocks", "copy_limit_gbs", "alone_us", "beside_us", "slower", "copy_alone_gbs"),
    *("copy_beside_gbs", "alone_mhz", "beside_mhz", "torch", "cuda", "device"),
)
BIN_NS = 5_000_000  # of the copy's record of bytes

# Registers of 16 loads in flight leave no room for a block of a large product on the same SM, as with NCCL.
SOURCE = r"""
extern "C" __global__ __launch_bounds__(640, 1) CLUSTER
void copy(uint4* to, const uint4* from, unsigned long long elements, unsigned long long duration_ns,
          unsigned long long bin_ns, unsigned long long* bins, unsigned bin_count, double bytes_per_ns) {
  const unsigned long long part = elements / gridDim.x;
  const uint4* source = from + part * blockIdx.x;
  uint4* target = to + part * blockIdx.x;
  const unsigned long long step = 640ull * 16;
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
    for (int i = 0; i < 16; ++i) held[i] = source[at + 640 * i + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 16; ++i) target[at + 640 * i + threadIdx.x] = held[i];
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
    bf16 = torch.bfloat16

    def random(*size):
        return torch.randn(*size, device="cuda", dtype=bf16)

    def product(m, n, k):
        a, b = random(m, k), random(n, k).mT
        return lambda: torch.matmul(a, b)

    sizes = (
        *((8192, 8192, 8192), (4096, 4096, 4096), (8192, 3584, 8192), (2048, 12288, 4096), (4096, 1024, 4096)),
        *((8192, 28672, 8192), (8192, 1280, 8192), (4096, 6144, 4096), (1024, 4096, 4096)),
    )
    for m, n, k in sizes:
        yield f"product {m} x {n} x {k}", product(m, n, k)

    def in_8_bits(m, n, k):
        a, b = (torch.randn(*size, device="cuda").to(torch.float8_e4m3fn) for size in ((m, k), (n, k)))
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b.mT, one, one, out_dtype=bf16)

    for m, n, k in ((8192, 8192, 8192), (4096, 6144, 4096)):
        yield f"product in fp8 {m} x {n} x {k}", in_8_bits(m, n, k)

    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (random(1, 32, 8192, 128) for _ in range(3))

    def attention(*values):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*values, is_causal=True)

    yield "attention forward 32 heads of 128, 8192 tokens", lambda: attention(q, k, v)
    with torch.enable_grad():
        leaves = [one.requires_grad_() for one in (q.clone(), k.clone(), v.clone())]
        output = attention(*leaves)
        grad = torch.randn_like(output)
    yield (
        "attention backward 32 heads of 128, 8192 tokens",
        lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True),
    )
    a, b = random(16384, 8192), random(16384, 8192)
    out = torch.empty_like(a)
    yield "add 16384 x 8192", lambda: torch.add(a, b, out=out)
    weight = random(8192)
    yield "RMSNorm 16384 x 8192", lambda: torch.nn.functional.rms_norm(a, (8192,), weight)


def measure(torch, cupy, copy, kernel, blocks, limit, seconds, buffers):
    """Microseconds of a call, GB/s of the copy and MHz; blocks 0: without it; kernel None: the copy alone."""
    source, target = buffers
    bin_count = int(seconds * 1e9 / BIN_NS) + 1
    bins = torch.zeros(bin_count, device="cuda", dtype=torch.int64)
    side = torch.cuda.Stream(priority=-1)
    torch.cuda.synchronize()
    if blocks:
        with cupy.cuda.ExternalStream(side.cuda_stream):
            elements = source.numel() // 16
            arguments = (
                *(target.data_ptr(), source.data_ptr(), cupy.uint64(elements), cupy.uint64(int(seconds * 1e9))),
                *(cupy.uint64(BIN_NS), bins.data_ptr(), cupy.uint32(bin_count)),
                cupy.float64(limit / blocks if limit else 0),
            )
            copy((blocks,), (640,), arguments)
    used = slice(2, bin_count - 2)
    microseconds = clock = None
    if kernel is not None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            kernel()
        start.record()
        kernel()
        end.record()
        end.synchronize()
        once = max(start.elapsed_time(end), 5e-3)
        calls = max(3, int(seconds * 0.75e3 / once))
        with BoardMeter(torch) as meter:
            start.record()
            for _ in range(calls):
                kernel()
            end.record()
            end.synchronize()
        clock = meter.clock()
        microseconds = start.elapsed_time(end) * 1e3 / calls
        used = slice(4, int(bin_count * 0.6))
    torch.cuda.synchronize()
    moved = bins[used].double().mean().item() / BIN_NS if blocks else None
    return microseconds, moved, clock


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
    from kernels import BoardMeter as meter_class

    global BoardMeter
    BoardMeter = meter_class
    # NCCL's blocks are clusters of four from Hopper on (NCCL_CGA_CLUSTER_SIZE).
    hopper = torch.cuda.get_device_capability(0) >= (9, 0)
    cluster = "__cluster_dims__(4, 1, 1)" if hopper and not os.environ.get("NO_CLUSTERS") else ""
    copy = cupy.RawKernel(SOURCE.replace("CLUSTER", cluster), "copy")
    buffers = [torch.empty(2**30, device="cuda", dtype=torch.uint8) for _ in range(2)]
    provenance = {
        "gpu": options.gpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_properties(0).name,
    }
    # blocks, GB/s that they copy together at most (0: as fast as they can)
    loads = ((4, 0), (8, 0), (16, 0), (20, 0), (24, 0), (32, 0), (8, 150), (16, 300), (24, 400), (24, 700))
    with open(options.output, "w", newline="", encoding="utf-8") as output, torch.no_grad():
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        writer.writeheader()
        alone = {}
        for blocks, limit in loads:
            _, alone[blocks, limit], _ = measure(torch, cupy, copy, None, blocks, limit, options.seconds, buffers)
        for name, kernel in kernels(torch):
            measure(torch, cupy, copy, kernel, 0, 0, options.seconds, buffers)  # warm
            base, _, base_clock = measure(torch, cupy, copy, kernel, 0, 0, options.seconds, buffers)
            for blocks, limit in loads:
                beside, moved, clock = measure(
                    torch, cupy, copy, kernel, blocks, limit, options.seconds, buffers
                )
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
                print(row, file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
