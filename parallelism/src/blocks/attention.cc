// Self-attention: grouped-query, and multi-head latent attention.
#include <algorithm>
#include <span>
#include <utility>

#include "blocks/attention_core.h"
#include "blocks/branch.h"
#include "blocks/chosen_attention.h"
#include "blocks/common.h"
#include "blocks/linear.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::kernel;
using blocks::key_heads;
using blocks::Split;

// Of the gates of its output, which the first projection makes beside the queries.
std::int64_t gate_columns(const Shape& shape) {
  if (!shape.model->attention_gate) return 0;
  return shape.heads * (shape.model->gate_of_head ? 1 : shape.value_dim);
}

// Of the keys and values that a projection makes.
std::int64_t key_columns(const Shape& shape) { return shape.kind.shares_keys ? 0 : shape.kv_heads * shape.query_dim; }
std::int64_t value_columns(const Shape& shape) {
  return shape.kind.shares_keys || shape.keys_are_values ? 0 : shape.kv_heads * shape.value_dim;
}
int projections(const Shape& shape) { return shape.kind.shares_keys ? 1 : shape.keys_are_values ? 2 : 3; }
// Of the keys and values that the layer itself makes, by whichever projection.
std::int64_t own_columns(const Shape& shape) {
  return shape.kind.shares_keys ? 0 : shape.kv_heads * (shape.query_dim + shape.value_dim);
}

void grouped_query_projections(const Shape& shape, Block& block) {
  const bool bias = shape.model->bias || shape.model->qkv_bias;
  const std::int64_t query = shape.heads * shape.query_dim, key = key_columns(shape), value = value_columns(shape);
  const std::int64_t gate = gate_columns(shape), out = query + key + value + gate;
  std::vector<std::int64_t> sections{query};
  if (key > 0) sections.push_back(key);
  if (value > 0) sections.push_back(value);
  if (gate > 0) sections.push_back(gate);
  std::vector<std::int64_t> products = sections;
  if (gate > 0 && !shape.model->gate_of_head) {  // beside the queries
    products.front() += gate;
    products.pop_back();
  }
  if (blocks::separate_layers(shape, 2) == 1) products.clear();
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = "attention.qkv",
                                        .rows = shape.tokens,
                                        .in = shape.hidden,
                                        .out = out,
                                        .bias = bias,
                                        .split = Split::kColumn,
                                        .region = "attention",
                                        .epilogue = bias ? Epilogue::kBias : Epilogue::kNone,
                                        .behind_norm = blocks::alone_behind_norm(shape),
                                        .keeps_original = blocks::recomputes(shape, RecomputeModule::kNorm),
                                        .readers = blocks::separate_layers(shape, projections(shape)),
                                        .sections = std::move(sections),
                                        .products = std::move(products)}));
}

