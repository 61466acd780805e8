#include "neusight/model_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "csv_rows.h"

namespace ns_dist {
namespace {

std::optional<std::vector<std::int64_t>> whole_numbers(std::string_view text, char separator) {
  std::vector<std::int64_t> values;
  while (!text.empty()) {
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || value < 0) return std::nullopt;
    values.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) break;
    if (text.front() != separator || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return values;
}

// Far beyond any tensor of a model, and what products of two sizes and sums over a model still hold in 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;
constexpr double kMostElements = 1e12;

bool usable(const TensorShape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size <= kLargestSize; }) &&
         elements_of(shape) <= kMostElements;
}

// Kinds whose kernels are so many rows of the last dimension: a table of rows, normalizations, products.
bool needs_width(std::string_view kind) {
  constexpr std::array<std::string_view, 5> kKinds = {"EMBEDDING", "VECln", "VECsoftmax", "Linear", "BMM"};
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
}

Error bad(const std::string& where, std::string message, std::string expected) {
  Error error;
  error.message = std::move(message);
  error.where = where;
  error.expected = std::move(expected);
  return error;
}

}  // namespace

double elements_of(const TensorShape& shape) {
  if (shape.empty()) return 0;
  double elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<double>(size);
  return elements;
}

const ModelNode* ModelGraph::find(std::int64_t index) const {
  const auto found = std::lower_bound(nodes.begin(), nodes.end(), index,
                                      [](const ModelNode& node, std::int64_t wanted) { return node.index < wanted; });
  return found != nodes.end() && found->index == index ? &*found : nullptr;
}

Result<std::map<std::string, ModelGraph, std::less<>>> read_model_graphs(const std::filesystem::path& nodes,
                                                                         const std::filesystem::path& operators,
                                                                         std::vector<Error>& mistakes) {
  std::map<std::string, ModelGraph, std::less<>> graphs;
  NS_TRY(CsvRows rows, CsvRows::open(nodes, {"graph", "idx", "name", "op_name", "in_layer", "in_shapes", "out_shape"}));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows.go_to(i);
    ModelNode node;
    node.index = rows.whole("idx", -1);
    node.name = rows.text("name"), node.kind = rows.text("op_name");
    node.in_layer = rows.whole("in_layer", 0) != 0;
    const auto output = whole_numbers(rows.text("out_shape"), 'x');
    const auto previous = whole_numbers(rows.text("prev"), ';');
    std::string_view inputs = rows.text("in_shapes");
    bool readable = output && previous && node.index >= 0;
    while (readable && !inputs.empty()) {
      const std::size_t end = std::min(inputs.find(';'), inputs.size());
      const auto shape = whole_numbers(inputs.substr(0, end), 'x');
      readable = shape.has_value();
      if (shape) node.inputs.push_back(*shape);
      inputs.remove_prefix(std::min(end + 1, inputs.size()));
    }
    if (auto mistake = rows.mistake()) {
      mistakes.push_back(std::move(*mistake));
      continue;
    }
    if (!readable) {
      mistakes.push_back(bad(rows.where(), fmt::format("node \"{}\" has an unreadable idx, shape or prev", node.name),
                             "idx 12, shapes 4x1024;1, prev 3;7"));
      continue;
    }
    if (!usable(*output) || !std::all_of(node.inputs.begin(), node.inputs.end(), usable)) {
      mistakes.push_back(bad(rows.where(), fmt::format("node \"{}\" has a tensor too large to be one", node.name),
                             fmt::format("sizes up to {}, {:g} elements", kLargestSize, kMostElements)));
      continue;
    }
    if (needs_width(node.kind) && !(elements_of(*output) > 0)) {
      mistakes.push_back(bad(rows.where(),
                             fmt::format("node \"{}\" is {} with nothing in its output", node.name, node.kind),
                             "an out_shape of sizes above 0, as in 4x1024"));
      continue;
    }
    node.output = *output, node.previous = *previous;
    graphs[std::string(rows.text("graph"))].nodes.push_back(std::move(node));
  }
  for (auto& [name, graph] : graphs) {
    std::stable_sort(graph.nodes.begin(), graph.nodes.end(),
                     [](const ModelNode& a, const ModelNode& b) { return a.index < b.index; });
  }

  constexpr std::array kSizes = {&ModelOperator::b, &ModelOperator::m, &ModelOperator::n, &ModelOperator::k,
                                 &ModelOperator::h};
  constexpr std::array kCounts = {&ModelOperator::elements, &ModelOperator::in_elements, &ModelOperator::out_elements};
  NS_TRY(CsvRows ops, CsvRows::open(operators, {"graph", "idx", "phase", "op", "b", "m", "n", "k", "h", "elems"}));
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops.go_to(i);
    ModelOperator op;
    op.op = ops.text("op");
    op.b = ops.whole("b", 0), op.m = ops.whole("m", 0), op.n = ops.whole("n", 0), op.k = ops.whole("k", 0),
    op.h = ops.whole("h", 0);
    op.elements = ops.number("elems").value_or(0), op.in_elements = ops.number("in_elems").value_or(0),
    op.out_elements = ops.number("out_elems").value_or(0);
    const std::int64_t index = ops.whole("idx", -1);
    const std::string_view phase = ops.text("phase");
    if (auto mistake = ops.mistake()) {
      mistakes.push_back(std::move(*mistake));
      continue;
    }
    const bool sizes = std::all_of(kSizes.begin(), kSizes.end(),
                                   [&](const auto size) { return op.*size >= 0 && op.*size <= kLargestSize; });
    const bool counts = std::all_of(kCounts.begin(), kCounts.end(),
                                    [&](const auto count) { return op.*count >= 0 && op.*count <= kMostElements; });
    if (!sizes || !counts) {
      mistakes.push_back(
          bad(ops.where(), fmt::format("operator \"{}\" has a size out of range", op.op),
              fmt::format("b, m, n, k, h from 0 to {}, elements up to {:g}", kLargestSize, kMostElements)));
      continue;
    }
    const auto graph = graphs.find(ops.text("graph"));
    ModelNode* node = graph == graphs.end() ? nullptr : const_cast<ModelNode*>(graph->second.find(index));
    if (node == nullptr) {
      mistakes.push_back(bad(ops.where(), fmt::format("graph \"{}\" has no node {}", ops.text("graph"), index),
                             "a graph and idx of the table of nodes"));
      continue;
    }
    if (phase != "fw" && phase != "bw" && phase != "acc") {
      mistakes.push_back(bad(ops.where(), fmt::format("phase is \"{}\"", phase), "fw, bw or acc"));
      continue;
    }
    node->operators[phase == "fw" ? 0 : phase == "bw" ? 1 : 2].push_back(std::move(op));
  }
  return graphs;
}

}  // namespace ns_dist
