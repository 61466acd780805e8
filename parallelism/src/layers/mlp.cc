// The dense MLP, and what every part shares: norms, residuals, activation functions.
#include "layers/layers.h"

namespace ns_dist::layers {
namespace {

struct Projections {
  Linear up, down;
};

// A gated MLP's two input projections are one GEMM of twice the width, as Megatron lays them out.
Projections projections(const Shape& shape) {
  const std::int64_t ffn = shape.model->ffn / shape.tp;
  return {{"mlp.fc1", shape.hidden, shape.model->gated_mlp ? 2 * ffn : ffn, shape.model->bias},
          {"mlp.fc2", ffn, shape.hidden, shape.model->bias}};
}

}  // namespace

Normalization norm(const Shape& shape, std::int64_t rows, std::int64_t columns, Pass pass) {
  return {shape.model->norm == NormKind::kLayerNorm ? NormalizationKind::kLayerNorm : NormalizationKind::kRmsNorm, rows,
          columns, pass};
}

void residual_forward(Recorder& recorder, const std::string& name) {
  const Shape& shape = recorder.shape();
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  if (shape.model->dropout) {
    recorder.kernel(name + ".dropout_add", recorder.forward_category(),
                    Elementwise{"bias_dropout_add", elements, 2, 1 + 1 / shape.element, 4});
  } else {
    recorder.kernel(name + ".add", recorder.forward_category(), Elementwise{"add", elements, 2, 1, 1});
  }
}

void residual_branch_backward(Recorder& recorder, const std::string& name) {
  const Shape& shape = recorder.shape();
  if (!shape.model->dropout) return;
  recorder.kernel(name + ".dropout.backward", Category::kBackward,
                  Elementwise{"dropout_backward", shape.sharded_tokens * shape.hidden, 1 + 1 / shape.element, 1, 1});
}

void residual_sum_backward(Recorder& recorder, const std::string& name) {
  const Shape& shape = recorder.shape();
  recorder.kernel(name + ".residual.backward", Category::kBackward,
                  Elementwise{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1});
}

void activation_forward(Recorder& recorder, const std::string& name, std::int64_t rows, std::int64_t ffn) {
  const bool gated = recorder.shape().model->gated_mlp;
  recorder.kernel(name, recorder.forward_category(),
                  Elementwise{gated ? "gated_activation" : "bias_activation", rows * ffn, gated ? 2.0 : 1.0, 1, 10});
}

void activation_backward(Recorder& recorder, const std::string& name, std::int64_t rows, std::int64_t ffn) {
  const bool gated = recorder.shape().model->gated_mlp;
  recorder.kernel(name + ".backward", Category::kBackward,
                  Elementwise{gated ? "gated_activation_backward" : "bias_activation_backward", rows * ffn,
                              gated ? 3.0 : 2.0, gated ? 2.0 : 1.0, 20});
}

void mlp_forward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  const Projections linear = projections(shape);
  recorder.kernel("mlp.norm", recorder.forward_category(),
                  norm(shape, shape.sharded_tokens, shape.hidden, Pass::kForward));
  recorder.enter_split_region("mlp");
  recorder.forward(linear.up, shape.tokens, Epilogue::kNone);
  activation_forward(recorder, "mlp.activation", shape.tokens, linear.down.in);
  recorder.forward(linear.down, shape.tokens, Epilogue::kNone);
  recorder.leave_split_region("mlp");
  residual_forward(recorder, "mlp");
}

void mlp_backward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  const Projections linear = projections(shape);
  residual_branch_backward(recorder, "mlp");
  recorder.row_parallel_backward(linear.down);
  activation_backward(recorder, "mlp.activation", shape.tokens, linear.down.in);
  recorder.column_parallel_backward(linear.up);
  recorder.kernel("mlp.norm.backward", Category::kBackward,
                  norm(shape, shape.sharded_tokens, shape.hidden, Pass::kBackward));
  residual_sum_backward(recorder, "mlp");
}

}  // namespace ns_dist::layers
