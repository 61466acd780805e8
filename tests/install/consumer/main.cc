#include <cstdio>

#include "ns_dist/units.h"
#include "ns_dist/version.h"

int main() {
  const auto bandwidth = ns_dist::parse_quantity<ns_dist::BytesPerSecond>("400 Gbit/s");
  if (!bandwidth || *bandwidth != 50 * ns_dist::units::GB / ns_dist::units::s) return 1;
  const std::string version(ns_dist::version());
  std::puts(version.c_str());
}
