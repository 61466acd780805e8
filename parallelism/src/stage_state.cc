#include "stage_state.h"

#include <algorithm>

namespace ns_dist {
namespace {

// Parameters of a stage: all, those in layers, and those of the largest layer.
struct Held {
  double all, in_layers, largest;
  double outside_layers() const { return std::max(0.0, all - in_layers); }
};

// Ranks that share weights or gradients hold their part, and all of embedding, loss and the layers under way (PyTorch
// FSDP: the root module keeps its own parameters from its forward to its backward pass).
double whole_of(const Held& held, double under_way) {
  return std::min(held.all, held.outside_layers() + under_way * held.largest);
}

double share_of_quantized(const RankParameters& all, const ParallelPlan& plan) {
  return share_of_rank({.dense = all.quantized - all.quantized_experts, .experts = all.quantized_experts}, plan);
}

}  // namespace

StageState::StageState(const Shape& shape, const RankParameters& trained, const RankParameters& frozen,
                       const StageChunks& layers, const MatrixShares& shares)
    : shape_(shape),
      plan_(*shape.plan),
      trained_(trained),
      frozen_(frozen),
      layers_(layers),
      shares_(shares),
      each_(bytes_per_parameter(shape.dtype, plan_.optimizer_state, plan_.weights)),
      updated_(updated_parameters(trained, plan_, shares)),
      padding_(padded(trained, shares.padding, shares.expert_padding).total() - trained.total()),
      whole_(whole_of({trained.total(), layers.layer_parameters, layers.largest_parameters}, kLayersUnderWay)) {}

void StageState::add_to(StageMemory& used, std::int64_t microbatches, StageMemoryDetail* detail) const {
  add_weights(used, detail);
  if (plan_.passes == Passes::kForward) return;
  add_gradients(used, microbatches, detail);
  add_copies_of_gradients(used);
  if (plan_.passes == Passes::kTraining) add_optimizer(used);
}

void StageState::add_weights(StageMemory& used, StageMemoryDetail* detail) const {
  RankParameters all = trained_;
  all += frozen_;
  const double under_way = 1 + static_cast<double>(plan_.prefetch);
  const bool by_layer = shards_weights(plan_) && plan_.reshard;
  const auto whole_in_passes = [&](const Held& held) { return by_layer ? whole_of(held, under_way) : held.all; };
  const Held every{all.total(), layers_.layer_parameters + layers_.layer_frozen, layers_.largest_held};
  const Held gathered{shards_weights(plan_) ? gathered_parameters(plan_, trained_, frozen_) : every.all,
                      layers_.layer_gathered, layers_.largest_gathered};
  const double whole_weights = whole_in_passes(gathered);
  // Operands of the products, beside the stored weights or instead of them. Weights that are gathered in another format
  // are cast for one pass, and their shards are not.
  const bool for_a_pass = casts_in_passes(plan_);
  // What is cast so: all of a layer for a pass, else what is gathered. Experts that no other rank has are whole shards.
  const bool of_all = for_a_pass || gathered.all == every.all;
  const Held& held = of_all ? every : gathered;
  const double whole_layers = whole_in_passes(held) - held.outside_layers();
  const double whole_share = held.in_layers > 0 ? std::min(1.0, whole_layers / held.in_layers) : 0;
  const auto quantized_of = [&](const RankParameters& each) {
    return of_all ? each.quantized : each.quantized - each.quantized_experts;
  };
  const double whole_quantized = quantized_of(all) * whole_share;
  const double cast = for_a_pass ? shape_.weight_element : weight_bytes(shape_);
  const double added = cast - (plan_.fp8_params ? each_.weight : 0);
  // What only backward passes read of casts, frozen layers do not have.
  const bool without_backward = frozen_layers_of(plan_) > 0;
  const double unread = without_backward ? cast - shape_.weight_element : 0;
  // Autocast's copies stay until the backward pass has read them (torch/csrc/autograd, saved tensors), if there is one.
  const double copied = shape_.autocast ? shape_.element : 0;
  const double without_copies = without_backward ? frozen_.total() : 0;
  double with_casts = whole_quantized, with_copies = whole_weights - without_copies,
         unread_here = unread * quantized_of(frozen_) * whole_share;
  const Bytes whole_bytes = (whole_weights * (each_.weight + copied) + padding_ * each_.weight +
                             whole_quantized * added - without_copies * copied - unread_here) *
                            units::B;
  used.weights = whole_bytes;
  used.padding = padding_ * each_.weight * units::B;
  if (shards_weights(plan_) && !offloads_weights(plan_)) {
    const double shared = share_of_rank(all, plan_), fp32 = size_of(DType::kFp32) / units::B;
    // Shards in fp32 are master weights: the optimizer's, where there is one. Of those that the host has, the GPU has
    // the weights' format, as of frozen ones.
    const bool masters = has_fp32_shards(plan_) && each_.weight < fp32, trains = plan_.passes == Passes::kTraining;
    const double trained = !masters ? each_.weight : trains ? plan_.offload_optimizer.value * each_.weight : fp32;
    used.weights += (updated_ * trained + (shared - updated_) * each_.weight) * units::B;
    if (!for_a_pass) {
      // Of shards in the weights' format.
      const double in_format = !masters ? shared : shared - updated_ * (trains ? 1 - plan_.offload_optimizer.value : 1);
      const double quantized = shared > 0 ? in_format * share_of_quantized(all, plan_) / shared : 0;
      const double unread_share = unread * share_of_quantized(frozen_, plan_);
      used.weights += (quantized * added - unread_share) * units::B;
      with_casts += quantized, with_copies += shared, unread_here += unread_share;
    }
  }
  if (shards_weights(plan_) && detail) detail->gathered_weights = whole_bytes;
  if (detail) detail->cast_weights = (with_casts * cast - unread_here + with_copies * copied) * units::B;
}

// Where there is no gradient before the first backward pass, they grow while activations go: what they take beyond the
// activations' place. The first is that of the logits' projection, beside all that layers keep; a loss that computes a
// part of the tokens after the other makes it in its forward pass.
Bytes StageState::beyond_activations(Bytes sums, Bytes activations) const {
  double kept = 0, loss = 0, working = 0, loss_forward = 0;
  for (const ChunkBytes& chunk : layers_.chunks) {
    kept += chunk.after_forward, loss += chunk.loss;
    working = std::max(working, chunk.working), loss_forward = std::max(loss_forward, chunk.loss_forward);
  }
  Bytes beside;
  const bool tied = shape_.model->ties_logits();
  if (loss > 0 && plan_.lora_rank == 0 && shape_.model->labels == 0 && !(tied && freezes_tables(plan_))) {
    const double share = shards_gradients(plan_) ? updated_ / std::max(1.0, trained_.total()) : 1;
    const Bytes first = share * shape_.table() * gradient_size(plan_, shape_.dtype);
    const bool in_parts = loss_library_of(plan_) == Library::kLiger;
    const double there = in_parts ? kept + loss_forward : kept - loss + working;
    beside = min(sums, first) + there * units::B - activations;
  }
  // When the first layer runs backward, all gradients but its own and the embedding's are there.
  if (layers_.largest_parameters > 0 && !layers_.chunks.empty()) {
    const double count = std::max(1.0, layers_.layer_parameters / layers_.largest_parameters);
    const double share = trained_.total() > 0 ? layers_.largest_parameters / trained_.total() : 0;
    const double table =
        !freezes_tables(plan_) && !tied && trained_.total() > 0 ? shape_.table() / trained_.total() : 0;
    const Bytes there = std::max(0.0, 1 - share - table) * sums;
    beside = max(beside, there + ((kept - loss) / count + working) * units::B - activations);
  }
  return max(max(Bytes(), sums - activations), beside);
}

// Embedding and logits are counted as whole at the same time. Under FSDP2 they are not, but there a layer's gradients
// have a copy in the format of the reduction (foreach_reduce), which is not counted and about as large.
void StageState::add_gradients(StageMemory& used, std::int64_t microbatches, StageMemoryDetail* detail) const {
  const auto sums = [&](Bytes whole) {
    const bool grow = takes_first_gradients(plan_) && microbatches == 1;
    return grow ? beyond_activations(whole, used.activations) : whole;
  };
  if (shards_gradients(plan_) || offloads_gradients(plan_)) {
    const Bytes sum = has_fp32_shards(plan_) ? size_of(DType::kFp32) : gradient_size(plan_, shape_.dtype);
    const double stays = offloads_gradients(plan_) ? 1 - plan_.offload_optimizer.value : 1;
    used.gradients = sums(stays * updated_ * sum);
    Bytes whole = whole_ * each_.weight * units::B;
    // The rounds of a stage come one after the other. While a layer of a round makes its first gradients, one of the
    // round before it is reduced, so that no more than those of a chunk are whole, or of two layers. A kernel of its
    // own adds up a layer's gradients in low precision in fp32.
    if (reduces_each_round(plan_)) {
      const Bytes unsummed = plan_.grad_accumulation == GradAccumulation::kFp32 ? whole : Bytes();
      used.gradients += unsummed;
      if (detail) detail->unsummed_gradients = unsummed;
      const double most = std::max(layers_.largest_chunk, kLayersUnderWay * layers_.largest_of_replicas);
      whole = std::min(most, replicated(trained_, plan_).total()) * gradient_size(plan_, shape_.dtype);
    }
    used.gradients += whole;
    if (detail) detail->whole_gradients = whole;
    return;
  }
  const Bytes buffer = (trained_.total() + padding_) * gradient_size(plan_, shape_.dtype);
  used.gradients = sums(buffer);
  // PyTorch's DistributedDataParallel has buckets of their size beside them (gradient_as_bucket_view is off).
  if (plan_.weights != WeightStorage::kMaster && has_replicas(plan_) && !is_fsdp(plan_)) used.gradients += buffer;
  used.padding += padding_ * gradient_size(plan_, shape_.dtype);
  // Beside the sums, the low-precision gradients of a microbatch: DeepSpeed adds them when its pass is over, FSDP2
  // layer by layer (to_accumulated_grad_if_needed).
  if (plan_.grad_accumulation == GradAccumulation::kFp32) {
    const Bytes unsummed = (is_whole_in_passes(plan_) ? whole_ : trained_.total()) * each_.weight * units::B;
    used.gradients += unsummed;
    if (detail) detail->unsummed_gradients = unsummed;
  }
}

// For their reduction, and for the optimizer.
void StageState::add_copies_of_gradients(StageMemory& used) const {
  if (plan_.zero != ZeroStage::kNone && plan_.zero_library == ZeroLibrary::kDefault)
    used.other += static_cast<double>(plan_.reduce_bucket) * each_.weight * units::B;
  if (!copies_gradients(plan_)) return;
  const Bytes flat = gradient_size(plan_, shape_.dtype), fp32 = size_of(DType::kFp32);
  const Bytes each_copied = flat < fp32 ? flat + fp32 : flat;
  const Bytes copies = updated_ * (1 - plan_.offload_optimizer.value) * each_copied;
  used.in_place_of_activations = min(copies, used.activations);
  used.other += copies - used.in_place_of_activations;
}

void StageState::add_optimizer(StageMemory& used) const {
  used.optimizer = (updated_ * (1 - plan_.offload_optimizer.value) * each_.optimizer +
                    (shares_.beyond - shares_.owned) * each_.moment) *
                   units::B;
  // The rank with a table has little else.
  if (sums_whole_gradients(plan_)) {
    const double largest = std::max(shape_.table(), shape_.layer_table());
    const double table = std::min(largest, std::max(0.0, trained_.dense - trained_.matrices));
    used.optimizer = max(used.optimizer, table * each_.optimizer * units::B);
  }
}

}  // namespace ns_dist
