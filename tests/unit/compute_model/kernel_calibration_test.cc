#include "ns_dist/kernel_calibration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>

#include "calibration.h"
#include "ns_dist/csv_table.h"
#include "ns_dist/operator_text.h"
#include "support/gpus.h"

namespace ns_dist {
namespace {

// Rows that took `factor` times what the plain model says.
std::string measured(const Gpu& gpu, double factor, int rows, Mode mode) {
  const auto model = make_compute_model(gpu, {.mode = mode});
  std::string text = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 1; i <= rows; ++i) {
    const Operator op{Gemm{.m = 512 * i, .n = 4096, .k = 1024 + 128 * i}, DType::kBf16};
    text += fmt::format("linear,bf16,{},4096,{},{}\n", 512 * i, 1024 + 128 * i,
                        (*model)->forecast(op)->latency / units::ms * factor);
  }
  return text;
}

KernelCalibration calibrated(const Gpu& gpu, double factor) {
  const auto table = CsvTable::parse(measured(gpu, factor, 24, Mode::kSustained), "measured.csv");
  const auto calibration = calibrate_kernels(gpu, *table, {});
  EXPECT_TRUE(calibration) << to_text(calibration.error());
  return *calibration;
}

TEST(KernelCalibration, AFewRowsCarryToShapesLikeThem) {
  const KernelCalibration calibration = calibrated(h100(), 1.3);
  ASSERT_EQ(calibration.families.size(), 1U);
  EXPECT_EQ(calibration.families[0].family, "gemm");
  EXPECT_NEAR(calibration.families[0].before, 1 - 1 / 1.3, 1e-6);
  EXPECT_LT(calibration.families[0].after, 0.03);
  const auto plain = make_compute_model(h100());
  const auto corrected =
      make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(calibration)});
  ASSERT_TRUE(corrected) << to_text(corrected.error());
  const Operator like{Gemm{.m = 4096, .n = 5120, .k = 2048}, DType::kBf16};
  const Forecast before = *(*plain)->forecast(like), after = *(*corrected)->forecast(like);
  EXPECT_NEAR(after.latency / before.latency, 1.3, 0.04);
  EXPECT_EQ(after.method, "corrected by measurements of this GPU");
  // Twelve rows a factor apart tell more than a forecast from other GPUs.
  EXPECT_LT(after.high / after.low, before.high / before.low);
  // Another family, and a kernel far from all that was measured, keep their forecasts.
  const Operator other{Elementwise{.elements = 1 << 24}, DType::kBf16};
  EXPECT_EQ((*plain)->forecast(other)->latency, (*corrected)->forecast(other)->latency);
}

// Of products as long and as bound by compute as each other, one took a fifth longer: it is forecast so, and the others
// nearly as before.
TEST(KernelCalibration, AKernelThatWasMeasuredTakesWhatWasMeasured) {
  const auto plain = make_compute_model(h100(), {.mode = Mode::kSustained});
  std::string text = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 0; i < 9; ++i) {
    const Operator op{Gemm{.m = 4096 + 64 * i, .n = 8192, .k = 4096}, DType::kBf16};
    text += fmt::format("linear,bf16,{},8192,4096,{:.17g}\n", 4096 + 64 * i,
                        (*plain)->forecast(op)->latency / units::ms * (i == 4 ? 1.2 : 1));
  }
  const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {.mode = Mode::kSustained});
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  const auto corrected = make_compute_model(
      h100(), {.mode = Mode::kSustained, .calibration = std::make_shared<const KernelCalibration>(*calibration)});
  const auto factor = [&](std::int64_t m, GemmLayout layout = GemmLayout::kNT) {
    const Operator op{Gemm{.m = m, .n = 8192, .k = 4096, .layout = layout}, DType::kBf16};
    return (*corrected)->forecast(op)->latency / (*plain)->forecast(op)->latency;
  };
  EXPECT_GT(factor(4096 + 64 * 4), 1.12);
  EXPECT_LT(factor(4096 + 64 * 3), 1.04);
  EXPECT_LT(factor(4096 + 64 * 4, GemmLayout::kNN), 1.04);
}

