// Fits a small network to ln(latency / base). Single-threaded and seeded: the same rows give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "network.h"

namespace ns_dist {

struct TrainingRows {
  std::size_t width = 0;        // features a row
  std::vector<float> features;  // row after row
  std::vector<float> targets;   // ln(latency / base)
  std::vector<float> weights;
  std::size_t size() const { return targets.size(); }
};

struct TrainingOptions {
  std::vector<std::size_t> hidden = {64, 64, 64};
  std::size_t batch = 512;
  std::size_t steps = 20'000;
  double rate = 3e-3;           // Adam, decayed to zero by a cosine
  double decay = 1e-4;          // decoupled weight decay
  std::size_t jitter_from = 0;  // features from here on get Gaussian noise, in standard deviations of the feature
  double jitter = 0;
  double huber = 0.02;  // errors below are squared, above are absolute
  std::uint64_t seed = 1;
};

// `progress` is told the share done, about a hundred times.
Network train(const TrainingRows& rows, const TrainingOptions& options,
              const std::function<void(double)>& progress = {});

}  // namespace ns_dist
