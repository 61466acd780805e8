// Fused attention (Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3): a block of queries stays on an SM
// while keys and values stream by.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "families.h"

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

// A kernel's time is a sum of these terms. `launch`: us. `products`: at the nominal half-precision peak.
// `exponentials`: one for each query and key. `waves`: us for each wave of 256 queries a SM, at 1.9 GHz. `rows`: clocks
// for each element of the queries and outputs that an SM handles. `edges`: the exponentials of 128 keys for each query
// and each edge of the mask. `groups`: the traffic of four bytes for each element of the queries' heads' shares in the
// gradients of shared keys and values. `wide`: the products of heads wider than 128, whose gradients do not fit beside
// each other.
constexpr std::array<std::string_view, 8> kAttentionTerms = {"launch", "products", "exponentials", "waves",
                                                             "rows",   "edges",    "groups",       "wide"};
constexpr std::array<std::string_view, 8> kAttentionNotes = {"",
                                                             "at the library's share of the half-precision peak",
                                                             "those that the products do not hide",
                                                             "prologue and epilogue of each wave",
                                                             "queries, outputs and their gradients",
                                                             "blocks that the mask cuts",
                                                             "gradients of keys and values that heads share",
                                                             "products of heads wider than 128"};

// Coefficients before any row is seen, and all there are of kernels that nobody measured.
struct Prior {
  Library library;
  std::string_view generation;  // "": any
  Pass pass;
  Format format;
  Terms terms;
  double spread = 1.25;  // of the interval
};
// FlashAttention-3 has 740 (forward) and 550 to 600 TFLOP/s (backward) of 989 at head dimension 128, and 1,000 to 1,200
// in FP8, forward (Shah et al. 2024, fig. 5-7); FlashAttention-2 0.73 and 0.6 of A100's peak (Dao 2023, fig. 4-6). FP8
// backward was not published: in between. The other terms say their order of magnitude: launches of 5 us, of two
// kernels backward; a read or written element takes an SM a tenth of a clock; an edge of a mask costs its block.
//
// Ada, backward: Ampere's backward over forward (0.77) on its own forward kernels. FlashAttention-1: 115 and 85 TFLOP/s
// on A100, causal, head size 128, in its Triton version (Dao 2023, arXiv 2307.08691, fig. 5 and 6: between 1.3 and 2.5
// times as long as FlashAttention-2).
constexpr Format kHalf = Format::kHalf, kEightBit = Format::kEightBit;
constexpr Terms kForwardHalf = {5, 1.35, 0.1, 0, 0.1, 1}, kBackwardHalf = {10, 1.6, 0.3, 0, 0.3, 3, 1};
constexpr std::array<Prior, 15> kPriors = {{
    {Library::kCudnn, "", Pass::kForward, kHalf, kForwardHalf},
    {Library::kCudnn, "", Pass::kBackward, kHalf, kBackwardHalf},
    {Library::kCudnn, "", Pass::kForward, kEightBit, {5, 0.8, 0.3, 0, 0.1, 1}},
    {Library::kCudnn, "", Pass::kBackward, kEightBit, {10, 1.3, 0.5, 0, 0.3, 3, 1}},
    {Library::kFlash2, "ada", Pass::kBackward, kHalf, {10, 2.48}},
    {Library::kFlash2, "", Pass::kForward, kHalf, kForwardHalf},
    {Library::kFlash2, "", Pass::kBackward, kHalf, kBackwardHalf},
    {Library::kFlash3, "hopper", Pass::kBackward, kHalf, {5, 1.8, 0, 15}, 1.3},
    {Library::kFlash3, "hopper", Pass::kBackward, kEightBit, {5, 1.8, 0, 15}, 1.3},
    {Library::kFlash1, "ampere", Pass::kForward, kHalf, {10, 2.71}, 1.4},
    {Library::kFlash1, "ampere", Pass::kBackward, kHalf, {10, 3.67}, 1.4},
    {Library::kFlash1, "ada", Pass::kForward, kHalf, {10, 2.71}, 1.5},
    {Library::kFlash1, "ada", Pass::kBackward, kHalf, {10, 3.67}, 1.5},
    {Library::kFlash1, "", Pass::kForward, kHalf, {10, 2.71}, 1.5},
    {Library::kFlash1, "", Pass::kBackward, kHalf, {10, 3.67}, 1.5},
}};
// FlashAttention-1 and -2 run matrix instructions of Ampere on any generation: 2,048 FLOP a clock and SM (A100's peak),
// or what the units have where that is less (Ada).
constexpr double kAmpereInstructions = 2048;
// A kernel of cuDNN that runs for long, again and again, loses clock to the board's power limit: on GB200 the same
// backward kernel has 1,400 TFLOP/s at 8 ms, 1,370 at 32 ms and 1,260 at 139 ms, and twice the heads at the same length
// take it from 1,220 (12 ms) to 1,130 (25 ms). The longest kernels lose kLongLoss, half of it at kLongTime. One pair
// for all kernels of cuDNN: with a fifth of the shapes left out it is within 0.3 points of the best of six pairs and
// none in each row of Blackwell and in Hopper's half precision; Hopper's FP8 is 0.5 to 1 point better without.
// FlashAttention-2 on GB200 draws less power and loses nothing up to 1.3 s. Kernels of a ring, which follow each other,
// count together.
constexpr double kLongLoss = 0.2, kLongTime = 0.1;
constexpr double kWideHead = 128;   // head dimension, see `wide`
constexpr double kBlock = 256;      // queries of an SM's block: two tiles of 128, which take turns
constexpr double kEdgeBlock = 128;  // keys, see `edges`

