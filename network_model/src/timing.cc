#include "timing.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ns_dist::network {

bool is_allowed(const Call& call, const Allowed& allowed, std::size_t algorithm, Protocol protocol) {
  const bool torus = call.torus();
  if (torus && !algorithms()[algorithm].on_torus) return false;
  return (allowed.algorithm ? *allowed.algorithm == algorithm : torus || algorithms()[algorithm].automatic) &&
         (!allowed.protocol || *allowed.protocol == protocol) && algorithms()[algorithm].applies(call, protocol);
}

double candidate_weight(double seconds, double least) {
  return seconds < 2 * least ? 1 - std::log2(seconds / least) : 0;
}

Choice choose(const Call& call, const Allowed& allowed, Transport transport) {
  const std::span<const Algorithm> table = algorithms();
  Choice best;
  std::array<Cost, kAlgorithmCount * kProtocolCount> candidates;
  std::size_t count = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].transport != transport) continue;
    for (const Protocol protocol : kProtocols) {
      if (!is_allowed(call, allowed, i, protocol)) continue;
      const Cost cost = table[i].cost(call, protocol);
      candidates[count++] = cost;
      if (!best.algorithm || cost.time() < best.cost.time()) best = {&table[i], protocol, cost};
    }
  }
  // NCCL's constants against measurements: small messages are up to 67 % off, long ones 10 to 25 %.
  constexpr double kLatencySpread = 0.50, kTransferSpread = 0.20;
  double weights = 0;
  for (const Cost& cost : std::span(candidates).first(count)) {
    const double weight = candidate_weight(cost.time(), best.cost.time());
    if (weight == 0) continue;
    best.spread += weight * (kLatencySpread * cost.latency + kTransferSpread * cost.transfer) / cost.time();
    weights += weight;
  }
  if (weights > 0) best.spread /= weights;
  return best;
}

}  // namespace ns_dist::network
