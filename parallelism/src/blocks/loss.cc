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

BlockStep cross_entropy(const Shape& shape) {
  BlockStep step;
  step.name = "loss.cross_entropy";
  step.forward.reserve(4);
  step.forward.push_back(
      blocks::kernel(shape, step.name, CrossEntropy{shape.tokens, shape.vocabulary, Pass::kForward}));
  // Row maximum, target logit and sum of exponentials, fp32, for each token.
  const Bytes row_values = static_cast<double>(shape.tokens) * size_of(DType::kFp32);
  for (const char* name : {"loss.max.all_reduce", "loss.target.all_reduce", "loss.sum.all_reduce"}) {
    blocks::communicate(shape, step.forward, name, CollectiveKind::kAllReduce, row_values);
  }
  step.input_gradient.push_back(blocks::kernel(shape, "loss.cross_entropy.backward",
                                               CrossEntropy{shape.tokens, shape.vocabulary, Pass::kBackward}));
  step.kept_as = ActivationKind::kLogits;
  // Logits in fp32 (Korthikanti et al. 2022, s.4.3).
  step.kept_for_input_gradient = 4 * static_cast<double>(shape.tokens) * static_cast<double>(shape.vocabulary);
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
