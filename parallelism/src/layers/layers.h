// The parts of a transformer layer, each with its forward and its backward; one file a part.
#pragma once

#include "recorder.h"

namespace ns_dist::layers {

// Local sizes of the linear layers, shared by the planner and the memory budget.
Linear qkv_projection(const Shape& shape);
Linear output_projection(const Shape& shape);

// Norm, attention, projection, residual.
void attention_forward(Recorder& recorder);
// `recompute_core`: the attention core was not kept (selective recomputation).
void attention_backward(Recorder& recorder, bool recompute_core);

// Norm, dense MLP, residual.
void mlp_forward(Recorder& recorder);
void mlp_backward(Recorder& recorder);

// Norm, router, experts, shared experts, residual.
void moe_forward(Recorder& recorder);
void moe_backward(Recorder& recorder);

void embedding_forward(Recorder& recorder);
void embedding_backward(Recorder& recorder);

// Final norm, logits and cross-entropy.
void loss_forward(Recorder& recorder);
void loss_backward(Recorder& recorder);

// A normalization of `rows` x `columns` in the model's kind.
Normalization norm(const Shape& shape, std::int64_t rows, std::int64_t columns, Pass pass);

// Adds a residual branch of the hidden states, with dropout where the model has it.
void residual_forward(Recorder& recorder, const std::string& name);
// Gradient into the branch (dropout) ...
void residual_branch_backward(Recorder& recorder, const std::string& name);
// ... and the sum with the gradient that went around it.
void residual_sum_backward(Recorder& recorder, const std::string& name);

// Activation function of an MLP of local width `ffn`.
void activation_forward(Recorder& recorder, const std::string& name, std::int64_t rows, std::int64_t ffn);
void activation_backward(Recorder& recorder, const std::string& name, std::int64_t rows, std::int64_t ffn);

}  // namespace ns_dist::layers
