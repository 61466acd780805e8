// Self-attention: grouped-query with fused or unfused core, and multi-head latent attention.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "blocks/branch.h"
#include "blocks/chosen_attention.h"
#include "blocks/common.h"
#include "blocks/linear.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::kernel;
using blocks::Split;

// Key-value heads that this rank stores. Latent attention expands its latents to as many as there are queries.
std::int64_t key_heads(const Shape& shape) { return shape.model->mla ? shape.heads : shape.kv_heads; }

// The same where ranks exchange heads for tokens, of as many tokens: more ranks than heads have copies of them.
std::int64_t exchanged_key_heads(const Shape& shape) { return std::max(key_heads(shape), shape.cp_inner); }

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
  const std::int64_t kept = shape.kind.shares_keys ? 0 : exchanged_key_heads(shape);
  step.kept_for_input_gradient =
      bytes_of(shape, shape.tokens, shape.heads * shape.query_dim + kept * (shape.query_dim + shape.value_dim));
  if (shape.kind.shares_keys) {  // the gradients of all layers that read them are added up
    const std::int64_t shared = shape.tokens * shape.kv_heads * (shape.query_dim + shape.value_dim);
    step.input_gradient.push_back(
        kernel(shape, "attention.shared_kv.backward.add", Elementwise{"add", shared, 2, 1, 1}));
  }
  return step;
}

// The fused core of one rank. Each document is a sequence of its own.
Attention fused_attention(const Shape& shape) {
  const std::int64_t tokens = shape.document_tokens;
  Attention attention;
  attention.batch = shape.micro_batch * shape.documents;
  attention.heads = shape.heads;
  attention.kv_heads = key_heads(shape);
  attention.query_length = attention.key_length = tokens;
  attention.head_dim = shape.query_dim;
  attention.value_dim = shape.value_dim;
  attention.causal = !shape.model->bidirectional;
  attention.library = shape.plan->attention_library;
  const std::int64_t window = shape.kind.windowed ? shape.model->sliding_window : 0;
  if (window == 0 || window >= tokens) return attention;
  if (shape.model->chunked_attention) {
    // Each chunk is a sequence of its own. A last chunk that is shorter counts as equal ones do with as many pairs.
    const std::int64_t chunks = (tokens + window - 1) / window, last = tokens - (chunks - 1) * window;
    const auto squared = [](std::int64_t length) { return static_cast<double>(length) * static_cast<double>(length); };
    attention.batch *= chunks;
    attention.query_length = attention.key_length = std::llround(
        std::sqrt((static_cast<double>(chunks - 1) * squared(window) + squared(last)) / static_cast<double>(chunks)));
  } else {
    attention.window = window;
  }
  return attention;
}

void add_core(const Shape& shape, BlockStep& step, Attention attention) {
  attention.pass = Pass::kForward;
  step.forward.push_back(kernel(shape, "attention.flash", attention));
  attention.pass = Pass::kBackward;
  step.input_gradient.push_back(kernel(shape, "attention.flash.backward", attention));
}

// ---- Context parallelism ----
//
// Each rank holds two parts of the sequence, one from its beginning and one from its end, so that all ranks have the
// same work under a causal mask (Brandon et al. 2023, arXiv 2311.09431; Megatron-Core, get_batch_on_this_cp_rank). Of
// packed documents, a ring divides each (TransformerEngine, context_parallel.py, sequences in the format thd).

