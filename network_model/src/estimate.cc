#include "estimate.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ns_dist::network {
namespace {

double corrected_spread(const Corrected& corrected, const Choice& choice, const Call& call) {
  const double deviation = corrected.deviation_of(call.bytes);
  // Beyond the measured ranks and sizes, of NCCL's constants by the share of doublings that nobody measured.
  const double share = corrected.unmeasured(call);
  const double constants = std::log1p(choice.spread) / kQuantile;
  const double spread = kQuantile * std::max(deviation, (1 - share) * deviation + share * constants);
  // Far from what one cluster's owner measured, the correction itself is in doubt: the interval holds that there is
  // none.
  return corrected.own ? spread + share * std::fabs(corrected.correction.log_ratio(choice.cost.time())) : spread;
}

}  // namespace

double corrected_time(const Call& call, const Allowed& allowed, Transport transport, const Choice& choice,
                      const Corrected* corrected) {
  const double modeled = choice.cost.time();
  if (corrected == nullptr) return modeled;
  const std::size_t level = call.placement->outermost().level;
  const double faster = corrected->link > 0 ? call.links[level].peak / corrected->link : 1;
  if (faster == 1) return corrected->correction.apply(modeled);
  std::array<Link, kMaxLevels> links;
  links[0] = call.links[0];  // algorithms ask the innermost one, also where each rank has a node of its own
  for (const Tier& tier : *call.placement) links[tier.level] = call.link(tier);
  for (double Link::*each : {&Link::peak, &Link::bandwidth, &Link::port_peak, &Link::port_bandwidth, &Link::shared_peak,
                             &Link::shared_bandwidth}) {
    links[level].*each /= faster;
  }
  Call measured = call;
  measured.links = links.data();
  return corrected->correction.apply(modeled, choose(measured, allowed, transport).cost.time(), faster);
}

Estimate estimate(const Call& call, const Allowed& allowed, const Calibration& calibration) {
  Estimate best;
  std::array<Candidate, kTransports.size()> candidates;
  std::size_t count = 0;
  for (const Transport transport : kTransports) {
    const Choice choice = choose(call, allowed, transport);
    if (!choice.algorithm) continue;
    const Corrected* corrected = calibration.find(call, transport);
    const double time = corrected_time(call, allowed, transport, choice, corrected);
    const double spread = corrected ? corrected_spread(*corrected, choice, call) : choice.spread;
    candidates[count++] = {time, spread};
    if (!best.choice.algorithm || time < best.time)
      best = {choice, corrected, time, spread, corrected && corrected->is_far(call)};
  }
  best.spread = mean_spread(std::span(candidates).first(count));
  return best;
}

Estimate inside_nodes(const Call& call, bool with_leaving, const Calibration& calibration) {
  Placement inside;
  for (const Tier& tier : *call.placement) {
    if (call.link(tier).network()) break;
    inside.ranks = tier.parts * tier.max_members;
    inside.tiers[inside.tier_count++] = tier;
  }
  if (inside.tier_count == 0 || inside.tier_count == call.placement->tier_count) return {};
  for (std::size_t i = 0; i < inside.tier_count; ++i) {
    Tier& tier = inside.tiers[i];
    tier.all_parts = (inside.ranks + tier.max_members - 1) / tier.max_members;
  }
  Call alone = call;
  alone.placement = &inside;
  switch (pattern_of(call.kind)) {
    case Pattern::kWholeBuffer:
      break;
    case Pattern::kPartEach:
      // All that a rank does not keep, as a node alone has it of a larger buffer.
      alone.bytes *= with_leaving ? (1 - 1 / call.ranks()) / (1 - 1 / alone.ranks()) : alone.ranks() / call.ranks();
      break;
    case Pattern::kPair:
    case Pattern::kNothing:
      return {};
  }
  return estimate(alone, {}, calibration);
}

}  // namespace ns_dist::network
