#include "ns_dist/memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "pipeline.h"
#include "stage_chunks.h"
#include "stage_parameters.h"
#include "stage_state.h"

namespace ns_dist {
namespace {

// Workspaces that PyTorch allocates: on Hopper 32 MiB each for cuBLAS and cuBLASLt (ATen/cuda/CublasHandlePool.cpp),
// and TransformerEngine's, 32 MiB for products and for each of four streams of grouped ones (pytorch/module/base.py,
// get_cublas_workspace_size_bytes), rounded up. In 17 of 21 steps that we measured
// (compute_model/measurements/steps.csv, without TransformerEngine) 50 to 200 MiB are allocated beyond all else.
constexpr Bytes kFramework = 256 * units::MiB;

// NCCL's buffers on a GPU for a group that runs collectives: 544 MiB for two ranks and 688 MiB for more, on four A100
// with NVLinks (NVIDIA/nccl, issue 964). The connections of an all-to-all come on top: 3.28 GB for the seven others of
// eight H100 (issue 1685). Ranks of other nodes share the buffers of the network.
Bytes communicator(std::int64_t ranks) {
  return ranks < 2 ? Bytes() : ranks == 2 ? 544.0 * units::MiB : 688.0 * units::MiB;
}
Bytes all_to_all_connections(std::int64_t ranks) {
  constexpr std::int64_t kOthers = 7;
  constexpr Bytes kEach = 3.28 / 7 * units::GB;
  return static_cast<double>(std::clamp<std::int64_t>(ranks - 1, 0, kOthers)) * kEach;
}

// Those of the groups in which a rank of `stage` is.
Bytes communicators_of(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers, std::int64_t stage) {
  const ParallelPlan& plan = *shape.plan;
  const bool sums = plan.passes != Passes::kForward;
  Bytes all = communicator(plan.tp) + communicator(plan.cp) + communicator(std::min<std::int64_t>(plan.pp, 2));
  // Of contexts exchanged for heads: those of attention, of Mamba-2 and of the delta rule.
  const bool scans = shape.model->state_space || shape.model->delta_net;
  all += all_to_all_connections(std::max(shape.cp_inner, scans ? shape.cp : 1));
  const bool own_experts = shape.model->moe && (shape.ep > 1 || shape.etp != plan.tp);  // have replicas of their own
  for (const bool experts : {false, true}) {
    if ((experts && !own_experts) || !(sums || shards_weights(plan))) continue;
    const std::int64_t copies = replicas(plan, experts), sharing = sharing_replicas(plan, experts);
    all += communicator(sharing) + communicator(copies / sharing);
  }
  if (shape.model->moe) {
    all += communicator(shape.ep) + (shape.etp != plan.tp ? communicator(shape.etp) : Bytes());
    if (plan.expert_dispatch == ExpertDispatch::kAllToAll) all += all_to_all_connections(shape.ep);
  }
  // FSDP sums the norm over the group that reduces gradients (fully_sharded_data_parallel.py, clip_grad_norm_; of
  // FSDP2's DTensors, the groups of their mesh). Megatron-Core has a group of its own (get_grad_stats_parallel_group).
  if (!is_fsdp(plan)) all += communicator(norm_ranks(plan).count);
  // The largest values of 8-bit products: over all ranks of the stage.
  if (sums && delays_scaling(plan, shape.precision)) all += communicator(plan.tp * replicas(plan, false));
  const std::int64_t first = seats[0].front().stage,
                     again = second_table_stage(shape, seats[0], layers).value_or(first);
  const bool holds_table = first != again && (stage == first || stage == again);
  if (sums && (has_mirrors(seats) || (sums_tables(plan, seats) && holds_table))) all += communicator(2);
  return all;
}

// Forward passes alone keep nothing. The largest of what they need at one time: the loss, one layer, or metrics.
struct ForwardNeeds {
  double ChunkBytes::*what = &ChunkBytes::loss;
  std::size_t chunk = 0;
  double bytes = 0;
};
ForwardNeeds forward_needs(const StageChunks& stage) {
  ForwardNeeds most;
  for (double ChunkBytes::*what : {&ChunkBytes::loss, &ChunkBytes::working, &ChunkBytes::logged}) {
    for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
      const ChunkBytes& of = stage.chunks[chunk];
      const double bytes = of.*what + (what == &ChunkBytes::loss ? of.loss_forward : 0);
      if (bytes > most.bytes) most = {what, chunk, bytes};
    }
  }
  return most;
}

// What the stages of a plan hold.
struct PlanHoldings {
  Pipeline pipeline;
  Shape shape;
  std::shared_ptr<const ModelParts> parts;
  std::vector<RankParameters> trained, frozen;  // by stage
  std::vector<MatrixShares> shares;             // by stage
  std::vector<StageChunks> kept;

