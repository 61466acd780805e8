#include "ns_dist/collective_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "csv_rows.h"
#include "error_table.h"
#include "ns_dist/astra_formulas.h"
#include "ns_dist/collective_table.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/kernel_table.h"

namespace ns_dist {
namespace {

using Rows = std::vector<CollectiveRow>;

const std::string& system_of(const CollectiveRow& row) { return row.cluster.empty() ? row.gpu : row.cluster; }

struct Measured {
  Rows rows;
  std::vector<Error> mistakes;
};

Result<Measured> read_rows(const std::filesystem::path& path) {
  NS_TRY(const CsvTable table, CsvTable::read(path));
  NS_TRY(const CollectiveReader reader, CollectiveReader::of(table));
  Measured measured;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    auto row = reader.measured_row(i);
    if (row) {
      measured.rows.push_back(*std::move(row));
    } else {
      measured.mistakes.push_back(std::move(row.error()));
    }
  }
  return measured;
}

Result<NetworkCalibration> fit(const Rows& rows, const Catalog& catalog, const NetworkFitOptions& options) {
  return fit_rows(
      rows, [&](auto gpu, auto system) { return catalog.measured_machine(gpu, system); }, options);
}

// A number from 0 to 4 for every machine, collective, group and size: the fifth that it is left out with. The smallest
// and the largest sizes are in none (-1): leaving them out would be extrapolation.
int fifth_of(const CollectiveRow& row) {
  const double octave = std::log2(row.size / units::B);
  if (octave < 9.5 || octave > 28.5) return -1;
  std::uint32_t hash = 2166136261u;
  const auto mix = [&hash](std::uint32_t value) { hash = (hash ^ value) * 16777619u; };
  for (const char c : row.gpu) mix(static_cast<unsigned char>(c));
  mix(static_cast<std::uint32_t>(row.kind));
  mix(static_cast<std::uint32_t>(row.ranks));
  mix(static_cast<std::uint32_t>(row.gpus_per_node));
  mix(static_cast<std::uint32_t>(row.size / units::B));
  hash ^= hash >> 15;
  return static_cast<int>(hash % 5);
}

enum class Sizes { kSmall, kLarge, kTiny };
Sizes sizes_of(const CollectiveRow& row) {
  return row.size >= units::MiB ? Sizes::kLarge : row.size >= units::KiB ? Sizes::kSmall : Sizes::kTiny;
}

constexpr const char* kConstant = "0.72 of the data sheet";
constexpr const char* kPublished = "NCCL's constants";

// Bytes over a constant utilization of the data sheet, as NeuSight has it (Lee et al. 2025, s.5).
std::optional<double> constant_ms(const CollectiveRow& row, const Cluster& cluster) {
  const Gpu& gpu = cluster.gpu;
  const bool across = row.gpus_per_node > 0 && row.gpus_per_node < row.ranks;
  if (across && cluster.levels.size() < 2) return std::nullopt;
  const BytesPerSecond inside = gpu.scale_up ? gpu.scale_up->bandwidth : gpu.pcie_bandwidth;
  const BytesPerSecond peak =
      across ? static_cast<double>(row.gpus_per_node) * cluster.levels[1].bandwidth_per_gpu() : inside;
  const double bus = bus_bandwidth_gbs(row.kind, row.ranks, row.size, 1 * units::s);
  return bus * units::GB / (0.72 * peak) / units::ms;
}

// Forecasts of rows beside what was measured and what the baselines forecast.
class Judge {
 public:
  Judge(const Catalog& catalog, NetworkModelOptions options)
      : catalog_(catalog),
        ours_([this](auto gpu, auto system) { return catalog_.measured_machine(gpu, system); }, std::move(options)),
        published_([this](auto gpu, auto system) { return catalog_.measured_machine(gpu, system); },
                   {.calibrated = false}) {}

