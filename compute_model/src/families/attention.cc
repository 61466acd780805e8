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

// How a number format is computed: 8-bit numbers with one scale a tensor, or with a scale for each block (MXFP8).
enum class Format { kHalf, kEightBit, kBlockScaled };

// Time of a kernel as a sum: `launch` s, `products` times the products at the nominal half-precision peak,
// `exponentials` times one exponential for each query and key, `wave` s for each wave of 256 queries a SM (at 1.9 GHz),
// `rows` clocks for each element of the queries and outputs that an SM handles, `edges` times the exponentials of 128
// keys for each query and each edge of the mask, `groups` times the traffic of four bytes for each element of the
// queries' heads' shares in the gradients of shared keys and values, and `wide` times the products of heads wider than
// 128, whose gradients do not fit beside each other.
struct Rates {
  Library library;
  std::string_view generation;  // "": any
  Pass pass;
  Format format;
  bool deterministic;  // backward
  double launch, products, exponentials, wave, rows;
  double edges = 0, groups = 0, wide = 0;
  bool ignores_window = false;  // masked blocks are computed all the same
  double spread = 1.25;         // of the interval
};
// Non-negative least squares of the relative errors, large ones damped, over the kernels of cuDNN frontend's benchmark
// (GB200, B200, H200; mean error 2 to 5 % of each row, with a fifth of the shapes left out in turn; 14 % of Hopper's
// FP8 backward) and of Transformer Engine on an A100 (3 %). Rows that ran through PyTorch below 1.5 ms, where the host
// is part of the time, were left out; so the launches of FlashAttention-2 are set, and those of cuDNN on Hopper and of
// its FP8 backward on Blackwell, which the fit would have set to zero. FlashAttention-2 above Ada runs instructions of
// Ampere, so that its rate follows clock and SMs. Ada: Ampere's backward over forward (0.77) on its own forward
// kernels. FlashAttention-1: 115 and 85 TFLOP/s on A100, causal, head size 128, in its Triton version (Dao 2023, arXiv
// 2307.08691, fig. 5 and 6: between 1.3 and 2.5 times as long as FlashAttention-2). FlashAttention-3: 650 and 550
// TFLOP/s of 989 at head size 128 (Shah et al. 2024, fig. 5-6).
constexpr Format kHalf = Format::kHalf, kEightBit = Format::kEightBit, kBlockScaled = Format::kBlockScaled;
constexpr std::array<Rates, 26> kRates = {{
    {Library::kCudnn, "blackwell", Pass::kForward, kHalf, false, 3.6e-6, 1.06, 0.37, 0, 0.16, 1.81},
    {Library::kCudnn, "blackwell", Pass::kBackward, kHalf, false, 12e-6, 1.54, 0.46, 0, 0.43, 2.58, 0.87, 0.31},
    {Library::kCudnn, "blackwell", Pass::kBackward, kHalf, true, 32e-6, 1.30, 2.00, 8.3e-6, 0.13, 2.05, 0, 0.06},
    {Library::kCudnn, "blackwell", Pass::kForward, kEightBit, false, 5.2e-6, 0.17, 0.95, 1.1e-6, 0.08, 1.40},
    {Library::kCudnn, "blackwell", Pass::kBackward, kEightBit, false, 20e-6, 0.36, 2.48, 4.2e-6, 0.24, 4.58, 2.14, 0,
     true},
    {Library::kCudnn, "blackwell", Pass::kBackward, kEightBit, true, 44e-6, 0.17, 2.80, 1.4e-6, 0.18, 7.59, 3.08, 0.13,
     true},
    {Library::kCudnn, "blackwell", Pass::kForward, kBlockScaled, false, 6.5e-6, 0.41, 0.735, 3.3e-6, 0.04, 1.05},
    {Library::kCudnn, "blackwell", Pass::kBackward, kBlockScaled, false, 44e-6, 0.20, 3.33, 4.3e-6, 0.21, 7.57, 2.56,
     0.18, true},
    {Library::kCudnn, "blackwell", Pass::kBackward, kBlockScaled, true, 43e-6, 0.21, 3.32, 4.4e-6, 0.25, 7.02, 2.44,
     0.16, true},
    {Library::kCudnn, "hopper", Pass::kForward, kHalf, false, 2e-6, 1.36, 0, 3.0e-6, 0.134, 2.21},
    {Library::kCudnn, "hopper", Pass::kBackward, kHalf, false, 4e-6, 1.51, 0, 0, 1.25, 4.66},
    {Library::kCudnn, "hopper", Pass::kBackward, kHalf, true, 4e-6, 1.99, 0, 42.5e-6, 0},
    {Library::kCudnn, "hopper", Pass::kForward, kEightBit, false, 2e-6, 0.896, 0, 8.3e-6, 0},
    {Library::kCudnn, "hopper", Pass::kBackward, kEightBit, false, 4e-6, 1.40, 0, 49e-6, 0, 0, 0, 0, true},
    {Library::kFlash2, "ampere", Pass::kBackward, kHalf, false, 10e-6, 2.02, 0, 0, 0},
    {Library::kFlash2, "ada", Pass::kBackward, kHalf, false, 10e-6, 2.48, 0, 0, 0},
    {Library::kFlash2, "", Pass::kForward, kHalf, false, 10e-6, 0, 5.47, 19.5e-6, 0},
    {Library::kFlash2, "", Pass::kBackward, kHalf, false, 10e-6, 0, 16.4, 71e-6, 0},
    {Library::kFlash3, "hopper", Pass::kBackward, kHalf, false, 5e-6, 1.8, 0, 15e-6, 0, 0, 0, 0, false, 1.3},
    {Library::kFlash3, "hopper", Pass::kBackward, kEightBit, false, 5e-6, 1.8, 0, 15e-6, 0, 0, 0, 0, false, 1.3},
    {Library::kFlash1, "ampere", Pass::kForward, kHalf, false, 10e-6, 2.71, 0, 0, 0, 0, 0, 0, false, 1.4},
    {Library::kFlash1, "ampere", Pass::kBackward, kHalf, false, 10e-6, 3.67, 0, 0, 0, 0, 0, 0, false, 1.4},
    {Library::kFlash1, "ada", Pass::kForward, kHalf, false, 10e-6, 2.71, 0, 0, 0, 0, 0, 0, false, 1.5},
    {Library::kFlash1, "ada", Pass::kBackward, kHalf, false, 10e-6, 3.67, 0, 0, 0, 0, 0, 0, false, 1.5},
    {Library::kFlash1, "", Pass::kForward, kHalf, false, 10e-6, 0, 9.3, 11e-6, 0, 0, 0, 0, false, 1.5},
    {Library::kFlash1, "", Pass::kBackward, kHalf, false, 10e-6, 0, 27.7, 23e-6, 0, 0, 0, 0, false, 1.5},
}};
// A kernel of cuDNN that runs for long, again and again, loses clock to the board's power limit: on GB200 the same
// backward kernel has 1,400 TFLOP/s at 8 ms, 1,370 at 32 ms and 1,260 at 139 ms, and twice the heads at the same length
// take it from 1,220 (12 ms) to 1,130 (25 ms). The longest kernels lose kLongLoss, half of it at kLongTime. One pair
// for all kernels of cuDNN: with a fifth of the shapes left out it is within 0.3 points of the best of six pairs and
// none in each row of Blackwell and in Hopper's half precision; Hopper's FP8 is 0.5 to 1 point better without.
// FlashAttention-2 on GB200 draws less power and loses nothing up to 1.3 s.
constexpr double kLongLoss = 0.2, kLongTime = 0.1;
// A forward kernel is never faster than its exponentials: of one for each query and key in FP8 on Blackwell, where
// little else is left (its row above).
constexpr double kLeastExponentials = 0.94;
constexpr double kWideHead = 128;   // head dimension, see `wide`
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

