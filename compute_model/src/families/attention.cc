// Fused attention (Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3): a block of queries stays on an SM
// while keys and values stream by.
#include <algorithm>
#include <array>
#include <cmath>

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
constexpr double kOtherShare = 0.50;

// Backward over forward rate, head dimension 128: 0.80-0.85 for FlashAttention-2 on A100 (Dao 2023, fig. 4-5) and
// 0.75-0.8 for FlashAttention-3 on H100 (Shah et al. 2024, fig. 5-6).
constexpr double kBackwardShare = 0.80;

// Heads narrower than 128 leave softmax less hidden: 0.75-0.9 of the rate at 64 to 80 in the same tables.
double head_share(double head_dim) { return head_dim >= 128 ? 1 : head_dim >= 64 ? 0.85 : 0.85 * head_dim / 64; }

constexpr double kQueryBlock = 128;  // queries of an SM's block
constexpr double kKeyRamp = 256;     // keys' worth of prologue, epilogue and mask handling a block

}  // namespace

Estimate estimate_attention(const Machine& machine, const Attention& op, DType dtype, const Roofline& roofline,
                            Steps& steps) {
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