// DeepSeek-V2 (arXiv 2405.04434), s.2.1.2-2.1.3. Down-projections are whole on every rank and run on its own tokens,
// up-projections are split by head. Under sequence parallelism the latents of all tokens come together before these,
// and the part of the keys that all heads share comes together by itself (Megatron-Core, multi_latent_attention.py).
void latent_projections(const Shape& shape, Block& block) {
  const LatentAttention& mla = *shape.model->mla;
  const std::int64_t own = shape.sharded_tokens, query = shape.heads * shape.query_dim;
  const auto add = [&](const blocks::Linear& layer) {
    block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections, layer));
  };
  blocks::SideBySide readers(shape, ActivationKind::kAttentionProjections);
  const auto of_hidden = [&](const blocks::Linear& layer) { block.steps.push_back(readers.linear(layer)); };
  constexpr ModuleSet kUp = set_of(RecomputeModule::kLatentUpProjection);
  const auto up = [&](std::string_view name, std::int64_t in, std::int64_t out, std::string_view region) {
    add({.name = name,
         .rows = shape.tokens,
         .in = in,
         .out = out,
         .split = Split::kColumn,
         .region = region,
         .behind_norm = true,
         .readers = 1});
    block.steps.back().again |= kUp;
  };
  const auto keys_down = [&] {
    of_hidden({.name = "attention.kv_down", .rows = own, .in = shape.hidden, .out = mla.kv_rank + mla.rope_head_dim});
    if (!shape.sequence_parallel) return;
    const Bytes shared = bytes_of(shape, shape.tokens, mla.rope_head_dim) * units::B;
    BlockStep& down = block.steps.back();
    blocks::gather(shape, down.forward, "attention.shared_keys", shared);
    if (shape.tp > 1) ++down.calls_after_kept;
    std::vector<Call> before;
    blocks::reduce(shape, before, "attention.shared_keys", shared);
    down.input_gradient.insert(down.input_gradient.begin(), before.begin(), before.end());
  };
  const auto queries_down = [&] {
    if (mla.q_rank == 0) return;
    of_hidden({.name = "attention.q_down", .rows = own, .in = shape.hidden, .out = mla.q_rank});
    block.steps.back().drops_for_weight_gradient = block.steps.front().again;  // reads what the norm makes again
    block.steps.push_back(blocks::norm(shape, "attention.q_norm", own, mla.q_rank));
  };
  const auto keys_norm = [&] { block.steps.push_back(blocks::norm(shape, "attention.kv_norm", own, mla.kv_rank)); };
  const auto queries_up = [&] {
    if (mla.q_rank > 0) return up("attention.q_up", mla.q_rank, query, "attention.q");
    of_hidden({.name = "attention.q_up",
               .rows = shape.tokens,
               .in = shape.hidden,
               .out = query,
               .split = Split::kColumn,
               .region = "attention"});
    block.steps.back().again |= kUp;
  };
  if (shape.plan->recompute == Recompute::kOperators) {  // torchtitan, models/deepseek_v3, Attention.forward
    queries_down();
    queries_up();
    keys_down();
    keys_norm();
  } else {  // both norms stand before both up-projections, which one module computes again
    keys_down();
    queries_down();
    keys_norm();
    queries_up();
  }
  if (!shape.model->indexer) {
    up("attention.kv_up", mla.kv_rank, shape.heads * (mla.nope_head_dim + mla.v_head_dim), "attention.kv");
  }
  if (const std::int64_t gate = gate_columns(shape); gate > 0) {
    of_hidden({.name = "attention.gate_proj",
               .rows = shape.tokens,
               .in = shape.hidden,
               .out = gate,
               .split = Split::kColumn,
               .region = "attention"});
  }
}

// Norms of queries and keys.
BlockStep query_key_norm(const Shape& shape) {
  const bool of_token = shape.model->qk_norm == QueryKeyNorm::kToken;
  BlockStep step;
  step.name = "attention.qk_norm";
  step.kept_as = ActivationKind::kNorms;
  const std::pair<const char*, std::int64_t> both[] = {{"attention.q_norm", shape.heads},
                                                       {"attention.k_norm", shape.kv_heads}};
  for (const auto& [name, heads] : std::span(both).first(shape.kind.shares_keys ? 1 : 2)) {
    const std::int64_t columns = of_token ? heads * shape.query_dim : shape.query_dim;
    BlockStep one = blocks::norm_without_sums(shape, name, shape.tokens * heads * shape.query_dim / columns, columns);
    step.forward.insert(step.forward.end(), one.forward.begin(), one.forward.end());
    step.input_gradient.insert(step.input_gradient.begin(), one.input_gradient.begin(), one.input_gradient.end());
    step.kept_for_input_gradient += one.kept_for_input_gradient;
    if (shape.model->qk_norm != QueryKeyNorm::kPlain) step.parameters += one.parameters;
  }
  return step;
}

