// The forecast of one operator or collective.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/names.h"
#include "ns_dist/units.h"

namespace ns_dist {

enum class Bound { kCompute, kMemory, kLaunch, kBandwidth, kLatency };
template <>
inline constexpr auto kEnumeratorNames<Bound> = std::to_array<std::string_view>({"compute", "memory", "launch",
                                                                                 "bandwidth", "latency"});

// Always floor <= latency and low <= latency <= high. low to high is a 90 % interval. `utilization` is floor / latency.
struct Forecast {
  Seconds latency, low, high;
  Seconds floor;  // lower bound: the roofline of a kernel; bytes over data-sheet bandwidth of a collective
  Bound bound = Bound::kCompute;
  double utilization = 1;
  std::int64_t waves = 0;        // kernels: waves of tiles over the SMs; 0 where it does not apply
  std::string_view tile = "";    // kernels: "256x128", "128 queries"; a string with static lifetime
  std::string_view method = "";  // source of the number, as `explain` prints it; a string with static lifetime
  bool extrapolated = false;     // the input is outside the range on which the method was fitted
  Watts power;                   // kernels: mean board power while it runs again and again; zero where unknown
};

// One step of an explanation: "waves" = "5.8", "tiles 768 over 132 SMs".
struct ExplanationStep {
  std::string name, value, note;
};

struct Explanation {
  std::string subject;
  std::vector<ExplanationStep> steps;
  Forecast forecast;
};

}  // namespace ns_dist