const Rates* rates_of(const Machine& machine, const Attention& op, DType dtype) {
  const std::string_view generation = kernels_of(machine.gpu);
  const bool deterministic = op.deterministic && op.pass == Pass::kBackward;
  const auto best = [&](Format format) {
    const Rates* found = nullptr;
    for (const Rates& row : kRates) {
      if (row.library != op.library || row.pass != op.pass || row.format != format) continue;
      if (!row.generation.empty() && row.generation != generation) continue;
      if (row.generation.empty() && ((generation != "hopper" && generation != "blackwell") || found != nullptr))
        continue;
      if (found == nullptr || row.deterministic == deterministic) found = &row;
    }
    return found;
  };
  if (dtype != DType::kFp8) return best(kHalf);
  const Rates* const blocks = op.scaling == Scaling::kBlock ? best(kBlockScaled) : nullptr;
  return blocks != nullptr ? blocks : best(kEightBit);
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
  const double width = static_cast<double>(op.head_dim);
  // FlashAttention-2 has one head dimension: values that are narrower are padded.
  const double value = std::max(static_cast<double>(op.value_dim), op.library == Library::kFlash2 ? width : 0);
  const double pairs = pairs_of(op, rates.ignores_window);
  const double heads = static_cast<double>(op.batch) * static_cast<double>(op.heads);
  const double rows = heads * static_cast<double>(op.query_length);
  const double flops = pairs * 2 * (op.pass == Pass::kForward ? width + value : 3 * width + 2 * value);
  const double blocks = heads * std::ceil(static_cast<double>(op.query_length) / 256);
  const double waves = std::max(1.0, blocks / machine.sms);
  const double masks = (op.causal ? 1 : 0) + (op.window > 0 && !rates.ignores_window ? 1 : 0);
  const double edge_pairs = masks * kRampBlock * heads * static_cast<double>(std::min(op.query_length, op.key_length));
  const double shared_bytes = op.heads > op.kv_heads && op.pass == Pass::kBackward
                                  ? 4 * heads * static_cast<double>(op.key_length) * (width + value)
                                  : 0;
  // Kernels without a term for products run older matrix instructions, at so many a clock and SM on any generation.
  const double rate =
      rates.products > 0 ? machine.exponential_rate : Machine::kExponentials * machine.clock_rate * machine.sms;
  const double share = rates.products + (width > kWideHead ? rates.wide : 0);
  const double products = share * flops / half, exponentials = rates.exponentials * pairs / rate;
  const double ramps = rates.wave * waves * 1.9e9 / machine.clock_rate;
  const double handled = rates.rows * rows * (width + value) / (machine.sms * machine.clock_rate);
  const double edges = rates.edges * edge_pairs / rate, groups = rates.groups * shared_bytes / machine.bandwidth;
  Estimate estimate;
  const double least = op.pass == Pass::kForward ? kLeastExponentials * pairs / machine.exponential_rate : 0;
  const double cold = rates.launch + std::max(products + exponentials, least) + ramps + handled + edges + groups;
  estimate.seconds = cold;
  if (op.library == Library::kCudnn) estimate.seconds *= 1 + kLongLoss * cold / (cold + kLongTime);
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
    steps.add("rows_s", handled, "queries, outputs and their gradients");
    steps.add("edges_s", edges, "blocks that the mask cuts");
    if (groups > 0) steps.add("groups_s", groups, "gradients of keys and values that heads share");
    if (estimate.seconds > cold) steps.add("power_s", estimate.seconds - cold, "clock that a long kernel loses");
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
  if (const Rates* rates = rates_of(machine, op, dtype)) {
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