// Kernels of other sizes are of one kind, also where a size has its default and is not written; another library is not.
TEST(KernelCalibration, AKindIsWhatIsNoSize) {
  const auto kind = [](Attention attention) { return kind_of_kernel(to_spec({attention, DType::kBf16})); };
  const Attention one{.batch = 1, .heads = 32, .kv_heads = 8, .query_length = 4096, .key_length = 4096};
  Attention four = one, narrow = one, wide = one, second = one, third = one;
  four.batch = 4, four.kv_heads = 32;
  narrow.window = 128, wide.window = 1024;
  second.library = Library::kFlash2, third.library = Library::kFlash3;
  EXPECT_EQ(kind(one), kind(four));
  EXPECT_EQ(kind(narrow), kind(wide));
  EXPECT_NE(kind(one), kind(wide));
  EXPECT_NE(kind(second), kind(third));
  EXPECT_EQ(kind_of_kernel("gemm dtype=bf16 m=8 n=8 k=8 layout=tn epilogue=accumulate_fp32"),
            "layout=tn epilogue=accumulate_fp32");
}

// Both passes were measured: the backward pass took 1.5 times as long as forecast, the forward pass as long. Each pass
// of other sizes follows its own.
TEST(KernelCalibration, ASlowPassLeavesTheOtherPassAsItIs) {
  const auto op_of = [](std::int64_t batch, std::int64_t tokens, Pass pass) {
    Attention attention{.batch = batch, .heads = 32, .kv_heads = 8, .query_length = tokens, .key_length = tokens};
    attention.head_dim = attention.value_dim = 128;
    attention.pass = pass;
    return Operator{attention, DType::kBf16};
  };
  const auto plain = make_compute_model(h100());
  std::string text = "op,dtype,pass,library,b,h,h_kv,s,d,latency_ms\n";
  for (const std::int64_t batch : {1, 4}) {
    for (const std::int64_t tokens : {1024, 2048, 4096, 8192}) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const double ms = (*plain)->forecast(op_of(batch, tokens, pass))->latency / units::ms;
        text +=
            fmt::format("attention,bf16,{},default,{},32,8,{},128,{:.17g}\n", pass == Pass::kBackward ? "bwd" : "fwd",
                        batch, tokens, ms * (pass == Pass::kBackward ? 1.5 : 1));
      }
    }
  }
  const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {});
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  const auto corrected =
      make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(*calibration)});
  for (const std::int64_t batch : {2, 8}) {
    for (const std::int64_t tokens : {1536, 3072, 6144}) {
      const auto factor = [&](Pass pass) {
        const Operator op = op_of(batch, tokens, pass);
        return (*corrected)->forecast(op)->latency / (*plain)->forecast(op)->latency;
      };
      EXPECT_NEAR(factor(Pass::kForward), 1, 0.1) << batch << " of " << tokens;
      EXPECT_NEAR(factor(Pass::kBackward), 1.5, 0.15) << batch << " of " << tokens;
    }
  }
}

// Attention and experts run on the same units at the same clock; what is bound by memory does not.
TEST(KernelCalibration, ProductsCorrectWhatRunsOnMatrixUnitsAndWasNotMeasured) {
  const KernelCalibration calibration = calibrated(h100(), 1.3);
  const auto plain = make_compute_model(h100());
  const auto corrected =
      make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(calibration)});
  Attention attention{.batch = 1, .heads = 32, .kv_heads = 8, .query_length = 4096, .key_length = 4096};
  attention.head_dim = attention.value_dim = 128, attention.pass = Pass::kBackward;
  for (const Operator& op : {Operator{attention, DType::kBf16},
                             Operator{GroupedGemm{.experts = 8, .rows = 16384, .n = 4096, .k = 4096}, DType::kBf16}}) {
    const Forecast before = *(*plain)->forecast(op), after = *(*corrected)->forecast(op);
    EXPECT_NEAR(after.latency / before.latency, 1.3, 0.07) << to_text(op);
    EXPECT_EQ(after.method, "corrected as measured products of this GPU are");
  }
  const Operator norm{Normalization{.rows = 8192, .columns = 8192}, DType::kBf16};
  EXPECT_EQ((*plain)->forecast(norm)->latency, (*corrected)->forecast(norm)->latency);
}

