#include "ns_dist/astra_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/trimmed.h"
#include "ns_dist/internal/with_commas.h"

namespace ns_dist {
namespace {

// To nine digits: exact values such as 500 ns come back as they are, where ASTRA-Sim would cut 499.99999999999994 to
// 499.
double rounded(double value) {
  const std::string text = fmt::format("{:.9g}", value);
  double result = value;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

AstraTopology topology_of(const FabricLevel& level) {
  if (level.ring) return AstraTopology::kRing;
  return level.fully_connected() ? AstraTopology::kFullyConnected : AstraTopology::kSwitch;
}

template <class Number>
std::string list_of(const AstraSystem& system, Number&& of) {
  std::string text;
  for (const AstraDimension& d : system.dimensions) text += fmt::format("{}{}", text.empty() ? "" : ", ", of(d));
  return text;
}

}  // namespace

AstraDimension astra_dimension(const FabricLevel& level, std::int64_t npus) {
  AstraDimension d;
  d.topology = topology_of(level);
  d.npus = npus;
  double bandwidth = level.bandwidth_per_gpu() / (units::GiB / units::s);
  double latency = level.fabric.latency / units::ns;
  switch (d.topology) {
    case AstraTopology::kRing:
      bandwidth /= 2;
      break;
    case AstraTopology::kFullyConnected:
      bandwidth /= static_cast<double>(std::max<std::int64_t>(level.mesh_units(npus) - 1, 1));
      break;
    case AstraTopology::kSwitch:
      latency /= 2;
      break;
  }
  d.bandwidth_gib = rounded(bandwidth);
  d.latency_ns = rounded(latency);
  return d;
}

const std::string& AstraAlgorithms::of(CollectiveKind kind) const {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return all_gather;
    case CollectiveKind::kReduceScatter:
      return reduce_scatter;
    case CollectiveKind::kAllToAll:
      return all_to_all;
    default:
      return all_reduce;
  }
}

std::int64_t AstraSystem::npus() const {
  std::int64_t count = 1;
  for (const AstraDimension& d : dimensions) count *= d.npus;
  return count;
}

Result<AstraSystem> to_astra(const Cluster& cluster, std::int64_t gpus) {
  AstraSystem system;
  std::int64_t left = gpus;
  bool even = true;
  std::optional<FabricLevel> outermost;  // that is spanned
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    if (left <= 1) break;
    const FabricLevel level = cluster.used_level(i);
    const std::int64_t size = level.size == 0 || left < level.size ? left : level.size;
    if (size < 1) break;
    even = even && left % size == 0;
    if (size > 1) {
      system.dimensions.push_back(astra_dimension(level, size));
      outermost = level;
    }
    left = (left + size - 1) / size;
  }
  if (left != 1 || !outermost) {
    return fail({ErrorCode::kInfeasible, fmt::format("no network joins {} GPU(s) of \"{}\"", gpus, cluster.id),
                 cluster.id, "at least two GPUs, on a cluster that has them"});
  }
  if (!even) system.dimensions = {astra_dimension(*outermost, gpus)};
  for (AstraDimension& d : system.dimensions) d.algorithm.all_to_all = "direct";
  return system;
}

std::int64_t astra_comm_size(const Collective& collective) {
  const bool gathers = collective.kind == CollectiveKind::kAllGather;
  const double bytes = collective.imbalance * (collective.size / units::B) /
                       (gathers ? static_cast<double>(collective.group.size()) : 1);
  return std::isfinite(bytes) ? static_cast<std::int64_t>(std::clamp(std::ceil(bytes), 1.0, 0x1p62)) : 1;
}

std::vector<Collective> astra_exchanges(const Collective& collective, std::int64_t node) {
  Collective whole = collective;
  whole.routing = {};
  if (node < 2 || collective.routing.experts == 0 || !is_possible(collective.routing)) return {whole};
  Collective between = whole, inside = whole;
  between.group.strides.clear(), inside.group.strides.clear();
  for (const Stride& stride : collective.group.strides) {
    if (stride.count == 1) continue;
    const std::int64_t span = stride.count * stride.stride;
    if (stride.stride % node == 0) {
      between.group.strides.push_back(stride);
    } else if (node % span == 0) {
      inside.group.strides.push_back(stride);
    } else if (node % stride.stride == 0 && span % node == 0) {
      inside.group.strides.push_back({node / stride.stride, stride.stride});
      between.group.strides.push_back({span / node, node});
    } else {
      return {whole};
    }
  }
  if (between.group.strides.empty() || inside.group.strides.empty()) return {whole};
  between.size *= parts_reached(collective.routing, between.group.size()) /
                  parts_reached(collective.routing, collective.group.size());
  return {between, inside};
}

