#include "sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ns_dist/catalog.h"
#include "support/gpus.h"
#include "weights_file.h"

namespace ns_dist {
namespace {

// The source that answers for `op` on a GPU of the catalog.
std::string source_of(const Gpu& gpu, const Operator& op, Mode mode) {
  const Machine machine = *make_machine(gpu, mode);
  const auto predictor = predictor_of(op, gpu, mode);
  if (!predictor) return "none";
  const PredictorWeights& weights = *standard_weights(*predictor);
  const ReferenceGpu reference = reference_gpu(weights, machine);
  const std::size_t own_class = kernel_class(*predictor, op, mode);
  const Features features = features_of(*predictor, machine, op, mode, weights.sums);
  const bool only_bursts = only_in_bursts(weights, *predictor, reference, own_class);
  return std::string(source_for({weights, *predictor, op, mode, features, reference, own_class, only_bursts}).name);
}

Gpu gpu_of(const char* id) { return *Catalog::standard().gpu(id); }

const Operator kProduct{Gemm{.m = 4096, .n = 4096, .k = 4096}, DType::kBf16};

TEST(Sources, AMeasuredGpuAnswersForItself) {
  EXPECT_EQ(source_of(gpu_of("h200-sxm"), kProduct, Mode::kBurst), "measured here");
  EXPECT_EQ(source_of(gpu_of("h200-sxm"), kProduct, Mode::kSustained), "measured here");
}

TEST(Sources, LongRunsOfAGpuMeasuredInBurstsAreItsBurstsSlowed) {
  EXPECT_EQ(source_of(gpu_of("l40s"), kProduct, Mode::kBurst), "measured here");
  EXPECT_EQ(source_of(gpu_of("l40s"), kProduct, Mode::kSustained), "bursts slowed");
}

TEST(Sources, AnotherGpuIsTheNearestOneScaled) {
  EXPECT_EQ(source_of(gpu_of("gh200-96gb"), kProduct, Mode::kBurst), "nearest scaled");
  Gpu slower = gpu_of("h200-sxm");
  slower.memory_bandwidth = 0.5 * slower.memory_bandwidth;
  EXPECT_EQ(source_of(slower, kProduct, Mode::kBurst), "nearest scaled") << "another data sheet of a measured GPU";
}

// With faster memory H100 is nearer to H200 by its data sheet, and products of its size took longer there.
TEST(Sources, AGpuLikeAnotherOneCarriesItsMeasurementsOver) {
  Seconds last;
  for (const double faster : {1.0, 1.3, 1.4, 1.6}) {
    Gpu mine = gpu_of("h100-sxm-80gb");
    mine.id = "mine", mine.like = "h100-sxm-80gb";
    mine.memory_bandwidth *= faster;
    const ReferenceGpu reference =
        reference_gpu(*standard_weights(Predictor::kGemm), *make_machine(mine, Mode::kSustained));
    EXPECT_EQ(faster == 1 ? reference.known.gpu.id : reference.nearest->machine.gpu.id, "h100-sxm-80gb") << faster;
    const Operator product{Gemm{.m = 8192, .n = 8192, .k = 3584}, DType::kBf16};
    const Seconds time = (*make_compute_model(mine, {}))->forecast(product)->latency;
    if (faster > 1.3) {
      EXPECT_LE(time, last) << faster;
    }
    last = time;
  }
  // Attention too, which other GPUs have by physics alone.
  const Operator attention{
      Attention{.heads = 32, .kv_heads = 8, .query_length = 8192, .key_length = 8192, .head_dim = 128}, DType::kBf16};
  Gpu slower = gpu_of("h100-sxm-80gb");
  const Seconds measured = (*make_compute_model(slower, {}))->forecast(attention)->latency;
  slower.id = "slower", slower.memory_bandwidth = 0.9 * slower.memory_bandwidth;
  slower.like = "h100-sxm-80gb";
  EXPECT_NEAR((*make_compute_model(slower, {}))->forecast(attention)->latency / measured, 1, 0.01);
  Gpu other = gpu_of("h100-sxm-80gb");
  other.id = "other", other.like = "a100", other.memory_bandwidth *= 1.6;
  const ReferenceGpu reference =
      reference_gpu(*standard_weights(Predictor::kGemm), *make_machine(other, Mode::kSustained));
  EXPECT_EQ(reference.nearest->machine.gpu.architecture, "hopper") << "of another generation";
}

// Nothing of Rubin was measured: its kernels are those of Blackwell on its rates, and no answer says that it is
// certain.
TEST(Sources, AGenerationThatNobodyMeasuredIsExtrapolated) {
  const auto model = *make_compute_model(gpu_of("vr200"), {});
  for (const OperatorKind& kind :
       {OperatorKind{Gemm{.m = 8192, .n = 8192, .k = 8192}},
        OperatorKind{Attention{.heads = 32, .query_length = 8192, .key_length = 8192, .head_dim = 128}},
        OperatorKind{Copy{1e9 * units::B}}, OperatorKind{Normalization{.rows = 65536, .columns = 8192}}}) {
    EXPECT_TRUE(model->forecast({kind, DType::kBf16})->extrapolated) << to_text(Operator{kind, DType::kBf16});
  }
  const Operator attention{Attention{.heads = 32, .query_length = 8192, .key_length = 8192, .head_dim = 128},
                           DType::kBf16};
  const double faster =
      (*make_compute_model(gpu_of("b200-sxm"), {}))->forecast(attention)->latency / model->forecast(attention)->latency;
  EXPECT_GT(faster, 1.5) << "1.8 times the rate";
  EXPECT_LT(faster, 2.1);
}

// A100-PCIe-80GB is nearer by its data sheet, but a few dozen of its products are not enough to learn from.
TEST(Sources, AGpuWithFewRowsTeachesNoOther) {
  const PredictorWeights& weights = *standard_weights(Predictor::kGemm);
  const auto few = measured_index(weights, "a100-pcie-80gb");
  ASSERT_TRUE(few);
  EXPECT_LT(weights.rows[*few], 1000);
  const ReferenceGpu reference = reference_gpu(weights, *make_machine(gpu_of("a100-pcie-40gb"), Mode::kBurst));
  ASSERT_TRUE(reference.nearest);
  EXPECT_EQ(weights.gpus[reference.nearest->neighbor.index].id, "a100-sxm-80gb");
}

// H800 is H100 with fewer links: its kernels were measured there, attention included, whose rates differ between H100
// and H200. With another clock it is H100 with another clock.
TEST(Sources, AGpuThatDiffersInItsLinksAloneWasMeasured) {
  const Operator attention{Attention{.batch = 2,
                                     .heads = 32,
                                     .kv_heads = 8,
                                     .query_length = 4096,
                                     .key_length = 4096,
                                     .head_dim = 128,
                                     .value_dim = 128},
                           DType::kBf16};
  for (const auto& [id, measured] : {std::pair("h800-sxm-80gb", "h100-sxm-80gb"), {"a800-sxm-80gb", "a100-sxm-80gb"}}) {
    EXPECT_EQ(source_of(gpu_of(id), kProduct, Mode::kBurst), "measured here") << id;
    for (const double clock : {1.0, 0.9}) {
      Gpu one = gpu_of(id), other = gpu_of(measured);
      one.boost_clock *= clock, other.boost_clock *= clock;
      for (const Operator& op : {kProduct, attention}) {
        const Forecast here = *(*make_compute_model(one, {}))->forecast(op);
        const Forecast there = *(*make_compute_model(other, {}))->forecast(op);
        EXPECT_EQ(here.latency, there.latency) << id;
        EXPECT_EQ(here.high, there.high) << id;
      }
    }
  }
  const Explanation told = *(*make_compute_model(gpu_of("h800-sxm-80gb"), {}))->explain(attention);
  const auto step = std::ranges::find(told.steps, "measured_as", &ExplanationStep::name);
  ASSERT_NE(step, told.steps.end());
  EXPECT_EQ(step->value, "h100-sxm-80gb");
}

// More bandwidth than H800 has would make H200 its neighbor, whose kernels are slower in places.
TEST(Sources, AChangedGpuOfTheCatalogKeepsItsNeighbor) {
  const PredictorWeights& weights = *standard_weights(Predictor::kGemm);
  for (const CatalogEntry& entry : Catalog::built_in().list(CatalogKind::kGpu)) {
    const Gpu gpu = gpu_of(entry.id.c_str());
    const auto machine = make_machine(gpu, Mode::kSustained);
    if (!machine) continue;
    Gpu better = gpu;
    better.memory_bandwidth *= 1.5;
    const ReferenceGpu one = reference_gpu(weights, *machine),
                       changed = reference_gpu(weights, *make_machine(better, Mode::kSustained));
    if (one.nearest) {
      ASSERT_TRUE(changed.nearest) << entry.id;
      EXPECT_EQ(changed.nearest->neighbor.index, one.nearest->neighbor.index) << entry.id;
    }
    const auto usual = (*make_compute_model(gpu, {.mode = Mode::kSustained}))->forecast(kProduct);
    const auto faster = (*make_compute_model(better, {.mode = Mode::kSustained}))->forecast(kProduct);
    ASSERT_EQ(usual.has_value(), faster.has_value()) << entry.id;
    if (!usual) continue;  // it has no bf16
    EXPECT_LE(faster->latency, usual->latency) << entry.id;
  }
}

// Experts of a GPU without a measured neighbor.
TEST(Sources, WithoutAComparableGpuAllGpusAnswer) {
  const PredictorWeights& weights = *standard_weights(Predictor::kMoe);
  const Operator op{MixtureOfExperts{.tokens = 64, .hidden = 1024, .intermediate = 512, .experts = 8, .top_k = 2}};
  const Machine machine = *make_machine(h100(), Mode::kBurst);
  const Features features = features_of(Predictor::kMoe, machine, op, Mode::kBurst, weights.sums);
  const ReferenceGpu nothing;
  EXPECT_EQ(source_for({weights, Predictor::kMoe, op, Mode::kBurst, features, nothing, 0, false}).name, "all GPUs");
}

// Another generation's kernels differ too much to be scaled; what all GPUs have in common is not its alone.
TEST(Sources, OfAnotherGenerationAllGpusAnswer) {
  EXPECT_EQ(source_of(gpu_of("mi300x"), kProduct, Mode::kBurst), "all GPUs");
  EXPECT_EQ(source_of(gpu_of("rtx-pro-6000"), kProduct, Mode::kSustained), "all GPUs");
}

// What all GPUs have in common of a product or of attention is said of the operator alone: of two GPUs that nobody
// knows, the better one is never slower for a question that trees answer in another way.
TEST(Sources, WhatAllGpusHaveInCommonDoesNotDependOnTheDataSheet) {
  const Operator ops[] = {{Gemm{.m = 1236, .n = 1767, .k = 18}, DType::kBf16},
                          {Gemm{.m = 1083, .n = 57, .k = 5162}, DType::kFp8},
                          {Attention{.batch = 38,
                                     .heads = 24,
                                     .kv_heads = 24,
                                     .query_length = 698,
                                     .key_length = 698,
                                     .head_dim = 96,
                                     .value_dim = 96,
                                     .library = Library::kServing},
                           DType::kBf16}};
  for (const Operator& op : ops) {
    Gpu gpu = h100();
    gpu.id = gpu.name = "unknown", gpu.architecture = "unheard-of";
    const auto correction = [&](const Gpu& of) {
      const Predictor predictor = *predictor_of(op, of, Mode::kBurst);
      const PredictorWeights& weights = *standard_weights(predictor);
      const Machine machine = *make_machine(of, Mode::kBurst);
      const Features features = features_of(predictor, machine, op, Mode::kBurst, weights.sums);
      const ReferenceGpu reference = reference_gpu(weights, machine);
      const Case one{weights, predictor, op, Mode::kBurst, features, reference, 0, false};
      EXPECT_EQ(source_for(one).name, "all GPUs") << to_text(op);
      PendingCorrection pending;
      source_for(one).prepare(one, pending);
      PendingCorrection* const all[] = {&pending};
      evaluate(all);
      return pending.finish().seconds / features.base;
    };
    const double usual = correction(gpu);
    gpu.memory_bandwidth *= 1.7, gpu.sm_count = 160, gpu.l2_cache *= 2, gpu.boost_clock *= 1.3;
    for (const DType dtype : kAllDTypes) gpu.tensor[dtype] *= 1.4;
    EXPECT_DOUBLE_EQ(correction(gpu), usual) << to_text(op);
  }
}

// FP32 products were measured in ways that teach nothing about other GPUs.
TEST(Sources, WhereNothingCarriesOverPhysicsAnswers) {
  const Operator op{Gemm{.m = 4096, .n = 4096, .k = 4096}, DType::kFp32};
  EXPECT_EQ(source_of(gpu_of("b200-sxm"), op, Mode::kBurst), "physics");
  EXPECT_EQ(source_of(gpu_of("b200-sxm"), op, Mode::kSustained), "none");
}

// The nearest GPU is believed with its share, all others with the rest: 0.25 x 1.0 + 0.75 x 0.4 = 0.55 in logarithms.
// Where nothing was measured, the interval is half as wide again.
TEST(Corrections, AreMixedByShareAndWidenedOutside) {
  const Trees trees;
  Quantiles quantiles;
  for (std::size_t i = 0; i < quantiles.size(); ++i) quantiles[i] = i % 2 == 0 ? -0.5F : 0.5F;
  PendingCorrection pending;
  pending.base = 1e-3, pending.quantiles = &quantiles, pending.share = 0.25;
  pending.measured.trees = pending.other.trees = &trees;
  pending.measured.sum = 1.0, pending.other.sum = 0.4;
  const Correction inside = pending.finish();
  EXPECT_NEAR(std::log(inside.seconds / 1e-3), 0.55, 1e-12);
  EXPECT_NEAR(std::log(inside.high / inside.seconds), 0.5, 1e-9);
  pending.outside = true;
  const Correction outside = pending.finish();
  EXPECT_EQ(outside.seconds, inside.seconds);
  EXPECT_NEAR(std::log(outside.high / outside.seconds), 0.75, 1e-9);
  EXPECT_NEAR(std::log(outside.low / outside.seconds), -0.75, 1e-9);
}

// As independent errors do, in any order: 3 and 4 beyond one are 5.
TEST(Corrections, ReasonsToBeWideAddUp) {
  EXPECT_DOUBLE_EQ(widened(1, 1.5), 1.5);
  EXPECT_DOUBLE_EQ(widened(4, 5), 6);
  EXPECT_DOUBLE_EQ(widened(widened(1.7, 2), 1.5), widened(widened(1.5, 1.7), 2));
}

// A kernel that takes exp(1.0) of its base of 2 ms there, where this machine's base is 1 ms and no pipe is faster than
// 1.5 times: here it takes at least a factor of 1.5 less. ln(2 / 1) + 1.0 - ln(1.5) in logarithms of this base.
TEST(Corrections, OfAnotherMachineStayWithinItsPace) {
  const Trees trees;
  Quantiles quantiles;
  for (std::size_t i = 0; i < quantiles.size(); ++i) quantiles[i] = i % 2 == 0 ? -0.5F : 0.5F;
  PendingCorrection pending;
  pending.base = 1e-3, pending.quantiles = &quantiles;
  PendingCorrection::Term& term = pending.measured;
  term.trees = &trees, term.sum = 1.0;
  term.ratio = std::log(2.0), term.log_least_pace = -std::log(1.5), term.log_most_pace = 0;
  EXPECT_NEAR(pending.finish().seconds, 2e-3 * std::exp(1.0) / 1.5, 1e-12);
}

}  // namespace
}  // namespace ns_dist