// Queries, keys and values as the core reads them.
BlockStep heads(const Shape& shape) {
  BlockStep step;
  step.name = "attention.heads";
  const auto add = [&](std::string_view name, const OperatorKind& kind) {
    blocks::add_mirrored(shape, step, name, kind);
  };
  const bool written_out = shape.plan->written_out;
  if (shape.model->position == PositionKind::kRotary && shape.kind.rotary) {
    const std::int64_t rotated = shape.model->mla              ? shape.model->mla->rope_head_dim
                                 : shape.model->rotary_dim > 0 ? shape.model->rotary_dim
                                                               : shape.query_dim;
    const std::int64_t rotated_keys = shape.model->mla ? 1 : shape.kv_heads;
    const bool rotates_keys = !shape.kind.shares_keys;
    // A kernel for queries and one for keys (Megatron-Core, apply_rotary_pos_emb). Written out: q cos + rotate_half(q)
    // sin, of which the half is negated and the halves are joined (modeling_llama.py).
    const double table = shape.hidden_element / shape.element;  // cosines have the format of hidden states
    const auto rotate = [&](std::string_view name, std::int64_t elements) {
      if (!written_out) return add(name, Elementwise{Elementwise::kRope, elements, 1, 1, 3});
      for (const Elementwise& each : {Elementwise{"negate", elements / 2, 1, 1, 1, true},
                                      {Elementwise::kJoin, elements, 1, 1, 0, true},
                                      {"multiply", elements, 1, table, 1, true},
                                      {"multiply", elements, 1, table, 1, true},
                                      {"add", elements, 2 * table, table, 1, true}}) {
        add(name, each);
      }
      if (shape.autocast) add(name, Elementwise{"cast", elements, table, 1, 1});
    };
    rotate("attention.rotary.queries", shape.tokens * shape.heads * rotated);
    if (rotates_keys) rotate("attention.rotary.keys", shape.tokens * rotated_keys * rotated);
    // Queries of several groups lie between their keys and values: a copy brings them together. Backward, one kernel
    // joins the gradients of queries, keys and values (Megatron-Core, attention.py, get_query_key_value_tensors: a
    // reshape of what is no view, and SplitAlongDim's torch.cat).
    if (!shape.model->mla && !written_out && rotates_keys) {
      const std::int64_t queries = shape.heads * shape.query_dim;
      const std::int64_t all = queries + key_columns(shape) + value_columns(shape) + gate_columns(shape);
      const auto bytes = [&](std::int64_t columns) {
        return Copy{static_cast<double>(shape.tokens) * static_cast<double>(columns) * shape.element * units::B};
      };
      if (shape.kv_heads > 1 && shape.heads > shape.kv_heads) {
        step.forward.insert(step.forward.begin(), kernel(shape, "attention.queries.copy", bytes(queries)));
      }
      step.input_gradient.push_back(kernel(shape, "attention.heads.backward.join", bytes(all)));
    }
  }
  // Fused attention reads heads, and PyTorch's writes their gradients, in another order than the products of separate
  // layers.
  if (written_out && shape.plan->flash_attention && !shape.model->mla &&
      blocks::separate_layers(shape, projections(shape)) > 1) {
    const std::int64_t columns = shape.heads * shape.query_dim + own_columns(shape);
    add("attention.heads.copy", Elementwise{"transpose", shape.tokens * columns, 1, 1, 0, true});
  }
  if (shape.model->mla) {
    // Queries and keys are put together from their parts with and without position, and values are made contiguous
    // (Megatron-Core, multi_latent_attention.py). The backward pass splits the gradients again.
    const auto elements = static_cast<double>(shape.tokens * shape.heads * (2 * shape.query_dim + shape.value_dim));
    add("attention.assemble", Copy{elements * shape.element * units::B});
  }
  if (shape.model->mla) step.again = step.drops_for_input_gradient = set_of(RecomputeModule::kLatentUpProjection);
  step.kept_as = ActivationKind::kAttentionCore;
  const std::int64_t kept = shape.kind.shares_keys ? 0 : blocks::exchanged_key_heads(shape);
  step.kept_for_input_gradient =
      bytes_of(shape, shape.tokens, shape.heads * shape.query_dim + kept * (shape.query_dim + shape.value_dim));
  if (shape.kind.shares_keys) {  // the gradients of all layers that read them are added up
    const std::int64_t shared = shape.tokens * shape.kv_heads * (shape.query_dim + shape.value_dim);
    step.input_gradient.push_back(
        kernel(shape, "attention.shared_kv.backward.add", Elementwise{"add", shared, 2, 1, 1}));
  }
  return step;
}

