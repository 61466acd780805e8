#include "ns_dist/memory.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "pipeline.h"
#include "stage_parameters.h"

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

// Layers whose weights or activations are on a GPU at one time where they are elsewhere otherwise: the one that
// computes, and the next.
constexpr double kLayersUnderWay = 2;

// What the chunks of a stage keep, and what of the stage depends on its layers.
struct StageChunks {
  std::vector<ChunkBytes> chunks;
  double largest_parameters = 0;  // of one layer on a rank, those that are trained
  double largest_frozen = 0;
  double layer_parameters = 0, layer_frozen = 0;    // of all layers: the rest is embedding and loss
  double largest_gathered = 0, layer_gathered = 0;  // of these, what ZeRO 3 gathers, trained or frozen
  std::vector<ChunkBytes> away;                     // layers that the host keeps, in place of bytes; empty where none
  std::vector<ChunkBytes> largest_away;             // of these, those that keep most
  double most_kept = 0, next_kept = 0;              // by each of these, and by the next smaller ones
  double cached = 0;                                // keys and values of all layers, under ParallelPlan::kv_cache
  double under_way = 0;                             // of layers that the host keeps: those on their way, or in use

  void add_away(std::size_t chunk, double bytes, double count) {
    away.resize(chunks.size());
    away[chunk].after_forward += count;
    if (bytes > most_kept) {
      next_kept = std::exchange(most_kept, bytes);
      largest_away.clear();
    }
    if (bytes < most_kept) {
      next_kept = std::max(next_kept, bytes);
      return;
    }
    largest_away.resize(chunks.size());
    largest_away[chunk].after_forward += count;
  }
};

// What ZeRO 3 gathers: experts that no other rank has stay where they are, unless their shards have another format.
double gathered_parameters(const ParallelPlan& plan, const RankParameters& trained, const RankParameters& frozen) {
  const bool experts = has_fp32_shards(plan) || sharing_replicas(plan, true) > 1;
  return trained.dense + frozen.dense + (experts ? trained.experts + frozen.experts : 0);
}

void add(ChunkBytes& chunk, const KeptBytes& kept, std::int64_t count) {
  chunk.after_forward += kept.after_forward * static_cast<double>(count);
  chunk.after_input_gradient += kept.after_input_gradient * static_cast<double>(count);
}

std::vector<StageChunks> kept_by_stage(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                       const ModelParts& parts) {
  std::vector<StageChunks> stages(static_cast<std::size_t>(shape.plan->pp));
  const bool splits = traits_of(*shape.plan).splits_backward;
  const auto working_of = [splits](const ModelPart& part) { return splits ? part.working_of_split : part.working; };
  const auto chunk_of = [&](const Seat& seat) -> ChunkBytes& {
    std::vector<ChunkBytes>& chunks = stages[static_cast<std::size_t>(seat.stage)].chunks;
    chunks.resize(std::max(chunks.size(), static_cast<std::size_t>(seat.chunk) + 1));
    return chunks[static_cast<std::size_t>(seat.chunk)];
  };
  for (const std::vector<Seat>& direction : seats) {
    for (std::size_t position = 0; position < direction.size(); ++position) {
      ChunkBytes& chunk = chunk_of(direction[position]);
      StageChunks& stage = stages[static_cast<std::size_t>(direction[position].stage)];
      for (const PartRun& run : part_runs(parts, *shape.plan, layers, position)) {
        const ModelPart& part = parts[run.part];
        if (run.part == Part::kLoss || run.part == Part::kPredictionLoss) {
          add(chunk, part.kept, run.count);
          chunk.loss += part.kept.after_forward * static_cast<double>(run.count);
          chunk.logged = std::max(chunk.logged, part.logged);
          // A forward pass alone works on what it would keep, and keeps nothing for a further loss.
          if (shape.plan->passes == Passes::kForward) {
            chunk.loss_forward = std::max(chunk.loss_forward, part.working - part.kept.after_forward);
          } else {
            chunk.loss_forward = std::max(chunk.loss_forward, part.transient);
            chunk.loss_backward = std::max(chunk.loss_backward, working_of(part));
          }
          continue;
        }
        std::int64_t held = run.count;
        if (run.part >= Part::kLayers) {
          const std::int64_t before = run.layer - layers[position].first;
          const std::int64_t away = std::clamp<std::int64_t>(shape.plan->offload_activations - before, 0, run.count);
          held -= away;
          add(chunk, {0, part.kept.after_input_gradient}, away);
          if (away > 0) {
            stage.add_away(static_cast<std::size_t>(direction[position].chunk), part.kept.after_forward,
                           static_cast<double>(away));
          }
        }
        add(chunk, part.kept, held);
        if (run.part == Part::kEmbedding) continue;
        if (shape.plan->kv_cache) stage.cached += part.cached * static_cast<double>(run.count);
        chunk.working = std::max(chunk.working, working_of(part));
        stage.largest_parameters = std::max(stage.largest_parameters, part.parameters.total());
        stage.largest_frozen = std::max(stage.largest_frozen, part.frozen.total());
        stage.layer_parameters += part.parameters.total() * static_cast<double>(run.count);
        stage.layer_frozen += part.frozen.total() * static_cast<double>(run.count);
        const double gathered = gathered_parameters(*shape.plan, part.parameters, part.frozen);
        stage.largest_gathered = std::max(stage.largest_gathered, gathered);
        stage.layer_gathered += gathered * static_cast<double>(run.count);
      }
    }
  }
  return stages;
}

