#include "ns_dist/compute_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ns_dist/catalog.h"
#include "support/gpus.h"

namespace ns_dist {
namespace {

using namespace units;

std::unique_ptr<ComputeCost> model_of(const Gpu& gpu, Mode mode = Mode::kSustained) {
  auto model = make_compute_model(gpu, {.mode = mode});
  EXPECT_TRUE(model) << (model ? "" : to_text(model.error()));
  return std::move(*model);
}

double milliseconds(const ComputeCost& model, const Operator& op) {
  const auto forecast = model.forecast(op);
  EXPECT_TRUE(forecast) << to_text(op) << ": " << (forecast ? "" : to_text(forecast.error()));
  return forecast ? forecast->latency / ms : std::nan("");
}

TEST(ComputeModel, RefusesAGpuThatCannotCompute) {
  EXPECT_FALSE(make_compute_model(Gpu{}));
  Gpu gpu = a100();
  gpu.sm_count = 0;
  EXPECT_FALSE(make_compute_model(gpu));
  gpu = a100();
  gpu.memory_bandwidth = BytesPerSecond();
  EXPECT_FALSE(make_compute_model(gpu));
  for (const double no_rate : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0}) {
    for (Hertz Gpu::*clock : {&Gpu::base_clock, &Gpu::boost_clock}) {
      gpu = a100();
      gpu.*clock = no_rate * Hz;
      EXPECT_FALSE(make_compute_model(gpu)) << no_rate;
    }
    gpu = a100();
    gpu.board_power = no_rate * W;
    EXPECT_FALSE(make_compute_model(gpu)) << no_rate;
    gpu = a100();
    gpu.l2_cache = no_rate * B;
    EXPECT_FALSE(make_compute_model(gpu)) << no_rate;
  }
}

// A GPU that is like one of the catalog is that one with its own numbers, measured or not: better ones make it no
// slower.
TEST(ComputeModel, AGpuLikeAnotherOneIsThatOne) {
  for (const char* id : {"a100-pcie-80gb", "mi355x", "l40s", "h100-sxm-80gb"}) {
    const Gpu sold = *Catalog::built_in().gpu(id);
    Gpu same = sold;
    same.id = same.name = "mine";
    same.like = id;
    Gpu better = same;
    better.memory_bandwidth *= 1.01;
    for (const Operator& op : {Operator{Gemm{.m = 8192, .n = 4096, .k = 4096}, DType::kBf16},
                               Operator{Normalization{NormalizationKind::kRmsNorm, 8192, 4096}, DType::kBf16}}) {
      const double as_sold = milliseconds(*model_of(sold), op);
      EXPECT_NEAR(milliseconds(*model_of(same), op) / as_sold, 1, 1e-9) << id << ": " << to_text(op);
      EXPECT_LE(milliseconds(*model_of(better), op), 1.0001 * as_sold) << id << ": " << to_text(op);
    }
  }
}

TEST(ComputeModel, RefusesAFormatTheGpuLacksAndNamesThoseItHas) {
  const auto forecast = model_of(a100())->forecast({Gemm{.m = 64, .n = 64, .k = 64}, DType::kFp8});
  ASSERT_FALSE(forecast);
  EXPECT_NE(to_text(forecast.error()).find("bf16"), std::string::npos) << to_text(forecast.error());
}

TEST(ComputeModel, RefusesInvalidOperators) { EXPECT_FALSE(model_of(a100())->forecast({Gemm{.m = 0}})); }

TEST(ComputeModel, ZeroFlopsIsNoDivisionByZero) {
  const auto model = model_of(a100());
  for (const Operator& op : {Operator{Copy{}}, Operator{UnknownOperator{}},
                             Operator{Elementwise{.elements = 1, .inputs = 0, .outputs = 0, .flops_per_element = 0}}}) {
    const auto forecast = model->forecast(op);
    ASSERT_TRUE(forecast);
    EXPECT_GT(forecast->latency / s, 0);
    EXPECT_TRUE(std::isfinite(forecast->utilization));
  }
}

// One transformer layer of GPT 22B on A100, tensor parallel 8, micro batch 4, fp16, without flash attention: 7.7 ms
// forward and 11.9 ms backward (Korthikanti et al. 2022, table 4). Each pass holds two all-reduces of 100 MB in 8
// ranks, 1.5 to 1.8 ms by NVLink's bandwidth, part of which backward hides. The kernels alone must leave that room.
TEST(ComputeModel, PlacesKorthikantisLayer) {
  const auto model = model_of(a100());
  const std::int64_t t = 8192, h = 6144, tp = 8, pairs = 4 * 8 * 2048, s = 2048;
  const auto sum = [&](std::initializer_list<OperatorKind> kinds) {
    double total = 0;
    for (const OperatorKind& kind : kinds) total += milliseconds(*model, {kind, DType::kFp16});
    return total;
  };
  const Elementwise dropout{.elements = pairs * s, .inputs = 1, .outputs = 1.5};
  const Elementwise residual{.elements = t * h, .inputs = 2, .outputs = 1.5};
  const Elementwise gelu{.elements = t * 4 * h / tp, .inputs = 1, .outputs = 1};
  const Gemm scores{.batch = 32, .m = s, .n = s, .k = 96}, context{.batch = 32, .m = s, .n = 96, .k = s};
  const double forward = sum({Normalization{.rows = t, .columns = h}, Gemm{.m = t, .n = 3 * h / tp, .k = h}, scores,
                              Softmax{.rows = pairs, .columns = s}, dropout, context, Gemm{.m = t, .n = h, .k = h / tp},
                              residual, Normalization{.rows = t, .columns = h}, Gemm{.m = t, .n = 4 * h / tp, .k = h},
                              gelu, Gemm{.m = t, .n = h, .k = 4 * h / tp}, residual});
  EXPECT_NEAR(forward, 7.7 - 1.65, 0.15 * 7.7);
}

// Learned corrections of both modes come from different tables, or twice from the same rows: 4 % of slack.
TEST(ComputeModel, SustainedIsNotFasterThanBurst) {
  for (const Gpu& gpu : test_gpus()) {
    const auto burst = model_of(gpu, Mode::kBurst), sustained = model_of(gpu, Mode::kSustained);
    const Operator op{Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kFp16};
    EXPECT_GE(milliseconds(*sustained, op), 0.96 * milliseconds(*burst, op)) << gpu.id;
  }
}

TEST(ComputeModel, ExplainsWithTheSameForecast) {
  const auto model = model_of(h100());
  const Operator op{Gemm{.m = 4096, .n = 4096, .k = 4096}, DType::kBf16};
  const auto explanation = model->explain(op);
  ASSERT_TRUE(explanation);
  EXPECT_EQ(explanation->forecast.latency, model->forecast(op)->latency);
  EXPECT_GE(explanation->steps.size(), 5u);
}

// An explanation tells which of the features no measured kernel has, and in which mode the kernel runs.
TEST(ComputeModel, ExplainsWhatIsExtrapolated) {
  const auto outside = [](std::int64_t m) {
    const Explanation explanation =
        *model_of(*Catalog::built_in().gpu("h200-sxm"))->explain({Gemm{.m = m, .n = 4096, .k = 4096}, DType::kBf16});
    std::vector<std::string> names;
    for (const ExplanationStep& step : explanation.steps) {
      if (step.note.find("; outside the fitted") != std::string::npos) names.push_back(step.name);
    }
    EXPECT_EQ(explanation.forecast.extrapolated, !names.empty());
    EXPECT_NE(explanation.subject.find(", "), std::string::npos) << explanation.subject;
    return names;
  };
  EXPECT_THAT(outside(4096), ::testing::IsEmpty());
  EXPECT_THAT(outside(std::int64_t{1} << 25), ::testing::Contains("log_m"));
}

TEST(ComputeModel, SaysWhenItDoesNotKnowTheOperator) {
  const auto forecast = model_of(h100())->forecast({UnknownOperator{"scan", 1e12 * FLOP, 1 * GB, 1 * GB}});
  ASSERT_TRUE(forecast);
  EXPECT_TRUE(forecast->extrapolated);
  EXPECT_GT(forecast->high / forecast->low, 2);
}

// Only additions, norms, rotations and gates were measured on this GPU in half precision. They say nothing of a
// softmax.
TEST(ComputeModel, KernelsOfASortNobodyMeasuredOnAGpuAreForecastByPhysics) {
  const auto model = model_of(*Catalog::standard().gpu("a100-sxm-80gb"), Mode::kBurst);
  const auto measured = model->forecast(
      {Normalization{.kind = NormalizationKind::kRmsNorm, .rows = 8192, .columns = 8192}, DType::kFp16});
  const auto other = model->forecast({Softmax{.rows = 32768, .columns = 4096}, DType::kFp16});
  ASSERT_TRUE(measured && other);
  EXPECT_NE(measured->method, other->method);
  EXPECT_GT(other->high / other->low, 1.3);
  const double least = 2.0 * 32768 * 4096 * 2 / 2.04e12;  // s, of reading and writing each element once
  EXPECT_LT(other->latency / units::s, 2 * least);
}

std::unique_ptr<ComputeCost> catalog_model(const char* id, Mode mode) {
  const auto gpu = Catalog::standard().gpu(id);
  EXPECT_TRUE(gpu) << id;
  return model_of(*gpu, mode);
}

// Bursts find in L2 what long runs and smaller GPUs do not; a correction of the one is none of the other.
TEST(ComputeModel, WhatFitsInL2OnTheMeasuredGpuDoesNotSlowAnother) {
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const char* id : {"l40s", "l4", "rtx-4090", "h100-sxm-80gb"}) {
      for (const Mode mode : {Mode::kBurst, Mode::kSustained}) {
        const auto model = catalog_model(id, mode);
        const double from_memory =  // s, of the weights alone
            static_cast<double>(8192) * 4096 * (size_of(dtype) / units::B) /
            (Catalog::standard().gpu(id)->memory_bandwidth / (units::B / units::s));
        const auto small = model->forecast({Gemm{.m = 1, .n = 8192, .k = 4096}, dtype});
        ASSERT_TRUE(small);
        EXPECT_LT(small->latency / units::s, 4 * from_memory + 20e-6) << id;
        const auto large = model->forecast({Gemm{.m = 1, .n = 32768, .k = 16384}, dtype});
        EXPECT_GT(large->latency, small->latency) << id;
      }
    }
  }
}

