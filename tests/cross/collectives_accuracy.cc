// The accuracy of collectives against measurements, and the calibrations learned from them.
//
//   collectives_accuracy DATA [--write WEIGHTS]
//
// DATA holds collectives/{nccl,dgx,astra_sim_analytical}.csv.gz. Every table is printed: all rows with what is compiled
// in, NCCL's constants alone, a constant utilisation; sizes left out; each GPU left out; ASTRA-Sim's runs. --write fits
// on all rows and writes the calibrations.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "ns_dist/astra_network.h"
#include "ns_dist/catalog.h"
#include "ns_dist/collective_table.h"
#include "ns_dist/kernel_table.h"

namespace ns_dist {
namespace {

using Rows = std::vector<CollectiveRow>;

[[noreturn]] void give_up(const Error& error) {
  fmt::print(stderr, "{}\n", to_text(error));
  std::exit(1);
}

template <class T>
T need(Result<T> result) {
  if (!result) give_up(result.error());
  return *std::move(result);
}

const Catalog& catalog() {
  static const Catalog standard = Catalog::standard();
  return standard;
}

Result<Cluster> usual_cluster(std::string_view gpu, std::string_view cluster) {
  if (!cluster.empty()) return catalog().cluster(cluster);
  NS_TRY(const Gpu found, catalog().gpu(gpu));
  NS_TRY(Cluster usual, catalog().cluster(found.usual_cluster));
  usual.gpu = found;
  return usual;
}

Rows read_rows(const std::string& path) {
  const CsvTable table = need(CsvTable::read(path));
  const CollectiveReader reader = need(CollectiveReader::of(table.columns(), path));
  Rows rows;
  std::vector<std::string_view> fields;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    table.fields(i, fields);
    rows.push_back(need(reader.row(fields, fmt::format("{}:{}", path, table.line(i)))));
  }
  return rows;
}

NetworkCalibration fit(const Rows& rows, const std::string& source, bool for_one_cluster) {
  std::vector<Cluster> clusters;
  std::map<std::string, std::size_t> index;
  std::vector<CollectiveMeasurement> measurements;
  for (const CollectiveRow& row : rows) {
    const std::string& name = row.cluster.empty() ? row.gpu : row.cluster;
    if (!index.contains(name)) {
      index[name] = clusters.size();
      clusters.push_back(need(usual_cluster(row.gpu, "")));
      if (!row.cluster.empty()) clusters.back().id = row.cluster;
    }
    measurements.push_back({index[name], row.kind, row.ranks, row.gpus_per_node > 0 ? row.gpus_per_node : row.ranks,
                            row.size, *row.latency_ms * units::ms, row.integer});
  }
  return need(fit_network(clusters, measurements, {.source = source, .for_one_cluster = for_one_cluster}));
}

using Forecaster = std::function<std::optional<Seconds>(const CollectiveRow&)>;

void print(const std::string& title, const Rows& rows, const Forecaster& forecast, bool by_system) {
  CollectiveErrorTable table;
  for (const CollectiveRow& row : rows) {
    if (const auto seconds = forecast(row)) table.add(row, *seconds);
  }
  fmt::print("\n{}\n", title);
  for (const auto& line : table.lines()) {
    if (line.sizes == "all" || line.collective != "all" || (!by_system && line.system != "all")) continue;
    fmt::print("  {:<22} {:<14} {:>6} rows  mean {:6.2f} %  median {:6.2f}  p90 {:6.2f}  max {:7.2f}  bias {:+7.2f}\n",
               line.system, line.sizes, line.rows, 100 * line.mean, 100 * line.median, 100 * line.p90, 100 * line.max,
               100 * line.bias);
  }
}

void print_with(const std::string& title, const Rows& rows, const NetworkModelOptions& options,
                bool by_system = false) {
  CollectiveForecaster forecaster(usual_cluster, options);
  std::size_t inside = 0;
  print(
      title, rows,
      [&](const CollectiveRow& row) -> std::optional<Seconds> {
        const Forecast f = need(forecaster.forecast(row)).forecast;
        const Seconds measured = *row.latency_ms * units::ms;
        inside += f.low <= measured && measured <= f.high;
        return f.latency;
      },
      by_system);
  fmt::print("  inside the 90 % interval: {:.1f} %\n",
             100 * static_cast<double>(inside) / static_cast<double>(std::max<std::size_t>(rows.size(), 1)));
}

// What peers do: bytes over 0.72 of the data sheet (NeuSight's utilisation).
void print_constant(const Rows& rows) {
  print(
      "Constant utilisation, 0.72 of the data sheet", rows,
      [](const CollectiveRow& row) -> std::optional<Seconds> {
        const Gpu gpu = need(catalog().gpu(row.gpu));
        const BytesPerSecond peak = gpu.scale_up ? gpu.scale_up->bandwidth : gpu.pcie_bandwidth;
        const double bus = bus_bandwidth_gbs(row.kind, row.ranks, row.size, 1 * units::s);
        return bus * units::GB / (0.72 * peak);
      },
      true);
}

void split(const Rows& rows, const std::string& title, bool for_one_cluster,
           const std::function<bool(const CollectiveRow&)>& left_out, bool only_across = false) {
  Rows fitted, tested;
  for (const CollectiveRow& row : rows) (left_out(row) ? tested : fitted).push_back(row);
  if (only_across) std::erase_if(tested, [](const CollectiveRow& row) { return row.gpus_per_node == row.ranks; });
  NetworkModelOptions options;
  options.calibration = std::make_shared<NetworkCalibration>(fit(fitted, "", for_one_cluster));
  print_with(title, tested, options);
}

// A fifth of the sizes of every machine, collective and group, at random but always the same; never the smallest or the
// largest, which would be extrapolated.
bool in_fifth(const CollectiveRow& row) {
  const double octave = std::log2(row.size / units::B);
  if (octave < 9.5 || octave > 28.5) return false;
  std::uint32_t hash = 2166136261u;
  const auto mix = [&hash](std::uint32_t value) { hash = (hash ^ value) * 16777619u; };
  for (const char c : row.gpu) mix(static_cast<unsigned char>(c));
  mix(static_cast<std::uint32_t>(row.kind));
  mix(static_cast<std::uint32_t>(row.ranks));
  mix(static_cast<std::uint32_t>(row.gpus_per_node));
  mix(static_cast<std::uint32_t>(row.size / units::B));
  hash ^= hash >> 15;
  return hash % 5 == 0;
}

std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find('x');
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text = text.substr(end + 1);
  }
}

