// Chakra traces: any bytes are either refused with a place or read; what was read replays to an answer, and writes and
// reads back as the same nodes.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ns_dist/chakra_io.h"

namespace {

void write_and_read(const std::vector<ns_dist::TraceNode>& nodes) {
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("ns_dist_chakra_fuzz_" + std::to_string(::getpid()));
  NS_EXPECTS(ns_dist::write_trace(path, nodes).has_value());
  std::vector<ns_dist::TraceNode> again = ns_dist::read_trace(path).value();
  std::filesystem::remove(path);
  NS_EXPECTS(again.size() == nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NS_EXPECTS(again[i].id == nodes[i].id && again[i].name == nodes[i].name && again[i].type == nodes[i].type);
    NS_EXPECTS(again[i].data_deps == nodes[i].data_deps && again[i].ctrl_deps == nodes[i].ctrl_deps);
    NS_EXPECTS(again[i].attributes.size() == nodes[i].attributes.size());  // values may be NaN
  }
}

// The bytes as two files: a report of lint or a reason; what annotate writes is read again; what was repaired needs no
// repair.
void lint_annotate_and_repair(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path prefix =
      std::filesystem::temp_directory_path() / ("ns_dist_lint_fuzz_" + std::to_string(::getpid()));
  const ns_dist::TraceSet traces{prefix, {prefix.string() + ".0.et", prefix.string() + ".1.et"}};
  for (const std::filesystem::path& file : traces.files) {
    std::ofstream(file, std::ios::binary) << std::string(reinterpret_cast<const char*>(data), size);
  }
  ns_dist::LintOptions options;
  options.system.emplace();
  options.system->splits = 4, options.system->roofline = size % 2 == 0;
  const auto report = ns_dist::lint(traces, {{1, {0, 1}}}, options);
  NS_EXPECTS(report.has_value());
  NS_EXPECTS(report->problem_count >= report->problems.size());
  ns_dist::AnnotateModel model;
  model.forecast = [](const ns_dist::Operator&) { return std::optional<double>(1e300); };
  model.ratio = [](double flops, double bytes) { return std::optional<double>(flops / bytes); };
  const std::filesystem::path out = prefix.string() + ".out";
  if (ns_dist::annotate(traces.files[0], out, model)) NS_EXPECTS(ns_dist::read_trace(out).has_value());
  if (ns_dist::repair(traces.files[0], out)) {
    const auto again = ns_dist::repair(out, traces.files[1]);
    NS_EXPECTS(again.has_value() && again->dangling == 0 && again->circles == 0 && again->chained == 0);
    NS_EXPECTS(again->cpu_collectives == 0 && again->not_run == 0);
  }
  if (const auto groups = ns_dist::read_comm_groups(traces.files[0])) {
    for (const auto& [id, members] : *groups) NS_EXPECTS(id > 0 && !members.empty());
  }
  for (const std::filesystem::path& file : {traces.files[0], traces.files[1], out}) std::filesystem::remove(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<ns_dist::TraceNode> nodes;
  const auto keep = [&nodes](ns_dist::TraceNode&& node) -> ns_dist::Result<void> {
    nodes.push_back(std::move(node));
    return {};
  };
  if (const auto read = ns_dist::read_trace(in, "input", keep); !read) NS_EXPECTS(!read.error().where.empty());
  write_and_read(nodes);
  const std::vector<std::vector<ns_dist::TraceNode>> traces(2, nodes);
  for (const bool roofline : {false, true}) {
    ns_dist::ReplayOptions options;
    options.roofline = roofline, options.peak_tflops = 1, options.local_memory_gbs = 1e9;
    const auto report = ns_dist::replay(traces, {{1, {0, 1}}}, options);
    NS_EXPECTS(!report || report->ok() || !report->problems.empty());  // nothing hangs without a reason
  }
  lint_annotate_and_repair(data, size);
  return 0;
}
