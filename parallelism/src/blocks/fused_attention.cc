// Attention by one kernel, FlashAttention's or cuDNN's, on one rank or on several that share a sequence.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "blocks/attention_core.h"

namespace ns_dist::blocks {
namespace {

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
    const auto copy = [&](const char* suffix) { calls.push_back(kernel(shape, concat(name, suffix), Copy{size})); };
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

}  // namespace

void add_fused_attention(const Shape& shape, BlockStep& step) {
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
  const bool keeps_cast = is_quantized(shape) && !may_keep_originals(shape) && shape.plan->lora_rank == 0;
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

}  // namespace ns_dist::blocks
