// Each block against closed forms: kernels, parameters, kept bytes (Korthikanti et al. 2022, arXiv 2205.05198, s.4; Qi
// et al. 2023, arXiv 2401.10241, table 1) and FLOPs.
#include "block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "ns_dist/parameters.h"
#include "ns_dist/planner.h"
#include "parallelism_models.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> names(const std::vector<Call>& calls) {
  std::vector<std::string> all;
  for (const Call& call : calls) all.push_back(call.name);
  return all;
}

// Bytes read and written.
double traffic(const Call& call) {
  const Work work = work_of(std::get<Operator>(call.what));
  return (work.read + work.written) / B;
}
double traffic(const std::vector<Call>& calls) {
  double bytes = 0;
  for (const Call& call : calls) bytes += traffic(call);
  return bytes;
}

const BlockStep& step(const Block& block, std::string_view name) {
  for (const BlockStep& each : block.steps) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << "no step " << name;
  return block.steps.front();
}

double after_forward(const Block& block, Recompute recompute = Recompute::kNone) {
  return kept_bytes(block, recompute).after_forward;
}

struct GptLayer : ::testing::Test {
  Model model = gpt(48, 6144, 64);
  ParallelPlan plan;
  Training training{4, 4, 2048, Precision::kFp16};
  double s = 2048, b = 4, h = 6144, a = 64, t = 8;

  GptLayer() { plan.flash_attention = false; }
  Block layer() const { return layer_block(Shape(model, plan, training), layer_kind(model, 0)); }
};

TEST_F(GptLayer, Equation1NoParallelism) {
  EXPECT_DOUBLE_EQ(after_forward(layer()), s * b * h * (34 + 5 * a * s / h));
  const Shape shape(model, plan, training);
  // s.4.1: attention 11 sbh + 5 as^2b and its norm 2 sbh; MLP 19 sbh and its norm 2 sbh.
  EXPECT_DOUBLE_EQ(after_forward(attention_block(shape)), 13 * s * b * h + 5 * a * s * s * b);
  EXPECT_DOUBLE_EQ(after_forward(mlp_block(shape)), 21 * s * b * h);
}

// The same by kind. Attention: 2 sbh of the QKV product's input and 2 of the output projection's, 6 of queries, keys
// and values, 5 as^2b of softmax and dropout. MLP: 2 sbh, 8 of GELU's input, 8 of the second product's. Each of two
// norms 2 sbh, each of two masks 1.
TEST_F(GptLayer, Equation1ByKind) {
  using enum ActivationKind;
  using Kinds = std::map<ActivationKind, double>;
  const auto kinds = [&](Recompute recompute) {
    Kinds found;
    const KeptByKind kept = kept_by_kind(layer(), recompute);
    for (std::size_t kind = 0; kind < kept.size(); ++kind) {
      if (kept[kind].after_forward > 0) found[static_cast<ActivationKind>(kind)] = kept[kind].after_forward;
    }
    return found;
  };
  const double sbh = s * b * h;
  Kinds expected = {{kNorms, 4 * sbh},         {kAttentionProjections, 4 * sbh},
                    {kAttentionCore, 6 * sbh}, {kAttentionScores, 5 * a * s * s * b},
                    {kMlp, 18 * sbh},          {kDropoutMasks, 2 * sbh}};
  EXPECT_EQ(kinds(Recompute::kNone), expected);
  expected.erase(kAttentionScores);
  EXPECT_EQ(kinds(Recompute::kSelective), expected);
  EXPECT_EQ(kinds(Recompute::kFull), (Kinds{{kCheckpoints, 2 * sbh}}));
  plan.flash_attention = true;
  expected[kSoftmaxStatistics] = 4 * a * s * b;  // fp32, a number for each row of each head
  EXPECT_EQ(kinds(Recompute::kNone), expected);
}

// Qi et al. 2023, table 1: 32 sbh wait for the weight gradients of a layer, the inputs of its products (2 + 2 + 2 + 8
// sbh) and the gradients of their outputs (6 + 2 + 8 + 2 sbh).
TEST_F(GptLayer, WhatWaitsForTheWeightGradientByKind) {
  const KeptByKind kept = kept_by_kind(layer(), Recompute::kNone);
  const auto waits = [&](ActivationKind kind) { return kept[static_cast<std::size_t>(kind)].after_input_gradient; };
  const double sbh = s * b * h;
  EXPECT_EQ(waits(ActivationKind::kAttentionProjections), 4 * sbh);
  EXPECT_EQ(waits(ActivationKind::kMlp), 10 * sbh);
  EXPECT_EQ(waits(ActivationKind::kOutputGradients), 18 * sbh);
}

// transformers' eager GPT-2: the scores (A, each a s^2 b elements) are scaled, masked and normalized one after the
// other; the softmax's gradient is multiplied first; q, k and v and the output are copied both ways, but q, k and v of
// one sequence, which lie without gaps.
TEST_F(GptLayer, EagerAttentionIsAKernelForEachStep) {
  model.dropout = false;
  plan.split_softmax = true;
  const auto core = [&] { return step(layer(), "attention.core"); };
  EXPECT_THAT(names(core().forward),
              ElementsAre("attention.heads.copy", "attention.scores", "attention.scale", "attention.mask",
                          "attention.softmax", "attention.context", "attention.output.copy"));
  EXPECT_THAT(names(core().input_gradient),
              ElementsAre("attention.output.backward.copy", "attention.context.dprobabilities",
                          "attention.context.dvalues", "attention.softmax.backward.multiply",
                          "attention.softmax.backward", "attention.mask.backward", "attention.scale.backward",
                          "attention.scores.dqueries", "attention.scores.dkeys", "attention.heads.backward.copy"));
  EXPECT_DOUBLE_EQ(traffic(core().forward[0]), 2 * 2 * 3 * s * b * h);
  EXPECT_DOUBLE_EQ(traffic(core().forward[2]), 2 * 2 * a * s * s * b);
  EXPECT_DOUBLE_EQ(traffic(core().forward[3]), (2 * 2 + 1) * a * s * s * b);  // and a byte of mask
  EXPECT_DOUBLE_EQ(traffic(core().input_gradient[3]), 3 * 2 * a * s * s * b);
  training.micro_batch = 1;
  EXPECT_EQ(core().forward.front().name, "attention.scores");
}

// transformers' Llama: fp32 around the softmax alone, so scale and mask move 2 bytes a score and the softmax 4. Its
// output is kept in fp32, 4 bytes, and as the next product reads it, 2.
TEST_F(GptLayer, EagerAttentionOfRotaryModelsNormalizesInFp32) {
  model.dropout = false;
  plan.split_softmax = true;
  const auto core = [&] { return step(layer(), "attention.core"); };
  const double scores = a * s * s * b;
  EXPECT_DOUBLE_EQ(core().kept_for_input_gradient, 2 * scores);  // GPT-2
  model.position = PositionKind::kRotary;
  training.micro_batch = 1;
  EXPECT_THAT(
      names(core().forward),
      ElementsAre("attention.scores", "attention.scale", "attention.mask", "attention.scores.cast", "attention.softmax",
                  "attention.probabilities.cast", "attention.context", "attention.output.copy"));
  EXPECT_THAT(
      names(core().input_gradient),
      ElementsAre("attention.output.backward.copy", "attention.context.dprobabilities", "attention.context.dvalues",
                  "attention.probabilities.backward.cast", "attention.softmax.backward.multiply",
                  "attention.softmax.backward", "attention.scores.backward.cast", "attention.mask.backward",
                  "attention.scale.backward", "attention.scores.dqueries", "attention.scores.dkeys"));
  const double of_one = a * s * s;
  EXPECT_DOUBLE_EQ(traffic(core().forward[1]), (2 + 2) * of_one);
  EXPECT_DOUBLE_EQ(traffic(core().forward[2]), (2 + 1 + 2) * of_one);
  EXPECT_DOUBLE_EQ(traffic(core().forward[3]), (2 + 4) * of_one);
  EXPECT_EQ(std::get<Operator>(core().forward[4].what).dtype, DType::kFp32);
  EXPECT_DOUBLE_EQ(traffic(core().input_gradient[4]), (4 + 4 + 4) * of_one);
  EXPECT_DOUBLE_EQ(traffic(core().input_gradient[7]), (2 + 2) * of_one);
  EXPECT_DOUBLE_EQ(core().kept_for_input_gradient, (4 + 2) * of_one);
  training.precision = Precision::kFp32;  // nothing is cast, nothing kept twice
  EXPECT_DOUBLE_EQ(core().kept_for_input_gradient, 4 * of_one);
  EXPECT_EQ(core().forward.size(), 6u);
}

// Megatron's fused kernel takes four heads of a microbatch at a time. Elsewhere scores are cast to fp32 and back, with
// a kernel for each step between, and the softmax's output is kept in fp32 beside its copy.
TEST_F(GptLayer, SoftmaxThatIsNotFusedRunsInFp32) {
  model.dropout = false;
  const auto core = [&] { return step(layer(), "attention.core"); };
  const double fused = core().kept_for_input_gradient;
  EXPECT_THAT(names(core().forward), ElementsAre("attention.scores", "attention.softmax", "attention.context"));
  training.micro_batch = 1, plan.tp = static_cast<std::int64_t>(a) / 2;  // two heads
  const auto forward = core().forward;
  ASSERT_THAT(names(forward),
              ElementsAre("attention.scores", "attention.scores.cast", "attention.scale", "attention.mask",
                          "attention.softmax", "attention.probabilities.cast", "attention.context"));
  EXPECT_THAT(names(core().input_gradient),
              ElementsAre("attention.context.dprobabilities", "attention.context.dvalues",
                          "attention.probabilities.backward.cast", "attention.softmax.backward.multiply",
                          "attention.softmax.backward", "attention.mask.backward", "attention.scale.backward",
                          "attention.scores.backward.cast", "attention.scores.dqueries", "attention.scores.dkeys"));
  const double scores = 2 * s * s;  // of two heads
  EXPECT_DOUBLE_EQ(traffic(forward[1]), (2 + 4) * scores);
  EXPECT_DOUBLE_EQ(traffic(forward[2]), (4 + 4) * scores);
  EXPECT_DOUBLE_EQ(traffic(forward[3]), (4 + 1 + 4) * scores);
  EXPECT_EQ(std::get<Operator>(forward[4].what).dtype, DType::kFp32);
  EXPECT_DOUBLE_EQ(core().kept_for_input_gradient, (4 + 2) * scores);
  EXPECT_DOUBLE_EQ(fused, 2 * a * s * s * b);
  training.micro_batch = 2;
  EXPECT_EQ(core().forward.size(), 3u);
}

// gpt-oss in eager PyTorch: a sink joins each row of the scores, the largest is taken off, and the softmax has the
// scores' format, of which alone one copy is kept. Where attention is fused, or one kernel normalizes, sinks cost
// nothing.
TEST_F(GptLayer, SinksJoinTheScores) {
  model.dropout = false, model.position = PositionKind::kRotary, model.attention_sinks = true;
  training.micro_batch = 1, plan.split_softmax = true;
  const auto core = [&] { return step(layer(), "attention.core"); };
  EXPECT_THAT(names(core().forward),
              ElementsAre("attention.scores", "attention.scale", "attention.mask", "attention.sinks.join",
                          "attention.sinks.largest", "attention.sinks.subtract", "attention.softmax",
                          "attention.context", "attention.output.copy"));
  const double scores = a * s * s;
  EXPECT_DOUBLE_EQ(core().kept_for_input_gradient, 2 * scores);
  EXPECT_DOUBLE_EQ(traffic(core().forward[3]), (2 + 2) * scores);
  const auto of_sinks = [&] {
    const std::vector<std::string> all = names(core().input_gradient);
    return std::count_if(all.begin(), all.end(),
                         [](const std::string& name) { return name.find("sinks") != name.npos; });
  };
  EXPECT_EQ(of_sinks(), 6);
  plan.split_softmax = false;
  EXPECT_EQ(of_sinks(), 0);
}

// What torch.compile fuses it fuses for all numbers of heads, and in fp32.
TEST_F(GptLayer, ACompilerFusesTheSoftmaxForAllHeads) {
  model.dropout = false;
  training.micro_batch = 1, plan.tp = static_cast<std::int64_t>(a) / 2;  // two heads
  const auto core = [&] { return step(layer(), "attention.core"); };
  plan.norm_library = Library::kCompiled;
  EXPECT_THAT(names(core().forward), ElementsAre("attention.scores", "attention.softmax", "attention.context"));
  plan.norm_library = Library::kDefault, training.precision = Precision::kFp32;
  EXPECT_THAT(names(core().forward), ElementsAre("attention.scores", "attention.softmax", "attention.context"));
}

// Only a GELU that its class writes out has a kernel for each operation: 10 reads and 8 writes of an activation
// forward, 17 and 11 backward, and four of them are kept.
TEST_F(GptLayer, AGeluThatIsWrittenOutIsAKernelForEachOperation) {
  const auto activation = [&] { return step(layer(), "mlp.activation"); };
  const double one = 2 * s * b * 4 * h;
  const BlockStep fused = activation();
  plan.written_out = true;
  EXPECT_EQ(names(activation().forward), names(fused.forward));
  model.activation = Activation::kGeluNew;
  EXPECT_DOUBLE_EQ(traffic(activation().forward), 18 * one);
  EXPECT_DOUBLE_EQ(traffic(activation().input_gradient), 28 * one);
  EXPECT_DOUBLE_EQ(activation().kept_for_input_gradient, 4 * one);
  plan.written_out = false;
  EXPECT_EQ(names(activation().forward), names(fused.forward));
}

// LlamaRMSNorm, forward: cast 2 + 4 bytes an element, square 4 + 4, mean 4, product with the root 4 + 4, cast 4 + 2,
// product with the weight 2 + 2; backward two products and a sum in 16 bits, a cast, two products, a sum, the mean's
// and the square's gradients in fp32, their sum and a cast. Nothing is cast under autocast, whose hidden states are
// fp32.
TEST_F(GptLayer, ANormThatIsWrittenOutIsAKernelForEachOperation) {
  model.norm = NormalizationKind::kRmsNorm;
  plan.norm_library = Library::kEager, plan.written_out = true;
  const auto bytes = [&](const std::vector<Call>& calls) { return traffic(calls) / (s * b * h); };
  const auto norm = [&] { return step(layer(), "mlp.norm"); };
  EXPECT_DOUBLE_EQ(bytes(norm().forward), 6 + 8 + 4 + 8 + 6 + 4);
  const double residual = 6;
  EXPECT_NEAR(bytes(norm().input_gradient), 4 + 6 + 2 + 6 + 4 * (2 + 3 + 1 + 1 + 2 + 2 + 3 + 3) + 6 + residual, 0.1);
  plan.weights = WeightStorage::kFp32;
  EXPECT_DOUBLE_EQ(bytes(norm().forward), 8 + 4 + 8 + 8);
  plan.norm_library = Library::kDefault;
  EXPECT_EQ(norm().forward.size(), 1U);
}