// Unfused: clocks of an SM for each query and key, masked ones too, of all kernels together: PyTorch's math kernels
// with scores in half precision, 3.8 and 1.7 on B200 (sequences of 2,048 to 8,192), 3.3 to 3.4 and 1.8 to 1.9 on H100
// (compute_model/measurements). Their instructions take longer than memory: scores are written and read twice at least.
constexpr double kEagerForward = 3.6, kEagerBackward = 1.9;
constexpr double kEagerTraffic = 8;  // bytes

// The generation whose kernels a GPU runs: those of Blackwell's workstation cards are Ada's, as neither has the large
// matrix instructions of Hopper and B200 (CUDA C++ Programming Guide, compute capability 12.0). Later generations that
// have them are taken for Blackwell.
std::string_view kernels_of(const Gpu& gpu) {
  if (gpu.vendor != "nvidia") return "";
  if (gpu.compute_capability.starts_with("12")) return "ada";
  const bool later = !is_known_architecture(gpu.architecture) && capability_of(gpu) >= 10;
  return later ? "blackwell" : generation_of(gpu.architecture);
}

Format format_of(const Attention& op, DType dtype) {
  if (dtype != DType::kFp8) return Format::kHalf;
  return op.scaling == Scaling::kBlock ? Format::kBlockScaled : Format::kEightBit;
}

// Kernels of 16 and 8 bits: in fp32 and tf32 there are none of these libraries.
const Prior* prior_of(const Machine& machine, const Attention& op, DType dtype) {
  if (is_single_precision(dtype)) return nullptr;
  const std::string_view generation = kernels_of(machine.gpu);
  const bool newer = generation == "hopper" || generation == "blackwell";
  const Format format = dtype == DType::kFp8 ? kEightBit : kHalf;
  for (const Prior& row : kPriors) {
    if (row.library != op.library || row.pass != op.pass || row.format != format) continue;
    const bool measured_backward = row.library == Library::kFlash2 && row.pass == Pass::kBackward;
    const bool fits =
        row.generation.empty() ? newer || (measured_backward && generation == "ampere") : row.generation == generation;
    if (fits) return &row;
  }
  return nullptr;
}

// The class of the kernel: what differs most comes first, one GPU's own kernels last.
std::string class_of(const Machine& machine, const Attention& op, DType dtype) {
  const std::string_view generation = kernels_of(machine.gpu);
  std::string name;
  name.reserve(96);
  name.append(name_of(op.library));
  name.append(op.pass == Pass::kForward ? " forward" : " backward");
  if (op.library == Library::kCudnn) {
    name.append(" ").append(generation);
    const Format format = format_of(op, dtype);
    if (format != Format::kHalf) name.append(format == kEightBit ? " 8 bit/one scale" : " 8 bit/block scales");
    if (op.pass == Pass::kBackward) name.append(op.deterministic ? "/deterministic" : "/any order");
  } else if (op.library == Library::kFlash2) {
    name.append(generation == "ada" ? " ada" : "/").append(generation == "ada" ? "" : generation);
  } else {
    return "";  // nobody measured it
  }
  return name.append("/").append(machine.gpu.id);
}

// The head dimension that a kernel computes: FlashAttention-2 has kernels for these (static_switch.h, HEADDIM_SWITCH);
// cuDNN pads to the next of its own: on H100 heads of 80 and 96 take as long as those of 128, and backward those of 192
// longer than those of 256 (compute_model/measurements). On GB200 they do not.
double computed_width(const Attention& op, double width, std::string_view generation) {
  constexpr std::array<double, 6> kFlash2 = {32, 64, 96, 128, 192, 256};
  constexpr std::array<double, 4> kCudnn = {64, 128, 192, 256};
  constexpr std::array<double, 3> kCudnnBackwardHopper = {64, 128, 256};
  std::span<const double> kernels = kFlash2;
  if (op.library == Library::kCudnn) {
    kernels = kCudnn;
    if (op.pass == Pass::kBackward && generation == "hopper") kernels = kCudnnBackwardHopper;
  }
  const auto found = std::find_if(kernels.begin(), kernels.end(), [&](double kernel) { return kernel >= width; });
  return found == kernels.end() ? width : *found;
}

