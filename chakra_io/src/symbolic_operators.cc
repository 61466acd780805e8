#include "symbolic_operators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "kernel_work.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/split_at.h"

namespace ns_dist::chakra {
namespace {

constexpr double kMostElements = 1e15;
// What STAGE lists for a weight: the weight, and twice two moments.
constexpr double kWithStates = 5;

bool whole(double x) { return x >= 1 && x <= kMostElements && x == std::floor(x); }
std::int64_t count(double x) { return static_cast<std::int64_t>(x); }

// Dimensions of an operand that its product sums over.
std::vector<std::string_view> summed(const SymbolicTensor& operand, const SymbolicTensor& output) {
  std::vector<std::string_view> kept = split_at(output.shape, ","), out;
  for (const std::string_view dimension : split_at(operand.shape, ",")) {
    const auto found = std::find(kept.begin(), kept.end(), dimension);
    if (found == kept.end()) {
      out.push_back(dimension);
    } else {
      kept.erase(found);
    }
  }
  return out;
}

std::size_t letters(const std::vector<std::string_view>& texts) {
  std::size_t sum = 0;
  for (const std::string_view text : texts) sum += text.size();
  return sum;
}

std::optional<Gemm> product(const SymbolicNode& node, const SymbolicSizes& sizes) {
  const double k = node.operations / node.elements;
  if (node.inputs.size() != 2 || !whole(k)) return std::nullopt;
  std::array<const SymbolicTensor*, 2> operands = {&node.inputs[0], &node.inputs[1]};
  std::array<std::vector<std::string_view>, 2> sums = {summed(*operands[0], node.output),
                                                       summed(*operands[1], node.output)};
  const auto leads = [&](std::size_t i) { return !sums[i].empty() && operands[i]->shape.rfind(sums[i][0], 0) == 0; };
  // A weight's gradient sums over what comes first in both.
  const GemmLayout layout = leads(0) && leads(1) ? GemmLayout::kTN : GemmLayout::kNT;
  // An operand may be listed before a collective put it together. Its dimensions are divided once more, by "tp".
  if (letters(sums[0]) < letters(sums[1])) std::swap(operands[0], operands[1]);
  for (const std::size_t one : {1U, 0U}) {
    const SymbolicTensor& weight = *operands[one];
    const double other = sizes.of(*operands[1 - one]);
    for (const double copies : {1.0, kWithStates}) {
      if (copies > 1 && sizes.knows(weight)) break;
      const double n = sizes.of(weight) / copies / k, m = node.elements / n;
      const double shards = other > 0 ? m * k / other : 1;
      if (!whole(n) || !whole(m) || shards < 1 || (!sizes.knows(weight) && !whole(shards))) continue;
      return Gemm{.m = count(m), .n = count(n), .k = count(k), .layout = layout};
    }
  }
  const double a = sizes.of(*operands[0]), b = sizes.of(*operands[1]);
  const double batch = a * b / (node.elements * k * k), m = a / (batch * k), n = b / (batch * k);
  if (!whole(batch) || !whole(m) || !whole(n)) return std::nullopt;
  return Gemm{.batch = count(batch), .m = count(m), .n = count(n), .k = count(k), .layout = layout};
}

std::optional<SymbolicTensor> tensor_at(const std::vector<std::string>& list, std::size_t i) {
  const std::size_t version = list[i].rfind('@');
  if (version == std::string::npos || version + 2 >= list[i].size()) return std::nullopt;
  const double elements = number_from<double>(list[i + 1]).value_or(0);
  return SymbolicTensor{list[i].substr(version + 2), elements > 0 && elements < kMostElements ? elements : 0};
}

// [name, size, name, size, ...]
std::vector<SymbolicTensor> tensors_of(const TraceNode& node, std::string_view name) {
  std::vector<SymbolicTensor> out;
  const TraceValue* value = node.attribute(name);
  const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<std::string>>(value);
  for (std::size_t i = 0; list != nullptr && i + 1 < list->size(); i += 2) {
    if (auto tensor = tensor_at(*list, i)) out.push_back(*std::move(tensor));
  }
  return out;
}

OperatorKind kind_of(const SymbolicNode& node, const SymbolicSizes& sizes) {
  const double elements = node.elements, tensors = static_cast<double>(node.inputs.size());
  if (node.type == "M") {
    const std::optional<Gemm> gemm = product(node, sizes);
    if (gemm && gemm->k > 1 && (gemm->m > 1 || gemm->n > 1)) return *gemm;
    double moved = elements;
    for (const SymbolicTensor& input : node.inputs) moved += sizes.of(input);
    if (!gemm && node.operations > elements) {
      return UnknownOperator{"product", 2 * node.operations * units::FLOP, 2 * (moved - elements) * units::B,
                             2 * elements * units::B};
    }
    return Elementwise{"product", count(elements), moved / elements - 1, 1, 2 * node.operations / elements};
  }
  // An update: what comes out is the weight with its states.
  if (node.type == "A" && node.output.elements >= kWithStates * elements) return OptimizerStep{count(elements)};
  if (node.type == "SLICE" || node.type == "R" || node.type == "C") return Copy{2 * elements * units::B};
  // Sums or copies along a dimension.
  if (node.type == "B") return Elementwise{"broadcast", count(elements), sizes.of(node.inputs[0]) / elements};
  return Elementwise{"elementwise", count(elements), tensors, 1, node.operations / elements};
}

}  // namespace

std::optional<SymbolicNode> symbolic_node(const TraceNode& node) {
  SymbolicNode out;
  out.type = text_at(node, "op_type");
  if (out.type.empty()) return std::nullopt;
  out.operations = number_at(node, "num_ops").value_or(0);
  out.elements = number_at(node, "tensor_size").value_or(0);
  out.inputs = tensors_of(node, "inputs");
  const std::vector<SymbolicTensor> outputs = tensors_of(node, "outputs");
  if (out.inputs.empty() || outputs.size() != 1 || !whole(out.elements) || !(out.operations > 0)) return std::nullopt;
  out.output = outputs.front();
  return out;
}

void SymbolicSizes::learn(const SymbolicNode& node) { sizes_.try_emplace(node.output.shape, node.elements); }

double SymbolicSizes::of(const SymbolicTensor& tensor) const {
  const auto found = sizes_.find(tensor.shape);
  return found == sizes_.end() ? tensor.elements : found->second;
}

std::optional<Operator> symbolic_operator(const SymbolicNode& node, const SymbolicSizes& sizes) {
  const Operator op{kind_of(node, sizes), DType::kBf16};
  return validate(op) ? std::optional(op) : std::nullopt;
}

}  // namespace ns_dist::chakra