// Autocast casts weights and hidden states, 4 + 2 bytes each, and their gradients back; the gradient of the first of m
// microbatches is the sum, so that a microbatch has (m - 1) / m of an addition of 12 bytes.
TEST_F(GptLayer, AutocastCastsWeightsAndHiddenStates) {
  plan.grad_accumulation = GradAccumulation::kLow;
  const auto names_of = [&](const char* name) {
    const BlockStep linear = step(layer(), name);
    std::vector<std::string> all = names(linear.forward);
    for (const auto& more : {names(linear.input_gradient), names(linear.weight_gradient)}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  EXPECT_THAT(names_of("mlp.fc1"), testing::Not(testing::Contains(testing::HasSubstr("cast"))));
  plan.weights = WeightStorage::kFp32;
  EXPECT_THAT(names_of("mlp.fc1"), testing::IsSupersetOf({"mlp.fc1.input.cast", "mlp.fc1.weights.cast",
                                                          "mlp.fc1.dgrad.cast", "mlp.fc1.wgrad.cast"}));
  EXPECT_THAT(names_of("mlp.fc2"), testing::Not(testing::Contains("mlp.fc2.input.cast")))
      << "what the activation function leaves is in low precision";
  const BlockStep fc1 = step(layer(), "mlp.fc1");
  for (const Call& call : fc1.forward) {
    if (call.name != "mlp.fc1.weights.cast") continue;
    const Work work = work_of(std::get<Operator>(call.what));
    EXPECT_DOUBLE_EQ(work.read / B, 4.0 * 4 * h * h);
    EXPECT_DOUBLE_EQ(work.written / B, 2.0 * 4 * h * h);
  }
  const auto added = [&](std::int64_t microbatches) {
    training.global_batch = microbatches * training.micro_batch;
    double bytes = 0;
    const BlockStep again = step(layer(), "mlp.fc1");
    for (const Call& call : again.weight_gradient) {
      if (!call.name.ends_with("fc1.wgrad.accumulate")) continue;
      bytes += traffic(call);
    }
    return bytes / (4.0 * h * h);
  };
  EXPECT_DOUBLE_EQ(added(1), 0);
  EXPECT_DOUBLE_EQ(added(2), 6);
  EXPECT_DOUBLE_EQ(added(4), 9);
  // Hidden states in fp32: norms read and write them, and the block keeps them.
  EXPECT_EQ(std::get<Operator>(step(layer(), "mlp.norm").forward.front().what).dtype, DType::kFp32);
}

// Megatron's cross-entropy holds fp32 logits, 4 bytes each, and for a while the logits or their gradient, 2 bytes. In
// fp32 it works in place alone.
TEST(EmbeddingAndLoss, LogitsStandBesideTheirCopyInFp32) {
  const Model model = gpt(2, 8192, 64);
  const auto loss = [&](Precision precision) {
    return step(loss_block(Shape(model, {}, {8, 1, 1024, precision})), "loss.cross_entropy");
  };
  const double logits = 1024.0 * 50304;
  EXPECT_DOUBLE_EQ(loss(Precision::kBf16).kept_for_input_gradient, 4 * logits);
  EXPECT_DOUBLE_EQ(loss(Precision::kBf16).transient_forward, 2 * logits);
  EXPECT_DOUBLE_EQ(loss(Precision::kBf16).transient_backward, 2 * logits);
  EXPECT_DOUBLE_EQ(loss(Precision::kFp32).transient_forward, 0);
  EXPECT_DOUBLE_EQ(loss(Precision::kFp32).transient_backward, 0);
}

// Hidden states of 512 x 512 in bf16 are x bytes. A gated MLP of 1,024: when the activation's backward pass runs, the
// gradients of its output and of both inputs are there, 2 x each, and that of the hidden states, x, which goes around;
// the second product's input, 2 x, is free. All that a layer keeps is 14 x (two norms, two products' inputs, queries,
// keys and values, the attention's output, 4 x and 2 x of the MLP) and the log-sum-exp of 8 heads.
TEST(Transients, GradientsOfAGatedMlp) {
  const Model model = llama(2, 512, 8, 8, 1024);
  const Training training{8, 1, 512, Precision::kBf16};
  const double x = 2 * 512.0 * 512, lse = 4 * 512.0 * 8;
  const Block layer = layer_block(Shape(model, {}, training), LayerKind{});
  EXPECT_EQ(layer.around, x);
  EXPECT_EQ(step(layer, "mlp.fc2").transient_backward, 2 * x);
  EXPECT_EQ(step(layer, "mlp.activation").transient_backward, 3 * 2 * x);
  EXPECT_EQ(step(layer, "mlp.fc1").transient_backward, (4 + 1) * x);
  EXPECT_EQ(kept_bytes(layer, Recompute::kNone).after_forward, 14 * x + lse);
  EXPECT_EQ(working_bytes(layer, Recompute::kNone, 0, false), (3 * 2 + 1 - 2) * x);
  EXPECT_EQ(working_bytes(layer, Recompute::kFull, 0, false), (14 + 3 * 2 + 1 - 2) * x + lse);
  // Where weight gradients come later, the second product's input and output gradient stay.
  EXPECT_EQ(working_bytes(mlp_block(Shape(model, {}, training)), Recompute::kNone, 0, true), (3 * 2 + 1) * x);

  // Two tensor-parallel ranks under sequence parallelism: the second product has the output's gradient of both, and
  // that of its input, half as wide; the first one the gradient of its output, input and input's gradient of both, and
  // this rank's part of that.
  const ParallelPlan sharded{.tp = 2, .sequence_parallel = true};
  const Block part = mlp_block(Shape(model, sharded, training));
  EXPECT_EQ(step(part, "mlp.fc2").transient_backward, (1 + 1) * x);
  EXPECT_EQ(step(part, "mlp.fc1").transient_backward, (2 + 1 + 1 + 0.5) * x);
}

// 1,024 rows of 2 of 8 experts on each of 4 ranks, 2 x: what comes in from the ranks stands beside rows by experts, and
// backward both are gradients. Experts of 1,024 have 4 x of each half and of the output.
TEST(Transients, RowsOfAnAllToAll) {
  Model model = llama(2, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  const Block block = moe_block(Shape(model, {.dp = 8, .ep = 4}, {8, 1, 512, Precision::kBf16}));
  const double x = 2 * 512.0 * 512;
  EXPECT_EQ(step(block, "moe.receive").transient_forward, 2 * x);
  EXPECT_EQ(step(block, "moe.receive").transient_backward, (2 + 2) * x);
  EXPECT_EQ(step(block, "moe.combine").transient_forward, (2 + 2) * x);
  EXPECT_EQ(step(block, "moe.activation").transient_backward, 3 * 4 * x);
  EXPECT_EQ(step(block, "moe.fc1").transient_backward, (2 + 8) * x);
}

// Liger makes the logits of 256 tokens at a time (1,024 tokens, 32,000 of 8,192: four parts), turns them into their
// gradient forward, and keeps the gradient of the hidden states.
TEST(EmbeddingAndLoss, LigerNeverHasAllLogits) {
  Model model = gpt(2, 8192, 64);
  model.vocabulary = 32000;
  ParallelPlan plan;
  plan.loss_library = Library::kLiger;
  const Training training{8, 1, 1024, Precision::kBf16};
  const BlockStep loss = step(loss_block(Shape(model, plan, training)), "loss.cross_entropy");
  EXPECT_DOUBLE_EQ(loss.kept_for_input_gradient, 2.0 * 1024 * 8192);
  EXPECT_DOUBLE_EQ(loss.transient_forward, 2.0 * 256 * 32000);
  EXPECT_THAT(names(loss.forward), ElementsAre("loss.cross_entropy"));
  EXPECT_TRUE(loss.input_gradient.empty());
  // Eight parts by PyTorch, which casts them to fp32.
  plan.loss_parts = 8;
  EXPECT_DOUBLE_EQ(step(loss_block(Shape(model, plan, training)), "loss.cross_entropy").transient_forward,
                   (2.0 + 4) * 128 * 32000);
  // Without Liger's gradient in the forward pass, the logits of all parts stay; in eager mode beside those of
  // log_softmax in fp32. Their gradients are those of a part.
  plan.loss_library = Library::kFlash2;
  const Block compiled = loss_block(Shape(model, plan, training));
  EXPECT_DOUBLE_EQ(step(compiled, "loss.cross_entropy").kept_for_input_gradient, 2.0 * 1024 * 32000);
  EXPECT_DOUBLE_EQ(step(compiled, "loss.cross_entropy").transient_forward, 0);
  const double of_parts = step(compiled, "loss.logits").transient_backward;
  plan.loss_library = Library::kEager;
  const BlockStep eager = step(loss_block(Shape(model, plan, training)), "loss.cross_entropy");
  EXPECT_DOUBLE_EQ(eager.kept_for_input_gradient, (2.0 + 4) * 1024 * 32000);
  EXPECT_DOUBLE_EQ(eager.transient_forward, 4.0 * 128 * 32000);
  EXPECT_DOUBLE_EQ(eager.transient_backward, 2 * 4.0 * 128 * 32000);
  plan.loss_parts = 0;
  plan.loss_library = Library::kFlash2;
  EXPECT_DOUBLE_EQ(step(loss_block(Shape(model, plan, training)), "loss.logits").transient_backward, 8 * of_parts);
  EXPECT_DOUBLE_EQ(step(loss_block(Shape(model, plan, training)), "loss.cross_entropy").kept_for_input_gradient,
                   2.0 * 2 * 1024 * 32000);
}

// A classifier scores one token of each sequence: labels x hidden weights and as many biases, whatever the vocabulary.
TEST(EmbeddingAndLoss, AClassifierHasNoLogits) {
  Model model = gpt(2, 512, 8);
  model.labels = 3;
  const ParallelPlan plan;
  const Training training{8, 8, 128, Precision::kBf16};
  const Block loss = loss_block(Shape(model, plan, training));
  EXPECT_DOUBLE_EQ(parameters_of(loss).dense, 2 * 512 + 3 * 512 + 3);
  EXPECT_DOUBLE_EQ(flops_of(loss).forward, 2.0 * 8 * 3 * 512);
}

// A classifier has no second table, whose gradients two stages would sum, and which a stage with both would hold once.
TEST(EmbeddingAndLoss, AClassifierSharesNoTable) {
  Model model = gpt(4, 512, 8);
  model.vocabulary = 100'000;
  ParallelPlan plan{.pp = 2};
  const Training training{8, 1, 128, Precision::kBf16};
  const auto sums = [&] {
    const auto program = plan_program(model, plan, training);
    bool found = false;
    for (std::size_t w = 0; w < program->works.size(); ++w)
      found |= program->works[w].name == "embedding.gradients.all_reduce";
    return found;
  };
  EXPECT_TRUE(sums());
  model.labels = 3;
  EXPECT_FALSE(sums());
  const auto weights = [&] { return memory_budget(model, plan, training)->stages[0].weights; };
  const Bytes tied = weights();
  model.tied_embeddings = false;
  EXPECT_EQ(weights(), tied);
  plan.schedule = "zb-v", plan.vpp = 2;
  const Bytes untied = weights();
  model.tied_embeddings = true;
  EXPECT_EQ(weights(), untied);
}

// In half precision: the input and its norm, 2 sbh each; gate and up, 4 sbf together; their product, 2 sbf.
TEST(GatedMlp, KeepsGateUpAndTheirProduct) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const ParallelPlan plan;
  const double tokens = 2.0 * 4096;
  const Training training{2, 2, 4096, Precision::kBf16};
  EXPECT_DOUBLE_EQ(after_forward(mlp_block(Shape(model, plan, training))), tokens * (4 * 4096 + 6 * 11008));
}

TEST_F(GptLayer, Equation2TensorParallel) {
  plan.tp = 8;
  EXPECT_DOUBLE_EQ(after_forward(layer()), s * b * h * (10 + 24 / t + 5 * a * s / (h * t)));
}

TEST_F(GptLayer, Equation4SequenceParallel) {
  plan.tp = 8;
  plan.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(after_forward(layer()), s * b * h / t * (34 + 5 * a * s / h));
}

TEST_F(GptLayer, Equation6SelectiveRecomputation) {
  plan.tp = 8;
  plan.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(after_forward(layer(), Recompute::kSelective), 34 * s * b * h / t);
}

TEST_F(GptLayer, Table2FullRecomputation) {
  plan.tp = 8;
  EXPECT_DOUBLE_EQ(after_forward(layer(), Recompute::kFull), 2 * s * b * h);
}

// Qi et al. 2023, table 1: 32 sbh, of which 14 are inputs of the linear layers and 18 gradients of their outputs.
// Kept of a layer: its input; the first, third, fifth product; attention's output with its log-sum-exp. The seventh,
// the MLP's last, is read by nothing.
TEST(Operators, EverySecondProductIsKept) {
  const double h = 4096, key = 1024, ffn = 14336, tokens = 8192;
  const Model model = llama(1, 4096, 32, 8, 14336);
  const ParallelPlan plan{.recompute = Recompute::kOperators};
  const Training training{1, 1, 8192, Precision::kBf16};
  const Shape shape(model, plan, training);
  const Block layer = layer_block(shape, layer_kinds(model).kinds[0]);
  const double input = h, queries = h, values = key, attention = h, gates = ffn, sums = 32 * 4;
  EXPECT_DOUBLE_EQ(after_forward(layer, Recompute::kOperators),
                   tokens * (2 * (input + queries + values + attention + gates) + sums));
  EXPECT_THAT(step(layer, "attention.core").repeated, IsEmpty());
  EXPECT_THAT(names(step(layer, "attention.proj").repeated), ElementsAre("attention.proj"));
  EXPECT_THAT(step(layer, "mlp.fc2").repeated, IsEmpty());
  const auto columns = [&](std::string_view name) {
    const BlockStep& found = step(layer, name);
    return found.repeated.size() == 1 ? std::get<Gemm>(std::get<Operator>(found.repeated[0].what).kind).n : 0;
  };
  EXPECT_EQ(columns("attention.qkv"), 1024);  // keys
  EXPECT_EQ(columns("mlp.fc1"), 14336);       // the half that is multiplied with the gate
  EXPECT_DOUBLE_EQ(flops_of(layer).repeated, 2 * tokens * h * (key + h + ffn));
}

// With each product kept, only norms, rotary embeddings and the activation run again.
TEST(Operators, AllProductsAreKept) {
  const double h = 4096, key = 1024, ffn = 14336, tokens = 8192;
  const Model model = llama(1, 4096, 32, 8, 14336);
  const ParallelPlan plan{.recompute = Recompute::kOperators, .recompute_products = KeptProducts::kAll};
  const Block layer = layer_block(Shape(model, plan, {1, 1, 8192, Precision::kBf16}), layer_kinds(model).kinds[0]);
  const double input = h, queries = h, keys_and_values = 2 * key, attention = h, projected = h, sums = 32 * 4;
  EXPECT_DOUBLE_EQ(after_forward(layer, Recompute::kOperators),
                   tokens * (2 * (input + queries + keys_and_values + attention + projected + 2 * ffn) + sums));
  EXPECT_DOUBLE_EQ(flops_of(layer).repeated, 0);
  EXPECT_THAT(names(step(layer, "mlp.activation").repeated), ElementsAre("mlp.activation"));
  EXPECT_THAT(step(layer, "mlp.fc2").repeated, IsEmpty());
}

// What ranks reduced is kept, so the product before it does not run again.
TEST(Operators, ReductionsAreKept) {
  const double h = 4096, key = 1024, ffn = 14336, tokens = 8192, t = 8;
  const Model model = llama(1, 4096, 32, 8, 14336);
  ParallelPlan plan{.tp = 8, .recompute = Recompute::kOperators};
  plan.sequence_parallel = true;
  const Shape shape(model, plan, {1, 1, 8192, Precision::kBf16});
  const Block layer = layer_block(shape, layer_kinds(model).kinds[0]);
  EXPECT_THAT(step(layer, "attention.proj").repeated, IsEmpty());
  EXPECT_THAT(names(step(layer, "mlp.fc1").repeated), ElementsAre("mlp.all_gather", "mlp.fc1"));
  const double reduced = h / t, of_ranks = (h + key + h + ffn) / t;
  EXPECT_DOUBLE_EQ(after_forward(layer, Recompute::kOperators),
                   tokens * (2 * (h / t + of_ranks + reduced) + 32 / t * 4));
}

// Products in 8 bits are no aten.mm: none is kept, and all that something reads run again.
TEST(Operators, ProductsInEightBitsRunAgain) {
  const double h = 4096, tokens = 8192;
  const Model model = llama(1, 4096, 32, 8, 14336);
  const ParallelPlan plan{.recompute = Recompute::kOperators};
  const Shape shape(model, plan, {1, 1, 8192, Precision::kFp8});
  const Block layer = layer_block(shape, layer_kinds(model).kinds[0]);
  EXPECT_DOUBLE_EQ(after_forward(layer, Recompute::kOperators), tokens * (2 * (h + h) + 32 * 4));
  EXPECT_THAT(names(step(layer, "attention.qkv").repeated), Contains("attention.qkv"));
  EXPECT_THAT(names(step(layer, "mlp.fc2").repeated), Not(Contains("mlp.fc2")));
}

// A product with a bias is no aten.mm either: of a layer with biased queries, keys and values, the projection behind
// attention is the first that counts.
TEST(Operators, ProductsWithABiasAreNotCounted) {
  Model model = llama(1, 4096, 32, 8, 14336);
  model.qkv_bias = true;
  const ParallelPlan plan{.recompute = Recompute::kOperators};
  const Block layer = layer_block(Shape(model, plan, {1, 1, 8192, Precision::kBf16}), layer_kinds(model).kinds[0]);
  EXPECT_THAT(names(step(layer, "attention.qkv").repeated), ElementsAre("attention.qkv"));
  EXPECT_DOUBLE_EQ(step(layer, "attention.qkv").kept_outputs, 0);
  EXPECT_DOUBLE_EQ(step(layer, "attention.proj").kept_outputs, 8192 * 4096 * 2.0);
  EXPECT_DOUBLE_EQ(step(layer, "mlp.fc1").kept_outputs, 8192 * 14336 * 2.0);  // the third, not the second
}

// Latent attention counts wq_a, wq_b, wkv_a, wkv_b, wo: the low ranks are kept, their up-projections run again.
TEST(Operators, LowRanksOfLatentAttentionAreKept) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.mla = LatentAttention{96, 32, 16, 8, 24};
  ParallelPlan plan{.recompute = Recompute::kOperators};
  const Training training{1, 1, 256, Precision::kBf16};
  const Block layer = layer_block(Shape(model, plan, training), layer_kinds(model).kinds[0]);
  const auto kept = [&](std::string_view name) { return step(layer, name).kept_outputs / (256 * 2); };
  EXPECT_DOUBLE_EQ(kept("attention.q_down"), 96);
  EXPECT_DOUBLE_EQ(kept("attention.q_up"), 0);
  EXPECT_DOUBLE_EQ(kept("attention.kv_down"), 32 + 8);
  EXPECT_DOUBLE_EQ(kept("attention.kv_up"), 0);
  EXPECT_DOUBLE_EQ(kept("attention.proj"), 512);
  // The same kernels as without recomputation.
  plan.recompute = Recompute::kNone;
  const Block plain = layer_block(Shape(model, plan, training), layer_kinds(model).kinds[0]);
  EXPECT_DOUBLE_EQ(flops_of(layer).forward, flops_of(plain).forward);
  EXPECT_DOUBLE_EQ(after_forward(layer), after_forward(plain));
}

// Tokens that were exchanged are kept. The experts' first product runs again, for their activation; the second one not:
// what it makes is read by an exchange whose output is kept. The router is not counted.
TEST(Operators, ExchangedTokensAreKept) {
  Model model = llama(1, 4096, 32, 8, 14336);
  model.moe = Experts{.experts = 8, .top_k = 2, .expert_ffn = 14336};
  ParallelPlan plan{.dp = 8, .ep = 8, .recompute = Recompute::kOperators};
  const Shape shape(model, plan, {8, 1, 4096, Precision::kBf16});
  const Block layer = layer_block(shape, layer_kinds(model).kinds[0]);
  EXPECT_THAT(names(step(layer, "moe.router").repeated), Contains("moe.router"));
  EXPECT_THAT(step(layer, "moe.dispatch").repeated, IsEmpty());
  EXPECT_DOUBLE_EQ(step(layer, "moe.dispatch").kept_outputs, 2.0 * 4096 * 2 * 4096);
  EXPECT_THAT(names(step(layer, "moe.fc1").repeated), ElementsAre("moe.fc1"));
  EXPECT_THAT(step(layer, "moe.fc2").repeated, IsEmpty());
  EXPECT_THAT(step(layer, "moe.combine").repeated, IsEmpty());
  // The busiest rank gets more tokens, and keeps them.
  plan.expert_imbalance = {1.5};
  const Block uneven = layer_block(Shape(model, plan, {8, 1, 4096, Precision::kBf16}), layer_kinds(model).kinds[0]);
  EXPECT_DOUBLE_EQ(step(uneven, "moe.dispatch").kept_outputs, 1.5 * 2.0 * 4096 * 2 * 4096);
  plan.expert_imbalance = {};
  // Shared experts between the exchange and the sum read other tokens.
  model.moe->shared_experts = 1, model.moe->shared_expert_ffn = 1024;
  const Block shared = layer_block(Shape(model, plan, {8, 1, 4096, Precision::kBf16}), layer_kinds(model).kinds[0]);
  EXPECT_THAT(step(shared, "moe.combine").repeated, IsEmpty());
  EXPECT_THAT(step(shared, "moe.fc2").repeated, IsEmpty());
}

TEST_F(GptLayer, UntilTheWeightGradient) {
  const Block block = layer();
  double inputs = 0, gradients = 0;
  for (const BlockStep& each : block.steps) {
    inputs += each.kept_for_weight_gradient;
    gradients += each.output_gradient;
  }
  EXPECT_DOUBLE_EQ(inputs, 14 * s * b * h);
  EXPECT_DOUBLE_EQ(gradients, 18 * s * b * h);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    EXPECT_DOUBLE_EQ(kept_bytes(block, recompute).after_input_gradient, 32 * s * b * h);
  }
}

TEST_F(GptLayer, FlashAttentionKeepsOneNumberARow) {
  plan.flash_attention = true;
  EXPECT_DOUBLE_EQ(after_forward(layer()), 34 * s * b * h + 4 * a * s * b);
}

// Narayanan et al. 2021, eq. 2: 12 h^2 weights, 13 h biases and norms.
TEST_F(GptLayer, Parameters) {
  EXPECT_DOUBLE_EQ(parameters_of(layer()).dense, 12 * h * h + 13 * h);
  plan.tp = 8;
  EXPECT_DOUBLE_EQ(parameters_of(layer()).dense, (12 * h * h + 7 * h) / t + 6 * h);
}