TEST(ComputeModel, ExplainsLongRunsOfAGpuThatWasMeasuredInBursts) {
  const Operator op{Gemm{.m = 4096, .n = 4096, .k = 4096}};
  for (const char* id : {"l40s", "b300-sxm", "l4"}) {
    const auto sustained = catalog_model(id, Mode::kSustained);
    const auto explanation = sustained->explain(op);
    ASSERT_TRUE(explanation) << id;
    EXPECT_EQ(explanation->forecast.latency, sustained->forecast(op)->latency);
    const double slowdown = milliseconds(*sustained, op) / milliseconds(*catalog_model(id, Mode::kBurst), op);
    EXPECT_GE(slowdown, 1) << id;
    EXPECT_LE(slowdown, 1.3 + 1e-9) << id;
  }
}

// A board with ECC among its data, with another data sheet: it is scaled from itself.
TEST(ComputeModel, AChangedBoardWithEccInLineIsScaledFromItself) {
  Gpu gpu = *Catalog::built_in().gpu("p4");
  ASSERT_TRUE(gpu.ecc_in_line);
  const Operator op{Softmax{.rows = 1, .columns = 244487}, DType::kFp32};
  const auto seconds = [&op](const Gpu& of) {
    return (*make_compute_model(of, {.mode = Mode::kBurst}))->forecast(op)->latency;
  };
  const Seconds as_sold = seconds(gpu);
  gpu.l2_cache *= 1.2;
  EXPECT_LE(seconds(gpu), 1.0001 * as_sold);
}

