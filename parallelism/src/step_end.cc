#include "step_end.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "blocks/common.h"
#include "muon.h"
#include "ns_dist/planner.h"
#include "pipeline.h"
#include "stage_parameters.h"

namespace ns_dist {
namespace {

// All actors of the meeting run a collective together.
void together(std::uint32_t meeting, WorkId collective, Bodies& body) {
  body.push_back({.kind = Instruction::Kind::kMeet, .index = meeting});
  start(std::span(&collective, 1), -1, body);
  body.push_back(await_replicas());
}

}  // namespace

StepEnd::StepEnd(const ParallelPlan& plan, const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                 ProgramWriter& writer, ReplicaExchange& replicas)
    : plan_(plan),
      shape_(shape),
      writer_(writer),
      replicas_(replicas),
      first_holder_(seats[0].front().stage),
      second_holder_(second_table_stage(shape, seats[0], layers).value_or(first_holder_)) {
  const auto stages = static_cast<std::size_t>(plan.pp);
  if (plan.passes == Passes::kForward) return;
  if (sums_tables(plan, seats) && first_holder_ != second_holder_) embedding_meeting_ = meeting(2);
  if (has_mirrors(seats)) {
    mirror_meetings_.assign(stages, 0);
    for (std::size_t stage = 0; 2 * stage < stages; ++stage) {
      mirror_meetings_[stage] = mirror_meetings_[stages - 1 - stage] = meeting(2);
    }
  }
  if (norm_ranks(plan).count > 1) norm_meeting_ = meeting(static_cast<std::uint32_t>(stages));
}

std::uint32_t StepEnd::meeting(std::uint32_t actors) {
  std::vector<std::uint32_t>& meetings = writer_.program().meetings;
  meetings.push_back(actors);
  return static_cast<std::uint32_t>(meetings.size() - 1);
}

RankGroup StepEnd::two_stages(std::int64_t first, std::int64_t last) const {
  const std::int64_t stride = writer_.program().mesh.stride("pp");
  return {first * stride, {{2, (last - first) * stride}}};
}

template <class Make>
void StepEnd::once(OfParameters& known, const Stage& of, Bodies& body, Make make) {
  if (known.stage != of) {
    known = {of, {}};
    known.body.add();
    make(known.body);
  }
  for (const Instruction& instruction : known.body[0]) body.push_back(instruction);
}

void StepEnd::add(std::int64_t stage, const Stage& of, Bodies& bodies) {
  if (reduces_gradients_once(plan_) && !plan_.overlap_grad_reduce) {
    once(reductions_, of, bodies, [&](Bodies& body) { reduce_gradients(of.held, body); });
  }
  if (plan_.passes != Passes::kForward) sum_gradients(stage, of.held, bodies);
  if (plan_.passes == Passes::kTraining) {
    once(optimizer_, of, bodies, [&](Bodies& body) { optimize(of, body); });
  } else {
    gather_weights(of.gathered, bodies);
  }
}

// Where nothing gathers them beside passes.
void StepEnd::gather_weights(const RankParameters& gathered, Bodies& body) {
  if (gathers_weights_once(plan_) && !plan_.overlap_param_gather) start(replicas_.gathers(gathered), -1, body);
}

void StepEnd::reduce_gradients(const RankParameters& held, Bodies& body) {
  replicas_.scale_gradients(held, -1, body);
  start(replicas_.reductions(held), -1, body);
}

// After the passes: gradients that several stages hold.
void StepEnd::sum_gradients(std::int64_t stage, const RankParameters& held, Bodies& body) {
  if (reduces_gradients_once(plan_) || reduces_each_round(plan_)) body.push_back(await_replicas());
  if (!mirror_meetings_.empty() && held.total() > 0) {
    // Both stages of a pair hold the same two parts of the model.
    const std::int64_t other = plan_.pp - 1 - stage;
    const RankGroup group = two_stages(std::min(stage, other), std::max(stage, other));
    const Bytes size = share_of_rank(held, plan_) * gradient_size(plan_, shape_.dtype);
    together(mirror_meetings_[static_cast<std::size_t>(stage)],
             writer_.intern({"mirror.gradients.all_reduce", Category::kDataParallel,
                             Collective{CollectiveKind::kAllReduce, size, group}}),
             body);
  }
  if (embedding_meeting_ && (stage == first_holder_ || stage == second_holder_)) {
    // Stages that hold copies of the embedding sum its gradients (Megatron-LM, embedding group).
    const std::int64_t shares = shards_gradients(plan_) ? sharing_replicas(plan_, false) : 1;
    const Bytes size = shape_.table() / static_cast<double>(shares) * gradient_size(plan_, shape_.dtype);
    together(*embedding_meeting_,
             writer_.intern({"embedding.gradients.all_reduce", Category::kDataParallel,
                             Collective{CollectiveKind::kAllReduce, size, two_stages(first_holder_, second_holder_)}}),
             body);
  }
}

// Gradient norm over all stages, optimizer, weights to all replicas. A stage whose layers are frozen waits for the norm
// alone.
void StepEnd::optimize(const Stage& of, Bodies& body) {
  const RankParameters& held = of.held;
  const MatrixShares& shares = of.shares;
  const bool updates = held.total() > 0;
  const double owned = updated_parameters(held, plan_, shares);
  // Global gradient norm (clipping): each stage squares its own, all model-parallel ranks sum (Megatron-LM,
  // clip_grads).
  const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(owned));
  const DType gradients = read_gradients();
  if (updates) {
    cast_gradients(count, body);
    body.push_back(run_of(writer_.kernel(
        "optimizer.gradient_norm", count,
        Elementwise{std::string(Elementwise::kOverTensors) + "_square_sum", count, 1, 0, 2}, gradients)));
  }
  if (norm_meeting_) {
    if (!norm_) {
      norm_ = writer_.intern({"optimizer.gradient_norm.all_reduce", Category::kOther,
                              Collective{CollectiveKind::kAllReduce, size_of(DType::kFp32),
                                         writer_.program().mesh.group(0, norm_ranks(plan_).axes)}});
    }
    together(*norm_meeting_, *norm_, body);
  }
  if (!updates) return gather_weights(of.gathered, body);
  // Clipping multiplies what the optimizer reads (Megatron-LM, clip_grads.py, multi_tensor_scale, where the norm is
  // above its limit; torch.nn.utils.clip_grad_norm_ and DeepSpeed, unscale_and_clip_grads, always).
  body.push_back(run_of(writer_.kernel("optimizer.clip", count,
                                       Elementwise{std::string(Elementwise::kOverTensors) + "_scale", count, 1, 1, 1},
                                       gradients)));
  update(owned - shares.owned, body);
  update_matrices(shares.updated, body);
  update_parts(shares, body);
  // Operands of the next step's products, with their transposes, or the share that is gathered.
  const double share = gathers_casts(plan_, shape_) && held.total() > 0 ? owned / held.total() : 1;
  const double operands = casts_in_passes(plan_) ? 0 : held.quantized * share;
  if (const auto elements = static_cast<std::int64_t>(operands); elements > 0) {
    body.push_back(run_of(writer_.kernel("optimizer.quantize_weights", elements,
                                         blocks::cast(shape_, elements, operand_bytes(shape_)), shape_.dtype)));
  }
  gather_weights(of.gathered, body);
  if (takes_first_gradients(plan_)) return;
  const double in_buffers = replicas_.in_buffers(held).total();
  // The whole gradient buffer is cleared for the next step (Megatron-Core, zero_grad_buffer).
  const auto buffer =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(shards_gradients(plan_) ? owned : in_buffers));
  body.push_back(run_of(writer_.kernel("optimizer.zero_gradients", buffer, Elementwise{"fill", buffer, 0, 1, 0},
                                       gradient_type(plan_, shape_.dtype))));
}