// FP32 runs on vector units and says nothing of tensor units; FP8 runs on them, and says less of BF16 than BF16 does.
TEST(KernelCalibration, AFormatCorrectsWhatRunsOnItsUnits) {
  const auto plain = make_compute_model(h100());
  const Operator product{Gemm{.m = 4096, .n = 4096, .k = 2048}, DType::kBf16};
  const auto corrected = [&](DType measured) {
    KernelCalibration calibration = calibrated(h100(), 1.3);
    calibration.families[0].dtype = measured;
    const auto model =
        make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(calibration)});
    return *(*model)->forecast(product);
  };
  const Forecast before = *(*plain)->forecast(product), fp32 = corrected(DType::kFp32), fp8 = corrected(DType::kFp8),
                 fp16 = corrected(DType::kFp16);
  EXPECT_EQ(fp32.latency, before.latency);
  EXPECT_NEAR(fp8.latency / before.latency, 1.3, 0.05);
  EXPECT_NEAR(fp16.latency / before.latency, 1.3, 0.05);
  EXPECT_GT(fp8.high / fp8.latency, fp16.high / fp16.latency);
}

// Rows of one kernel that took 0.9 and 2 times as long as forecast: no correction is right by less than that, and a
// warning names the kernel.
TEST(KernelCalibration, RowsThatContradictEachOtherWidenTheInterval) {
  const std::string fast = measured(h100(), 0.9, 24, Mode::kSustained),
                    slow = measured(h100(), 2, 24, Mode::kSustained);
  std::vector<std::string> notes;
  const auto calibration =
      calibrate_kernels(h100(), *CsvTable::parse(fast + slow.substr(slow.find('\n') + 1), "rows.csv"), {}, &notes);
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  const FamilyCalibration& products = calibration->families[0];
  EXPECT_LT(products.low, -0.39);
  EXPECT_GT(products.high, 0.39);
  EXPECT_GT(products.after, 0.3);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], ::testing::HasSubstr("contradict each other by 40 %"));
}

// What is left out is told: rows of other GPUs, without a time, and families of fewer than three kernels. Rows of
// another mode are an error.
TEST(KernelCalibration, SaysWhichRowsItLeavesOut) {
  std::string text = "gpu,mode,op,dtype,m,n,k,latency_ms\n";
  for (int i = 1; i <= 4; ++i) text += fmt::format("h100,sustained,linear,bf16,{},4096,4096,{}\n", 1024 * i, 0.08 * i);
  text += "h100,sustained,linear,fp8,4096,4096,4096,0.2\nother,sustained,linear,bf16,4096,4096,4096,0.2\n";
  text += "h100,sustained,linear,bf16,8192,8192,8192,inf\nh100,sustained,linear,bf16,9216,8192,8192,\n";
  const auto calibrate = [&](const std::string& rows, std::vector<std::string>& notes) {
    return calibrate_kernels(h100(), *CsvTable::parse(rows, "rows.csv"), {}, &notes);
  };
  std::vector<std::string> notes;
  ASSERT_TRUE(calibrate(text, notes));
  EXPECT_THAT(notes, ::testing::UnorderedElementsAre("1 row of other, not of h100: left out, the first at rows.csv:7",
                                                     "2 rows without a time in latency_ms: left out, the first at "
                                                     "rows.csv:8",
                                                     "gemm fp8: 1 kernel, and a correction needs 3: left out"));
  const auto refused = calibrate(text + "h100,burst,linear,bf16,512,4096,4096,0.02\n", notes);
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()),
              ::testing::AllOf(::testing::HasSubstr("rows.csv:10"), ::testing::HasSubstr("mode burst")));
}

// A short causal kernel is as slow as that without a mask, before its correction: one correction, not both.
TEST(KernelCalibration, MeasuredCausalAttentionTakesWhatWasMeasured) {
  const auto op_of = [](std::int64_t tokens, bool causal) {
    Attention attention{.batch = 8, .heads = 32, .kv_heads = 32, .query_length = tokens, .key_length = tokens};
    attention.head_dim = attention.value_dim = 128;
    attention.causal = causal, attention.library = Library::kFlash2;
    return Operator{attention, DType::kBf16};
  };
  const auto plain = make_compute_model(a100());
  std::string text = "op,dtype,b,h,h_kv,s,kv_len,d,causal,library,latency_ms\n";
  constexpr double kFactor = 1.4;
  const std::vector<std::int64_t> lengths = {64, 128, 192, 256, 384, 512, 768, 1024};
  for (const std::int64_t tokens : lengths) {
    for (const bool causal : {false, true}) {
      text += fmt::format("attention,bf16,8,32,32,{0},{0},128,{1},flash2,{2:.17g}\n", tokens, causal ? 1 : 0,
                          (*plain)->forecast(op_of(tokens, causal))->latency / units::ms * kFactor);
    }
  }
  const auto calibration = calibrate_kernels(a100(), *CsvTable::parse(text, "rows.csv"), {});
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  const auto corrected =
      make_compute_model(a100(), {.calibration = std::make_shared<const KernelCalibration>(*calibration)});
  for (const std::int64_t tokens : lengths) {
    const Operator op = op_of(tokens, true);
    EXPECT_NEAR((*corrected)->forecast(op)->latency / (*plain)->forecast(op)->latency, kFactor, 0.03) << tokens;
  }
}