TEST(ComputeModel, ShortFormatsAndExpertsSlowDownInLongRunsAsMeasuredProductsDo) {
  const auto burst = catalog_model("h100-sxm-80gb", Mode::kBurst),
             sustained = catalog_model("h100-sxm-80gb", Mode::kSustained);
  const Operator experts{
      MixtureOfExperts{.tokens = 4096, .hidden = 4096, .intermediate = 14336, .experts = 8, .top_k = 2}};
  for (const Operator& op : {Operator{Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kFp8}, experts}) {
    const double slowdown = milliseconds(*sustained, op) / milliseconds(*burst, op);
    EXPECT_GT(slowdown, 1.05) << to_text(op);
    EXPECT_LT(slowdown, 1.31) << to_text(op);
  }
}

// Long runs of 8-bit products were measured on no GPU: on one that was measured in bursts they are known no better than
// those of BF16.
TEST(ComputeModel, IntervalsOfShortFormatsInLongRunsAreNotNarrowerThanThoseOfBf16) {
  const auto width = [](const ComputeCost& model, DType dtype, Scaling scaling) {
    const auto forecast = model.forecast({Gemm{.m = 8192, .n = 28672, .k = 4096, .scaling = scaling}, dtype});
    return forecast->high / forecast->low;
  };
  for (const char* id : {"b300-sxm", "gb300", "l4"}) {
    const auto model = catalog_model(id, Mode::kSustained);
    const double bf16 = width(*model, DType::kBf16, Scaling::kTensor);
    // Nobody measured L4: its quantiles are those of two fits.
    const bool measured = std::string_view(id) != "l4";
    EXPECT_GE(width(*model, DType::kFp8, Scaling::kTensor), measured ? bf16 : 0.99 * bf16) << id;
    if (!measured) continue;  // Ada has no blocks
    EXPECT_GE(width(*model, DType::kFp8, Scaling::kBlock), bf16) << id;
  }
}