std::string to_network_yml(const AstraSystem& system) {
  return fmt::format(
      "# Bandwidths in GiB/s a link and direction: ASTRA-Sim's \"GB/s\" is 2^30 bytes. Latencies in ns a hop; a Switch "
      "has two hops.\n"
      "topology: [ {} ]\nnpus_count: [ {} ]\nbandwidth: [ {} ]\nlatency: [ {} ]\n",
      list_of(system, [](const auto& d) { return name_of(d.topology); }),
      list_of(system, [](const auto& d) { return d.npus; }),
      list_of(system, [](const auto& d) { return fmt::format("{:.9g}", d.bandwidth_gib); }),
      list_of(system, [](const auto& d) { return fmt::format("{:.9g}", d.latency_ns); }));
}

namespace {

constexpr std::size_t kMostDimensions = 16;
constexpr std::int64_t kMostNpus = std::int64_t{1} << 32;

Error yml_error(std::string message, const std::string& where, std::string expected) {
  return {ErrorCode::kInvalidInput, std::move(message), where, std::move(expected)};
}

std::string_view unquoted(std::string_view text) {
  text = trimmed(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front()) {
    text = text.substr(1, text.size() - 2);
  }
  return text;
}

using Lists = std::map<std::string, std::vector<std::string>, std::less<>>;

// The lists of a yml: "key: [ a, b ]", or "key:" and items "- a". A bracket may close on a later line.
Result<Lists> read_lists(std::string_view text, const std::string& where) {
  Lists lists;
  std::vector<std::string>* open = nullptr;  // takes items
  bool bracket = false;
  const auto add_items = [&](std::string_view items) {
    const std::size_t close = items.find(']');
    if (close != std::string_view::npos) bracket = false;
    items = items.substr(0, close);
    while (!items.empty()) {
      const std::size_t comma = items.find(',');
      if (const std::string_view item = unquoted(items.substr(0, comma)); !item.empty()) open->emplace_back(item);
      items = comma == std::string_view::npos ? std::string_view() : items.substr(comma + 1);
    }
  };
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty() || line == "---") continue;
    if (bracket) {
      add_items(line);
      continue;
    }
    if (line.front() == '-') {
      if (open == nullptr) {
        return fail(yml_error("an item without a list", fmt::format("{}:{}", where, number), "key: [ a, b ]"));
      }
      open->emplace_back(unquoted(line.substr(1)));
      continue;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) {
      return fail(yml_error(fmt::format("\"{}\" is no \"key: value\"", shortened(line)),
                            fmt::format("{}:{}", where, number), "key: [ a, b ]"));
    }
    open = &lists[std::string(unquoted(line.substr(0, colon)))];
    open->clear();
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (value.empty()) continue;
    bracket = value.front() == '[';
    add_items(bracket ? value.substr(1) : value);
  }
  if (bracket) return fail(yml_error("a list is not closed", where, "\"]\" at its end"));
  return lists;
}

Result<double> number_in(const std::string& text, double least, double most, const std::string& where) {
  const auto value = number_from<double>(text);
  if (!value || *value < least || *value > most) {
    return fail(yml_error(fmt::format("\"{}\" is out of range", shortened(text)), where,
                          fmt::format("a number from {} to {}", least, most)));
  }
  return *value;
}

