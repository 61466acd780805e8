#include <string>
#include <vector>

#include "sinks/kinds.h"
#include "sinks/text_file.h"

namespace ns_dist {
namespace {

// Chrome's trace event format, which ui.perfetto.dev reads: a stage is a process, a lane a thread, a node a complete
// event ("X", microseconds). A message to another stage is a flow: it starts ("s") in the message and ends ("f") in the
// node that waited for it.
class PerfettoSink final : public TraceSink {
 public:
  explicit PerfettoSink(OutputFile file) : file_(std::move(file)) {}

  Result<void> begin(const ExecutionGraph& graph) override {
    graph_ = &graph;
    for (const WorkItem& item : graph.works()) {
      tails_.push_back(fmt::format(R"("name":"{}","cat":"{}")", escaped(item.name), name_of(item.category)));
      is_message_.push_back(std::holds_alternative<Message>(item.work));
    }
    file_.write(R"({{"displayTimeUnit":"ms","traceEvents":[)");
    for (std::int64_t stage = 0; stage < graph.stage_count(); ++stage) {
      event(R"("ph":"M","pid":{0},"name":"process_name","args":{{"name":"stage {0}"}})", stage);
      event(R"("ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}})", stage);
    }
    std::vector<bool> used(graph.lane_count());
    for (const GraphNode& node : graph.nodes()) used[index(node.lane)] = true;
    for (std::uint32_t lane = 0; lane < graph.lane_count(); ++lane) {
      if (!used[lane]) continue;
      const auto stream = ExecutionGraph::stream_of(LaneId{lane});
      event(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}})",
            ExecutionGraph::stage_of(LaneId{lane}), static_cast<int>(stream), name_of(stream));
    }
    return file_.check();
  }

  Result<void> span(NodeId id, const Span& span) override {
    const GraphNode& node = graph_->node(id);
    const std::int64_t stage = ExecutionGraph::stage_of(node.lane);
    const auto stream = static_cast<int>(ExecutionGraph::stream_of(node.lane));
    const double start = span.start / units::us;
    constexpr auto kNode =
        R"("ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},{},"args":{{"microbatch":{},"layer":{}}})";
    event(kNode, stage, stream, start, (span.end - span.start) / units::us, tails_[index(node.work)],
          node.origin.microbatch, node.origin.layer);
    if (is_message_[index(node.work)]) {
      event(R"("ph":"s","id":{},"pid":{},"tid":{},"ts":{:.3f},"name":"message","cat":"flow")", index(id), stage, stream,
            start);
    }
    for (const NodeId dependency : graph_->dependencies(id)) {
      const GraphNode& from = graph_->node(dependency);
      if (!is_message_[index(from.work)] || ExecutionGraph::stage_of(from.lane) == stage) continue;
      constexpr auto kArrival =
          R"("ph":"f","bp":"e","id":{},"pid":{},"tid":{},"ts":{:.3f},"name":"message","cat":"flow")";
      event(kArrival, index(dependency), stage, stream, start);
    }
    return file_.check();
  }

  Result<void> finish() override {
    file_.write("\n]}}\n");
    return file_.finish();
  }

 private:
  template <class... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    file_.write("{}{{", first_ ? "" : ",\n");
    file_.write(format, std::forward<Args>(args)...);
    file_.write("}}");
    first_ = false;
  }

  static std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return result;
  }

  TextFile file_;
  const ExecutionGraph* graph_ = nullptr;
  std::vector<std::string> tails_;  // by WorkId
  std::vector<bool> is_message_;    // by WorkId
  bool first_ = true;
};

}  // namespace

Result<std::unique_ptr<TraceSink>> make_perfetto_sink(const std::string& path) {
  NS_TRY(OutputFile file, OutputFile::open(path));
  return std::make_unique<PerfettoSink>(std::move(file));
}

}  // namespace ns_dist
