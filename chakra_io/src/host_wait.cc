// Free of protobuf, as kernel_work.cc.
#include <algorithm>

#include "kernel_work.h"
#include "ns_dist/host_launches.h"

namespace ns_dist {
namespace {

template <class List>
List list_at(const TraceNode& node, std::string_view name) {
  const TraceValue* value = node.attribute(name);
  const auto* list = value == nullptr ? nullptr : std::get_if<List>(value);
  return list == nullptr ? List() : *list;
}

// Numbers from 0 to `most`, or nothing.
std::optional<std::vector<std::uint32_t>> naturals_at(const TraceNode& node, std::string_view name, std::size_t most) {
  std::vector<std::uint32_t> out;
  for (const std::int64_t number : list_at<std::vector<std::int64_t>>(node, name)) {
    if (number < 0 || number > static_cast<std::int64_t>(most)) return std::nullopt;
    out.push_back(static_cast<std::uint32_t>(number));
  }
  return out;
}

// For each of so many nodes, how many it waits for and their places, all of them before its own.
bool are_dependencies(const std::vector<std::uint32_t>& list, std::size_t nodes) {
  std::size_t at = 0;
  for (std::size_t node = 0; node < nodes; ++node) {
    if (at == list.size() || list[at] > list.size() - at - 1) return false;
    for (const std::size_t end = at + list[at]; at < end;) {
      if (list[++at] >= node) return false;
    }
    ++at;
  }
  return at == list.size();
}

}  // namespace

std::optional<HostWait> host_wait(const TraceNode& node) {
  HostWait wait;
  wait.launches_ns = list_at<std::vector<double>>(node, "ns_dist_launches_ns");
  if (wait.launches_ns.empty()) return std::nullopt;
  for (const std::int64_t id : list_at<std::vector<std::int64_t>>(node, "ns_dist_launched")) {
    if (id < 0) return std::nullopt;
    wait.launched.push_back(static_cast<std::uint64_t>(id));
  }
  const std::size_t nodes = wait.launched.size();
  auto dependencies = naturals_at(node, "ns_dist_launched_deps", nodes);
  auto reads = naturals_at(node, "ns_dist_read_before", nodes);
  if (!dependencies || !are_dependencies(*dependencies, nodes)) return std::nullopt;
  if (!reads || !std::is_sorted(reads->begin(), reads->end()) || wait.launches_ns.size() != reads->size() + 1) {
    return std::nullopt;
  }
  wait.dependencies = *std::move(dependencies);
  wait.read_before = *std::move(reads);
  wait.launch_ns = chakra::number_at(node, "ns_dist_launch_ns").value_or(0);
  if (!chakra::is_time(wait.launch_ns) ||
      !std::all_of(wait.launches_ns.begin(), wait.launches_ns.end(), chakra::is_time)) {
    return std::nullopt;
  }
  return wait;
}

double wait_ns(const HostWait& wait, std::span<const double> durations_ns) {
  struct Run {
    double start = 0, end = 0;
    bool behind_reads = false;  // of the host: all that it looks at
  };
  std::vector<Run> runs(wait.launched.size());
  double length = 0, behind = -1;
  auto next = wait.dependencies.begin();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Run& run = runs[i];
    run.behind_reads = wait.read_before.empty() || i == wait.read_before.back();
    for (std::uint32_t left = *next++; left > 0; --left) {
      const Run& before = runs[*next++];
      run.start = std::max(run.start, before.end);
      run.behind_reads |= before.behind_reads;
    }
    const double ns = durations_ns[i];
    run.end = run.start + (chakra::is_time(ns) ? ns : 0);
    length = std::max(length, run.end);
    if (run.behind_reads) behind = std::max(behind, run.end);
  }
  if (behind < 0) behind = length;
  struct Part {
    double all, one;
  };
  const auto part = [&](std::size_t p) { return Part{wait.launches_ns[p], wait.launch_ns}; };
  const auto ended_before = [&](std::size_t p) {
    if (p == 0) return 0.0;
    const std::size_t first = p > wait.read_before.size() ? runs.size() : wait.read_before[p - 1];
    return first == runs.size() ? behind : runs[first].start;
  };
  return wait_for_launches(wait.launches_ns.size(), part, ended_before, length - behind);
}

double wait_ns(const HostWait& wait, double recorded_wait_ns, std::span<const double> recorded_ns,
               std::span<const double> now_ns) {
  return std::max(0.0, recorded_wait_ns + wait_ns(wait, now_ns) - wait_ns(wait, recorded_ns));
}

}  // namespace ns_dist
