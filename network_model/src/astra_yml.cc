// ASTRA-Sim's network yml. The part of YAML that its files use: four keys with flat lists.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "ns_dist/astra_network.h"

namespace ns_dist {
namespace {

constexpr std::array<std::string_view, 3> kTopologies = {"Ring", "FullyConnected", "Switch"};
constexpr std::array<std::string_view, 4> kKeys = {"topology", "npus_count", "bandwidth", "latency"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\"'";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

struct List {
  std::vector<std::string_view> items;
  int line = 0;
};

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

template <class Number>
std::string joined(const AstraSystem& system, Number&& of) {
  std::string text;
  for (const AstraDimension& d : system.dimensions) text += fmt::format("{}{}", text.empty() ? "" : ", ", of(d));
  return text;
}

}  // namespace

std::string to_network_yml(const AstraSystem& system) {
  return fmt::format(
      "# bandwidth: GiB/s a link and direction (the simulator takes 2^30 bytes for a \"GB\"); latency: ns a hop\n"
      "topology: [ {} ]\nnpus_count: [ {} ]\nbandwidth: [ {} ]\nlatency: [ {} ]\n",
      joined(system, [](const auto& d) { return kTopologies[static_cast<std::size_t>(d.topology)]; }),
      joined(system, [](const auto& d) { return d.npus; }),
      joined(system, [](const auto& d) { return d.bandwidth_gib; }),
      joined(system, [](const auto& d) { return d.latency_ns; }));
}

Result<AstraSystem> read_network_yml(std::string_view text, const std::string& where) {
  std::array<List, kKeys.size()> lists;
  std::size_t current = kKeys.size();  // whose "- " lines may follow
  int line = 0;
  const auto wrong = [&](const std::string& message, const std::string& expected) {
    return fail({ErrorCode::kInvalidInput, message, fmt::format("{}:{}", where, line), expected, "", {}});
  };
  while (!text.empty()) {
    ++line;
    const std::size_t newline = text.find('\n');
    std::string_view content = text.substr(0, newline);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    content = trimmed(content.substr(0, content.find('#')));
    if (content.empty() || content == "---") continue;
    if (content.substr(0, 2) == "- " && current < kKeys.size()) {
      lists[current].items.push_back(trimmed(content.substr(2)));
      continue;
    }
    const std::size_t colon = content.find(':');
    const std::string_view key = colon == std::string_view::npos ? content : trimmed(content.substr(0, colon));
    current = 0;
    while (current < kKeys.size() && kKeys[current] != key) ++current;
    if (colon == std::string_view::npos || current == kKeys.size()) {
      return wrong(fmt::format("unknown key \"{}\"", key), fmt::format("{}", fmt::join(kKeys, ", ")));
    }
    if (lists[current].line != 0) return wrong(fmt::format("\"{}\" is there twice", key), "each key once");
    lists[current].line = line;
    std::string_view value = trimmed(content.substr(colon + 1));
    if (value.empty()) continue;
    if (value.front() != '[' || value.back() != ']') return wrong("a value that is no list", "[ a, b, ... ]");
    value = value.substr(1, value.size() - 2);
    while (!trimmed(value).empty()) {
      const std::size_t comma = value.find(',');
      lists[current].items.push_back(trimmed(value.substr(0, comma)));
      value = comma == std::string_view::npos ? std::string_view() : value.substr(comma + 1);
    }
  }
  for (std::size_t k = 0; k < kKeys.size(); ++k) {
    if (lists[k].line == 0) return wrong(fmt::format("no \"{}\"", kKeys[k]), "the four keys of a network");
    line = lists[k].line;
    if (lists[k].items.empty() || lists[k].items.size() != lists[0].items.size()) {
      return wrong(fmt::format("{} entries in \"{}\", {} in \"topology\"", lists[k].items.size(), kKeys[k],
                               lists[0].items.size()),
                   "one entry a dimension");
    }
  }
  AstraSystem system;
  double npus = 1;
  for (std::size_t i = 0; i < lists[0].items.size(); ++i) {
    AstraDimension d;
    line = lists[0].line;
    std::size_t topology = 0;
    while (topology < kTopologies.size() && kTopologies[topology] != lists[0].items[i]) ++topology;
    if (topology == kTopologies.size()) {
      return wrong(fmt::format("unknown topology \"{}\"", lists[0].items[i]),
                   fmt::format("{}", fmt::join(kTopologies, ", ")));
    }
    d.topology = static_cast<AstraTopology>(topology);
    std::array<double, kKeys.size()> values{};
    for (std::size_t k = 1; k < kKeys.size(); ++k) {
      line = lists[k].line;
      const std::optional<double> value = number(lists[k].items[i]);
      // Times in whole nanoseconds stay far below 2^63 within these.
      const double least = k == 1 ? 2 : k == 2 ? 0.1 : 0, most = k == 1 ? 1e5 : k == 2 ? 1e9 : 1e8;
      if (!value || !(*value >= least && *value <= most) || (k == 1 && *value != std::floor(*value))) {
        return wrong(fmt::format("\"{}\" in \"{}\"", lists[k].items[i], kKeys[k]),
                     k == 1   ? "an integer from 2 to 100000"
                     : k == 2 ? "a bandwidth in GiB/s from 0.1 to 1e9"
                              : "a latency in ns from 0 to 1e8");
      }
      values[k] = *value;
    }
    d.npus = static_cast<std::int64_t>(values[1]);
    npus *= values[1];
    constexpr double kMostNpus = 1e9;
    if (npus > kMostNpus) {
      line = lists[1].line;
      return wrong(fmt::format("{:.3g} NPUs in \"npus_count\"", npus), "at most 1e9 together");
    }
    d.bandwidth_gib = values[2];
    d.latency_ns = values[3];
    system.dimensions.push_back(d);
  }
  return system;
}

Cluster from_astra(const AstraSystem& system, const Gpu& gpu) {
  Cluster cluster;
  cluster.id = "astra-network";
  cluster.name = "a network of ASTRA-Sim's";
  cluster.gpu = gpu;
  for (std::size_t i = 0; i < system.dimensions.size(); ++i) {
    const AstraDimension& d = system.dimensions[i];
    FabricLevel level;
    level.size = d.npus;
    level.fabric.id = fmt::format("dimension-{}", i);
    level.fabric.name = fmt::format("{} of {}", kTopologies[static_cast<std::size_t>(d.topology)], d.npus);
    const bool is_switch = d.topology == AstraTopology::kSwitch;
    level.fabric.kind = !is_switch ? FabricKind::kNvlink : i == 0 ? FabricKind::kNvswitch : FabricKind::kInfiniband;
    level.fabric.bandwidth = d.bandwidth_gib * units::GiB / units::s;
    level.ring = d.topology == AstraTopology::kRing;
    if (level.ring) level.nics_per_gpu = 2;  // a link to each neighbour
    level.fabric.latency = (is_switch ? 2 : 1) * d.latency_ns * units::ns;
    cluster.levels.push_back(level);
  }
  return cluster;
}

}  // namespace ns_dist
