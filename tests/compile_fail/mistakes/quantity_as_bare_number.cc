// Expect: cannot convert '.*' to 'const double' in initialization|no viable conversion from '.*' to 'const double'
#include "ns_dist/units.h"

using namespace ns_dist::units;

#ifdef NS_DIST_MISTAKE
const double micros = 80 * GiB / (3.35 * TB / s);
#else
const double micros = 80 * GiB / (3.35 * TB / s) / us;
#endif
