// Kernels that stream through memory once: their time is traffic over the achieved bandwidth.
#include <algorithm>
#include <array>
#include <cmath>

#include "families.h"

namespace ns_dist {

namespace {

bool amd(const Machine& machine) { return machine.gpu.vendor == "amd"; }

// Of L2, in rows that blocks hold: below the first share a row that is read again comes from L2, above the second from
// memory, between them a share of it (logarithm). Multiprocessor's own cache (L1): likewise from 0.7 to 1.4 of its
// shared memory, since Volta. Both by LayerNorm and softmax of NeuSight's FP32 tables on P4, T4, V100 and
// A100-PCIe-40GB.
constexpr double kStaysInL2 = 0.4, kLeavesL2 = 0.9, kStaysInL1 = 0.7;

// Share of what is read again that comes from memory. Each SM runs `blocks` rows of `row_bytes` at a time.
double missed_share(const Machine& machine, double rows, double blocks, double row_bytes, bool cached_in_l1) {
  const auto beyond = [](double held, double stays, double leaves) {
    return std::clamp(std::log(held / stays) / std::log(leaves / stays), 0.0, 1.0);
  };
  const double missed =
      beyond(std::min(rows, blocks * machine.sms) * row_bytes, kStaysInL2 * machine.l2, kLeavesL2 * machine.l2);
  const double l1 = machine.gpu.shared_memory_per_sm / units::B;  // a part of it, except on Pascal
  if (!cached_in_l1 || !(l1 > 0) || machine.gpu.architecture == "pascal") return missed;
  return missed * beyond(blocks * row_bytes, kStaysInL1 * l1, 2 * kStaysInL1 * l1);
}

// Clocks of an SM for four elements that a thread handles in FP32, all passes over the row together: the same tables
// as above (0.8 to 1.6 change the mean error of the four GPUs by less than 1). The rows left out of the choice:
// A100-PCIe-80GB and L4, LayerNorm 3 and 5 % off, softmax 6 and 4.
constexpr double kStepClocks = 1.4;
// vLLM's RMSNorm in half precision, a clock and element each: 0.80, 0.84 and 0.84 on A100, A40 and H100 (vidur).
constexpr double kServingClocks = 0.83;

// Threads of a block of PyTorch's softmax (SoftMax.cu, SoftMaxForward_getBlockSize): a power of two, up to 512, that
// loads four elements a thread.
double softmax_block(double columns) {
  const double most = std::min(columns / 4, 1024.0);
  return std::max(32.0, std::exp2(std::ceil(std::log2(most / 2))));
}

// Clocks of an SM for an element, by PyTorch 2.11 on H100 and H200 (compute_model/measurements, eager.csv). By element:
// address or conversion of each alone (11 kernels in bf16 and fp32: 0.4 to 0.65). Others by the name of their kernel:
// rows that are added to their sums atomically (index_add bf16 2.05, fp32 1.55; scatter_add, on H200 alone, 0.95 and
// 0.8), parts with gaps that torch.cat joins; by the profiles of steps (steps.csv) sums over rows of 128 columns, and
// fused AdamW in 16 bits, which computes in fp32.
constexpr double kByElement = 0.55;
struct NamedClocks {
  std::string_view kernel;
  double clocks;
};
constexpr std::array<NamedClocks, 5> kNamedClocks = {{{Elementwise::kIndexAdd, 1.9},
                                                      {Elementwise::kScatterAdd, 0.9},
                                                      {Elementwise::kJoin, 1.0},
                                                      {Elementwise::kSumNarrowRows, 1.9},
                                                      {Elementwise::kAdam, 1.05}}};
// PyTorch's softmax of 16 bits: 0.6 to 0.75 up to 5,120 columns, 0.9 at 8,192 (streams.csv, too).
constexpr double kSoftmaxClocks = 0.7;

}  // namespace

RowKernel pointwise_kernel(const Machine& machine, const Elementwise& op) {
  const auto named = std::find_if(kNamedClocks.begin(), kNamedClocks.end(),
                                  [&](const NamedClocks& known) { return known.kernel == op.name; });
  const double clocks = named != kNamedClocks.end() ? named->clocks : op.by_element ? kByElement : 0;
  const double passes = op.name.starts_with(Elementwise::kOverTensors) ? kChunkPasses : 1;
  return {passes, static_cast<double>(op.elements) * clocks / machine.sms};
}

// PyTorch's softmax in FP32 (SoftMax.cu): to 1,024 columns a warp holds a row, padded to a power of two. Longer rows a
// block reads three times, four elements a thread in each step, and what is left over one by one. In half precision
// Megatron's fused kernel keeps rows to 16,384 columns. Other constants: traffic over achieved of FP32 kernels of at
// least 0.2 ms inside models (NeuSight's node timings); AMD's builds read rows beyond 1,024 columns again from memory.
RowKernel softmax_kernel(const Machine& machine, const Softmax& op, DType dtype) {
  const double rows = static_cast<double>(op.rows), columns = static_cast<double>(op.columns);
  if (amd(machine)) return {columns > 16384 ? 1.5 : columns > 1024 ? 1.95 : 1.03};
  if (op.library == Library::kEager && dtype != DType::kFp32) return {1, rows * columns * kSoftmaxClocks / machine.sms};
  if (op.pass == Pass::kBackward) return {columns > 16384 ? 1.5 : 1.1};
  if (dtype != DType::kFp32) return {columns > 16384 ? 1.5 : machine.gddr ? 1.05 : columns > 512 ? 1.19 : 1.04};
  if (columns <= 1024) return {1, rows * std::exp2(std::ceil(std::log2(columns))) / 4 * kStepClocks / machine.sms};
  const double block = softmax_block(columns), whole = std::floor(columns / (4 * block));
  const double steps = whole + std::ceil((columns - whole * 4 * block) / block);
  const double missed = missed_share(machine, rows, machine.resident_threads / block, 4 * columns, true);
  return {1 + missed, rows * block * steps * kStepClocks / machine.sms};
}

// LayerNorm and RMSNorm: statistics first, then a second read. PyTorch's kernel in FP32 (layer_norm_kernel.cu,
// vectorized_layer_norm_kernel) has blocks of 128 threads, each with four elements in a step; those of inference
// frameworks in half precision (vLLM's layernorm_kernels.cu) have up to 1,024, each with an element in a step.
RowKernel normalization_kernel(const Machine& machine, const Normalization& op, DType dtype) {
  if (op.pass == Pass::kBackward) return {amd(machine) ? 2.8 : 1.4};
  if (amd(machine)) return {1.6};
  const bool vectors = dtype == DType::kFp32;
  const double rows = static_cast<double>(op.rows), columns = static_cast<double>(op.columns);
  const double block = vectors ? 128 : std::min(columns, 1024.0);
  const double missed =
      missed_share(machine, rows, machine.resident_threads / block, columns * (size_of(dtype) / units::B), false);
  const double clocks = vectors ? block * std::ceil(columns / (4 * block)) * kStepClocks : columns * kServingClocks;
  return {1 + missed / 2, rows * clocks / machine.sms};
}

Tiled row_times(const Machine& machine, const RowKernel& kernel, double least) {
  const double compute = kernel.clocks / machine.clock_rate, memory = machine.memory_seconds(kernel.passes * least);
  return {.compute = compute, .memory = memory, .seconds = std::hypot(memory, compute)};
}

namespace {

Estimate streamed(const Machine& machine, double traffic, const Tiled& kernel, std::string_view method, Steps& steps) {
  Estimate estimate = estimate_tiled(machine.launch, kernel);
  estimate.method = method;
  estimate.spread = 1.25;
  if (steps.on()) {
    steps.add("traffic_B", traffic);
    steps.add("memory_s", kernel.memory, "traffic over the bandwidth of long streaming kernels");
    steps.add("compute_s", kernel.compute, "vector units");
    steps.add("launch_s", machine.launch);
  }
  return estimate;
}

}  // namespace

Estimate estimate_rows(const Machine& machine, const RowKernel& kernel, double least, std::string_view method,
                       Steps& steps) {
  return streamed(machine, kernel.passes * least, row_times(machine, kernel, least), method, steps);
}

Estimate estimate_streaming(const Machine& machine, double traffic, double flops, DType dtype, std::string_view method,
                            Steps& steps) {
  // Pointwise code reaches about half of the vector peak: it counts fused multiply-adds as two and has few of them.
  constexpr double kPointwiseShare = 0.5;
  const double memory = machine.memory_seconds(traffic);
  const double compute = flops / (kPointwiseShare * machine.vector_rate(dtype));
  return streamed(machine, traffic, {.compute = compute, .memory = memory, .seconds = overlap(compute, memory)}, method,
                  steps);
}

}  // namespace ns_dist
