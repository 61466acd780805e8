// A correction of the collective forecasts for one cluster, from measurements on it.
//
//   NS_TRY(const CollectiveCalibration calibrated, calibrate_collectives(cluster, rows, "mine.csv"));
//   std::ofstream("my-cluster.json") << to_json(calibrated.curves);
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/collective_table.h"
#include "ns_dist/network_fit.h"
#include "ns_dist/result.h"

namespace ns_dist {

// A measurement on the cluster, whose latency_ms is there, and where it stands ("mine.csv:2").
struct MeasuredCollective {
  CollectiveRow row;
  std::string place;
};

struct CollectiveCalibration {
  NetworkCalibration curves;  // what they add to the compiled-in curves
  std::size_t rows = 0;       // that are used; the curves' `left_out` count among them
  // Mean |forecast / measured - 1| of these rows: without a correction, and each with a correction from the other
  // collectives (leave-one-out; in 100 parts where there are more than 100 collectives, in fewer where there are more
  // than 10,000 rows).
  double before = 0, after = 0;
  std::vector<std::string> notes;  // sentences about rows that are left out or doubtful
};

// Of a collective on some ranks, fewer sizes make no correction. Source: four GPUs' NCCL rows from 1 MiB on, forecast
// as another GPU, are 3 to 5 % off; with a correction from one size of each collective 8 to 31 %, two 5 to 6 %, three 3
// to 6 %, eight 2 to 3 %. (A machine that is 41 % off: 28, 15, 14 and 11 %.)
inline constexpr std::size_t kFewestSizes = 3;

// Rows that are far from what the others say are left out, as calibrate_kernels does. Errors: those of fit_rows; fewer
// than kFewestSizes of every collective and group; a middle row that takes more than 20 times as long as forecast, or
// as short. `where` names the table.
Result<CollectiveCalibration> calibrate_collectives(const Cluster& cluster, std::vector<MeasuredCollective> rows,
                                                    const std::string& where);

}  // namespace ns_dist
