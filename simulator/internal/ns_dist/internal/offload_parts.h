#pragma once

namespace ns_dist {

// Parts of the optimizer that advice moves to the host (plan/offload_optimizer), the least first.
inline constexpr double kOffloadParts[] = {0.25, 0.5, 0.75, 1.0};

}  // namespace ns_dist