  Result<Judged> judge(const CollectiveRow& row) {
    NS_TRY(const CollectiveAnswer answer, ours_.forecast(row));
    Judged judged;
    judged.label = fmt::format("{}, {} of {} between {} ranks{}, {}", system_of(row), name_of(row.kind),
                               to_text(row.size), row.ranks, row.integer ? " (integers)" : "", answer.forecast.method);
    judged.measured = *row.latency_ms;
    judged.forecast = answer.forecast.latency / units::ms;
    judged.low = answer.forecast.low / units::ms;
    judged.high = answer.forecast.high / units::ms;
    NS_TRY(const CollectiveAnswer published, published_.forecast(row));
    judged.others[kPublished] = published.forecast.latency / units::ms;
    NS_TRY(const Cluster cluster, catalog_.measured_machine(row.gpu, row.cluster));
    if (const auto constant = constant_ms(row, cluster)) judged.others[kConstant] = *constant;
    return judged;
  }

 private:
  const Catalog& catalog_;
  CollectiveForecaster ours_, published_;
};

NetworkModelOptions with(NetworkCalibration calibration) {
  NetworkModelOptions options;
  options.calibration = std::make_shared<const NetworkCalibration>(std::move(calibration));
  return options;
}

class Suite {
 public:
  Suite(const std::filesystem::path& data, const Catalog& catalog, const std::function<void(double)>& progress)
      : folder_(data / "collectives"), catalog_(catalog), progress_(progress) {}

  Result<SuiteReport> run() {
    NS_TRY_VOID(one_node());
    NS_TRY_VOID(across_nodes());
    NS_TRY_VOID(astra());
    if (!any_) {
      return fail({ErrorCode::kNotFound, "no measured collectives", folder_.string(),
                   "nccl.csv.gz, dgx.csv.gz or astra_sim_analytical.csv.gz in it"});
    }
    suite_.rows += suite_.mistakes.size();
    return std::move(suite_);
  }

 private:
  void tell(double share) const {
    if (progress_) progress_(share);
  }

  std::optional<std::filesystem::path> file(std::string_view name) {
    const std::filesystem::path path = table_path(folder_, name);
    if (path.empty()) return std::nullopt;
    any_ = true;
    return path;
  }

  // Judges `rows` with a fit on `fitted`, into one table for sizes from 1 MiB and one for those from 1 KiB.
  struct Tables {
    ErrorTable large, small;
  };
  static Tables tables(const std::string& title) {
    const std::vector<std::string> others = {kPublished, kConstant};
    return {ErrorTable(title + ", 1 MiB and more", others), ErrorTable(title + ", 1 KiB to 1 MiB", others)};
  }
  void judge(const Rows& rows, NetworkModelOptions options, Tables& into,
             const std::function<std::string(const CollectiveRow&)>& group) {
    Judge judge(catalog_, std::move(options));
    for (const CollectiveRow& row : rows) {
      auto judged = judge.judge(row);
      if (!judged) {
        suite_.mistakes.push_back(std::move(judged.error()));
        continue;
      }
      if (sizes_of(row) == Sizes::kLarge)
        into.large.add(group(row), *std::move(judged));
      else if (sizes_of(row) == Sizes::kSmall)
        into.small.add(group(row), *std::move(judged));
    }
  }
  void print(const Tables& tables, const std::string& note, std::size_t worst) {
    for (const ErrorTable* table : {&tables.large, &tables.small}) table->add_to(suite_, note, worst);
  }

  // Every fifth of the sizes of every machine, collective and group left out in turn: a forecast of each row by a fit
  // that has not seen its size.
  Result<void> unseen_sizes(const Rows& rows, bool for_one_cluster, Tables& into, double from, double to) {
    for (int fifth = 0; fifth < 5; ++fifth) {
      Rows fitted, tested;
      for (const CollectiveRow& row : rows) (fifth_of(row) == fifth ? tested : fitted).push_back(row);
      if (fitted.empty() || tested.empty()) continue;
      NS_TRY(NetworkCalibration calibration, fit(fitted, catalog_, {.for_one_cluster = for_one_cluster}));
      if (for_one_cluster) std::erase_if(tested, [](const auto& row) { return row.gpus_per_node == row.ranks; });
      judge(tested, with(std::move(calibration)), into, system_of);
      tell(from + (to - from) * (fifth + 1) / 5);
    }
    return {};
  }