// Narayanan et al. 2021, appendix: 24 bsh^2 + 4 bs^2h.
TEST_F(GptLayer, Flops) {
  const BlockFlops flops = flops_of(layer());
  EXPECT_DOUBLE_EQ(flops.forward, 24 * b * s * h * h + 4 * b * s * s * h);
  EXPECT_DOUBLE_EQ(flops.recomputed, 4 * b * s * s * h);
  plan.flash_attention = true;
  EXPECT_DOUBLE_EQ(flops_of(layer()).forward, flops.forward);
  model.sliding_window = 512;
  EXPECT_DOUBLE_EQ(flops_of(layer()).recomputed, flops.recomputed / 4);
}

TEST_F(GptLayer, CommunicationStandsWhereTheSplitRegionsBegin) {
  plan.tp = 8;
  plan.sequence_parallel = true;
  const Block block = layer();
  EXPECT_THAT(names(step(block, "mlp.fc1").forward), ElementsAre("mlp.all_gather", "mlp.fc1"));
  EXPECT_THAT(names(step(block, "mlp.fc1").input_gradient),
              ElementsAre("mlp.fc1.dgrad", "mlp.fc1.dgrad.reduce_scatter"));
  EXPECT_THAT(names(step(block, "mlp.fc1").weight_gradient),
              ElementsAre("mlp.fc1.input.all_gather", "mlp.fc1.wgrad", "mlp.fc1.bias_gradient",
                          "mlp.fc1.bias.wgrad.accumulate"));
  EXPECT_THAT(names(step(block, "mlp.fc2").forward), ElementsAre("mlp.fc2", "mlp.reduce_scatter"));
  EXPECT_THAT(names(step(block, "mlp.fc2").input_gradient), ElementsAre("mlp.fc2.grad.all_gather", "mlp.fc2.dgrad"));
  EXPECT_THAT(names(step(block, "attention.core").input_gradient),
              ElementsAre("attention.context.dprobabilities", "attention.context.dvalues", "attention.dropout.backward",
                          "attention.softmax.backward", "attention.scores.dqueries", "attention.scores.dkeys"));
}

// In parts, one for each rank, all but one of them beside the product: the same bytes as at once.
TEST_F(GptLayer, WhatOverlapsProductsMovesTheSameBytes) {
  plan.tp = 8;
  plan.sequence_parallel = true;
  const auto moved = [&](Beside beside) {
    double bytes = 0;
    for (const BlockStep& each : layer().steps) {
      for (const auto* calls : {&each.forward, &each.input_gradient, &each.weight_gradient}) {
        for (const Call& call : *calls) {
          const auto* communication = std::get_if<Communication>(&call.what);
          if (communication && communication->beside == beside) bytes += communication->size / B;
        }
      }
    }
    return bytes;
  };
  const double at_once = moved(Beside::kNothing);
  plan.overlap_tp = true;
  EXPECT_NEAR(moved(Beside::kNothing) + moved(Beside::kKernel), at_once, 1e-6);
  // Two products gather and two reduce in the forward pass, two gather in the backward pass.
  EXPECT_NEAR(moved(Beside::kKernel), 6 * 7.0 / 8 * 2 * s * b * h, 1e-6);
}

// GQA with fewer key-value heads than ranks: each rank holds one.
TEST(Attention, KeyValueHeadsAreReplicated) {
  const Model model = llama(1, 512, 8, 2, 1024);
  const ParallelPlan plan{.tp = 8};
  const Block block = attention_block(Shape(model, plan, {1, 1, 128, Precision::kBf16}));
  EXPECT_DOUBLE_EQ(step(block, "attention.qkv").parameters.dense, 512 * 3 * 64);
  EXPECT_DOUBLE_EQ(step(block, "attention.heads").kept_for_input_gradient, 128 * 3 * 64 * 2);
}

// Rotary positions of 8 heads of 64 in 2 groups. Queries of several groups lie between their keys and values, so they
// are copied; of one group, or of groups of one, they do not. Gradients of all three are joined.
TEST(Attention, PartsOfOneProductAreCopied) {
  const auto heads = [](std::int64_t key_heads, std::int64_t tp) {
    const ParallelPlan plan{.tp = tp};
    const Block block = attention_block(Shape(llama(1, 512, 8, key_heads, 1024), plan, {1, 1, 128, Precision::kBf16}));
    return step(block, "attention.heads");
  };
  const BlockStep grouped = heads(2, 1);
  EXPECT_THAT(names(grouped.forward),
              ElementsAre("attention.queries.copy", "attention.rotary.queries", "attention.rotary.keys"));
  EXPECT_THAT(names(grouped.input_gradient),
              ElementsAre("attention.rotary.keys.backward", "attention.rotary.queries.backward",
                          "attention.heads.backward.join"));
  const auto copied = [](const Call& call) { return std::get<Copy>(std::get<Operator>(call.what).kind).bytes / B; };
  EXPECT_DOUBLE_EQ(copied(grouped.forward.front()), 128 * 8 * 64 * 2);
  EXPECT_DOUBLE_EQ(copied(grouped.input_gradient.back()), 128 * (8 + 2 * 2) * 64 * 2);
  EXPECT_EQ(heads(2, 2).forward.size(), 2U);  // one group a rank
  EXPECT_EQ(heads(8, 1).forward.size(), 2U);
}

// What is no product's weight: a kernel adds each gradient to the sums, also where products do so themselves.
TEST(Norms, GradientsAreAddedToTheSums) {
  const auto added = [](NormalizationKind kind, bool bias, int zero) {
    Model model = llama(1, 512, 8, 8, 1024);
    model.norm = kind;
    model.bias = bias;
    const ParallelPlan plan{.dp = 2, .zero = static_cast<ZeroStage>(zero)};
    const Block block = attention_block(Shape(model, plan, {2, 1, 128, Precision::kBf16}));
    std::size_t count = 0;
    for (const BlockStep& each : block.steps) {
      for (const auto* calls : {&each.input_gradient, &each.weight_gradient}) {
        for (const Call& call : *calls) count += call.name.ends_with(".accumulate") ? 1U : 0U;
      }
    }
    return count;
  };
  EXPECT_EQ(added(NormalizationKind::kRmsNorm, false, 1), 1U);
  EXPECT_EQ(added(NormalizationKind::kLayerNorm, false, 1), 2U);
  EXPECT_EQ(added(NormalizationKind::kLayerNorm, true, 1), 4U);  // and biases of two products
  EXPECT_EQ(added(NormalizationKind::kLayerNorm, true, 3), 0U);  // after they are reduced
}

// DeepSeek-V2, s.2.1: down-projections and the norms of the latents are whole on every rank.
// Eager RMSNorm keeps its input in fp32 and the normalized values; LayerNorm is one kernel, which keeps its input.
TEST(Norms, EagerRmsNormKeepsTwoTensors) {
  Model model = llama(1, 512, 8, 8, 1024);
  ParallelPlan plan;
  const auto kept = [&](Precision precision) {
    return step(mlp_block(Shape(model, plan, {1, 1, 128, precision})), "mlp.norm").kept_for_input_gradient;
  };
  EXPECT_EQ(kept(Precision::kBf16), 2 * 128 * 512);
  plan.norm_library = Library::kEager;
  EXPECT_EQ(kept(Precision::kBf16), (4 + 2) * 128 * 512);
  EXPECT_EQ(kept(Precision::kFp32), (4 + 4) * 128 * 512);
  model.norm = NormalizationKind::kLayerNorm;
  EXPECT_EQ(kept(Precision::kBf16), 2 * 128 * 512);
}

TEST(Attention, Latent) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.mla = LatentAttention{96, 32, 16, 8, 24};
  const ParallelPlan plan{.tp = 4};
  const Training training{1, 1, 128, Precision::kBf16};
  const Block block = attention_block(Shape(model, plan, training));
  const double whole = 512 * 96 + 96 + 512 * (32 + 8) + 32 + 512, split = 96 * 8 * 24 + 32 * 8 * 40 + 8 * 24 * 512;
  EXPECT_DOUBLE_EQ(parameters_of(block).dense, whole + split / 4);
  // Norm input, gathered input, latents before and after their norms, heads and context, log-sum-exp.
  const double latents = 2 * (96 + 32), heads = 2 * (24 + 24 + 24 + 24);
  EXPECT_DOUBLE_EQ(after_forward(block), 128 * (2.0 * (2 * 512 + latents + heads) + 2 * 4));
  model.mla->q_rank = 0;
  EXPECT_DOUBLE_EQ(parameters_of(attention_block(Shape(model, plan, training))).dense,
                   whole - 512 * 96 - 96 + (split - 96 * 8 * 24 + 512 * 8 * 24) / 4);
}

// Under sequence parallelism a rank projects its own tokens down, and the latents of all tokens come together.
TEST(Attention, LatentsAreGatheredNotHiddenStates) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.mla = LatentAttention{96, 32, 16, 8, 24};
  const ParallelPlan plan{.tp = 4, .sequence_parallel = true};
  const Block block = attention_block(Shape(model, plan, {1, 1, 128, Precision::kBf16}));
  std::map<std::string, double> gathered;
  for (const BlockStep& each : block.steps) {
    for (const Call& call : each.forward) {
      const auto* sent = std::get_if<Communication>(&call.what);
      if (sent && sent->kind == CollectiveKind::kAllGather) gathered[call.name] = sent->size / B;
    }
  }
  EXPECT_EQ(gathered, (std::map<std::string, double>{{"attention.shared_keys.all_gather", 128 * 8 * 2},
                                                     {"attention.q.all_gather", 128 * 96 * 2},
                                                     {"attention.kv.all_gather", 128 * 32 * 2}}));
  const double down = 2.0 * 32 * 512 * (96 + 32 + 8), up = 2.0 * 128 * (96 * 2 * 24 + 32 * 2 * 40);
  double products = 0;
  for (const BlockStep& each : block.steps) {
    if (each.name.find("_down") == std::string::npos && each.name.find("_up") == std::string::npos) continue;
    for (const Call& call : each.forward) {
      const auto* op = std::get_if<Operator>(&call.what);
      if (op != nullptr && std::holds_alternative<Gemm>(op->kind)) products += work_of(*op).flops / FLOP;
    }
  }
  EXPECT_DOUBLE_EQ(products, down + up);
  // On this rank's tokens: norm input, gathered input, latents before and after their norms. On all: heads and context.
  EXPECT_DOUBLE_EQ(after_forward(block),
                   32 * 2.0 * (2 * 512 + 2 * (96 + 32)) + 128 * (2.0 * 2 * (24 + 24 + 24 + 24) + 2 * 4));
}

// Flash attention's backward pass reads its output, 512 values of a token. The projection keeps it as its input, in
// bf16, and casts it for each of its two products; with delayed scaling, it keeps a cast beside the core's output.
TEST(Attention, TheOutputIsKeptOnceButForDelayedScaling) {
  const Model model = llama(1, 512, 8, 8, 1024);
  ParallelPlan plan;
  const double statistics = 128 * 8 * 4, output = 128 * 512;
  const auto kept = [&](Precision precision) {
    const Block block = attention_block(Shape(model, plan, {1, 1, 128, precision}));
    return std::pair(step(block, "attention.core").kept_for_input_gradient,
                     step(block, "attention.proj").kept_for_weight_gradient);
  };
  const auto once = std::pair(statistics, 2 * output);
  for (const Precision precision :
       {Precision::kBf16, Precision::kFp8, Precision::kFp8Block, Precision::kMxFp8, Precision::kNvFp4}) {
    EXPECT_EQ(kept(precision), once);
  }
  const Block block = attention_block(Shape(model, plan, {1, 1, 128, Precision::kFp8Block}));
  const BlockStep& projection = step(block, "attention.proj");
  EXPECT_THAT(names(projection.forward), ElementsAre("attention.proj.quantize", "attention.proj"));
  EXPECT_THAT(names(projection.input_gradient),
              ElementsAre("attention.proj.input.quantize", "attention.proj.grad.quantize", "attention.proj.dgrad"));
  for (const Call* call : {&projection.forward.front(), &projection.input_gradient.front()}) {
    const Work work = work_of(std::get<Operator>(call->what));  // one layout of two, a factor for 128
    EXPECT_DOUBLE_EQ(work.read / B, 2 * output);
    EXPECT_DOUBLE_EQ(work.written / B, (1 + 4.0 / 128) * output);
  }
  // What waits for the weight gradient is cast: the input, and the gradient of the output.
  EXPECT_DOUBLE_EQ(projection.cast_for_weight_gradient, (1 + 4.0 / 128) * output);
  EXPECT_DOUBLE_EQ(projection.output_gradient, (1 + 4.0 / 128) * output);
  plan.delayed_scaling = true;
  EXPECT_EQ(kept(Precision::kFp8), std::pair(statistics + 2 * output, output));
  EXPECT_EQ(kept(Precision::kMxFp8), once);  // has no factors of earlier passes
}

// In bf16, what reads the hidden states shares one copy. In 8 bits each layer keeps its own cast, unless all keep what
// the norm makes again.
TEST(Attention, LatentLayersKeepCastsOfTheirOwn) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.mla = LatentAttention{96, 32, 16, 8, 24};
  ParallelPlan plan;
  const auto kept = [&](Precision precision, const char* name) {
    return step(attention_block(Shape(model, plan, {1, 1, 128, precision})), name).kept_for_weight_gradient;
  };
  const double hidden = 128 * 512;
  EXPECT_EQ(kept(Precision::kBf16, "attention.kv_down"), 2 * hidden);
  EXPECT_EQ(kept(Precision::kBf16, "attention.q_down"), 0);
  for (const char* down : {"attention.kv_down", "attention.q_down"}) {
    EXPECT_EQ(kept(Precision::kFp8Block, down), (1 + 4.0 / 128) * hidden);
  }
  plan.recompute = Recompute::kSelective;
  plan.recompute_modules = set_of(RecomputeModule::kNorm);
  EXPECT_EQ(kept(Precision::kFp8Block, "attention.kv_down"), 2 * hidden);
  EXPECT_EQ(kept(Precision::kFp8Block, "attention.q_down"), 0);
  const Block again = attention_block(Shape(model, plan, {1, 1, 128, Precision::kFp8Block}));
  for (const char* down : {"attention.kv_down", "attention.q_down"}) {
    EXPECT_EQ(step(again, down).input_gradient.front().name, std::string(down) + ".input.quantize");
    EXPECT_EQ(step(again, down).cast_for_weight_gradient, (1 + 4.0 / 128) * hidden);
  }
  plan.recompute = Recompute::kNone, model.mla->q_rank = 0;
  EXPECT_EQ(kept(Precision::kFp8Block, "attention.q_up"), (1 + 4.0 / 128) * hidden);
}

// The router and shared experts read the same hidden states. With delayed scaling the shared experts keep a cast.
TEST(Experts, SharedExpertsReadWhatTheRouterKeeps) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 1, 128, 0};
  ParallelPlan plan;
  const auto kept = [&](Precision precision) {
    return step(moe_block(Shape(model, plan, {1, 1, 128, precision})), "moe.shared.fc1").kept_for_weight_gradient;
  };
  for (const Precision precision : {Precision::kBf16, Precision::kFp8, Precision::kMxFp8})
    EXPECT_EQ(kept(precision), 0);
  plan.delayed_scaling = true;
  EXPECT_EQ(kept(Precision::kFp8), 128 * 512);
}

TEST(Experts, KernelsParametersAndBytes) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 1, 128, 0};
  const ParallelPlan plan{.tp = 2, .dp = 4, .ep = 4, .sequence_parallel = true};
  const Shape shape(model, plan, {4, 1, 128, Precision::kBf16});
  const Block block = moe_block(shape);
  const RankParameters parameters = parameters_of(block);
  EXPECT_DOUBLE_EQ(parameters.experts, 3 * 512 * 256 * 2 / 2);
  EXPECT_DOUBLE_EQ(parameters.dense, 512 + 512 * 8 + 3 * 512 * 128 / 2);
  EXPECT_THAT(names(step(block, "moe.dispatch").forward), ElementsAre("moe.permute", "moe.dispatch"));
  EXPECT_THAT(names(step(block, "moe.receive").forward), ElementsAre("moe.dispatch.all_gather", "moe.sort"));
  EXPECT_THAT(names(step(block, "moe.combine").input_gradient),
              ElementsAre("moe.unpermute.backward", "moe.unpermute.scale.backward", "moe.unpermute.weights.backward",
                          "moe.combine.backward", "moe.combine.backward.all_gather", "moe.unsort.backward"));
  ParallelPlan fused = plan;
  fused.fused_permutation = true;
  EXPECT_THAT(names(step(moe_block(Shape(model, fused, {4, 1, 128, Precision::kBf16})), "moe.combine").input_gradient),
              ElementsAre("moe.unpermute.backward", "moe.combine.backward", "moe.combine.backward.all_gather",
                          "moe.unsort.backward"));
  // Where the activation has the weights, the outputs of 128 routed copies are not kept, but a weight for each of 256
  // rows is; nothing is multiplied afterwards.
  ParallelPlan weighted = plan;
  weighted.weighted_activation = true;
  const Block sums = moe_block(Shape(model, weighted, {4, 1, 128, Precision::kBf16}));
  EXPECT_THAT(names(step(sums, "moe.combine").input_gradient),
              ElementsAre("moe.unpermute.backward", "moe.combine.backward", "moe.combine.backward.all_gather",
                          "moe.unsort.backward"));
  EXPECT_DOUBLE_EQ(after_forward(block) - after_forward(sums), 128.0 * 512 * 2 - 256.0 * 4);
  // On this rank's tokens: norm input, router input and expert outputs, the probabilities in fp32. On all rows: what
  // the experts read, three of an expert's width, three of the shared expert's.
  EXPECT_DOUBLE_EQ(after_forward(block),
                   64.0 * (512 * 2 * (2 + 2) + 8 * 4) + 128.0 * 2 * (2 * 512 + 2 * 3 * 128 + 3 * 64));
  // Each of 256 rows passes one expert; all 128 tokens the shared one; this rank's 64 the router.
  EXPECT_DOUBLE_EQ(flops_of(block).forward, 2 * (256.0 * 3 * 512 * 128 + 128.0 * 3 * 512 * 64 + 64.0 * 512 * 8));
}

// The host waits for the number of rows before it permutes tokens, or lets DeepEP send them; and without an exchange
// where it launches the product of each expert.
TEST(Experts, TheHostReadsTheNumberOfRows) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  ParallelPlan plan{.dp = 4, .ep = 4};
  const auto reads = [&] {
    std::vector<std::string> calls;
    const Block block = moe_block(Shape(model, plan, {4, 1, 128, Precision::kBf16}));
    for (const BlockStep& each : block.steps) {
      for (const auto* list : {&each.forward, &each.input_gradient, &each.weight_gradient}) {
        for (const Call& call : *list) {
          if (call.after_read) calls.push_back(call.name);
        }
      }
    }
    return calls;
  };
  EXPECT_THAT(reads(), ElementsAre("moe.permute"));
  plan.expert_dispatch = ExpertDispatch::kDeepEp;
  EXPECT_THAT(reads(), ElementsAre("moe.dispatch"));
  plan = {.dp = 4};
  EXPECT_THAT(reads(), ElementsAre("moe.permute"));
  plan.expert_products = ExpertProducts::kKernel;
  EXPECT_TRUE(reads().empty());
}

