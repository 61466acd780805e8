#include "sinks/kinds.h"
#include "sinks/text_file.h"

namespace ns_dist {
namespace {

// Work names hold no commas or quotes: they are the planner's identifiers.
class CsvSink final : public TraceSink {
 public:
  explicit CsvSink(OutputFile file) : file_(std::move(file)) {}

  Result<void> begin(const ExecutionGraph& graph) override {
    graph_ = &graph;
    file_.write("node,stage,lane,name,category,microbatch,layer,start_s,end_s\n");
    return file_.check();
  }

  Result<void> span(NodeId id, const Span& span) override {
    const GraphNode& node = graph_->node(id);
    const WorkItem& item = graph_->work_of(id);
    file_.write("{},{},{},{},{},{},{},{},{}\n", index(id), ExecutionGraph::stage_of(node.lane),
                name_of(ExecutionGraph::stream_of(node.lane)), item.name, name_of(item.category),
                node.origin.microbatch, node.origin.layer, span.start / units::s, span.end / units::s);
    return file_.check();
  }

  Result<void> finish() override { return file_.finish(); }

 private:
  TextFile file_;
  const ExecutionGraph* graph_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<TraceSink>> make_csv_sink(const std::string& path) {
  NS_TRY(OutputFile file, OutputFile::open(path));
  return std::make_unique<CsvSink>(std::move(file));
}

}  // namespace ns_dist
