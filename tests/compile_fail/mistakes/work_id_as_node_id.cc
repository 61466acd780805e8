// Expect: cannot convert 'ns_dist::WorkId' to|cannot initialize a variable of type 'const ns_dist::NodeId'
#include "ns_dist/execution_graph.h"

#ifdef NS_DIST_MISTAKE
const ns_dist::NodeId node = ns_dist::WorkId{3};
#else
const ns_dist::NodeId node = ns_dist::NodeId{3};
#endif
