#include "replica_exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include "blocks/common.h"
#include "ns_dist/planner.h"
#include "stage_parameters.h"

namespace ns_dist {
namespace {

// What `make` returns, made once.
template <class Make>
std::span<const WorkId> once(std::optional<std::vector<WorkId>>& known, Make make) {
  if (!known) known = make();
  return *known;
}
template <class Known, class Make>
std::span<const WorkId> once(Known& known, const RankParameters& parameters, Make make) {
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.first == parameters; });
  return found != known.end() ? found->second : known.emplace_back(parameters, make()).second;
}

}  // namespace

bool gathers_casts(const ParallelPlan& plan, const Shape& shape) {
  return plan.fp8_params && (shape.precision == Precision::kFp8 || shape.precision == Precision::kFp8Block);
}

ReplicaCollectives::ReplicaCollectives(const ParallelPlan& plan, const Shape& shape, const Mesh& mesh,
                                       std::span<const MatrixShares> shares)
    : plan_(plan), shape_(shape), groups_{replica_groups(plan, mesh, 0, false), replica_groups(plan, mesh, 0, true)} {
  for (const MatrixShares& stage : shares) {
    padding_ = std::max(padding_, stage.padding);
    expert_padding_ = std::max(expert_padding_, stage.expert_padding);
  }
}

Bytes ReplicaCollectives::gathered_size(const RankParameters& held, bool experts) const {
  const double all = experts ? held.experts : held.dense;
  const double of_products = experts ? held.quantized_experts : held.quantized - held.quantized_experts;
  const double quantized = gathers_casts(plan_, shape_) ? of_products : 0;
  return (shape_.element * (all - quantized) + shape_.weight_element * quantized) * units::B;
}

std::vector<WorkItem> ReplicaCollectives::gathers(const RankParameters& parameters) const {
  std::vector<WorkItem> items;
  for (const bool experts : {false, true}) {
    const RankGroup& group = groups_[experts ? 1 : 0].sharing;
    const Bytes size = gathered_size(in_buffers(parameters), experts);
    if (group.size() == 1 || !(size > Bytes())) continue;
    items.push_back({experts ? "experts.weights.all_gather" : "weights.all_gather", Category::kDataParallel,
                     Collective{CollectiveKind::kAllGather, size, group}});
  }
  return items;
}

std::vector<WorkItem> ReplicaCollectives::reductions(const RankParameters& parameters) const {
  const RankParameters reduced = in_buffers(parameters);
  std::vector<WorkItem> items;
  for (const bool experts : {false, true}) {
    const auto& [sharing, copies] = groups_[experts ? 1 : 0];
    const std::string name = experts ? "experts.gradients" : "gradients";
    const Bytes size = (experts ? reduced.experts : reduced.dense) * gradient_size(plan_, shape_.dtype);
    if (!(size > Bytes())) continue;
    const bool whole = all_reduces_gradients(plan_);
    if (sharing.size() > 1) {
      items.push_back({name + (whole ? ".all_reduce" : ".reduce_scatter"), Category::kDataParallel,
                       Collective{whole ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter, size, sharing}});
    }
    if (copies.size() > 1) {
      items.push_back(
          {name + ".all_reduce", Category::kDataParallel,
           Collective{CollectiveKind::kAllReduce, whole ? size : size / static_cast<double>(sharing.size()), copies}});
    }
  }
  return items;
}

RankParameters FillingBuckets::add(const RankParameters& part, double least) {
  const RankParameters experts{.experts = part.experts,
                               .quantized = part.quantized_experts,
                               .quantized_experts = part.quantized_experts,
                               .expert_matrices = part.expert_matrices};
  experts_ += experts;
  others_ += part;
  others_ += experts * -1;
  RankParameters full;
  if (experts_.experts >= least) full += std::exchange(experts_, {});
  if (others_.dense >= least) full += std::exchange(others_, {});
  return full;
}

RankParameters FillingBuckets::rest() { return add({}, 0); }

ReplicaExchange::ReplicaExchange(const ParallelPlan& plan, const Shape& shape, const ModelParts& parts, bool one_table,
                                 std::span<const MatrixShares> shares, ProgramWriter& writer)
    : plan_(plan),
      shape_(shape),
      parts_(parts),
      one_table_(one_table),
      writer_(writer),
      collectives_(plan, shape, writer.program().mesh, shares),
      unpackings_(parts.parts.size()),
      of_rounds_(parts.parts.size()) {}

RankParameters ReplicaExchange::parameters(Part part, RankParameters ModelPart::*which) const {
  return part_parameters(shape_, parts_, part, one_table_, which);
}

RankParameters ReplicaExchange::gathered_once(Part part) const {
  RankParameters weights = parameters(part);
  if (is_whole_in_passes(plan_)) weights += parameters(part, &ModelPart::frozen);
  return weights;
}

std::span<const WorkId> ReplicaExchange::gathers(const RankParameters& parameters) {
  return once(gathers_, parameters, [&] { return writer_.intern(collectives_.gathers(parameters)); });
}

std::span<const WorkId> ReplicaExchange::reductions(const RankParameters& parameters) {
  return once(reductions_, parameters, [&] { return writer_.intern(collectives_.reductions(parameters)); });
}

