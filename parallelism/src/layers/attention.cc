// Self-attention: grouped-query with fused or unfused core, and multi-head latent attention.
#include <algorithm>

#include "layers/layers.h"

namespace ns_dist::layers {
namespace {

// A dropout mask is one byte an element; operators count traffic in elements of their own type.
double mask(const Shape& shape) { return 1 / shape.element; }

struct LatentProjections {
  Linear q_down, q_up, kv_down, kv_up;
};

// DeepSeek-V2 (arXiv 2405.04434), s.2.1.2-2.1.3. Down-projections are whole on every rank, up-projections split by
// head.
LatentProjections latent_projections(const Shape& shape) {
  const LatentAttention& mla = *shape.model->mla;
  const std::int64_t query = shape.heads * (mla.nope_head_dim + mla.rope_head_dim);
  return {{"attention.q_down", shape.hidden, mla.q_rank, false},
          {"attention.q_up", mla.q_rank > 0 ? mla.q_rank : shape.hidden, query, false},
          {"attention.kv_down", shape.hidden, mla.kv_rank + mla.rope_head_dim, false},
          {"attention.kv_up", mla.kv_rank, shape.heads * (mla.nope_head_dim + mla.v_head_dim), false}};
}

void rotary(Recorder& recorder, Category category, const std::string& name) {
  const Shape& shape = recorder.shape();
  if (shape.model->position != PositionKind::kRotary) return;
  const std::int64_t rotated = shape.model->mla ? shape.model->mla->rope_head_dim : shape.query_dim;
  const std::int64_t key_heads = shape.model->mla ? 1 : shape.kv_heads;
  recorder.kernel(name, category, Elementwise{"rotary", shape.tokens * (shape.heads + key_heads) * rotated, 1, 1, 3});
}

// Latent attention: queries and keys are put together from their parts with and without position, values made
// contiguous (Megatron-Core, multi_latent_attention.py); the gradients are taken apart again.
void assemble_latent(Recorder& recorder, Category category, const std::string& name) {
  const Shape& shape = recorder.shape();
  if (!shape.model->mla) return;
  const auto elements = static_cast<double>(shape.tokens * shape.heads * (2 * shape.query_dim + shape.value_dim));
  recorder.kernel(name, category, Copy{elements * shape.element * units::B});
}

Attention flash(const Shape& shape, Pass pass) {
  Attention attention;
  attention.batch = shape.micro_batch;
  attention.heads = shape.heads;
  attention.kv_heads = shape.model->mla ? shape.heads : shape.kv_heads;
  attention.query_length = attention.key_length = shape.sequence;
  attention.head_dim = shape.query_dim;
  attention.value_dim = shape.value_dim;
  attention.causal = true;
  attention.window = shape.model->sliding_window < shape.sequence ? shape.model->sliding_window : 0;
  attention.pass = pass;
  return attention;
}

// Without flash attention: scores, scaled masked softmax, dropout, weighted sum (Korthikanti et al. 2022, fig. 3).
void unfused_core_forward(Recorder& recorder, Category category) {
  const Shape& shape = recorder.shape();
  const std::int64_t batch = shape.micro_batch * shape.heads, s = shape.sequence;
  recorder.kernel("attention.scores", category, Gemm{batch, s, s, shape.query_dim, GemmLayout::kNT, Epilogue::kNone});
  recorder.kernel("attention.softmax", category, Softmax{batch * s, s, Pass::kForward});
  if (shape.model->dropout) {
    recorder.kernel("attention.dropout", category, Elementwise{"dropout", batch * s * s, 1, 1 + mask(shape), 2});
  }
  recorder.kernel("attention.context", category, Gemm{batch, s, shape.value_dim, s, GemmLayout::kNN, Epilogue::kNone});
}

void unfused_core_backward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  const std::int64_t batch = shape.micro_batch * shape.heads, s = shape.sequence;
  const auto gemm = [&](std::string name, std::int64_t m, std::int64_t n, std::int64_t k, GemmLayout layout) {
    recorder.kernel(std::move(name), Category::kBackward, Gemm{batch, m, n, k, layout, Epilogue::kNone});
  };
  gemm("attention.context.dprobabilities", s, s, shape.value_dim, GemmLayout::kNT);
  gemm("attention.context.dvalues", s, shape.value_dim, s, GemmLayout::kTN);
  if (shape.model->dropout) {
    recorder.kernel("attention.dropout.backward", Category::kBackward,
                    Elementwise{"dropout_backward", batch * s * s, 1 + mask(shape), 1, 1});
  }
  recorder.kernel("attention.softmax.backward", Category::kBackward, Softmax{batch * s, s, Pass::kBackward});
  gemm("attention.scores.dqueries", s, shape.query_dim, s, GemmLayout::kNN);
  gemm("attention.scores.dkeys", s, shape.query_dim, s, GemmLayout::kTN);
}

void core_forward(Recorder& recorder, Category category) {
  const Shape& shape = recorder.shape();
  if (shape.plan->flash_attention) {
    recorder.kernel("attention.flash", category, flash(shape, Pass::kForward));
  } else {
    unfused_core_forward(recorder, category);
  }
}

}  // namespace

