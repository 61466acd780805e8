#include "safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "data_sheet.h"
#include "embedded_weights.h"
#include "ns_dist/catalog.h"
#include "support/gpus.h"
#include "weights_file.h"

namespace ns_dist {
namespace {

std::string with_header(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

void refuses(const std::string& bytes, const std::string& reason) {
  const auto file = Safetensors::parse(bytes, "w");
  ASSERT_FALSE(file) << reason;
  EXPECT_NE(to_text(file.error()).find(reason), std::string::npos) << to_text(file.error());
}

TEST(Safetensors, ReadsWhatItWrites) {
  Safetensors file;
  file.metadata()["who"] = "me";
  file.put<float>("b", std::vector<float>{1.5F, -2});
  file.put<std::uint32_t>("a", std::vector<std::uint32_t>{1, 2, 3});
  const std::string bytes = file.bytes();
  const auto read = Safetensors::parse(bytes, "w");
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(read->metadata().at("who"), "me");
  EXPECT_EQ(*read->get<float>("b"), (std::vector<float>{1.5F, -2}));
  EXPECT_EQ(*read->get<std::uint32_t>("a"), (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(read->bytes(), bytes);
  EXPECT_FALSE(read->get<float>("a"));
  EXPECT_FALSE(read->get<float>("c"));
}

// The example of the format's own description, with one tensor.
TEST(Safetensors, ReadsForeignFiles) {
  const std::string bytes =
      with_header(R"({"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", std::string("\0\0\200?\0\0\0@", 8));
  const auto file = Safetensors::parse(bytes, "w");
  ASSERT_TRUE(file) << to_text(file.error());
  EXPECT_EQ(*file->get<float>("x"), (std::vector<float>{1, 2}));
}

TEST(Safetensors, RefusesDamage) {
  refuses("", "shorter than its header length");
  refuses(std::string(8, '\xff'), "more than the file has");
  refuses(with_header("[1]"), "not a JSON object");
  refuses(with_header("{\"x\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}"), "nested deeper");
  refuses(with_header("{\"x\":3}"), "not an object");
  refuses(with_header(R"({"__metadata__":{"a":1}})"), "not a text");
  refuses(with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234"), "leaves the file");
  refuses(with_header(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,9]}})", "1234"), "leaves the file");
  refuses(with_header(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234"), "leaves the file");
  refuses(with_header(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}})", "1234"), "does not fill its shape");
  refuses(with_header(R"({"x":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "1234"), "unknown type");
  refuses(with_header(R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234"), "no size");
  refuses(with_header(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", "1234"),
          "larger");
  refuses(
      with_header(
          R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
          "123456"),
      "overlap");
}

// Were tensors copied as they are read, this file of 6 MB would ask for 40 GB.
TEST(Safetensors, CopiesNothingThatOverlaps) {
  constexpr int kTensors = 10'000, kBytes = 4 << 20;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    const std::string size = std::to_string(kBytes);
    header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[)" + size +
              R"(],"data_offsets":[0,)" + size + "]}";
  }
  refuses(with_header(header + "}", std::string(kBytes, 'x')), "overlap");
}

// A small set of weights: one predictor, one tree with one question.
KernelWeights small_weights() {
  constexpr Predictor kPredictor = Predictor::kMoe;
  const std::size_t shared = shape_features(kPredictor).size() + gpu_features(kPredictor).size();
  PredictorWeights part;
  part.gpus = {data_sheet_of(a100())};
  part.rows = {1};
  part.kernel_classes = {1};
  const auto fill = [](Corrector& corrector, std::size_t inputs) {
    corrector.low.assign(inputs, -100);
    corrector.high.assign(inputs, 100);
    const auto trees = Trees::pack(inputs, std::vector<PlainTree>{{{0, -1, -1}, {0.5F, -0.25F, 0.5F}}});
    ASSERT_TRUE(trees);
    corrector.trees = *trees;
  };
  fill(part.on_measured_gpu, shared + 1);
  fill(part.on_other_gpu, shared);
  part.same_generation = part.other_generation = {-0.05F, 0.05F, -0.05F, 0.05F, -0.05F, 0.05F};
  part.measured = {part.same_generation};
  KernelWeights weights;
  weights.predictors[static_cast<std::size_t>(kPredictor)] = part;
  return weights;
}

TEST(KernelWeights, ReadWhatIsWritten) {
  const std::string bytes = to_safetensors(small_weights());
  const auto read = read_kernel_weights(bytes, "w");
  ASSERT_TRUE(read) << to_text(read.error());
  const auto& part = read->predictors[static_cast<std::size_t>(Predictor::kMoe)];
  ASSERT_TRUE(part);
  std::array<double, 64> low{}, high{};
  high[0] = 1;
  EXPECT_NEAR(part->on_measured_gpu.trees.evaluate(low.data()), -0.25,
              1e-4);  // leaves are stored in steps of 1/32767 of the largest
  EXPECT_NEAR(part->on_measured_gpu.trees.evaluate(high.data()), 0.5, 1e-4);
  const Operator experts{MixtureOfExperts{.tokens = 8, .hidden = 8, .intermediate = 8, .experts = 2, .top_k = 1}};
  EXPECT_TRUE(was_measured(*part, 0, kernel_class(Predictor::kMoe, experts, Mode::kBurst)));
  EXPECT_EQ(to_safetensors(*read), bytes);
}

// A predictor whose base is a sum.
KernelWeights weights_of_norms() {
  constexpr Predictor kPredictor = Predictor::kNormalization;
  KernelWeights weights = small_weights();
  auto& moe = weights.predictors[static_cast<std::size_t>(Predictor::kMoe)];
  PredictorWeights part = *moe;
  moe.reset();
  const std::size_t shared = shape_features(kPredictor).size() + gpu_features(kPredictor).size();
  part.on_measured_gpu = part.on_other_gpu = {};
  part.on_measured_gpu.low.assign(shared + 1, -100), part.on_measured_gpu.high.assign(shared + 1, 100);
  part.on_other_gpu.low.assign(shared, -100), part.on_other_gpu.high.assign(shared, 100);
  part.sums["cudnn forward"] = {2, 1.25, 0, 4};
  part.sums["cudnn forward/a100-sxm-80gb"] = {3, 1.5};
  weights.predictors[static_cast<std::size_t>(kPredictor)] = part;
  return weights;
}

TEST(KernelWeights, HoldTheCoefficientsOfSums) {
  const std::string bytes = to_safetensors(weights_of_norms());
  const auto read = read_kernel_weights(bytes, "w");
  ASSERT_TRUE(read) << to_text(read.error());
  const Sums& sums = read->predictors[static_cast<std::size_t>(Predictor::kNormalization)]->sums;
  EXPECT_EQ(sums, weights_of_norms().predictors[static_cast<std::size_t>(Predictor::kNormalization)]->sums);
  std::string other = bytes;
  other.replace(other.find("launch,memory"), 13, "launch,MEMORY");
  const auto refused = read_kernel_weights(other, "w");
  ASSERT_FALSE(refused);
  EXPECT_NE(to_text(refused.error()).find("other terms"), std::string::npos) << to_text(refused.error());
}

TEST(KernelWeights, RefuseNegativeCoefficients) {
  KernelWeights weights = weights_of_norms();
  weights.predictors[static_cast<std::size_t>(Predictor::kNormalization)]->sums["cudnn forward"][1] = -1;
  const auto read = read_kernel_weights(to_safetensors(weights), "w");
  ASSERT_FALSE(read);
  EXPECT_NE(to_text(read.error()).find("below zero"), std::string::npos) << to_text(read.error());
}

TEST(KernelWeights, RefuseKernelClassesOfOtherGpus) {
  KernelWeights weights = small_weights();
  weights.predictors[static_cast<std::size_t>(Predictor::kMoe)]->kernel_classes.clear();
  const auto read = read_kernel_weights(to_safetensors(weights), "w");
  ASSERT_FALSE(read);
  EXPECT_NE(to_text(read.error()).find("moe/kernel_classes"), std::string::npos) << to_text(read.error());
}

TEST(KernelWeights, RefuseRowsOfOtherGpus) {
  KernelWeights weights = small_weights();
  weights.predictors[static_cast<std::size_t>(Predictor::kMoe)]->rows.push_back(1);
  const auto read = read_kernel_weights(to_safetensors(weights), "w");
  ASSERT_FALSE(read);
  EXPECT_NE(to_text(read.error()).find("moe/rows"), std::string::npos) << to_text(read.error());
}

TEST(KernelWeights, RefuseAnotherVersionAndOtherFeatures) {
  std::string bytes = to_safetensors(small_weights());
  std::string other = bytes;
  other.replace(other.find("kernel-weights/7"), 16, "kernel-weights/9");
  ASSERT_FALSE(read_kernel_weights(other, "w"));
  EXPECT_NE(to_text(read_kernel_weights(other, "w").error()).find("kernel-weights/9"), std::string::npos);
  other = bytes;
  other.replace(other.find("log_tokens"), 10, "log_tokenz");
  ASSERT_FALSE(read_kernel_weights(other, "w"));
  EXPECT_NE(to_text(read_kernel_weights(other, "w").error()).find("other features"), std::string::npos);
}

TEST(KernelWeights, CarryTheDataSheetsOfMeasuredGpus) {
  const std::string bytes = to_safetensors(small_weights());
  const auto read = read_kernel_weights(bytes, "w");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->predictors[static_cast<std::size_t>(Predictor::kMoe)]->gpus.front(), data_sheet_of(a100()));
  std::string other = bytes;
  other.replace(other.find("sm_count"), 8, "sm_countz");
  EXPECT_FALSE(read_kernel_weights(other, "w"));
}

TEST(KernelWeights, WhatIsCompiledInPassesEveryCheck) {
  for (const EmbeddedFile& file : embedded_weights()) {
    const auto read = read_kernel_weights(file.content, std::string(file.path));
    ASSERT_TRUE(read) << to_text(read.error());
    EXPECT_EQ(to_safetensors(*read), file.content) << file.path;
    std::size_t predictors = 0;
    for (std::size_t p = 0; p < kPredictorCount; ++p) {
      if (!read->predictors[p]) continue;
      ++predictors;
      const auto predictor = static_cast<Predictor>(p);
      EXPECT_TRUE(file.path.starts_with(std::string(name_of(predictor)) + "-v"));
      ASSERT_NE(standard_weights(predictor), nullptr);
      EXPECT_EQ(standard_weights(predictor)->gpus, read->predictors[p]->gpus);
    }
    EXPECT_EQ(predictors, 1u) << file.path;
  }
}

// A measured GPU of another data sheet is forecast as that GPU scaled, so the catalog and the weights must agree.
TEST(KernelWeights, CarryWhatTheCatalogSays) {
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    for (const Gpu& sheet : standard_weights(static_cast<Predictor>(p))->gpus) {
      const auto gpu = Catalog::standard().gpu(sheet.id);
      ASSERT_TRUE(gpu) << sheet.id;
      EXPECT_EQ(data_sheet_of(*gpu), sheet) << sheet.id << ": write the weights anew";
    }
  }
}

// The rate of fp64 changes no kernel of a training. What a FLOP costs does: power limits the clock.
TEST(DataSheet, GpusOfAnotherEnergyRunKernelsOtherwise) {
  Gpu other = a100();
  other.id = "mine", other.tensor[DType::kFp64] = 0.5 * other.tensor[DType::kFp64];
  EXPECT_TRUE(run_kernels_alike(a100(), other));
  other.flop_energy = 0.5;
  EXPECT_FALSE(run_kernels_alike(a100(), other));
}

TEST(KernelWeights, RefuseTreesThatAreNone) {
  const auto pack = [](std::vector<int> feature, std::vector<float> value) {
    return Trees::pack(2, std::vector<PlainTree>{{std::move(feature), std::move(value)}});
  };
  EXPECT_FALSE(pack({}, {}));                        // no node
  EXPECT_FALSE(pack({0, -1}, {0.F, 1.F}));           // a child is missing
  EXPECT_FALSE(pack({2, -1, -1}, {0.F, 1.F, 2.F}));  // no such feature
  EXPECT_FALSE(pack({-1, -1}, {1.F, 2.F}));          // two roots
  EXPECT_FALSE(pack({0, -1, -1}, {std::numeric_limits<float>::quiet_NaN(), 1.F, 2.F}));
  EXPECT_TRUE(pack({0, 1, -1, -1, -1}, {0.F, 3.F, 10.F, 20.F, 30.F}));
}

TEST(KernelWeights, EveryTruncationIsAnError) {
  const std::string bytes = to_safetensors(small_weights());
  for (std::size_t size = 0; size < bytes.size(); size += 7)
    EXPECT_FALSE(read_kernel_weights(bytes.substr(0, size), "w"));
}

}  // namespace
}  // namespace ns_dist