// Frozen, the router and the logits keep no input, and the shared experts keep what the router would have.
TEST(Experts, FrozenRoutersKeepNothing) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 1, 256, 0};
  const auto kept = [&](std::int64_t rank, const char* name) {
    const ParallelPlan plan{.lora_rank = rank};
    return step(moe_block(Shape(model, plan, {4, 1, 128, Precision::kBf16})), name).kept_for_weight_gradient;
  };
  EXPECT_EQ(kept(0, "moe.router"), 128 * 512 * 2);
  EXPECT_EQ(kept(0, "moe.shared.fc1"), 0);
  EXPECT_EQ(kept(8, "moe.router"), 0);
  EXPECT_EQ(kept(8, "moe.shared.fc1"), 128 * (512 + 8) * 2);
  const Block loss = loss_block(Shape(model, {.lora_rank = 8}, {4, 1, 128, Precision::kBf16}));
  EXPECT_EQ(step(loss, "loss.logits").kept_for_weight_gradient + step(loss, "loss.logits").output_gradient, 0);
}

// An adapter's factor is a kernel of its own, which a compiler joins with the sum, as it does all sums of gradients.
TEST(Adapters, ACompilerScalesAndAddsInOneKernel) {
  const Model model = llama(1, 512, 8, 8, 1024);
  const auto kernels = [&](Library norms, std::string_view end, bool separate = false) {
    ParallelPlan plan{.lora_rank = 8, .separate_adapters = separate};
    plan.norm_library = norms;
    const BlockStep fc1 = step(mlp_block(Shape(model, plan, {4, 1, 128, Precision::kBf16})), "mlp.fc1");
    const auto named = [&](const Call& call) { return call.name.ends_with(end); };
    return std::ranges::count_if(fc1.forward, named) + std::ranges::count_if(fc1.input_gradient, named);
  };
  EXPECT_EQ(kernels(Library::kDefault, ".lora.scale"), 1);
  EXPECT_EQ(kernels(Library::kCompiled, ".lora.scale"), 0);
  EXPECT_EQ(kernels(Library::kDefault, ".lora.add"), 1);
  EXPECT_EQ(kernels(Library::kCompiled, ".lora.add"), 1);
  EXPECT_EQ(kernels(Library::kDefault, ".lora.dgrad.add", true), 2);
  EXPECT_EQ(kernels(Library::kCompiled, ".lora.dgrad.add", true), 1);
}

// PEFT puts an adapter beside each nn.Linear: q_proj, k_proj, v_proj, gate_proj and up_proj of modeling_llama.py, and
// one beside c_attn of modeling_gpt2.py. Llama 3 8B: 41,943,040 trainable parameters at rank 16 on all linear layers.
TEST(Adapters, LayersThatAreOneKernelHaveOneEach) {
  const ParallelPlan fused{.lora_rank = 16}, separate{.lora_rank = 16, .separate_adapters = true};
  Model llama3 = llama(32, 4096, 32, 8, 14336);
  EXPECT_EQ(adapter_parameters(llama3, separate), 41943040);
  EXPECT_EQ(adapter_parameters(llama3, fused), 41943040 - 32 * 16 * (2 + 1) * 4096);
  Model gpt2 = llama3;
  gpt2.position = PositionKind::kLearned;
  gpt2.gated_mlp = false;
  EXPECT_EQ(adapter_parameters(gpt2, separate), adapter_parameters(gpt2, fused));
  llama3.moe = Experts{8, 2, 512, 0, 0, 0};
  EXPECT_EQ(adapter_parameters(llama3, separate), adapter_parameters(llama3, fused) + 32 * 16 * 2 * 4096);
}

// Their products are as wide as the layers; each keeps what its first product makes, the input is kept once, and a
// recomputation that stops early ends with the last one's first product.
TEST(Adapters, SeparateOnesHaveTheSizesOfTheirLayers) {
  const Model model = llama(1, 512, 8, 2, 1024);
  const ParallelPlan plan{.tp = 2, .lora_rank = 8, .separate_adapters = true};
  const BlockStep qkv = step(attention_block(Shape(model, plan, {4, 1, 128, Precision::kBf16})), "attention.qkv");
  std::vector<std::int64_t> widths;
  for (const Call& call : qkv.forward) {
    if (call.name.ends_with(".lora_b")) widths.push_back(std::get<Gemm>(std::get<Operator>(call.what).kind).n);
  }
  EXPECT_THAT(widths, ElementsAre(256, 64, 64));
  EXPECT_EQ(qkv.kept_for_weight_gradient, 128 * (512 + 3 * 8) * 2);
  EXPECT_EQ(qkv.adapters.dense, 8 * (3 * 512 + 256 + 64 + 64));
  const auto last = qkv.forward.end() - static_cast<std::ptrdiff_t>(qkv.calls_after_kept) - 1;
  EXPECT_EQ(last->name, "attention.qkv.lora_a");
  EXPECT_EQ(std::next(last)->name, "attention.qkv.lora_b");
  EXPECT_EQ(std::count_if(last, qkv.forward.end(), [](const Call& call) { return call.name.ends_with(".lora_b"); }), 1);
}

// GPT-2 under autocast drops out the bf16 output of a branch (2 + 2 bytes and a mask of 1), adds it to fp32 hidden
// states (2 + 4 + 4), and sends these to the next stage; without, all is bf16.
TEST(Autocast, BranchesHaveTheProductsFormat) {
  const Model model = gpt(2, 512, 8);
  const auto bytes = [&](WeightStorage weights, const char* block, const char* name) {
    const ParallelPlan plan{.fused_kernels = false, .weights = weights};
    const Shape shape(model, plan, {4, 1, 128, Precision::kBf16});
    const Block all = std::string(block) == "embedding" ? embedding_block(shape) : attention_block(shape);
    for (const BlockStep& each : all.steps) {
      for (const std::vector<Call>* calls : {&each.forward, &each.input_gradient}) {
        for (const Call& call : *calls) {
          if (call.name != name) continue;
          const Work work = work_of(std::get<Operator>(call.what));
          return (work.read + work.written) / (128 * 512 * B);
        }
      }
    }
    return 0.0;
  };
  const auto master = WeightStorage::kMaster, fp32 = WeightStorage::kFp32;
  EXPECT_DOUBLE_EQ(bytes(master, "attention", "attention.dropout"), 5);
  EXPECT_DOUBLE_EQ(bytes(fp32, "attention", "attention.dropout"), 5);
  EXPECT_DOUBLE_EQ(bytes(fp32, "attention", "attention.dropout.backward"), 5);
  EXPECT_DOUBLE_EQ(bytes(master, "attention", "attention.add"), 6);
  EXPECT_DOUBLE_EQ(bytes(fp32, "attention", "attention.add"), 10);
  EXPECT_DOUBLE_EQ(bytes(fp32, "embedding", "embedding.dropout"), 9);
  EXPECT_DOUBLE_EQ(bytes(fp32, "embedding", "embedding.dropout.backward"), 9);
  const ParallelPlan low{.weights = master}, wide{.weights = fp32};
  const Training training{4, 1, 128, Precision::kBf16};
  EXPECT_EQ(Shape(model, wide, training).residual_states(), 2 * Shape(model, low, training).residual_states());
  EXPECT_EQ(Shape(model, wide, training).hidden_states(), Shape(model, low, training).hidden_states());
}

// 8 experts, 2 for a token: 4 times the mean is every token once, in places of padded experts and in what a rank gets.
TEST(Experts, NoneHasMoreThanAllTokensOnce) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  const auto rows = [&](double capacity, double imbalance) {
    const ParallelPlan plan{.dp = 8, .ep = 8, .expert_imbalance = {imbalance}, .expert_capacity = {capacity}};
    const Block block = moe_block(Shape(model, plan, {8, 1, 128, Precision::kBf16}));
    return std::get<GroupedGemm>(std::get<Operator>(step(block, "moe.fc1").forward.back().what).kind).rows;
  };
  EXPECT_EQ(rows(3, 1), 3 * 128 * 2);
  EXPECT_EQ(rows(4, 1), 4 * 128 * 2);
  EXPECT_EQ(rows(5, 1), 4 * 128 * 2);
  EXPECT_EQ(rows(0, 3), 3 * 128 * 2);
  EXPECT_EQ(rows(0, 8), 4 * 128 * 2);
}

// Megatron-Core's preprocessing makes rows for the exchange; DeepEP makes them behind it. Shared experts that run
// beside an exchange are in no graph of the router.
TEST(Experts, GraphsOfPartsEndBeforeTheExchange) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 1, 256, 0};
  ParallelPlan plan{.dp = 4, .ep = 4, .expert_dispatch = ExpertDispatch::kAllToAll};
  const auto modules = [&] {
    std::map<std::string, std::optional<LayerModule>> found;
    const Shape shape(model, plan, {4, 1, 128, Precision::kBf16});
    for (const BlockStep& each : layer_block(shape, {Mixer::kAttention, FeedForward::kExperts}).steps) {
      found[each.name] = each.module;
    }
    return found;
  };
  using enum LayerModule;
  auto found = modules();
  EXPECT_EQ(found.at("attention.qkv"), kAttention);
  for (const char* name : {"moe.norm", "moe.router", "moe.top_k", "moe.shared.fc1"}) {
    EXPECT_EQ(found.at(name), kMoeRouter) << name;
  }
  EXPECT_EQ(found.at("moe.dispatch"), kMoePreprocess);
  for (const char* name : {"moe.receive", "moe.fc1", "moe.combine", "moe.shared.add"}) {
    EXPECT_EQ(found.at(name), kMoe) << name;
  }
  plan.overlap_ep = true;
  EXPECT_EQ(modules().at("moe.shared.fc1"), kMoe);
  plan.expert_dispatch = ExpertDispatch::kDeepEp;
  EXPECT_EQ(modules().at("moe.dispatch"), kMoe);
}

// transformers' grouped_mm: 256 rows of 512 are gathered and masked, and so is what both products leave; the weighted
// rows are fp32. In a loop over 8 experts, the gradient of the whole tensor is filled 8 times and added 7 times.
TEST(Experts, TransformersWritesThemOut) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  ParallelPlan plan;
  plan.norm_library = Library::kEager, plan.expert_products = ExpertProducts::kKernel;
  plan.fused_kernels = false, plan.written_out = true;
  const auto block = [&] { return moe_block(Shape(model, plan, {1, 1, 128, Precision::kBf16})); };
  const Block kernel = block();
  const double rows = 256.0 * 512;
  EXPECT_THAT(names(step(kernel, "moe.dispatch").forward), ElementsAre("moe.permute", "moe.permute.mask"));
  EXPECT_DOUBLE_EQ(traffic(step(kernel, "moe.dispatch").forward), rows * (2 + 2) * 2);
  EXPECT_THAT(names(step(kernel, "moe.fc1").forward), ElementsAre("moe.fc1", "moe.fc1.mask"));
  EXPECT_DOUBLE_EQ(traffic(step(kernel, "moe.combine").forward),
                   rows * ((2 + 4) + (4 + 4) + (4 + 4.0 / 2)) + 128.0 * 512 * (4 + 2));
  const auto by_element = [](const Call& call) {
    return std::get<Elementwise>(std::get<Operator>(call.what).kind).by_element;
  };
  EXPECT_TRUE(by_element(step(kernel, "moe.activation").forward.front())) << "gate and value are views of one tensor";
  EXPECT_THAT(names(step(kernel, "moe.fc1").weight_gradient), ElementsAre("moe.fc1.wgrad"));
  plan.expert_products = ExpertProducts::kLoop;
  const Block loop = block();
  const std::vector<Call>& gradient = step(loop, "moe.fc1").weight_gradient;
  EXPECT_THAT(names(gradient), ElementsAre("moe.fc1.wgrad", "moe.fc1.wgrad.fill", "moe.fc1.wgrad.add"));
  const double weights = 8 * 512.0 * 512;
  EXPECT_DOUBLE_EQ(traffic(gradient[1]), 8 * weights * 2);
  EXPECT_DOUBLE_EQ(traffic(gradient[2]), 7 * weights * 6);
  EXPECT_TRUE(by_element(step(loop, "moe.activation").forward.front()));
  // Gradients are fp32 under autocast. Of one expert there is nothing to add.
  plan.weights = WeightStorage::kFp32;
  EXPECT_DOUBLE_EQ(traffic(step(block(), "moe.fc1").weight_gradient[2]), 8 * weights * 4);
  plan.weights = WeightStorage::kLow, model.moe->experts = model.moe->top_k = 1;
  EXPECT_THAT(names(step(block(), "moe.fc1").weight_gradient), ElementsAre("moe.fc1.wgrad", "moe.fc1.wgrad.fill"));
  model.moe->experts = 8, plan.written_out = false;
  EXPECT_EQ(step(block(), "moe.fc1").weight_gradient.size(), 1U);
}

// Tensor-parallel ranks bring rows together, which no class of transformers does.
TEST(Experts, WrittenOutOnOneGpuAlone) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  ParallelPlan plan{.tp = 2, .sequence_parallel = true};
  plan.expert_products = ExpertProducts::kKernel, plan.fused_kernels = false, plan.written_out = true;
  const auto dispatch = [&] {
    return names(step(moe_block(Shape(model, plan, {1, 1, 128, Precision::kBf16})), "moe.dispatch").forward);
  };
  EXPECT_THAT(dispatch(), testing::Not(testing::Contains("moe.permute.mask")));
  plan = {.expert_products = ExpertProducts::kKernel, .weighted_activation = true};
  plan.fused_kernels = false, plan.written_out = true;
  EXPECT_THAT(dispatch(), ElementsAre("moe.permute"));
}

// All tokens of the ranks come together, and the sums of all tokens go back: of 4 ranks, and of the tensor-parallel
// ranks of each expert, which have tokens of their own. Rows are made of those that the rank's experts process.
TEST(Experts, AnAllGatherBringsAllTokens) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{16, 4, 256, 0, 0, 0};
  const Training training{4, 1, 128, Precision::kBf16};
  ParallelPlan plan{
      .tp = 2, .dp = 4, .ep = 4, .expert_dispatch = ExpertDispatch::kAllGather, .sequence_parallel = true};
  const auto moved = [&](const std::vector<Call>& calls) {
    std::vector<std::pair<CollectiveKind, double>> all;
    for (const Call& call : calls) {
      const auto* communication = std::get_if<Communication>(&call.what);
      if (communication != nullptr) all.emplace_back(communication->kind, communication->size / B);
    }
    return all;
  };
  const double of_experts = 4 * 64 * 512 * 2, of_all = 2 * of_experts;
  const auto gathered =
      ElementsAre(std::pair(CollectiveKind::kAllGather, of_experts), std::pair(CollectiveKind::kAllGather, of_all));
  const auto scattered = ElementsAre(std::pair(CollectiveKind::kReduceScatter, of_all),
                                     std::pair(CollectiveKind::kReduceScatter, of_experts));
  const Block block = moe_block(Shape(model, plan, training));
  EXPECT_THAT(moved(step(block, "moe.dispatch").forward), gathered);
  EXPECT_THAT(moved(step(block, "moe.combine").forward), scattered);
  EXPECT_THAT(moved(step(block, "moe.combine").input_gradient), gathered);
  EXPECT_THAT(moved(step(block, "moe.receive").input_gradient), scattered);
  EXPECT_THAT(names(step(block, "moe.receive").forward), ElementsAre("moe.permute"));
  EXPECT_TRUE(step(block, "moe.receive").forward.front().after_read);
  // All tokens are there while rows are made of them, or while their sums wait for their reduction; beside them the
  // rows that experts have made, or rows' gradients.
  const double of_rows = step(block, "moe.fc1").kept_for_weight_gradient;
  EXPECT_EQ(step(block, "moe.receive").transient_forward, of_all);
  EXPECT_EQ(step(block, "moe.combine").transient_forward, of_all + of_rows);
  for (const char* name : {"moe.receive", "moe.combine"}) {
    EXPECT_EQ(step(block, name).transient_backward, of_all + of_rows);
  }
  // As many rows of experts as by an all-to-all.
  const auto rows = [&](ExpertDispatch how) {
    plan.expert_dispatch = how;
    const Block each = moe_block(Shape(model, plan, training));
    return std::get<GroupedGemm>(std::get<Operator>(step(each, "moe.fc1").forward.front().what).kind).rows;
  };
  EXPECT_EQ(rows(ExpertDispatch::kAllGather), rows(ExpertDispatch::kAllToAll));
}

// A copy of a token for each rank travels, not one for each expert; rows are made where the experts are.
TEST(Experts, DeepEpSendsATokenOnceToARank) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{.experts = 16, .top_k = 4, .expert_ffn = 256, .groups = 4, .top_groups = 2};
  const Training training{4, 1, 128, Precision::kBf16};
  ParallelPlan plan{.dp = 4, .ep = 4};
  const Block by_expert = moe_block(Shape(model, plan, training));
  plan.expert_dispatch = ExpertDispatch::kDeepEp;
  const Block block = moe_block(Shape(model, plan, training));
  EXPECT_THAT(names(step(block, "moe.dispatch").forward), ElementsAre("moe.dispatch"));
  EXPECT_THAT(names(step(block, "moe.receive").forward), ElementsAre("moe.permute"));
  EXPECT_THAT(names(step(block, "moe.receive").input_gradient),
              ElementsAre("moe.permute.backward", "moe.dispatch.backward"));
  EXPECT_THAT(names(step(block, "moe.combine").forward),
              ElementsAre("moe.unpermute.scale", "moe.unpermute", "moe.combine"));
  EXPECT_THAT(names(step(block, "moe.combine").input_gradient),
              ElementsAre("moe.combine.backward", "moe.unpermute.backward", "moe.unpermute.scale.backward",
                          "moe.unpermute.weights.backward"));
  // 4 of the 8 experts of two ranks: a rank is missed by 1 of 70 choices. Without DeepEP, 4 copies.
  const auto sent = [&](const Block& of) {
    return std::get<Communication>(step(of, "moe.dispatch").forward.back().what);
  };
  EXPECT_NEAR(sent(block).size / B, 128.0 * 512 * 2 * 2 * (1 - 1.0 / 70), 1e-6);
  EXPECT_DOUBLE_EQ(sent(by_expert).size / B, 128.0 * 512 * 2 * 4);
  EXPECT_EQ(sent(block).routing, (Routing{16, 4, 4, 2}));
  EXPECT_EQ(sent(by_expert).routing, Routing{});
  EXPECT_DOUBLE_EQ(flops_of(block).forward, flops_of(by_expert).forward);
  EXPECT_DOUBLE_EQ(after_forward(block), after_forward(by_expert));

  plan.tp = 2;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("use plan/etp=1"));
  plan.tp = 1;
  model.moe->top_groups = 0;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("top groups that hold those of a token"));
}

