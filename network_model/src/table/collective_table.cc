#include "ns_dist/collective_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "algorithms.h"
#include "ns_dist/fields.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/operator_forms.h"
#include "wording.h"

namespace ns_dist {
namespace {

constexpr std::array<std::string_view, 10> kColumnNames = {
    "gpu", "cluster", "system", "collective", "ranks", "gpus_per_node", "bytes", "dtype", "latency_ms", "imbalance"};
constexpr std::array<std::string_view, 7> kAnswerColumns = {"forecast_ms", "low_ms",    "high_ms",     "algorithm",
                                                            "protocol",    "busbw_gbs", "extrapolated"};

// As nccl-tests and PyTorch name them; other numbers: read_format.
constexpr std::array<std::string_view, 6> kIntegers = {"int8", "uint8", "int32", "uint32", "int64", "uint64"};

tl::unexpected<Error> wrong(const std::string& where, std::string message, std::string expected) {
  return fail({ErrorCode::kInvalidInput, std::move(message), where, std::move(expected)});
}

int size_class(Bytes size) { return size < units::KiB ? 0 : size < units::MiB ? 1 : 2; }
constexpr int kAllSizes = 3;
constexpr std::array<std::string_view, 4> kSizeNames = {"< 1 KiB", "1 KiB - 1 MiB", ">= 1 MiB", "all"};
constexpr const char* kAll = "all";

}  // namespace

Result<CollectiveReader> CollectiveReader::of(const CsvTable& table, std::string gpu, std::string cluster) {
  CollectiveReader reader;
  reader.table_ = &table;
  for (std::size_t i = 0; i < kColumnNames.size(); ++i) reader.index_[i] = table.column(kColumnNames[i]);
  for (const Column needed : {kCollective, kRanks, kBytes}) {
    if (!reader.index_[needed]) {
      return wrong(table.where() + ":1", fmt::format("no column \"{}\"", kColumnNames[needed]),
                   "gpu or cluster, collective, ranks, gpus_per_node, bytes");
    }
  }
  const bool named = reader.index_[kGpu] || reader.index_[kCluster] || reader.index_[kSystem];
  if (!named && gpu.empty() && cluster.empty())
    return wrong(table.where() + ":1", "no column \"gpu\" or \"cluster\"", "one of them");
  reader.gpu_ = std::move(gpu), reader.cluster_ = std::move(cluster);
  return reader;
}

std::string CollectiveReader::where(std::size_t index) const {
  return fmt::format("{}:{}", table_->where(), table_->line(index));
}

Result<CollectiveRow> CollectiveReader::row(std::size_t index) const {
  std::vector<std::string_view> fields;
  NS_TRY_VOID(table_->fields(index, fields));
  const std::string where = this->where(index);
  const auto field = [&](Column column) -> std::string_view {
    return index_[column] && *index_[column] < fields.size() ? fields[*index_[column]] : std::string_view();
  };
  CollectiveRow row;
  row.gpu = field(kGpu);
  row.cluster = field(index_[kCluster] ? kCluster : kSystem);
  if (row.gpu.empty() && row.cluster.empty()) row.gpu = gpu_, row.cluster = cluster_;
  if (row.gpu.empty() && row.cluster.empty()) return wrong(where, "neither a GPU nor a cluster", "one of them");
  const auto kind = read_enumerator<CollectiveKind>(field(kCollective));
  if (!kind) {
    return fail({ErrorCode::kInvalidInput, fmt::format("unknown collective \"{}\"", field(kCollective)), where,
                 fmt::format("{}", fmt::join(names_of<CollectiveKind>(), ", ")), kind.error().hint});
  }
  row.kind = *kind;
  const auto ranks = number_from<std::int64_t>(field(kRanks));
  if (!ranks || *ranks < 2) return wrong(where, fmt::format("ranks \"{}\"", field(kRanks)), "an integer from 2 up");
  row.ranks = *ranks;
  if (!field(kGpusPerNode).empty()) {
    const auto per_node = number_from<std::int64_t>(field(kGpusPerNode));
    if (!per_node || *per_node < 1) {
      return wrong(where, fmt::format("gpus_per_node \"{}\"", field(kGpusPerNode)), "a positive integer");
    }
    row.gpus_per_node = *per_node;
  }
  const bool needs_bytes = row.kind != CollectiveKind::kBarrier;
  const auto bytes = field(kBytes).empty() && !needs_bytes ? 0 : number_from<double>(field(kBytes));
  if (!bytes || !(*bytes <= kMostBytes) || *bytes < (needs_bytes ? 1 : 0)) {
    return wrong(where, fmt::format("bytes \"{}\"", field(kBytes)),
                 needs_bytes ? "a number from 1 to 1e18" : "nothing, or a number from 0 to 1e18");
  }
  row.size = *bytes * units::B;
  row.integer = std::find(kIntegers.begin(), kIntegers.end(), lower_case(field(kDtype))) != kIntegers.end();
  if (!field(kDtype).empty() && !row.integer && !read_format(field(kDtype))) {
    return wrong(where, fmt::format("dtype \"{}\" is unknown", field(kDtype)),
                 fmt::format("{}, {}", fmt::join(kIntegers, ", "), format_words()));
  }
  if (!field(kImbalance).empty()) {
    const auto imbalance = number_from<double>(field(kImbalance));
    const bool uneven = row.kind == CollectiveKind::kAllToAll;
    if (!imbalance || !(*imbalance >= 1 && *imbalance <= (uneven ? static_cast<double>(row.ranks) : 1))) {
      return wrong(where, fmt::format("imbalance \"{}\" of {}", field(kImbalance), network::with_article(row.kind)),
                   uneven ? fmt::format("a number from 1 to the {} ranks", row.ranks)
                          : std::string("1, or nothing: only all_to_all is uneven"));
    }
    row.imbalance = *imbalance;
  }
  if (!field(kLatency).empty()) {
    row.latency_ms = usable_latency(field(kLatency));
    if (!row.latency_ms) row.bad_latency = field(kLatency);
  }
  return row;
}

Result<CollectiveRow> CollectiveReader::measured_row(std::size_t index) const {
  NS_TRY(CollectiveRow row, this->row(index));
  NS_TRY_VOID(measured_ms(row.latency_ms, row.bad_latency, where(index)));
  return row;
}

std::span<const std::string_view> collective_answer_columns() { return kAnswerColumns; }

std::vector<std::string> to_fields(const CollectiveAnswer& answer) {
  const auto milliseconds = [](Seconds seconds) { return fmt::format("{:.6g}", seconds / units::ms); };
  return {milliseconds(answer.forecast.latency),
          milliseconds(answer.forecast.low),
          milliseconds(answer.forecast.high),
          std::string(answer.algorithm),
          std::string(answer.protocol),
          fmt::format("{:.4g}", answer.busbw_gbs),
          answer.forecast.extrapolated ? "1" : "0"};
}

double bus_bandwidth_gbs(CollectiveKind kind, std::int64_t ranks, Bytes size, Seconds latency) {
  // What leaves a rank; of a barrier, its buffer.
  const auto parts = static_cast<double>(ranks);
  const double factor = kind == CollectiveKind::kBarrier ? 1 : network::leaving_share(kind, parts, 1, parts);
  return factor * (size / latency) / (units::GB / units::s);
}

CollectiveForecaster::CollectiveForecaster(ClusterResolver resolve, NetworkModelOptions options)
    : resolve_(std::move(resolve)), options_(std::move(options)) {}

Result<const CollectiveForecaster::Ready*> CollectiveForecaster::ready(const CollectiveRow& row) {
  const std::pair key(row.gpu, row.cluster);
  auto found = ready_.find(key);
  if (found == ready_.end()) {
    Ready made;
    NS_TRY(made.cluster, resolve_(row.gpu, row.cluster));
    NS_TRY(made.model, make_network_model(made.cluster, options_));
    found = ready_.emplace(key, std::move(made)).first;
  }
  return &found->second;
}

Result<Collective> CollectiveForecaster::collective(const CollectiveRow& row) {
  NS_TRY(const Ready* system, ready(row));
  NS_TRY(const RankGroup group, measured_group(system->cluster, row.ranks, row.gpus_per_node));
  return Collective{row.kind, row.size, group, row.integer, row.imbalance};
}

Result<CollectiveAnswer> CollectiveForecaster::forecast(const CollectiveRow& row) {
  NS_TRY(const Collective call, collective(row));
  NS_TRY(const Ready* system, ready(row));
  CollectiveAnswer answer;
  NS_TRY(answer.forecast, system->model->forecast(call));
  answer.gpu = system->cluster.gpu.id;
  const std::string_view method = answer.forecast.method;
  const std::size_t slash = method.find('/');
  answer.algorithm = method.substr(0, slash);
  if (slash != std::string_view::npos) answer.protocol = method.substr(slash + 1);
  answer.busbw_gbs = bus_bandwidth_gbs(row.kind, row.ranks, row.size, answer.forecast.latency);
  return answer;
}

void CollectiveErrorTable::add(const CollectiveRow& row, const CollectiveAnswer& answer) {
  if (!row.latency_ms) return;
  const Seconds measured = *row.latency_ms * units::ms;
  const double error = answer.forecast.latency / measured - 1;
  const bool inside = answer.forecast.low <= measured && measured <= answer.forecast.high;
  const std::string &system = row.cluster.empty() ? answer.gpu : row.cluster, collective(name_of(row.kind));
  const int sizes = size_class(row.size);
  for (const std::string& s : {system, std::string(kAll)}) {
    for (const std::string& c : {collective, std::string(kAll)}) {
      for (const int z : {sizes, kAllSizes}) {
        Errors& errors = errors_[{s, c, z}];
        errors.all.push_back(error);
        errors.inside += inside ? 1 : 0;
      }
    }
  }
}

std::vector<CollectiveErrorTable::Line> CollectiveErrorTable::lines() const {
  std::vector<Line> lines;
  std::vector<Line> totals;
  for (const auto& [key, errors] : errors_) {
    const auto& [system, collective, sizes] = key;
    (system == kAll ? totals : lines)
        .push_back({figures_of(errors.all), system, collective,
                    std::string(kSizeNames[static_cast<std::size_t>(sizes)]),
                    static_cast<double>(errors.inside) / static_cast<double>(errors.all.size())});
  }
  lines.insert(lines.end(), totals.begin(), totals.end());
  return lines;
}

}  // namespace ns_dist
