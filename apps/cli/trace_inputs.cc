#include "trace_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "arguments.h"

namespace ns_dist::cli {

std::filesystem::path beside(const TraceSet& traces, const std::string& given, const char* name) {
  return given.empty() ? traces.prefix.parent_path() / name : std::filesystem::path(given);
}

Result<CommGroups> groups_beside(const TraceSet& traces, const std::string& path) {
  std::error_code failed;
  if (path.find("empty") != std::string::npos) {
    if (std::filesystem::exists(path, failed)) {
      warn(fmt::format("{} is not read: ASTRA-Sim takes a path with the word \"empty\" for no groups", path));
    }
    return CommGroups();
  }
  if (!path.empty()) return read_comm_groups(path);
  const std::filesystem::path usual = beside(traces, "", "comm_groups.json");
  if (!std::filesystem::exists(usual, failed)) return CommGroups();
  return read_comm_groups(usual);
}

std::string hint_of_groups(const CommGroups& groups, const std::vector<TraceProblem>& problems) {
  const bool missing = std::any_of(problems.begin(), problems.end(), [](const TraceProblem& problem) {
    return problem.message.starts_with("group ") && problem.message.ends_with(" is not defined");
  });
  if (!missing || !groups.empty()) return "";
  return "no communicator groups were read: name their file (comm_groups.json) with --groups FILE";
}

std::string text_of(const TraceProblem& problem) {
  std::string where = fmt::format("rank {}", problem.rank);
  if (problem.node != 0 || !problem.name.empty()) where += fmt::format(", node {}", problem.node);
  if (!problem.name.empty()) where += fmt::format(" ({})", problem.name);
  return fmt::format("{}: {}", where, problem.message);
}

std::string text_of(const TraceWait& wait) {
  return fmt::format("rank {} waits for rank {} (node {}, {})", wait.rank, wait.on, wait.node, wait.what);
}

nlohmann::ordered_json json_of(const std::vector<TraceProblem>& problems) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TraceProblem& p : problems) {
    list.push_back({{"rank", p.rank}, {"node", p.node}, {"name", p.name}, {"message", p.message}});
  }
  return list;
}

nlohmann::ordered_json json_of(const std::vector<TraceWait>& deadlock) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TraceWait& w : deadlock) {
    list.push_back({{"rank", w.rank}, {"node", w.node}, {"on", w.on}, {"what", w.what}});
  }
  return list;
}

Result<AstraSystem> system_of(const std::filesystem::path& yml, const std::filesystem::path& json) {
  NS_TRY(const std::string network_text, read_text(yml, kLargestAstraInput));
  NS_TRY(const std::string system_text, read_text(json, kLargestAstraInput));
  return read_astra_system(network_text, yml.string(), system_text, json.string());
}

ReplayOptions rules_of(const AstraSystem& system) {
  ReplayOptions out;
  out.roofline = system.roofline;
  out.peak_tflops = system.peak_tflops;
  out.local_memory_gbs = system.local_memory_gbs;
  out.replay_only = system.replay_only;
  out.system = system;
  return out;
}

ReplayNetwork network_of(const AstraNetwork& network, const std::filesystem::path& json) {
  ReplayNetwork out;
  out.message = [&network](Rank from, Rank to, std::int64_t bytes) { return network.message_ns(from, to, bytes); };
  out.collective = [&network, json](CollectiveKind kind, std::int64_t bytes, std::span<const Rank> ranks,
                                    std::span<std::int64_t> times) -> Result<void> {
    Result<void> answer = network.collective(kind, bytes, ranks, times);
    if (answer || !answer.error().where.starts_with('#')) return answer;
    Error error = std::move(answer).error();
    error.where = json.string() + error.where;
    return fail(std::move(error));
  };
  return out;
}

}  // namespace ns_dist::cli
