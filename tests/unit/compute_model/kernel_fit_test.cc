#include "ns_dist/kernel_fit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "ns_dist/catalog.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/kernel_table.h"

namespace ns_dist {
namespace {

using namespace units;

Result<Gpu> gpu_of(std::string_view id) { return Catalog::standard().gpu(id); }

// Products on an invented machine of invented speed: what a fit must find again.
double invented_ms(std::string_view gpu, double m, double n, double k) {
  const double rate = gpu == "h200-sxm" ? 600e12 : gpu == "b200-sxm" ? 1100e12 : 230e12;
  const double ragged = std::fmod(n, 256) == 0 ? 1 : 1.2;
  return 1e3 * (4e-6 + ragged * 2 * m * n * k / rate);
}

class KernelFitTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("ns_dist_fit_{}", getpid());
    std::filesystem::create_directories(folder_);
    std::ofstream table(folder_ / "bf16_gemm.csv");
    table << "gpu,op,dtype,m,n,k,latency_ms\n";
    for (const char* gpu : {"h200-sxm", "b200-sxm", "a100-sxm-80gb"}) {
      for (const int m : {64, 128, 512, 1024, 2048, 4096, 8192, 16384}) {
        for (const int n : {512, 640, 1024, 2176, 4096, 8192}) {
          for (const int k : {256, 512, 1024, 2048, 4096, 8192}) {
            table << fmt::format("{},linear,bf16,{},{},{},{:.6f}\n", gpu, m, n, k, invented_ms(gpu, m, n, k));
          }
        }
      }
    }
    options_.data = {folder_};
    options_.effort = 0.08;
    options_.threads = 1;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Mean error on shapes between those of the table.
  double error_on(const std::string& weights, std::string_view gpu, Mode mode = Mode::kBurst, double factor = 1) const {
    ComputeModelOptions model;
    model.mode = mode;
    model.weights = weights;
    const auto made = make_compute_model(*gpu_of(gpu), model);
    EXPECT_TRUE(made) << (made ? "" : to_text(made.error()));
    if (!made) return 1;
    double sum = 0;
    int count = 0;
    for (const int m : {768, 3072, 6144}) {
      for (const int n : {1024, 4096}) {
        for (const int k : {768, 3072, 6144}) {
          const auto forecast = (*made)->forecast({Gemm{.m = m, .n = n, .k = k}, DType::kBf16});
          EXPECT_TRUE(forecast);
          sum += std::abs(forecast->latency / ms / (factor * invented_ms(gpu, m, n, k)) - 1), ++count;
        }
      }
    }
    return sum / count;
  }