  std::vector<StageChunks> by_stage(const ModelParts& of) const {
    return kept_by_stage(shape, pipeline.passes->seats, pipeline.layers, of);
  }
  void add_state_of(std::size_t stage, StageMemory& used, StageMemoryDetail* detail = nullptr) const {
    const StageState state(shape, trained[stage], frozen[stage], kept[stage], shares[stage]);
    state.add_to(used, shape.microbatches, detail);
  }
};
Result<PlanHoldings> holdings_of(const Model& model, const ParallelPlan& plan, const Training& training,
                                 PlanCache& cache) {
  NS_TRY(Pipeline pipeline, pipeline_of(model, plan, training, cache));
  PlanHoldings held{
      std::move(pipeline), Shape(model, plan, training), part_sizes(model, plan, training, cache), {}, {}, {}, {}};
  const Seats& seats = held.pipeline.passes->seats;
  held.trained = stage_parameters(held.shape, seats, held.pipeline.layers, *held.parts);
  held.frozen = stage_parameters(held.shape, seats, held.pipeline.layers, *held.parts, &ModelPart::frozen);
  held.shares = stage_shares(held.shape, seats, held.pipeline.layers, *held.parts);
  held.kept = held.by_stage(*held.parts);
  // No more are under way than there are.
  for (std::size_t stage = 0; stage < held.kept.size(); ++stage) {
    StageChunks& kept = held.kept[stage];
    if (kept.away.empty()) continue;
    const auto on_gpu = [&](std::vector<ChunkBytes>& layers) {
      layers.resize(kept.chunks.size());
      return std::min(kLayersUnderWay, most_held(held.pipeline.passes->orders[stage], layers));
    };
    const double all = on_gpu(kept.away), largest = on_gpu(kept.largest_away);
    kept.under_way = largest * kept.most_kept + (all - largest) * kept.next_kept;
  }
  return held;
}

// Parts that keep what `all` keep of each kind, and nothing else.
std::vector<ModelParts> parts_by_kind(const ModelParts& all, const Model& model, const ParallelPlan& plan,
                                      const Training& training) {
  ModelParts none;
  none.parts.resize(all.parts.size());
  none.layers = all.layers;
  none.prediction_layers = all.prediction_layers;
  std::vector<ModelParts> of_kind(kActivationKindCount, none);
  each_part(model, all.layers, plan, training, [&](Part part, const Block& block, const Shape& own) {
    if (is_frozen(plan, part)) return;
    const KeptByKind kept = kept_by_kind(block, own.plan->recompute, own.plan->recompute_modules);
    for (std::size_t kind = 0; kind < kept.size(); ++kind) {
      of_kind[kind].parts[static_cast<std::size_t>(part)].kept = kept[kind];
    }
  });
  return of_kind;
}

// The first of the highest points.
bool lower(const HeldPoint& a, const HeldPoint& b) { return a.most < b.most; }
std::size_t peak_of(const std::vector<HeldPoint>& points) {
  return static_cast<std::size_t>(std::max_element(points.begin(), points.end(), lower) - points.begin());
}

// The lowest and the highest of neighbors.
std::vector<HeldPoint> thinned(const std::vector<HeldPoint>& points) {
  if (points.size() <= kMostHeldPoints) return points;
  constexpr std::size_t kGroups = kMostHeldPoints / 2;
  std::vector<HeldPoint> left;
  for (std::size_t group = 0; group < kGroups; ++group) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(group * points.size() / kGroups);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>((group + 1) * points.size() / kGroups);
    const auto lowest = std::min_element(begin, end, lower), highest = std::max_element(begin, end, lower);
    const std::int64_t left_out = std::accumulate(
        begin, end, std::int64_t{0}, [](std::int64_t sum, const HeldPoint& point) { return sum + point.left_out; });
    left.push_back(*std::min(lowest, highest));
    left.back().left_out = left_out;
    if (lowest == highest) continue;
    left.push_back(*std::max(lowest, highest));
    left.back().left_out = 0;
  }
  return left;
}

// Bytes that are equal but for the order in which parts were added.
bool is_same(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(a, b); }

// What the activations of a stage are made of at its highest point.
class ActivationDetail {
 public:
  // `kept_of_kind`: by kind and stage.
  ActivationDetail(StageMemoryDetail& detail, const StageChunks& kept,
                   const std::vector<std::vector<StageChunks>>& kept_of_kind, std::size_t stage)
      : detail_(detail), kept_(kept), kept_of_kind_(kept_of_kind), stage_(stage) {}

