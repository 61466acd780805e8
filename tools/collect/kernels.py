#!/usr/bin/env python3
"""Measures a few dozen kernels of this machine's GPU for `ns-dist calibrate --kernels`.

    python3 kernels.py --gpu ID --mode sustained --output measured.csv
    ns-dist calibrate --gpu ID --kernels measured.csv --mode sustained --output my-gpu.json

Needs PyTorch 2.3 or newer with CUDA or ROCm and nothing else. `--list` needs neither.
"""

import argparse
import csv
import gc
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

# What ns-dist reads (compute_model/include/ns_dist/kernel_table.h).
OPERATOR_COLUMNS = (
    "gpu",
    "op",
    "dtype",
    "b",
    "m",
    "n",
    "k",
    "s",
    "h",
    "h_kv",
    "d",
    "causal",
    "pass",
)
# What a reader of the file wants to know; ns-dist skips columns that it does not know.
PROVENANCE_COLUMNS = ("mode", "launch", "calls", "buffers", "torch", "cuda", "driver", "device")
COLUMNS = (
    OPERATOR_COLUMNS + ("layout", "latency_ms") + PROVENANCE_COLUMNS + ("power_limit_w", "seconds")
)

VOCABULARY = 2**17  # what ns-dist takes for the operator emb
BURST_REPETITIONS = 15
BURST_BATCH_S = 1e-3
BURST_PAUSE_S = 0.05  # lets the board's power average fall, so that the clock is the highest
SUSTAINED_BATCH_S = 5e-3
MOST_CALLS = 1000  # in one batch
MOST_BUFFERS = 256
HOST_SHARE = 0.9  # of the GPU's time that the host may take to launch a batch


class Skipped(Exception):
    """This kernel cannot be measured here; the message says why."""


def shapes(dtype):
    """The kernels: from microseconds to tens of milliseconds, bound by compute and by memory."""

    # ns-dist reads the column layout. bmm is its name for NN, gemm for the other layouts.
    def products(number, rows):
        for layout, m, n, k in rows:
            op = "bmm" if layout == "nn" else "gemm"
            yield {"op": op, "dtype": number, "m": m, "n": n, "k": k, "layout": layout}

    yield from products(
        dtype,
        (
            # forward: tokens x out x in
            ("nt", 512, 1024, 1024),
            ("nt", 2048, 2048, 2048),
            ("nt", 4096, 4096, 4096),
            ("nt", 8192, 8192, 8192),
            ("nt", 8192, 28672, 8192),
            ("nt", 2048, 12288, 4096),
            ("nt", 256, 8192, 8192),
            ("nt", 16384, 1024, 4096),
            ("nt", 8192, 8192, 512),
            ("nt", 2048, 32000, 4096),
            # dgrad: tokens x in x out
            ("nn", 1024, 1024, 4096),
            ("nn", 4096, 4096, 1024),
            ("nn", 4096, 4096, 12288),
            ("nn", 8192, 8192, 28672),
            ("nn", 16384, 512, 2048),
            # wgrad: out x in x tokens
            ("tn", 1024, 1024, 2048),
            ("tn", 4096, 4096, 8192),
            ("tn", 12288, 4096, 2048),
            ("tn", 28672, 8192, 4096),
            ("tn", 1024, 8192, 16384),
        ),
    )
    yield from products(
        "fp32",
        (
            ("nt", 512, 1024, 1024),
            ("nt", 2048, 2048, 2048),
            ("nt", 4096, 4096, 4096),
            ("nt", 8192, 1024, 4096),
            ("nn", 2048, 8192, 2048),
            ("nn", 4096, 1024, 1024),
            ("tn", 4096, 4096, 2048),
        ),
    )
    for passes, *sizes in (
        (("fwd",), 1, 1024, 16, 16, 64, 1),
        (("fwd",), 8, 512, 16, 16, 64, 0),
        (("fwd", "bwd"), 2, 2048, 32, 32, 128, 1),
        (("fwd", "bwd"), 4, 2048, 16, 16, 64, 1),
        (("fwd", "bwd"), 2, 4096, 32, 32, 128, 0),
        (("fwd", "bwd"), 4, 4096, 32, 8, 128, 1),
        (("fwd", "bwd"), 1, 8192, 32, 8, 128, 1),
        (("fwd", "bwd"), 1, 16384, 16, 2, 128, 1),
    ):
        shape = dict(zip(("b", "s", "h", "h_kv", "d", "causal"), sizes))
        for direction in passes:
            yield {"op": "attention", "dtype": dtype, **shape, "pass": direction}
    # rows x columns
    for op, sizes in (
        ("softmax", ((4096, 1024), (16384, 2048), (32768, 4096), (65536, 8192))),
        ("layernorm", ((2048, 2048), (4096, 4096), (8192, 8192), (32768, 8192))),
        ("rmsnorm", ((2048, 4096), (8192, 4096), (8192, 8192), (32768, 8192))),
        ("add", ((1024, 2048), (4096, 4096), (8192, 8192), (16384, 16384))),
        ("gelu", ((2048, 8192), (8192, 14336))),
        ("emb", ((2048, 2048), (8192, 4096), (32768, 8192))),
    ):
        for b, h in sizes:
            yield {"op": op, "dtype": dtype, "b": b, "h": h}


