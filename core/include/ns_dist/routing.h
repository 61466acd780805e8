// How many places a token of a mixture of experts goes to.
#pragma once

#include <cstdint>

namespace ns_dist {

// A token goes to `top_k` of `experts`, which lie in `top_groups` of `groups` of equally many experts: node-limited
// routing (DeepSeek-V3, arXiv 2412.19437, s.2.1.2; DeepSeek-V2, arXiv 2405.04434, s.2.2.2, "device-limited"). With as
// many top groups as groups there is no limit. No experts: nothing is routed.
struct Routing {
  std::int64_t experts = 0, top_k = 0;
  std::int64_t groups = 1, top_groups = 1;
  friend bool operator==(const Routing&, const Routing&) = default;
};

// Whether groups are equally large, and the top groups hold a token's experts.
bool is_possible(const Routing& routing);

// Mean number of parts that a token goes to if neighboring experts are divided over `parts` (nodes, ranks), from 1 to
// the smallest of parts and top_k. Routing is uniform: all choices of groups, and of experts in them, are equally
// likely. The routing must be possible. In parts that are the groups (e experts each) it is M (1 - C(Me - e, k) / C(Me,
// k)).
double parts_reached(const Routing& routing, std::int64_t parts);

}  // namespace ns_dist