// DeepSeek-V3 (arXiv 2412.19437, s.3.3.3): tokens are cast before they are sent, gradients of experts' outputs, too;
// what comes from experts and gradients of tokens stay in bf16. Experts cast what came along the other axis.
TEST(Experts, RowsTravelInTheFormatOfProducts) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{.experts = 16, .top_k = 4, .expert_ffn = 256};
  const Training training{4, 1, 128, Precision::kFp8Block};
  ParallelPlan plan{.dp = 4, .ep = 4, .expert_dispatch = ExpertDispatch::kDeepEp, .weighted_activation = true};
  const auto block = [&] { return moe_block(Shape(model, plan, training)); };
  const auto size = [](const std::vector<Call>& calls) {
    double all = 0;
    for (const Call& call : calls) {
      if (const auto* sent = std::get_if<Communication>(&call.what)) all += sent->size / B;
    }
    return all;
  };
  const auto sizes = [&](const Block& of) {
    return std::array{size(step(of, "moe.dispatch").forward), size(step(of, "moe.combine").forward),
                      size(step(of, "moe.combine").input_gradient), size(step(of, "moe.receive").input_gradient)};
  };
  const Block before = block();
  plan.fp8_dispatch = true;
  const Block after = block();
  constexpr double kShare = (1 + 4.0 / 128) / 2;
  for (const std::size_t i : {0u, 2u}) EXPECT_DOUBLE_EQ(sizes(after)[i], kShare * sizes(before)[i]);
  for (const std::size_t i : {1u, 3u}) EXPECT_DOUBLE_EQ(sizes(after)[i], sizes(before)[i]);
  EXPECT_THAT(names(step(after, "moe.dispatch").forward), ElementsAre("moe.dispatch.quantize", "moe.dispatch"));
  EXPECT_TRUE(step(after, "moe.dispatch").forward.back().after_read);
  EXPECT_THAT(names(step(after, "moe.combine").input_gradient),
              ElementsAre("moe.combine.backward.quantize", "moe.combine.backward", "moe.unpermute.backward"));
  EXPECT_THAT(names(step(after, "moe.fc1").forward), ElementsAre("moe.fc1"));
  EXPECT_THAT(names(step(after, "moe.fc1").input_gradient),
              ElementsAre("moe.fc1.input.quantize", "moe.fc1.grad.quantize", "moe.fc1.dgrad"));
  EXPECT_THAT(names(step(after, "moe.fc2").input_gradient), ElementsAre("moe.fc2.grad.quantize", "moe.fc2.dgrad"));
  const auto work = [&](const char* name) {
    return work_of(std::get<Operator>(step(after, name).input_gradient.front().what));
  };
  const double rows = 4 * 128.0;  // four experts a token
  for (const char* name : {"moe.fc1", "moe.fc2"}) {
    EXPECT_DOUBLE_EQ(work(name).read / B, 2 * kShare * rows * 512);
    EXPECT_DOUBLE_EQ(work(name).written / B, 2 * kShare * rows * 512);
  }
  EXPECT_DOUBLE_EQ(after_forward(after), after_forward(before));
  // Products in 16 bits read nothing else.
  EXPECT_EQ(sizes(moe_block(Shape(model, plan, {4, 1, 128, Precision::kBf16}))), sizes(before));
}

// Inputs of SwiGLU in 8 bits with a factor for 128, two of an expert's width; attention's output in 12 bits.
TEST(Activations, AreKeptInFewerBits) {
  Model model = llama(1, 512, 8, 8, 1024);
  ParallelPlan plan;
  const auto kept = [&](Precision precision, const char* name) {
    const BlockStep found = step(layer_block(Shape(model, plan, {4, 1, 128, precision}), LayerKind{}), name);
    return found.kept_for_input_gradient + found.kept_for_weight_gradient;
  };
  constexpr double kFactors = 4.0 / 128;
  EXPECT_EQ(kept(Precision::kFp8Block, "mlp.activation"), 128 * 2 * 1024 * 2);
  EXPECT_EQ(kept(Precision::kFp8Block, "attention.proj"), 128 * 512 * 2);
  plan.fp8_activations = true;
  EXPECT_DOUBLE_EQ(kept(Precision::kFp8Block, "mlp.activation"), 128 * 2 * 1024 * (1 + kFactors));
  EXPECT_DOUBLE_EQ(kept(Precision::kFp8Block, "attention.proj"), 128 * 512 * (1.5 + kFactors));
  EXPECT_EQ(kept(Precision::kBf16, "mlp.activation"), 128 * 2 * 1024 * 2);
  EXPECT_EQ(kept(Precision::kBf16, "attention.proj"), 128 * 512 * 2);
  // The kernels write and read that.
  const Block block = layer_block(Shape(model, plan, {4, 1, 128, Precision::kFp8Block}), LayerKind{});
  const auto work = [](const Call& call) { return work_of(std::get<Operator>(call.what)); };
  const BlockStep& activation = step(block, "mlp.activation");
  EXPECT_DOUBLE_EQ(work(activation.forward[0]).written / B, 128 * 1024 * (2 + 2 * (1 + kFactors)));
  EXPECT_DOUBLE_EQ(work(activation.input_gradient[0]).read / B, 128 * 1024 * (2 + 2 * (1 + kFactors)));
  const BlockStep& projection = step(block, "attention.proj");
  EXPECT_DOUBLE_EQ(work(projection.forward[0]).written / B, 128 * 512 * (1 + kFactors + 1.5 + kFactors));
  EXPECT_DOUBLE_EQ(work(projection.input_gradient[0]).read / B, 128 * 512 * (1.5 + kFactors));
  EXPECT_DOUBLE_EQ(work(projection.input_gradient[0]).written / B, 128 * 512 * (1 + kFactors + 2));
}

// torchao keeps inputs of products in bf16 and casts them once more in the backward pass.
TEST(Activations, InputsOfProductsMayBeKeptAsTheyCome) {
  const Model model = llama(1, 512, 8, 8, 1024);
  ParallelPlan plan;
  const auto block = [&](Precision precision) {
    return layer_block(Shape(model, plan, {4, 1, 128, precision}), LayerKind{});
  };
  const auto kept = [&](Precision precision) {
    return kept_bytes(block(precision), Recompute::kNone, 0).after_forward;
  };
  const double in_bf16 = kept(Precision::kBf16), as_casts = kept(Precision::kFp8);
  EXPECT_LT(as_casts, in_bf16);
  plan.fp8_original_inputs = true;
  EXPECT_EQ(kept(Precision::kFp8), in_bf16);
  EXPECT_EQ(kept(Precision::kBf16), in_bf16);
  const BlockStep projection = step(block(Precision::kFp8), "mlp.fc2");
  EXPECT_TRUE(std::any_of(projection.input_gradient.begin(), projection.input_gradient.end(),
                          [](const Call& call) { return call.name.find("input") != std::string::npos; }));
  plan.delayed_scaling = true;  // factors of earlier passes hold for one cast alone
  EXPECT_EQ(kept(Precision::kFp8), [&] {
    plan.fp8_original_inputs = false;
    return kept(Precision::kFp8);
  }());
}

std::int64_t rows(const Block& of) {
  return std::get<GroupedGemm>(std::get<Operator>(step(of, "moe.fc2").forward.back().what).kind).rows;
}

Communication sent(const Block& of) { return std::get<Communication>(step(of, "moe.dispatch").forward.back().what); }

// The busiest rank computes and keeps more rows; what a rank sends stays the same, and its port is the busiest.
TEST(Experts, TheBusiestRankDecides) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{.experts = 16, .top_k = 4, .expert_ffn = 256};
  const Training training{4, 1, 128, Precision::kBf16};
  ParallelPlan plan{.dp = 4, .ep = 4};
  const auto made = [&] { return moe_block(Shape(model, plan, training)); };
  const Block even = made();
  plan.expert_imbalance = {1.5};
  const Block uneven = made();
  EXPECT_EQ(rows(even), 128 * 4);
  EXPECT_EQ(rows(uneven), 128 * 6);
  EXPECT_EQ(sent(uneven).size, sent(even).size);
  EXPECT_EQ(sent(even).imbalance, 1);
  EXPECT_EQ(sent(uneven).imbalance, 1.5);
  // The input of both products, and gate and up.
  EXPECT_DOUBLE_EQ(after_forward(uneven) - after_forward(even), 128.0 * 2 * 2 * (512 + 3 * 256));
  // No rank has more than all tokens, and one rank has them all.
  plan.expert_imbalance = {100};
  EXPECT_EQ(rows(made()), 128 * 4 * 4);
  plan.ep = 1;
  EXPECT_EQ(made().steps.size(), moe_block(Shape(model, {.dp = 4}, training)).steps.size());
  EXPECT_EQ(rows(made()), 128 * 4);
}

// 128 tokens of 4 experts each are 32 rows of each of 16 experts, and 40 places with a factor of 1.25. All are sent,
// computed and kept, the same on all ranks, and the host knows them beforehand.
TEST(Experts, PaddedToACapacity) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{.experts = 16, .top_k = 4, .expert_ffn = 256};
  const Training training{4, 1, 128, Precision::kBf16};
  ParallelPlan plan{.dp = 4, .ep = 4};
  const auto made = [&] { return moe_block(Shape(model, plan, training)); };
  const auto reads = [](const Block& of) {
    return std::any_of(of.steps.begin(), of.steps.end(), [](const BlockStep& each) {
      return std::any_of(each.forward.begin(), each.forward.end(), [](const Call& call) { return call.after_read; });
    });
  };
  const Block needed = made();
  plan.expert_capacity = {1.25};
  plan.expert_imbalance = {2};
  const Block padded = made();
  EXPECT_EQ(rows(needed), 16 * 32);
  EXPECT_EQ(rows(padded), 16 * 40);
  EXPECT_DOUBLE_EQ(sent(padded).size / B, 16 * 40 * 512 * 2);
  EXPECT_EQ(sent(padded).imbalance, 1);
  EXPECT_TRUE(reads(needed));
  EXPECT_FALSE(reads(padded));
  // The input of both products, gate and up, and the outputs.
  EXPECT_DOUBLE_EQ(after_forward(padded) - after_forward(needed), 16.0 * 8 * 2 * (512 + 3 * 256 + 512));
  // Places are whole: 32.16 are 33. Of two tensor-parallel ranks, each has 16 rows for an expert, and 16.08 are 17.
  plan.expert_capacity = {1.005};
  EXPECT_EQ(rows(made()), 16 * 33);
  plan.tp = 2, plan.sequence_parallel = true;
  EXPECT_EQ(rows(made()), 16 * 2 * 17);

  plan = {.dp = 4, .ep = 4, .expert_dispatch = ExpertDispatch::kDeepEp, .expert_capacity = {1}};
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("use plan/expert_dispatch=a2a"));
}

TEST(EmbeddingAndLoss, ParametersAndBytes) {
  Model model = gpt(2, 512, 8);
  model.embedding_norm = true;
  const Training training{1, 1, 128, Precision::kBf16};
  ParallelPlan plan{.tp = 2, .sequence_parallel = true};
  const double vocabulary = 25216;  // 50257 padded to a multiple of 256, over 2 ranks
  const auto embedding = [&] { return embedding_block(Shape(model, plan, training)); };
  const auto loss = [&] { return loss_block(Shape(model, plan, training)); };
  EXPECT_DOUBLE_EQ(parameters_of(embedding()).dense, (vocabulary + 2048 + 2) * 512);
  EXPECT_DOUBLE_EQ(after_forward(embedding()), 64 * 512);  // the dropout's mask
  EXPECT_DOUBLE_EQ(parameters_of(loss()).dense, 2 * 512);
  plan.pp = 2;
  EXPECT_DOUBLE_EQ(parameters_of(loss()).dense, (vocabulary + 2) * 512);
  EXPECT_DOUBLE_EQ(after_forward(loss(), Recompute::kFull), 2 * 64 * 512 * 2 + 4 * 128 * vocabulary);
  EXPECT_DOUBLE_EQ(flops_of(loss()).forward, 2 * 128.0 * 512 * vocabulary);
  EXPECT_THAT(names(loss().steps.back().forward), ElementsAre("loss.cross_entropy", "loss.max.all_reduce",
                                                              "loss.target.all_reduce", "loss.sum.all_reduce"));
}

// functional.cross_entropy of bf16 logits: they are cast, log_softmax and its backward run in fp32. At their peak 2
// bytes a logit and three fp32 tensors; an evaluation has two.
TEST(EmbeddingAndLoss, EagerCrossEntropyRunsInFp32) {
  const Model model = gpt(2, 512, 8);
  Training training{1, 1, 128, Precision::kBf16};
  ParallelPlan plan{.fused_kernels = false};
  const auto last = [&] { return loss_block(Shape(model, plan, training)).steps.back(); };
  const double logits = 128.0 * 50304;  // 50257 padded to a multiple of 128
  const auto moved = [](const std::vector<Call>& calls) {
    Bytes bytes;
    for (const Call& call : calls) {
      const Work work = work_of(std::get<Operator>(call.what));
      bytes += work.read + work.written;
    }
    return bytes / B;
  };
  // Cast 2 + 4, log_softmax 4 + 4; zeros 4, log_softmax's backward 8 + 4, cast 4 + 2 bytes.
  EXPECT_NEAR(moved(last().forward), 14 * logits, 1e-3 * logits);
  EXPECT_NEAR(moved(last().input_gradient), 22 * logits, 1e-3 * logits);
  EXPECT_DOUBLE_EQ(last().kept_for_input_gradient, 14 * logits);
  plan.passes = Passes::kForward;
  EXPECT_DOUBLE_EQ(last().kept_for_input_gradient, 10 * logits);
  training.precision = Precision::kFp32;  // nothing to cast
  EXPECT_NEAR(moved(last().forward), 8 * logits, 1e-3 * logits);
  EXPECT_NEAR(moved(last().input_gradient), 16 * logits, 1e-3 * logits);
}

// A named library's loss runs whether or not the layers' kernels are fused; FlashAttention's keeps the logits and their
// gradient, in their own format.
TEST(EmbeddingAndLoss, ALossHasALibraryOfItsOwn) {
  const Model model = gpt(2, 512, 8);
  const Training training{1, 1, 128, Precision::kBf16};
  ParallelPlan plan{.loss_library = Library::kFlash2, .fused_kernels = false};
  const auto last = [&] { return loss_block(Shape(model, plan, training)).steps.back(); };
  const double logits = 128.0 * 50304;
  EXPECT_THAT(names(last().forward), ElementsAre("loss.cross_entropy"));
  EXPECT_EQ(std::get<CrossEntropy>(std::get<Operator>(last().forward[0].what).kind).library, Library::kFlash2);
  EXPECT_DOUBLE_EQ(last().kept_for_input_gradient, 4 * logits);
  plan.passes = Passes::kForward;
  EXPECT_DOUBLE_EQ(last().kept_for_input_gradient, 2 * logits);
  plan = {.loss_library = Library::kEager};
  EXPECT_DOUBLE_EQ(last().kept_for_input_gradient, 14 * logits);
}

// Two cross-entropies for the log, without a backward pass.
TEST(EmbeddingAndLoss, MetricsAreComputedBesideTheLoss) {
  const Model model = gpt(2, 512, 8);
  const ParallelPlan plan{.loss_metrics = 2};
  const Block block = loss_block(Shape(model, plan, Training{1, 1, 128, Precision::kBf16}));
  const BlockStep& metrics = block.steps.back();
  EXPECT_THAT(names(metrics.forward), ElementsAre("loss.metrics.cast", "loss.metrics.log_softmax", "loss.metrics.nll",
                                                  "loss.metrics.cast", "loss.metrics.log_softmax", "loss.metrics.nll"));
  EXPECT_TRUE(metrics.input_gradient.empty());
  EXPECT_EQ(metrics.kept_for_input_gradient, 0);
  EXPECT_EQ(block.logged, 10 * 128.0 * 50304);
}

// What recomputation repeats where it stops at the last value that the backward pass reads.
std::vector<std::string> repeated(const Block& block) {
  const std::vector<std::size_t> calls = calls_until_kept(block);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < block.steps.size(); ++i) {
    for (std::size_t j = 0; j < calls[i]; ++j) all.push_back(block.steps[i].forward[j].name);
  }
  return all;
}

// A product keeps its input, dropout its mask, attention its result.
TEST_F(GptLayer, TheLastProductIsOnlyItsOutput) {
  plan.flash_attention = true;
  EXPECT_EQ(repeated(layer()).back(), "mlp.dropout_add");
  model.dropout = false;
  EXPECT_EQ(repeated(layer()).back(), "mlp.activation");
  EXPECT_EQ(repeated(attention_block(Shape(model, plan, training))).back(), "attention.flash");
  model.norm_placement = NormPlacement::kPost;  // a norm keeps what it reads
  EXPECT_EQ(repeated(layer()).back(), "mlp.post_norm");
}

TEST_F(GptLayer, CommunicationOfTheLastProductIsNotRepeated) {
  model.dropout = false, plan.tp = 4, plan.sequence_parallel = true;
  for (const bool overlap : {false, true}) {
    plan.overlap_tp = overlap;
    EXPECT_EQ(repeated(layer()).back(), "mlp.activation");
  }
  plan.lora_rank = 16;  // the adapter's second product reads the result of the first
  EXPECT_EQ(repeated(layer()).back(), "mlp.fc2.lora_a");
}

TEST(Experts, OutputsAreKeptForTheRoutersGradient) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  const auto last = [&](ExpertDispatch dispatch) {
    const ParallelPlan plan{.dp = 4, .ep = 4, .expert_dispatch = dispatch};
    return repeated(moe_block(Shape(model, plan, {4, 1, 128, Precision::kBf16}))).back();
  };
  EXPECT_EQ(last(ExpertDispatch::kAllToAll), "moe.combine");
  EXPECT_EQ(last(ExpertDispatch::kDeepEp), "moe.combine");
  model.moe->shared_experts = 1, model.moe->shared_expert_ffn = 128;
  EXPECT_EQ(last(ExpertDispatch::kAllToAll), "moe.shared.activation");
}