def text_of(row):
    dimensions = [f"{name} {row[name]}" for name in OPERATOR_COLUMNS[3:] if name in row]
    return " ".join([row["op"], row["dtype"], row.get("layout", "")] + dimensions).replace(
        "  ", " "
    )


def builder(torch, row):
    """A function that makes new inputs and returns the kernel on them, to be called."""
    functional = torch.nn.functional
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[row["dtype"]]

    # Random values: the power that a product draws, and with it the clock, depends on them.
    def random(*size):
        return torch.randn(*size, device="cuda", dtype=dtype)

    def gemm():
        m, n, k = row["m"], row["n"], row["k"]
        a = random(k, m).t() if row["layout"] == "tn" else random(m, k)
        b = random(n, k).t() if row["layout"] == "nt" else random(k, n)
        return lambda: torch.mm(a, b)

    def attention():
        from torch.nn.attention import SDPBackend, sdpa_kernel

        # All but MATH, which is not one kernel; an older PyTorch does not know every name.
        names = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
        fused = [getattr(SDPBackend, name) for name in names if hasattr(SDPBackend, name)]
        arguments = {"is_causal": row["causal"] == 1}
        if row["h_kv"] != row["h"]:
            if version_of(torch) < (2, 5):
                raise Skipped("grouped queries need PyTorch 2.5")
            arguments["enable_gqa"] = True
        backward = row["pass"] == "bwd"

        def heads(count):  # in memory (b, s, heads, d), as projections leave them
            tensor = random(row["b"], row["s"], count, row["d"]).transpose(1, 2)
            return tensor.requires_grad_(backward)

        query, key, value = heads(row["h"]), heads(row["h_kv"]), heads(row["h_kv"])

        def forward():
            with sdpa_kernel(fused):
                return functional.scaled_dot_product_attention(query, key, value, **arguments)

        if not backward:
            return forward
        with torch.enable_grad():
            output = forward()
        gradient = torch.randn_like(output)
        inputs = (query, key, value)
        return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)

    def softmax():
        x = random(row["b"], row["h"])
        return lambda: torch.softmax(x, -1)

    def layernorm():
        x, weight, bias = random(row["b"], row["h"]), random(row["h"]), random(row["h"])
        return lambda: functional.layer_norm(x, (row["h"],), weight, bias)

    def rmsnorm():
        if not has_fused_rms_norm(torch):
            raise Skipped("rms_norm is not one kernel in this PyTorch")
        x, weight = random(row["b"], row["h"]), random(row["h"])
        return lambda: functional.rms_norm(x, (row["h"],), weight)

    def add():
        x, y = random(row["b"], row["h"]), random(row["b"], row["h"])
        return lambda: torch.add(x, y)

    def gelu():
        x = random(row["b"], row["h"])
        return lambda: functional.gelu(x, approximate="tanh")

    if row["op"] == "emb":
        table = random(VOCABULARY, row["h"])  # one for all buffers

        def embedding():
            tokens = torch.randint(VOCABULARY, (row["b"],), device="cuda")
            return lambda: functional.embedding(tokens, table)

        return embedding
    builders = (attention, softmax, layernorm, rmsnorm, add, gelu)
    return {"gemm": gemm, "bmm": gemm, **{f.__name__: f for f in builders}}[row["op"]]


def version_of(torch):
    return tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])


def has_fused_rms_norm(torch):
    # Before PyTorch 2.9 rms_norm is a chain of pointwise kernels on CUDA.
    try:
        key = "CUDA"  # of ROCm, too
        return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_rms_norm", key)
    except (AttributeError, RuntimeError):
        return False


def event(torch):
    mark = torch.cuda.Event(enable_timing=True)
    mark.record()
    return mark


def check_host(host_s, gpu_ms):
    if host_s * 1e3 > HOST_SHARE * gpu_ms:
        raise Skipped("the host launches it more slowly than the GPU runs it")