// The parts of the keys in a ring that a rank computes: first its own, then others, all of the same size.
struct RingParts {
  Attention own, other;
  std::int64_t others = 0;  // how many have a kernel; those that no query of the rank sees are only passed on
};
// Of chunks that are sequences of their own. A rank has two pieces of the sequence, which see themselves and, of their
// chunk, the pieces before them.
RingParts chunked_ring_parts(const Shape& shape, Attention whole, std::int64_t parts) {
  RingParts ring{whole, {}, 0};
  const std::int64_t piece = std::max<std::int64_t>(1, shape.document_tokens / (2 * parts));
  const double pairs = attended_pairs(whole) * static_cast<double>(whole.batch) / static_cast<double>(parts);
  ring.own.batch = 2 * shape.micro_batch * shape.documents;
  ring.own.query_length = ring.own.key_length = piece;
  if (piece >= whole.query_length) {  // whole chunks: as many as the rank has of them
    ring.own.batch = std::max<std::int64_t>(1, whole.batch / parts);
    ring.own.query_length = ring.own.key_length = whole.query_length;
    return ring;
  }
  ring.other = ring.own;
  ring.other.causal = false;
  ring.others = std::min(parts - 1, (whole.query_length + piece - 1) / piece - 1);
  ring.own.in_a_row = ring.other.in_a_row = 1 + ring.others;
  const double left = pairs - attended_pairs(ring.own) * static_cast<double>(ring.own.batch);
  const double queries = static_cast<double>(ring.others * ring.other.batch * piece);
  ring.other.key_length = std::max<std::int64_t>(1, std::llround(left / queries));
  return ring;
}
// Of the others half is masked: all queries see half of the keys, or half of the queries see all. A window reaches as
// many of them as it is long, and of the nearest one only the queries in its width see something.
RingParts ring_parts(const Shape& shape, Attention whole, std::int64_t parts) {
  RingParts ring{whole, {}, parts - 1};
  if (parts == 1) return ring;
  const std::int64_t tokens = shape.document_tokens, window = whole.window;
  const std::int64_t local = std::max<std::int64_t>(1, tokens / parts);
  if (whole.query_length < tokens) return chunked_ring_parts(shape, whole, parts);
  ring.own.query_length = ring.own.key_length = local;
  if (window >= local) ring.own.window = 0;
  ring.other = ring.own;
  ring.other.causal = false;
  ring.other.window = 0;
  if (window > 0) {
    ring.others = std::min(ring.others, (window - 1 + local - 1) / local);
    ring.other.query_length = std::min(local, window);
  }
  ring.own.in_a_row = ring.other.in_a_row = 1 + ring.others;
  if (ring.others == 0) return ring;
  // Queries of the middle of the sequence: no rank sees more keys.
  whole.query_length = local;
  whole.key_length = whole.causal ? (tokens + local) / 2 : tokens;
  const double left = attended_pairs(whole) - attended_pairs(ring.own);
  ring.other.key_length =
      std::max<std::int64_t>(1, std::llround(left / static_cast<double>(ring.others * ring.other.query_length)));
  return ring;
}

