// Attention to a window and to entries of several tokens each (DeepSeek-V4, arXiv 2606.19348), as DeepSeek's
// inference/model.py and Megatron-Core (experimental_attention_variant/csa.py) compute it. Products are forecast as all
// others, the core as attention of all queries to as many keys as its kernel walks through: it has as many slots for
// each query, used or not. Of the indexer's choice and of making entries, only work and traffic are known. The indexer
// learns by a loss of its own, which is left out: none of its kernels has a gradient.
//
// Tensor-parallel ranks divide the heads. What is made of the hidden states without heads (latents of queries, keys,
// entries, the indexer) is made by each rank of its own tokens, and comes together behind that. Context-parallel ranks
// gather keys and entries of all tokens.
#include <algorithm>
#include <utility>

#include "blocks/common.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::kernel;
using blocks::Split;

struct CompressedSizes {
  explicit CompressedSizes(const Shape& shape)
      : of(*shape.model->compressed),
        width(shape.query_dim),
        entries(shape.kind.entries),
        ratio(entries == Entries::kChosen ? of.chosen_ratio
              : entries == Entries::kAll  ? of.dense_ratio
                                          : 0),
        heads_of_group(shape.model->heads / of.output_groups),
        groups(std::max<std::int64_t>(1, of.output_groups / shape.tp)) {}
  const CompressedAttention& of;
  std::int64_t width;  // of the head of keys and values
  Entries entries;
  std::int64_t ratio;  // tokens of an entry; 0: none
  std::int64_t heads_of_group;
  std::int64_t groups;  // of this rank
  // Overlapping entries are made of two projections of a token: for its own entry, and for the next one.
  std::int64_t halves() const { return entries == Entries::kChosen ? 2 : 1; }
  std::int64_t made_of(std::int64_t tokens) const { return ratio == 0 ? 0 : std::max<std::int64_t>(1, tokens / ratio); }
  // Slots for keys that the core has for each query.
  std::int64_t slots(const Shape& shape) const {
    const std::int64_t all = made_of(shape.sequence);
    return std::min(shape.sequence, shape.model->sliding_window) +
           (entries == Entries::kChosen ? std::min(all, of.index_top_k) : all);
  }
};

// Latents of `own` tokens, with their norm. `shares`: another layer keeps the hidden states.
void add_latents(const Shape& shape, Block& block, const char* name, const char* norm, std::int64_t out, bool shares) {
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = name,
                                        .rows = shape.sharded_tokens,
                                        .in = shape.hidden,
                                        .out = out,
                                        .keeps_original = blocks::recomputes(shape, RecomputeModule::kNorm),
                                        .readers = 1,
                                        .shares_input = shares}));
  block.steps.push_back(blocks::norm(shape, norm, shape.sharded_tokens, out));
}

// Entries of `width` channels: two projections for each of `halves`, and their means weighted by a softmax over the
// tokens of an entry, channel by channel. Both projections are kept.
void add_entries(const Shape& shape, const CompressedSizes& size, Block& block) {
  const std::int64_t own = shape.sharded_tokens, columns = size.halves() * size.width;
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = "attention.compressor",
                                        .rows = own,
                                        .in = shape.hidden,
                                        .out = 2 * columns,
                                        .readers = 1,
                                        .shares_input = true}));
  BlockStep mean;
  mean.name = "attention.entries";
  const double written = 1 / static_cast<double>(size.ratio * size.halves());
  mean.forward.push_back(kernel(shape, mean.name, Elementwise{"compress", own * columns, 2, written, 8}));
  mean.input_gradient.push_back(
      kernel(shape, "attention.entries.backward", Elementwise{"compress_backward", own * columns, 2 + written, 2, 16}));
  mean.parameters.dense = static_cast<double>(size.ratio) * static_cast<double>(columns);  // positions in an entry
  mean.kept_as = ActivationKind::kAttentionProjections;
  mean.kept_for_input_gradient = bytes_of(shape, own, 2 * columns);
  block.steps.push_back(std::move(mean));
  block.steps.push_back(blocks::norm(shape, "attention.entry_norm", size.made_of(own), size.width));
}

