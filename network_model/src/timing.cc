#include "timing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace ns_dist::network {

bool is_allowed(const Call& call, const Allowed& allowed, std::size_t algorithm, Protocol protocol) {
  const Algorithm& entry = *algorithms()[algorithm];
  const bool torus = call.torus();
  if (torus && !entry.on_torus) return false;
  return (allowed.algorithm ? *allowed.algorithm == algorithm : torus || entry.automatic) &&
         (!allowed.protocol || *allowed.protocol == protocol) && entry.applies(call, protocol);
}

double mean_spread(std::span<const Candidate> candidates) {
  double least = std::numeric_limits<double>::infinity(), sum = 0, weights = 0;
  for (const Candidate& each : candidates) least = std::min(least, each.time);
  for (const Candidate& each : candidates) {
    if (each.time >= 2 * least) continue;
    const double weight = 1 - std::log2(each.time / least);
    sum += weight * each.spread;
    weights += weight;
  }
  return weights > 0 ? sum / weights : 0;
}

Choice choose(const Call& call, const Allowed& allowed, Transport transport) {
  const std::span<const Algorithm* const> table = algorithms();
  Choice best;
  // NCCL's constants against measurements: small messages are up to 67 % off, long ones 10 to 25 %.
  constexpr double kLatencySpread = 0.50, kTransferSpread = 0.20;
  std::array<Candidate, kMostAlgorithms * kProtocolCount> candidates;
  std::size_t count = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i]->transport != transport) continue;
    for (const Protocol protocol : kProtocols) {
      if (!is_allowed(call, allowed, i, protocol)) continue;
      const Cost cost = table[i]->cost(call, protocol);
      const double spread = kLatencySpread * cost.latency + kTransferSpread * cost.transfer;
      candidates[count++] = {cost.time(), spread / cost.time()};
      if (!best.algorithm || cost.time() < best.cost.time()) best = {table[i], protocol, cost};
    }
  }
  best.spread = mean_spread(std::span(candidates).first(count));
  return best;
}

}  // namespace ns_dist::network