// Neighbors exchange heads for tokens, so that each has all of their tokens and its part of the heads; what follows is
// on these. One attention for each part of the keys in the ring: first the rank's own, then those that arrive while the
// one before is computed. Backward, gradients of keys and values travel with them (Liu et al. 2023, arXiv 2310.01889).
void divided_core(const Shape& shape, BlockStep& step) {
  const std::int64_t inner = shape.cp_inner, parts = shape.cp / inner;
  Attention all = fused_attention(shape);
  all.heads /= inner;
  all.kv_heads = std::max<std::int64_t>(1, all.kv_heads / inner);
  const RingParts ring = ring_parts(shape, all, parts);
  const Bytes queries = bytes_of(shape, shape.tokens, shape.heads * shape.query_dim) * units::B;
  const Bytes results = bytes_of(shape, shape.tokens, shape.heads * shape.value_dim) * units::B;
  // Heads of one rank are brought together before they travel, and parts of the sequence are put in order behind it
  // (TransformerEngine, context_parallel.py, flash_attn_a2a_communicate); backward the other way around.
  const auto exchange = [&](std::vector<Call>& calls, const char* name, Bytes size) {
    if (inner == 1) return;
    const auto copy = [&](const char* suffix) {
      calls.push_back(kernel(shape, blocks::concat(name, suffix), Copy{size}));
    };
    copy(".pack");
    calls.push_back({name, Communication{CollectiveKind::kAllToAll, size, Axis::kContextInner}});
    copy(".reorder");
  };
  // Beside the kernel of the part before, if that has one.
  const auto send = [&](std::vector<Call>& calls, const char* name, Bytes size, bool beside) {
    if (parts == 1) return;
    calls.push_back({name, Communication{CollectiveKind::kSendRecv, size, Axis::kContextPair,
                                         beside ? Beside::kKernel : Beside::kNothing}});
  };
  const std::int64_t outputs = shape.tokens * shape.heads * shape.value_dim;
  const std::int64_t keys = shape.tokens * exchanged_key_heads(shape) * (shape.query_dim + shape.value_dim);
  const Bytes travelling = static_cast<double>(keys) * shape.element * units::B;
  exchange(step.forward, "attention.heads.all_to_all", queries + travelling);
  exchange(step.input_gradient, "attention.output.backward.all_to_all", results);
  // Of the rank's results, or of its keys, those that other parts change.
  const auto changed = [&](std::int64_t elements) {
    return std::llround(static_cast<double>(elements) * static_cast<double>(ring.other.query_length) /
                        static_cast<double>(ring.own.query_length));
  };
  BlockStep one;
  for (std::int64_t part = 0; part < parts; ++part) {
    const bool last = part + 1 == parts, computes = part <= ring.others;
    one = {};
    add_core(shape, one, part == 0 ? ring.own : ring.other);
    if (!last) send(step.forward, "attention.ring", travelling, computes);
    if (computes) step.forward.push_back(std::move(one.forward.front()));
    // Results of the parts are weighted by their sums of exponentials.
    if (part > 0 && computes) {
      step.forward.push_back(kernel(shape, "attention.ring.merge", Elementwise{"merge", changed(outputs), 2, 1, 4}));
    }
    // Keys and values go around once, their gradients once more behind them.
    send(step.input_gradient, "attention.ring.backward", travelling * (part == 0 || last ? 1.0 : 2.0), computes);
    if (computes) step.input_gradient.push_back(std::move(one.input_gradient.front()));
    if (part > 0 && computes) {
      step.input_gradient.push_back(kernel(shape, "attention.ring.add", Elementwise{"add", changed(keys), 2, 1, 1}));
    }
  }
  if (parts > 1) {
    // The keys and values of all parts, and the result of each, are there until the results are merged, behind the
    // ring; the rank with the end of the sequence sees all queries of each. Backward, two pairs of keys and values with
    // their gradients, and the gradients of the part that runs (TransformerEngine, context_parallel.py,
    // AttnFuncWithCPAndKVP2P).
    const auto held = static_cast<double>(outputs + ring.others * changed(outputs));
    step.transient_forward = static_cast<double>(parts) * (travelling / units::B) + held * shape.element;
    step.transient_backward = (5 * travelling + queries) / units::B;
  }
  exchange(step.forward, "attention.output.all_to_all", results);
  exchange(step.input_gradient, "attention.heads.backward.all_to_all", queries + travelling);
}

// Keys that the two parts of a rank's sequence look at, one after the other: under a causal mask those before and in
// the part, of a window or a document no more than it is long.
std::int64_t keys_of_parts(const Shape& shape) {
  const std::int64_t part = (shape.sequence / shape.cp + 1) / 2;
  const std::int64_t all = shape.model->bidirectional ? 2 * shape.sequence : shape.sequence + part;
  const std::int64_t window = shape.kind.windowed ? shape.model->sliding_window : 0;
  const std::int64_t reach = window > 0 ? std::min(window, shape.document_tokens) : shape.document_tokens;
  return std::min(all, 2 * (reach + part));
}