def time_burst(torch, batch):
    """Milliseconds of a batch: the median of runs after a pause, each behind one untimed batch."""
    times, host = [], []
    for _ in range(BURST_REPETITIONS):
        time.sleep(BURST_PAUSE_S)
        batch()  # the timed batch waits behind it, so that the launch from the host is not timed
        start = event(torch)
        began = time.perf_counter()
        batch()
        host.append(time.perf_counter() - began)
        end = event(torch)
        end.synchronize()
        times.append(start.elapsed_time(end))
    check_host(statistics.median(host), statistics.median(times))
    return statistics.median(times)


def time_sustained(torch, batch, seconds):
    """Milliseconds of a batch: the mean of the last half of `seconds` without a pause."""
    marks, host = [event(torch)], 0.0
    while True:
        began = time.perf_counter()
        batch()
        host += time.perf_counter() - began
        marks.append(event(torch))
        if len(marks) > 3:
            marks[
                -3
            ].synchronize()  # two batches are queued, so that the GPU never waits for the host
            if marks[0].elapsed_time(marks[-3]) >= seconds * 1e3:
                break
    marks[-1].synchronize()
    at = [marks[0].elapsed_time(mark) for mark in marks]
    check_host(host, at[-1])
    middle = max(i for i, elapsed in enumerate(at) if elapsed <= at[-1] / 2)
    return (at[-1] - at[middle]) / (len(at) - 1 - middle)


def measure(torch, stream, row, mode, seconds, use_graphs):
    """The latency of one kernel and how it was measured."""
    build = builder(torch, row)
    before = torch.cuda.memory_allocated()
    kernels = [build()]
    results = [kernels[0]()]
    torch.cuda.synchronize()
    used = max(1, torch.cuda.memory_allocated() - before)  # inputs and results of one call

    # Burst calls the kernel on the same buffers, which stay in L2 as far as they fit. A training
    # step finds little there, so sustained goes round as many buffers as three L2 caches hold.
    buffers = 1
    if mode == "sustained":
        l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 * 2**20
        room = torch.cuda.mem_get_info()[0] // 3 // used
        buffers = max(1, min(math.ceil(3 * l2 / used), MOST_BUFFERS, room))
    for _ in range(buffers - 1):
        kernels.append(build())
        results.append(kernels[-1]())

    def call(count):  # results stay until their turn comes again, so that they go round, too
        for i in range(count):
            results[i % buffers] = kernels[i % buffers]()

    call(max(buffers, 3))
    once = []
    for _ in range(3):
        start = event(torch)
        call(1)
        end = event(torch)
        end.synchronize()
        once.append(start.elapsed_time(end) * 1e-3)
    least = SUSTAINED_BATCH_S if mode == "sustained" else BURST_BATCH_S
    calls = min(MOST_CALLS, max(2, math.ceil(least / max(min(once), 1e-7))))
    calls = math.ceil(calls / buffers) * buffers

    # Autograd launches a backward pass from a thread of its own, which is easier not to capture;
    # the shapes are long enough to be launched one by one.
    graph = None
    if use_graphs and row.get("pass") != "bwd":
        results[:] = [None] * buffers
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call(calls)

    def batch():
        if graph is not None:
            graph.replay()
        else:
            call(calls)

    batch()
    torch.cuda.synchronize()
    if mode == "sustained":
        milliseconds = time_sustained(torch, batch, seconds)
    else:
        milliseconds = time_burst(torch, batch)
    return {
        "latency_ms": f"{milliseconds / calls:.6g}",
        "launch": "graph" if graph is not None else "stream",
        "calls": calls,
        "buffers": buffers,
    }


def nvidia_smi(torch):
    """Driver and power limit in watts, empty where nvidia-smi does not tell."""
    unknown = {"driver": "", "power_limit_w": ""}
    fields = "--query-gpu=uuid,driver_version,power.limit"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return unknown
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return unknown
    gpus = [[field.strip() for field in line.split(",")] for line in answer.splitlines()]
    gpus = [gpu for gpu in gpus if len(gpu) == 3]
    # CUDA_VISIBLE_DEVICES may hide GPUs from PyTorch that nvidia-smi shows: the identifier decides.
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    mine = [gpu for gpu in gpus if uuid and gpu[0].endswith(uuid)] or (
        gpus if len(gpus) == 1 else []
    )
    if not mine:
        return unknown
    watts = mine[0][2] if re.fullmatch(r"[0-9.]+", mine[0][2]) else ""
    return {"driver": mine[0][1], "power_limit_w": watts}


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    return 2


def note(message):
    print(message, file=sys.stderr, flush=True)