// Scores of entries by heads of their own, and the best of them for each query. The products of this rank's queries
// with all entries before them (in the mean half), ReLU, and the weighted sum over heads run in one kernel.
BlockStep chosen_entries(const Shape& shape, const CompressedSizes& size) {
  const std::int64_t own = shape.sharded_tokens, all = size.made_of(shape.sequence);
  const std::int64_t heads = size.of.index_heads, width = size.of.index_head_dim, columns = 2 * width;
  BlockStep step;
  step.name = "attention.index";
  const auto product = [&](const char* name, std::int64_t out, std::int64_t in) {
    step.forward.push_back(kernel(shape, name, Gemm{1, own, out, in, GemmLayout::kNT}));
    step.parameters.dense += static_cast<double>(out) * static_cast<double>(in);
  };
  product("attention.index.queries", heads * width, size.of.q_rank);
  product("attention.index.weights", heads, shape.hidden);
  product("attention.index.compressor", 2 * columns, shape.hidden);
  step.forward.push_back(kernel(shape, "attention.index.entries",
                                Elementwise{"compress", own * columns, 2, 1 / static_cast<double>(2 * size.ratio), 8}));
  step.parameters.dense += static_cast<double>(size.ratio * columns + width);
  blocks::gather(shape, step.forward, "attention.index.entries",
                 bytes_of(shape, size.made_of(shape.tokens), width) * units::B);
  Attention scores;  // whose values are the weights of heads
  scores.batch = shape.micro_batch;
  scores.heads = heads;
  scores.query_length = std::max<std::int64_t>(1, own / shape.micro_batch);
  scores.key_length = std::max<std::int64_t>(1, all / 2);
  scores.head_dim = width;
  scores.causal = false;
  step.forward.push_back(kernel(shape, "attention.index.scores", scores));
  // Scores are fp32; the choice reads them twice.
  const double fp32 = size_of(DType::kFp32) / units::B / shape.element;
  step.forward.push_back(kernel(shape, "attention.index.choice", Elementwise{"top_k", own * all, 3 * fp32, 0, 4}));
  blocks::gather(shape, step.forward, "attention.index.choice",
                 static_cast<double>(shape.tokens * std::min(all, size.of.index_top_k)) * size_of(DType::kFp32));
  return step;
}

// Keys of all tokens of a sequence, and entries, of ranks that have others.
void bring_keys(const Shape& shape, const CompressedSizes& size, BlockStep& step) {
  const Bytes all = bytes_of(shape, shape.tokens + size.made_of(shape.tokens), size.width) * units::B;
  blocks::gather(shape, step.forward, "attention.keys", all);
  std::vector<Call> back;
  blocks::reduce(shape, back, "attention.keys.grad", all);
  if (shape.cp > 1) {
    const Bytes whole = all * static_cast<double>(shape.cp);
    step.forward.push_back(
        {"attention.keys.all_gather", Communication{CollectiveKind::kAllGather, whole, Axis::kContext}});
    back.insert(back.begin(), {"attention.keys.reduce_scatter",
                               Communication{CollectiveKind::kReduceScatter, whole, Axis::kContext}});
  }
  step.input_gradient.insert(step.input_gradient.end(), back.begin(), back.end());
}

// A product for each group of heads: the same work as one product of the groups' rows together, with as many weights.
BlockStep grouped_output(const Shape& shape, const CompressedSizes& size) {
  const std::int64_t groups = size.groups;
  BlockStep step = blocks::linear(shape, ActivationKind::kAttentionProjections,
                                  {.name = "attention.group_proj",
                                   .rows = shape.tokens * groups,
                                   .in = size.heads_of_group * shape.value_dim,
                                   .out = size.of.output_rank});
  const auto divide = [groups](std::vector<Call>& calls) {
    for (Call& call : calls) {
      auto* op = std::get_if<Operator>(&call.what);
      auto* gemm = op != nullptr ? std::get_if<Gemm>(&op->kind) : nullptr;
      if (gemm == nullptr) continue;
      gemm->batch = groups;
      (gemm->layout == GemmLayout::kTN ? gemm->k : gemm->m) /= groups;
    }
  };
  for (std::vector<Call>* calls : {&step.forward, &step.input_gradient, &step.weight_gradient}) divide(*calls);
  step.parameters = step.parameters * static_cast<double>(groups);
  step.adapters = step.adapters * static_cast<double>(groups);
  return step;
}