// The same FP32 kernels took 4 % more or less inside a model (median), which scattered by less than 1 % when they ran
// one after the other in a benchmark.
TEST(ComputeModel, KernelsOfOneSessionDifferInAnother) {
  const auto model = catalog_model("v100-pcie-32gb", Mode::kBurst);
  for (const OperatorKind& kind :
       {OperatorKind(Elementwise{.elements = 1 << 24}), OperatorKind(Gemm{.m = 4096, .n = 4096, .k = 1024}),
        OperatorKind(Gemm{.batch = 64, .m = 512, .n = 512, .k = 64})}) {
    const Forecast each = *model->forecast({kind, DType::kFp32});
    EXPECT_EQ(each.method, "trees over measured kernels of this GPU");
    EXPECT_GT(std::log(each.latency / each.low), 0.09);
    EXPECT_GT(std::log(each.high / each.latency), 0.09);
  }
}

// FP32 products of GPUs that were not measured are forecast by physics alone: its errors on the five measured GPUs,
// each left out in turn, are those of any other one. A generation teaches nothing (the only one with two measured GPUs
// is Pascal), and a data sheet that is outside of theirs asks no trees.
TEST(ComputeModel, PhysicsErrsOnAllOtherGpusAlike) {
  const Operator op{Gemm{.m = 4096, .n = 4096, .k = 4096}, DType::kFp32};
  const auto of = [&](const char* id) {
    const auto forecast = *catalog_model(id, Mode::kBurst)->forecast(op);
    EXPECT_FALSE(forecast.extrapolated) << id;
    return std::pair(forecast.low / forecast.latency, forecast.high / forecast.latency);
  };
  const auto [low, high] = of("l4");
  EXPECT_NEAR(low, 0.806, 0.01);  // the quantiles of compute_model/weights/gemm_fp32-v1: -0.216 and 0.978
  EXPECT_NEAR(high, 2.66, 0.01);
  for (const char* id : {"a100-sxm-80gb", "v100-sxm2-32gb", "rtx-5090", "h200-sxm", "b200-sxm"}) {
    EXPECT_GE(of(id).first, low - 1e-9) << id;  // no faster than the floor
    EXPECT_NEAR(of(id).second, high, 1e-9) << id;
  }
}

// Whatever is derived from a kernel names the source of that one.
TEST(ComputeModel, NothingIsCalledMeasuredThatWasNot) {
  const auto method = [](const char* id, const Operator& op) {
    return std::string(catalog_model(id, Mode::kSustained)->forecast(op)->method);
  };
  const Operator product{Gemm{.m = 8192, .n = 8192, .k = 4096}, DType::kFp8},
      batch{Gemm{.batch = 8, .m = 1024, .n = 1024, .k = 1024}},
      experts{GroupedGemm{.experts = 8, .rows = 8192, .n = 4096, .k = 4096}};
  for (const Operator& op : {product, batch, experts}) {
    EXPECT_NE(method("h100-sxm-80gb", op).find("of this GPU"), std::string::npos) << to_text(op);
    EXPECT_NE(method("gb300", op).find("of the nearest GPU"), std::string::npos) << to_text(op);
    EXPECT_NE(method("mi300x", op).find("of other GPUs"), std::string::npos) << to_text(op);
  }
}

// Of 16 bits on AMD's GPUs no stream was measured in training: on MI210 copies took up to 2.3 times the forecast, and
// softmax 2 to 3.8 times.
TEST(ComputeModel, StreamsOnAmdAreUncertain) {
  const auto model = catalog_model("mi300x", Mode::kSustained);
  const auto above = [&](const OperatorKind& kind) {
    const Forecast forecast = *model->forecast({kind, DType::kBf16});
    EXPECT_TRUE(forecast.extrapolated);
    return forecast.high / forecast.latency;
  };
  EXPECT_GE(above(Copy{1 * GB}), 2.3);
  EXPECT_GE(above(Softmax{.rows = 1 << 16, .columns = 1 << 12}), 3.3);
  EXPECT_GE(above(Normalization{.rows = 1 << 16, .columns = 1 << 12}), 3.3);
}

