#include "blocks/indexer.h"

#include <algorithm>

namespace ns_dist::blocks {

void index_product(const Shape& shape, BlockStep& step, std::string_view name, std::int64_t rows, std::int64_t out,
                   std::int64_t in) {
  step.forward.push_back(kernel(shape, std::string(name), Gemm{1, rows, out, in, GemmLayout::kNT}));
  step.parameters.dense += static_cast<double>(out) * static_cast<double>(in);
}

BlockStep indexer(const Shape& shape, std::int64_t rows, std::int64_t q_rank) {
  const Indexer& of = *shape.model->indexer;
  BlockStep step;
  step.name = "attention.index";
  index_product(shape, step, "attention.index.queries", rows, of.heads * of.head_dim, q_rank);
  index_product(shape, step, "attention.index.weights", rows, of.heads, shape.hidden);
  return step;
}

std::int64_t chosen_keys(const Shape& shape, std::int64_t all) { return std::min(all, shape.model->indexer->top_k); }

// Products of queries with the keys before them (in the mean half of all), ReLU and the weighted sum over heads are one
// kernel.
void choose_keys(const Shape& shape, BlockStep& step, std::int64_t rows, std::int64_t all) {
  const Indexer& of = *shape.model->indexer;
  Attention scores;  // a value of one channel: the sum over heads
  scores.batch = shape.micro_batch;
  scores.heads = of.heads;
  scores.query_length = std::max<std::int64_t>(1, rows / shape.micro_batch);
  scores.key_length = std::max<std::int64_t>(1, all / 2);
  scores.head_dim = of.head_dim;
  scores.causal = false;
  step.forward.push_back(kernel(shape, "attention.index.scores", scores));
  // Scores in fp32 are written once and read twice.
  const double fp32 = size_of(DType::kFp32) / units::B / shape.element;
  step.forward.push_back(kernel(shape, "attention.index.top_k", Elementwise{"top_k", rows * all, 3 * fp32, 0, 4}));
  // The core's backward pass reads which keys were chosen.
  step.kept_as = ActivationKind::kAttentionCore;
  step.kept_for_input_gradient = static_cast<double>(shape.tokens) * static_cast<double>(chosen_keys(shape, all)) *
                                 (size_of(DType::kFp32) / units::B);
}

void gather_context(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t rows,
                    std::int64_t columns) {
  if (shape.cp == 1) return;
  const Bytes all = bytes_of(shape, shape.cp * rows, columns) * units::B;
  calls.push_back(
      {concat(name, ".context.all_gather"), Communication{CollectiveKind::kAllGather, all, Axis::kContext}});
}

// One program for each query: its heads are the rows of a product, of which a tensor core computes 64 at a time. The
// kernel has `slots` for each query, used or not.
BlockStep chosen_core(const Shape& shape, std::int64_t slots, std::int64_t key_dim, std::int64_t value_dim) {
  constexpr std::int64_t kRows = 64;
  Attention attention;
  attention.batch = shape.micro_batch;
  attention.heads = std::max(shape.heads, std::min(shape.model->heads, kRows));
  attention.query_length = std::max<std::int64_t>(1, shape.tokens / shape.micro_batch);
  attention.key_length = slots;
  attention.head_dim = key_dim;
  attention.value_dim = value_dim;
  attention.causal = false;
  attention.library = shape.plan->attention_library;
  BlockStep step;
  step.name = "attention.core";
  step.again = step.drops_for_input_gradient = set_of(RecomputeModule::kCoreAttention);
  step.forward.push_back(kernel(shape, "attention.flash", attention));
  attention.pass = Pass::kBackward;
  step.input_gradient.push_back(kernel(shape, "attention.flash.backward", attention));
  step.kept_as = ActivationKind::kSoftmaxStatistics;
  step.kept_for_input_gradient = 4 * static_cast<double>(shape.tokens) * static_cast<double>(shape.heads);
  return step;
}

}  // namespace ns_dist::blocks