// Weights, gradients and optimizer state of `held` parameters, and the weights of `frozen` ones, beside the activations
// of `used` in a step of so many microbatches; `layers` tells those of layers, `shares` those of matrices. `detail`:
// where it is asked for.
void add_state(const Shape& shape, const RankParameters& held, const RankParameters& frozen, const StageChunks& layers,
               const MatrixShares& shares, std::int64_t microbatches, StageMemory& used,
               StageMemoryDetail* detail = nullptr) {
  const ParallelPlan& plan = *shape.plan;
  const BytesPerParameter each = bytes_per_parameter(shape.dtype, plan.optimizer_state, plan.weights);
  const double updated = updated_parameters(held, plan, shares);
  const double padding = padded(held, shares.padding, shares.expert_padding).total() - held.total();
  // Ranks that share weights or gradients hold their part, and all of embedding, loss and the layers under way (PyTorch
  // FSDP: the root module keeps its own parameters from its forward to its backward pass).
  const auto whole_of = [](double all, double in_layers, double under_way, double largest) {
    return std::min(all, std::max(0.0, all - in_layers) + under_way * largest);
  };
  const double whole = whole_of(held.total(), layers.layer_parameters, kLayersUnderWay, layers.largest_parameters);
  RankParameters all = held;
  all += frozen;
  const double under_way = 1 + static_cast<double>(plan.prefetch);
  const bool by_layer = shards_weights(plan) && plan.reshard;
  const double in_layers = layers.layer_parameters + layers.layer_frozen;
  const double in_passes =
      by_layer ? whole_of(all.total(), in_layers, under_way, layers.largest_parameters + layers.largest_frozen)
               : all.total();
  const double gathered = shards_weights(plan) ? gathered_parameters(plan, held, frozen) : all.total();
  const double whole_weights =
      by_layer ? whole_of(gathered, layers.layer_gathered, under_way, layers.largest_gathered) : gathered;
  // Operands of the products, beside the stored weights or instead of them. Weights that are gathered in another format
  // are cast for one pass, and their shards are not.
  const bool for_a_pass = casts_in_passes(plan);
  const double whole_layers = in_passes - std::max(0.0, all.total() - in_layers);
  const double whole_quantized = in_layers > 0 ? all.quantized * std::min(1.0, whole_layers / in_layers) : 0;
  const double cast = for_a_pass ? shape.weight_element : weight_bytes(shape);
  const double added = cast - (plan.fp8_params ? each.weight : 0);
  // Autocast's copies stay until the backward pass has read them (torch/csrc/autograd, saved tensors).
  const double copied = shape.autocast ? shape.element : 0;
  const Bytes whole_bytes =
      (whole_weights * (each.weight + copied) + padding * each.weight + whole_quantized * added) * units::B;
  used.weights = whole_bytes;
  used.padding = padding * each.weight * units::B;
  double with_casts = whole_quantized, with_copies = whole_weights;
  if (shards_weights(plan)) {
    const double shared = share_of_rank(all, plan), fp32 = size_of(DType::kFp32) / units::B;
    // Shards in fp32 are master weights: the optimizer's, where there is one. Of those that the host has, the GPU has
    // the weights' format, as of frozen ones.
    const bool masters = has_fp32_shards(plan) && each.weight < fp32, trains = plan.passes == Passes::kTraining;
    const double trained = !masters ? each.weight : trains ? plan.offload_optimizer.value * each.weight : fp32;
    used.weights += (updated * trained + (shared - updated) * each.weight) * units::B;
    if (!for_a_pass) {
      const double quantized = all.total() > 0 ? shared * all.quantized / all.total() : 0;
      used.weights += quantized * added * units::B;
      with_casts += quantized, with_copies += shared;
    }
    if (detail) detail->gathered_weights = whole_bytes;
  }
  if (detail) detail->cast_weights = (with_casts * cast + with_copies * copied) * units::B;
  if (plan.passes == Passes::kForward) return;
  // Where there is no gradient before the first backward pass, they grow while activations go: what they take beyond
  // the activations' place. The first is that of the logits' projection, beside all that layers keep; a loss that
  // computes a part of the tokens after the other makes it in its forward pass.
  const auto sums = [&](Bytes whole_sums) {
    if (!takes_first_gradients(plan) || microbatches != 1) return whole_sums;
    double kept = 0, loss = 0, working = 0, loss_forward = 0;
    for (const ChunkBytes& chunk : layers.chunks) {
      kept += chunk.after_forward, loss += chunk.loss;
      working = std::max(working, chunk.working), loss_forward = std::max(loss_forward, chunk.loss_forward);
    }
    Bytes beside;
    if (loss > 0 && plan.lora_rank == 0 && shape.model->labels == 0) {
      const double share = shards_gradients(plan) ? updated / std::max(1.0, held.total()) : 1;
      const Bytes first = share * shape.table() * gradient_size(plan, shape.dtype);
      const bool in_parts = loss_library_of(plan) == Library::kLiger;
      const double there = in_parts ? kept + loss_forward : kept - loss + working;
      beside = min(whole_sums, first) + there * units::B - used.activations;
    }
    // When the first layer runs backward, all gradients but its own and the embedding's are there.
    if (layers.largest_parameters > 0 && !layers.chunks.empty()) {
      const double count = std::max(1.0, layers.layer_parameters / layers.largest_parameters);
      const double share = held.total() > 0 ? layers.largest_parameters / held.total() : 0;
      const double table =
          plan.lora_rank == 0 && !shape.model->ties_logits() && held.total() > 0 ? shape.table() / held.total() : 0;
      const Bytes there = std::max(0.0, 1 - share - table) * whole_sums;
      beside = max(beside, there + ((kept - loss) / count + working) * units::B - used.activations);
    }
    return max(max(Bytes(), whole_sums - used.activations), beside);
  };
  // Embedding and logits are counted as whole at the same time. Under FSDP2 they are not, but there a layer's gradients
  // have a copy in the format of the reduction (foreach_reduce), which is not counted and about as large.
  if (shards_gradients(plan) || offloads_gradients(plan)) {
    const Bytes sum = has_fp32_shards(plan) ? size_of(DType::kFp32) : gradient_size(plan, shape.dtype);
    const double stays = offloads_gradients(plan) ? 1 - plan.offload_optimizer.value : 1;
    used.gradients = sums(stays * updated * sum) + whole * each.weight * units::B;
    if (detail) detail->whole_gradients = whole * each.weight * units::B;
  } else {
    const Bytes buffer = (held.total() + padding) * gradient_size(plan, shape.dtype);
    used.gradients = sums(buffer);
    // PyTorch's DistributedDataParallel has buckets of their size beside them (gradient_as_bucket_view is off).
    if (plan.weights != WeightStorage::kMaster && has_replicas(plan) && !is_fsdp(plan)) used.gradients += buffer;
    used.padding += padding * gradient_size(plan, shape.dtype);
    // Beside the sums, the low-precision gradients of a microbatch: DeepSpeed adds them when its pass is over, FSDP2
    // layer by layer (to_accumulated_grad_if_needed).
    if (plan.grad_accumulation == GradAccumulation::kFp32) {
      const Bytes unsummed = (is_whole_in_passes(plan) ? whole : held.total()) * each.weight * units::B;
      used.gradients += unsummed;
      if (detail) detail->unsummed_gradients = unsummed;
    }
  }
  if (plan.zero != ZeroStage::kNone && plan.zero_library == ZeroLibrary::kDefault)
    used.other += static_cast<double>(plan.reduce_bucket) * each.weight * units::B;
  if (copies_gradients(plan)) {
    const Bytes flat = gradient_size(plan, shape.dtype), fp32 = size_of(DType::kFp32);
    const Bytes each_copied = flat < fp32 ? flat + fp32 : flat;
    const Bytes copies = updated * (1 - plan.offload_optimizer.value) * each_copied;
    used.in_place_of_activations = min(copies, used.activations);
    used.other += copies - used.in_place_of_activations;
  }
  if (plan.passes == Passes::kTraining) {
    used.optimizer =
        (updated * (1 - plan.offload_optimizer.value) * each.optimizer - shares.owned * each.moment) * units::B;
    // The rank with a table has little else.
    if (sums_whole_gradients(plan) && plan.zero != ZeroStage::kNone) {
      const double largest = std::max(shape.table(), shape.layer_table());
      const double table = std::min(largest, std::max(0.0, held.dense - held.matrices));
      used.optimizer = max(used.optimizer, table * each.optimizer * units::B);
    }
  }
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
    add_state(shape, trained[stage], frozen[stage], kept[stage], shares[stage], shape.microbatches, used, detail);
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
  held.shares = stage_shares(plan, seats, held.pipeline.layers, *held.parts);
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
    StageMemoryDetail& detail = details[stage];
    const StageChunks& kept = held.kept[stage];
    StageMemory used;
    held.add_state_of(stage, used, &detail);
    const auto add = [&detail](ActivationKind kind, double bytes) {
      detail.activations[static_cast<std::size_t>(kind)] += bytes * units::B;
    };
    const auto add_chunk = [&](std::size_t chunk, double before, double behind, double losses) {
      for (std::size_t kind = 0; kind < kActivationKindCount; ++kind) {
        const ChunkBytes& bytes = kept_of_kind[kind][stage].chunks[chunk];
        add(static_cast<ActivationKind>(kind),
            before * bytes.after_forward + behind * bytes.after_input_gradient + losses * bytes.loss);
      }
    };
    if (plan.passes == Passes::kForward) {
      const auto [what, chunk, bytes] = forward_needs(kept);
      add(ActivationKind::kKvCache, kept.cached);
      if (what == &ChunkBytes::loss) {
        add_chunk(chunk, 0, 0, 1);
        add(ActivationKind::kLogits, kept.chunks[chunk].loss_forward);
      } else {
        add(what == &ChunkBytes::working ? ActivationKind::kWorkingLayer : ActivationKind::kLogits, bytes);
      }
      continue;
    }
    detail.transient = kept.under_way * units::B;
    add(ActivationKind::kOffloadedLayers, kept.under_way);

    const PassList& order = held.pipeline.passes->orders[stage];
    const std::vector<HeldPoint> points = held_over_time(order, kept.chunks);
    const std::size_t peak = peak_of(points);
    const HeldPoint& top = points[peak];
    std::vector<LivePasses> live = live_passes(order, kept.chunks.size(), peak);
    const auto chunk_at = [&points](std::size_t point) { return static_cast<std::size_t>(points[point].pass.chunk); };
    const ChunkBytes& bytes = kept.chunks[chunk_at(peak)];
    const bool beside = peak + 1 < points.size() && points[peak + 1].pass.beside_previous;
    if (top.most > top.bytes && top.pass.kind == PassKind::kForward) {
      const double losses = beside ? kept.chunks[chunk_at(peak + 1)].loss : 0;
      if (top.most == top.bytes + bytes.loss_forward) {  // at its end
        add(ActivationKind::kLogits, bytes.loss_forward);
        if (beside) add_chunk(chunk_at(peak + 1), 0, 0, -1);
      } else {  // at the beginning of the pass beside it
        add(ActivationKind::kLogits, top.most - (top.bytes - (bytes.after_forward - losses)));
        --live[chunk_at(peak)].after_forward;
      }
    } else if (top.most > top.bytes && top.most == top.bytes + bytes.logged) {
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
    for (std::size_t chunk = 0; chunk < kept.chunks.size(); ++chunk) {
      const auto [before, behind] = live[chunk];
      add_chunk(chunk, static_cast<double>(before), static_cast<double>(behind), 0);
      detail.live += before + behind;
      detail.weight_gradients_due += behind;
    }
    detail.passes = points.back().number + 1;
    detail.over_time = thinned(points);
    detail.peak = peak_of(detail.over_time);
  }
  return details;
}

Result<Bytes> offloaded_bytes(const Model& model, const ParallelPlan& plan, const Training& training) {
  ParallelPlan whole = plan;
  whole.offload_optimizer = {};
  whole.offload_activations = 0;
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
  add_state(shape, held, frozen, parts_alone, even, 1, mean);  // one microbatch needs least
  mean.other = kFramework;
  return mean.total();
}

}  // namespace ns_dist