TEST(KernelCalibration, RowsFlaggedAsDoubtfulAreNotRead) {
  std::string plain = measured(h100(), 1.3, 24, Mode::kSustained), flagged;
  for (std::size_t from = 0, line = 0; from < plain.size(); ++line) {
    const std::size_t end = plain.find('\n', from);
    flagged += plain.substr(from, end - from) + (line == 0 ? ",outlier\n" : ",0\n");
    from = end + 1;
  }
  flagged += "linear,bf16,4096,4096,4096,1000,1\n";
  const auto table = CsvTable::parse(flagged, "measured.csv");
  const auto calibration = calibrate_kernels(h100(), *table, {});
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  EXPECT_EQ(*calibration, calibrated(h100(), 1.3));
}

// Of n rows the floor((n + 1) 5 %)-th and the ceil((n + 1) 95 %)-th set the interval, the first and the last of up to
// 38: rows scattered evenly to both sides set it as wide downwards as upwards.
TEST(KernelCalibration, TheIntervalIsAsWideDownwardsAsUpwards) {
  const auto model = make_compute_model(h100(), {.mode = Mode::kSustained});
  const auto low_and_high = [&](double sign) {
    std::string text = "op,dtype,m,n,k,latency_ms\n";
    for (int i = 0; i < 30; ++i) {
      const Operator op{Gemm{.m = 512 * (i + 1), .n = 4096, .k = 1024}, DType::kBf16};
      text += fmt::format("linear,bf16,{},4096,1024,{:.17g}\n", 512 * (i + 1),
                          (*model)->forecast(op)->latency / units::ms * std::exp(sign * 0.01 * ((7 * i) % 30 - 9)));
    }
    const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {});
    EXPECT_TRUE(calibration);
    return std::pair(calibration->families[0].low, calibration->families[0].high);
  };
  const auto [low, high] = low_and_high(1);
  const auto [mirrored_low, mirrored_high] = low_and_high(-1);
  EXPECT_NEAR(low, -mirrored_high, 1e-6);
  EXPECT_NEAR(high, -mirrored_low, 1e-6);
}

// A row in microseconds: it corrects nothing, whether it stands alone or beside rows of its kernel, and is named. The
// other rows correct as they do without it.
TEST(KernelCalibration, AWildRowIsLeftOutAndNamed) {
  const std::string rows = measured(h100(), 1.3, 24, Mode::kSustained);
  const Operator other{Gemm{.m = 4096, .n = 4096, .k = 4096}, DType::kBf16};
  const Operator known{Gemm{.m = 512 * 7, .n = 4096, .k = 1024 + 128 * 7}, DType::kBf16};  // of line 8
  const auto plain = make_compute_model(h100());
  for (const Operator& op : {other, known}) {
    for (const double factor : {1e3, 1e8, 20.}) {
      const auto& gemm = std::get<Gemm>(op.kind);
      std::vector<std::string> notes;
      const double ms = (*plain)->forecast(op)->latency / units::ms * factor;
      std::string text = rows;
      if (op == known) {  // measured twice before
        const std::size_t from = rows.find("linear,bf16,3584");
        text += rows.substr(from, rows.find('\n', from) + 1 - from);
      }
      text += fmt::format("linear,bf16,{},4096,{},{:.17g}\n", gemm.m, gemm.k, ms);
      const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {}, &notes);
      ASSERT_TRUE(calibration) << to_text(calibration.error());
      ASSERT_EQ(notes.size(), 1U) << fmt::format("{}", fmt::join(notes, "; "));
      EXPECT_THAT(notes[0], ::testing::StartsWith(
                                fmt::format("rows.csv:{}: left out, because it takes ", op == known ? 27 : 26)));
      ASSERT_EQ(calibration->families[0].points.size(), 24U);
      EXPECT_NEAR(calibration->families[0].after, calibrated(h100(), 1.3).families[0].after, 0.002);
    }
  }
}

