// Fused attention (Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3): a block of queries stays on an SM
// while keys and values stream by.
#include <algorithm>
#include <array>
#include <cmath>

#include "families.h"
#include "kernel_features.h"

namespace ns_dist {
namespace {

struct Share {
  std::string_view architecture;
  double forward;  // of the nominal tensor peak, head dimension 128, long sequences
};

// Medians over forward kernels with sequences of 8,192 and more, head dimension 128, in published kernel tables (NVIDIA
// aiconfigurator's system data): FlashAttention-2 on Ampere and Ada, FlashAttention-3 on Hopper, trtllm_mha on
// Blackwell.
constexpr std::array<Share, 5> kShares = {
    {{"ampere", 0.66}, {"ada", 0.51}, {"hopper", 0.60}, {"blackwell", 0.54}, {"blackwell-ultra", 0.60}}};
constexpr double kOtherShare = 0.50;  // of other architectures: below the lowest of the table. Chosen, not fitted

// Backward over forward rate, head dimension 128: 0.80-0.85 for FlashAttention-2 on A100 (Dao 2023, fig. 4-5) and
// 0.75-0.8 for FlashAttention-3 on H100 (Shah et al. 2024, fig. 5-6).
constexpr double kBackwardShare = 0.80;

// Heads narrower than 128 leave softmax less hidden: 0.75-0.9 of the rate at 64 to 80 in the same tables.
double head_share(double head_dim) { return head_dim >= 128 ? 1 : head_dim >= 64 ? 0.85 : 0.85 * head_dim / 64; }

constexpr double kQueryBlock = 128;  // queries of an SM's block, as in FlashAttention-2 (flash_fwd_launch_template.h)
constexpr double kKeyRamp = 256;     // keys' worth of prologue, epilogue and mask handling a block

// Time of a kernel as a sum: `launch` s, `products` times the products at the nominal half-precision peak,
// `exponentials` times one exponential for each query and key, `wave` s for each wave of 256 queries a SM (at 1.9 GHz),
// and `rows` clocks for each element of the queries and outputs that an SM handles.
struct Rates {
  Library library;
  std::string_view generation;  // "": any
  Pass pass;
  bool eight_bit;      // fp8
  bool deterministic;  // backward
  double launch, products, exponentials, wave, rows;
  bool ignores_window = false;  // masked blocks are computed all the same
  double spread = 1.25;         // of the interval
};
// Non-negative least squares of the relative errors over the kernels of cuDNN frontend's benchmark (GB200, B200, H200;
// mean error 2.4 % on H200 and 5.4-7.9 % on Blackwell) and of Transformer Engine on an A100. Rows that ran through
// PyTorch below 1.5 ms, where the host is part of the time, were left out; so their launches are set. FlashAttention-2
// above Ada runs instructions of Ampere, so that its rate follows clock and SMs. Ada: Ampere's backward over forward
// (0.77) on its own forward kernels. FlashAttention-1: 115 and 85 TFLOP/s on A100, causal, head size 128, in its Triton
// version (Dao 2023, arXiv 2307.08691, fig. 5 and 6: between 1.3 and 2.5 times as long as FlashAttention-2).
// FlashAttention-3: 650 and 550 TFLOP/s of 989 at head size 128 (Shah et al. 2024, fig. 5-6).
constexpr std::array<Rates, 23> kRates = {{
    {Library::kCudnn, "blackwell", Pass::kForward, false, false, 4.1e-6, 1.19, 0.25, 6.5e-6, 0},
    {Library::kCudnn, "blackwell", Pass::kBackward, false, false, 11e-6, 1.84, 0, 5.5e-6, 0.41},
    {Library::kCudnn, "blackwell", Pass::kBackward, false, true, 20e-6, 1.49, 1.61, 14e-6, 0},
    {Library::kCudnn, "blackwell", Pass::kForward, true, false, 8.3e-6, 0.15, 0.94, 4.9e-6, 0},
    {Library::kCudnn, "blackwell", Pass::kBackward, true, false, 36e-6, 0.31, 2.62, 7.0e-6, 0.31, true},
    {Library::kCudnn, "blackwell", Pass::kBackward, true, true, 89e-6, 0.41, 2.46, 8.3e-6, 0.03, true},
    {Library::kCudnn, "hopper", Pass::kForward, false, false, 2e-6, 1.23, 0.33, 6.8e-6, 0.08},
    {Library::kCudnn, "hopper", Pass::kBackward, false, false, 4e-6, 1.55, 0.23, 15.5e-6, 0.73},
    {Library::kCudnn, "hopper", Pass::kBackward, false, true, 4e-6, 2.05, 0, 39e-6, 0},
    {Library::kCudnn, "hopper", Pass::kForward, true, false, 3.2e-6, 0.92, 0, 7.3e-6, 0},
    {Library::kCudnn, "hopper", Pass::kBackward, true, false, 4e-6, 1.65, 0, 34e-6, 0, true},
    {Library::kFlash2, "ampere", Pass::kBackward, false, false, 10e-6, 2.08, 0, 0, 0},
    {Library::kFlash2, "ada", Pass::kBackward, false, false, 10e-6, 2.55, 0, 0, 0},
    {Library::kFlash2, "", Pass::kForward, false, false, 10e-6, 0, 5.14, 11e-6, 0},
    {Library::kFlash2, "", Pass::kBackward, false, false, 10e-6, 0, 15.7, 23e-6, 0},
    {Library::kFlash3, "hopper", Pass::kBackward, false, false, 5e-6, 1.8, 0, 15e-6, 0, false, 1.3},
    {Library::kFlash3, "hopper", Pass::kBackward, true, false, 5e-6, 1.8, 0, 15e-6, 0, false, 1.3},
    {Library::kFlash1, "ampere", Pass::kForward, false, false, 10e-6, 2.71, 0, 0, 0, false, 1.4},
    {Library::kFlash1, "ampere", Pass::kBackward, false, false, 10e-6, 3.67, 0, 0, 0, false, 1.4},
    {Library::kFlash1, "ada", Pass::kForward, false, false, 10e-6, 2.71, 0, 0, 0, false, 1.5},
    {Library::kFlash1, "ada", Pass::kBackward, false, false, 10e-6, 3.67, 0, 0, 0, false, 1.5},
    {Library::kFlash1, "", Pass::kForward, false, false, 10e-6, 0, 9.3, 11e-6, 0, false, 1.5},
    {Library::kFlash1, "", Pass::kBackward, false, false, 10e-6, 0, 27.7, 23e-6, 0, false, 1.5},
}};
// A forward kernel is never faster than its exponentials: of one for each query and key in FP8 on Blackwell, where
// little else is left (its row above).
constexpr double kLeastExponentials = 0.94;
constexpr double kRampBlock = 128;  // keys that a block of queries sees beyond a causal mask's diagonal, or a window

// Unfused: bytes for each query and key that all kernels together move (scores in fp32, masked ones too). PyTorch's
// math kernels on B200, sequences of 2,048 to 8,192.
constexpr double kEagerForward = 94, kEagerBackward = 43;

// The generation whose kernels a GPU runs: those of Blackwell's workstation cards are Ada's, as neither has the large
// matrix instructions of Hopper and B200 (CUDA C++ Programming Guide, compute capability 12.0).
std::string_view kernels_of(const Gpu& gpu) {
  if (gpu.vendor != "nvidia") return "";
  return gpu.compute_capability.starts_with("12") ? "ada" : generation_of(gpu.architecture);
}

const Rates* rates_of(const Machine& machine, const Attention& op, bool eight_bit) {
  const std::string_view generation = kernels_of(machine.gpu);
  const bool deterministic = op.deterministic && op.pass == Pass::kBackward;
  const Rates* found = nullptr;
  for (const Rates& row : kRates) {
    if (row.library != op.library || row.pass != op.pass || row.eight_bit != eight_bit) continue;
    if (!row.generation.empty() && row.generation != generation) continue;
    if (row.generation.empty() && ((generation != "hopper" && generation != "blackwell") || found != nullptr)) continue;
    if (found == nullptr || row.deterministic == deterministic) found = &row;
  }
  return found;
}

double pairs_of(const Attention& op, bool ignores_window) {
  const double queries = static_cast<double>(op.query_length), keys = static_cast<double>(op.key_length);
  const double heads = static_cast<double>(op.batch) * static_cast<double>(op.heads);
  const double window = op.window > 0 && !ignores_window ? static_cast<double>(op.window) : keys;
  const double band = std::min(keys, window + kRampBlock);
  if (window < keys) return heads * queries * band;
  if (!op.causal) return heads * queries * keys;
  const double seen = std::min(queries, keys);
  return heads * (seen * (keys - seen) + seen * seen / 2 + seen * std::min(kRampBlock, keys) / 2);
}

// A kernel that was measured: a sum of its parts.
Estimate estimate_by_rates(const Machine& machine, const Attention& op, const Rates& rates, Steps& steps) {
  const double half = std::max(machine.peak(DType::kBf16), machine.peak(DType::kFp16));
  const double width = static_cast<double>(op.head_dim), value = static_cast<double>(op.value_dim);
  const double pairs = pairs_of(op, rates.ignores_window);
  const double rows =
      static_cast<double>(op.batch) * static_cast<double>(op.heads) * static_cast<double>(op.query_length);
  const double flops = pairs * 2 * (op.pass == Pass::kForward ? width + value : 3 * width + 2 * value);
  const double blocks = static_cast<double>(op.batch) * static_cast<double>(op.heads) *
                        std::ceil(static_cast<double>(op.query_length) / 256);
  const double waves = std::max(1.0, blocks / machine.sms);
  // Kernels without a term for products run older matrix instructions, at so many a clock and SM on any generation.
  const double rate =
      rates.products > 0 ? machine.exponential_rate : Machine::kExponentials * machine.clock_rate * machine.sms;
  const double products = rates.products * flops / half, exponentials = rates.exponentials * pairs / rate;
  const double ramps = rates.wave * waves * 1.9e9 / machine.clock_rate;
  const double edges = rates.rows * rows * (width + value) / (machine.sms * machine.clock_rate);
  Estimate estimate;
  const double least = op.pass == Pass::kForward ? kLeastExponentials * pairs / machine.exponential_rate : 0;
  estimate.seconds = rates.launch + std::max(products + exponentials, least) + ramps + edges;
  estimate.spread = rates.spread;
  estimate.waves = static_cast<std::int64_t>(std::min(std::ceil(waves), 9e18));
  estimate.tile = "256 queries";
  estimate.bound = Bound::kCompute;
  estimate.method = "products, exponentials and waves at the library's rates";
  if (steps.on()) {
    steps.add("library", enumerator_name(op.library));
    steps.add("launch_s", rates.launch);
    steps.add("products_s", products, "at the library's share of the half-precision peak");
    steps.add("exponentials_s", exponentials, "those that the products do not hide");
    steps.add("ramps_s", ramps, "prologue and epilogue of each wave");
    steps.add("rows_s", edges, "queries, outputs and their gradients");
  }
  return estimate;
}

}  // namespace

bool has_attention_rates(const Attention& op, const Gpu& gpu) {
  const Library library = library_of(op, gpu);
  const std::string_view generation = kernels_of(gpu);
  const bool newer = generation == "hopper" || generation == "blackwell";
  if (library == Library::kCudnn) return newer;
  return library == Library::kFlash2 &&
         (newer || (op.pass == Pass::kBackward && (generation == "ampere" || generation == "ada")));
}

Library library_of(const Attention& op, const Gpu& gpu) {
  if (op.library != Library::kDefault) return op.library;
  const std::string_view generation = kernels_of(gpu);
  return generation == "hopper" || generation == "blackwell" ? Library::kCudnn : Library::kFlash2;
}

Estimate estimate_attention(const Machine& machine, const Attention& asked, DType dtype, const Roofline& roofline,
                            Steps& steps) {
  Attention op = asked;
  op.library = library_of(op, machine.gpu);
  if (op.library == Library::kEager || op.library == Library::kCompiled) {
    const double scores = static_cast<double>(op.batch) * static_cast<double>(op.heads) *
                          static_cast<double>(op.query_length) * static_cast<double>(op.key_length);
    const double traffic = scores * (op.pass == Pass::kForward ? kEagerForward : kEagerBackward);
    Estimate estimate =
        estimate_streaming(machine, traffic, 0, DType::kFp32, "unfused: scores in memory, kernel after kernel", steps);
    estimate.spread = 1.6;
    return estimate;
  }
  if (const Rates* rates = rates_of(machine, op, dtype == DType::kFp8)) {
    return estimate_by_rates(machine, op, *rates, steps);
  }
  double share = kOtherShare;
  for (const Share& row : kShares) {
    if (row.architecture == machine.gpu.architecture) share = row.forward;
  }
  const double peak = machine.peak(dtype);
  if (op.pass == Pass::kBackward) share *= kBackwardShare;
  const double width = (static_cast<double>(op.head_dim) + static_cast<double>(op.value_dim)) / 2;
  share *= head_share(width);

  const double queries = static_cast<double>(op.query_length);
  const double blocks =
      static_cast<double>(op.batch) * static_cast<double>(op.heads) * std::ceil(queries / kQueryBlock);
  const double exact = blocks / machine.sms, waves = std::ceil(exact);
  const double pairs =
      roofline.compute * peak / (2 * width) / (op.pass == Pass::kBackward ? 5 : 2);  // attended, all heads
  const double keys_seen = pairs / (blocks * std::min(queries, kQueryBlock));
  const double padding = std::ceil(queries / kQueryBlock) * kQueryBlock / queries;
  const double ramp = (keys_seen + kKeyRamp) / keys_seen;
  // The shares are of half precision. Shorter formats save time in the products alone: exponentials wait in between.
  const double half = std::max(machine.peak(DType::kBf16), machine.peak(DType::kFp16));
  const double products = half > 0 && half < peak ? roofline.compute * peak / half : roofline.compute;
  const double saved = products - roofline.compute;
  const double compute =
      (products / share - saved) * padding * ramp * (exact > 1 ? (exact + 0.5) / exact : waves / exact);
  const double memory = roofline.memory * machine.bandwidth / machine.achieved_bandwidth;

  Estimate estimate =
      estimate_tiled(machine, {"128 queries", blocks, waves, compute, memory, overlap(compute, memory)});
  estimate.method = "query blocks and waves, rate by architecture";
  estimate.spread = 1.40;
  if (steps.on()) {
    steps.add("query_blocks", blocks, "128 queries of one head each");
    steps.add("waves", waves, "blocks over SMs, rounded up");
    steps.add("share_of_peak", share, "long sequences, by architecture, pass and head dimension");
    steps.add("compute_s", compute);
    steps.add("memory_s", memory);
    steps.add("launch_s", machine.launch);
  }
  return estimate;
}

}  // namespace ns_dist
