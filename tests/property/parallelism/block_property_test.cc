// Does every block agree with itself? For random models, degrees and options: passes do the same work in one piece or
// in two, what the backward pass reads was kept, and tensor parallelism splits what it says it splits.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "block.h"
#include "blocks/common.h"
#include "fragment.h"
#include "ns_dist/planner.h"
#include "support/random_plans.h"

namespace ns_dist {
namespace {

// With the models' parts of which blocks_of makes layers. All of it is trained.
Question any_question_of_blocks() {
  Question q = any_possible_question();
  q.plan.passes = Passes::kTraining;
  q.plan.lora_rank = q.plan.frozen_layers = 0;
  q.plan.frozen_weights = FrozenWeights::kPlain;
  q.model.prediction_layers = 1;
  q.model.state_space = StateSpace{48, 16, 12, 16, 4};
  q.model.delta_net = DeltaNet{48, any_of({48, 96}), 16, any_of({16, 32})};
  if (coin()) q.model.per_layer_embeddings = PerLayerEmbeddings{32, any_of({512, 1024})};
  return q;
}

std::vector<Block> blocks_of(const Question& q) {
  const Shape shape(q.model, q.plan, q.training);
  std::vector<Block> blocks = {embedding_block(shape),
                               loss_block(shape),
                               prediction_block(shape),
                               prediction_loss_block(shape),
                               layer_block(shape, LayerKind{}),
                               layer_block(shape, LayerKind{.windowed = true, .rotary = false}),
                               layer_block(shape, LayerKind{.shares_keys = !q.model.mla}),
                               layer_block(shape, LayerKind{Mixer::kStateSpace, FeedForward::kNone}),
                               layer_block(shape, LayerKind{Mixer::kDeltaNet, FeedForward::kNone})};
  if (q.model.moe) {
    blocks.push_back(layer_block(shape, LayerKind{.feed_forward = FeedForward::kExperts}));
  }
  return blocks;
}

bool is_product(const Operator& op) {
  return std::holds_alternative<Gemm>(op.kind) || std::holds_alternative<GroupedGemm>(op.kind) ||
         std::holds_alternative<Attention>(op.kind);
}

// FLOPs of the products, and nodes, of a fragment.
struct Sums {
  double flops = 0;
  std::size_t nodes = 0;
};
Sums sums(const Fragment& fragment, const WorkTable& works) {
  Sums total;
  for (const FragmentNode& node : fragment.nodes) {
    ++total.nodes;
    const auto* op = std::get_if<Operator>(&works[index(node.work)].work);
    if (op && is_product(*op)) total.flops += work_of(*op).flops / units::FLOP;
  }
  return total;
}

RC_GTEST_PROP(Blocks, TwoGradientsApartAreTheBackwardPass, ()) {
  const Question q = any_question_of_blocks();
  const Shape shape(q.model, q.plan, q.training);
  WorkTable works;
  const FragmentMaker make(shape, mesh_of(q.plan), works);
  for (const Block& block : blocks_of(q)) {
    const Sums whole = sums(make.pass(block, PassKind::kBackward), works);
    const Sums input = sums(make.pass(block, PassKind::kInputGradient), works);
    const Sums weight = sums(make.pass(block, PassKind::kWeightGradient), works);
    RC_ASSERT(std::abs(input.flops + weight.flops - whole.flops) <= 1e-9 * whole.flops);
    RC_ASSERT(input.nodes + weight.nodes == whole.nodes);
  }
}

RC_GTEST_PROP(Blocks, DependenciesPointBack, ()) {
  const Question q = any_question_of_blocks();
  const Shape shape(q.model, q.plan, q.training);
  WorkTable works;
  const FragmentMaker make(shape, mesh_of(q.plan), works);
  for (const Block& block : blocks_of(q)) {
    const Fragment both = beside(make.pass(block, PassKind::kForward), make.pass(block, PassKind::kBackward));
    for (std::size_t n = 0; n < both.nodes.size(); ++n) {
      const FragmentNode& node = both.nodes[n];
      for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
        RC_ASSERT(both.dependencies[node.first_dependency + d] < static_cast<std::int32_t>(n));
      }
      const auto* collective = std::get_if<Collective>(&works[index(node.work)].work);
      RC_ASSERT((collective == nullptr) == (node.stream == Stream::kCompute));
      if (collective) RC_ASSERT(collective->group.size() > 1);
    }
  }
}

bool reads_activations(const Call& call) {
  const auto* op = std::get_if<Operator>(&call.what);
  if (!op) return false;
  if (const auto* pointwise = std::get_if<Elementwise>(&op->kind)) {
    return pointwise->name.find("activation_backward") != std::string::npos || pointwise->name == "dropout_backward" ||
           pointwise->name == "weighted_sum_backward";
  }
  return std::holds_alternative<Normalization>(op->kind) || std::holds_alternative<Softmax>(op->kind) ||
         std::holds_alternative<Attention>(op->kind) || std::holds_alternative<CrossEntropy>(op->kind);
}

RC_GTEST_PROP(Blocks, WhatTheBackwardPassReadsWasKept, ()) {
  const Question q = any_question_of_blocks();
  const Shape shape(q.model, q.plan, q.training);
  const bool casts = blocks::keeps_casts(shape, blocks::recomputes(shape, RecomputeModule::kNorm));
  const bool shared_casts = blocks::keeps_casts(shape, blocks::may_keep_originals(shape));
  for (const Block& block : blocks_of(q)) {
    double first_linear = 0;
    const bool attends = std::any_of(block.steps.begin(), block.steps.end(),
                                     [](const BlockStep& step) { return step.name == "attention.proj"; });
    for (const BlockStep& step : block.steps) {
      // Budgets leave out token ids and the input of the embedding's norm.
      if (step.name.starts_with("embedding") && step.name != "embedding.dropout") continue;
      for (const Call& call : step.input_gradient) {
        // The scan keeps what the gated norm reads.
        if (reads_activations(call)) RC_ASSERT(step.kept_for_input_gradient > 0 || step.name == "mamba.gated_norm");
      }
      if (step.weight_gradient.empty()) continue;
      RC_ASSERT(step.output_gradient > 0);
      // Linear layers that share an input keep it once, in the first of them, but for casts.
      if (first_linear == 0) first_linear = step.kept_for_weight_gradient;
      const bool queries =
          step.name == "attention.q_down" || (step.name == "attention.q_up" && q.model.mla->q_rank == 0);
      const bool queries_first = q.plan.recompute == Recompute::kOperators;
      const bool reads_hidden = queries_first ? step.name == "attention.kv_down" : queries;
      const bool shares = (reads_hidden && !casts) || (step.name == "moe.shared.fc1" && !shared_casts) ||
                          (step.name == "mlp.fc1" && attends && q.model.branches == Branches::kParallel && !casts);
      if ((step.kept_for_weight_gradient > 0) == shares) RC_FAIL(step.name);
      RC_ASSERT(first_linear > 0);
    }
  }
}

RC_GTEST_PROP(Blocks, TensorParallelismSplitsTheParameters, ()) {
  Question q = any_question_of_blocks();
  q.model.kv_heads = q.model.heads;
  q.plan.ep = 1;
  q.plan.etp = 0;
  q.plan.written_out = false;  // transformers' experts have other kernels where no rank shares them
  Question whole = q;
  whole.plan.tp = 1;
  const std::vector<Block> parts = blocks_of(q), wholes = blocks_of(whole);
  const auto tp = static_cast<double>(q.plan.tp);
  for (std::size_t b = 0; b < parts.size(); ++b) {
    const RankParameters part = parameters_of(parts[b]), all = parameters_of(wholes[b]);
    RC_ASSERT(tp * part.dense >= all.dense);
    RC_ASSERT(part.dense <= all.dense);
    for (std::size_t s = 0; s < parts[b].steps.size(); ++s) {
      const BlockStep& step = parts[b].steps[s];
      const double each = step.parameters.total(), sum = wholes[b].steps[s].parameters.total();
      const bool is_whole = step.name == "moe.router" || step.name == "embedding.position" ||
                            step.name.ends_with("_down") || step.name == "moe.shared.gate" ||
                            step.name.starts_with("per_layer") || step.name == "embedding.per_layer.proj" ||
                            (step.name.ends_with("norm") && step.name != "mamba.gated_norm" &&
                             (step.name != "attention.qk_norm" || q.model.qk_norm != QueryKeyNorm::kToken));
      if (is_whole) {
        RC_ASSERT(each == sum);
      } else {  // biases of row-parallel layers are whole
        if (tp * each < sum || tp * each > sum * 1.2) RC_FAIL(step.name);
      }
    }
  }
}

}  // namespace
}  // namespace ns_dist
