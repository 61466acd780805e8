// Chakra traces: any bytes are either refused with a place or read; what was read replays to an answer, and writes and
// reads back as the same nodes.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
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
  for (const auto encoding : {ns_dist::TraceEncoding::kDurations, ns_dist::TraceEncoding::kRoofline}) {
    const ns_dist::ReplayReport report = ns_dist::replay(traces, {{1, {0, 1}}}, encoding);
    NS_EXPECTS(report.ok() || !report.problems.empty());  // nothing hangs without a reason
  }
  return 0;
}