  std::filesystem::path folder_;
  KernelFitOptions options_;
};

TEST_F(KernelFitTest, FindsTheSpeedOfMeasuredGpusAndSaysHowWell) {
  const auto fit = fit_kernels(options_, gpu_of);
  ASSERT_TRUE(fit) << to_text(fit.error());
  EXPECT_LT(error_on(fit->weights, "h200-sxm"), 0.08);
  EXPECT_LT(error_on(fit->weights, "b200-sxm"), 0.08);
  ASSERT_FALSE(fit->scores.empty());
  for (const KernelFitScore& score : fit->scores) {
    if (score.left_out == KernelFitScore::LeftOut::kShape) {
      EXPECT_LT(score.errors.mean, 0.1) << score.gpu;
      EXPECT_LT(score.errors.mean, score.roofline) << score.gpu;
    }
    EXPECT_GE(score.errors.largest, score.errors.p90);
    EXPECT_GE(score.errors.p90, score.errors.median);
  }
  EXPECT_NE(fit->card.find("| gemm | h200-sxm | shapes |"), std::string::npos) << fit->card;
  EXPECT_NE(fit->card.find("| gemm | a100-sxm-80gb | GPU |"), std::string::npos) << fit->card;
}

TEST_F(KernelFitTest, TheSameTablesGiveTheSameBytesOnAnyNumberOfThreads) {
  const auto one = fit_kernels(options_, gpu_of);
  options_.threads = 3;
  const auto other = fit_kernels(options_, gpu_of);
  ASSERT_TRUE(one && other);
  EXPECT_TRUE(one->weights == other->weights);
  EXPECT_EQ(one->card, other->card);
}

TEST_F(KernelFitTest, WhatIsExcludedIsForecastFromTheOthers) {
  options_.exclude_gpus = {"a100-sxm-80gb"};
  options_.exclude_generations = {"blackwell"};
  const auto fit = fit_kernels(options_, gpu_of);
  ASSERT_TRUE(fit) << to_text(fit.error());
  EXPECT_EQ(fit->card.find("| gemm | a100-sxm-80gb |"), std::string::npos);
  EXPECT_EQ(fit->card.find("| gemm | b200-sxm |"), std::string::npos);
  EXPECT_NE(fit->card.find("--exclude-gpu a100-sxm-80gb --exclude-generation blackwell"), std::string::npos);
  EXPECT_LT(error_on(fit->weights, "h200-sxm"), 0.08);
  const auto far = error_on(fit->weights, "a100-sxm-80gb");
  EXPECT_GT(far, error_on(fit->weights, "h200-sxm"));
  EXPECT_LT(far, 0.6);
}

// One framework left its weights uninitialized and measured half of the time; H200 was measured by nobody else.
TEST_F(KernelFitTest, OfSeveralFrameworksThePreferredOneIsFittedWhereItMeasured) {
  {
    std::ifstream burst(folder_ / "bf16_gemm.csv");
    std::ofstream table(folder_ / "bf16_gemm_sustained.csv");
    std::string line;
    std::getline(burst, line);
    table << line << ",framework\n";
    while (std::getline(burst, line)) {
      const std::size_t comma = line.rfind(',');
      const std::string shape = line.substr(0, comma);
      const double latency = std::stod(line.substr(comma + 1));
      table << fmt::format("{},{:.6f},hasty\n", shape, 0.5 * latency);
      if (!line.starts_with("h200")) table << fmt::format("{},{:.6f},careful\n", shape, latency);
    }
  }
  options_.prefer_frameworks = {"careful"};
  const auto fit = fit_kernels(options_, gpu_of);
  ASSERT_TRUE(fit) << to_text(fit.error());
  EXPECT_LT(error_on(fit->weights, "b200-sxm", Mode::kSustained), 0.1);
  EXPECT_LT(error_on(fit->weights, "h200-sxm", Mode::kSustained, 0.5), 0.2);
  EXPECT_NE(fit->card.find("rows of other frameworks: 576."), std::string::npos) << fit->card;
}

// Kernels of normalization on an invented machine, as `norms` has them. H200's take `factor` times as long.
void write_norms(const std::filesystem::path& folder, double factor) {
  std::ofstream table(folder / "norms.csv");
  table << "gpu,op,dtype,pass,b,h,backend,latency_ms\n";
  for (const char* gpu : {"h200-sxm", "gb200"}) {
    for (const int rows : {1024, 2048, 4096, 8192, 16384, 32768}) {
      for (const int columns : {1024, 2048, 3072, 4096, 6144, 8192, 12288}) {
        for (const char* pass : {"fwd", "bwd"}) {
          const bool slow = std::string(gpu) == "h200-sxm";
          const double bytes = (std::string(pass) == "fwd" ? 4.0 : 6.0) * rows * columns;
          table << fmt::format("{},rmsnorm,bf16,{},{},{},cudnn,{:.6f}\n", gpu, pass, rows, columns,
                               (slow ? factor : 1) * 1e3 * (4e-6 + 1.2 * bytes / (slow ? 4.8e12 : 8e12)));
        }
      }
    }
  }
}

// What is left out has no say in its forecast: neither in the trees nor in the coefficients of the base.
TEST_F(KernelFitTest, AGpuThatIsLeftOutIsNotSeen) {
  options_.predictors = {"normalization"};
  const auto left_out = [&](double factor) {
    write_norms(folder_, factor);
    const auto fit = fit_kernels(options_, gpu_of);
    EXPECT_TRUE(fit) << (fit ? "" : to_text(fit.error()));
    for (const KernelFitScore& score : fit->scores) {
      if (score.gpu == "h200-sxm" && score.part.empty() && score.left_out == KernelFitScore::LeftOut::kGpu) {
        return score.errors;
      }
    }
    ADD_FAILURE();
    return ErrorFigures{};
  };
  const ErrorFigures as_fast = left_out(1), slower = left_out(2);
  EXPECT_LT(as_fast.mean, 0.12);
  EXPECT_NEAR((1 + slower.bias) / (1 + as_fast.bias), 0.5, 1e-6);
}

// The base is fitted, too: a shape that was not seen is forecast by it where trees see only steps.
TEST_F(KernelFitTest, CoefficientsOfABaseAreFitted) {
  options_.predictors = {"normalization"};
  write_norms(folder_, 1);
  const auto fit = fit_kernels(options_, gpu_of);
  ASSERT_TRUE(fit) << to_text(fit.error());
  ComputeModelOptions model;
  model.mode = Mode::kBurst, model.weights = fit->weights;
  Normalization norm{.kind = NormalizationKind::kRmsNorm, .rows = 12000, .columns = 7168};
  norm.library = Library::kCudnn;
  const auto forecast = (*make_compute_model(*gpu_of("gb200"), model))->forecast({norm, DType::kBf16});
  ASSERT_TRUE(forecast);
  EXPECT_NEAR(forecast->latency / s / (4e-6 + 1.2 * 4.0 * 12000 * 7168 / 8e12), 1, 0.03);
  EXPECT_NE(fit->card.find("The coefficients of the bases and the trees were fitted without"), std::string::npos);
  EXPECT_NE(fit->card.find("normalization: cudnn backward"), std::string::npos);
}

TEST_F(KernelFitTest, ExclusionsThatMatchNothingAreMistakes) {
  options_.exclude_gpus = {"H200"};  // another name of h200-sxm
  const auto fit = fit_kernels(options_, gpu_of);
  ASSERT_TRUE(fit) << to_text(fit.error());
  EXPECT_EQ(fit->card.find("| gemm | h200-sxm |"), std::string::npos);
  for (const char* gpu : {"l40s", "nobody"}) {
    options_.exclude_gpus = {gpu};
    EXPECT_FALSE(fit_kernels(options_, gpu_of)) << gpu;
  }
  options_.exclude_gpus.clear();
  options_.exclude_generations = {"hoper"};
  const auto refused = fit_kernels(options_, gpu_of);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "--exclude-generation");
  EXPECT_NE(refused.error().expected.find("hopper"), std::string::npos);
}

