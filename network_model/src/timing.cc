#include "timing.h"

namespace ns_dist::network {

bool is_allowed(const Call& call, const Allowed& allowed, std::size_t algorithm, Protocol protocol) {
  const bool torus = call.torus();
  if (torus && !algorithms()[algorithm].on_torus) return false;
  return (allowed.algorithm ? *allowed.algorithm == algorithm : torus || algorithms()[algorithm].automatic) &&
         (!allowed.protocol || *allowed.protocol == protocol) && algorithms()[algorithm].applies(call, protocol);
}

Choice choose(const Call& call, const Allowed& allowed, Transport transport) {
  const std::span<const Algorithm> table = algorithms();
  Choice best;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].transport != transport) continue;
    for (const Protocol protocol : kProtocols) {
      if (!is_allowed(call, allowed, i, protocol)) continue;
      const Cost cost = table[i].cost(call, protocol);
      if (!best.algorithm || cost.time() < best.cost.time()) best = {&table[i], protocol, cost};
    }
  }
  return best;
}

}  // namespace ns_dist::network
