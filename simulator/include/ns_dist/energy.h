// How much electricity does training take, at most?
//
// Each GPU counts with its board power all the time, though it takes less while it waits, and the sum is multiplied by
// the building's power usage effectiveness. So this is an upper bound of what the GPUs take. Hosts, switches and
// storage are in it only as far as the effectiveness holds them: no source gives their power for each cluster.
#pragma once

#include "ns_dist/scenario.h"
#include "ns_dist/units.h"

namespace ns_dist {

inline constexpr Joules kKilowattHour = 3.6e6 * units::J;

// Of all `gpus` of the scenario's machine. 0 where the GPU's board power is not known.
Watts most_power(const Scenario& scenario, double gpus);

}  // namespace ns_dist