// Narayanan et al. 2021, eq. 3, with full recomputation: 96 B s l h^2 (1 + s / 6h + V / 16lh). It counts no biases.
TEST(StepFlops, AreThoseOfTheLiteratureWithoutBiases) {
  const Model model = gpt(96, 12288, 96);
  const double B = 1536, s = 2048, l = 96, h = 12288, V = 50257;
  const double layers = 96 * B * s * l * h * h * (1 + s / (6 * h)), logits = 6 * B * s * h * V;
  const StepFlops flops = step_flops(model, {.recompute = Recompute::kFull}, {1536, 1, 2048, Precision::kBf16});
  EXPECT_NEAR(flops.hardware / FLOP / (layers + logits), 1, 1e-12);
  EXPECT_NEAR(flops.model / FLOP / (layers * 3 / 4 + logits), 1, 1e-12);
  // Of 24 B s h^2 a layer, the last product is 8.
  Model no_dropout = model;
  no_dropout.dropout = false;
  const StepFlops less = step_flops(no_dropout, {.recompute = Recompute::kFull, .recompute_early_stop = true},
                                    {1536, 1, 2048, Precision::kBf16});
  EXPECT_NEAR((flops.hardware - less.hardware) / FLOP / (8 * B * s * l * h * h), 1, 1e-12);
  // A causal mask hides s (s - 1) / 2 of s^2 scores: of 12 B s^2 l h, 6 B s (s - 1) l h.
  EXPECT_NEAR((flops.model - flops.causal) / FLOP / (6 * B * s * (s - 1) * l * h), 1, 1e-12);
}

// Which products run again depends on their format: where the first layer and the last three are in 16 bits, those of a
// model in 16 bits; where two of four are, half of these and half of those in 8 bits.
TEST(StepFlops, OfOperatorsThatRunAgainFollowTheFormatOfTheirLayer) {
  const auto again = [](Precision precision, std::int64_t first, std::int64_t last) {
    const ParallelPlan plan{.recompute = Recompute::kOperators, .bf16_first_layers = first, .bf16_last_layers = last};
    const StepFlops flops = step_flops(llama(4, 512, 8, 2, 1536), plan, {1, 1, 1024, precision});
    return (flops.hardware - flops.model) / FLOP;
  };
  const double in_16_bits = again(Precision::kBf16, 0, 0), in_8_bits = again(Precision::kFp8, 0, 0);
  ASSERT_LT(in_16_bits, in_8_bits);
  EXPECT_NEAR(again(Precision::kFp8, 1, 3) / in_16_bits, 1, 1e-12);
  EXPECT_NEAR(again(Precision::kFp8, 1, 1) / ((in_16_bits + in_8_bits) / 2), 1, 1e-12);
}

// Qwen3 (arXiv 2505.09388, s.2): a norm of each head's queries and of each head's keys, whose weights all heads share.
TEST(Attention, QueriesAndKeysAreNormalized) {
  Model model = llama(1, 512, 8, 2, 1024);
  const ParallelPlan plan{.tp = 2};
  const Training training{1, 1, 128, Precision::kBf16};
  const double plain = parameters_of(attention_block(Shape(model, plan, training))).dense;
  model.qk_norm = QueryKeyNorm::kHead;
  const Block block = attention_block(Shape(model, plan, training));
  EXPECT_DOUBLE_EQ(parameters_of(block).dense - plain, 2 * 64);
  EXPECT_THAT(names(step(block, "attention.qk_norm").forward), ElementsAre("attention.q_norm", "attention.k_norm"));
  const auto& queries = std::get<Operator>(step(block, "attention.qk_norm").forward[0].what);
  EXPECT_EQ(std::get<Normalization>(queries.kind).rows, 128 * 4);
  EXPECT_EQ(std::get<Normalization>(queries.kind).columns, 64);
  EXPECT_DOUBLE_EQ(step(block, "attention.qk_norm").kept_for_input_gradient, 128 * (4 + 1) * 64 * 2);
  // Written out, all kernels of both: 36 bytes an element forward, as of other norms.
  const ParallelPlan eager{.tp = 2, .norm_library = Library::kEager, .written_out = true};
  const Block written_out = attention_block(Shape(model, eager, training));
  EXPECT_DOUBLE_EQ(traffic(step(written_out, "attention.qk_norm").forward),
                   (6 + 8 + 4 + 8 + 6 + 4) * 128 * (4 + 1) * 64);
  EXPECT_EQ(step(written_out, "attention.qk_norm").input_gradient.size(), 2U * 13);
  // OLMo 2 (arXiv 2501.00656, s.3.2): all heads of a token in one norm, whose weights are split with them.
  model.qk_norm = QueryKeyNorm::kToken;
  EXPECT_DOUBLE_EQ(parameters_of(attention_block(Shape(model, plan, training))).dense - plain, (4 + 1) * 64);
  model.qk_norm = QueryKeyNorm::kPlain;
  EXPECT_DOUBLE_EQ(parameters_of(attention_block(Shape(model, plan, training))).dense, plain);
}

TEST(Norms, StandBeforeOrBehindABranchOrBoth) {
  Model model = llama(1, 512, 8, 8, 1024);
  const ParallelPlan plan;
  const Training training{1, 1, 128, Precision::kBf16};
  const auto norms = [&](NormPlacement placement) {
    model.norm_placement = placement;
    std::vector<std::string> found;
    for (const BlockStep& step : layer_block(Shape(model, plan, training), LayerKind{}).steps) {
      if (step.name.ends_with("norm")) found.push_back(step.name);
    }
    return found;
  };
  EXPECT_THAT(norms(NormPlacement::kPre), ElementsAre("attention.norm", "mlp.norm"));
  EXPECT_THAT(norms(NormPlacement::kSandwich),
              ElementsAre("attention.norm", "attention.post_norm", "mlp.norm", "mlp.post_norm"));
  EXPECT_THAT(norms(NormPlacement::kPost), ElementsAre("attention.post_norm", "mlp.post_norm"));
}

// GPT-J: one norm of h; attention and MLP read it and are reduced and added once.
TEST(ParallelBranches, ShareTheirInputAndTheirReduction) {
  Model model = llama(1, 512, 8, 8, 1024);
  const Training training{1, 1, 128, Precision::kBf16};
  for (const bool sequence_parallel : {false, true}) {
    const ParallelPlan plan{.tp = 4, .sequence_parallel = sequence_parallel};
    const auto count = [&](Branches branches) {
      model.branches = branches;
      std::map<std::string, int> counts;
      for (const BlockStep& step : layer_block(Shape(model, plan, training), LayerKind{}).steps) {
        for (const auto* calls : {&step.forward, &step.input_gradient, &step.weight_gradient}) {
          for (const Call& call : *calls) {
            if (std::holds_alternative<Communication>(call.what)) ++counts["communications"];
          }
        }
        if (step.name.ends_with("norm")) ++counts["norms"];
        if (step.name.ends_with("residual")) ++counts["residuals"];
      }
      return counts;
    };
    auto sequential = count(Branches::kSequential), parallel = count(Branches::kParallel),
         two_norms = count(Branches::kParallelTwoNorms);
    EXPECT_EQ(2 * parallel["communications"], sequential["communications"]);
    EXPECT_LT(two_norms["communications"], sequential["communications"]);
    EXPECT_EQ(sequential["norms"], 2);
    EXPECT_EQ(parallel["norms"], 1);
    EXPECT_EQ(two_norms["norms"], 2);
    EXPECT_EQ(parallel["residuals"], 1);
  }
}

// Qwen1.5-MoE: one vector of the hidden size weights the shared expert's output.
TEST(Experts, SharedExpertsHaveAGate) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 1, 128, 0};
  const ParallelPlan plan{.tp = 2};
  const Training training{1, 1, 128, Precision::kBf16};
  const double plain = parameters_of(moe_block(Shape(model, plan, training))).dense;
  model.moe->shared_gate = true;
  EXPECT_DOUBLE_EQ(parameters_of(moe_block(Shape(model, plan, training))).dense - plain, 512);
}

// Llama 4: each chunk is a causal sequence of its own, with as many products as a window of its length.
TEST(Attention, ChunksAreSequences) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.sliding_window = 128;
  model.chunked_attention = true;
  const ParallelPlan plan;
  const Block block = attention_block(Shape(model, plan, {1, 2, 512, Precision::kBf16}));
  const auto& flash = std::get<Attention>(std::get<Operator>(step(block, "attention.core").forward[0].what).kind);
  EXPECT_EQ(flash.batch, 2 * 4);
  EXPECT_EQ(flash.query_length, 128);
  EXPECT_EQ(flash.window, 0);
  const double chunks = flops_of(block).forward;
  model.chunked_attention = false;
  EXPECT_DOUBLE_EQ(flops_of(attention_block(Shape(model, plan, {1, 2, 512, Precision::kBf16}))).forward, chunks);
}

// Layers with a window have heads of their own; values may be narrower than keys, or the keys themselves.
TEST(Attention, LayersHaveTheHeadsOfTheirKind) {
  Model model = llama(2, 512, 8, 4, 1024);
  model.head_dim = 128, model.v_head_dim = 64;
  model.sliding_window = 128;
  model.full_attention_layers = {.every = 2, .listed = {}};
  model.windowed_heads = AttentionHeads{16, 8, 64, 0, true};
  const ParallelPlan plan{.tp = 2};
  const Shape shape(model, plan, {1, 1, 512, Precision::kBf16});
  const auto of = [&](std::int64_t layer) { return layer_block(shape, layer_kind(model, layer)); };
  const auto core = [&](const Block& block) {
    return std::get<Attention>(std::get<Operator>(step(block, "attention.core").forward[0].what).kind);
  };
  const Block windowed = of(0), full = of(1);
  EXPECT_EQ(std::tuple(core(windowed).heads, core(windowed).kv_heads, core(windowed).head_dim), std::tuple(8, 4, 64));
  EXPECT_EQ(core(windowed).value_dim, 64);
  EXPECT_EQ(core(windowed).window, 128);
  EXPECT_EQ(std::tuple(core(full).heads, core(full).kv_heads, core(full).head_dim), std::tuple(4, 2, 128));
  EXPECT_EQ(core(full).value_dim, 64);
  EXPECT_EQ(core(full).window, 0);
  // Of a rank: queries, keys and values of the full layer; queries and keys of the other.
  EXPECT_EQ(step(full, "attention.qkv").parameters.dense, 512 * (4 * 128 + 2 * 128 + 2 * 64));
  EXPECT_EQ(step(full, "attention.proj").parameters.dense, 512 * 4 * 64);
  EXPECT_EQ(step(windowed, "attention.qkv").parameters.dense, 512 * (8 * 64 + 4 * 64));
  EXPECT_EQ(step(windowed, "attention.proj").parameters.dense, 512 * 8 * 64);
}

// A gate of a head is one column; its product is as long as that of gates of elements.
TEST(Attention, GatesOfHeadsAreAColumnEach) {
  Model model = llama(1, 512, 8, 8, 1024);
  const Training training{1, 1, 128, Precision::kBf16};
  const auto columns = [&] {
    return step(attention_block(Shape(model, ParallelPlan(), training)), "attention.qkv").parameters.dense / 512;
  };
  const double plain = columns();
  model.attention_gate = true;
  EXPECT_EQ(columns() - plain, 512);
  model.gate_of_head = true;
  EXPECT_EQ(columns() - plain, 8);
}

// A last chunk that is shorter: 3 chunks of 128 and one of 64 have as many pairs as 3.25 quarters of 512 tokens.
TEST(Attention, TheLastChunkMayBeShorter) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.sliding_window = 128;
  model.chunked_attention = true;
  const Block block = attention_block(Shape(model, ParallelPlan(), {1, 1, 448, Precision::kBf16}));
  const auto& flash = std::get<Attention>(std::get<Operator>(step(block, "attention.core").forward[0].what).kind);
  const double pairs = attended_pairs(flash) * static_cast<double>(flash.batch);
  EXPECT_NEAR(pairs / (3 * 128 * 128 / 2.0 + 64 * 64 / 2.0), 1, 0.02);
}

// Packed documents: attention is that of as many sequences of a document's length, whole or around a ring or with
// exchanged heads; all else sees as many tokens.
TEST(Attention, DocumentsAreSequences) {
  Model model = llama(2, 512, 8, 8, 1024);
  const Training packed{
      .global_batch = 4, .micro_batch = 2, .sequence = 1024, .precision = Precision::kBf16, .document_tokens = 256};
  const Training apart{.global_batch = 16, .micro_batch = 8, .sequence = 256, .precision = Precision::kBf16};
  const auto is_same = [](const std::vector<Call>& a, const std::vector<Call>& b) {
    return std::ranges::equal(a, b, [](const Call& x, const Call& y) { return x.name == y.name && x.what == y.what; });
  };
  for (const bool chunked : {false, true}) {
    for (const std::int64_t window : {0, 64, 512}) {
      model.sliding_window = window;
      model.chunked_attention = chunked && window > 0;
      for (const auto& [cp, exchange] :
           {std::pair{1, ContextExchange::kRing}, {4, ContextExchange::kRing}, {4, ContextExchange::kAllToAll}}) {
        const ParallelPlan plan{.cp = cp, .cp_comm = exchange};
        const Block one = attention_block(Shape(model, plan, packed)),
                    other = attention_block(Shape(model, plan, apart));
        ASSERT_EQ(one.steps.size(), other.steps.size());
        for (std::size_t i = 0; i < one.steps.size(); ++i) {
          EXPECT_TRUE(is_same(one.steps[i].forward, other.steps[i].forward)) << one.steps[i].name << window << cp;
          EXPECT_TRUE(is_same(one.steps[i].input_gradient, other.steps[i].input_gradient)) << one.steps[i].name;
          EXPECT_DOUBLE_EQ(one.steps[i].kept_for_input_gradient, other.steps[i].kept_for_input_gradient);
        }
      }
    }
  }
}

// Documents of other lengths than a part of the sequence: as many pairs as tokens times the length that each sees.
TEST(Attention, DocumentsHaveTheirLengthForEachToken) {
  const Model model = llama(1, 512, 8, 8, 1024);
  const auto pairs = [&](std::int64_t document, const ParallelPlan& plan) {
    const Block block = attention_block(Shape(model, plan,
                                              {.global_batch = 1,
                                               .micro_batch = 1,
                                               .sequence = 8192,
                                               .precision = Precision::kBf16,
                                               .document_tokens = document}));
    double sum = 0;
    for (const Call& call : step(block, "attention.core").forward) {
      const auto* op = std::get_if<Operator>(&call.what);
      const auto* flash = op != nullptr ? std::get_if<Attention>(&op->kind) : nullptr;
      if (flash != nullptr) {
        sum += attended_pairs(*flash) * static_cast<double>(flash->batch) * static_cast<double>(flash->heads);
      }
    }
    return sum / 8;
  };
  for (const std::int64_t document : {100, 1000, 3000, 5000, 8191}) {
    EXPECT_NEAR(pairs(document, {}) / (8192.0 * static_cast<double>(document) / 2), 1, 0.02) << document;
    for (const ContextExchange exchange :
         {ContextExchange::kRing, ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
      EXPECT_NEAR(pairs(document, {.cp = 4, .cp_comm = exchange}) / pairs(document, {}), 0.25, 0.02)
          << document << name_of(exchange);
    }
  }
  EXPECT_EQ(pairs(0, {}), pairs(8192, {}));
  EXPECT_EQ(pairs(100'000, {}), pairs(8192, {}));
}

// gpt-oss: each row gets its expert's bias, whose gradient is a sum over rows. Megatron-Core's first product adds it.
TEST(Experts, HaveBiases) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  const Training training{1, 1, 128, Precision::kBf16};
  const Block without = moe_block(Shape(model, ParallelPlan(), training));
  model.bias = true;
  const Block block = moe_block(Shape(model, ParallelPlan(), training));
  EXPECT_DOUBLE_EQ(parameters_of(block).experts - parameters_of(without).experts, 8 * (2 * 256 + 512));
  for (const auto& [name, columns, behind] : {std::tuple{"moe.fc1", 512, 0u}, std::tuple{"moe.fc2", 512, 1u}}) {
    EXPECT_EQ(step(block, name).forward.size(), step(without, name).forward.size() + behind) << name;
    EXPECT_EQ(step(block, name).calls_after_kept, 1 + behind) << name;
    const std::vector<Call>& gradients = step(block, name).weight_gradient;
    const auto sum = std::find_if(gradients.begin(), gradients.end(),
                                  [](const Call& call) { return call.name.ends_with("bias_gradient"); });
    ASSERT_NE(sum, gradients.end()) << name;
    EXPECT_DOUBLE_EQ(traffic(*sum), 128.0 * 2 * columns * 2) << name;
  }
}

// Tokens go to the router, to experts and to shared experts; latents are made of them twice. Autograd adds up what
// comes back.
TEST(Experts, GradientsOfAllReadersAreAddedUp) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  const Training training{1, 1, 128, Precision::kBf16};
  const auto adds = [&](const Block& block) {
    int found = 0;
    for (const Call& call : block.steps.front().input_gradient) found += call.name.ends_with(".inputs.dgrad.add");
    return found;
  };
  EXPECT_EQ(adds(moe_block(Shape(model, ParallelPlan(), training))), 1);
  model.moe->shared_experts = 1, model.moe->shared_expert_ffn = 256;
  EXPECT_EQ(adds(moe_block(Shape(model, ParallelPlan(), training))), 2);
  EXPECT_EQ(adds(attention_block(Shape(model, ParallelPlan(), training))), 0);
  model.mla = LatentAttention{.q_rank = 128, .kv_rank = 64, .nope_head_dim = 64, .rope_head_dim = 32, .v_head_dim = 64};
  const Block latent = attention_block(Shape(model, ParallelPlan(), training));
  EXPECT_EQ(adds(latent), 1);
  EXPECT_DOUBLE_EQ(traffic(latent.steps.front().input_gradient.front()), 3 * 128 * 512.0 * 2);
}

// DeepSeek-V3 (arXiv 2412.19437, s.2.2): two norms, a projection of 2h x h, a layer; the final norm with the loss.
TEST(Prediction, IsALayerWithAProjectionOfTwoInputs) {
  const Model model = llama(3, 512, 8, 2, 1024);
  const ParallelPlan plan{.tp = 2, .sequence_parallel = true};
  const Training training{1, 1, 128, Precision::kBf16};
  const Shape shape(model, plan, training);
  const Block block = prediction_block(shape), layer = layer_block(shape, LayerKind{});
  EXPECT_DOUBLE_EQ(parameters_of(block).dense, parameters_of(layer).dense + 2 * 512 + 2 * 512 * 512 / 2);
  EXPECT_DOUBLE_EQ(flops_of(block).forward, flops_of(layer).forward + 2.0 * 128 * 1024 * 512 / 2);
  EXPECT_DOUBLE_EQ(parameters_of(prediction_loss_block(shape)).dense, 512);
}

// Mamba-2 (arXiv 2405.21060): in: gate and channels, input and output maps of the groups, a time step a head; out.
TEST(StateSpaces, ParametersAndProducts) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.state_space = StateSpace{16, 64, 4, 32, 4};
  model.layer_pattern = "M";
  const double inner = 16 * 64, maps = 2 * 4 * 32, in = 512 * (2 * inner + maps + 16), out = inner * 512;
  for (const std::int64_t tp : {1, 4}) {
    const ParallelPlan plan{.tp = tp};
    const Shape shape(model, plan, {1, 1, 128, Precision::kBf16});
    const Block block = layer_block(shape, layer_kind(model, 0));
    const double convolution = 5 * (inner + maps), heads = 3 * 16;
    EXPECT_DOUBLE_EQ(parameters_of(block).dense,
                     512 + (in + out + convolution + heads + inner) / static_cast<double>(tp));
    // The norm's input; what both products read; gate, channels, maps and time steps; what the scan writes.
    EXPECT_DOUBLE_EQ(after_forward(block),
                     2.0 * 128 * (2 * 512 + (inner + (2 * inner + maps + 16) + inner) / static_cast<double>(tp)));
    EXPECT_THAT(names(step(block, "mamba.scan").input_gradient),
                ElementsAre("mamba.convolution.again", "mamba.scan.backward"));
    const double scan = 7 * 128 * inner * 32;
    EXPECT_DOUBLE_EQ(flops_of(block).forward, (2 * 128 * (in + out) + scan) / static_cast<double>(tp));
  }
}