Result<std::vector<AstraDimension>> read_network(std::string_view text, const std::string& where) {
  NS_TRY(const Lists lists, read_lists(text, where));
  const auto list_at = [&](const char* key) -> Result<const std::vector<std::string>*> {
    const auto found = lists.find(key);
    if (found == lists.end() || found->second.empty()) {
      return fail(yml_error(fmt::format("the list \"{}\" is missing", key), where,
                            "topology, npus_count, bandwidth and latency, one value for each dimension"));
    }
    return &found->second;
  };
  NS_TRY(const auto* topology, list_at("topology"));
  NS_TRY(const auto* npus, list_at("npus_count"));
  NS_TRY(const auto* bandwidth, list_at("bandwidth"));
  NS_TRY(const auto* latency, list_at("latency"));
  if (topology->size() != npus->size() || topology->size() != bandwidth->size() ||
      topology->size() != latency->size() || topology->size() > kMostDimensions) {
    return fail(yml_error(fmt::format("topology, npus_count, bandwidth and latency have {}, {}, {} and {} values",
                                      topology->size(), npus->size(), bandwidth->size(), latency->size()),
                          where, fmt::format("as many of each, at most {}", kMostDimensions)));
  }
  std::vector<AstraDimension> dimensions(topology->size());
  std::int64_t all = 1;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    AstraDimension& d = dimensions[i];
    const auto place = [&](const char* key) { return fmt::format("{}#/{}/{}", where, key, i); };
    bool known = false;
    for (const AstraTopology t : {AstraTopology::kRing, AstraTopology::kFullyConnected, AstraTopology::kSwitch}) {
      if ((*topology)[i] != name_of(t)) continue;
      d.topology = t;
      known = true;
    }
    if (!known) {
      return fail(yml_error(fmt::format("topology \"{}\"", shortened((*topology)[i])), place("topology"),
                            "Ring, FullyConnected or Switch"));
    }
    NS_TRY(const double count, number_in((*npus)[i], 2, 1e7, place("npus_count")));
    if (count != std::floor(count)) {
      return fail(yml_error(fmt::format("{} NPUs", count), place("npus_count"), "a whole number"));
    }
    d.npus = static_cast<std::int64_t>(count);
    NS_TRY(d.bandwidth_gib, number_in((*bandwidth)[i], 1e-9, 1e9, place("bandwidth")));
    NS_TRY(d.latency_ns, number_in((*latency)[i], 0, 1e12, place("latency")));
    all *= d.npus;
    if (all > kMostNpus) return fail(yml_error("more than 2^32 NPUs", place("npus_count"), "fewer"));
  }
  return dimensions;
}

// The keys of a system json that are read here, beside its lists of algorithms; and those that ASTRA-Sim reads alone.
constexpr std::string_view kRead[] = {"preferred-dataset-splits",
                                      "active-chunks-per-dimension",
                                      "endpoint-delay",
                                      "local-mem-bw",
                                      "peak-perf",
                                      "roofline-enabled",
                                      "replay-only",
                                      "collective-optimization",
                                      "scheduling-policy"};
constexpr std::string_view kLeftOut[] = {"trace-enabled",
                                         "track-local-mem",
                                         "local-mem-trace-filename",
                                         "local-reduction-delay",
                                         "model-shared-bus",
                                         "boost-mode",
                                         "per-node-custom-implementation",
                                         "L",
                                         "o",
                                         "g",
                                         "G"};

}  // namespace

std::int64_t astra_chunk(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size) {
  const std::int64_t share = comm_size / std::max<std::int64_t>(1, system.splits);
  return kind == CollectiveKind::kAllGather ? share : std::max(share, system.npus());
}

std::string astra_refusal(std::string_view algorithm, CollectiveKind kind, std::int64_t npus, std::int64_t chunk,
                          bool grouped) {
  const bool halving = algorithm == "halvingDoubling" || algorithm == "oneHalvingDoubling";
  const bool tree = algorithm == "doubleBinaryTree";
  const bool power_of_two = (npus & (npus - 1)) == 0;
  if (halving && kind == CollectiveKind::kAllToAll) return fmt::format("\"{}\": ASTRA-Sim ends", algorithm);
  if (tree && grouped) return fmt::format("\"{}\" of some of the ranks: ASTRA-Sim crashes", algorithm);
  if ((halving || tree) && !power_of_two) {
    return fmt::format("\"{}\" of {} ranks, which are no power of two: ASTRA-Sim {}", algorithm, npus,
                       halving ? "hangs" : "crashes");
  }
  // Halves of halves become nothing on the way; two ranks halve once.
  if (halving && kind == CollectiveKind::kAllReduce && npus > 2 && chunk < 2 * npus) {
    return fmt::format("\"{}\" of {} ranks in chunks of {} bytes, fewer than {}: ASTRA-Sim stops (an assertion)",
                       algorithm, npus, chunk, 2 * npus);
  }
  return "";
}

