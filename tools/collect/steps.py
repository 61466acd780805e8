#!/usr/bin/env python3
"""Measures whole training steps and inference passes of Hugging Face models on this machine's GPU.

    python3 steps.py --gpu ID --output steps.csv [--kernels kernels.csv] [--only TEXT]

One row of steps.csv is a model, its batch and how long a step takes, with the most memory that was
allocated. kernels.csv has the kernels of one step, by the GPU's own clock. Weights are random.
Needs PyTorch and transformers.
"""

import argparse
import csv
import gc
import re
import statistics
import sys
import time

CASE_COLUMNS = ("name", "phase", "numbers", "attention", "experts", "recompute", "micro_batch", "seq")
COLUMNS = (
    *("gpu", *CASE_COLUMNS, "parameters", "step_ms", "step_ms_min", "forward_ms", "peak_gib", "reserved_gib", "power_w"),
    *("clock_mhz", "busiest_expert", "steps", "torch", "transformers", "cuda", "device"),
)
KERNEL_COLUMNS = CASE_COLUMNS + ("kernel", "calls", "total_us")


def llama(layers, hidden, ffn, heads, kv_heads, vocabulary, tied, **more):
    return {
        "class": "Llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 32768,
        **more,
    }


def gpt2(layers, hidden, heads):
    return {"class": "GPT2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 2048}


MODELS = {
    "llama-3.2-1b": llama(16, 2048, 8192, 32, 8, 128256, True),
    "llama-3-8b-8-layers": llama(8, 4096, 14336, 32, 8, 128256, False),
    "llama-2-13b-6-layers": llama(6, 5120, 13824, 40, 40, 32000, False),
    "gpt2-xl": gpt2(48, 1600, 25),
    "gpt2-large": gpt2(36, 1280, 20),
    "gpt3-xl": gpt2(24, 2048, 16),
    "bert-large": {
        "class": "Bert",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "qwen3-1.7b": llama(28, 2048, 6144, 16, 8, 151936, True, **{"class": "Qwen3", "head_dim": 128}),
    "gemma-3-1b": llama(
        *(26, 1152, 6912, 4, 1, 262144, True),
        **{"class": "Gemma3", "head_dim": 256, "sliding_window": 512},
    ),
    "qwen3-30b-a3b-4-layers": llama(
        *(4, 2048, 6144, 32, 4, 151936, False),
        **{"class": "Qwen3Moe", "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8},
        **{"moe_intermediate_size": 768, "norm_topk_prob": True},
    ),
    "mixtral-8x7b-2-layers": llama(
        *(2, 4096, 14336, 32, 8, 32000, False),
        **{"class": "Mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    # DeepSeek-V2-Lite's sizes in DeepSeek-V3's class
    "deepseek-lite-6-layers": llama(
        *(6, 2048, 10944, 16, 16, 102400, False),
        **{"class": "DeepseekV3", "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128},
        **{"qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2},
        **{"num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
        **{"n_group": 1, "topk_group": 1},
    ),
    "gpt-oss-20b-4-layers": llama(
        *(4, 2880, 2880, 64, 8, 201088, False),
        **{"class": "GptOss", "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4},
        **{"sliding_window": 128},
    ),
}

# mixed: weights in fp32, autocast to bf16. bf16: weights and the optimizer's state in bf16.
# model, phase, numbers, attention, experts, recompute, sequences, tokens of a sequence
CASES = (
    ("llama-3.2-1b", "train", "bf16", "sdpa", "", "none", 2, 4096),
    ("llama-3.2-1b", "train", "mixed", "sdpa", "", "none", 2, 4096),
    ("llama-3.2-1b", "train", "bf16", "sdpa", "", "full", 4, 4096),
    ("llama-3.2-1b", "train", "bf16", "eager", "", "none", 2, 2048),
    ("llama-3-8b-8-layers", "train", "bf16", "sdpa", "", "none", 2, 4096),
    ("llama-3-8b-8-layers", "train", "bf16", "sdpa", "", "full", 4, 4096),
    ("llama-2-13b-6-layers", "train", "bf16", "sdpa", "", "none", 2, 4096),
    ("llama-3-8b-8-layers", "train", "bf16", "sdpa-compiled", "", "none", 2, 4096),
    ("llama-3-8b-8-layers", "train", "bf16", "sdpa-compiled", "", "none", 1, 8192),
    ("gpt2-xl", "train", "bf16", "sdpa", "", "none", 8, 1024),
    ("gpt2-xl", "train", "mixed", "sdpa", "", "none", 8, 1024),
    ("gpt2-large", "inference", "fp32", "eager", "", "none", 4, 1024),
    ("gpt2-large", "gradients", "fp32", "eager", "", "none", 4, 1024),
    ("gpt3-xl", "inference", "fp32", "eager", "", "none", 2, 2048),
    ("gpt3-xl", "gradients", "fp32", "eager", "", "none", 2, 2048),
    ("bert-large", "inference", "fp32", "eager", "", "none", 16, 512),
    ("bert-large", "gradients", "fp32", "eager", "", "none", 8, 512),
    ("qwen3-1.7b", "train", "bf16", "sdpa", "", "none", 2, 4096),
    ("qwen3-1.7b", "train", "mixed", "sdpa", "", "none", 1, 4096),
    ("gemma-3-1b", "train", "bf16", "sdpa", "", "none", 2, 2048),
    ("llama-2-13b-6-layers", "train", "bf16", "sdpa", "", "full", 1, 32768),
    ("qwen3-30b-a3b-4-layers", "train", "bf16", "sdpa", "grouped_mm", "none", 2, 4096),
    ("qwen3-30b-a3b-4-layers", "train", "bf16", "sdpa", "grouped_mm", "full", 4, 4096),
    ("qwen3-30b-a3b-4-layers", "train", "bf16", "sdpa", "eager", "none", 2, 4096),
    ("mixtral-8x7b-2-layers", "train", "bf16", "sdpa", "grouped_mm", "none", 2, 4096),
    ("mixtral-8x7b-2-layers", "train", "bf16", "sdpa", "eager", "none", 2, 4096),
    ("deepseek-lite-6-layers", "train", "bf16", "sdpa", "grouped_mm", "none", 2, 4096),
    ("gpt-oss-20b-4-layers", "train", "bf16", "eager", "grouped_mm", "none", 1, 4096),
)


CLASSES = {"GPT2": "GPT2LMHeadModel", "Bert": "BertModel"}  # else {kind}ForCausalLM
CONFIGS = {"Gemma3": "Gemma3TextConfig"}  # else {kind}Config


def build(torch, transformers, description, attention, experts, numbers):
    values = dict(description)
    kind = values.pop("class")
    config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(**values)
    for dropout in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob",
                    "attention_probs_dropout_prob", "attention_dropout"):
        if hasattr(config, dropout):
            setattr(config, dropout, 0.0)
    config.use_cache = False
    config._attn_implementation = attention
    if experts:
        config._experts_implementation = experts
    model_class = CLASSES.get(kind, f"{kind}ForCausalLM")
    torch.set_default_dtype(torch.bfloat16 if numbers == "bf16" else torch.float32)
    try:
        with torch.device("cuda"):
            model = getattr(transformers, model_class)(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return model, config


def measure(torch, transformers, case, options, meter_class):
    name, phase, numbers, attention, experts, recompute, sequences, length = case
    kernel = attention.split("-")[0]
    model, config = build(torch, transformers, MODELS[name], kernel, experts, numbers)
    model.train(phase != "inference")
    if attention.endswith("compiled"):  # layer by layer, as torchtitan does
        layers = model.model.layers
        for i, layer in enumerate(layers):
            layers[i] = torch.compile(layer)
    if recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tokens = torch.randint(config.vocab_size, (sequences, length), device="cuda")
    has_loss = not model.__class__.__name__.startswith("BertModel") and phase == "train"
    optimizer = None
    if phase == "train":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    forward = []

    def event():
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def step():
        start = event()
        with torch.autocast("cuda", torch.bfloat16, enabled=numbers == "mixed"):
            output = model(tokens, labels=tokens) if has_loss else model(tokens)
        forward.append((start, event()))
        if phase == "inference":
            return
        if has_loss:
            output.loss.backward()
        else:  # gradients alone: no loss, no optimizer
            result = output.logits if hasattr(output, "logits") else output.last_hidden_state
            result.backward(torch.ones_like(result))
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # as Trainer does by default
            optimizer.step()
        model.zero_grad(set_to_none=True)

    with torch.set_grad_enabled(phase != "inference"):
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        forward.clear()
        began = time.perf_counter()
        times = []
        with meter_class(torch) as meter:
            while len(times) < 4 or time.perf_counter() - began < options.seconds:
                start = time.perf_counter()
                step()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - start) * 1e3)
        row = {
            "step_ms": f"{statistics.median(times):.5g}",
            "step_ms_min": f"{min(times):.5g}",
            "forward_ms": f"{statistics.median(a.elapsed_time(b) for a, b in forward):.5g}",
            "peak_gib": f"{torch.cuda.max_memory_allocated() / 2**30:.4g}",
            "reserved_gib": f"{torch.cuda.max_memory_reserved() / 2**30:.4g}",
            "parameters": sum(p.numel() for p in model.parameters()),
            "power_w": meter.watts(),
            "clock_mhz": meter.clock(),
            "steps": len(times),
            "busiest_expert": busiest_expert(torch, model, tokens) if experts else "",
        }
        kernels = kernels_of(torch, step) if options.kernels else []
    return row, kernels


def busiest_expert(torch, model, tokens):
    """Rows of the busiest expert over the mean's, the largest of all layers."""
    ratios = []

    def count(module, inputs, *_):
        chosen = inputs[1] if len(inputs) > 1 else None
        if chosen is not None and not chosen.is_floating_point():
            rows = torch.bincount(chosen.flatten(), minlength=module.num_experts)
            ratios.append((rows.max() / rows.float().mean()).item())

    experts = [one for one in model.modules() if type(one).__name__.endswith("Experts")]
    hooks = [one.register_forward_pre_hook(count) for one in experts]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return f"{max(ratios):.3g}" if ratios else ""


def kernels_of(torch, step):
    """Calls and microseconds of each kernel of one step, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    averages = [(one.key, one.count, one.self_device_time_total) for one in profiler.key_averages()]
    return sorted((one for one in averages if one[2] > 0), key=lambda one: -one[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gpu", required=True, metavar="ID", help="the GPU's id, of `ns-dist list gpus`")
    parser.add_argument("--output", required=True, metavar="CSV", help="where the steps go")
    parser.add_argument("--kernels", metavar="CSV", help="where the kernels of one step of each case go")
    parser.add_argument("--seconds", type=float, default=2, help="of each case [2]")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose words, as printed, match")
    options = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from kernels import BoardMeter, short

    torch.set_float32_matmul_precision("highest")  # fp32 is fp32, not tf32
    provenance = {
        "gpu": options.gpu,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_properties(0).name,
    }
    kernel_file = open(options.kernels, "w", newline="", encoding="utf-8") if options.kernels else None
    with open(options.output, "w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        writer.writeheader()
        details = None
        if kernel_file:
            details = csv.DictWriter(kernel_file, KERNEL_COLUMNS, lineterminator="\n")
            details.writeheader()
        for case in CASES:
            text = " ".join(str(part) for part in case)
            if not re.search(options.only, text):
                continue
            shape = dict(zip(CASE_COLUMNS, case))
            try:
                row, kernels = measure(torch, transformers, case, options, BoardMeter)
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                print(f"{text}: skipped, {short(error)}", file=sys.stderr, flush=True)
            else:
                writer.writerow({**shape, **row, **provenance})
                output.flush()
                for kernel, calls, total in kernels:
                    kernel = re.sub(r"\s+", " ", kernel)[:300]
                    line = {"kernel": kernel, "calls": calls, "total_us": f"{total:.1f}"}
                    details.writerow({**shape, **line})
                if kernel_file:
                    kernel_file.flush()
                print(f"{text}: {row['step_ms']} ms, {row['peak_gib']} GiB", file=sys.stderr, flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    if kernel_file:
        kernel_file.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