// Exponentials of B200: 16 a clock and SM, as many in FP8.
TEST(ComputeModel, ShortFormatsSpeedUpTheProductsOfAttentionAlone) {
  const auto model = catalog_model("b200-sxm", Mode::kBurst);
  const Attention attention{.batch = 4,
                            .heads = 16,
                            .kv_heads = 16,
                            .query_length = 8192,
                            .key_length = 8192,
                            .head_dim = 128,
                            .value_dim = 128,
                            .causal = false};
  const double half = milliseconds(*model, {attention, DType::kBf16}),
               fp8 = milliseconds(*model, {attention, DType::kFp8});
  EXPECT_LT(fp8, half);
  EXPECT_GT(fp8, 0.6 * half);
}

// The gradients of attention are 5 products to the forward pass's 2, in 8 bits, too, where no backward kernel was
// measured; 8 bits halve the products at most.
TEST(ComputeModel, AttentionInEightBitsGoesBackwardWithFiveProducts) {
  for (const char* gpu : {"l40s", "rtx-4090", "mi300x", "rtx-pro-6000"}) {
    const auto model = catalog_model(gpu, Mode::kSustained);
    Attention attention{.batch = 1, .heads = 32, .kv_heads = 32, .query_length = 4096, .key_length = 4096};
    attention.head_dim = attention.value_dim = 128, attention.causal = false;
    const double forward = milliseconds(*model, {attention, DType::kFp8});
    attention.pass = Pass::kBackward;
    const double backward = milliseconds(*model, {attention, DType::kFp8}),
                 half = milliseconds(*model, {attention, DType::kBf16});
    EXPECT_GT(backward, 1.8 * forward) << gpu;
    EXPECT_LE(backward, half) << gpu;
    EXPECT_GE(backward, 0.49 * half) << gpu;
  }
}

// H20 is an H200 with a seventh of the tensor units' rate: what waits for memory takes as long.
TEST(ComputeModel, BoardsWithAPartOfTheRateWaitForMemoryNoLonger) {
  const Operator few_rows{Gemm{.m = 1, .n = 28672, .k = 8192}, DType::kBf16};
  EXPECT_LT(milliseconds(*catalog_model("h20-141gb", Mode::kSustained), few_rows),
            1.25 * milliseconds(*catalog_model("h200-sxm", Mode::kSustained), few_rows));
}

// RTX 4090 copies 918 to 924 of 1,008 GB/s (p2pBandwidthLatencyTest); T4, whose ECC lies in line, moves 0.77 of its
// 320.
TEST(ComputeModel, EccInLineTakesBandwidth) {
  const Operator copy{Copy{2 * GB}, DType::kBf16};
  const auto rate = [&](const char* gpu) {  // GB/s, read and written
    return 4e3 / milliseconds(*catalog_model(gpu, Mode::kBurst), copy);
  };
  EXPECT_NEAR(rate("rtx-4090"), 920, 9);
  EXPECT_NEAR(rate("t4"), 0.77 * 320, 5);
}

// L4's 72 W pay for no more in attention than in a matrix product. GB200 was measured: 24.3 ms (1,810 TFLOP/s), which
// is above the ceiling of its products.
TEST(ComputeModel, AttentionDrawsThePowerOfItsProductsWhereNobodyMeasuredIt) {
  Attention measured{.batch = 2, .heads = 128, .kv_heads = 128, .query_length = 16384, .key_length = 16384};
  measured.head_dim = 192, measured.value_dim = 128, measured.causal = false, measured.library = Library::kCudnn;
  EXPECT_NEAR(milliseconds(*catalog_model("gb200", Mode::kBurst), {measured, DType::kBf16}), 24.3, 1);
  const auto model = catalog_model("l4", Mode::kSustained);
  Attention attention{.batch = 4, .heads = 32, .kv_heads = 32, .query_length = 4096, .key_length = 4096};
  attention.head_dim = attention.value_dim = 128, attention.causal = false, attention.pass = Pass::kBackward;
  const double flops = 5 * 2 * 128.0 * 4096 * 4096 * 4 * 32;
  const double product = milliseconds(*model, {Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kBf16});
  EXPECT_GT(milliseconds(*model, {attention, DType::kBf16}) / flops, 0.95 * product / (2 * std::pow(8192.0, 3)));
}