Result<AstraSystem> read_astra_system(std::string_view network_yml, const std::string& yml_where,
                                      std::string_view system_json, const std::string& json_where) {
  AstraSystem system;
  NS_TRY(system.dimensions, read_network(network_yml, yml_where));
  NS_TRY(const nlohmann::ordered_json root, parse_json(system_json, json_where));
  if (!root.is_object()) return fail(yml_error("not a JSON object", json_where, "an object of settings"));
  std::vector<Error> errors;
  JsonReader reader(root, json_where, errors);
  reader.accept_unknown_keys();
  constexpr double kAny = 1e18;
  system.splits = reader.integer("preferred-dataset-splits", 1, 1'000'000);
  system.active_chunks = reader.integer("active-chunks-per-dimension", 1, 1'000'000, Presence::kOptional, 1);
  system.endpoint_delay_ns = reader.integer("endpoint-delay", 0, 1'000'000'000, Presence::kOptional, 10);
  system.local_memory_gbs = reader.number("local-mem-bw", 0, kAny, Presence::kOptional, 0);
  system.peak_tflops = reader.number("peak-perf", 0, kAny, Presence::kOptional, 0);
  system.roofline = reader.integer("roofline-enabled", 0, 1, Presence::kOptional, 0) == 1;
  system.replay_only = reader.integer("replay-only", 0, 1, Presence::kOptional, 0) == 1;
  const std::string optimization = reader.text("collective-optimization", Presence::kOptional);
  if (!optimization.empty() && optimization != "localBWAware" && optimization != "baseline") {
    reader.note("collective-optimization", "\"" + shortened(optimization) + "\" is unknown",
                "localBWAware or baseline");
  }
  if (reader.has("scheduling-policy")) {  // of the chunks of one dimension: Sys.cc stops at any other
    reader.choice("scheduling-policy", {"LIFO", "FIFO", "EXPLICIT"});
  }
  system.local_bandwidth_aware = optimization != "baseline";
  const std::pair<const char*, std::string AstraAlgorithms::*> lists[] = {
      {"all-reduce-implementation", &AstraAlgorithms::all_reduce},
      {"all-gather-implementation", &AstraAlgorithms::all_gather},
      {"reduce-scatter-implementation", &AstraAlgorithms::reduce_scatter},
      {"all-to-all-implementation", &AstraAlgorithms::all_to_all}};
  for (const auto& [key, member] : lists) {
    const std::vector<std::string> names = reader.texts(key);
    if (names.size() > system.dimensions.size()) {
      reader.note(key, fmt::format("{} algorithms for {} dimensions", names.size(), system.dimensions.size()),
                  "one for each dimension of the network");
      continue;
    }
    for (std::size_t i = 0; i < system.dimensions.size(); ++i) {
      system.dimensions[i].algorithm.*member = i < names.size() ? names[i] : "";
    }
    if (const std::string custom = std::string(key) + "-custom"; reader.has(custom)) {
      reader.note(custom, "collectives written as traces are not supported", std::string("only ") + key);
    }
  }
  if (!errors.empty()) return fail(join(std::move(errors)));
  for (const char* key : {"scheduling-policy", "collective-optimization"}) {
    if (reader.has(key)) continue;
    system.notes.push_back(
        fmt::format("{}: \"{}\" is missing: ASTRA-Sim then reads a member that was never set", json_where, key));
  }
  if (const auto tracks = root.find("track-local-mem"); tracks != root.end() && *tracks != 0) {
    system.notes.push_back(
        fmt::format("{}: ASTRA-Sim ends at the first kernel without the attributes \"inputs\" and \"outputs\"",
                    reader.where(pointer_step("track-local-mem"))));
  }
  for (const auto& [key, member] : lists) {
    const std::size_t given = reader.texts(key).size();
    if (given == 0 || given == system.dimensions.size()) continue;
    if ((system.dimensions.front().algorithm.*member).starts_with("one")) continue;  // of all dimensions at once
    system.notes.push_back(fmt::format("{}: {} for {} dimensions: ASTRA-Sim's collectives leave the others out",
                                       reader.where(pointer_step(key)), counted(given, "algorithm"),
                                       system.dimensions.size()));
  }
  std::vector<std::string> known(std::begin(kLeftOut), std::end(kLeftOut));
  known.insert(known.end(), std::begin(kRead), std::end(kRead));
  for (const auto& [key, member] : lists) {
    known.emplace_back(key);
    known.push_back(std::string(key) + "-custom");
  }
  for (const std::string& key : reader.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest_name(key, known);
    if (near.empty()) continue;
    system.notes.push_back(fmt::format("{}: nobody reads it: {}", reader.where(pointer_step(key)), did_you_mean(near)));
  }
  return system;
}

}  // namespace ns_dist
