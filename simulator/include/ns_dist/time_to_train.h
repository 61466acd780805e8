// How long does a training run take when parts of the cluster fail, and what does it cost?
//
// A run writes a checkpoint every now and then. A failure costs what was trained since the last one, and a restart.
// Failures come independently of each other, at a constant rate. With the mean time between failures M, the time D that
// training stands still for a checkpoint, the time R to restart and the time t of training between checkpoints, a run
// of work T takes
//   T / t x M e^(R/M) (e^((t + D)/M) - 1)      (Daly 2006, Future Generation Computer Systems 22)
//
// An asynchronous checkpoint is copied into the hosts' memory, for which training stands still, and then written beside
// training in a time W. It saves nothing before it is written: a failure costs, on average, W of training more. So D is
// the time of the copy, and R is longer by W.
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

// 419 unexpected interruptions in 54 days of training on 16,384 GPUs in 2,048 nodes (Llama 3, arXiv 2407.21783, s.3.3.4
// and table 5): 50,677 hours for one GPU with its share of the hosts and the network. GPUs caused 246 of them (58.7 %),
// switches and cables 35; 138 remain for hosts, their network cards, storage and software.
inline constexpr Seconds kDaysOfSource = 54.0 * 24 * 3600 * units::s;
inline constexpr Seconds kGpuTimeBetweenFailures = 16'384.0 / 419 * kDaysOfSource;
inline constexpr Seconds kGpuAloneTimeBetweenFailures = 16'384.0 / 246 * kDaysOfSource;
inline constexpr Seconds kNodeTimeBetweenFailures = 2'048.0 / 138 * kDaysOfSource;
inline constexpr Seconds kNetworkTimeBetweenFailures = 16'384.0 / 35 * kDaysOfSource;  // what serves one GPU
// The storage of the same cluster: 2 TB/s sustained for its 16,384 GPUs (arXiv 2407.21783, s.3.3.1).
inline constexpr BytesPerSecond kStorageBandwidthPerGpu = 2.0 / 16'384 * units::TB / units::s;
// From a failure until the run trains again: to notice it, to replace a node, to start and to read the checkpoint. An
// assumption, since no source separates it.
inline constexpr Seconds kRestart = 600.0 * units::s;

// What a cluster loses. Nothing given: the defaults above.
struct Reliability {
  // Of one GPU with its share of all else; of N of them an Nth. Given, the next three do not count.
  std::optional<Seconds> gpu_time_between_failures;
  Seconds gpu_alone = kGpuAloneTimeBetweenFailures;  // of one GPU
  Seconds node = kNodeTimeBetweenFailures;           // of one host without its GPUs
  Seconds network = kNetworkTimeBetweenFailures;     // of the switches and cables that serve one GPU; none in one node
  std::optional<Seconds> checkpoint;                 // to write one
  bool asynchronous = false;                         // it is written beside training; otherwise training stands still
  std::optional<BytesPerSecond> storage_bandwidth;   // of the whole cluster
  Seconds restart = kRestart;
  // How long a node that failed is away. Not given: it is replaced within `restart`.
  std::optional<Seconds> repair;
  // Nodes that wait to replace others. Not given, with `repair`: as many as are enough kWhole of the time.
  std::optional<std::int64_t> spare_nodes;
};
inline constexpr double kWhole = 0.99;
inline constexpr std::int64_t kMostSpares = 1'000'000;

// GPUs of a host in the source. Racks whose GPUs are one node have several hosts.
inline constexpr std::int64_t kGpusOfAHost = 8;

// The mean time between failures of a cluster. `network`: its nodes are joined by one.
Seconds time_between_failures(const Reliability& reliability, double gpus, double hosts, bool network);

// The share of the time that a training has all its nodes, from 0 to 1. Each failure takes a node away for `repair`; a
// spare one replaces it. When more nodes are away than there are spares, training stops, and no other node fails until
// one is back: a loss system with spares + 1 servers (Erlang 1917; for any distribution of repair times). `spares`: at
// most kMostSpares.
double whole_share(std::int64_t spares, Seconds repair, Seconds time_between_failures);

// The step where GPUs differ in speed, with a standard deviation of `spread` (0.01: 1 %): all wait for the slowest. It
// is as slow as the slowest of so many is on average, and lies in that one of the first, the middle and the last stage
// where it costs most. `spread` replaces the deviation of training_clock.h, which slows products alone. Errors: a
// spread that is not from 0 to 0.1; those of step_time.
Result<Seconds> step_of_unequal_gpus(const Scenario& scenario, double spread);

// The time of training between two checkpoints that loses least (Daly 2006): sqrt(2 D M) and two more terms of
// its series, less D; M where D is 2 M or more. Young's rule is the first term.
Seconds checkpoint_interval(Seconds checkpoint, Seconds time_between_failures);
// The share of the time that is training, from 0 to 1: the inverse of the formula above at T = 1.
double goodput(Seconds interval, Seconds checkpoint, Seconds restart, Seconds time_between_failures);

// What a checkpoint holds, of all of the model or of LoRA's adapters: weights, and optimizer states of those that are
// trained, each once (bytes of a parameter as in memory.h). `predictions`: layers for multi-token prediction are
// trained, too.
Bytes checkpoint_size(const Model& model, DType dtype, const ParallelPlan& plan, bool predictions = false);

struct TrainingTime {
  double tokens = 0, steps = 0;
  Seconds step;  // with unequal GPUs
  Seconds without_failures;
  Seconds total, low, high;  // with failures; the interval is that of the step
  double goodput = 1;
  Seconds time_between_failures, checkpoint;  // of the cluster; to write one
  Seconds interval;                           // between two checkpoints: whole steps, at least one
  Seconds standstill;                         // of training, for one checkpoint
  std::int64_t spare_nodes = 0;
  double whole = 1;              // share of the time with enough nodes; part of the goodput
  double gpu_hours = 0;          // of `total`, spare nodes included
  std::optional<Joules> energy;  // of `total`, at most (energy.h), spare nodes included; where board power is known
};
// A training that takes longer fails too often to end: its `total`, and all that follows from it, is infinite.
inline constexpr Seconds kNever = 1e6 * 365 * 24 * 3600 * units::s;
// `step`: that of step_of_unequal_gpus; otherwise the report's. Errors: a number of tokens that is not above 0.
Result<TrainingTime> time_to_train(const Report& report, double tokens, const Reliability& reliability = {},
                                   std::optional<Seconds> step = std::nullopt);

// Prices that a user writes down.
struct Prices {
  std::string currency;                                 // "USD"
  std::string date;                                     // on which they held; empty: not said
  std::map<std::string, double, std::less<>> gpu_hour;  // by GPU id: a GPU and its share of all else, for an hour
  // Prices of GPUs that the catalog does not know: their names, and what to say where the user's own GPU is no such.
  std::map<std::string, std::string, std::less<>> unknown;
};
// {"currency": "USD", "date": "2026-11-22", "gpu_hour": {"h100-sxm-80gb": 2.5}}; "note" is for people, "date" is shown
// with every cost, and GPUs may have any of their names. Errors: other keys, a date that is none, prices that are not
// above 0, two prices of one GPU; `where` names the file.
Result<Prices> read_prices(std::string_view json, const std::string& where);

}  // namespace ns_dist
