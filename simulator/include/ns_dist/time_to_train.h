// How long does a training run take when parts of the cluster fail, and what does it cost?
//
// A run writes a checkpoint every now and then. A failure costs what was trained since the last one, and a restart.
// Failures come independently of each other, at a constant rate. With the mean time between failures M, the time D to
// write a checkpoint, the time R to restart and the time t of training between checkpoints, a run of work T takes
//   T / t x M e^(R/M) (e^((t + D)/M) - 1)      (Daly 2006, Future Generation Computer Systems 22)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ns_dist/report.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

// 419 unexpected interruptions in 54 days of training on 16,384 GPUs (Llama 3, arXiv 2407.21783, s.3.3.4 and table 5):
// 50,676 hours for one GPU with its share of the hosts and the network.
inline constexpr Seconds kGpuTimeBetweenFailures = 54.0 * 24 * 3600 * 16'384 / 419 * units::s;
// The storage of the same cluster: 2 TB/s sustained for its 16,384 GPUs (arXiv 2407.21783, s.3.3.1).
inline constexpr BytesPerSecond kStorageBandwidthPerGpu = 2.0 / 16'384 * units::TB / units::s;
// From a failure until the run trains again: to notice it, to replace a node, to start and to read the checkpoint. An
// assumption, since no source separates it.
inline constexpr Seconds kRestart = 600.0 * units::s;

// What a cluster loses. Nothing given: the defaults above.
struct Reliability {
  Seconds gpu_time_between_failures = kGpuTimeBetweenFailures;  // of one GPU; of N of them an Nth
  std::optional<Seconds> checkpoint;                            // to write one; training stands still
  std::optional<BytesPerSecond> storage_bandwidth;              // of the whole cluster
  Seconds restart = kRestart;
};

// The time of training between two checkpoints that loses least (Daly 2006): sqrt(2 D M) and two more terms of
// its series, less D; M where D is 2 M or more. Young's rule is the first term.
Seconds checkpoint_interval(Seconds checkpoint, Seconds time_between_failures);
// The share of the time that is training, from 0 to 1: the inverse of the formula above at T = 1.
double goodput(Seconds interval, Seconds checkpoint, Seconds restart, Seconds time_between_failures);

// What a checkpoint holds: the weights and the optimizer's state, each once (bytes of a parameter as in memory.h).
Bytes checkpoint_size(const Model& model, DType dtype, MomentType moments);

struct TrainingTime {
  double tokens = 0, steps = 0;
  Seconds without_failures;
  Seconds total, low, high;  // with failures; the interval is that of the step
  double goodput = 1;
  Seconds time_between_failures, checkpoint, interval;  // of the cluster; to write one; between two
  double gpu_hours = 0;                                 // of `total`
  std::optional<Joules> energy;  // of `total`, at most (energy.h); where the GPU's board power is known
};
// Errors: a number of tokens that is not above 0.
Result<TrainingTime> time_to_train(const Report& report, double tokens, const Reliability& reliability = {});

// Prices that a user writes down.
struct Prices {
  std::string currency;                                 // "USD"
  std::string date;                                     // on which they held; empty: not said
  std::map<std::string, double, std::less<>> gpu_hour;  // by GPU id: a GPU and its share of all else, for an hour
};
// {"currency": "USD", "date": "2026-11-22", "gpu_hour": {"h100-sxm-80gb": 2.5}}; "note" is for people, "date" is shown
// with every cost. Errors: other keys, prices that are not above 0; `where` names the file.
Result<Prices> read_prices(std::string_view json, const std::string& where);

}  // namespace ns_dist
