// Expect: conversion from 'Quantity<.*>' to non-scalar type 'Quantity<.*>'|no viable conversion from 'Quantity
#include "ns_dist/units.h"

using namespace ns_dist::units;

// Time is data over bandwidth, not bandwidth over data.
#ifdef NS_DIST_MISTAKE
const ns_dist::Seconds load = (3.35 * TB / s) / (80 * GiB);
#else
const ns_dist::Seconds load = (80 * GiB) / (3.35 * TB / s);
#endif