// What `add` is measured with, `mul` of as many elements is, too.
TEST(KernelFit, HoldsShapesOutWhateverIsDoneWithThem) {
  int held_out = 0;
  for (std::int64_t elements = 1000; elements < 3000; ++elements) {
    const bool out = is_held_out({Elementwise{.name = "add", .elements = elements}, DType::kFp32});
    EXPECT_EQ(out, is_held_out({Elementwise{.name = "relu", .elements = elements, .inputs = 1}, DType::kBf16}));
    held_out += out ? 1 : 0;
  }
  EXPECT_NEAR(held_out, 200, 60);
  const Gemm gemm{.m = 1000, .n = 1000, .k = 1000};
  EXPECT_EQ(is_held_out({gemm, DType::kBf16}), is_held_out({gemm, DType::kFp8}));
}

TEST_F(KernelFitTest, RefusesWhatItCannotFitWithAPlace) {
  options_.tables = {"fp8"};
  auto fit = fit_kernels(options_, gpu_of);
  ASSERT_FALSE(fit);
  EXPECT_EQ(fit.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(fit.error().where, folder_.string());

  options_.tables.clear();
  std::ofstream(folder_ / "fp8_gemm.csv") << "gpu,op,dtype,m,n,k,latency_ms\nh200-sxm,linear,fp8,64,0,64,1\n";
  fit = fit_kernels(options_, gpu_of);
  ASSERT_FALSE(fit);
  EXPECT_NE(fit.error().where.find("fp8_gemm.csv:2"), std::string::npos) << to_text(fit.error());

  std::ofstream(folder_ / "fp8_gemm.csv") << "gpu,op,dtype,m,n,k,latency_ms\nnobody,linear,fp8,64,64,64,1\n";
  fit = fit_kernels(options_, gpu_of);
  ASSERT_FALSE(fit);
  EXPECT_NE(to_text(fit.error()).find("nobody"), std::string::npos) << to_text(fit.error());

  for (const char* latency : {"1e308", "5e-324"}) {
    std::ofstream(folder_ / "fp8_gemm.csv") << "gpu,op,dtype,m,n,k,latency_ms\nh200-sxm,linear,fp8,64,64,64,1\n"
                                            << "h200-sxm,linear,fp8,64,64,128," << latency << "\n";
    fit = fit_kernels(options_, gpu_of);
    ASSERT_FALSE(fit);
    EXPECT_NE(fit.error().where.find("fp8_gemm.csv:3"), std::string::npos) << to_text(fit.error());
    EXPECT_EQ(fit.error().message, fmt::format("latency_ms is \"{}\"", latency));
  }
}

}  // namespace
}  // namespace ns_dist