// What the optimizer reads gradients in.
DType StepEnd::read_gradients() const { return plan_.weights == WeightStorage::kLow ? shape_.dtype : DType::kFp32; }
// Others than of weights in low precision alone come to it in fp32 (Megatron-Core, distrib_optimizer.py,
// `shard_model_grad.float()`; DeepSpeed, stage1_and_2.py; FSDP, _cast_grad_to_param_dtype).
void StepEnd::cast_gradients(std::int64_t count, Bodies& body) {
  const DType summed = gradient_type(plan_, shape_.dtype);
  if (summed == read_gradients()) return;
  const double fp32 = size_of(DType::kFp32) / size_of(summed);
  body.push_back(
      run_of(writer_.kernel("optimizer.cast_gradients", count, Elementwise{"cast", count, 1, fp32, 1}, summed)));
}
// A kernel of its own makes the new weights of the master weights (Megatron-Core, distrib_optimizer.py,
// _copy_main_params_to_model_params). It reads them once more; what it writes is counted as the optimizer's.
bool StepEnd::casts_weights() const { return has_master_weights(plan_, shape_.dtype); }
Elementwise StepEnd::cast_of_weights(std::int64_t count) const {
  return {"cast", count, size_of(DType::kFp32) / size_of(shape_.dtype), 0, 1};
}