void check_astra(const std::string& path) {
  const CsvTable table = need(CsvTable::read(path));
  std::vector<std::string_view> fields;
  const auto field = [&](std::string_view name) { return std::string(fields.at(table.column(name).value())); };
  std::int64_t exact = 0, within = 0, off = 0, without = 0;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    table.fields(i, fields);
    if (fields.size() <= table.column("formula_ns").value() || field("formula_ns").empty()) {
      ++without;
      continue;
    }
    AstraSystem system;
    const auto topologies = parts_of(field("topology_per_dim")), npus = parts_of(field("npus_per_dim")),
               bandwidths = parts_of(field("bandwidth_GiBps_per_dim")),
               latencies = parts_of(field("latency_ns_per_dim")), algorithms = parts_of(field("algorithm_per_dim"));
    for (std::size_t d = 0; d < topologies.size(); ++d) {
      const AstraTopology topology = topologies[d] == "Ring"     ? AstraTopology::kRing
                                     : topologies[d] == "Switch" ? AstraTopology::kSwitch
                                                                 : AstraTopology::kFullyConnected;
      system.dimensions.push_back(
          {topology, std::stoll(npus[d]), std::stod(bandwidths[d]), std::stod(latencies[d]), algorithms[d]});
    }
    system.splits = std::stoll(field("preferred_dataset_splits"));
    system.active_chunks = std::stoll(field("active_chunks_per_dimension"));
    system.endpoint_delay_ns = std::stoll(field("endpoint_delay_ns"));
    system.local_memory_gbs = std::stod(field("local_mem_bw_GBps"));
    system.local_bandwidth_aware = field("collective_optimization") == "localBWAware";
    system.congestion_aware = field("backend") == "aware";
    const std::string name = field("collective");
    const CollectiveKind kind = name == "all-reduce"   ? CollectiveKind::kAllReduce
                                : name == "all-gather" ? CollectiveKind::kAllGather
                                : name == "all-to-all" ? CollectiveKind::kAllToAll
                                                       : CollectiveKind::kReduceScatter;
    const auto ours = astra_time_ns(system, kind, std::stoll(field("comm_size_attr_bytes")));
    const std::int64_t difference = ours ? std::abs(*ours - std::stoll(field("finish_ns_max"))) : 1000000;
    ++(difference == 0 ? exact : difference == 1 ? within : off);
  }
  fmt::print("\nASTRA-Sim's runs with a closed form: {} exact, {} off by 1 ns, {} by more; {} without\n", exact, within,
             off, without);
}

void write(const std::string& path, const NetworkCalibration& calibration) {
  std::ofstream file(path);
  file << to_json(calibration);
  if (!file.flush())
    give_up({ErrorCode::kInvalidInput, "the file cannot be written", path, "a folder that exists", "", {}});
}

int run(const std::string& data, const std::string& weights) {
  const Rows nccl = read_rows(data + "/collectives/nccl.csv.gz"), dgx = read_rows(data + "/collectives/dgx.csv.gz");
  if (!weights.empty()) {
    write(weights + "/collectives-v1.json",
          fit(nccl,
              "NCCL 2.23-2.29, one node, 2-8 ranks, 512 B - 512 MiB: A100 SXM, H200, B200, B300, GB200, L40S "
              "(NVIDIA aiconfigurator's measurements, Apache-2.0)",
              false));
    std::ofstream(weights + "/two-node-clusters-v1.json") << to_json(
        fit(dgx,
            "NCCL all_reduce and send_recv, 2 KiB - 512 MiB, on pairs of A100 DGX (a100_dgx; its network gives "
            "a GPU about 8 GB/s) and of servers with A100 and A40 in NVLink pairs (vidur's profiling data, MIT)",
            true));
  }
  print_with("One node, compiled in", nccl, {}, true);
  NetworkModelOptions published;
  published.calibrated = false;
  print_with("One node, NCCL's constants alone", nccl, published);
  print_constant(nccl);
  split(nccl, "One node, a fifth of the sizes left out", false, in_fifth);
  std::set<std::string> gpus;
  for (const CollectiveRow& row : nccl) gpus.insert(row.gpu);
  for (const std::string& gpu : gpus) {
    split(nccl, "One node, left out: " + gpu, false, [&](const CollectiveRow& row) { return row.gpu == gpu; });
  }
  print_with("Two nodes, compiled in", dgx, {}, true);
  split(dgx, "Across two nodes, a fifth of the sizes left out", true, in_fifth, true);
  check_astra(data + "/collectives/astra_sim_analytical.csv.gz");
  return 0;
}

}  // namespace
}  // namespace ns_dist

int main(int argc, char** argv) {
  const bool write = argc == 4 && std::string_view(argv[2]) == "--write";
  if (argc != 2 && !write) {
    fmt::print(stderr, "usage: collectives_accuracy DATA [--write WEIGHTS]\n");
    return 2;
  }
  return ns_dist::run(argv[1], write ? argv[3] : "");
}