// Queries of this rank against the keys of all ranks, under a causal mask half of them: a rank has a part from the
// beginning and one from the end. Under a window, as many as the busiest rank's, which is in the middle.
void gathered_core(const Shape& shape, BlockStep& step) {
  // Ranks have a part of the sequence's beginning and one of its end: what was gathered is put in order of the
  // sequence, and gradients back in that of the ranks. Gradients of each part's keys are added to zeros
  // (TransformerEngine, context_parallel.py, AttnFuncWithCPAndKVAllGather).
  const std::int64_t columns = key_heads(shape) * (shape.query_dim + shape.value_dim);
  const std::int64_t elements = shape.tokens * shape.cp * columns;  // keys and values of all ranks
  const Bytes all = static_cast<double>(elements) * shape.element * units::B;
  const std::int64_t added = shape.micro_batch * keys_of_parts(shape) * columns;
  const auto add = [&](const char* name, const OperatorKind& what) {
    step.input_gradient.push_back(kernel(shape, name, what));
  };
  const auto communicate = [&](std::vector<Call>& calls, const char* name, CollectiveKind kind) {
    calls.push_back({name, Communication{kind, all, Axis::kContext}});
  };
  Attention attention = fused_attention(shape);
  const std::int64_t local = shape.sequence / shape.cp;
  const bool whole = attention.query_length == shape.sequence;
  if (whole) {
    attention.query_length = local;
    attention.key_length = attention.causal ? (shape.sequence + local) / 2 : shape.sequence;
  }
  const double queries = static_cast<double>(whole ? local : shape.sequence) * static_cast<double>(shape.micro_batch);
  const double seen = attended_pairs(attention) * static_cast<double>(attention.batch) / queries;
  attention.batch = shape.micro_batch;
  attention.query_length = local;
  attention.key_length =
      std::max<std::int64_t>(1, std::llround(attention.causal ? seen - 0.5 : seen));  // of itself half
  attention.window = 0;
  attention.causal = false;
  communicate(step.forward, "attention.keys.all_gather", CollectiveKind::kAllGather);
  step.forward.push_back(kernel(shape, "attention.keys.reorder", Copy{all}));
  add("attention.keys.backward.fill", Elementwise{"fill", elements, 0, 1, 0});
  communicate(step.input_gradient, "attention.keys.backward.all_gather", CollectiveKind::kAllGather);
  add("attention.keys.backward.reorder", Copy{all});
  add_core(shape, step, attention);
  add("attention.keys.backward.add", Elementwise{"add", added, 2, 1, 1});
  add("attention.keys.backward.pack", Copy{all});
  communicate(step.input_gradient, "attention.keys.backward.reduce_scatter", CollectiveKind::kReduceScatter);
  // What is put in order is there twice: keys, then values. Backward, gradients of all keys and values and those of the
  // parts, too.
  const double wider = static_cast<double>(std::max(shape.query_dim, shape.value_dim)) /
                       static_cast<double>(shape.query_dim + shape.value_dim);
  const double parts = static_cast<double>(added) / static_cast<double>(elements);
  step.transient_forward = (1 + wider) * (all / units::B);
  step.transient_backward = (2 + parts + wider) * (all / units::B);
}

void flash_core(const Shape& shape, BlockStep& step) {
  if (shape.cp == 1) {
    add_core(shape, step, fused_attention(shape));
  } else {
    shape.plan->cp_comm == ContextExchange::kAllGather ? gathered_core(shape, step) : divided_core(shape, step);
  }
  // Log-sum-exp of each row, fp32 (Dao et al. 2022, arXiv 2205.14135, algorithm 2).
  step.kept_as = ActivationKind::kSoftmaxStatistics;
  step.kept_for_input_gradient = static_cast<double>(shape.tokens) * static_cast<double>(shape.heads) * 4;
  // The backward pass reads the output, too. The projection keeps it as its input, or a cast of it.
  // Where heads are exchanged, the core keeps its output of this rank's heads, too (TransformerEngine,
  // context_parallel.py, AttnFuncWithCPAndQKVOA2A).
  const bool keeps_cast =
      blocks::is_quantized(shape) && !blocks::may_keep_originals(shape) && shape.plan->lora_rank == 0;
  const double outputs = bytes_of(shape, shape.tokens, shape.heads * shape.value_dim);
  const double queries = bytes_of(shape, shape.tokens, shape.heads * shape.query_dim);
  // Backward: the output's gradient and those of queries, keys and values; those of queries are summed in fp32
  // (flash_api.cpp, dq_accum). The output that the projection keeps is read once more.
  step.transient_backward += outputs + queries * (1 + 4 / shape.element);
  if (shape.cp == 1) {
    step.transient_backward += bytes_of(shape, shape.tokens, key_heads(shape) * (shape.query_dim + shape.value_dim));
  }
  if (!keeps_cast && shape.cp_inner == 1) step.transient_backward += outputs;
  if (keeps_cast || shape.cp_inner > 1) {
    step.kept_as = ActivationKind::kAttentionProjections;  // most of both together
    step.kept_for_input_gradient += outputs;
  }
}

// Whether one kernel scales, masks and normalizes scores: Megatron's (megatron/core/fusions/fused_softmax.py,
// is_kernel_available; in 2021 its longest sequence was 2,048, later 4,096), or a compiler's. Megatron's is for formats
// of 16 bits; who asks for a fused softmax in fp32 has a compiler.
bool has_fused_softmax(const Shape& shape) {
  if (shape.element > 2 || shape.plan->norm_library == Library::kCompiled) return true;
  constexpr std::int64_t kMultiple = 4, kLongest = 16384;
  return shape.sequence <= kLongest && shape.sequence % kMultiple == 0 &&
         shape.micro_batch * shape.heads % kMultiple == 0;
}