// Rotates the last channels of each head, forward or back.
BlockStep rotation(const Shape& shape, std::string name, std::int64_t elements) {
  BlockStep step;
  const Elementwise rope{Elementwise::kRope, elements, 1, 1, 3};
  step.forward.push_back(kernel(shape, name, rope));
  step.input_gradient.push_back(kernel(shape, blocks::concat(name, ".backward"), rope));
  step.name = std::move(name);
  return step;
}

BlockStep compressed_core(const Shape& shape, const CompressedSizes& size) {
  Attention attention;
  attention.batch = shape.micro_batch;
  attention.heads = shape.heads;
  attention.query_length = std::max<std::int64_t>(1, shape.tokens / shape.micro_batch);
  attention.key_length = size.slots(shape);
  attention.head_dim = attention.value_dim = size.width;
  attention.causal = false;
  attention.library = shape.plan->attention_library;
  BlockStep step;
  step.name = "attention.core";
  step.again = step.drops_for_input_gradient = set_of(RecomputeModule::kCoreAttention);
  bring_keys(shape, size, step);
  step.forward.push_back(kernel(shape, "attention.flash", attention));
  attention.pass = Pass::kBackward;
  step.input_gradient.insert(step.input_gradient.begin(), kernel(shape, "attention.flash.backward", attention));
  step.kept_as = ActivationKind::kAttentionCore;
  // Queries, keys, entries, and the log-sum-exp of each row; the projection keeps the output.
  step.kept_for_input_gradient = bytes_of(shape, shape.tokens, shape.heads * size.width) +
                                 bytes_of(shape, (shape.tokens + size.made_of(shape.tokens)) * shape.cp, size.width) +
                                 4 * static_cast<double>(shape.tokens) * static_cast<double>(shape.heads);
  return step;
}

}  // namespace

Block compressed_attention_block(const Shape& shape) {
  const CompressedSizes size(shape);
  const std::int64_t rotated = size.of.rope_head_dim, queries = shape.tokens * shape.heads;
  Block block;
  block.input = blocks::hidden_bytes(shape, shape.sharded_tokens, shape.hidden);
  block.cached = bytes_of(shape, shape.tokens + size.made_of(shape.tokens), size.width);
  block.steps.push_back(blocks::branch_start(shape, "attention"));
  blocks::add_gradients(shape, block.steps.front(), "attention", size.ratio > 0 ? 3 : 2);
  add_latents(shape, block, "attention.q_down", "attention.q_norm", size.of.q_rank, false);
  block.steps[1].drops_for_weight_gradient = block.steps[0].again;
  add_latents(shape, block, "attention.kv", "attention.kv_norm", size.width, true);
  if (size.ratio > 0) add_entries(shape, size, block);
  if (size.entries == Entries::kChosen) block.steps.push_back(chosen_entries(shape, size));
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = "attention.q_up",
                                        .rows = shape.tokens,
                                        .in = size.of.q_rank,
                                        .out = shape.heads * size.width,
                                        .split = Split::kColumn,
                                        .region = "attention.q",
                                        .behind_norm = true,
                                        .readers = 1}));
  BlockStep head_norm = blocks::norm_without_sums(shape, "attention.head_norm", queries, size.width);
  head_norm.parameters = {};
  block.steps.push_back(std::move(head_norm));
  block.steps.push_back(rotation(shape, "attention.rotary.queries", queries * rotated));
  block.steps.push_back(rotation(shape, "attention.rotary.keys", shape.sharded_tokens * rotated));
  block.steps.push_back(compressed_core(shape, size));
  block.steps.back().parameters.dense = static_cast<double>(shape.heads);  // sinks
  block.steps.push_back(rotation(shape, "attention.rotary.output", queries * rotated));
  block.steps.push_back(grouped_output(shape, size));
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
