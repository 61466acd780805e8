// Compressed attention (DeepSeek-V4, arXiv 2606.19348), as DeepSeek's inference/model.py and Megatron-Core
// (experimental_attention_variant/csa.py) compute it: a query reads a window of tokens, and compressed keys of several
// tokens each. Products are forecast as all others. The core is forecast as attention of all queries to as many keys as
// its kernel has slots for each query, used or not. Of the making of compressed keys and of the choice among them, only
// work and traffic are known.
//
// Tensor parallelism, which Megatron-Core does not have here, divides the heads. What has no heads (latents of queries,
// keys, the indexer) each rank computes for its own tokens; ranks gather it. Context-parallel ranks gather compressed
// keys, and receive the window before their tokens.
#include <algorithm>
#include <utility>

#include "blocks/branch.h"
#include "blocks/indexer.h"
#include "blocks/linear.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::kernel;
using blocks::Split;

struct CompressedSizes {
  explicit CompressedSizes(const Shape& shape)
      : of(*shape.model->compressed),
        width(shape.query_dim),
        keys(shape.kind.compressed_keys),
        ratio(keys == CompressedKeys::kSparse  ? of.sparse_ratio
              : keys == CompressedKeys::kDense ? of.dense_ratio
                                               : 0),
        heads_of_group(shape.model->heads / of.output_groups),
        groups(std::max<std::int64_t>(1, of.output_groups / shape.tp)) {}
  const CompressedAttention& of;
  std::int64_t width;  // of the head of keys and values
  CompressedKeys keys;
  std::int64_t ratio;  // tokens of a compressed key; 0: there are none
  std::int64_t heads_of_group;
  std::int64_t groups;  // of this rank
  bool is_sparse() const { return keys == CompressedKeys::kSparse; }
  // Sparse keys overlap: a token has two projections, for its own key and for the next one.
  std::int64_t overlap() const { return is_sparse() ? 2 : 1; }
  // Compressed keys of so many tokens.
  std::int64_t compressed(std::int64_t tokens) const {
    return ratio == 0 ? 0 : std::max<std::int64_t>(1, tokens / ratio);
  }
  std::int64_t window(const Shape& shape) const { return std::min(shape.document_tokens, shape.model->sliding_window); }
  // Slots for compressed keys that the core has for each query.
  std::int64_t slots(const Shape& shape) const {
    const std::int64_t all = compressed(shape.document_tokens);
    return is_sparse() ? blocks::chosen_keys(shape, all) : all;
  }
};

// Means of projections of `columns` channels and as many of their weights.
Elementwise compression(std::int64_t rows, std::int64_t columns, const CompressedSizes& size) {
  return {"compress", rows * columns, 2, 1 / static_cast<double>(size.ratio * size.overlap()), 8};
}

// Each is a mean of its tokens' projections, weighted channel by channel by a softmax over these tokens. What both
// projections make is kept.
BlockStep compress(const Shape& shape, const CompressedSizes& size) {
  const std::int64_t own = shape.sharded_tokens, columns = size.overlap() * size.width;
  const Elementwise means = compression(own, columns, size);
  BlockStep step;
  step.name = "attention.compress";
  step.forward.push_back(kernel(shape, step.name, means));
  step.input_gradient.push_back(kernel(shape, "attention.compress.backward",
                                       Elementwise{"compress_backward", own * columns, 2 + means.outputs, 2, 16}));
  step.parameters.dense = static_cast<double>(size.ratio) * static_cast<double>(columns);  // a bias for each position
  step.kept_as = ActivationKind::kAttentionProjections;
  step.kept_for_input_gradient = bytes_of(shape, own, 2 * columns);
  return step;
}

// The indexer makes compressed keys of its own, as overlapping as those of the core.
BlockStep index(const Shape& shape, const CompressedSizes& size) {
  const std::int64_t own = shape.sharded_tokens, keys = size.compressed(shape.tokens);
  const std::int64_t width = shape.model->indexer->head_dim, columns = size.overlap() * width;
  BlockStep step = blocks::indexer(shape, own, size.of.q_rank);
  blocks::index_product(shape, step, "attention.index.compressor", own, 2 * columns, shape.hidden);
  step.forward.push_back(kernel(shape, "attention.index.compress", compression(own, columns, size)));
  step.parameters.dense += static_cast<double>(size.ratio * columns + width);
  blocks::gather(shape, step.forward, "attention.index.keys", bytes_of(shape, keys, width) * units::B);
  blocks::gather_context(shape, step.forward, "attention.index.keys", keys, width);
  blocks::choose_keys(shape, step, own, size.compressed(shape.document_tokens));
  blocks::gather(shape, step.forward, "attention.index.top_k", step.kept_for_input_gradient * units::B);
  return step;
}

// Rotates `elements` of heads, forward or back.
void rotate(const Shape& shape, BlockStep& step, const std::string& name, std::int64_t elements) {
  blocks::add_mirrored(shape, step, name, Elementwise{Elementwise::kRope, elements, 1, 1, 3});
}