// A fifth of the rows in another unit does not hide itself.
TEST(KernelCalibration, ManyWildRowsAreLeftOut) {
  std::string text = measured(h100(), 1.1, 20, Mode::kSustained);
  const std::string others = measured(h100(), 1e3, 25, Mode::kSustained);
  text += others.substr(others.find("linear,bf16,10752"));
  std::vector<std::string> notes;
  const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {}, &notes);
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  EXPECT_EQ(notes.size(), 5U);
  EXPECT_EQ(calibration->families[0].points.size(), 20U);
}

// Kernels that took half to twice as long as forecast, at random: what others took tells nothing of one.
TEST(KernelCalibration, NoiseIsRefused) {
  std::string text = "op,dtype,m,n,k,latency_ms\n";
  const auto model = make_compute_model(h100());
  std::minstd_rand random(1);
  std::uniform_real_distribution<double> factor(0.5, 2);
  for (int i = 1; i <= 24; ++i) {
    const Operator op{Gemm{.m = 512 * i, .n = 4096, .k = 1024 + 128 * i}, DType::kBf16};
    text += fmt::format("linear,bf16,{},4096,{},{}\n", 512 * i, 1024 + 128 * i,
                        (*model)->forecast(op)->latency / units::ms * factor(random));
  }
  const auto alone = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {});
  ASSERT_FALSE(alone);
  EXPECT_THAT(to_text(alone.error()), ::testing::HasSubstr("gemm bf16: no correction, because kernels are forecast"));
  for (int i = 1; i <= 4; ++i) text += fmt::format("linear,fp8,{},4096,4096,{}\n", 4096 * i, 0.13 * i);
  std::vector<std::string> notes;
  const auto others = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {}, &notes);
  ASSERT_TRUE(others) << to_text(others.error());
  ASSERT_EQ(others->families.size(), 1U);
  EXPECT_EQ(others->families[0].dtype, DType::kFp8);
  EXPECT_THAT(notes, ::testing::Contains(::testing::HasSubstr("gemm bf16: no correction")));
}

// A machine that is slow as a whole keeps its rows; so do rows that contradict each other, which tell nothing of which
// is right.
TEST(KernelCalibration, ASlowMachineKeepsItsRows) {
  for (const double factor : {0.7, 1.5, 5.}) {
    std::vector<std::string> notes;
    const auto table = CsvTable::parse(measured(h100(), factor, 24, Mode::kBurst), "rows.csv");
    const auto calibration = calibrate_kernels(h100(), *table, {.mode = Mode::kBurst}, &notes);
    ASSERT_TRUE(calibration) << to_text(calibration.error());
    EXPECT_EQ(calibration->families[0].points.size(), 24U) << factor;
  }
}

// Of three kernels a wild one leaves two, which are too few; the error says which row it was.
TEST(KernelCalibration, TooFewRowsNameTheWildOnes) {
  const std::string text = measured(h100(), 1, 2, Mode::kSustained) + "linear,bf16,1536,4096,1408,1e6\n";
  const auto refused = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {});
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), ::testing::HasSubstr("rows.csv:4: left out, because it takes"));
}

TEST(KernelCalibration, ATableInAnotherUnitIsAnError) {
  for (const auto& [factor, times] : {std::pair(1000.0, "1000"), std::pair(1e-3, "0.001")}) {
    const auto table = CsvTable::parse(measured(h100(), factor, 24, Mode::kSustained), "measured.csv");
    const auto refused = calibrate_kernels(h100(), *table, {});
    ASSERT_FALSE(refused) << times;
    EXPECT_EQ(to_text(refused.error()),
              fmt::format("measured.csv: the middle row of gemm bf16 takes {} times as long as forecast; expected "
                          "latency_ms, in milliseconds, measured on this GPU",
                          times));
  }
  EXPECT_TRUE(calibrate_kernels(h100(), *CsvTable::parse(measured(h100(), 7, 24, Mode::kSustained), "m.csv"), {}));
}