DType StepEnd::updated_type() const {
  return plan_.weights == WeightStorage::kFp32 || has_fp32_shards(plan_) ? DType::kFp32 : shape_.dtype;
}
// Adam on this rank. With moments in another format than fp32, gradient, master weight and moments are read, and all
// but the gradient are written, with the low-precision weight. Weights in fp32 are their own master weights.
OperatorKind StepEnd::adam(std::int64_t parameters) const {
  const bool low = plan_.weights == WeightStorage::kLow && shape_.dtype != DType::kFp32;
  if (plan_.optimizer_state == MomentType::kFp32 && !low) return OptimizerStep{parameters};
  const BytesPerParameter each = bytes_per_parameter(updated_type(), plan_.optimizer_state, plan_.weights);
  const double gradient = size_of(read_gradients()) / units::B;
  const double master = has_master_weights(plan_, shape_.dtype) ? 0 : each.weight;
  const double element = size_of(updated_type()) / units::B;
  return Elementwise{Elementwise::kAdam, parameters, (gradient + master + each.optimizer) / element,
                     (each.optimizer + each.weight) / element, 14};
}

void StepEnd::cast_weights(std::int64_t count, Bodies& body) {
  if (!casts_weights()) return;
  body.push_back(run_of(writer_.kernel("optimizer.cast_weights", count, cast_of_weights(count), shape_.dtype)));
}

void StepEnd::update_matrices(const Matrices& matrices, Bodies& body) {
  for (const auto& [matrix, count] : matrices) {
    const std::vector<Call> calls = muon_update(shape_, matrix, read_gradients(), updated_type());
    body.push_back(run_of(writer_.add(calls, Category::kOptimizer), -1, count));
  }
  if (!matrices.empty()) cast_weights(static_cast<std::int64_t>(parameters_of(matrices)), body);
}

// All-to-alls of one bucket that bring parts of matrices to the ranks that orthogonalize them, or back.
std::vector<WorkItem> StepEnd::exchanges(std::string_view name, const MatrixShares& shares) const {
  std::vector<WorkItem> items;
  for (const bool experts : {false, true}) {
    const double parameters = parameters_of(of_kind(shares.in_parts, experts));
    if (!(parameters > 0)) continue;
    Collective exchange{CollectiveKind::kAllToAll, Bytes(),
                        replica_groups(plan_, writer_.program().mesh, 0, experts).sharing};
    const auto ranks = static_cast<double>(exchange.group.size());
    exchange.size = parameters / ranks / static_cast<double>(shares.buckets) * size_of(DType::kFp32);
    exchange.imbalance = std::clamp(experts ? shares.expert_imbalance : shares.imbalance, 1.0, ranks);
    items.push_back({std::string(experts ? "optimizer.muon.experts." : "optimizer.muon.").append(name),
                     Category::kDataParallel, std::move(exchange)});
  }
  return items;
}