// Bursts find the weights in L40S's L2, long runs do not: 33.6 MB at 78 % of 864 GB/s.
TEST(ComputeModel, LongRunsStreamTheirOperands) {
  const Gemm one_row{.m = 1, .n = 4096, .k = 4096};
  const double bytes = (4096.0 * 4096 + 2 * 4096) * 2;
  EXPECT_GE(milliseconds(*catalog_model("l40s", Mode::kSustained), {one_row, DType::kBf16}),
            0.999 * bytes / (0.78 * 864e9) * 1e3);
}

// P4 has a 64th of the rate in packed halves: they are multiplied in fp32.
TEST(ComputeModel, SlowHalvesAreMultipliedInSinglePrecision) {
  const auto model = catalog_model("p4", Mode::kSustained);
  const Gemm square{.m = 4096, .n = 4096, .k = 4096};
  EXPECT_LE(milliseconds(*model, {square, DType::kFp16}), milliseconds(*model, {square, DType::kFp32}));
}

// No library's kernels read fp32: the rate is a share of that of fp32 products, and nobody measured it.
TEST(ComputeModel, FusedAttentionInSinglePrecisionHasARateOfItsOwn) {
  for (const char* gpu : {"a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm", "l40s"}) {
    const auto model = catalog_model(gpu, Mode::kSustained);
    for (const DType dtype : {DType::kFp32, DType::kTf32}) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        Attention attention{.batch = 8, .heads = 16, .kv_heads = 16, .query_length = 2048, .key_length = 2048};
        attention.head_dim = attention.value_dim = 128, attention.pass = pass;
        const auto forecast = model->forecast({attention, dtype});
        ASSERT_TRUE(forecast);
        EXPECT_LT(forecast->utilization, 0.6) << gpu << to_text(Operator{attention, dtype});
        EXPECT_TRUE(forecast->extrapolated) << gpu;
      }
    }
  }
}

// Half the clock, and half the peak with it, of a GPU that nobody measured: the nearest is still of its architecture.
TEST(ComputeModel, HalfTheClockIsNotFaster) {
  Gpu slow = *Catalog::standard().gpu("h100-sxm-80gb");
  const Operator op{Gemm{.m = 8192, .n = 8192, .k = 8192}};
  const double usual = milliseconds(*model_of(slow, Mode::kBurst), op);
  slow.boost_clock = 0.5 * slow.boost_clock;
  slow.tensor[DType::kBf16] = 0.5 * slow.tensor[DType::kBf16];
  EXPECT_GE(milliseconds(*model_of(slow, Mode::kBurst), op), usual);
}

TEST(ComputeModel, NamesAFormatThatTheGpuHas) {
  const auto refused =
      catalog_model("v100-pcie-32gb", Mode::kBurst)->forecast({Gemm{.m = 8, .n = 8, .k = 8}, DType::kFp8});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().hint, "choose fp16");
}

// Boards are measured at 0.7 to 1.0 of their limit on large products, and far below it on small ones.
TEST(ComputeModel, LargeProductsDrawTheBoardsPowerAndSmallOnesDoNot) {
  const auto model = make_compute_model(h100());
  const auto share = [&](std::int64_t size) {
    const Operator op{Gemm{.m = size, .n = size, .k = size}, DType::kBf16};
    return (*model)->forecast(op)->power / h100().board_power;
  };
  EXPECT_GT(share(8192), 0.7);
  EXPECT_LE(share(8192), 1);
  EXPECT_GT(share(64), 0);
  EXPECT_LT(share(64), 0.7);
  // Nobody measured it in bursts, or of other kernels.
  const auto burst = make_compute_model(h100(), {.mode = Mode::kBurst});
  EXPECT_EQ((*burst)->forecast({Gemm{.m = 8192, .n = 8192, .k = 8192}})->power, 0 * units::W);
  EXPECT_EQ((*model)->forecast({Copy{1 * units::GB}})->power, 0 * units::W);
}

// Activations are read in 16 bits and written in 8 before their product, which the product alone does not pay for.
TEST(ComputeModel, QuantizationIsNoPartOfAProduct) {
  const auto model = model_of(h100());
  Gemm product{.m = 16384, .n = 4096, .k = 4096};
  const double alone = milliseconds(*model, {product, DType::kFp8});
  product.quantizes = true;
  EXPECT_GE(milliseconds(*model, {product, DType::kFp8}) - alone, 1e3 * 3 * 16384.0 * 4096 / 3.35e12);
}