TEST(KernelCalibration, ARowFasterThanThePeakIsAnError) {
  std::string text = measured(h100(), 1.05, 24, Mode::kSustained);
  text += "gemm,bf16,8192,8192,8192,0.5\n";  // 2,199 TFLOP/s
  const auto refused = calibrate_kernels(h100(), *CsvTable::parse(text, "measured.csv"), {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("0.5 ms is shorter than 1.111 ms"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(refused.error().where, "measured.csv:26");
}

// cuDNN's Winograd kernels need 2.25 times fewer multiplications than the direct algorithm.
TEST(KernelCalibration, AreConvolutionsByWinogradRefused) {
  const auto rows = [](double share, std::int64_t stride) {
    std::string text = "op,dtype,b,cin,cout,ksize,stride,isize,latency_ms\n";
    for (const std::int64_t channels : {128, 192, 256, 320, 384, 512}) {
      Convolution op{.batch = 32, .in_channels = channels, .in_height = 56, .in_width = 56, .out_channels = channels};
      op.kernel = 3, op.stride = stride, op.padding = 1;
      const double at_peak = work_of({op, DType::kFp32}).flops / h100().vector[DType::kFp32] / units::ms;
      text += fmt::format("conv,fp32,32,{0},{0},3,{1},56,{2}\n", channels, stride, at_peak * share);
    }
    return text;
  };
  const auto calibrated = [](const std::string& text, std::vector<std::string>* notes) {
    return calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {}, notes);
  };
  std::vector<std::string> none, above;
  const auto winograd = calibrated(rows(0.48, 1), &none);
  ASSERT_TRUE(winograd) << to_text(winograd.error());
  EXPECT_THAT(none, ::testing::Not(::testing::Contains(::testing::HasSubstr("faster than the peak"))));
  ASSERT_TRUE(calibrated(rows(0.4, 1), &above));
  EXPECT_THAT(above, ::testing::Contains(::testing::HasSubstr("6 rows are faster than the peak")));
  EXPECT_FALSE(calibrated(rows(0.2, 1), nullptr));
  EXPECT_FALSE(calibrated(rows(0.48, 2), nullptr)) << "Winograd's algorithm is for stride 1";
}

TEST(KernelCalibration, IsNeverFasterThanPhysics) {
  const auto corrected =
      make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(calibrated(h100(), 0.6))});
  const Forecast f = *(*corrected)->forecast({Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kBf16});
  EXPECT_GE(f.latency, f.floor);
  EXPECT_GE(f.low, f.floor);
}

// Rows that take 0.8 of what they take at the peak: forecasts stay at the peak, a quarter too slow, and the error says
// so.
TEST(KernelCalibration, TheErrorIsThatOfForecastsAtThePeak) {
  const auto model = make_compute_model(h100());
  std::string text = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 1; i <= 12; ++i) {
    const Operator op{Gemm{.m = 2048 * i, .n = 8192, .k = 8192}, DType::kBf16};
    text +=
        fmt::format("linear,bf16,{},8192,8192,{:.17g}\n", 2048 * i, (*model)->forecast(op)->floor / units::ms * 0.8);
  }
  const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {});
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  EXPECT_NEAR(calibration->families[0].after, 0.25, 1e-6);
}

TEST(KernelCalibration, ReadsWhatItWrites) {
  const KernelCalibration calibration = calibrated(h100(), 1.2);
  const auto read = read_kernel_calibration(to_json(calibration), "c.json");
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(*read, calibration);
}

TEST(KernelCalibration, TooFewRowsAndRowsWithoutLatencyAreErrors) {
  const auto two = CsvTable::parse(measured(h100(), 1, 2, Mode::kSustained), "two.csv");
  const auto few = calibrate_kernels(h100(), *two, {});
  ASSERT_FALSE(few);
  EXPECT_NE(to_text(few.error()).find("too few measurements of h100"), std::string::npos);
  const auto table = CsvTable::parse("op,dtype,m,n,k,latency_ms\nlinear,bf16,8,8,8,\n", "rows.csv");
  const auto silent = calibrate_kernels(h100(), *table, {});
  ASSERT_FALSE(silent);
  EXPECT_NE(to_text(silent.error()).find("rows.csv:2"), std::string::npos);
}

TEST(KernelCalibration, AnotherGpuOrModeIsAnError) {
  auto calibration = std::make_shared<const KernelCalibration>(calibrated(h100(), 1.2));
  EXPECT_FALSE(make_compute_model(a100(), {.calibration = calibration}));
  EXPECT_FALSE(make_compute_model(h100(), {.mode = Mode::kBurst, .calibration = calibration}));
}