  void add_forward_passes() {
    const auto [what, chunk, bytes] = forward_needs(kept_);
    add(ActivationKind::kKvCache, kept_.cached);
    if (what == &ChunkBytes::loss) {
      add_chunk(chunk, 0, 0, 1);
      add(ActivationKind::kLogits, kept_.chunks[chunk].loss_forward);
    } else {
      add(what == &ChunkBytes::working ? ActivationKind::kWorkingLayer : ActivationKind::kLogits, bytes);
    }
  }

  void add_highest_point(const PassList& order) {
    detail_.transient = kept_.under_way * units::B;
    add(ActivationKind::kOffloadedLayers, kept_.under_way);
    const std::vector<HeldPoint> points = held_over_time(order, kept_.chunks);
    const std::size_t peak = peak_of(points);
    const HeldPoint& top = points[peak];
    std::vector<LivePasses> live = live_passes(order, kept_.chunks.size(), peak);
    const auto chunk_at = [&points](std::size_t point) { return static_cast<std::size_t>(points[point].pass.chunk); };
    const ChunkBytes& bytes = kept_.chunks[chunk_at(peak)];
    const bool beside = peak + 1 < points.size() && points[peak + 1].pass.beside_previous;
    if (top.most > top.bytes && top.pass.kind == PassKind::kForward) {
      const double losses = beside ? kept_.chunks[chunk_at(peak + 1)].loss : 0;
      if (bytes.frozen > 0 && is_same(top.most, top.bytes - (bytes.after_forward - losses) + bytes.frozen)) {
        add(ActivationKind::kWorkingLayer, bytes.frozen);
        --live[chunk_at(peak)].after_forward;
      } else if (is_same(top.most, top.bytes + bytes.loss_forward)) {  // at its end
        add(ActivationKind::kLogits, bytes.loss_forward);
        if (beside) add_chunk(chunk_at(peak + 1), 0, 0, -1);
      } else {  // at the beginning of the pass beside it
        add(ActivationKind::kLogits, top.most - (top.bytes - (bytes.after_forward - losses)));
        --live[chunk_at(peak)].after_forward;
      }
    } else if (top.most > top.bytes && is_same(top.most, top.bytes + bytes.logged)) {
      add(ActivationKind::kLogits, bytes.logged);
    } else if (top.most > top.bytes && !top.pass.beside_previous && bytes.loss_backward > bytes.working - bytes.loss) {
      add(ActivationKind::kLogits, bytes.loss_backward);
      ++live[chunk_at(peak)].after_forward;
      if (top.pass.kind == PassKind::kInputGradient) --live[chunk_at(peak)].after_input_gradient;
    } else if (top.most > top.bytes) {  // the pass is not over, but its loss is
      add(ActivationKind::kWorkingLayer, bytes.working);
      add_chunk(chunk_at(peak), 0, 0, -1);
      ++live[chunk_at(peak)].after_forward;
      if (top.pass.kind == PassKind::kInputGradient) --live[chunk_at(peak)].after_input_gradient;
    } else if (beside) {  // so is that of the pass beside it
      add_chunk(chunk_at(peak + 1), 0, 0, -1);
    }
    for (std::size_t chunk = 0; chunk < kept_.chunks.size(); ++chunk) {
      const auto [before, behind] = live[chunk];
      add_chunk(chunk, static_cast<double>(before), static_cast<double>(behind), 0);
      detail_.live += before + behind;
      detail_.weight_gradients_due += behind;
    }
    detail_.passes = points.back().number + 1;
    detail_.over_time = thinned(points);
    detail_.peak = peak_of(detail_.over_time);
  }

 private:
  void add(ActivationKind kind, double bytes) {
    detail_.activations[static_cast<std::size_t>(kind)] += bytes * units::B;
  }
  // Of so many passes of a chunk before their input gradient, behind it, and in their loss.
  void add_chunk(std::size_t chunk, double before, double behind, double losses) {
    for (std::size_t kind = 0; kind < kActivationKindCount; ++kind) {
      const ChunkBytes& bytes = kept_of_kind_[kind][stage_].chunks[chunk];
      add(static_cast<ActivationKind>(kind),
          before * bytes.after_forward + behind * bytes.after_input_gradient + losses * bytes.loss);
    }
  }

  StageMemoryDetail& detail_;
  const StageChunks& kept_;
  const std::vector<std::vector<StageChunks>>& kept_of_kind_;
  std::size_t stage_;
};

}  // namespace

BytesPerParameter bytes_per_parameter(DType dtype, MomentType moments, WeightStorage weights) {
  constexpr std::array<double, 3> kMoments = {8, 4, 2};  // both
  const double state = kMoments[static_cast<std::size_t>(moments)];
  const double low = size_of(dtype) / units::B;
  if (is_single_precision(dtype) || weights == WeightStorage::kFp32) return {4, state, state / 2};
  // PyTorch's optimizers make moments in the format of the weights (torch/optim/adamw.py, zeros_like).
  if (weights == WeightStorage::kLow) return {low, std::min(state, 2 * low), std::min(state / 2, low)};
  return {low, 4 + state, state / 2};
}

