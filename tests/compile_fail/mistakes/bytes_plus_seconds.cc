// Expect: no match for 'operator\+'|invalid operands to binary expression
#include "ns_dist/units.h"

using namespace ns_dist::units;

#ifdef NS_DIST_MISTAKE
const auto sum = 1 * B + 1 * s;
#else
const auto sum = 1 * B + 1 * GiB;
#endif