// Groups of heads are divided, or copied whole: tp 3 and 6 would lose two of eight.
TEST(StateSpaces, TensorParallelRanksHaveWholeGroups) {
  Model model = llama(1, 768, 12, 12, 1536);
  model.state_space = StateSpace{.heads = 96, .head_dim = 16, .groups = 8, .state = 128};
  model.layer_pattern = "M";
  model.vocabulary = 12000;
  const auto check = [&](std::int64_t tp) {
    ParallelPlan plan;
    plan.tp = tp;
    return check_plan(model, plan, {1, 1, 768, Precision::kBf16});
  };
  for (const std::int64_t tp : {1, 2, 4}) EXPECT_TRUE(check(tp)) << tp;
  for (const std::int64_t tp : {3, 6, 12}) {
    const auto refused = check(tp);
    ASSERT_FALSE(refused) << tp;
    EXPECT_THAT(to_text(refused.error()), HasSubstr("8 groups of Mamba-2 heads"));
  }
}

// LFM2's layers without attention: gates and channels, three taps a channel, and what leads back.
// Ranks of a context exchange tokens for heads: gate, channels, maps and time steps go, output and gate come back. Four
// ranks of two groups have a copy of their group's maps. All of the work but these copies is divided.
TEST(StateSpaces, ContextParallelRanksExchangeHeads) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.state_space = StateSpace{.heads = 16, .head_dim = 64, .groups = 2, .state = 128};
  const Training training{1, 1, 1024, Precision::kBf16};
  const ParallelPlan alone, two{.cp = 2}, four{.cp = 4};
  const Block whole = state_space_block(Shape(model, alone, training));
  for (const auto& [plan, groups] : {std::pair(two, 2), std::pair(four, 4)}) {
    const Block block = state_space_block(Shape(model, plan, training));
    std::map<std::string, double> sent;
    for (const BlockStep& each : block.steps) {
      for (const auto* calls : {&each.forward, &each.input_gradient, &each.weight_gradient}) {
        for (const Call& call : *calls) {
          if (const auto* to = std::get_if<Communication>(&call.what); to != nullptr && to->axis == Axis::kContext) {
            EXPECT_EQ(to->kind, CollectiveKind::kAllToAll);
            sent[call.name] = to->size / B;
          }
        }
      }
    }
    const double tokens = 1024.0 / static_cast<double>(plan.cp), there = 1024 + 1024 + 2 * groups * 128 + 16;
    EXPECT_EQ(sent, (std::map<std::string, double>{{"mamba.heads.all_to_all", tokens * there * 2},
                                                   {"mamba.heads.backward.all_to_all", tokens * there * 2},
                                                   {"mamba.output.all_to_all", tokens * 2048 * 2},
                                                   {"mamba.output.backward.all_to_all", tokens * 2048 * 2}}))
        << plan.cp;
    EXPECT_EQ(parameters_of(block).dense, parameters_of(whole).dense);
    EXPECT_DOUBLE_EQ(flops_of(block).forward * static_cast<double>(plan.cp), flops_of(whole).forward);
  }
}

TEST(ShortConvolutions, ParametersProductsAndMemory) {
  Model model = llama(2, 512, 8, 8, 1024);
  model.short_convolution = 3;
  model.full_attention_layers = {.every = 2, .listed = {}};
  EXPECT_EQ(layer_kind(model, 1).mixer, Mixer::kAttention);
  for (const std::int64_t tp : {1, 4}) {
    const ParallelPlan plan{.tp = tp};
    const Shape shape(model, plan, {1, 1, 128, Precision::kBf16});
    const LayerKind kind = layer_kind(model, 0);
    EXPECT_EQ(kind.mixer, Mixer::kConvolution);
    const Block block = layer_block(shape, LayerKind{kind.mixer, FeedForward::kNone});
    const auto ranks = static_cast<double>(tp);
    EXPECT_DOUBLE_EQ(parameters_of(block).dense, 512 + (4.0 * 512 * 512 + 3 * 512) / ranks);
    EXPECT_DOUBLE_EQ(flops_of(block).forward, 2 * 128 * 4.0 * 512 * 512 / ranks);
    // Inputs of the norm and the projection; its output, the weighted channels, the convolution's output, and what the
    // last product reads.
    EXPECT_DOUBLE_EQ(after_forward(block), 2.0 * 128 * 512 * (2 + 6 / ranks));
  }
}

// As in Gemma 4's small models: of five layers, the last two read the keys of layers 2 and 1, of which layer 1 has no
// window. Their MLPs are wider.
Model shared_keys_model() {
  Model model = llama(5, 512, 8, 2, 1024);
  model.qk_norm = QueryKeyNorm::kHead;
  model.sliding_window = 32;
  model.full_attention_layers = {.every = 2, .listed = {}};
  model.shared_keys_layers = 2, model.ffn_of_layers = {1024, 1024, 1024, 2048, 2048};
  return model;
}

TEST(SharedKeys, LayersMakeQueriesAlone) {
  const Model model = shared_keys_model();
  EXPECT_THAT(check_shape(model), IsEmpty());
  const LayerKind own = layer_kind(model, 2), shares = layer_kind(model, 4);
  EXPECT_FALSE(own.shares_keys);
  EXPECT_TRUE(shares.shares_keys);
  for (const std::int64_t tp : {1, 2}) {
    for (const bool written_out : {false, true}) {
      const ParallelPlan plan{.tp = tp, .written_out = written_out};
      const Shape shape(model, plan, {1, 1, 128, Precision::kBf16});
      const Block all = layer_block(shape, own), some = layer_block(shape, shares);
      const auto ranks = static_cast<double>(tp);
      const double keys = 512.0 * 2 * 128 / ranks, wider = 3.0 * 512 * 1024 / ranks;
      EXPECT_DOUBLE_EQ(parameters_of(all).dense - parameters_of(some).dense, keys + 64 - wider);
      EXPECT_DOUBLE_EQ(flops_of(all).forward - flops_of(some).forward, 2 * 128 * (keys - wider));
      // Neither keys and values nor what their norm reads: the layer that made them keeps these.
      const auto kept = [](const Block& block, const char* name) { return step(block, name).kept_for_input_gradient; };
      const double one = 2.0 * 128 * 128 / ranks;  // bytes of keys, or of values
      EXPECT_DOUBLE_EQ(kept(all, "attention.heads") - kept(some, "attention.heads"), 2 * one);
      EXPECT_DOUBLE_EQ(kept(all, "attention.qk_norm") - kept(some, "attention.qk_norm"), one);
      const Call& shared = step(some, "attention.heads").input_gradient.back();
      EXPECT_EQ(shared.name, "attention.shared_kv.backward.add");
      const auto& added = std::get<Elementwise>(std::get<Operator>(shared.what).kind);
      EXPECT_EQ(added.elements, 128 * 2 * 128 / tp);
      for (const Call& call : step(some, "attention.heads").forward) EXPECT_THAT(call.name, Not(HasSubstr("keys")));
      EXPECT_EQ(some.cached, 0);
      EXPECT_GT(all.cached, 0);
    }
  }
}

TEST(SharedKeys, EveryWindowHasKeysBeforeThem) {
  Model model = shared_keys_model();
  model.shared_keys_layers = 4;  // the layer without a window would have none to read
  ASSERT_EQ(check_shape(model).size(), 1u);
  EXPECT_EQ(check_shape(model).front().where, "shared_keys_layers");
  const auto shorter = first_layers(shared_keys_model(), 4);
  ASSERT_TRUE(shorter);
  EXPECT_EQ(shorter->shared_keys_layers, 1);
  EXPECT_EQ(first_layers(shared_keys_model(), 2)->shared_keys_layers, 0);
}

// Sixteen widths, with and without a window and positions: each kind of layer is its own part of the model.
TEST(SharedKeys, ManyKindsOfLayers) {
  Model model = llama(64, 256, 8, 8, 512);
  model.sliding_window = 32;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    model.ffn_of_layers.push_back(512 + 64 * (layer % 16));
    if (layer % 32 >= 16) model.full_attention_layers.listed.push_back(layer);
    if (layer < 32) model.no_rotary_layers.listed.push_back(layer);
  }
  ASSERT_EQ(layer_kinds(model).kinds.size(), 64u);
  const auto memory = memory_budget(model, ParallelPlan(), {1, 1, 128, Precision::kBf16});
  ASSERT_TRUE(memory) << to_text(memory.error());
  EXPECT_DOUBLE_EQ(memory->stages[0].weights / B, 2 * model_parameters(model).total());
}

// Too few widths, and too wide ones: one error each, and no layer is asked for a width that it does not have.
TEST(SharedKeys, EveryLayerHasAWidth) {
  const std::int64_t huge = 1'000'000'000'000;
  for (const std::vector<std::int64_t>& widths : {std::vector<std::int64_t>{1024}, {1024, 1024, 1024, 2048, huge}}) {
    Model model = shared_keys_model();
    model.ffn_of_layers = widths;
    ASSERT_EQ(check_shape(model).size(), 1u);
    EXPECT_EQ(check_shape(model).front().where, "ffn_of_layers");
  }
}

// A gate, a projection and a norm in each layer; a table, a projection and a norm for all of them.
TEST(PerLayerEmbeddings, ParametersProductsAndMemory) {
  Model model = llama(3, 512, 8, 8, 1024), plain = model;
  model.per_layer_embeddings = PerLayerEmbeddings{.width = 64, .vocabulary = 1001};
  for (const std::int64_t tp : {1, 4}) {
    const ParallelPlan plan{.tp = tp, .sequence_parallel = true};
    const Training training{1, 1, 128, Precision::kBf16};
    const Shape shape(model, plan, training), without(plain, plan, training);
    const auto ranks = static_cast<double>(tp);
    const Block layer = layer_block(shape, LayerKind{}), bare = layer_block(without, LayerKind{});
    EXPECT_DOUBLE_EQ(parameters_of(layer).dense - parameters_of(bare).dense, 2.0 * 512 * 64 + 512);
    EXPECT_DOUBLE_EQ(flops_of(layer).forward - flops_of(bare).forward, 2 * 128 * 2.0 * 512 * 64 / ranks);
    // What the gate reads, the gate and what it weights, what the projection and the norm read.
    EXPECT_DOUBLE_EQ(after_forward(layer) - after_forward(bare), 2.0 * 128 * (2 * 512 + 3 * 64) / ranks);
    EXPECT_DOUBLE_EQ(layer.input - bare.input, 2.0 * 128 * 64 / ranks);
    // Of the values of a layer, autograd makes gradients of those of all layers: zeros, and a sum.
    const std::vector<Call>& gradient = step(layer, "per_layer.activation").input_gradient;
    for (const auto& [back, inputs] : {std::pair(std::size_t{2}, 0.0), std::pair(std::size_t{1}, 2.0)}) {
      const auto& all = std::get<Elementwise>(std::get<Operator>(gradient[gradient.size() - back].what).kind);
      EXPECT_EQ(all.elements, 128 * 3 * 64 / tp);
      EXPECT_EQ(all.inputs, inputs);
    }
    const Block embedding = embedding_block(shape);
    EXPECT_DOUBLE_EQ(parameters_of(embedding).dense - parameters_of(embedding_block(without)).dense,
                     std::ceil(1001 / ranks) * 3 * 64 + 512.0 * 3 * 64 + 64);
    EXPECT_DOUBLE_EQ(flops_of(embedding).forward, 2 * 128 * 512.0 * 3 * 64 / ranks);
  }
  const auto staged = check_plan(model, {.pp = 3}, {4, 1, 128, Precision::kBf16});
  ASSERT_FALSE(staged);
  EXPECT_THAT(to_text(staged.error()), HasSubstr("use plan/pp=1"));
}

// Behind a reduce-scatter a rank adds biases to its own tokens; before, to all.
TEST(Biases, GradientsAreSumsOverTheTokensOfARank) {
  const Model model = gpt(2, 512, 8);
  for (const std::int64_t tp : {1, 4}) {
    const ParallelPlan plan{.tp = tp, .sequence_parallel = true};
    const Block layer = layer_block(Shape(model, plan, {1, 1, 128, Precision::kBf16}), LayerKind{});
    const auto summed = [&](const char* name) {
      for (const Call& call : step(layer, name).weight_gradient) {
        if (!call.name.ends_with(".bias_gradient")) continue;
        return std::get<Elementwise>(std::get<Operator>(call.what).kind).elements;
      }
      return std::int64_t{0};
    };
    EXPECT_EQ(summed("mlp.fc1"), 128 * 2048 / tp);
    EXPECT_EQ(summed("mlp.fc2"), 128 / tp * 512);
    EXPECT_EQ(summed("attention.proj"), 128 / tp * 512);
  }
}

// A table of positions has a gradient as the embedding's has.
TEST(Embedding, PositionsHaveAGradient) {
  const Model model = gpt(2, 512, 8);
  const ParallelPlan plan{.tp = 2, .sequence_parallel = true}, adapted{.lora_rank = 8};
  const Training training{1, 1, 128, Precision::kBf16};
  const Block block = embedding_block(Shape(model, plan, training));
  const std::vector<Call>& calls = step(block, "embedding.position").weight_gradient;
  ASSERT_THAT(names(calls), Contains("embedding.position.backward"));
  const auto at = std::find_if(calls.begin(), calls.end(),
                               [](const Call& call) { return call.name == "embedding.position.backward"; });
  EXPECT_EQ(std::get<Operator>(at->what).kind, OperatorKind(Embedding{64, 512, 2048, Pass::kBackward}));
  EXPECT_THAT(step(embedding_block(Shape(model, adapted, training)), "embedding.position").weight_gradient, IsEmpty());
}

// Classes of transformers repeat keys and values for each query head: 8 of 2.
TEST(EagerAttention, KeysAreRepeated) {
  Model grouped = llama(2, 512, 8, 2, 1024), all = llama(2, 512, 8, 8, 1024);
  ParallelPlan plan{.flash_attention = false, .split_softmax = true};
  const auto core = [&](const Model& model) {
    return step(layer_block(Shape(model, plan, {1, 1, 128, Precision::kBf16}), LayerKind{}), "attention.core");
  };
  EXPECT_THAT(names(core(grouped).forward), Contains("attention.keys.repeat"));
  EXPECT_THAT(names(core(grouped).input_gradient), Contains("attention.keys.repeat.backward"));
  EXPECT_THAT(names(core(all).forward), Not(Contains("attention.keys.repeat")));
  EXPECT_DOUBLE_EQ(core(grouped).kept_for_input_gradient - core(all).kept_for_input_gradient,
                   2.0 * 128 * (8 - 2) * (64 + 64));
  plan.split_softmax = false;
  EXPECT_THAT(names(core(grouped).forward), Not(Contains("attention.keys.repeat")));
}

// Caps of logits and of scores (Gemma 2): three kernels apart, one where kernels are fused, none in a fused loss or
// attention. What tanh returns is kept.
TEST(Caps, OfLogitsAndOfScores) {
  Model model = llama(2, 512, 8, 8, 1024), plain = model;
  model.capped_logits = model.capped_scores = true;
  ParallelPlan plan{.flash_attention = false};
  const Training training{1, 1, 128, Precision::kBf16};
  const auto caps = [&] {
    const Block block = loss_block(Shape(model, plan, training));
    const auto at = std::find_if(block.steps.begin(), block.steps.end(),
                                 [](const BlockStep& each) { return each.name == "loss.cap"; });
    return at == block.steps.end() ? std::size_t{0} : at->forward.size();
  };
  plan.fused_kernels = true;
  EXPECT_EQ(caps(), 1u);
  plan.fused_kernels = false;
  EXPECT_EQ(caps(), 3u);
  const double kept = after_forward(loss_block(Shape(model, plan, training)));
  EXPECT_DOUBLE_EQ(kept - after_forward(loss_block(Shape(plain, plan, training))), 2.0 * 128 * 32000);
  plan.loss_library = Library::kLiger;
  EXPECT_EQ(caps(), 0u);
  const auto core = [&](const Model& of) {
    return step(layer_block(Shape(of, plan, training), LayerKind{}), "attention.core");
  };
  EXPECT_EQ(core(model).forward.size() - core(plain).forward.size(), 3u);
  EXPECT_DOUBLE_EQ(core(model).kept_for_input_gradient - core(plain).kept_for_input_gradient, 2.0 * 128 * 8 * 128);
  plan.flash_attention = true;
  EXPECT_EQ(core(model).forward.size(), core(plain).forward.size());
}

// DeepSeek-V4's attention (arXiv 2606.19348) in a small model: a head of 64 for keys and values, 8 heads in 4 groups.
Model compressed_model() {
  Model model = llama(3, 512, 8, 1, 1024);
  model.head_dim = 64, model.sliding_window = 32;
  model.compressed = CompressedAttention{.q_rank = 96,
                                         .rope_head_dim = 16,
                                         .output_groups = 4,
                                         .output_rank = 48,
                                         .sparse_layers = {.every = 0, .listed = {1}},
                                         .window_layers = {.every = 0, .listed = {0}}};
  model.indexer = Indexer{.heads = 2, .head_dim = 40, .top_k = 24, .shared_layers = {}};
  return model;
}

