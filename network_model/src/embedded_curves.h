// The curves of network_model/weights/*.json, as tables that the build generates.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ns_dist {

struct EmbeddedStep {
  double microseconds = 0, height = 0;
};

// CalibrationCurve (network_fit.h); members in the order in which to_json writes the keys.
struct EmbeddedCurve {
  const char *cluster = "", *gpu = "", *fabric = "", *architecture = "";
  double link_gb_per_s = 0;
  const char* collective = "";
  std::int64_t ranks = 2, ranks_per_node = 2;
  double deviation = 0, deviation_short = 0;
  bool in_switch = false, integer = false;
  EmbeddedStep steps[12];  // those behind the last have no height
  double log_ratio[23];
};

// In the order of the files' names, and in each file's own.
std::span<const EmbeddedCurve> embedded_curves();

// What was measured, of all files.
std::string_view embedded_sources();

}  // namespace ns_dist
