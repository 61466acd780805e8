#include "replica_exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include "blocks/common.h"
#include "stage_parameters.h"

namespace ns_dist {
namespace {

// What `make` returns, made once.
template <class Make>
std::span<const WorkId> once(std::optional<std::vector<WorkId>>& known, Make make) {
  if (!known) known = make();
  return *known;
}

}  // namespace

bool gathers_casts(const ParallelPlan& plan, const Shape& shape) {
  return plan.fp8_params && (shape.precision == Precision::kFp8 || shape.precision == Precision::kFp8Block);
}

ReplicaExchange::ReplicaExchange(const ParallelPlan& plan, const Shape& shape, const ModelParts& parts, bool one_table,
                                 std::span<const MatrixShares> shares, ProgramWriter& writer)
    : plan_(plan),
      shape_(shape),
      parts_(parts),
      one_table_(one_table),
      writer_(writer),
      groups_{replica_groups(plan, writer.program().mesh, 0, false),
              replica_groups(plan, writer.program().mesh, 0, true)},
      gathers_(parts.parts.size()),
      reductions_(parts.parts.size()),
      unpackings_(parts.parts.size()) {
  for (const MatrixShares& stage : shares) {
    padding_ = std::max(padding_, stage.padding);
    expert_padding_ = std::max(expert_padding_, stage.expert_padding);
  }
}

RankParameters ReplicaExchange::parameters(Part part, RankParameters ModelPart::*which) const {
  return part_parameters(shape_, parts_, part, one_table_, which);
}

Bytes ReplicaExchange::gathered_size(const RankParameters& held, bool experts) const {
  const double all = experts ? held.experts : held.dense;
  const double of_products = experts ? held.quantized_experts : held.quantized - held.quantized_experts;
  const double quantized = gathers_casts(plan_, shape_) ? of_products : 0;
  return (shape_.element * (all - quantized) + shape_.weight_element * quantized) * units::B;
}

std::vector<WorkId> ReplicaExchange::gathers(const RankParameters& parameters) {
  std::vector<WorkItem> items;
  for (const bool experts : {false, true}) {
    const RankGroup& group = groups_[experts ? 1 : 0].sharing;
    const Bytes size = gathered_size(in_buffers(parameters), experts);
    if (group.size() == 1 || !(size > Bytes())) continue;
    items.push_back({experts ? "experts.weights.all_gather" : "weights.all_gather", Category::kDataParallel,
                     Collective{CollectiveKind::kAllGather, size, group}});
  }
  return writer_.intern(std::move(items));
}

std::vector<WorkId> ReplicaExchange::reductions(const RankParameters& parameters) {
  const RankParameters reduced = in_buffers(parameters);
  std::vector<WorkItem> items;
  for (const bool experts : {false, true}) {
    const auto& [sharing, copies] = groups_[experts ? 1 : 0];
    const std::string name = experts ? "experts.gradients" : "gradients";
    const Bytes size = (experts ? reduced.experts : reduced.dense) * gradient_size(plan_, shape_.dtype);
    if (!(size > Bytes())) continue;
    const bool whole = sums_whole_gradients(plan_);
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
  return writer_.intern(std::move(items));
}

std::span<const WorkId> ReplicaExchange::gathers(Part part) {
  return once(gathers_[static_cast<std::size_t>(part)], [&] {
    RankParameters weights = parameters(part);
    if (shards_weights(plan_)) weights += parameters(part, &ModelPart::frozen);
    return gathers(weights);
  });
}

std::span<const WorkId> ReplicaExchange::reductions(Part part) {
  return once(reductions_[static_cast<std::size_t>(part)], [&] { return reductions(parameters(part)); });
}

std::span<const WorkId> ReplicaExchange::unpackings(Part part) {
  return once(unpackings_[static_cast<std::size_t>(part)], [&] {
    std::vector<WorkItem> items;
    RankParameters weights = parameters(part);
    weights += parameters(part, &ModelPart::frozen);
    if (plan_.zero_library == ZeroLibrary::kFsdp2 && weights.total() > 0) {
      const Bytes all = gathered_size(weights, false) + gathered_size(weights, true);
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
  const auto count = static_cast<std::int64_t>(in_buffers(parameters).total());
  if (count == 0) return;
  const Elementwise scale{"scale", count, 1, 1, 1};
  body.push_back(run_of(writer_.kernel("gradients.scale", count, scale, gradient_type(plan_, shape_.dtype)), layer));
}

}  // namespace ns_dist
