// Expect: conversion from 'double' to non-scalar type .*BytesPerSecond|no viable conversion from 'double'
#include "ns_dist/units.h"

using namespace ns_dist::units;

#ifdef NS_DIST_MISTAKE
const ns_dist::BytesPerSecond bandwidth = 3.35e12;
#else
const ns_dist::BytesPerSecond bandwidth = 3.35 * TB / s;
#endif
