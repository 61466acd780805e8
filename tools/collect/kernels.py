#!/usr/bin/env python3
"""Measures the kernels of training steps on this machine's GPU for `ns-dist calibrate --kernels`.

    python3 kernels.py --gpu ID --mode sustained --output measured.csv
    ns-dist calibrate --gpu ID --kernels measured.csv --output my-gpu.json --next next.csv
    python3 kernels.py --gpu ID --rows next.csv --output more.csv

Needs PyTorch 2.3 or newer with CUDA or ROCm and nothing else. `--dry-run` needs neither.
"""

import argparse
import csv
import ctypes
import gc
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

# What ns-dist reads (core/src/operator_forms.cc), of the operators that can be measured here.
TEXT_COLUMNS = ("gpu", "op", "dtype", "pass", "library", "layout", "out_dtype", "main_grad_dtype")
NUMBER_COLUMNS = (
    "b",
    "m",
    "n",
    "k",
    "experts",
    "one_kernel",
    "accumulate",
    "s",
    "h",
    "h_kv",
    "d",
    "causal",
    "kv_len",
    "d_v",
    "window",
    "deterministic",
    "vocabulary",
    "inputs",
    "outputs",
    "by_element",
    "bytes",
)
OPERATOR_COLUMNS = TEXT_COLUMNS + NUMBER_COLUMNS
# What a reader of the file wants to know; ns-dist skips columns that it does not know, and reads
# power_w.
PROVENANCE_COLUMNS = ("mode", "launch", "calls", "buffers", "torch", "cuda", "driver", "device")
COLUMNS = (
    OPERATOR_COLUMNS
    + ("latency_ms", "power_w", "clock_mhz", "provider")
    + PROVENANCE_COLUMNS
    + ("power_limit_w", "seconds", "host_launch_us", "graph_gap_us")
)

VOCABULARY = 2**17  # what ns-dist takes for the operator emb
BOARD_SAMPLE_S = 0.02
BURST_REPETITIONS = 15
BURST_BATCH_S = 1e-3
BURST_PAUSE_S = 0.05  # lets the board's power average fall, so that the clock is the highest
SUSTAINED_BATCH_S = 5e-3
MOST_CALLS = 1000  # in one batch
MOST_BUFFERS = 256
HOST_SHARE = 0.9  # of the GPU's time that the host may take to launch a batch


class Skipped(Exception):
    """This kernel cannot be measured here; the message says why."""