// Matrices travel in buckets, beside the products of others; the first bucket's way to its ranks and the last one's way
// back are beside nothing (torchtitan, distributed/flex_shard/_optimizer_reshard_runtime.py).
void StepEnd::update_parts(const MatrixShares& shares, Bodies& body) {
  if (shares.in_parts.empty()) return;
  const auto each = [&](const Matrices& matrices, std::vector<Call> MuonParts::*which) {
    for (const auto& [matrix, count] : matrices) {
      const std::int64_t ranks = sharing_replicas(plan_, matrix.experts);
      const MuonParts parts = muon_parts(shape_, matrix, ranks, read_gradients(), updated_type());
      body.push_back(run_of(writer_.add(parts.*which, Category::kOptimizer), -1, count));
    }
  };
  const std::vector<WorkId> there = writer_.intern(exchanges("momentum.all_to_all", shares));
  const std::vector<WorkId> back = writer_.intern(exchanges("orthogonal.all_to_all", shares));
  each(shares.in_parts, &MuonParts::momentum);
  start(there, -1, body);
  body.push_back(await_replicas());
  for (std::int64_t bucket = 1; bucket < shares.buckets; ++bucket) start(there, -1, body), start(back, -1, body);
  each(shares.gathered, &MuonParts::orthogonal);
  start(back, -1, body);
  body.push_back(await_replicas());
  each(shares.in_parts, &MuonParts::update);
}

// Of what the host updates, gradients go down, the CPU updates, and weights come back, one after the other and
// beside the GPU's own part (Megatron-Core, hybrid_optimizer.py; without its overlap of the three).
void StepEnd::update(double owned, Bodies& body) {
  const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(owned));
  const auto away = static_cast<std::int64_t>(owned * plan_.offload_optimizer.value);
  if (away == 0) {
    body.push_back(run_of(writer_.kernel("optimizer.step", count, adam(count), updated_type())));
    cast_weights(count, body);
    return;
  }
  Fragment both;
  const auto add = [&](Stream stream, WorkItem item, std::initializer_list<std::int32_t> after) {
    return both.add(stream, writer_.intern(std::move(item)), after);
  };
  const auto add_host = [&](std::string name, HostWork work, std::initializer_list<std::int32_t> after) {
    add(Stream::kHost, host_item(std::move(name), Category::kOptimizer, work), after);
  };
  const auto moved = static_cast<double>(away);
  const Work update = work_of(Operator{adam(away), updated_type()});
  add_host("offload.gradients", {moved * gradient_size(plan_, shape_.dtype), {}}, {kEntry, kPreviousKernel});
  add_host("offload.optimizer", {{}, update.read + update.written}, {0});
  if (!offloads_weights(plan_)) {  // else passes load them
    const double weight = bytes_per_parameter(shape_.dtype, plan_.optimizer_state, plan_.weights).weight;
    add_host("offload.weights", {moved * weight * units::B, {}}, {1});
  }
  both.exits = {static_cast<std::int32_t>(both.nodes.size()) - 1};
  if (count > away) {
    const Operator step{adam(count - away), updated_type()};
    add(Stream::kCompute, {"optimizer.step", Category::kOptimizer, step}, {kEntry});
    if (casts_weights()) {
      const Operator cast{cast_of_weights(count - away), shape_.dtype};
      add(Stream::kCompute, {"optimizer.cast_weights", Category::kOptimizer, cast},
          {static_cast<std::int32_t>(both.nodes.size()) - 1});
    }
    both.exits.push_back(static_cast<std::int32_t>(both.nodes.size()) - 1);
  }
  body.push_back(run_of(writer_.add(std::move(both))));
}

}  // namespace ns_dist