Linear qkv_projection(const Shape& shape) {
  return {"attention.qkv", shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.query_dim,
          shape.model->bias || shape.model->qkv_bias};
}

Linear output_projection(const Shape& shape) {
  return {"attention.proj", shape.heads * shape.value_dim, shape.hidden, shape.model->bias};
}

void attention_forward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  const Category category = recorder.forward_category();
  recorder.kernel("attention.norm", category, norm(shape, shape.sharded_tokens, shape.hidden, Pass::kForward));
  recorder.enter_split_region("attention");
  if (shape.model->mla) {
    const LatentProjections latent = latent_projections(shape);
    if (latent.q_down.out > 0) {
      recorder.forward(latent.q_down, shape.tokens, Epilogue::kNone);
      recorder.kernel("attention.q_norm", category, norm(shape, shape.tokens, latent.q_down.out, Pass::kForward));
    }
    recorder.forward(latent.q_up, shape.tokens, Epilogue::kNone);
    recorder.forward(latent.kv_down, shape.tokens, Epilogue::kNone);
    recorder.kernel("attention.kv_norm", category, norm(shape, shape.tokens, latent.kv_up.in, Pass::kForward));
    recorder.forward(latent.kv_up, shape.tokens, Epilogue::kNone);
  } else {
    const Linear qkv = qkv_projection(shape);
    recorder.forward(qkv, shape.tokens, qkv.bias ? Epilogue::kBias : Epilogue::kNone);
  }
  rotary(recorder, category, "attention.rotary");
  assemble_latent(recorder, category, "attention.assemble");
  core_forward(recorder, category);
  recorder.forward(output_projection(shape), shape.tokens, Epilogue::kNone);
  recorder.leave_split_region("attention");
  residual_forward(recorder, "attention");
}

void attention_backward(Recorder& recorder, bool recompute_core) {
  const Shape& shape = recorder.shape();
  residual_branch_backward(recorder, "attention");
  recorder.row_parallel_backward(output_projection(shape));
  if (recompute_core) core_forward(recorder, Category::kRecompute);
  if (shape.plan->flash_attention) {
    recorder.kernel("attention.flash.backward", Category::kBackward, flash(shape, Pass::kBackward));
  } else {
    unfused_core_backward(recorder);
  }
  assemble_latent(recorder, Category::kBackward, "attention.assemble.backward");
  rotary(recorder, Category::kBackward, "attention.rotary.backward");
  if (shape.model->mla) {
    const LatentProjections latent = latent_projections(shape);
    const auto backward = [&](const Linear& linear) {
      recorder.input_gradient(linear, shape.tokens);
      recorder.weight_gradient(linear, shape.tokens);
    };
    backward(latent.kv_up);
    recorder.kernel("attention.kv_norm.backward", Category::kBackward,
                    norm(shape, shape.tokens, latent.kv_up.in, Pass::kBackward));
    backward(latent.q_up);
    if (latent.q_down.out > 0) {
      recorder.kernel("attention.q_norm.backward", Category::kBackward,
                      norm(shape, shape.tokens, latent.q_down.out, Pass::kBackward));
      backward(latent.q_down);
    }
    recorder.column_parallel_backward(latent.kv_down);
  } else {
    recorder.column_parallel_backward(qkv_projection(shape));
  }
  recorder.kernel("attention.norm.backward", Category::kBackward,
                  norm(shape, shape.sharded_tokens, shape.hidden, Pass::kBackward));
  residual_sum_backward(recorder, "attention");
}

}  // namespace ns_dist::layers