Bytes MemoryBudget::most(Bytes (StageMemory::*of)() const) const {
  Bytes found;
  for (const StageMemory& stage : stages) found = max(found, (stage.*of)());
  return found;
}

Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training) {
  PlanCache cache;
  return memory_budget(model, plan, training, cache);
}

Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training,
                                   PlanCache& cache) {
  NS_TRY(const PlanHoldings held, holdings_of(model, plan, training, cache));
  MemoryBudget budget;
  for (std::size_t stage = 0; stage < held.kept.size(); ++stage) {
    const StageChunks& kept = held.kept[stage];
    StageMemory used;
    used.activations = units::B * (plan.passes == Passes::kForward
                                       ? forward_needs(kept).bytes + kept.cached
                                       : most_held(held.pipeline.passes->orders[stage], kept.chunks) + kept.under_way);
    used.other = kFramework;
    held.add_state_of(stage, used);
    used.communicators = communicators_of(held.shape, held.pipeline.passes->seats, held.pipeline.layers,
                                          static_cast<std::int64_t>(stage));
    budget.stages.push_back(used);
    if (used.total() > budget.peak()) budget.peak_stage = static_cast<std::int64_t>(stage);
  }
  return budget;
}

Result<std::vector<StageMemoryDetail>> memory_detail(const Model& model, const ParallelPlan& plan,
                                                     const Training& training, PlanCache& cache) {
  NS_TRY(const PlanHoldings held, holdings_of(model, plan, training, cache));
  std::vector<StageMemoryDetail> details(held.kept.size());
  std::vector<std::vector<StageChunks>> kept_of_kind;  // [kind][stage]
  for (const ModelParts& parts : parts_by_kind(*held.parts, model, plan, training)) {
    kept_of_kind.push_back(held.by_stage(parts));
  }
  for (std::size_t stage = 0; stage < details.size(); ++stage) {
    StageMemory used;
    held.add_state_of(stage, used, &details[stage]);
    ActivationDetail activations(details[stage], held.kept[stage], kept_of_kind, stage);
    if (plan.passes == Passes::kForward) {
      activations.add_forward_passes();
    } else {
      activations.add_highest_point(held.pipeline.passes->orders[stage]);
    }
  }
  return details;
}

Result<Bytes> offloaded_bytes(const Model& model, const ParallelPlan& plan, const Training& training) {
  ParallelPlan whole = plan;
  whole.offload_optimizer = {};
  whole.offload_activations = 0;
  whole.offload_weights = false;
  if (whole == plan) return Bytes();
  PlanCache cache;
  NS_TRY(const MemoryBudget with, memory_budget(model, plan, training, cache));
  NS_TRY(const MemoryBudget without, memory_budget(model, whole, training, cache));
  Bytes most;
  for (std::size_t s = 0; s < with.stages.size(); ++s) {
    most = max(most, without.stages[s].total() - with.stages[s].total());
  }
  return most;
}

Bytes least_memory(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache) {
  ParallelPlan least = plan;  // where it depends on a layer's place what is kept of it, nothing is
  least.recompute_layers = 0;
  if (plan.offload_activations > 0) least.offload_activations = model.layers;
  const Shape shape(model, least, training);
  const std::shared_ptr<const ModelParts> parts = part_sizes(model, plan, training, cache);
  // The whole model, as if one stage held it.
  const Seats seats{{Seat{}}};
  const std::vector<LayerRange> all{{0, model.layers, model.prediction_layers}};
  const double share = 1 / static_cast<double>(plan.pp);
  const RankParameters held = stage_parameters(shape, seats, all, *parts)[0] * share;
  const RankParameters frozen = stage_parameters(shape, seats, all, *parts, &ModelPart::frozen)[0] * share;
  StageMemory mean;
  StageChunks parts_alone;  // nothing is whole that need not be
  parts_alone.layer_parameters = held.total();
  parts_alone.layer_frozen = frozen.total();
  parts_alone.layer_gathered = gathered_parameters(plan, held, frozen);
  MatrixShares even;  // nobody has more than its share
  RankParameters matrices;
  matrices.dense = held.matrices;
  matrices.experts = held.expert_matrices;
  even.owned = share_of_rank(matrices, plan);
  if (plan.passes != Passes::kForward) {
    mean.activations = kept_by_stage(shape, seats, all, *parts)[0].chunks[0].after_forward * share * units::B;
  }
  StageState(shape, held, frozen, parts_alone, even).add_to(mean, 1);  // one microbatch needs least
  mean.other = kFramework;
  return mean.total();
}

}  // namespace ns_dist