  Result<void> one_node() {
    const auto path = file("nccl");
    if (!path) return {};
    NS_TRY(Measured measured, read_rows(*path));
    suite_.mistakes.insert(suite_.mistakes.end(), measured.mistakes.begin(), measured.mistakes.end());
    const Rows& rows = measured.rows;
    suite_.rows += rows.size();

    std::set<std::string> gpus;
    for (const CollectiveRow& row : rows) gpus.insert(row.gpu);
    Tables left_out = tables("One node, the GPU left out of the fit");
    double done = 0;
    for (const std::string& gpu : gpus) {
      Rows fitted, tested;
      for (const CollectiveRow& row : rows) (row.gpu == gpu ? tested : fitted).push_back(row);
      if (fitted.empty()) continue;
      NS_TRY(NetworkCalibration calibration, fit(fitted, catalog_, {}));
      judge(tested, with(std::move(calibration)), left_out, system_of);
      tell(0.3 * ++done / static_cast<double>(gpus.size()));
    }
    print(left_out,
          "Each GPU in turn, forecast from its data sheet and what the others taught. One machine (L40S) has "
          "no NVLink and is staged through its host, which no other machine here is.",
          5);

    Tables sizes = tables("One node, sizes left out of the fit");
    NS_TRY_VOID(unseen_sizes(rows, false, sizes, 0.3, 0.6));
    print(sizes, "A fifth of the sizes of every machine, collective and group at a time.", 5);

    Tables shipped = tables("One node, as shipped");
    judge(rows, {}, shipped, system_of);
    print(shipped, "What is compiled in was fitted on rows like these: in sample.", 0);
    return {};
  }

  Result<void> across_nodes() {
    const auto path = file("dgx");
    if (!path) return {};
    NS_TRY(Measured measured, read_rows(*path));
    suite_.mistakes.insert(suite_.mistakes.end(), measured.mistakes.begin(), measured.mistakes.end());
    suite_.rows += measured.rows.size();
    const auto group = [](const CollectiveRow& row) {
      return fmt::format("{}, {}, {} ranks in nodes of {}", system_of(row), name_of(row.kind), row.ranks,
                         row.gpus_per_node);
    };
    Tables sizes = tables("Across two nodes, sizes left out of the fit");
    NS_TRY_VOID(unseen_sizes(measured.rows, true, sizes, 0.6, 0.9));
    print(sizes, "", 5);
    Rows across = measured.rows;
    std::erase_if(across, [](const auto& row) { return row.gpus_per_node == row.ranks; });
    Tables shipped = tables("Across two nodes, as shipped");
    judge(across, {}, shipped, group);
    print(shipped, "Curves of these very clusters, in sample.", 0);
    return {};
  }