TEST(CompressedAttention, ParametersAndProducts) {
  const Model model = compressed_model();
  const std::array<CompressedKeys, 3> read = {CompressedKeys::kNone, CompressedKeys::kSparse, CompressedKeys::kDense};
  // Projections of the hidden states to keys and their weights, a bias for each position in a key, and a norm.
  const std::array<double, 3> made = {0, 2.0 * 512 * 128 + 4 * 128 + 64, 2.0 * 512 * 64 + 128 * 64 + 64};
  // The indexer: queries, weights of heads, its own keys.
  const double index = 96.0 * 80 + 512 * 2 + 2 * 512 * 80, index_rest = 4 * 80 + 40;
  for (const std::int64_t tp : {1, 4}) {
    const ParallelPlan plan{.tp = tp};
    const Shape shape(model, plan, {1, 1, 256, Precision::kBf16});
    const auto ranks = static_cast<double>(tp);
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const LayerKind kind = layer_kind(model, static_cast<std::int64_t>(layer));
      EXPECT_EQ(kind.compressed_keys, read[layer]);
      const Block block = layer_block(shape, {.mixer = kind.mixer,
                                              .feed_forward = FeedForward::kNone,
                                              .compressed_keys = kind.compressed_keys,
                                              .chooses_keys = kind.chooses_keys});
      const double down = 512.0 * (96 + 64), up = 96.0 * 512 + 4 * 48 * 128 + 4 * 48 * 512;
      const bool chooses = kind.compressed_keys == CompressedKeys::kSparse;
      EXPECT_DOUBLE_EQ(parameters_of(block).dense,
                       512 + 96 + 64 + down + made[layer] + (up + 8) / ranks + (chooses ? index + index_rest : 0))
          << layer;
      // Slots: the window of 32; of 64 sparse keys 24; both dense ones. Eight heads at least are rows of a product.
      const std::array<double, 3> slots = {32, 32 + 24, 32 + 2};
      const double products = down + up / ranks + (layer > 0 ? 2.0 * 512 * (layer == 1 ? 128 : 64) : 0);
      // Scores of the mean half of the keys, and one weight of each head for them.
      const double scores = 2 * 256 * 2 * (64 / 2) * (40.0 + 1);
      EXPECT_DOUBLE_EQ(flops_of(block).forward, 2 * 256 * products + 4.0 * 256 * slots[layer] * 64 * 8 +
                                                    (chooses ? 2 * 256 * index + scores : 0))
          << layer;
      EXPECT_EQ(flops_of(block).masked, 0);
    }
  }
}

// No kernel of the indexer has a gradient. Context-parallel ranks gather compressed keys of all, and receive a window.
TEST(CompressedAttention, RanksExchangeKeys) {
  const Model model = compressed_model();
  const LayerKind kind{.mixer = Mixer::kCompressedAttention,
                       .feed_forward = FeedForward::kNone,
                       .compressed_keys = CompressedKeys::kSparse,
                       .chooses_keys = true};
  const ParallelPlan plan{.cp = 2, .cp_comm = ContextExchange::kAllToAll};
  const Block block = layer_block(Shape(model, plan, {1, 1, 256, Precision::kBf16}), kind);
  const BlockStep index = step(block, "attention.index"), heads = step(block, "attention.heads"),
                  core = step(block, "attention.core");
  EXPECT_TRUE(index.input_gradient.empty() && index.weight_gradient.empty());
  EXPECT_DOUBLE_EQ(flops_of(block).alone, flops_of(Block{{index}}).forward);
  EXPECT_THAT(names(index.forward), ::testing::Contains("attention.index.keys.context.all_gather"));
  EXPECT_THAT(names(heads.forward), ElementsAre("attention.rotary.queries", "attention.rotary.keys",
                                                "attention.window.send", "attention.keys.context.all_gather"));
  EXPECT_THAT(names(heads.input_gradient),
              ElementsAre("attention.keys.grad.context.reduce_scatter", "attention.window.grad.send",
                          "attention.rotary.keys.backward", "attention.rotary.queries.backward"));
  const auto& gathered = std::get<Communication>(heads.forward.back().what);
  EXPECT_EQ(gathered.axis, Axis::kContext);
  EXPECT_EQ(gathered.size, 2.0 * (256 / 4) * 64 * B);
  EXPECT_THAT(names(core.forward), ElementsAre("attention.flash", "attention.rotary.output"));
  EXPECT_THAT(names(core.input_gradient), ElementsAre("attention.rotary.output.backward", "attention.flash.backward"));
  const auto& attention = std::get<Attention>(std::get<Operator>(core.forward.front().what).kind);
  EXPECT_EQ(attention.query_length, 128);
  EXPECT_EQ(attention.key_length, 32 + 24);
  EXPECT_EQ(attention.kv_heads, 1);
}

// Recomputation of the core frees its output and statistics, not the queries: nothing makes these again.
TEST(CompressedAttention, RecomputedCoreKeepsItsQueries) {
  const Model model = compressed_model();
  const ParallelPlan plan;
  const Shape shape(model, plan, {1, 1, 256, Precision::kBf16});
  const Block block = layer_block(shape, {.mixer = Mixer::kCompressedAttention, .feed_forward = FeedForward::kNone});
  const double freed = kept_bytes(block, Recompute::kNone).after_forward -
                       kept_bytes(block, Recompute::kSelective, set_of(RecomputeModule::kCoreAttention)).after_forward;
  EXPECT_DOUBLE_EQ(freed, 256 * 8 * (2.0 * 64 + 4));
  // Queries of 8 heads, and the keys.
  EXPECT_DOUBLE_EQ(step(block, "attention.heads").kept_for_input_gradient, 2.0 * 256 * (8 + 1) * 64);
}

// Attention of DeepSeek-V3.2 (arXiv 2512.02556) in a small model: latents of 64 and 16 rotated channels, 8 heads, 24
// keys of each query. Layer 1 reads the keys that layer 0 chose.
Model choosing_model() {
  Model model = llama(2, 512, 8, 8, 1024);
  model.mla = LatentAttention{.q_rank = 96, .kv_rank = 64, .nope_head_dim = 32, .rope_head_dim = 16, .v_head_dim = 40};
  model.indexer = Indexer{.heads = 2, .head_dim = 48, .top_k = 24, .shared_layers = {.every = 2, .listed = {}}};
  return model;
}

// As many weights as all keys have, and the indexer's; products with the up-projections before and behind a core of 24
// keys, which has 64 rows of heads, or all heads that there are.
TEST(ChosenKeys, ParametersAndProducts) {
  const Model model = choosing_model();
  Model all_keys = model;
  all_keys.indexer.reset();
  const double index = 96.0 * 2 * 48 + 512 * 2 + 512 * 48;
  for (const std::int64_t tp : {1, 4}) {
    const ParallelPlan plan{.tp = tp};
    const Training training{1, 1, 256, Precision::kBf16};
    const Shape shape(model, plan, training), whole(all_keys, plan, training);
    const auto ranks = static_cast<double>(tp);
    for (const std::int64_t layer : {0, 1}) {
      const LayerKind kind = layer_kind(model, layer);
      EXPECT_EQ(kind.chooses_keys, layer == 0);
      const double indexer = kind.chooses_keys ? index : 0;
      const Block block = layer_block(shape, {.feed_forward = FeedForward::kNone, .chooses_keys = kind.chooses_keys});
      const Block dense = layer_block(whole, {.feed_forward = FeedForward::kNone});
      EXPECT_DOUBLE_EQ(parameters_of(block).dense - parameters_of(dense).dense, kind.chooses_keys ? index + 2 * 48 : 0);
      const double products = 512.0 * (96 + 64 + 16) + 8 / ranks * (96 * 48 + 32 * 64 + 64 * 40 + 40 * 512);
      // Scores of the mean half of the keys, and one weight of each head for them.
      const double scores = kind.chooses_keys ? 2.0 * 2 * 128 * (48 + 1) : 0;
      EXPECT_DOUBLE_EQ(flops_of(block).forward,
                       256 * (2 * (products + indexer) + 2.0 * 8 * 24 * (64 + 16 + 64) + scores));
      EXPECT_DOUBLE_EQ(flops_of(block).alone, 256 * (2 * indexer + scores));
    }
  }
  Training shorter{1, 1, 16, Precision::kBf16};
  const Block few = layer_block(Shape(model, ParallelPlan(), shorter), layer_kind(model, 0));
  const auto core = std::get<Attention>(std::get<Operator>(step(few, "attention.core").forward.front().what).kind);
  EXPECT_EQ(core.key_length, 16);
}

// Under sequence parallelism the indexer has all tokens, and ranks gather latents, not heads. Context-parallel ranks
// gather the keys of the core and of the indexer, which has no gradient, whatever plan/cp_comm says.
TEST(ChosenKeys, RanksGatherLatents) {
  const Model model = choosing_model();
  ParallelPlan plan{.tp = 2, .cp = 2, .cp_comm = ContextExchange::kAllToAll};
  plan.sequence_parallel = true;
  const Shape shape(model, plan, {1, 1, 256, Precision::kBf16});
  EXPECT_EQ(shape.cp_inner, 1);
  const Block block = layer_block(shape, {.feed_forward = FeedForward::kNone, .chooses_keys = true});
  const BlockStep index = step(block, "attention.index"), heads = step(block, "attention.heads");
  EXPECT_TRUE(index.input_gradient.empty() && index.weight_gradient.empty());
  EXPECT_THAT(
      names(index.forward),
      ElementsAre("attention.index.hidden.all_gather", "attention.index.latents.all_gather", "attention.index.queries",
                  "attention.index.weights", "attention.index.keys", "attention.index.key_norm",
                  "attention.index.rotary.queries", "attention.index.rotary.keys",
                  "attention.index.keys.context.all_gather", "attention.index.scores", "attention.index.top_k"));
  EXPECT_THAT(names(heads.forward), ElementsAre("attention.rotary.queries", "attention.rotary.keys",
                                                "attention.assemble", "attention.latents.all_gather",
                                                "attention.keys.context.all_gather", "attention.keys.reorder"));
  EXPECT_THAT(names(heads.input_gradient),
              ElementsAre("attention.keys.backward.reorder", "attention.keys.backward.context.reduce_scatter",
                          "attention.assemble.backward", "attention.rotary.keys.backward",
                          "attention.rotary.queries.backward", "attention.latents.grad.reduce_scatter"));
  EXPECT_EQ(std::get<Communication>(heads.forward[3].what).size, 2.0 * 128 * 64 * B);
  EXPECT_EQ(std::get<Communication>(heads.forward[4].what).size, 2.0 * 256 * (64 + 16) * B);
  // Queries of four heads, and the keys of both ranks.
  EXPECT_DOUBLE_EQ(heads.kept_for_input_gradient, 2.0 * 128 * (4 + 2) * (64 + 16));
}

// Megatron-Core's core is the indexer, the attention and the up-projection of the values: recomputed, it keeps neither
// which keys were chosen nor what that projection reads.
TEST(ChosenKeys, RecomputedCoreKeepsNothing) {
  const Model model = choosing_model();
  const ParallelPlan plan;
  const Shape shape(model, plan, {1, 1, 256, Precision::kBf16});
  const Block block = layer_block(shape, {.feed_forward = FeedForward::kNone, .chooses_keys = true});
  const double freed = kept_bytes(block, Recompute::kNone).after_forward -
                       kept_bytes(block, Recompute::kSelective, set_of(RecomputeModule::kCoreAttention)).after_forward;
  EXPECT_DOUBLE_EQ(freed, 256 * (4.0 * 24 + 8 * (2.0 * 64 + 4)));
  const double up =
      kept_bytes(block, Recompute::kNone).after_forward -
      kept_bytes(block, Recompute::kSelective, set_of(RecomputeModule::kLatentUpProjection)).after_forward;
  // What the up-projection of the queries makes and the core reads, and the keys beside it.
  EXPECT_DOUBLE_EQ(up, 256 * 2.0 * (8 * 32 + 8 * 80 + 80));
}

// Hyper-connections (arXiv 2512.24880) with n streams: a branch has a matrix of n (n + 2) weights a token, reads n
// hidden states, and behind it n + 1 are read and n written. A checkpoint is n hidden states.
TEST(HyperConnections, ParametersTrafficAndMemory) {
  Model model = llama(1, 512, 8, 8, 1024);
  const LayerKind mlp{.mixer = Mixer::kNone};
  const auto block_of = [&](std::int64_t streams) {
    model.residual_streams = streams;
    return layer_block(Shape(model, ParallelPlan(), {1, 1, 128, Precision::kBf16}), mlp);
  };
  const Block one = block_of(1), four = block_of(4);
  EXPECT_DOUBLE_EQ(parameters_of(four).dense - parameters_of(one).dense, 24.0 * (4 * 512 + 1) + 3);
  EXPECT_DOUBLE_EQ(four.input, 4 * one.input);
  // The streams before the branch, and what it adds.
  EXPECT_DOUBLE_EQ(after_forward(four) - after_forward(one), 2.0 * 128 * 512 * (4 + 1));
  const BlockStep mix = four.steps.back();
  const auto& work = std::get<Elementwise>(std::get<Operator>(mix.forward.back().what).kind);
  EXPECT_EQ(work.elements, 128 * 512);
  EXPECT_EQ(work.inputs, 5);
  EXPECT_EQ(work.outputs, 4);
  EXPECT_DOUBLE_EQ(flops_of(four).forward - flops_of(one).forward, 2 * 128 * 24.0 * 4 * 512);
}

// Gated delta rule (arXiv 2412.06464; Megatron-Core, gated_delta_net): in: queries, keys, values, gate, and a decay and
// a strength for each head of values; out. 16-bit values, but decays and strengths in fp32; 64 tokens a chunk.
TEST(DeltaNets, ParametersProductsAndMemory) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.delta_net = DeltaNet{.key_heads = 4, .value_heads = 8, .key_dim = 32, .value_dim = 64};
  const double keys = 4 * 32, values = 8 * 64, projected = 2 * keys + 2 * values + 2 * 8;
  const double in = 512 * projected, out = values * 512;
  for (const std::int64_t tp : {1, 4}) {
    const ParallelPlan plan{.tp = tp};
    const Shape shape(model, plan, {1, 1, 128, Precision::kBf16});
    const LayerKind kind = layer_kind(model, 0);
    EXPECT_EQ(kind.mixer, Mixer::kDeltaNet);
    const Block block = layer_block(shape, LayerKind{kind.mixer, FeedForward::kNone});
    const auto ranks = static_cast<double>(tp);
    // A norm before it; one of heads, which all share; convolutions of 4 taps; two numbers a head.
    EXPECT_DOUBLE_EQ(parameters_of(block).dense, 512 + 64 + (in + out + 4 * (2 * keys + values) + 2 * 8) / ranks);
    // Inputs of the norm and the projection; its output; normalized queries and keys; these for each head of values,
    // values, inverses, decays and strengths; the input of the norm, its output and the gate; what the last product
    // reads.
    const double kept = projected + 2 * keys + (2 * 8 * 32 + values + 8 * 64 + 4 * 8) + values + 2 * values + values;
    EXPECT_DOUBLE_EQ(after_forward(block), 2.0 * 128 * (2 * 512 + kept / ranks));
    // Four products of a state of 32 x 64 and a vector (Megatron-LM, gdn_layer_flops).
    const double rule = 4 * 2 * 128 * 8 * 32 * 64;
    EXPECT_DOUBLE_EQ(flops_of(block).forward, (2 * 128 * (in + out) + rule) / ranks);
  }
}

// Kimi Delta Attention (arXiv 2510.26692): two matrices make a decay for each channel of the keys, two the gates. The
// first of each is whole on both ranks.
TEST(DeltaNets, ChannelsMayHaveTheirOwnDecays) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.delta_net = DeltaNet{.key_heads = 8, .value_heads = 8, .key_dim = 64, .value_dim = 64};
  const ParallelPlan plan{.tp = 2};
  const Shape shape(model, plan, {1, 1, 128, Precision::kBf16});
  const Block heads = delta_net_block(shape);
  model.delta_net->decay_rank = 32, model.delta_net->gate_rank = 16;
  const Block channels = delta_net_block(shape);
  const auto parameters = [](const Block& block, const std::string& name) {
    return step(block, name).parameters.dense;
  };
  EXPECT_EQ(parameters(heads, "delta.in_proj"), 512 * (4 * 256 + 2 * 4));
  EXPECT_EQ(parameters(channels, "delta.in_proj"), 512 * (3 * 256 + 4));
  EXPECT_EQ(parameters(channels, "delta.decay_down"), 512 * 32);
  EXPECT_EQ(parameters(channels, "delta.decay_up"), 32 * 256);
  EXPECT_EQ(parameters(channels, "delta.gate_down"), 512 * 16);
  EXPECT_EQ(parameters(channels, "delta.gate_up"), 16 * 256);
  EXPECT_EQ(parameters(channels, "delta.rule") - parameters(heads, "delta.rule"), 256 - 4);
  const auto rule = [](const Block& block) {
    return std::get<UnknownOperator>(std::get<Operator>(step(block, "delta.rule").forward[0].what).kind);
  };
  EXPECT_EQ(rule(channels).flops, rule(heads).flops);
  EXPECT_NEAR((rule(channels).read - rule(heads).read) / B, 5 * 4.0 * 128 * 256, 1) << "fp32, in five kernels";
  EXPECT_EQ(step(channels, "delta.rule").kept_for_input_gradient - step(heads, "delta.rule").kept_for_input_gradient,
            4.0 * 128 * (256 - 4));
}

// Ranks of a context exchange tokens for heads and back: the projection's output and the norm's, and their gradients.
TEST(DeltaNets, ContextParallelRanksExchangeHeads) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.delta_net = DeltaNet{.key_heads = 4, .value_heads = 8, .key_dim = 32, .value_dim = 64};
  const auto exchanged = [&](std::int64_t cp) {
    const ParallelPlan plan{.cp = cp};
    const Shape shape(model, plan, {1, 1, 128, Precision::kBf16});
    double forward = 0, backward = 0;
    for (const BlockStep& step : layer_block(shape, LayerKind{Mixer::kDeltaNet, FeedForward::kNone}).steps) {
      for (const auto& [calls, bytes] :
           {std::pair(&step.forward, &forward), std::pair(&step.input_gradient, &backward)}) {
        for (const Call& call : *calls) {
          const auto* message = std::get_if<Communication>(&call.what);
          if (message == nullptr) continue;
          EXPECT_EQ(message->kind, CollectiveKind::kAllToAll) << call.name;
          EXPECT_EQ(message->axis, Axis::kContext) << call.name;
          *bytes += message->size / B;
        }
      }
    }
    EXPECT_DOUBLE_EQ(forward, backward);
    return forward;
  };
  EXPECT_EQ(exchanged(1), 0);
  EXPECT_DOUBLE_EQ(exchanged(4), 2.0 * 128 / 4 * (2 * 4 * 32 + 2 * 8 * 64 + 2 * 8 + 8 * 64));
}

// Qwen3-Next: a gate as wide as all heads' outputs is projected beside the queries. It and what it weights are kept.
TEST(Attention, AGateIsProjectedAndKept) {
  Model model = llama(1, 512, 8, 2, 1024), gated = model;
  gated.attention_gate = true;
  for (const std::int64_t tp : {1, 2}) {
    const ParallelPlan plan{.tp = tp};
    const Training training{1, 1, 128, Precision::kBf16};
    const Block without = attention_block(Shape(model, plan, training));
    const Block with = attention_block(Shape(gated, plan, training));
    const auto ranks = static_cast<double>(tp);
    EXPECT_DOUBLE_EQ(parameters_of(with).dense - parameters_of(without).dense, 512 * 512 / ranks);
    EXPECT_DOUBLE_EQ(after_forward(with) - after_forward(without), 2.0 * 128 * 2 * 512 / ranks);
    EXPECT_DOUBLE_EQ(flops_of(with).forward - flops_of(without).forward, 2 * 128 * 512 * 512 / ranks);
    EXPECT_EQ(step(with, "attention.gate").forward.size(), 2u);
  }
}

}  // namespace
}  // namespace ns_dist