TEST(ComputeModel, NamesWhatBindsMeasuredKernels) {
  const auto model = model_of(h100());
  const auto bound = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    return model->forecast({Gemm{.m = m, .n = n, .k = k}, DType::kBf16})->bound;
  };
  EXPECT_EQ(bound(8192, 8192, 8192), Bound::kCompute);
  EXPECT_EQ(bound(8, 16384, 16384), Bound::kMemory);
  EXPECT_EQ(bound(16, 16, 16), Bound::kLaunch);
}

// 6 bytes an element more than without, at 0.91 of the bandwidth, half of them behind products.
TEST(ComputeModel, AccumulationInFp32TakesTimeBesideAMeasuredProduct) {
  const auto model = model_of(h100());
  Gemm product{.m = 8192, .n = 8192, .k = 8192};
  const double alone = milliseconds(*model, {product, DType::kBf16});
  product.epilogue = Epilogue::kAccumulateFp32;
  EXPECT_NEAR(milliseconds(*model, {product, DType::kBf16}) - alone, 0.5 * 6 * 8192 * 8192 / (0.91 * 3.35e12) * 1e3,
              1e-6);
}

// As many rows as four products of 32,768, the most that were measured.
TEST(ComputeModel, ABatchTakesAsLongAsItsProducts) {
  const auto model = model_of(h100());
  const double batch = milliseconds(*model, {Gemm{.batch = 128, .m = 1024, .n = 1024, .k = 1024}, DType::kBf16});
  EXPECT_NEAR(batch / milliseconds(*model, {Gemm{.m = 32768, .n = 1024, .k = 1024}, DType::kBf16}), 4, 0.4);
}

// GPT-2's 50,257 logits: seven times as long as 50,304 on an H100. Measured there: 13.5, 10.2 and 9.3 ms.
// Causal rows were measured with paged keys and values, as inference serves them; those without a mask with plain ones,
// as training has both.
// Few rows for each expert: the weights' traffic bounds them, whatever the product of all rows would take. (500 us for
// 512 rows on A100 between 684 us for 256 and 612 us for 1,024.)
TEST(ComputeModel, MoreRowsOfExpertsTakeNoLessTime) {
  for (const char* id : {"a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm", "h20", "mi300x"}) {
    const auto model = model_of(*Catalog::built_in().gpu(id));
    double longest = 0;
    for (std::int64_t rows = 16; rows <= 65536; rows *= 2) {
      const double time =
          milliseconds(*model, {GroupedGemm{.experts = 16, .rows = rows, .n = 4096, .k = 7168}, DType::kBf16});
      EXPECT_GT(time / longest, 0.9) << id << ": " << rows;
      longest = std::max(longest, time);
    }
  }
}

// A larger L2 holds the product with all rows from which a batch's time is derived: that makes the batch no slower.
TEST(ComputeModel, ALargerL2MakesNoBatchSlower) {
  for (const char* id : {"l40s", "rtx-4090", "h100-sxm-80gb", "a100-sxm-80gb"}) {
    const Gpu sold = *Catalog::built_in().gpu(id);
    for (const double factor : {2.0, 4.0}) {
      Gpu better = sold;
      better.l2_cache *= factor;
      for (const auto mode : {Mode::kBurst, Mode::kSustained}) {
        for (const std::int64_t batch : {8, 32, 128}) {
          for (const std::int64_t length : {256, 1024, 4096}) {
            for (const Gemm product : {Gemm{.batch = batch, .m = length, .n = length, .k = 128},
                                       Gemm{.batch = batch, .m = length, .n = 128, .k = length}}) {
              const Operator op{product, DType::kBf16};
              const auto time = [&](const Gpu& gpu) { return model_of(gpu, mode)->forecast(op)->latency; };
              EXPECT_LE(time(better) / time(sold), 1.01) << to_text(op) << " on " << id << " with L2 times " << factor;
            }
          }
        }
      }
    }
  }
}

TEST(ComputeModel, AMaskMakesTrainingsAttentionNoSlower) {
  for (const char* gpu : {"l40s", "a100", "rtx-6000-ada"}) {
    const auto model = model_of(*Catalog::built_in().gpu(gpu));
    for (const std::int64_t length : {256, 512, 1024, 4096}) {
      for (const std::int64_t head : {64, 128}) {
        Attention attention{.batch = 32,
                            .heads = 16,
                            .kv_heads = 16,
                            .query_length = length,
                            .key_length = length,
                            .head_dim = head,
                            .value_dim = head,
                            .library = Library::kFlash2};
        const Forecast causal = *model->forecast({attention});
        attention.causal = false;
        EXPECT_LE(causal.latency, model->forecast({attention})->latency) << gpu << " " << length << " " << head;
        if (length == 256) continue;
        EXPECT_LT(causal.low, causal.latency) << gpu << " " << length << " " << head;
      }
    }
  }
}