bool has_window(const Attention& op) { return op.window > 0 && op.window < op.key_length; }

// Of a causal window, how much of the time is saved that the first queries, whose window is not full yet, do not need:
// of 1,024 keys in sequences of 2,048 to 16,384, 0.6 to 0.8 on H200 and 0.1 to 0.6 on GB200 (cuDNN 9.19, both passes).
// All of it where the window is the sequence.
constexpr double kSavedBeforeWindow = 0.5;

// Pairs of queries and keys that are computed, by blocks: half a block more than what a query sees at each edge of a
// mask.
double pairs_of(const Attention& asked, bool ignores_window) {
  Attention op = asked;
  if (ignores_window || !has_window(op)) op.window = 0;
  const double queries = static_cast<double>(op.query_length), keys = static_cast<double>(op.key_length);
  const double window = op.window > 0 ? static_cast<double>(op.window) : keys;
  const double half_block = std::min(kBlock, keys) / 2;
  Attention whole = op;
  whole.window = 0;
  const double below = attended_pairs(whole) + (op.causal ? std::min(queries, keys) * half_block : 0);
  double pairs = below;
  if (op.window > 0) {
    const double band = queries * (window + 2 * half_block);
    const double before = queries * window - attended_pairs(op);
    pairs = std::min(below, band - std::max(kSavedBeforeWindow, window / keys) * before);
  }
  return static_cast<double>(op.batch) * static_cast<double>(op.heads) * pairs;
}

// What a kernel computes, masks and padding as it handles them.
struct Computed {
  bool ignores_window;
  double width, value, pairs;  // of a head, of its values; queries with their keys, of all heads
  double flops;                // of the products
};
Computed computed_by(const Machine& machine, const Attention& op, DType dtype) {
  Computed work{};
  const bool backward = op.pass == Pass::kBackward;
  // cuDNN's backward kernels in 8 bits compute the scores that a window masks all the same.
  work.ignores_window = backward && op.library == Library::kCudnn && dtype == DType::kFp8;
  const std::string_view generation = kernels_of(machine.gpu);
  work.width = computed_width(op, static_cast<double>(op.head_dim), generation);
  // FlashAttention-2 has one head dimension: values that are narrower are padded.
  work.value = std::max(computed_width(op, static_cast<double>(op.value_dim), generation),
                        op.library == Library::kFlash2 ? work.width : 0);
  work.pairs = pairs_of(op, work.ignores_window);
  work.flops = work.pairs * 2 * (backward ? 3 * work.width + 2 * work.value : work.width + work.value);
  return work;
}

// Contract: there is a prior for `op`, whose library is not the default.
TermSum sum_of(const Machine& machine, const Attention& op, DType dtype, const Prior& prior) {
  const bool backward = op.pass == Pass::kBackward;
  const auto [ignores_window, width, value, pairs, flops] = computed_by(machine, op, dtype);
  const double heads = static_cast<double>(op.batch) * static_cast<double>(op.heads);
  const double keys = static_cast<double>(op.key_length), queries = static_cast<double>(op.query_length);
  const double masks = (op.causal ? 1 : 0) + (has_window(op) && !ignores_window ? 1 : 0);
  const bool older = op.library == Library::kFlash1 || op.library == Library::kFlash2;
  const DType half_dtype = machine.peak(DType::kBf16) >= machine.peak(DType::kFp16) ? DType::kBf16 : DType::kFp16;
  const double half = machine.peak(half_dtype);
  const double clocks = machine.sms * machine.clock_rate;  // of all SMs, 1/s
  const double peak = older ? std::min(half, kAmpereInstructions * clocks) : half;
  const double exponentials = older ? Machine::kExponentials * clocks : machine.exponential_rate;
  // Beyond the peak's time products wait for other work of the SM, which is as fast on a board that is sold with less
  // of its tensor units' rate.
  const double units = half / machine.rated_share(half_dtype),
               free = older ? std::min(units, kAmpereInstructions * clocks) : units;
  const double waits = std::max(0.0, prior.terms[1] - 1);
  const double products = flops * (1 / peak + waits / free) / (1 + waits);
  TermSum sum;
  sum.kernel = class_of(machine, op, dtype);
  sum.prior = prior.terms;
  sum.terms = {1e-6,
               products,
               pairs / exponentials,
               1e-6 * std::max(1.0, heads * std::ceil(queries / kBlock) / machine.sms) * 1.9e9 / machine.clock_rate,
               heads * queries * (width + value) / clocks,
               masks * kEdgeBlock * heads * std::min(queries, keys) / exponentials,
               op.heads > op.kv_heads && backward ? 4 * heads * keys * (width + value) / machine.bandwidth : 0,
               width > kWideHead ? products : 0};
  return sum;
}

