// Final norm, logits and cross-entropy over a vocabulary split across ranks (Shoeybi et al. 2019, s.3: the ranks
// exchange a few numbers for each token, never the logits).
#include <algorithm>
#include <cmath>
#include <utility>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/linear.h"

namespace ns_dist {
namespace {

// Tokens whose logits are there at a time: those of a part, or such that logits take about as much as the hidden states
// (Liger-Kernel, ops/fused_linear_cross_entropy.py, inc_factor and chunk_size).
double tokens_at_a_time(const Shape& shape) {
  const std::int64_t given = shape.plan->loss_parts;
  const double tokens = static_cast<double>(shape.tokens);
  if (given > 0) return std::ceil(tokens / static_cast<double>(given));
  if (loss_library_of(*shape.plan) != Library::kLiger) return tokens;
  const double parts = std::ceil(static_cast<double>(shape.vocabulary) / static_cast<double>(shape.hidden));
  return std::min(tokens, std::exp2(std::ceil(std::log2(std::ceil(tokens / parts)))));
}

BlockStep logits(const Shape& shape, bool owns_table) {
  BlockStep step = blocks::linear(shape, ActivationKind::kLogits,
                                  {.name = "loss.logits",
                                   .rows = shape.tokens,
                                   .in = shape.hidden,
                                   .out = shape.vocabulary,
                                   .split = blocks::Split::kColumn,
                                   .region = "loss",
                                   .unquantized = true,
                                   .readers = 1,
                                   .by_element = true});
  if (!owns_table) step.parameters = {};
  if (freezes_tables(*shape.plan) && shape.model->ties_logits()) blocks::freeze(step);  // the embedding's table
  // Gradients are those of a part of the tokens. Liger's cross_entropy counts them.
  const double part = tokens_at_a_time(shape) / static_cast<double>(shape.tokens);
  step.transient_backward *= loss_library_of(*shape.plan) == Library::kLiger ? 0 : part;
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
                         .unquantized = true,
                         .by_element = true});
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

void add_fp32(std::vector<Call>& calls, std::string_view name, std::string_view suffix, OperatorKind kind) {
  calls.push_back({blocks::concat(name, suffix), Operator{std::move(kind), DType::kFp32}});
}

// Of the logits between their format and fp32, where these differ. `to_fp32`: elements read and written.
void add_cast(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::string_view suffix,
              bool to_fp32) {
  const double fp32 = size_of(DType::kFp32) / units::B / shape.element;  // elements of the storage format
  if (fp32 == 1) return;
  calls.push_back(
      blocks::kernel(shape, blocks::concat(name, suffix),
                     Elementwise{"cast", shape.tokens * shape.vocabulary, to_fp32 ? 1 : fp32, to_fp32 ? fp32 : 1, 1}));
}

// Logits are c tanh(x / c) (Model::capped_logits): in one kernel where kernels are fused, else in three. Liger's loss
// does it itself.
BlockStep cap(const Shape& shape) {
  const std::int64_t logits = shape.tokens * shape.vocabulary;
  BlockStep step;
  step.name = "loss.cap";
  const auto add = [&](const char* forward, const char* backward, double inputs, double flops, double flops_backward) {
    step.forward.push_back(blocks::kernel(shape, "loss.cap", Elementwise{forward, logits, 1, 1, flops}));
    step.input_gradient.push_back(
        blocks::kernel(shape, "loss.cap.backward", Elementwise{backward, logits, inputs, 1, flops_backward}));
  };
  const bool apart = !shape.plan->fused_kernels;
  if (apart) add("scale", "scale", 1, 1, 1);
  add("tanh", "tanh_backward", 2, 8, 3);
  if (apart) add("scale", "scale", 1, 1, 1);
  step.kept_as = ActivationKind::kLogits;
  step.kept_for_input_gradient = blocks::bytes_of(shape, shape.tokens, shape.vocabulary);
  return step;
}

// PyTorch's functional.cross_entropy in eager mode: the logits in fp32 (autocast, or the model's class, casts them),
// log_softmax, and the loss of each token.
void add_eager_forward(const Shape& shape, std::vector<Call>& calls, std::string_view name) {
  add_cast(shape, calls, name, ".cast", true);
  add_fp32(calls, name, ".log_softmax", Softmax{shape.tokens, shape.vocabulary, Pass::kForward});
  add_fp32(calls, name, ".nll", Elementwise{"nll_loss", shape.tokens, 2, 1, 1});
}

// Its backward pass: a tensor of zeros with one gradient a token, log_softmax's backward, and the cast.
void add_eager_backward(const Shape& shape, std::vector<Call>& calls, std::string_view name) {
  const std::int64_t logits = shape.tokens * shape.vocabulary;
  add_fp32(calls, name, ".nll.backward", Elementwise{"nll_loss_backward", logits, 0, 1, 1});
  add_fp32(calls, name, ".log_softmax.backward", Softmax{shape.tokens, shape.vocabulary, Pass::kBackward});
  add_cast(shape, calls, name, ".cast.backward", false);
}

// In one kernel a pass.
void add_fused(const Shape& shape, Library library, BlockStep& step) {
  const auto add = [&](std::vector<Call>& calls, std::string_view suffix, Pass pass) {
    calls.push_back(blocks::kernel(shape, blocks::concat(step.name, suffix),
                                   CrossEntropy{shape.tokens, shape.vocabulary, pass, library}));
  };
  add(step.forward, "", Pass::kForward);
  if (library != Library::kLiger) add(step.input_gradient, ".backward", Pass::kBackward);
}

// Bytes a logit at the loss's peak. Fused: in fp32 (Korthikanti et al. 2022, s.4.3); with FlashAttention's kernel the
// logits and their gradient. Eager: the logits, which the model's output holds, and as many fp32 tensors: what
// log_softmax reads and returns; during its backward what it returned and two gradients.
double bytes_a_logit(const Shape& shape, Library library) {
  constexpr double kFp32 = 4;
  const bool forward = shape.plan->passes == Passes::kForward;
  if (library == Library::kEager) return shape.element + (forward ? 2 : 3) * kFp32;
  if (library == Library::kFlash2) return (forward ? 1 : 2) * shape.element;
  return kFp32;
}

BlockStep cross_entropy(const Shape& shape) {
  const Library library = loss_library_of(*shape.plan);
  BlockStep step;
  step.name = "loss.cross_entropy";
  step.forward.reserve(6);
  if (library == Library::kEager) {
    add_eager_forward(shape, step.forward, step.name);
    add_eager_backward(shape, step.input_gradient, step.name);
  } else {
    add_fused(shape, library, step);
  }
  // Row maximum, target logit and sum of exponentials, fp32, for each token.
  const Bytes row_values = static_cast<double>(shape.tokens) * size_of(DType::kFp32);
  for (const char* name : {"loss.max.all_reduce", "loss.target.all_reduce", "loss.sum.all_reduce"}) {
    blocks::communicate(shape, step.forward, name, CollectiveKind::kAllReduce, row_values);
  }
  step.kept_as = ActivationKind::kLogits;
  const double vocabulary = static_cast<double>(shape.vocabulary);
  if (library == Library::kLiger) {  // the gradient of the hidden states; while it is made, some logits
    step.kept_for_input_gradient = blocks::bytes_of(shape, shape.tokens, shape.hidden);
    // Liger's kernel makes the gradient in their place. PyTorch casts them to fp32 (torchtitan, components/loss.py).
    const bool casts = shape.plan->loss_parts > 0 && !is_single_precision(shape.dtype);
    step.transient_forward =
        tokens_at_a_time(shape) * vocabulary * (shape.element + (casts ? size_of(DType::kFp32) / units::B : 0));
    return step;
  }
  const double logits = static_cast<double>(shape.tokens) * vocabulary;
  if (shape.plan->loss_parts > 0) {
    // Logits and loss of a part after the other. Of all parts autograd keeps the logits, in fp32 or their format, in
    // eager mode beside what log_softmax returns (torchtune, modules/loss).
    constexpr double kFp32 = 4;
    const bool fused = library == Library::kDefault, eager = library == Library::kEager;
    const double part = tokens_at_a_time(shape) * vocabulary;
    const double kept = shape.plan->passes == Passes::kForward ? part : logits;
    const double copy = fused && !is_single_precision(shape.dtype) ? shape.element : 0;
    step.kept_for_input_gradient = kept * (fused ? kFp32 : shape.element + (eager ? kFp32 : 0));
    step.transient_forward = part * (eager ? kFp32 : copy);
    step.transient_backward = part * (eager ? 2 * kFp32 : fused ? copy : shape.element);
    return step;
  }
  step.kept_for_input_gradient = bytes_a_logit(shape, library) * logits;
  // Megatron's kernels work in place on a copy in fp32 (cross_entropy.py: -=, torch.exp(out=), grad_input), beside the
  // logits, which the caller holds, and backward beside the gradient in their format.
  if (library == Library::kDefault && !is_single_precision(shape.dtype)) {
    step.transient_forward = step.transient_backward = logits * shape.element;
  }
  return step;
}

// Cross-entropies of ParallelPlan::loss_metrics, one after another. Frameworks compute them behind the backward pass;
// here they stand before it.
BlockStep metrics(const Shape& shape) {
  BlockStep step;
  step.name = "loss.metrics";
  for (std::int64_t i = 0; i < shape.plan->loss_metrics; ++i) add_eager_forward(shape, step.forward, step.name);
  return step;
}

// The end of the model. `owns_table`: it holds the weights of the logits' projection.
Block loss(const Shape& shape, bool owns_table) {
  Block block;
  block.steps.reserve(4);
  if (shape.streams > 1) block.steps.push_back(blocks::stream_sum(shape, "loss", false));
  block.steps.push_back(blocks::norm(shape, "loss.norm", shape.sharded_tokens, shape.hidden));
  block.steps.back().kept_as = ActivationKind::kLogits;
  const bool classifier = shape.model->labels > 0;
  block.steps.push_back(classifier ? scores(shape) : logits(shape, owns_table));
  if (!classifier && shape.model->capped_logits && loss_library_of(*shape.plan) != Library::kLiger) {
    block.steps.push_back(cap(shape));
  }
  block.steps.push_back(classifier ? cross_entropy_of_classes(shape) : cross_entropy(shape));
  if (!classifier && shape.plan->loss_metrics > 0) {
    block.steps.push_back(metrics(shape));
    // The logits, which the model's output holds, a copy in fp32, and what log_softmax returns.
    const double each = shape.element + 2 * 4;
    block.logged = each * static_cast<double>(shape.tokens) * static_cast<double>(shape.vocabulary);
  }
  return block;
}

}  // namespace

Block loss_block(const Shape& shape) {
  // A tied projection is the embedding's table, or a copy of it on another stage.
  return loss(shape, !shape.model->ties_logits() || shape.plan->pp > 1);
}

Block prediction_loss_block(const Shape& shape) { return loss(shape, false); }

}  // namespace ns_dist
