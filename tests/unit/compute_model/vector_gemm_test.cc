// FP32 products on the vector units: tiles, issue, power.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "machine.h"
#include "ns_dist/compute_model.h"
#include "support/gpus.h"

namespace ns_dist {
namespace {

using namespace units;

double milliseconds(const Gpu& gpu, const Gemm& gemm) {
  const auto model = make_compute_model(gpu, {.mode = Mode::kSustained, .analytic = true});
  EXPECT_TRUE(model);
  const auto forecast = (*model)->forecast({gemm, DType::kFp32});
  EXPECT_TRUE(forecast);
  return forecast->latency / ms;
}

double clock_share(const Gpu& gpu) {
  const auto model = make_compute_model(gpu, {.mode = Mode::kSustained, .analytic = true});
  const auto explanation = (*model)->explain({Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kFp32});
  EXPECT_TRUE(explanation);
  for (const ExplanationStep& step : explanation->steps) {
    if (step.name == "clock_share") return std::stod(step.value);
  }
  return std::nan("");
}

TEST(VectorGemm, ANarrowHeadIsPaddedToTheTile) {
  // Batched products run 128x128 tiles on Ampere: 64 columns cost what 128 do, as A100's measured products of 1024 x 64
  // x 1024 show (0.41-0.45 of the peak against 0.88).
  const double narrow = milliseconds(a100(), {.batch = 80, .m = 1024, .n = 64, .k = 1024});
  const double full = milliseconds(a100(), {.batch = 80, .m = 1024, .n = 128, .k = 1024});
  EXPECT_NEAR(narrow / full, 1, 0.03);
}

// Scores, context and their gradients with heads of 108 elements: FP16 takes as long as FP32. Heads of 112 do not.
TEST(VectorGemm, ABatchOfHeadsThatBreakLinesLeavesTensorUnits) {
  const auto in_half = [](const Gpu& gpu, const Gemm& gemm, DType dtype) {
    const auto forecast = (*make_compute_model(gpu, {.mode = Mode::kSustained}))->forecast({gemm, dtype});
    EXPECT_TRUE(forecast);
    return *forecast;
  };
  const auto products = [](std::int64_t head) {
    return std::vector<Gemm>{{64, 2048, 2048, head, GemmLayout::kNT},
                             {64, 2048, head, 2048, GemmLayout::kNN},
                             {64, 2048, head, 2048, GemmLayout::kTN},
                             {64, head, 2048, 2048, GemmLayout::kTN}};
  };
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    for (std::size_t i = 0; i < products(108).size(); ++i) {
      const Forecast off = in_half(a100(), products(108)[i], dtype), on = in_half(a100(), products(112)[i], dtype);
      EXPECT_NEAR(off.latency / ms / milliseconds(a100(), products(108)[i]), 1, 0.1) << i;
      EXPECT_GT(off.latency / on.latency, 4) << i;
      EXPECT_TRUE(off.extrapolated);
      EXPECT_GT(off.high / off.low, 3.9);
    }
  }
  // One product has kernels for narrower lines; so have the products of other vendors' libraries.
  const Gemm one{1, 2048, 2048, 108, GemmLayout::kNT};
  EXPECT_LT(in_half(a100(), one, DType::kFp16).latency / ms, 0.5 * milliseconds(a100(), one));
  Gpu other = a100();
  other.vendor = "amd";
  const Gemm many = products(108)[0];
  EXPECT_LT(in_half(other, many, DType::kFp16).latency / ms, 0.5 * milliseconds(a100(), many));
}

TEST(VectorGemm, BoardPowerSetsTheClockOfSmallCards) {
  // L4: 72 W for 30.3 TFLOP/s; large FP32 products reach 0.3-0.5 of the peak. A100 at 400 W keeps its clock.
  EXPECT_EQ(clock_share(a100()), 1);
  const Gpu l4 = test_gpus()[3];
  ASSERT_EQ(l4.id, "l4");
  EXPECT_LT(clock_share(l4), 0.7);
  EXPECT_GT(clock_share(l4), 0.3);
}

TEST(VectorGemm, ThePowerBudgetHolds) {
  // Whatever the work: idle power plus energy over time stays within the board's limit.
  for (const Gpu& gpu : test_gpus()) {
    const auto machine = make_machine(gpu, Mode::kSustained);
    ASSERT_TRUE(machine);
    for (const double intensity : {0.1, 1.0, 10.0, 100.0, 1000.0}) {
      const double bytes = 1e9, flops = bytes * intensity;
      const double compute = flops / (gpu.vector[DType::kFp32] / (FLOP / s));
      const double memory = bytes / machine->achieved_bandwidth;
      const PoweredTime time = machine->powered(compute, memory, flops, bytes, 1);
      EXPECT_GE(time.seconds, std::max(compute, memory)) << gpu.id;
      const double least_energy = flops * machine->flop_joules + bytes * machine->byte_joules;
      EXPECT_LE(machine->idle_watts + least_energy / time.seconds, machine->watts * (1 + 1e-9)) << gpu.id;
    }
  }
}

TEST(VectorGemm, MorePowerBandwidthOrUnitsAreNeverSlower) {
  for (const Gpu& gpu : test_gpus()) {
    for (const Gemm& gemm : {Gemm{.m = 4096, .n = 4096, .k = 4096}, Gemm{.batch = 64, .m = 512, .n = 512, .k = 64},
                             Gemm{.m = 1, .n = 50257, .k = 1280}}) {
      const double before = milliseconds(gpu, gemm);
      Gpu better = gpu;
      better.board_power = 2 * gpu.board_power;
      EXPECT_LE(milliseconds(better, gemm), before * (1 + 1e-6)) << gpu.id;
      better = gpu;
      better.memory_bandwidth = 2 * gpu.memory_bandwidth;
      EXPECT_LE(milliseconds(better, gemm), before * (1 + 1e-6)) << gpu.id;
      better = gpu;
      better.vector[DType::kFp32] = 2 * gpu.vector[DType::kFp32];
      EXPECT_LE(milliseconds(better, gemm), before * (1 + 1e-6)) << gpu.id;
    }
  }
}

TEST(VectorGemm, AStreamLongerThanTheCacheFindsNothingInIt) {
  const auto machine = make_machine(test_gpus()[3], Mode::kSustained);  // 48 MiB of L2
  ASSERT_TRUE(machine);
  const double held = machine->resident_bytes;
  EXPECT_DOUBLE_EQ(machine->memory_seconds(held / 2), held / 2 / machine->l2_bandwidth);
  EXPECT_DOUBLE_EQ(machine->memory_seconds(4 * held), 4 * held / machine->achieved_bandwidth);
  double last = 0;
  for (double bytes = 1e5; bytes < 1e9; bytes *= 1.1) {
    EXPECT_GE(machine->memory_seconds(bytes), last);
    last = machine->memory_seconds(bytes);
  }
}

}  // namespace
}  // namespace ns_dist
