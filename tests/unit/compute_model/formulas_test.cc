// The formulas of the analytic model by numbers worked by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "compute_model_gpus.h"
#include "families.h"
#include "ns_dist/compute_model.h"

namespace ns_dist {
namespace {

using namespace units;

// 100 SMs of 1 TFLOP/s in half precision, and bandwidth beyond what the products here ask for.
Gpu hundred_sms() { return make_test_gpu("hundred", "unheard-of", 7, 100, 100, 0, 10, "HBM2", 1e6, 40, 0); }

struct Answer {
  Forecast forecast;
  std::map<std::string, double> steps;  // those that are numbers
};
Answer answer(const Gpu& gpu, const Operator& op, Mode mode = Mode::kBurst) {
  const auto model = make_compute_model(gpu, {.mode = mode, .analytic = true});
  EXPECT_TRUE(model);
  const auto explanation = (*model)->explain(op);
  EXPECT_TRUE(explanation);
  Answer out{explanation->forecast, {}};
  for (const ExplanationStep& step : explanation->steps) {
    char* end = nullptr;
    const double value = std::strtod(step.value.c_str(), &end);
    if (*end == '\0') out.steps[step.name] = value;
  }
  return out;
}
double seconds(const Gpu& gpu, const Operator& op, Mode mode = Mode::kBurst) {
  return answer(gpu, op, mode).forecast.latency / s;
}
Operator product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {Gemm{.m = m, .n = n, .k = k}, DType::kFp16};
}

// A tile's pipeline takes k in stages of 64.
TEST(Formulas, KIsPaddedToStages) {
  const Gpu gpu = hundred_sms();
  const auto compute = [&](std::int64_t k) { return answer(gpu, product(8192, 8192, k)).steps.at("compute_s"); };
  EXPECT_DOUBLE_EQ(compute(65), compute(128));
  EXPECT_DOUBLE_EQ(compute(1), compute(64));
  EXPECT_NEAR(compute(128) / compute(64), 2, 1e-5);
  EXPECT_NEAR(compute(192) / compute(64), 3, 1e-5);
}

// 10 x 10 tiles of 256 x 128 are one wave of 100 SMs: the product at the rate of large products, 0.72 of the peak for
// an architecture that nobody measured. An eleventh row of them makes 220 tiles of 128 x 128: 2.2 waves, the last of
// which is half hidden, so 2.6 waves of half the work at 0.95 of the rate.
TEST(Formulas, TilesComeInWaves) {
  const Gpu gpu = hundred_sms();
  const std::int64_t k = 1 << 16;
  const double one = answer(gpu, product(2560, 1280, k)).steps.at("compute_s");
  EXPECT_NEAR(one, 2 * 2560.0 * 1280 * static_cast<double>(k) / 0.72e14, 1e-5 * one);
  const Answer more = answer(gpu, product(2816, 1280, k));
  EXPECT_NEAR(more.steps.at("compute_s") / one, 2.6 * 0.5 / 0.95, 1e-4);
  EXPECT_EQ(more.steps.at("waves"), 3);
}

// FlashAttention's papers: backward at 0.8 of the forward rate, of five products instead of two.
TEST(Formulas, AttentionGoesBackwardAtFourFifthsOfItsRate) {
  const Gpu gpu = test_gpus()[2];
  ASSERT_EQ(gpu.architecture, "volta");
  const auto steps = [&](Pass pass) {
    return answer(gpu, {Attention{.batch = 8,
                                  .heads = 16,
                                  .query_length = 4096,
                                  .key_length = 4096,
                                  .head_dim = 128,
                                  .value_dim = 128,
                                  .pass = pass},
                        DType::kFp16})
        .steps;
  };
  const auto forward = steps(Pass::kForward), backward = steps(Pass::kBackward);
  EXPECT_DOUBLE_EQ(forward.at("share_of_peak"), 0.5);
  EXPECT_DOUBLE_EQ(backward.at("share_of_peak"), 0.4);
  EXPECT_NEAR(backward.at("compute_s") / forward.at("compute_s"), 2.5 / 0.8, 1e-4);
}

// A kernel alone needs 2 us; one in a stream of others, 1 us more.
TEST(Formulas, KernelsInAStreamLeaveAGap) {
  const Operator nothing{Elementwise{.elements = 1, .inputs = 1, .outputs = 1}, DType::kFp16};
  EXPECT_NEAR(seconds(hundred_sms(), nothing, Mode::kBurst), 2e-6, 1e-8);
  EXPECT_NEAR(seconds(hundred_sms(), nothing, Mode::kSustained), 3e-6, 1e-8);
}

// Dense products for long, as steps have them, run at a lower clock than one alone: 0.66 instead of 0.72 here.
TEST(Formulas, LongRunsAreNotBursts) {
  const Operator large = product(25600, 12800, 8192);
  const double burst = answer(hundred_sms(), large, Mode::kBurst).steps.at("compute_s");
  const double sustained = answer(hundred_sms(), large, Mode::kSustained).steps.at("compute_s");
  EXPECT_NEAR(sustained / burst, 0.72 / 0.66, 1e-5);
}

// Each expert costs 3 us for its first and last tiles, and 8.6 us at least, which the host needs to launch it.
TEST(Formulas, ExpertsCostByTheirNumber) {
  const Gpu gpu = hundred_sms();
  const auto grouped = [&](std::int64_t experts, std::int64_t rows, std::int64_t n, std::int64_t k) {
    return seconds(gpu, {GroupedGemm{.experts = experts, .rows = rows, .n = n, .k = k}, DType::kFp16});
  };
  EXPECT_NEAR(grouped(64, 64, 64, 64), 64 * 8.6e-6, 1e-9);
  EXPECT_NEAR(grouped(128, 128, 64, 64), 128 * 8.6e-6, 1e-9);
  const double batched =
      seconds(gpu, {Gemm{.batch = 16, .m = 4096, .n = 4096, .k = 4096, .layout = GemmLayout::kNT}, DType::kFp16});
  EXPECT_NEAR(grouped(16, 16 * 4096, 4096, 4096) - batched, 16 * 3e-6, 1e-8);
}

TEST(Formulas, BoundsAreNamedByWhatBinds) {
  const Gpu gpu = a100();
  const auto bound = [&](const Operator& op) { return answer(gpu, op).forecast.bound; };
  EXPECT_EQ(bound(product(8192, 8192, 8192)), Bound::kCompute);
  EXPECT_EQ(bound(product(8, 16384, 16384)), Bound::kMemory);
  EXPECT_EQ(bound(product(16, 16, 16)), Bound::kLaunch);
  EXPECT_EQ(bound({Elementwise{.elements = 1'000'000'000, .inputs = 1, .outputs = 1}, DType::kFp16}), Bound::kMemory);
  EXPECT_EQ(bound({Elementwise{.elements = 1, .inputs = 1, .outputs = 1}, DType::kFp16}), Bound::kLaunch);
}

}  // namespace
}  // namespace ns_dist
