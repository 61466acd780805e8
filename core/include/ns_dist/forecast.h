// The forecast of one operator or collective.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/units.h"

namespace ns_dist {

enum class Bound { kCompute, kMemory, kLaunch, kBandwidth, kLatency };

std::string_view name_of(Bound bound);

// latency >= floor always; low <= latency <= high is a 90 % interval. `utilization` is floor / latency.
struct Forecast {
  Seconds latency, low, high;
  Seconds floor;  // what physics allows: roofline for kernels, bytes over bandwidth for collectives
  Bound bound = Bound::kCompute;
  double utilization = 1;
  std::int64_t waves = 0;        // kernels: waves of tiles over the SMs; 0 where it does not apply
  std::string_view tile = "";    // kernels: "128x256x64"; a string with static lifetime
  std::string_view method = "";  // how the number came about; a string with static lifetime
  bool extrapolated = false;     // the input lies outside what the method was fitted on
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
