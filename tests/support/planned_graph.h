// The step of a plan as a graph, and what its nodes add up to.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "ns_dist/planner.h"

namespace ns_dist {

// Every pass of every microbatch, written out. Errors: those of plan_program.
inline Result<ExecutionGraph> planned_graph(const Model& model, const ParallelPlan& plan, const Training& training) {
  return plan_program(model, plan, training).map([](const StepProgram& program) { return expand(program).graph; });
}

// Sums over the representative ranks of all stages, by name of the work.
struct Totals {
  std::map<std::string, std::int64_t> nodes;
  std::map<std::string, double> bytes;     // of collectives and messages
  std::map<std::string, double> elements;  // of elementwise kernels
  std::map<std::string, double> flops;     // of products
  std::int64_t of(const std::string& name) const { return nodes.contains(name) ? nodes.at(name) : 0; }
  double product_flops(std::string_view prefix = "") const {
    double sum = 0;
    for (const auto& [name, some] : flops) sum += name.starts_with(prefix) ? some : 0;
    return sum;
  }
  friend bool operator==(const Totals&, const Totals&) = default;
};

inline Totals totals_of(const ExecutionGraph& graph) {
  Totals sums;
  for (const GraphNode& node : graph.nodes()) {
    const WorkItem& item = graph.works()[index(node.work)];
    ++sums.nodes[item.name];
    if (const auto* collective = std::get_if<Collective>(&item.work)) {
      sums.bytes[item.name] += collective->size / units::B;
    } else if (const auto* message = std::get_if<Message>(&item.work)) {
      sums.bytes[item.name] += message->size / units::B;
    } else if (const auto& kind = std::get<Operator>(item.work).kind; const auto* gemm = std::get_if<Gemm>(&kind)) {
      sums.flops[item.name] +=
          2.0 * static_cast<double>(gemm->batch * gemm->m) * static_cast<double>(gemm->n * gemm->k);
    } else if (const auto* grouped = std::get_if<GroupedGemm>(&kind)) {
      sums.flops[item.name] += 2.0 * static_cast<double>(grouped->rows) * static_cast<double>(grouped->n * grouped->k);
    } else if (const auto* elementwise = std::get_if<Elementwise>(&kind)) {
      sums.elements[item.name] += static_cast<double>(elementwise->elements);
    }
  }
  return sums;
}

// Of a plan that must be possible.
inline Totals totals_of(const Model& model, const ParallelPlan& plan, const Training& training) {
  const auto graph = planned_graph(model, plan, training);
  EXPECT_TRUE(graph) << (graph ? "" : to_text(graph.error()));
  return graph ? totals_of(*graph) : Totals{};
}

}  // namespace ns_dist
