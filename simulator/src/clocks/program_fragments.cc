#include "clocks/program_fragments.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

ProgramFragments::Compiled compile(const Fragment& fragment, const WorkTable& works) {
  ProgramFragments::Compiled result;
  result.count = static_cast<std::uint32_t>(fragment.nodes.size());
  NS_EXPECTS(result.count < 10'000);
  result.nodes.resize(result.count + std::size_t{1});
  std::array<std::uint32_t, kFragmentStreams> last = nothing_on_streams();
  std::vector<std::uint32_t> successors_of(result.count + std::size_t{1}, 0);
  const auto for_each_edge = [&](auto visit) {
    for (std::uint32_t n = 0; n < result.count; ++n) {
      const FragmentNode& node = fragment.nodes[n];
      for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
        const std::int32_t on = fragment.dependencies[node.first_dependency + d];
        if (on < 0 || fragment.nodes[static_cast<std::size_t>(on)].stream == node.stream) continue;
        visit(static_cast<std::uint32_t>(on), n);
      }
    }
  };
  for (std::uint32_t n = 0; n < result.count; ++n) {
    ProgramFragments::Node& node = result.nodes[n];
    node.work = index(fragment.nodes[n].work);
    node.stream = static_cast<std::uint8_t>(fragment.nodes[n].stream);
    NS_EXPECTS(node.stream < kFragmentStreams);
    node.flow = !std::holds_alternative<Operator>(works[node.work].work);
    std::uint32_t& before = last[node.stream];
    (before == kNone ? result.first[node.stream] : result.nodes[before].next) = n;
    before = n;
  }
  for_each_edge([&](std::uint32_t from, std::uint32_t to) {
    ++successors_of[from];
    ++result.nodes[to].needed;
  });
  std::uint32_t edges = 0;
  for (std::uint32_t n = 0; n <= result.count; ++n) {
    result.nodes[n].first_successor = edges;
    edges += std::exchange(successors_of[n], edges);
  }
  result.successors.resize(edges);
  for_each_edge([&](std::uint32_t from, std::uint32_t to) { result.successors[successors_of[from]++] = to; });
  for (std::uint32_t n = 0; n < result.count; ++n) {
    ProgramFragments::Node& node = result.nodes[n];
    node.ends_piece = node.next == kNone || result.nodes[node.next].needed > 0 || node.flow ||
                      result.nodes[node.next].flow ||
                      node.first_successor != result.nodes[n + std::size_t{1}].first_successor;
  }
  return result;
}

// Each stream runs one flow at a time.
void count_ports(const ProgramFragments::Compiled& fragment, const std::vector<FlowDemand>& demands,
                 ProgramFragments::Runs& runs) {
  for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) {
    std::vector<double> most;
    for (std::uint32_t n = fragment.first[stream]; n != kNone; n = fragment.nodes[n].next) {
      if (!fragment.nodes[n].flow) continue;
      for (const FlowDemand::Port& port : demands[fragment.nodes[n].work].ports) {
        if (most.size() <= port.level) most.resize(port.level + std::size_t{1});
        most[port.level] = std::max(most[port.level], port.share);
      }
    }
    if (runs.ports.size() < most.size()) runs.ports.resize(most.size());
    for (std::size_t level = 0; level < most.size(); ++level) runs.ports[level] += most[level];
  }
  runs.crowded = std::any_of(runs.ports.begin(), runs.ports.end(), [](double share) { return share > kFullPort; });
}

}  // namespace

ProgramFragments::ProgramFragments(const StepProgram& program, const ProgramCosts& costs) {
  compiled_.reserve(program.fragments.size());
  for (const Fragment& fragment : program.fragments) compiled_.push_back(compile(fragment, program.works));
  rows_.resize(costs.rows.size());
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const ProgramCosts::Row& from = costs.rows[r];
    Row& row = rows_[r];
    row.demands.reserve(from.forecasts.size());
    for (std::size_t w = 0; w < from.forecasts.size(); ++w) {
      row.demands.push_back(flow_demand(program.works[w], from.demands.empty() ? Demand{} : from.demands[w]));
    }
    shares_ = shares_ || !from.demands.empty();
  }
  for (Row& row : rows_) {
    row.runs.resize(compiled_.size());
    for (std::size_t f = 0; f < compiled_.size(); ++f) count_ports(compiled_[f], row.demands, row.runs[f]);
  }
  set_grid(Grid{}, costs);
}

void ProgramFragments::set_grid(const Grid& grid, const ProgramCosts& costs) {
  grid_ = grid;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    rows_[r].durations.clear();
    for (const Forecast& forecast : costs.rows[r].forecasts) {
      rows_[r].durations.push_back(grid.snap(forecast.latency / units::s));
    }
    for (Runs& runs : rows_[r].runs) runs.beside.clear();
  }
}

}  // namespace ns_dist
