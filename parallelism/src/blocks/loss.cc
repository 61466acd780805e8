// Final norm, logits and cross-entropy over a vocabulary split across ranks (Shoeybi et al. 2019, s.3: the ranks
// exchange a few numbers for each token, never the logits).
#include <utility>

#include "blocks/common.h"

namespace ns_dist {
namespace {

BlockStep logits(const Shape& shape) {
  BlockStep step = blocks::linear(shape, ActivationKind::kLogits,
                                  {"loss.logits", shape.tokens, shape.hidden, shape.vocabulary, false,
                                   blocks::Split::kColumn, "loss", Epilogue::kNone, true});
  // A tied projection is the embedding's table, or a copy of it on another stage. So is the table that multi-token
  // prediction reads.
  const bool copies = shape.plan->pp > 1;
  const int tables = shape.model->tied_embeddings ? (copies ? 1 : 0) : (copies && shape.prediction_layers > 0 ? 2 : 1);
  step.parameters.dense *= tables;
  return step;
}

// The score of each class, from one token of each sequence.
BlockStep scores(const Shape& shape) {
  return blocks::linear(shape, ActivationKind::kLogits,
                        {.name = "loss.scores",
                         .rows = shape.micro_batch,
                         .in = shape.hidden,
                         .out = shape.model->labels,
                         .bias = shape.model->bias,
                         .unquantized = true});
}

BlockStep cross_entropy_of_classes(const Shape& shape) {
  BlockStep step;
  step.name = "loss.cross_entropy";
  step.forward.push_back(
      blocks::kernel(shape, step.name, CrossEntropy{shape.micro_batch, shape.model->labels, Pass::kForward}));
  step.input_gradient.push_back(blocks::kernel(shape, "loss.cross_entropy.backward",
                                               CrossEntropy{shape.micro_batch, shape.model->labels, Pass::kBackward}));
  return step;
}

// PyTorch's functional.cross_entropy in eager mode: the logits in fp32 (autocast, or the model's class, casts them),
// log_softmax, and the loss of each token; backward a tensor of zeros with one gradient a token, log_softmax's
// backward, and the cast.
void add_eager_cross_entropy(const Shape& shape, BlockStep& step) {
  const std::int64_t logits = shape.tokens * shape.vocabulary;
  const double fp32 = size_of(DType::kFp32) / units::B / shape.element;  // elements of the storage format
  const auto add_fp32 = [&](std::vector<Call>& calls, std::string_view suffix, OperatorKind kind) {
    calls.push_back({blocks::concat(step.name, suffix), Operator{std::move(kind), DType::kFp32}});
  };
  const auto add_cast = [&](std::vector<Call>& calls, std::string_view suffix, double read, double written) {
    if (fp32 == 1) return;
    calls.push_back(
        blocks::kernel(shape, blocks::concat(step.name, suffix), Elementwise{"cast", logits, read, written, 1}));
  };
  add_cast(step.forward, ".cast", 1, fp32);
  add_fp32(step.forward, ".log_softmax", Softmax{shape.tokens, shape.vocabulary, Pass::kForward});
  add_fp32(step.forward, ".nll", Elementwise{"nll_loss", shape.tokens, 2, 1, 1});
  add_fp32(step.input_gradient, ".nll.backward", Elementwise{"nll_loss_backward", logits, 0, 1, 1});
  add_fp32(step.input_gradient, ".log_softmax.backward", Softmax{shape.tokens, shape.vocabulary, Pass::kBackward});
  add_cast(step.input_gradient, ".cast.backward", fp32, 1);
}

void add_cross_entropy(const Shape& shape, BlockStep& step) {
  step.forward.push_back(
      blocks::kernel(shape, step.name, CrossEntropy{shape.tokens, shape.vocabulary, Pass::kForward}));
  step.input_gradient.push_back(blocks::kernel(shape, blocks::concat(step.name, ".backward"),
                                               CrossEntropy{shape.tokens, shape.vocabulary, Pass::kBackward}));
}

BlockStep cross_entropy(const Shape& shape) {
  const bool eager = !shape.plan->fused_kernels;
  BlockStep step;
  step.name = "loss.cross_entropy";
  step.forward.reserve(6);
  eager ? add_eager_cross_entropy(shape, step) : add_cross_entropy(shape, step);
  // Row maximum, target logit and sum of exponentials, fp32, for each token.
  const Bytes row_values = static_cast<double>(shape.tokens) * size_of(DType::kFp32);
  for (const char* name : {"loss.max.all_reduce", "loss.target.all_reduce", "loss.sum.all_reduce"}) {
    blocks::communicate(shape, step.forward, name, CollectiveKind::kAllReduce, row_values);
  }
  step.kept_as = ActivationKind::kLogits;
  // Logits in fp32 (Korthikanti et al. 2022, s.4.3). In eager mode the logits, which the model's output holds, and as
  // many fp32 tensors: what log_softmax reads and returns; during its backward what it returned and two gradients.
  const double tensors = shape.plan->passes == Passes::kForward ? 2 : 3;
  const double each = eager ? shape.element + tensors * 4 : 4;
  step.kept_for_input_gradient = each * static_cast<double>(shape.tokens) * static_cast<double>(shape.vocabulary);
  return step;
}

}  // namespace

Block loss_block(const Shape& shape) {
  Block block;
  block.steps.reserve(3);
  block.steps.push_back(blocks::norm(shape, "loss.norm", shape.sharded_tokens, shape.hidden));
  block.steps.back().kept_as = ActivationKind::kLogits;
  const bool classifier = shape.model->labels > 0;
  block.steps.push_back(classifier ? scores(shape) : logits(shape));
  block.steps.push_back(classifier ? cross_entropy_of_classes(shape) : cross_entropy(shape));
  return block;
}

Block prediction_loss_block(const Shape& shape) {
  Block block = loss_block(shape);
  for (BlockStep& step : block.steps) {
    if (step.name == "loss.logits") step.parameters = {};
  }
  return block;
}

}  // namespace ns_dist