Estimate estimate_by_sum(const Machine& machine, const Attention& op, DType dtype, const Prior& prior, const Sums& sums,
                         Steps& steps) {
  const TermSum sum = sum_of(machine, op, dtype, prior);
  const Terms parts = parts_of(sums, sum);
  const double cold = seconds_of(parts);
  Estimate estimate;
  estimate.seconds = cold;
  if (op.library == Library::kCudnn) {
    const double together = cold * static_cast<double>(op.in_a_row);
    estimate.seconds *= 1 + kLongLoss * together / (together + kLongTime);
  }
  // Nobody measured these kernels on a board with GDDR: where its power is short (L4, 72 W), products cost as much as
  // in a matrix product. Boards with HBM pay for the rates that were measured there: cuDNN has 1,810 TFLOP/s on GB200,
  // whose ceiling is 1,590.
  const double ceiling = machine.ceiling(dtype);
  if (machine.gddr && ceiling > 0)
    estimate.seconds = std::max(estimate.seconds, computed_by(machine, op, dtype).flops / ceiling);
  estimate.spread = prior.spread;
  const double waves = static_cast<double>(op.batch) * static_cast<double>(op.heads) *
                       std::ceil(static_cast<double>(op.query_length) / kBlock);
  estimate.waves = static_cast<std::int64_t>(std::min(std::ceil(std::max(1.0, waves / machine.sms)), 9e18));
  estimate.tile = "256 queries";
  estimate.bound = Bound::kCompute;
  estimate.method = "products, exponentials and waves at the library's rates";
  if (steps.on()) {
    steps.add("library", name_of(op.library));
    for (std::size_t t = 0; t < kAttentionTerms.size(); ++t) {
      if (parts[t] > 0) steps.add(std::string(kAttentionTerms[t]) + "_s", parts[t], kAttentionNotes[t]);
    }
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

constinit const SumKind kAttentionSum = {kAttentionTerms,
                                         {3, 0.3, 0.3, 1, 0.1, 0.5, 1, 0.3},
                                         0.6,
                                         0.06,
                                         0.0002,
                                         [](const Machine& machine, const Operator& whole) -> TermSum {
                                           Attention op = std::get<Attention>(whole.kind);
                                           op.library = library_of(op, machine.gpu);
                                           const Prior* const prior = prior_of(machine, op, whole.dtype);
                                           return prior == nullptr ? TermSum{}
                                                                   : sum_of(machine, op, whole.dtype, *prior);
                                         },
                                         [](const Operator& whole, double seconds) {  // at full clock
                                           if (std::get<Attention>(whole.kind).library != Library::kCudnn)
                                             return seconds;
                                           const double half = (kLongTime - seconds) / (2 * (1 + kLongLoss));
                                           return std::sqrt(half * half + kLongTime * seconds / (1 + kLongLoss)) - half;
                                         }};

Estimate estimate_attention(const Machine& machine, const Attention& asked, DType dtype, const Roofline& roofline,
                            const Sums& sums, Steps& steps) {
  Attention op = asked;
  op.library = library_of(op, machine.gpu);
  if (op.library == Library::kEager || op.library == Library::kCompiled) {
    const double scores = static_cast<double>(op.batch) * static_cast<double>(op.heads) *
                          static_cast<double>(op.query_length) * static_cast<double>(op.key_length);
    const bool forward = op.pass == Pass::kForward;
    const RowKernel kernels{1, scores * (forward ? kEagerForward : kEagerBackward) / machine.sms};
    Estimate estimate = estimate_rows(machine, kernels, scores * kEagerTraffic,
                                      "unfused: scores in memory, kernel after kernel", steps);
    estimate.spread = 1.6;
    return estimate;
  }
  if (const Prior* const prior = prior_of(machine, op, dtype)) {
    return estimate_by_sum(machine, op, dtype, *prior, sums, steps);
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
  const double waits = (1 / share - 1) * machine.rated_share(dtype);  // for other work of the SM, see sum_of()
  const double compute =
      (products * (1 + waits) - saved) * padding * ramp * (exact > 1 ? (exact + 0.5) / exact : waves / exact);
  const double memory = roofline.memory * machine.bandwidth / machine.achieved_bandwidth;

  Estimate estimate =
      estimate_tiled(machine.launch, {"128 queries", blocks, waves, compute, memory, overlap(compute, memory)});
  estimate.method = "query blocks and waves, rate by architecture";
  estimate.spread = 1.40;
  estimate.extrapolated = is_single_precision(dtype);  // the shares are of other formats
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