def shapes(dtype, fp8):
    """The kernels: from microseconds to tens of milliseconds, bound by compute and by memory."""

    # forward nt: tokens x out x in; dgrad nn: tokens x in x out; wgrad tn: out x in x tokens
    def products(number, rows, **more):
        for layout, m, n, k in rows:
            yield {"op": "gemm", "dtype": number, "layout": layout, "m": m, "n": n, "k": k, **more}

    yield from products(
        dtype,
        (
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
            ("nn", 1024, 1024, 4096),
            ("nn", 4096, 4096, 1024),
            ("nn", 4096, 4096, 12288),
            ("nn", 8192, 8192, 28672),
            ("nn", 16384, 512, 2048),
            ("tn", 1024, 1024, 2048),
            ("tn", 4096, 4096, 8192),
            ("tn", 28672, 8192, 4096),
        ),
    )
    yield from products(
        dtype,
        (("tn", 4096, 4096, 8192), ("tn", 12288, 4096, 2048), ("tn", 1024, 8192, 16384)),
        accumulate=1,
        out_dtype="fp32",
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
    if fp8:
        # The product alone, with one scale for a tensor and in blocks; what quantizes its operands
        # reads half precision and writes a byte for each element, and another for its transpose.
        for number in ("fp8", "fp8-block"):
            for m, n, k in ((2048, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 8192)):
                row = {"op": "gemm", "dtype": number, "layout": "nt", "m": m, "n": n, "k": k}
                yield row
        for elements in (2**23, 2**26, 2**28):
            row = {"op": "elementwise", "dtype": dtype, "b": elements, "h": 1}
            yield {**row, "inputs": 1, "outputs": 1}
            yield {**row, "inputs": 1, "outputs": 0.5}
    grouped = ((8, 8192, 4096, 4096), (8, 16384, 14336, 4096), (64, 32768, 1408, 2048))
    for experts, m, n, k in grouped:
        for layout, out, depth in (("nt", n, k), ("nn", k, n), ("tn", n, k)):
            row = {"op": "grouped_gemm", "dtype": dtype, "layout": layout, "experts": experts}
            yield {**row, "m": m, "n": out, "k": depth, "one_kernel": 1}
            if experts == 8 and m == 8192:  # a product for each expert
                yield {**row, "m": m, "n": out, "k": depth}
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
            row = {"op": "attention", "dtype": dtype, "pass": direction, **shape}
            yield {**row, "library": "default"}
            if shape["s"] == 2048:
                for library in ("cudnn", "flash-2", "eager"):
                    yield {**row, "library": library}
    # rows x columns
    for op, sizes in (
        ("softmax", ((4096, 1024), (16384, 2048), (32768, 4096), (65536, 8192))),
        ("layernorm", ((2048, 2048), (4096, 4096), (8192, 8192), (32768, 8192))),
        ("rmsnorm", ((2048, 4096), (8192, 4096), (8192, 8192), (32768, 8192))),
        ("embedding", ((2048, 2048), (8192, 4096), (32768, 8192))),
    ):
        for b, h in sizes:
            for direction in ("fwd", "bwd") if op.endswith("norm") else ("fwd",):
                row = {"op": op, "dtype": dtype, "pass": direction, "b": b, "h": h}
                if op == "embedding":
                    row["vocabulary"] = VOCABULARY
                if not op.endswith("norm"):
                    yield {**row, "library": "eager"} if op == "softmax" else row
                    continue
                every = ("default", "eager", "compiled")
                for library in every if b == 8192 else every[:2]:
                    yield {**row, "library": library}
    for op, sizes in (
        ("add", ((1024, 2048), (4096, 4096), (8192, 8192), (16384, 16384))),
        ("gelu", ((2048, 8192), (8192, 14336))),
        ("mlp_act", ((2048, 8192), (8192, 14336))),
    ):
        for b, h in sizes:
            yield {"op": op, "dtype": dtype, "b": b, "h": h}
    # Eager kernels whose threads handle each element alone.
    for b, h in ((8192, 2048), (32768, 5120)):
        row = {"op": "elementwise", "dtype": dtype, "b": b, "h": h, "by_element": 1}
        yield {**row, "inputs": 1, "outputs": 1}
        yield {**row, "inputs": 1, "outputs": 2}
        for op in ("cat", "index_add", "scatter_add"):
            yield {"op": op, "dtype": dtype, "b": b, "h": h}
    for parameters in (10**7, 10**8, 10**9):
        yield {"op": "optimizer", "dtype": "fp32", "b": parameters, "h": 1}


def read_rows(path):
    """The kernels of a table that `ns-dist calibrate --next` wrote, or of one like it."""
    rows = []
    with open(path, newline="", encoding="utf-8") as table:
        reader = csv.DictReader(table)
        if "op" not in (reader.fieldnames or ()):
            raise ValueError(f"{path}:1: no column op, which tables of ns-dist calibrate have")
        for line in reader:
            row = {}
            for name, text in line.items():
                if name in TEXT_COLUMNS[1:] and text:
                    row[name] = text
                elif name in NUMBER_COLUMNS and text:
                    try:
                        number = float(text)
                    except ValueError:
                        number = math.nan
                    if not math.isfinite(number):
                        where = f"{path}:{reader.line_num}"
                        raise ValueError(f'{where}: {name} is "{text}", not a number')
                    row[name] = int(number) if number == int(number) else number
            rows.append({"dtype": "bf16", **row})
    if not rows:
        raise ValueError(f"{path}: no rows")
    return rows


def text_of(row):
    words = [row[name] for name in TEXT_COLUMNS[1:] if name in row]
    return " ".join(words + [f"{name} {row[name]}" for name in NUMBER_COLUMNS if name in row])


def builder(torch, row):
    """A function that makes new inputs and returns the kernel on them, to be called."""
    functional = torch.nn.functional
    numbers = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    is_fp8 = row["dtype"].startswith("fp8")
    dtype = torch.bfloat16 if is_fp8 else numbers.get(row["dtype"])
    if dtype is None:
        raise Skipped(f"dtype {row['dtype']} is not measured here")
    if is_fp8 and row["op"] != "gemm":
        raise Skipped(f"{row['op']} in fp8 is not measured here")
    backward = row.get("pass") == "bwd"
    made = {}

    # What all sets of buffers share: a compiled function is compiled for the first.
    def once(name, make):
        if name not in made:
            made[name] = make()
        return made[name]

    # Random values: the power that a product draws, and with it the clock, depends on them.
    def random(*size):
        return torch.randn(*size, device="cuda", dtype=dtype)

    # The backward pass of what `forward` computes from `inputs`, alone.
    def gradient(forward, *inputs):
        with torch.enable_grad():
            output = forward()
        grad = torch.randn_like(output)
        return lambda: torch.autograd.grad(output, inputs, grad, retain_graph=True)

    def either(forward, *inputs):
        return gradient(forward, *inputs) if backward else forward

    def gemm():
        m, n, k = row["m"], row["n"], row["k"]
        batch = (row["b"],) if row.get("b", 1) > 1 else ()
        layout = row.get("layout", "nn" if row["op"] == "bmm" else "nt")
        a = random(*batch, k, m).mT if layout[0] == "t" else random(*batch, m, k)
        b = random(*batch, n, k).mT if layout[1] == "t" else random(*batch, k, n)
        if is_fp8:
            return scaled_product(a, b)
        if row.get("accumulate"):
            return accumulated_product(a, b)
        return lambda: torch.matmul(a, b)

    # The weight gradient, added to what is there; in fp32 as Megatron does it.
    def accumulated_product(a, b):
        if row.get("out_dtype", row.get("main_grad_dtype")) != "fp32":
            total = random(a.shape[0], b.shape[1])
            return lambda: torch.addmm(total, a, b, out=total)
        total = torch.zeros(a.shape[0], b.shape[1], device="cuda", dtype=torch.float32)
        try:
            import fused_weight_gradient_mlp_cuda as apex

            inputs, grads = b.contiguous(), a.mT.contiguous()  # tokens x in, tokens x out
            return lambda: apex.wgrad_gemm_accum_fp32(inputs, grads, total)
        except ImportError:
            pass
        if torch.version.hip:
            raise Skipped("products that add to fp32 need APEX on ROCm")
        return cublas_accumulation(torch, a, b, total)

    def scaled_product(a, b):
        if not hasattr(torch, "float8_e4m3fn") or not hasattr(torch, "_scaled_mm"):
            raise Skipped("this PyTorch has no FP8 products")
        if row.get("layout", "nt") != "nt":
            raise Skipped("FP8 products are those of layout nt; frameworks transpose the operands")
        (m, k), n = a.shape, b.shape[1]
        number = torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn
        a, b = a.contiguous().to(number), b.mT.contiguous().to(number).mT
        one = torch.ones((), device="cuda")
        scale_a, scale_b = one, one
        if row["dtype"] in ("fp8-block", "fp8_block"):  # 1x128 of A, 128x128 of B, both by columns
            if k % 512 or n % 128:
                raise Skipped("products in blocks need k in multiples of 512 and n of 128")
            scale_a = torch.ones(k // 128, m, device="cuda").mT
            scale_b = torch.ones(n // 128, k // 128, device="cuda").mT
        return lambda: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)

    def grouped_gemm():
        experts, rows, n, k = row["experts"], row["m"], row["n"], row["k"]
        layout = row.get("layout", "nt")
        ends = [rows * (e + 1) // experts for e in range(experts)]
        offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
        if layout == "tn":  # of each expert n x rows times rows x k
            a, b = random(rows, n).mT, random(rows, k)
        else:
            a = random(rows, k)
            b = random(experts, n, k).mT if layout == "nt" else random(experts, k, n)
        starts = [0] + ends[:-1]
        if row.get("accumulate"):
            if layout != "tn":
                raise Skipped("only weight gradients add to what is there")
            calls = [accumulated_product(a[:, i:j], b[i:j]) for i, j in zip(starts, ends)]
            return lambda: [call() for call in calls]
        if row.get("one_kernel"):
            if not hasattr(torch, "_grouped_mm"):
                raise Skipped("one kernel for all experts needs a newer PyTorch")
            return lambda: torch._grouped_mm(a, b, offs=offsets)
        if layout == "tn":
            pairs = [(a[:, i:j], b[i:j]) for i, j in zip(starts, ends)]
        else:
            pairs = [(a[i:j], b[e]) for e, (i, j) in enumerate(zip(starts, ends))]
        return lambda: [torch.mm(x, y) for x, y in pairs]

    def attention():
        heads, d, s = row["h"], row["d"], row["s"]
        kv_heads, d_v, kv_len = row.get("h_kv", heads), row.get("d_v", d), row.get("kv_len", s)
        causal, window = row.get("causal", 1) == 1, row.get("window", 0)
        library = row.get("library", "default")
        if library == "default":  # what training frameworks call
            hopper = not torch.version.hip and torch.cuda.get_device_capability(0) >= (9, 0)
            library = "cudnn" if hopper else "flash-2"

        def tensor(length, count, size):  # in memory (b, s, heads, d), as projections leave them
            return random(row["b"], length, count, size).requires_grad_(backward)

        inputs = tensor(s, heads, d), tensor(kv_len, kv_heads, d), tensor(kv_len, kv_heads, d_v)
        own = flash_attention(library)
        if own is not None:
            more = {"window_size": (window - 1, 0 if causal else window - 1)} if window else {}
            if row.get("deterministic"):
                more["deterministic"] = True
            row["provider"] = own.__module__

            def fused():
                result = own(*inputs, causal=causal, **more)
                return result[0] if isinstance(result, tuple) else result

            return either(fused, *inputs)
        if window or row.get("deterministic"):
            raise Skipped("windows and a fixed order of sums need the flash_attn package")
        from torch.nn.attention import SDPBackend, sdpa_kernel

        names = {"cudnn": "CUDNN_ATTENTION", "flash-2": "FLASH_ATTENTION", "eager": "MATH"}
        if library not in names or not hasattr(SDPBackend, names[library]):
            raise Skipped(f"this PyTorch has no attention of library {library}")
        backend = [getattr(SDPBackend, names[library])]
        arguments = {"is_causal": causal}
        if kv_heads != heads:
            if version_of(torch) < (2, 5):
                raise Skipped("grouped queries need PyTorch 2.5")
            arguments["enable_gqa"] = True
        row["provider"] = f"torch {names[library]}"

        if library == "eager" and hasattr(torch.backends.cuda, "allow_fp16_bf16_reduction_math_sdp"):
            # Scores in the row's format, as in frameworks; PyTorch's default computes them in fp32.
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)

        def scaled_dot_product():
            query, key, value = (x.transpose(1, 2) for x in inputs)
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(query, key, value, **arguments)

        return either(scaled_dot_product, *inputs)

    def softmax():
        if backward:
            raise Skipped("PyTorch multiplies by the gradient in a kernel of its own first")
        x = random(row["b"], row["h"])
        if row.get("library") != "eager":
            raise Skipped("softmax of another library than eager is not measured here")
        return lambda: torch.softmax(x, -1)

    def normalization():
        rms = row["op"] == "rmsnorm"
        size, library = row["h"], row.get("library", "default")
        x = random(row["b"], size).requires_grad_(backward)
        if library == "default":
            module = fused_norm(torch, rms, size, dtype)
            if module is not None:
                row["provider"] = type(module).__module__
                return either(lambda: module(x), x, *module.parameters())
            raise Skipped("the kernel of training frameworks needs TransformerEngine or APEX")
        if library not in ("eager", "compiled"):
            raise Skipped(f"normalization of library {library} is not measured here")
        parameters = [random(size).requires_grad_(backward) for _ in range(1 if rms else 2)]
        row["provider"] = "torch"
        plain = functional.rms_norm if rms else functional.layer_norm

        def formula(*arguments):
            return plain(*arguments)

        if library == "compiled":
            formula = once("norm", lambda: torch.compile(formula, dynamic=False))
        return either(lambda: formula(x, (size,), *parameters), x, *parameters)

    def optimizer():
        if row["dtype"] != "fp32":
            raise Skipped("PyTorch's fused AdamW does not write low precision beside fp32; use dtype fp32")
        parameter = torch.nn.Parameter(torch.randn(row["b"], device="cuda"))
        parameter.grad = torch.randn(row["b"], device="cuda")
        return torch.optim.AdamW([parameter], fused=True, capturable=True).step

    # Rows and columns of a pointwise kernel; a table may have its elements alone.
    def matrix():
        columns = row.get("h", 1)
        return (row["b"], columns) if columns > 1 else (row["b"] // (c := math.gcd(row["b"], 4096)), c)

    # What eager PyTorch runs where an operand is a view or broadcast, or becomes fp32.
    def by_element():
        rows, columns = matrix()
        x = random(rows, columns)
        streams = row.get("inputs", 2), row.get("outputs", 1)
        if streams == (1, 1):
            y = random(columns)
            return lambda: torch.mul(x, y)
        if streams == (2, 1):
            y = random(columns, rows).mT
            return lambda: torch.add(x, y)
        if streams == (1, 2) and dtype.itemsize == 2:
            return lambda: x.float()
        if streams == (0.5, 1) and dtype.itemsize == 4:
            y = x.bfloat16()
            return lambda: y.float()
        if streams == (0, 1):
            return lambda: x[:, :1].expand(rows, columns).div(columns)
        raise Skipped(f"no eager kernel of {streams[0]} inputs and {streams[1]} outputs is measured here")

    def joined():
        x = random(*matrix())
        half = x.shape[1] // 2
        return lambda: torch.cat((x[:, half:], x[:, :half]), -1)

    # Rows that are added to their sums, eight to each in the mean.
    def summed(scatters):
        def make():
            x = random(*matrix())
            sums = torch.zeros(max(1, x.shape[0] // 8), x.shape[1], device="cuda", dtype=dtype)
            index = torch.randint(sums.shape[0], (x.shape[0],), device="cuda")
            if not scatters:
                return lambda: sums.index_add_(0, index, x)
            places = index.unsqueeze(1).expand(-1, x.shape[1])
            return lambda: sums.scatter_add_(0, places, x)

        return make

    def elementwise():
        if row.get("by_element"):
            return by_element()
        streams = [row.get("inputs", 2), row.get("outputs", 1)]
        count = row["b"] * row.get("h", 1)
        low = getattr(torch, "float8_e4m3fn", None)
        sizes = {1: low, 2: torch.bfloat16, 4: torch.float32}
        width = dtype.itemsize

        # Whole streams are of the row's format; a part of one is of a format as wide.
        def formats(number):
            whole, part = int(number), (number - int(number)) * width
            if part and sizes.get(part) is None:
                raise Skipped(f"no number format of {part:g} bytes")
            return [dtype] * whole + ([sizes[part]] if part else [])

        reads, writes = formats(streams[0]), formats(streams[1])
        if not reads:
            raise Skipped("a kernel that only writes is not measured here")
        inputs = [torch.randn(count, device="cuda").to(number) for number in reads]

        def chain(*tensors):
            total = sum(t.float() for t in tensors)
            return [(total + i).to(number) for i, number in enumerate(writes)] or total.sum()

        compiled = once("chain", lambda: torch.compile(chain, dynamic=False))
        return lambda: compiled(*inputs)

    def binary(operation):
        def make():
            x, y = random(row["b"], row["h"]), random(row["b"], row["h"])
            return lambda: operation(x, y)

        return make

    def gelu():
        x = random(row["b"], row["h"])
        return lambda: functional.gelu(x, approximate="tanh")

    def gated():
        x, y = random(row["b"], row["h"]), random(row["b"], row["h"])
        compiled = once(
            "gate", lambda: torch.compile(lambda x, y: functional.silu(x) * y, dynamic=False)
        )
        return lambda: compiled(x, y)

    def copy():
        x = torch.empty(max(1, int(row["bytes"])), device="cuda", dtype=torch.uint8)
        y = torch.empty_like(x)
        return lambda: y.copy_(x)

    def embedding():
        if backward:
            raise Skipped("PyTorch clears the whole table beside the gradient of an embedding")
        vocabulary = row.get("vocabulary", VOCABULARY)
        table = random(vocabulary, row["h"])

        def make():
            tokens = torch.randint(vocabulary, (row["b"],), device="cuda")
            return lambda: functional.embedding(tokens, table)

        return make

    if row["op"] in ("embedding", "emb"):
        return embedding()  # one table for all buffers
    builders = {
        "gemm": gemm,
        "bmm": gemm,
        "grouped_gemm": grouped_gemm,
        "attention": attention,
        "softmax": softmax,
        "layernorm": normalization,
        "rmsnorm": normalization,
        "optimizer": optimizer,
        "adam": optimizer,
        "elementwise": elementwise,
        "cat": joined,
        "index_add": summed(False),
        "scatter_add": summed(True),
        "add": binary(torch.add),
        "sub": binary(torch.sub),
        "mul": binary(torch.mul),
        "div": binary(torch.div),
        "gelu": gelu,
        "mlp_act": gated,
        "copy": copy if "bytes" in row else None,
    }
    if builders.get(row["op"]) is None:
        raise Skipped(f"{row['op']} is not measured here")
    return builders[row["op"]]


def cublas_accumulation(torch, a, b, total):
    """Adds a (out x tokens) times b (tokens x in) to total (out x in, fp32) as APEX does: cublasGemmEx."""
    cublas = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}")  # loaded by PyTorch
    inputs, grads = b.contiguous(), a.mT.contiguous()  # tokens x in, tokens x out
    one = ctypes.c_float(1)
    no_transpose, transpose, fp32, compute_fp32, any_algorithm = 0, 1, 0, 68, -1
    low = {torch.float16: 2, torch.bfloat16: 14}[inputs.dtype]

    def address(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    def call():
        # The handle is of the current stream, with PyTorch's workspace. Columns lie together.
        handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
        status = cublas.cublasGemmEx(
            *(handle, no_transpose, transpose),
            *(total.shape[1], total.shape[0], inputs.shape[0], ctypes.byref(one)),
            *(address(inputs), low, total.shape[1], address(grads), low, total.shape[0]),
            *(ctypes.byref(one), address(total), fp32, total.shape[1]),
            *(compute_fp32, any_algorithm),
        )
        if status != 0:
            raise RuntimeError(f"cublasGemmEx returned {status}")
        return total

    return call


def flash_attention(library):
    """flash_attn's function for this library, None where it is not installed."""
    try:
        if library == "flash-2":
            from flash_attn import flash_attn_func
        elif library == "flash-3":
            from flash_attn_interface import flash_attn_func
        else:
            return None
        return flash_attn_func
    except ImportError:
        return None


def fused_norm(torch, rms, size, dtype):
    """The module that training frameworks call, None where none is installed."""
    try:
        import transformer_engine.pytorch as te

        return (te.RMSNorm if rms else te.LayerNorm)(size, params_dtype=dtype).cuda()
    except ImportError:
        pass
    try:
        import apex.normalization as apex

        module = apex.FusedRMSNorm if rms else apex.FusedLayerNorm
        return module(size).to(device="cuda", dtype=dtype)
    except ImportError:
        return None


def version_of(torch):
    return tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])


def event(torch):
    mark = torch.cuda.Event(enable_timing=True)
    mark.record()
    return mark


def check_host(host_s, gpu_ms):
    if host_s * 1e3 > HOST_SHARE * gpu_ms:
        raise Skipped("the host launches it more slowly than the GPU runs it")


def time_burst(torch, batch, repetitions):
    """Milliseconds of a batch: the median of runs after a pause, each behind one untimed batch."""
    times, host = [], []
    for _ in range(repetitions):
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


def measure(torch, stream, row, options):
    """The latency of one kernel and how it was measured."""
    mode = options.mode
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

    graph = None
    if not options.no_graphs:
        results[:] = [None] * buffers
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                call(calls)
        except RuntimeError:
            # Autograd launches a backward pass from a thread of its own, and some libraries wait
            # for the GPU: such kernels are launched one by one.
            graph = None
            torch.cuda.synchronize()

    def batch():
        if graph is not None:
            graph.replay()
        else:
            call(calls)

    batch()
    torch.cuda.synchronize()
    watts = clock = ""
    if mode == "sustained":
        with BoardMeter(torch) as meter:
            milliseconds = time_sustained(torch, batch, options.seconds)
        watts, clock = meter.watts(), meter.clock()
    else:
        milliseconds = time_burst(torch, batch, options.repetitions)
    return {
        "latency_ms": f"{milliseconds / calls:.6g}",
        "power_w": watts,
        "clock_mhz": clock,
        "provider": row.get("provider", "torch"),
        "launch": "graph" if graph is not None else "stream",
        "calls": calls,
        "buffers": buffers,
    }


class BoardMeter:
    """Samples the board's power and clock by NVML while it is open; tells nothing without NVML."""

    def __init__(self, torch):
        self._reads, self._samples, self._stop = [], [], threading.Event()
        try:
            for read in (torch.cuda.power_draw, torch.cuda.clock_rate):  # mW; MHz
                read()  # needs the package nvidia-ml-py, or amdsmi
                self._reads.append(read)
        except (AttributeError, ImportError, RuntimeError):
            pass

    def __enter__(self):
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _sample(self):
        while self._reads and not self._stop.wait(BOARD_SAMPLE_S):
            try:
                self._samples.append([read() for read in self._reads])
            except RuntimeError:
                return

    def _mean(self, column, unit):
        half = self._samples[len(self._samples) // 2 :]  # of the run, as the time is
        values = [sample[column] for sample in half if column < len(sample)]
        return f"{statistics.mean(values) / unit:.4g}" if values and sum(values) > 0 else ""

    def watts(self):
        return self._mean(0, 1e3)

    def clock(self):
        return self._mean(1, 1)


def launch_gaps(torch, stream):
    """Microseconds from one empty kernel to the next: launched by the host, and by a graph."""
    count = 2000
    x = torch.zeros(1, device="cuda")

    def kernels():
        for _ in range(count):
            x.add_(0)

    def microseconds(run):
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = event(torch)
            run()
            end = event(torch)
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / count)
        return f"{statistics.median(times):.3g}"

    by_host = microseconds(kernels)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kernels()
    return {"host_launch_us": by_host, "graph_gap_us": microseconds(graph.replay)}


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

    capability = (0, 0) if torch.version.hip else torch.cuda.get_device_capability(0)
    rows = options.kernels or list(shapes(dtype, fp8=capability >= (8, 9)))
    minutes = math.ceil(
        len(rows) * (0.5 + (options.seconds if options.mode == "sustained" else 1)) / 60
    )
    note(f"{device.name}, {options.mode}: {len(rows)} kernels, about {minutes} min")
    measured = 0
    stream = torch.cuda.Stream()  # a graph cannot be captured on the default stream
    with output, torch.no_grad(), torch.cuda.stream(stream):
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        try:
            gaps = launch_gaps(torch, stream)
            note(
                f"an empty kernel takes {gaps['host_launch_us']} us launched by the host, "
                f"{gaps['graph_gap_us']} us in a graph"
            )
            provenance.update(gaps)
        except RuntimeError as error:
            note(f"empty kernels: skipped, {short(error)}")
        for i, row in enumerate(rows, 1):
            line = f"[{i}/{len(rows)}] {text_of(row)}: "
            try:
                result = measure(torch, stream, row, options)
            except Skipped as error:
                note(f"{line}skipped, {error}")
            except torch.cuda.OutOfMemoryError:
                note(f"{line}skipped, out of GPU memory")
            except (RuntimeError, TypeError, ValueError) as error:  # another version of a library
                note(f"{line}skipped, {short(error)}")
            except KeyError as error:
                note(f"{line}skipped, it has no {error.args[0]}")
            else:
                writer.writerow({"gpu": options.gpu, **row, **result, **provenance})
                output.flush()
                measured += 1
                note(f"{line}{result['latency_ms']} ms")
            if "torch._dynamo" in sys.modules:  # else the ninth function of one place is not compiled
                torch._dynamo.reset()
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
        description="Measures kernels of training steps on the first visible GPU, "
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
        "--repetitions",
        type=int,
        default=BURST_REPETITIONS,
        help=f"runs of a kernel in burst mode [{BURST_REPETITIONS}]",
    )
    parser.add_argument(
        "--dtype", choices=("bf16", "fp16"), help="[bf16, or fp16 where the GPU has no bf16]"
    )
    parser.add_argument(
        "--no-graphs", action="store_true", help="launch from the host, not from CUDA graphs"
    )
    parser.add_argument(
        "--rows",
        metavar="CSV",
        help="measure these kernels, as ns-dist calibrate --next writes them [144 of training]",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write the kernels to --output, or print them, and measure nothing",
    )
    options = parser.parse_args()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", options.gpu):
        parser.error(f'--gpu "{options.gpu}" is no id: letters, digits, ".", "_" and "-"')
    if not 0.05 <= options.seconds <= 60:
        parser.error("--seconds: from 0.05 to 60")
    if not 1 <= options.repetitions <= 1000:
        parser.error("--repetitions: from 1 to 1000")
    if not options.dry_run and options.output is None:
        parser.error("--output is required, except with --dry-run")
    if options.output and not os.path.isdir(os.path.dirname(os.path.abspath(options.output))):
        parser.error(f"--output {options.output}: there is no such folder")
    options.kernels = None
    if options.rows:
        if options.output and os.path.abspath(options.rows) == os.path.abspath(options.output):
            parser.error("--rows and --output are the same file")
        try:
            options.kernels = read_rows(options.rows)
        except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
            parser.error(f"--rows: {error}")
    return options


def dry_run(options, output):
    writer = csv.DictWriter(output, OPERATOR_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in options.kernels or shapes(options.dtype or "bf16", fp8=options.dtype != "fp16"):
        writer.writerow({"gpu": options.gpu, **row})


def main():
    options = arguments()
    if options.dry_run and options.output is None:
        dry_run(options, sys.stdout)
        return 0
    if options.dry_run:
        try:
            with open(options.output, "w", newline="", encoding="utf-8") as output:
                dry_run(options, output)
        except OSError as error:
            return fail(f"--output {options.output}: {error.strerror}")
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
