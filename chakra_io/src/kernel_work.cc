// This file and what it needs are free of protobuf, for programs that have their own.
#include "kernel_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/printable.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/operator_text.h"
#include "pytorch_operators.h"
#include "symbolic_operators.h"

namespace ns_dist {
namespace chakra {

std::optional<double> number_at(const TraceNode& node, std::string_view name) {
  const TraceValue* value = node.attribute(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<std::int64_t>(value)) return static_cast<double>(*number);
  if (const auto* natural = std::get_if<std::uint64_t>(value)) return static_cast<double>(*natural);
  if (const auto* real = std::get_if<double>(value)) return *real;
  if (const auto* flag = std::get_if<bool>(value)) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<std::int64_t> stream_at(const TraceNode& node) {
  const std::optional<double> number = number_at(node, "tid");
  if (!number || std::isnan(*number)) return std::nullopt;
  return static_cast<std::int64_t>(std::clamp(*number, -1e15, 1e15));
}

std::string text_at(const TraceNode& node, std::string_view name) {
  const TraceValue* value = node.attribute(name);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? std::string() : *text;
}

std::string factors_at(const TraceNode& node) {
  constexpr std::string_view kName = "ns_dist_factor";
  if (const auto number = number_at(node, kName)) return fmt::format("{}", *number);
  const TraceValue* value = node.attribute(kName);
  if (value == nullptr) return "";
  const auto* text = std::get_if<std::string>(value);
  return text == nullptr ? "(a list)" : *text;
}

Result<std::vector<double>> factors_from(std::string_view text, std::size_t operators) {
  constexpr double kMost = 1e6;
  std::vector<double> out;
  if (text.empty()) return out;
  const auto wrong = [&] {
    const std::string more = operators > 1 ? fmt::format(", or {} with \"|\" between them", operators) : "";
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("attribute ns_dist_factor is \"{}\"", printable(text.substr(0, 60))), "",
                 fmt::format("a number above 0, at most {}{}", kMost, more)});
  };
  for (const std::string_view part : split_at(text, "|")) {
    const auto factor = number_from<double>(part);
    if (!factor || !(*factor > 0) || *factor > kMost) return wrong();
    out.push_back(*factor);
  }
  if (out.size() == 1) out.resize(operators, out.front());
  if (out.size() != operators) return wrong();
  return out;
}

std::string operator_name(const TraceNode& node) {
  std::string text = text_at(node, "op_schema");
  if (text.empty()) text = node.name;
  text = text.substr(0, text.find('('));
  const std::size_t colons = text.find("::");  // an overload is written as aten::add.Tensor
  if (colons == std::string::npos) return "";
  return text.substr(0, text.find('.', colons));
}

bool is_wait(const Operator& op) { return ns_dist::work_of(op) == Work(); }

bool work_is_time(const TraceNode& node) {
  return node.attribute("ns_dist_duration_ns") != nullptr && number_at(node, "tensor_size") == 1 &&
         std::fmod(number_at(node, "num_ops").value_or(0), 1000) == 500;
}

}  // namespace chakra

using namespace chakra;

const TraceValue* TraceNode::attribute(std::string_view attribute_name) const {
  for (const TraceAttribute& candidate : attributes) {
    if (candidate.name == attribute_name) return &candidate.value;
  }
  return nullptr;
}

Result<KernelWork> kernel_work(const TraceNode& node) {
  if (const std::string specs = text_at(node, "ns_dist_op"); !specs.empty()) {
    if (auto operators = operators_from_specs(specs)) {
      if (std::any_of(operators->begin(), operators->end(), is_wait)) return KernelWork();
      NS_TRY(std::vector<double> factors, factors_from(factors_at(node), operators->size()));
      return KernelWork{kOperatorAttribute, *std::move(operators), std::move(factors)};
    }
  }
  if (const auto op = pytorch_operator(operator_name(node), node.inputs)) {
    return KernelWork{"PyTorch operator", {*op}, {}};
  }
  if (const auto symbols = symbolic_node(node)) {
    const auto op = symbolic_operator(*symbols, {});
    return op ? KernelWork{"STAGE symbols", {*op}, {}} : KernelWork{};
  }
  // STAGE's multiply-adds and elements, and no tensors with them.
  if (!text_at(node, "op_type").empty()) return KernelWork();
  const double flops = number_at(node, "num_ops").value_or(0), bytes = number_at(node, "tensor_size").value_or(0);
  if (!(flops >= 0) || !(bytes > 0) || work_is_time(node)) return KernelWork();
  const Operator op{UnknownOperator{"work", flops * units::FLOP, bytes * units::B, Bytes()}};
  if (!validate(op)) return KernelWork();
  return KernelWork{"work", {op}, {}};
}

}  // namespace ns_dist