TEST(KernelCalibration, BadFilesNameThePlace) {
  const std::string good = to_json(calibrated(h100(), 1.2));
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& says) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos) << from;
    bad.replace(bad.find(from), from.size(), to);
    const auto read = read_kernel_calibration(bad, "c.json");
    ASSERT_FALSE(read) << to;
    EXPECT_NE(to_text(read.error()).find(says), std::string::npos) << to_text(read.error());
  };
  refuses("kernel-calibration/3", "kernel-calibration/9", "c.json#/schema");
  refuses("kernel-calibration/3", "kernel-calibration/1", "make it anew from its measurements");
  refuses("\"sustained\"", "\"fast\"", "c.json#/mode");
  refuses("\"gemm\"", "\"gem\"", "c.json#/families/0/family");
  refuses("\"bf16\"", "\"b\"", "c.json#/families/0/dtype");
  refuses("\"low\":-", "\"low\":", "c.json#/families/0/low");
  refuses("\"points\":[[", "\"points\":[[\"x\",", "c.json#/families/0/points/0");
  refuses("\"gpu\"", "\"gpus\"", "gpus");
  EXPECT_FALSE(read_kernel_calibration("{", "c.json"));
  EXPECT_FALSE(read_kernel_calibration("[]", "c.json"));
  for (std::size_t size = 0; size <= good.rfind('}'); size += 11) {
    EXPECT_FALSE(read_kernel_calibration(good.substr(0, size), "c.json"));
  }
}

// What was measured again tells nothing of other kernels.
TEST(KernelCalibration, RowsOfOneKernelAreOneMeasurement) {
  const std::string once = measured(h100(), 1.2, 12, Mode::kSustained);
  const std::string rows = once.substr(once.find('\n') + 1);
  const auto calibration = [](const std::string& text) {
    return calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {.mode = Mode::kSustained});
  };
  const auto single = calibration(once), repeated = calibration(once + rows + rows);
  ASSERT_TRUE(single && repeated);
  EXPECT_EQ(repeated->families[0].points.size(), 12U);
  EXPECT_NEAR(repeated->families[0].low, single->families[0].low, 1e-12);
  EXPECT_NEAR(repeated->families[0].after, single->families[0].after, 1e-12);
  std::string same = once.substr(0, once.find('\n') + 1);
  for (int i = 0; i < 5; ++i) same += rows.substr(0, rows.find('\n') + 1);
  EXPECT_FALSE(calibration(same)) << "one kernel is too few";
}

// A kernel unlike those that were measured may still take little more than what it was forecast to take: it has the
// same layout, so a part of the correction is its own.
TEST(KernelCalibration, TheIntervalIsWiderFarFromWhatWasMeasured) {
  const KernelCalibration calibration = calibrated(h100(), 1.3);
  const FamilyCalibration& products = calibration.families[0];
  EXPECT_GT(products.deviation, 0.04);
  const auto plain = make_compute_model(h100());
  const auto corrected =
      make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(calibration)});
  const auto interval = [&](const Gemm& product) {
    const Forecast each = *(*corrected)->forecast({product, DType::kBf16});
    return std::pair(std::log(each.latency / each.low), std::log(each.high / each.latency));
  };
  const auto near = interval({.m = 4096, .n = 4096, .k = 2048});
  EXPECT_LT(near.second, 0.9 * products.high);  // it was measured: known better than those that are left out
  const Gemm far{.m = 128, .n = 128, .k = 128}, other{.m = 4096, .n = 4096, .k = 2048, .layout = GemmLayout::kTN};
  EXPECT_GT(interval(far).second, 3 * near.second);
  EXPECT_GT(interval(other).second, near.second);
  const Forecast before = *(*plain)->forecast({far, DType::kBf16}),
                 after = *(*corrected)->forecast({far, DType::kBf16});
  EXPECT_LT(after.low, 1.1 * before.latency);
  // Without a deviation, one interval for all.
  KernelCalibration old = calibration;
  old.families[0].deviation = 0;
  const auto as_before = make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(old)});
  const Forecast narrow = *(*as_before)->forecast({far, DType::kBf16});
  EXPECT_NEAR(std::log(narrow.high / narrow.latency), products.high, 1e-9);
}

