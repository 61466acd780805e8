// Expect: no match for 'operator\+'|invalid operands to binary expression
#include "ns_dist/execution_graph.h"

#ifdef NS_DIST_MISTAKE
const auto next = ns_dist::NodeId{3} + 1;
#else
const auto next = ns_dist::NodeId{static_cast<std::uint32_t>(ns_dist::NodeId{3}) + 1};
#endif
