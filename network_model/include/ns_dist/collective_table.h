// Tables of collectives: rows of `gpu|cluster, collective, ranks, gpus_per_node, bytes` in; `forecast_ms, low_ms,
// high_ms, algorithm, protocol, busbw_gbs, extrapolated` out. Where a row has `latency_ms`, it counts in an error
// table.
//
//   NS_TRY(const CsvTable table, CsvTable::read("rows.csv"));
//   NS_TRY(const CollectiveReader reader, CollectiveReader::of(table));
//   CollectiveForecaster forecaster(resolve);
//   for each row: reader.row(i) -> forecaster.forecast(row) -> to_fields(answer)
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ns_dist/collective.h"
#include "ns_dist/csv_table.h"
#include "ns_dist/error_figures.h"
#include "ns_dist/network_model.h"

namespace ns_dist {

struct CollectiveRow {
  std::string gpu, cluster;  // one of them may be empty
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::int64_t ranks = 2, gpus_per_node = 0;  // ranks of the group in each node; 0: node after node
  Bytes size;                                 // nccl-tests' size (Collective::size)
  bool integer = false;                       // column dtype: int8, uint8, ... uint64
  std::optional<double> latency_ms;
  std::string bad_latency{};  // latency_ms as it stands there, where it is no time
  double imbalance = 1;       // Collective::imbalance
  friend bool operator==(const CollectiveRow&, const CollectiveRow&) = default;
};

class CollectiveReader {
 public:
  // Needed columns, in any order: collective, ranks, bytes, and gpu or cluster (`system` is read as cluster). Optional
  // columns: gpus_per_node, dtype, latency_ms, imbalance (of all_to_all). Other columns are ignored. A row that names
  // neither gpu nor cluster is of the arguments `gpu` and `cluster`.
  // Keeps a reference to `table`. Errors: one of the needed columns is missing.
  static Result<CollectiveReader> of(const CsvTable& table, std::string gpu = "", std::string cluster = "");

  // Errors, with the row's line: those of CsvTable::fields, an unknown collective or dtype, a number
  // that is none, ranks below 2, bytes below 1 (of a barrier: below 0; none are 0), an imbalance below 1, above the
  // ranks, or of another collective than all_to_all.
  Result<CollectiveRow> row(std::size_t index) const;
  // A row that has a latency. Errors: those above, and a row that has none.
  Result<CollectiveRow> measured_row(std::size_t index) const;
  std::string where(std::size_t index) const;  // "rows.csv:12"

 private:
  enum Column {
    kGpu,
    kCluster,
    kSystem,
    kCollective,
    kRanks,
    kGpusPerNode,
    kBytes,
    kDtype,
    kLatency,
    kImbalance,
    kColumnCount
  };
  const CsvTable* table_ = nullptr;
  std::string gpu_, cluster_;  // of all rows
  std::array<std::optional<std::size_t>, kColumnCount> index_;
};

struct CollectiveAnswer {
  Forecast forecast;
  std::string_view algorithm, protocol;  // static lifetime
  double busbw_gbs = 0;                  // nccl-tests' bus bandwidth of the forecast, GB/s
  std::string gpu;                       // the id of the machine's
};

// Names of what to_fields writes, in its order.
std::span<const std::string_view> collective_answer_columns();
std::vector<std::string> to_fields(const CollectiveAnswer& answer);

// nccl-tests' bus bandwidth, GB/s: size over time, times 2 (n - 1) / n for all-reduce, (n - 1) / n for all-gather,
// reduce-scatter, all-to-all, gather and scatter, 1 for the others.
double bus_bandwidth_gbs(CollectiveKind kind, std::int64_t ranks, Bytes size, Seconds latency);

// The machine of a row, as Catalog::measured_machine finds it.
using ClusterResolver = std::function<Result<Cluster>(std::string_view gpu, std::string_view cluster)>;

// fit_network on rows, each of which has a latency; the cluster of a row is found once. Errors: those of the resolver
// and of fit_network, and a row without latency.
Result<NetworkCalibration> fit_rows(std::span<const CollectiveRow> rows, const ClusterResolver& resolve,
                                    const NetworkFitOptions& options = {});

// Forecasts rows; the model of each cluster is made once. Use one object for each thread.
class CollectiveForecaster {
 public:
  explicit CollectiveForecaster(ClusterResolver resolve, NetworkModelOptions options = {});
  // Errors: those of the resolver, or the group does not lie on the cluster.
  Result<CollectiveAnswer> forecast(const CollectiveRow& row);
  // The row's collective on its cluster; errors as above.
  Result<Collective> collective(const CollectiveRow& row);

 private:
  struct Ready {
    Cluster cluster;
    std::unique_ptr<NetworkCost> model;
  };
  Result<const Ready*> ready(const CollectiveRow& row);

  ClusterResolver resolve_;
  NetworkModelOptions options_;
  std::map<std::pair<std::string, std::string>, Ready> ready_;
};

// Errors of forecasts against measurements, by GPU (or cluster), collective and size class.
class CollectiveErrorTable {
 public:
  void add(const CollectiveRow& row, const CollectiveAnswer& answer);

  struct Line : ErrorFigures {
    std::string system, collective, sizes;  // sizes: "< 1 KiB", "1 KiB - 1 MiB", ">= 1 MiB"; "all" for totals
    double inside = 0;                      // share of measurements inside the 90 % interval
  };
  // Sorted by system, collective and size class, each with its totals; the last lines are those of all systems.
  std::vector<Line> lines() const;

 private:
  struct Errors {
    std::vector<double> all;
    std::size_t inside = 0;
  };
  std::map<std::tuple<std::string, std::string, int>, Errors> errors_;
};

}  // namespace ns_dist