// Products that take as long as forecast say of another layout that it does, too: its interval is no wider than without
// them. Where they are off by factors of their own, nothing is said of others.
TEST(KernelCalibration, MeasurementsAsForecastWidenNothing) {
  const Gpu gpu = h100();
  const auto plain = make_compute_model(gpu, {.mode = Mode::kSustained});
  const Operator other{Gemm{.m = 6144, .n = 4096, .k = 2048, .layout = GemmLayout::kTN}, DType::kBf16};
  const auto width = [&](const KernelCalibration& calibration) {
    const auto model = make_compute_model(gpu, {.calibration = std::make_shared<const KernelCalibration>(calibration)});
    const Forecast forecast = *(*model)->forecast(other);
    return std::log(forecast.high / forecast.low);
  };
  const KernelCalibration as_forecast = calibrated(gpu, 1);
  EXPECT_EQ(as_forecast.families[0].amplitude, 0.5);
  const Forecast before = *(*plain)->forecast(other);
  EXPECT_LT(width(as_forecast), 1.1 * std::log(before.high / before.low));
  KernelCalibration of_others = as_forecast;
  of_others.families[0].amplitude = 1;
  EXPECT_GT(width(of_others), 1.3 * width(as_forecast));

  std::string text = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 1; i <= 16; ++i) {
    const Operator op{Gemm{.m = 512 * i, .n = 4096, .k = 2048}, DType::kBf16};
    const double factor = i % 2 == 0 ? 1.4 : 0.8;
    text += fmt::format("linear,bf16,{},4096,2048,{}\n", 512 * i, (*plain)->forecast(op)->latency / units::ms * factor);
  }
  const auto scattered = calibrate_kernels(gpu, *CsvTable::parse(text, "scattered.csv"), {});
  ASSERT_TRUE(scattered) << to_text(scattered.error());
  EXPECT_EQ(scattered->families[0].amplitude, 1);
}

// Kernels like each other, of which every other one is as much longer than forecast as the next is shorter: what is
// known of one by the others is rather the opposite, so that no forecast gets better.
TEST(KernelCalibration, ARowIsNoForecastOfItself) {
  const auto model = make_compute_model(h100());
  std::string text = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 0; i < 24; ++i) {
    const Gemm product{.m = 4096 + i, .n = 4096, .k = 4096};
    const double ms = (*model)->forecast({product, DType::kBf16})->latency / units::ms;
    text += fmt::format("linear,bf16,{},4096,4096,{:.17g}\n", product.m, ms * (i % 2 == 0 ? 1.2 : 1 / 1.2));
  }
  const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {});
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  EXPECT_GT(calibration->families[0].after, calibration->families[0].before);
  // All errors are e or -e, (e^e - e^-e) / 2 in the mean. An interval of 24 of them is 2/24 wider.
  const double error = std::asinh(calibration->families[0].after);
  EXPECT_NEAR(calibration->families[0].high, error * (1 + 2.0 / 24), 0.02 * error);
  EXPECT_NEAR(calibration->families[0].low, -error * (1 + 2.0 / 24), 0.02 * error);
}

// Short products take a third more or less than forecast, long ones 2 %: an interval is that of kernels as long.
TEST(KernelCalibration, TheIntervalFollowsTheErrorsOfLikeSizes) {
  const auto model = make_compute_model(h100());
  std::string text = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 0; i < 48; ++i) {
    const bool is_short = i < 24;
    const Gemm product{
        .m = is_short ? 128 + 8 * i : 8192 + 64 * i, .n = is_short ? 512 : 8192, .k = is_short ? 512 : 8192};
    const double ms = (*model)->forecast({product, DType::kBf16})->latency / units::ms;
    const double factor = is_short ? 1.33 : 1.02;
    text += fmt::format("linear,bf16,{},{},{},{:.17g}\n", product.m, product.n, product.k,
                        ms * (i % 2 == 0 ? factor : 1 / factor));
  }
  const auto calibration = calibrate_kernels(h100(), *CsvTable::parse(text, "rows.csv"), {});
  ASSERT_TRUE(calibration) << to_text(calibration.error());
  const auto corrected =
      make_compute_model(h100(), {.calibration = std::make_shared<const KernelCalibration>(*calibration)});
  const auto width = [&](const Gemm& product) {
    const Forecast each = *(*corrected)->forecast({product, DType::kBf16});
    return std::log(each.high / each.low) / 2;
  };
  EXPECT_LT(width({.m = 9000, .n = 8192, .k = 8192}), 0.05);
  EXPECT_GT(width({.m = 228, .n = 512, .k = 512}), 0.2);
}

}  // namespace
}  // namespace ns_dist