// The core's output times the sigmoid of its gate, a contiguous copy of a part of the first projection (Megatron-Core,
// attention.py, _apply_output_gate). Both are kept beside the product, which the projection keeps.
BlockStep output_gate(const Shape& shape) {
  BlockStep step = blocks::gate(shape, ActivationKind::kAttentionProjections, "attention.gate", shape.tokens,
                                shape.heads * shape.value_dim);
  const Copy copy{bytes_of(shape, shape.tokens, gate_columns(shape)) * units::B};
  step.forward.insert(step.forward.begin(), kernel(shape, "attention.gate.copy", copy));
  return step;
}

BlockStep core(const Shape& shape) {
  BlockStep step;
  step.name = "attention.core";
  step.again = step.drops_for_input_gradient = set_of(RecomputeModule::kCoreAttention);
  // It reads what the up-projections make again, so these come before its gradient.
  if (shape.model->mla) step.drops_for_weight_gradient = set_of(RecomputeModule::kLatentUpProjection);
  shape.plan->flash_attention ? blocks::add_fused_attention(shape, step) : blocks::add_unfused_attention(shape, step);
  return step;
}

// Bytes of the keys and values of this rank's tokens, for later ones.
double cached_keys(const Shape& shape) {
  if (shape.kind.shares_keys) return 0;
  if (!shape.model->indexer) {
    return bytes_of(shape, shape.tokens, key_heads(shape) * (shape.query_dim + shape.value_dim));
  }
  const LatentAttention& mla = *shape.model->mla;
  const std::int64_t indexed = shape.kind.chooses_keys ? shape.model->indexer->head_dim : 0;
  return bytes_of(shape, shape.tokens, mla.kv_rank + mla.rope_head_dim + indexed);
}

}  // namespace

Block attention_block(const Shape& shape) {
  Block block;
  if (!shape.model->bidirectional) block.cached = cached_keys(shape);  // no later token reads those of an encoder
  block.steps.reserve(12);
  block.steps.push_back(blocks::branch_start(shape, "attention"));
  shape.model->mla ? latent_projections(shape, block) : grouped_query_projections(shape, block);
  if (shape.model->mla) {
    blocks::add_gradients(shape, block.steps.front(), "attention", shape.model->attention_gate ? 3 : 2);
  }
  // The projection behind the norm, whose input all others share.
  block.steps[1].drops_for_weight_gradient = block.steps[0].again;
  if (shape.model->qk_norm != QueryKeyNorm::kNone && !shape.model->mla) block.steps.push_back(query_key_norm(shape));
  if (shape.model->indexer) {
    blocks::chosen_latent_core(shape, block);
  } else {
    block.steps.push_back(heads(shape));
    block.steps.push_back(core(shape));
  }
  if (shape.model->attention_gate) block.steps.push_back(output_gate(shape));
  // Beside an MLP, its partial sums go into those of the MLP.
  const bool alone = !shape.parallel_branches(), encoded = blocks::keeps_activations_in_8_bits(shape);
  block.steps.push_back(blocks::linear(shape, ActivationKind::kAttentionProjections,
                                       {.name = "attention.proj",
                                        .rows = shape.tokens,
                                        .in = shape.heads * shape.value_dim,
                                        .out = shape.hidden,
                                        .bias = shape.model->bias,
                                        .split = alone ? Split::kRow : Split::kLocal,
                                        .region = "attention",
                                        .keeps_original = blocks::may_keep_originals(shape),
                                        .original_element = encoded ? blocks::e5m6_element(shape) : 0,
                                        .weights = Split::kRow}));
  if (alone) blocks::end_branch(shape, block, "attention");
  return block;
}

}  // namespace ns_dist