  Result<void> astra() {
    const auto path = file("astra_sim_analytical");
    if (!path) return {};
    NS_TRY(CsvRows rows,
           CsvRows::open(*path, {"topology_per_dim", "npus_per_dim", "bandwidth_GiBps_per_dim", "latency_ns_per_dim",
                                 "algorithm_per_dim", "preferred_dataset_splits", "active_chunks_per_dimension",
                                 "endpoint_delay_ns", "local_mem_bw_GBps", "collective_optimization", "backend",
                                 "collective", "comm_size_attr_bytes", "formula_ns", "finish_ns_max"}));
    std::int64_t exact = 0, within = 0, off = 0, without = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows.go_to(i);
      if (rows.text("formula_ns").empty()) {
        ++without;
        continue;
      }
      ++suite_.rows;
      AstraSystem system;
      const auto topologies = split_at(rows.text("topology_per_dim"), "x"),
                 npus = split_at(rows.text("npus_per_dim"), "x"),
                 bandwidths = split_at(rows.text("bandwidth_GiBps_per_dim"), "x"),
                 latencies = split_at(rows.text("latency_ns_per_dim"), "x"),
                 algorithms = split_at(rows.text("algorithm_per_dim"), "x");
      bool readable = npus.size() == topologies.size() && bandwidths.size() == topologies.size() &&
                      latencies.size() == topologies.size() && algorithms.size() == topologies.size();
      for (std::size_t d = 0; readable && d < topologies.size(); ++d) {
        const AstraTopology topology = topologies[d] == "Ring"     ? AstraTopology::kRing
                                       : topologies[d] == "Switch" ? AstraTopology::kSwitch
                                                                   : AstraTopology::kFullyConnected;
        const auto count = number_from<double>(npus[d]), bandwidth = number_from<double>(bandwidths[d]),
                   latency = number_from<double>(latencies[d]);
        readable = count && bandwidth && latency && *count >= 1 && *count < 1e9;
        if (!readable) break;
        system.dimensions.push_back(
            {topology, static_cast<std::int64_t>(*count), *bandwidth, *latency, std::string(algorithms[d])});
      }
      system.splits = rows.whole("preferred_dataset_splits", 1);
      system.active_chunks = rows.whole("active_chunks_per_dimension", 1);
      system.endpoint_delay_ns = rows.whole("endpoint_delay_ns", 10);
      system.local_memory_gbs = rows.number("local_mem_bw_GBps").value_or(0);
      system.local_bandwidth_aware = rows.text("collective_optimization") == "localBWAware";
      system.congestion_aware = rows.text("backend") == "aware";
      const std::string_view name = rows.text("collective");
      const CollectiveKind kind = name == "all-reduce"   ? CollectiveKind::kAllReduce
                                  : name == "all-gather" ? CollectiveKind::kAllGather
                                  : name == "all-to-all" ? CollectiveKind::kAllToAll
                                                         : CollectiveKind::kReduceScatter;
      const std::int64_t size = rows.whole("comm_size_attr_bytes", 0), finish = rows.whole("finish_ns_max", 0);
      if (auto mistake = rows.mistake()) {
        suite_.mistakes.push_back(*std::move(mistake));
        continue;
      }
      if (!readable) {
        suite_.mistakes.push_back({ErrorCode::kInvalidInput, "dimensions that cannot be read", rows.where(),
                                   "as many npus, bandwidths, latencies and algorithms as topologies"});
        continue;
      }
      const auto ours = astra_time_ns(system, kind, size);
      const std::int64_t difference = ours ? std::abs(*ours - finish) : std::int64_t{1} << 40;
      ++(difference == 0 ? exact : difference == 1 ? within : off);
    }
    suite_.tables.push_back({"ASTRA-Sim's analytical backends, --network-model astra",
                             "",
                             {{"closed_form", "runs with a closed form", Figure::kNumber},
                              {"exact", "exact to the nanosecond", Figure::kNumber},
                              {"off_by_1_ns", "off by 1 ns", Figure::kNumber},
                              {"off_by_more", "off by more", Figure::kNumber},
                              {"no_closed_form", "without a closed form", Figure::kNumber}},
                             {{exact + within + off, exact, within, off, without}}});
    tell(1);
    return {};
  }

  std::filesystem::path folder_;
  const Catalog& catalog_;
  const std::function<void(double)>& progress_;
  SuiteReport suite_{.title = "Collectives",
                     .note = std::string(kErrorTerms) +
                             " Beside ours: NCCL's published constants alone, and a constant utilization (0.72, "
                             "NeuSight's). ASTRA-Sim's authors report about 17 % against NCCL on HGX H100."};
  bool any_ = false;
};

}  // namespace

Result<SuiteReport> check_collectives(const std::filesystem::path& data, const Catalog& catalog,
                                      const std::function<void(double)>& progress) {
  return Suite(data, catalog, progress).run();
}

Result<NetworkCalibration> learn_collectives(const std::filesystem::path& data, const CalibrationRecipe& recipe,
                                             const Catalog& catalog) {
  const std::filesystem::path path = table_path(data / "collectives", recipe.table);
  if (path.empty()) {
    return fail({ErrorCode::kNotFound, "no measured collectives", (data / "collectives").string(),
                 fmt::format("{}.csv or {}.csv.gz in it", recipe.table, recipe.table)});
  }
  NS_TRY(const Measured measured, read_rows(path));
  if (!measured.mistakes.empty()) return fail(measured.mistakes.front());
  auto fitted =
      fit(measured.rows, catalog, {.source = std::string(recipe.source), .for_one_cluster = recipe.for_one_cluster});
  if (!fitted) {
    std::string& where = fitted.error().where;
    where = path.string() + (where.empty() ? "" : ", " + where);
  }
  return fitted;
}

}  // namespace ns_dist