std::span<const WorkId> ReplicaExchange::gathers(Part part) {
  RankParameters weights = parameters(part);
  if (shards_weights(plan_)) weights += parameters(part, &ModelPart::frozen);
  return gathers(weights);
}

Bytes ReplicaExchange::loaded(Part part) const {
  if (!offloads_weights(plan_)) return Bytes();
  const RankParameters trained = parameters(part), frozen = parameters(part, &ModelPart::frozen);
  RankParameters weights = trained;
  weights += frozen;
  if (weights.total() == 0) return Bytes();
  const RankParameters& as_gathered = has_fp32_shards(plan_) ? frozen : weights;
  const Bytes whole = (has_fp32_shards(plan_) ? trained.total() * size_of(DType::kFp32) : Bytes()) +
                      collectives_.gathered_size(as_gathered, false) + collectives_.gathered_size(as_gathered, true);
  return whole * (share_of_rank(weights, plan_) / weights.total());
}

std::span<const WorkId> ReplicaExchange::reductions(Part part) { return reductions(parameters(part)); }

std::span<const WorkId> ReplicaExchange::reductions_of_round(Part part) {
  return once(of_rounds_[static_cast<std::size_t>(part)], [&] {
    const RankParameters whole = replicated(parameters(part), plan_);
    std::vector<WorkItem> items = collectives_.reductions(whole);
    const auto add = [&](const char* name, double elements, double inputs, double flops, const char* what) {
      const auto count = static_cast<std::int64_t>(elements);
      if (count == 0) return;
      items.push_back({name, Category::kBackward,
                       Operator{Elementwise{what, count, inputs, 1, flops}, gradient_type(plan_, shape_.dtype)}});
    };
    add("gradients.accumulate", share_of_rank(whole, plan_), 2, 1, "add");
    add("gradients.clear", whole.total(), 0, 0, "fill");
    return writer_.intern(std::move(items));
  });
}

std::span<const WorkId> ReplicaExchange::unpackings(Part part) {
  return once(unpackings_[static_cast<std::size_t>(part)], [&] {
    std::vector<WorkItem> items;
    RankParameters weights = parameters(part);
    weights += parameters(part, &ModelPart::frozen);
    if (plan_.zero_library == ZeroLibrary::kFsdp2 && weights.total() > 0) {
      const Bytes all = collectives_.gathered_size(weights, false) + collectives_.gathered_size(weights, true);
      items.push_back({"weights.unpack", Category::kForward, Operator{Copy{all}, shape_.dtype}});
    }
    if (const auto casts = static_cast<std::int64_t>(weights.quantized); casts > 0 && casts_in_passes(plan_)) {
      items.push_back({"weights.quantize", Category::kForward,
                       Operator{blocks::cast(shape_, casts, shape_.weight_element), shape_.dtype}});
    }
    return writer_.intern(std::move(items));
  });
}

void ReplicaExchange::scale_gradients(const RankParameters& parameters, std::int64_t layer, Bodies& body) {
  if (plan_.average_in_collective) return;
  const auto count = static_cast<std::int64_t>(in_buffers(parameters).total());
  if (count == 0) return;
  const Elementwise scale{"scale", count, 1, 1, 1};
  body.push_back(run_of(writer_.kernel("gradients.scale", count, scale, gradient_type(plan_, shape_.dtype)), layer));
}

LayerExchanges layer_exchanges(const Model& model, const ParallelPlan& plan, const Training& training,
                               PlanCache& cache) {
  if (!exchanges_by_layer(plan) || plan.optimizer == OptimizerKind::kMuon || has_layers_in_16_bits(plan)) return {};
  const std::shared_ptr<const ModelParts> parts = part_sizes(model, plan, training, cache);
  const Shape shape(model, plan, training);
  const ReplicaCollectives collectives(plan, shape, mesh_of(plan), {});
  LayerExchanges found{{}, parts->layers.of_layer};
  for (std::size_t kind = 0; kind < parts->layers.kinds.size(); ++kind) {
    const ModelPart& layer = (*parts)[layer_part(kind, LayerPart::kUsual, false)];
    LayerExchange& exchange = found.kinds.emplace_back();
    const auto add = [](const std::vector<WorkItem>& items, std::vector<Collective>& to) {
      for (const WorkItem& item : items) to.push_back(std::get<Collective>(item.work));
    };
    RankParameters weights = layer.parameters;
    weights += layer.frozen;
    if (shards_weights(plan)) add(collectives.gathers(weights), exchange.forward);
    if (plan.passes == Passes::kForward) continue;
    if (shards_weights(plan) && plan.reshard) exchange.backward = exchange.forward;
    if (adds_up_gradients(plan)) continue;  // of a round, most passes have none
    add(collectives.reductions(layer.parameters), exchange.backward);
  }
  // Frozen layers, whose weights are as large, are kinds of their own.
  if (frozen_layers_of(plan) == 0) return found;
  for (std::size_t kind = 0; kind < parts->layers.kinds.size(); ++kind) {
    LayerExchange frozen = found.kinds[kind];
    frozen.backward.clear();
    found.kinds.push_back(std::move(frozen));
  }
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(frozen_layers_of(plan)); ++layer) {
    found.of_layer[layer] += static_cast<std::uint16_t>(parts->layers.kinds.size());
  }
  return found;
}

}  // namespace ns_dist
