#include "ns_dist/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "shape.h"

namespace ns_dist {
namespace {

// Bytes a parameter: Megatron-LM's mixed precision keeps low-precision weights, fp32 gradients that microbatches are
// summed into, and an fp32 master weight with two Adam moments (docs/source/api-guide/dist_optimizer, "18 bytes", of
// which the 12 of the optimizer are spread over the data-parallel ranks by the distributed optimizer).
struct BytesPerParameter {
  double weight, optimizer;  // gradients: gradient_size
};
BytesPerParameter bytes_per_parameter(DType dtype) {
  const bool full_precision = dtype == DType::kFp32 || dtype == DType::kTf32;
  return full_precision ? BytesPerParameter{4, 8} : BytesPerParameter{size_of(dtype) / units::B, 12};
}

// CUDA context, cuBLAS workspace and NCCL's channel buffers of a handful of communicators. An assumption: nothing
// published tells it apart; nvidia-smi shows 0.5-1.5 GiB for an idle PyTorch process with NCCL on A100 and H100.
constexpr Bytes kFramework = 1.0 * units::GiB;

// Elements kept by one transformer layer, in bytes for this rank. Korthikanti et al. 2022, s.4.1: with 2-byte elements
// and one-byte dropout masks, attention 11 sbh + 5 as^2b, MLP 19 sbh, norms 4 sbh. `split` is what tensor parallelism
// divides by itself; `whole` is divided only under sequence parallelism (eq. 2 against eq. 4).
struct LayerBytes {
  double whole = 0, split = 0, core = 0;  // core: the attention core, which selective recomputation drops
};

LayerBytes layer_bytes(const Shape& shape, std::int64_t layer) {
  const Model& model = *shape.model;
  const auto tokens = static_cast<double>(shape.tokens), hidden = static_cast<double>(shape.hidden);
  const double e = shape.element, mask = model.dropout ? 1 : 0;
  LayerBytes bytes;
  const double states = tokens * hidden;

  // Inputs of the two norms (the residual stream), inputs of the two parallel regions, dropout masks of the branches.
  bytes.whole = 2 * states * e + 2 * states * e + 2 * states * mask;

  // Queries, keys, values and the context that enters the projection; this rank's heads.
  const auto heads = static_cast<double>(shape.heads);
  const double kv_heads = static_cast<double>(model.mla ? shape.heads : shape.kv_heads);
  const auto query = static_cast<double>(shape.query_dim), value = static_cast<double>(shape.value_dim);
  bytes.split = tokens * (heads * query + kv_heads * (query + value) + heads * value) * e;
  if (model.mla) {
    // Latents before and after their norms: whole on every rank.
    bytes.split += tokens * 2 * static_cast<double>(model.mla->q_rank + model.mla->kv_rank) * e;
  }
  if (shape.plan->flash_attention) {
    bytes.core = tokens * heads * 4;  // log-sum-exp a row, fp32 (Dao et al. 2022, arXiv 2205.14135, algorithm 2)
  } else {
    // Softmax output, dropout mask and dropout output.
    const double scores = tokens * heads * static_cast<double>(shape.sequence);
    bytes.core = scores * (e + mask + (model.dropout ? e : 0));
  }

  const auto mlp = [&](double rows, double ffn) {
    // Input of the activation (twice for a gated one) and of the second projection.
    return rows * ffn * e * (model.gated_mlp ? 3 : 2);
  };
  const auto tp = static_cast<double>(shape.tp);
  if (is_moe_layer(model, layer)) {
    const Experts& moe = *model.moe;
    const double rows = tokens * static_cast<double>(moe.top_k);
    bytes.whole += rows * hidden * e * 2;  // permuted inputs and expert outputs, for the weighted sum's gradient
    bytes.split += mlp(rows, static_cast<double>(moe.expert_ffn) / tp);
    bytes.split += mlp(tokens, static_cast<double>(moe.shared_experts * moe.shared_expert_ffn) / tp);
    bytes.split += tokens * static_cast<double>(moe.experts) * 4;  // routing probabilities, fp32
  } else {
    bytes.split += mlp(tokens, static_cast<double>(model.ffn) / tp);
  }
  return bytes;
}

double sequence_shards(const Shape& shape) { return shape.sequence_parallel ? static_cast<double>(shape.tp) : 1; }

double kept_by_layer(const Shape& shape, std::int64_t layer) {
  const LayerBytes bytes = layer_bytes(shape, layer);
  const double shards = sequence_shards(shape);
  switch (shape.plan->recompute) {
    case Recompute::kFull:
      // The layer's input alone: 2 sbh (Korthikanti et al. 2022, table 2).
      return static_cast<double>(shape.tokens * shape.hidden) * shape.element / shards;
    case Recompute::kSelective:
      return bytes.whole / shards + bytes.split;
    case Recompute::kNone:
      break;
  }
  return bytes.whole / shards + bytes.split + bytes.core;
}

}  // namespace

Bytes layer_activations(const Model& model, const ParallelPlan& plan, const Training& training, std::int64_t layer) {
  return kept_by_layer(Shape(model, plan, training), layer) * units::B;
}

Result<std::vector<std::vector<LayerRange>>> split_layers(const Model& model, const ParallelPlan& plan) {
  const std::int64_t parts = plan.pp * plan.vpp;
  if (parts > model.layers || (plan.vpp > 1 && model.layers % parts != 0)) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} layers do not split into pp {} x vpp {} chunks", model.layers, plan.pp, plan.vpp),
                 "--pp",
                 fmt::format("pp x vpp that divides {}", model.layers),
                 "",
                 {}});
  }
  const std::int64_t each = model.layers / parts, rest = model.layers % parts;
  std::vector<std::vector<LayerRange>> stages(static_cast<std::size_t>(plan.pp));
  std::int64_t first = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    // Chunk-major: part 0 .. pp-1 are the first chunks of the stages, as in Megatron.
    const std::int64_t count = each + (part < rest ? 1 : 0);
    stages[static_cast<std::size_t>(part % plan.pp)].push_back({first, count});
    first += count;
  }
  return stages;
}

Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training) {
  NS_TRY_VOID(check_plan(model, plan, training));
  NS_TRY(const auto stages, split_layers(model, plan));
  NS_TRY(const PipelineSchedule* schedule, pipeline_schedule(plan.schedule));
  const Shape shape(model, plan, training);
  const BytesPerParameter each = bytes_per_parameter(training.dtype);
  const double shards = sequence_shards(shape);
  const double states = static_cast<double>(shape.tokens * shape.hidden);
  const ScheduleShape schedule_shape{plan.pp, microbatches_of(plan, training), plan.vpp};

  MemoryBudget budget;
  for (std::int64_t stage = 0; stage < plan.pp; ++stage) {
    const auto& chunks = stages[static_cast<std::size_t>(stage)];
    const RankParameters parameters = stage_rank_parameters(model, plan, chunks, stage);
    double chunk_activations = 0, largest_layer = 0;  // bytes of one microbatch in all chunks of the stage
    for (const LayerRange& range : chunks) {
      for (std::int64_t layer = range.first; layer < range.first + range.count; ++layer) {
        chunk_activations += kept_by_layer(shape, layer);
        const LayerBytes whole = layer_bytes(shape, layer);
        largest_layer = std::max(largest_layer, whole.whole / shards + whole.split + whole.core);
      }
    }
    const bool is_first = stage == 0, is_last = stage == plan.pp - 1;

    StageMemory memory;
    memory.weights = parameters.total() * each.weight * units::B;
    memory.gradients = parameters.total() * gradient_size(plan, training.dtype);
    // Apart from the sums, the low-precision gradients of a microbatch: DeepSpeed adds them when its pass is over.
    if (plan.grad_accumulation == GradAccumulation::kFp32) {
      memory.gradients += parameters.total() * each.weight * units::B;
    }
    memory.optimizer = updated_parameters(parameters, plan) * each.optimizer * units::B;

    // Microbatches held at once, counted in whole stages (a chunk is 1 / vpp of one).
    const double in_flight =
        static_cast<double>(schedule->in_flight(schedule_shape, stage)) / static_cast<double>(plan.vpp);
    double activations = in_flight * chunk_activations;
    // A layer that is computed again holds all its activations for a moment.
    if (plan.recompute == Recompute::kFull) activations += largest_layer;
    if (is_first && model.dropout) activations += in_flight * states / shards;  // mask of the embedding's dropout
    if (is_last) {
      // Korthikanti et al. 2022, s.4.3: norm input, projection input, fp32 logits; one microbatch at a time.
      activations += 2 * states * shape.element / shards +
                     4 * static_cast<double>(shape.tokens) * static_cast<double>(shape.vocabulary);
    }
    memory.activations = activations * units::B;
    memory.other = kFramework;
    budget.stages.push_back(memory);
    if (memory.total() > budget.peak()) budget.peak_stage = stage;
  }
  return budget;
}

}  // namespace ns_dist