// Queries and keys as the core reads them, and the collectives that bring keys of other ranks.
BlockStep queries_and_keys(const Shape& shape, const CompressedSizes& size) {
  BlockStep step;
  step.name = "attention.heads";
  rotate(shape, step, "attention.rotary.queries", shape.tokens * shape.heads * size.of.rope_head_dim);
  rotate(shape, step, "attention.rotary.keys", shape.sharded_tokens * size.of.rope_head_dim);
  const std::int64_t compressed = size.compressed(shape.tokens);
  const Bytes own = bytes_of(shape, shape.tokens + compressed, size.width) * units::B;
  std::vector<Call> back;
  blocks::gather(shape, step.forward, "attention.keys", own);
  std::int64_t rows = shape.tokens + compressed;
  if (shape.cp > 1) {
    const Bytes window = bytes_of(shape, shape.micro_batch * size.window(shape), size.width) * units::B;
    const Bytes all = bytes_of(shape, compressed * shape.cp, size.width) * units::B;
    rows += shape.micro_batch * size.window(shape) + compressed * (shape.cp - 1);
    const auto exchange = [&](std::vector<Call>& calls, const char* name, CollectiveKind kind, Bytes bytes, Axis axis) {
      if (bytes > Bytes()) calls.push_back({name, Communication{kind, bytes, axis}});
    };
    exchange(step.forward, "attention.window.send", CollectiveKind::kSendRecv, window, Axis::kContextPair);
    exchange(step.forward, "attention.keys.context.all_gather", CollectiveKind::kAllGather, all, Axis::kContext);
    exchange(back, "attention.keys.grad.context.reduce_scatter", CollectiveKind::kReduceScatter, all, Axis::kContext);
    exchange(back, "attention.window.grad.send", CollectiveKind::kSendRecv, window, Axis::kContextPair);
  }
  blocks::reduce(shape, back, "attention.keys.grad", own);
  step.input_gradient.insert(step.input_gradient.begin(), back.begin(), back.end());
  step.kept_as = ActivationKind::kAttentionCore;
  step.kept_for_input_gradient =
      bytes_of(shape, shape.tokens, shape.heads * size.width) + bytes_of(shape, rows, size.width);
  return step;
}

// Its output is kept, because it is rotated back behind it.
BlockStep compressed_core(const Shape& shape, const CompressedSizes& size) {
  BlockStep step = blocks::chosen_core(shape, size.window(shape) + size.slots(shape), size.width, size.width);
  step.parameters.dense = static_cast<double>(shape.heads);  // sinks
  rotate(shape, step, "attention.rotary.output", shape.tokens * shape.heads * size.of.rope_head_dim);
  step.kept_as = ActivationKind::kAttentionCore;
  step.kept_for_input_gradient += bytes_of(shape, shape.tokens, shape.heads * size.width);
  return step;
}

}  // namespace

Block compressed_attention_block(const Shape& shape) {
  const CompressedSizes size(shape);
  const std::int64_t own = shape.sharded_tokens;
  Block block;
  block.cached = bytes_of(shape, shape.tokens + size.compressed(shape.tokens), size.width);
  if (shape.kind.chooses_keys)
    block.cached += bytes_of(shape, size.compressed(shape.tokens), shape.model->indexer->head_dim);
  block.steps.push_back(blocks::branch_start(shape, "attention"));
  blocks::add_gradients(shape, block.steps.front(), "attention", size.ratio > 0 ? 3 : 2);
  blocks::SideBySide readers(shape, ActivationKind::kAttentionProjections);
  const auto project = [&](const char* name, std::int64_t out, bool unquantized = false) {
    block.steps.push_back(
        readers.linear({.name = name, .rows = own, .in = shape.hidden, .out = out, .unquantized = unquantized}));
    block.steps.back().drops_for_weight_gradient = block.steps.front().again;
  };
  project("attention.q_down", size.of.q_rank);
  project("attention.kv", size.width);
  // Of keys and of their weights; Megatron-Core runs it in the storage format.
  if (size.ratio > 0) project("attention.compressor", 2 * size.overlap() * size.width, true);
  block.steps.push_back(blocks::norm(shape, "attention.q_norm", own, size.of.q_rank));
  block.steps.push_back(blocks::norm(shape, "attention.kv_norm", own, size.width));
  if (size.ratio > 0) {
    block.steps.push_back(compress(shape, size));
    block.steps.push_back(blocks::norm(shape, "attention.compressed_norm", size.compressed(own), size.width));
  }
  if (shape.kind.chooses_keys) block.steps.push_back(index(shape, size));
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = "attention.q_up",
                                        .rows = shape.tokens,
                                        .in = size.of.q_rank,
                                        .out = shape.heads * size.width,
                                        .split = Split::kColumn,
                                        .region = "attention.q",
                                        .behind_norm = true,
                                        .readers = 1}));
  BlockStep head_norm = blocks::norm_without_sums(shape, "attention.head_norm", shape.tokens * shape.heads, size.width);
  head_norm.parameters = {};
  block.steps.push_back(std::move(head_norm));
  block.steps.push_back(queries_and_keys(shape, size));
  block.steps.push_back(compressed_core(shape, size));
  // A product for each group of heads, in the storage format (Megatron-Core: torch.einsum with a parameter).
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = "attention.group_proj",
                                        .rows = shape.tokens,
                                        .in = size.heads_of_group * size.width,
                                        .out = size.of.output_rank,
                                        .groups = size.groups,
                                        .unquantized = true,
                                        .weights = Split::kColumn}));
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = "attention.proj",
                                        .rows = shape.tokens,
                                        .in = size.groups * size.of.output_rank,
                                        .out = shape.hidden,
                                        .split = Split::kRow,
                                        .region = "attention"}));
  blocks::end_branch(shape, block, "attention");
  return block;
}

}  // namespace ns_dist