def short(error):
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def collect(options):
    try:
        import torch
    except ImportError as error:
        return fail(f"PyTorch cannot be imported ({short(error)}); see pytorch.org/get-started")
    if version_of(torch) < (2, 3):
        return fail(f"PyTorch {torch.__version__} is too old; 2.3 or newer is needed")
    if not torch.cuda.is_available():
        return fail(
            f"PyTorch {torch.__version__} sees no GPU; it needs a CUDA or ROCm build and a driver"
        )
    device = torch.cuda.get_device_properties(0)
    dtype = options.dtype
    if dtype is None:
        has_bf16 = torch.version.hip or torch.cuda.get_device_capability(0) >= (8, 0)
        dtype = "bf16" if has_bf16 else "fp16"
    torch.set_float32_matmul_precision("highest")  # fp32 is fp32, not tf32
    provenance = {
        "mode": options.mode,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or f"rocm {torch.version.hip}",
        "device": device.name,
        "seconds": options.seconds if options.mode == "sustained" else "",
        **nvidia_smi(torch),
    }
    try:
        output = open(options.output, "w", newline="", encoding="utf-8")
    except OSError as error:
        return fail(f"--output {options.output}: {error.strerror}")

    rows = list(shapes(dtype))
    minutes = math.ceil(
        len(rows) * (0.5 + (options.seconds if options.mode == "sustained" else 1)) / 60
    )
    note(f"{device.name}, {options.mode}: {len(rows)} kernels, about {minutes} min")
    measured = 0
    stream = torch.cuda.Stream()  # a graph cannot be captured on the default stream
    with output, torch.no_grad(), torch.cuda.stream(stream):
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for i, row in enumerate(rows, 1):
            line = f"[{i}/{len(rows)}] {text_of(row)}: "
            try:
                result = measure(
                    torch, stream, row, options.mode, options.seconds, not options.no_graphs
                )
            except Skipped as error:
                note(f"{line}skipped, {error}")
            except torch.cuda.OutOfMemoryError:
                note(f"{line}skipped, out of GPU memory")
            except RuntimeError as error:
                note(f"{line}skipped, {short(error)}")
            else:
                writer.writerow({"gpu": options.gpu, **row, **result, **provenance})
                output.flush()
                measured += 1
                note(f"{line}{result['latency_ms']} ms")
            gc.collect()  # graphs and tensors that refer to each other
            torch.cuda.empty_cache()
    if measured == 0:
        return fail("no kernel could be measured")
    note(
        f"{measured} of {len(rows)} kernels in {options.output}. Next:\n"
        f"  ns-dist calibrate --gpu {options.gpu} --kernels {options.output} --mode {options.mode}"
        f" --output {options.gpu}.{options.mode}.json"
    )
    return 0


def arguments():
    parser = argparse.ArgumentParser(
        description="Measures a few dozen kernels of the first visible GPU, "
        "for `ns-dist calibrate --kernels`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="ID",
        help="the GPU's id, first column of `ns-dist list gpus`, or the id in a JSON file of yours",
    )
    parser.add_argument(
        "--mode",
        choices=("sustained", "burst"),
        default="sustained",
        help="sustained: back to back at the power limit, as in training; "
        "burst: alone at full clocks [sustained]",
    )
    parser.add_argument("--output", metavar="CSV", help="where the measurements go")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="a kernel runs in sustained mode [0.5]"
    )
    parser.add_argument(
        "--dtype", choices=("bf16", "fp16"), help="[bf16, or fp16 where the GPU has no bf16]"
    )
    parser.add_argument(
        "--no-graphs", action="store_true", help="launch from the host, not from CUDA graphs"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the shapes as CSV and measure nothing"
    )
    options = parser.parse_args()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", options.gpu):
        parser.error(f'--gpu "{options.gpu}" is no id: letters, digits, ".", "_" and "-"')
    if not 0.05 <= options.seconds <= 60:
        parser.error("--seconds: from 0.05 to 60")
    if not options.list and options.output is None:
        parser.error("--output is required, except with --list")
    if not options.list and not os.path.isdir(os.path.dirname(os.path.abspath(options.output))):
        parser.error(f"--output {options.output}: there is no such folder")
    return options


def main():
    options = arguments()
    if options.list:
        writer = csv.DictWriter(sys.stdout, OPERATOR_COLUMNS + ("layout",), lineterminator="\n")
        writer.writeheader()
        for row in shapes(options.dtype or "bf16"):
            writer.writerow({"gpu": options.gpu, **row})
        return 0
    try:
        return collect(options)
    except KeyboardInterrupt:
        note(f"interrupted; {options.output} holds what was measured")
        return 130


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
        sys.exit(0)