// Nothing reads and writes a tensor faster than a copy does.
TEST(ComputeModel, NormalizationIsNoFasterThanACopy) {
  for (const char* gpu : {"l4", "a100", "h100", "b200"}) {
    const auto model = model_of(*Catalog::built_in().gpu(gpu));
    for (const Library library : {Library::kCompiled, Library::kCudnn, Library::kEager}) {
      const Normalization norm{.kind = NormalizationKind::kRmsNorm, .rows = 65536, .columns = 4096, .library = library};
      EXPECT_GE(milliseconds(*model, {norm, DType::kBf16}),
                0.99 * milliseconds(*model, {Copy{.bytes = 2.0 * 65536 * 4096 * units::B}, DType::kBf16}))
          << gpu;
    }
  }
}

// Backward in fp32 the same kernels as in half precision run on twice the bytes.
TEST(ComputeModel, NormalizationBackwardIsNoFasterInFp32) {
  const auto model = model_of(*Catalog::built_in().gpu("h200"));
  for (const Library library : {Library::kEager, Library::kCompiled, Library::kCudnn}) {
    const Normalization norm{.rows = 65536, .columns = 1024, .pass = Pass::kBackward, .library = library};
    EXPECT_GE(milliseconds(*model, {norm, DType::kFp32}), milliseconds(*model, {norm, DType::kBf16}));
  }
}

// Batches with rows that fill no line of 16 bytes run on vector units where that was seen, on A100. From Hopper on they
// are products like others, or have the kernels of odd rows.
TEST(ComputeModel, ABatchOfOddRowsTakesNoLongerThanItsProductsFromHopperOn) {
  for (const char* gpu : {"h100", "b200"}) {
    const auto model = model_of(*Catalog::built_in().gpu(gpu));
    for (const std::int64_t n : {1020, 1023}) {
      Gemm gemm{.m = 1024, .n = n, .k = 1024};
      const double one = milliseconds(*model, {gemm});
      gemm.batch = 2;
      EXPECT_LE(milliseconds(*model, {gemm}), 2 * one) << gpu << " " << n;
    }
  }
  const auto ampere = model_of(a100());
  EXPECT_GT(milliseconds(*ampere, {Gemm{.batch = 2, .m = 1024, .n = 1020, .k = 1024}}),
            10 * milliseconds(*ampere, {Gemm{.batch = 2, .m = 1024, .n = 1024, .k = 1024}}));
}

TEST(ComputeModel, RowsOfAnOddNumberOfElementsAreSlow) {
  const auto model = make_compute_model(*Catalog::built_in().gpu("h100-sxm-80gb"));
  ASSERT_TRUE(model);
  const auto seconds = [&](const Gemm& gemm, DType dtype = DType::kBf16) {
    return (*model)->forecast({gemm, dtype})->latency / units::s;
  };
  const double padded = seconds({.m = 8192, .n = 50304, .k = 1600});
  for (const auto& [gemm, measured] :
       {std::pair(Gemm{.m = 8192, .n = 50257, .k = 1600}, 13.5e-3),
        std::pair(Gemm{.m = 8192, .n = 1600, .k = 50257, .layout = GemmLayout::kNT}, 10.2e-3),
        std::pair(Gemm{.m = 50257, .n = 1600, .k = 8192, .layout = GemmLayout::kTN}, 9.3e-3)}) {
    const Forecast forecast = *(*model)->forecast({gemm, DType::kBf16});
    EXPECT_GT(forecast.latency / units::s, 4 * padded);
    EXPECT_LT(forecast.low / units::s, measured);
    EXPECT_GT(forecast.high / units::s, measured);
    EXPECT_TRUE(forecast.extrapolated);
  }
  EXPECT_LT(seconds({.m = 8192, .n = 50258, .k = 1600}), 1.2 * padded) << "nobody measured rows of two elements";
  EXPECT_LT(seconds({.m = 8192, .n = 50257, .k = 1600}, DType::kFp32),
            1.1 * seconds({.m = 8192, .n = 50304, .k = 1600}, DType::kFp32));
  EXPECT_LT(seconds({.m = 8192, .n = 1, .k = 4097}), 1e-3) << "a product with a vector";
}

}  // namespace
}  // namespace ns_dist