// Scores, scaled masked softmax, dropout, weighted sum (Korthikanti et al. 2022, fig. 3). PyTorch alone scales and
// masks in kernels of their own, and multiplies the softmax's output with its gradient in one (softmax_backward_cuda).
// Its products of more than one sequence read copies of queries, keys and values, whose heads are views with gaps
// (torch.matmul); heads of the output are joined by a copy. Where Megatron's fused kernel does not run, it casts scores
// of 16 bits to fp32, scales, masks and normalizes these, and casts them back (fused_softmax.py,
// forward_torch_softmax). Classes of transformers scale and mask in 16 bits and cast around the softmax alone
// (modeling_llama.py, eager_attention_forward: softmax(..., dtype=torch.float32).to(query.dtype)); those with learned
// positions normalize in the format of the scores (modeling_gpt2.py, eager_attention_forward), which autocast casts.
// With sinks they join a score for each row, take the largest off, and normalize in the scores' format; the backward
// pass puts zeros in the sinks' place, and takes the largest one's gradient, their sum, off (modeling_gpt_oss.py,
// eager_attention_forward).
void unfused_core(const Shape& shape, BlockStep& step) {
  const std::int64_t batch = shape.micro_batch * shape.heads, s = shape.sequence, all = batch * s * s;
  const std::int64_t query = shape.query_dim, value = shape.value_dim;
  const bool dropout = shape.dropout;
  const double mask = blocks::mask_elements(shape.dtype);
  const auto gemm = [&](const char* name, std::int64_t m, std::int64_t n, std::int64_t k, GemmLayout layout) {
    return kernel(shape, name, Gemm{batch, m, n, k, layout, Epilogue::kNone});
  };
  const bool apart = shape.plan->split_softmax;
  const double element = shape.element;
  const bool in_parts = apart || !has_fused_softmax(shape);
  const bool sinks = apart && shape.model->attention_sinks;
  const bool in_fp32 = !sinks && (shape.autocast || shape.model->position != PositionKind::kLearned);
  const bool casts_last = apart && element <= 2 && in_fp32, casts_first = !apart && in_parts,
             casts = casts_last || casts_first;
  // Of scores as the softmax has them, over those of the plan's format; of those that are scaled and masked.
  const double size = casts ? size_of(DType::kFp32) / units::B / element : 1, before = casts_last ? 1 : size;
  const auto add = [&](bool when, std::vector<Call>& calls, const char* name, const Elementwise& what) {
    if (when) calls.push_back(kernel(shape, name, what));
  };
  const auto softmax = [&](const char* name, Pass pass) {
    const Library library = in_parts ? Library::kEager : Library::kDefault;
    return Call{name, Operator{Softmax{batch * s, s, pass, library}, casts ? DType::kFp32 : shape.dtype}};
  };
  const auto copies = [&](std::vector<Call>& calls, const char* name, std::int64_t columns) {
    const double elements = static_cast<double>(shape.tokens) * static_cast<double>(columns);
    if (apart && columns > 0) calls.push_back(kernel(shape, name, Copy{elements * element * units::B}));
  };
  const std::int64_t outputs = shape.heads * value;
  // Classes of transformers repeat the heads of keys and values for each query's (repeat_kv), and autograd sums up the
  // gradients of each; the products read these copies as they are.
  const std::int64_t groups = shape.heads / std::max<std::int64_t>(1, key_heads(shape));
  const bool repeats = apart && groups > 1;
  const std::int64_t repeated = shape.tokens * shape.heads * (query + value);
  const std::int64_t keys = repeats ? 0 : key_heads(shape) * (query + value);
  const std::int64_t heads = shape.micro_batch > 1 ? shape.heads * query + keys : 0;
  std::vector<Call>& forward = step.forward;
  forward.reserve(4);
  copies(forward, "attention.heads.copy", heads);
  const double each = 1 / static_cast<double>(groups);
  add(repeats, forward, "attention.keys.repeat", {"copy", repeated, each, 1, 0, true});
  forward.push_back(gemm("attention.scores", s, s, query, GemmLayout::kNT));
  const Elementwise widen{"cast", all, 1, size, 1}, narrow{"cast", all, size, 1, 1};
  add(casts_first, forward, "attention.scores.cast", widen);
  add(in_parts, forward, "attention.scale", {"scale", all, before, before, 1});
  const auto cap = [&](std::vector<Call>& calls, std::initializer_list<Elementwise> kernels) {
    for (const Elementwise& kernel : kernels) add(shape.model->capped_scores, calls, "attention.cap", kernel);
  };
  cap(forward,
      {{"scale", all, before, before, 1}, {"tanh", all, before, before, 8}, {"scale", all, before, before, 1}});
  add(in_parts, forward, "attention.mask", {"mask", all, before + mask, before, 1});  // torch.where, a byte each
  add(casts_last, forward, "attention.scores.cast", widen);
  add(sinks, forward, "attention.sinks.join", {Elementwise::kJoin, all, 1, 1, 0, true});
  add(sinks, forward, "attention.sinks.largest", {"max", all, 1, 0, 1});
  add(sinks, forward, "attention.sinks.subtract", {"subtract", all, 1, 1, 1, true});
  forward.push_back(softmax("attention.softmax", Pass::kForward));
  add(casts, forward, "attention.probabilities.cast", narrow);
  add(dropout, forward, "attention.dropout", {"dropout", all, 1, 1 + mask, 2});
  forward.push_back(gemm("attention.context", s, value, s, GemmLayout::kNN));
  copies(forward, "attention.output.copy", outputs);

  std::vector<Call>& backward = step.input_gradient;
  backward.reserve(6);
  copies(backward, "attention.output.backward.copy", outputs);
  backward.push_back(gemm("attention.context.dprobabilities", s, s, value, GemmLayout::kNT));
  backward.push_back(gemm("attention.context.dvalues", s, value, s, GemmLayout::kTN));
  add(dropout, backward, "attention.dropout.backward", {"dropout_backward", all, 1 + mask, 1, 1});
  add(casts, backward, "attention.probabilities.backward.cast", widen);
  add(sinks, backward, "attention.sinks.fill", {"fill", all, 0, 1, 0});
  add(sinks, backward, "attention.sinks.copy", {"copy", all, 1, 1, 0, true});
  add(in_parts, backward, "attention.softmax.backward.multiply", {"multiply", all, 2 * size, size, 1});
  backward.push_back(softmax("attention.softmax.backward", Pass::kBackward));
  add(sinks, backward, "attention.sinks.subtract.backward", {"negate", all, 1, 1, 1});
  add(sinks, backward, "attention.sinks.largest.sum", {"sum", all, 1, 0, 1});
  add(sinks, backward, "attention.sinks.largest.backward", {"add", all, 2, 1, 1});
  add(sinks, backward, "attention.sinks.join.backward", {"copy", all, 1, 1, 0, true});
  add(casts_last, backward, "attention.scores.backward.cast", narrow);
  add(in_parts, backward, "attention.mask.backward", {"mask", all, before, before, 1});
  cap(backward, {{"scale", all, before, before, 1},
                 {"tanh_backward", all, 2 * before, before, 3},
                 {"scale", all, before, before, 1}});
  add(in_parts, backward, "attention.scale.backward", {"scale", all, before, before, 1});
  add(casts_first, backward, "attention.scores.backward.cast", narrow);
  backward.push_back(gemm("attention.scores.dqueries", s, query, s, GemmLayout::kNN));
  backward.push_back(gemm("attention.scores.dkeys", s, query, s, GemmLayout::kTN));
  copies(backward, "attention.heads.backward.copy", heads);
  add(repeats, backward, "attention.keys.repeat.backward", {"sum", repeated, 1, each, 1});

  // Softmax output, its copy in 16 bits where the next product reads it, and the dropout's mask and output.
  const double scores = static_cast<double>(shape.tokens) * static_cast<double>(shape.heads) * static_cast<double>(s);
  step.kept_as = ActivationKind::kAttentionScores;
  step.kept_for_input_gradient = scores * (size * element + (dropout ? 1 + element : casts ? element : 0));
  // Gradients of what the dropout or the softmax returns and of what it reads.
  step.transient_backward = 2 * scores * size * element;
  if (shape.model->capped_scores) step.kept_for_input_gradient += scores * before * element;
  if (repeats) {  // in place of the heads that were repeated
    step.kept_for_input_gradient += bytes_of(shape, shape.tokens, (shape.heads - key_heads(shape)) * (query + value));
  }
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
  shape.plan->flash_attention ? flash_core(shape, step) : unfused_core(shape, step);
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
