#include "ns_dist/energy.h"

namespace ns_dist {

Watts most_power(const Scenario& scenario, double gpus) {
  return gpus * scenario.facility.pue.value * scenario.cluster.gpu.board_power;
}

}  // namespace ns_dist
