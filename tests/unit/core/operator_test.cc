#include "ns_dist/operator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ns_dist/forecast.h"

namespace ns_dist {
namespace {

using namespace units;

double flops(const Operator& op) { return work_of(op).flops / FLOP; }
double bytes(const Operator& op) { return (work_of(op).read + work_of(op).written) / B; }

TEST(OperatorWork, GemmReadsOperandsAndWritesProductOnce) {
  const Operator op{Gemm{.batch = 2, .m = 3, .n = 5, .k = 7}, DType::kBf16};
  EXPECT_DOUBLE_EQ(flops(op), 2.0 * 2 * 3 * 5 * 7);
  EXPECT_DOUBLE_EQ(bytes(op), 2.0 * 2 * (3 * 7 + 7 * 5 + 3 * 5));
}

TEST(OperatorWork, AccumulatingWeightGradientReadsAndWritesFp32) {
  const Operator op{Gemm{.m = 64, .n = 32, .k = 16, .epilogue = Epilogue::kAccumulateFp32}, DType::kBf16};
  EXPECT_DOUBLE_EQ(bytes(op), 2.0 * (64 * 16 + 16 * 32) + 8.0 * 64 * 32);
}

TEST(OperatorWork, GroupedWeightGradientWritesEachExpertsWeights) {
  GroupedGemm grouped{.experts = 4, .rows = 64, .n = 32, .k = 16, .layout = GemmLayout::kTN};
  EXPECT_DOUBLE_EQ(bytes({grouped, DType::kBf16}), 2.0 * (64 * 32 + 64 * 16 + 4 * 32 * 16));
  grouped.epilogue = Epilogue::kAccumulateFp32;
  EXPECT_DOUBLE_EQ(bytes({grouped, DType::kBf16}), 2.0 * (64 * 32 + 64 * 16) + 8.0 * 4 * 32 * 16);
  EXPECT_DOUBLE_EQ(flops({GroupedGemm{.experts = 4, .rows = 64, .n = 32, .k = 16, .layout = GemmLayout::kTN}}),
                   2.0 * 64 * 32 * 16);
}

// FlashAttention's own benchmark counts 4 s^2 d h b, halved when causal; s (s + 1) / 2 pairs are exact.
TEST(OperatorWork, CausalAttentionDoesHalfTheWork) {
  Attention attention{.batch = 2,
                      .heads = 4,
                      .kv_heads = 4,
                      .query_length = 1024,
                      .key_length = 1024,
                      .head_dim = 64,
                      .value_dim = 64,
                      .causal = false};
  EXPECT_DOUBLE_EQ(flops({attention}), 4.0 * 1024 * 1024 * 64 * 4 * 2);
  attention.causal = true;
  EXPECT_DOUBLE_EQ(flops({attention}), 4.0 * (1024.0 * 1025 / 2) * 64 * 4 * 2);
  attention.pass = Pass::kBackward;  // five products against two
  EXPECT_DOUBLE_EQ(flops({attention}), 2.5 * 4.0 * (1024.0 * 1025 / 2) * 64 * 4 * 2);
}

// Counted one by one, for every small shape.
TEST(OperatorWork, AttendedPairsEqualTheCount) {
  for (std::int64_t queries = 1; queries <= 6; ++queries) {
    for (std::int64_t keys = 1; keys <= 6; ++keys) {
      for (std::int64_t window = 0; window <= 7; ++window) {
        double pairs = 0;
        for (std::int64_t q = 0; q < queries; ++q) {
          for (std::int64_t key = 0; key < keys; ++key) {
            const std::int64_t behind = keys - queries + q - key;  // 0: the query's own position
            if (behind >= 0 && (window == 0 || behind < window)) ++pairs;
          }
        }
        const Attention op{.query_length = queries, .key_length = keys, .causal = true, .window = window};
        EXPECT_DOUBLE_EQ(flops({op}), 4 * pairs) << queries << " queries, " << keys << " keys, window " << window;
      }
    }
  }
}

TEST(OperatorWork, GroupedQueriesShareKeysAndValues) {
  Attention op{.batch = 1,
               .heads = 8,
               .kv_heads = 8,
               .query_length = 128,
               .key_length = 128,
               .head_dim = 64,
               .value_dim = 64,
               .causal = false};
  const double all = bytes({op});
  op.kv_heads = 2;
  EXPECT_DOUBLE_EQ(all - bytes({op}), 2.0 * 6 * 128 * 128);  // six heads fewer of K and V
}

// Mixed-precision Adam: 16 bytes in, 12 bytes of state and the weight out (ZeRO, Rajbhandari et al. 2020, s.3.1).
TEST(OperatorWork, OptimizerMovesThirtyBytesAParameter) {
  EXPECT_DOUBLE_EQ(bytes({OptimizerStep{.parameters = 10}, DType::kBf16}), 300);
  // In fp32 there is no weight beside the master weight.
  EXPECT_DOUBLE_EQ(bytes({OptimizerStep{.parameters = 10}, DType::kFp32}), 280);
}

// Backward it reads what it wrote and the gradient of that, and writes a gradient.
TEST(OperatorWork, ASoftmaxGoesBackwardWithThreeTensors) {
  const double tensor = 2.0 * 1024 * 512;
  const auto work = [](Pass pass) {
    return work_of({Softmax{.rows = 1024, .columns = 512, .pass = pass}, DType::kBf16});
  };
  EXPECT_EQ(work(Pass::kForward).read / B, tensor);
  EXPECT_EQ(work(Pass::kForward).written / B, tensor);
  EXPECT_EQ(work(Pass::kBackward).read / B, 2 * tensor);
  EXPECT_EQ(work(Pass::kBackward).written / B, tensor);
}

TEST(OperatorWork, ConvolutionCountsItsOutput) {
  // ResNet-50's first layer: 64 filters of 7x7x3 on 224x224, stride 2: 118 M multiply-adds.
  const Convolution op{
      .in_channels = 3, .in_height = 224, .in_width = 224, .out_channels = 64, .kernel = 7, .stride = 2, .padding = 3};
  EXPECT_DOUBLE_EQ(flops({op}), 2.0 * 112 * 112 * 64 * 3 * 49);
}

TEST(OperatorWork, GroupedGemmReadsEveryExpertThatHasARow) {
  GroupedGemm grouped{.experts = 4, .rows = 8, .n = 16, .k = 32};
  EXPECT_DOUBLE_EQ(flops({grouped, DType::kBf16}), 2.0 * 8 * 16 * 32);
  EXPECT_DOUBLE_EQ(bytes({grouped, DType::kBf16}), 2.0 * (8 * 32 + 4 * 32 * 16 + 8 * 16));
  grouped.rows = 3;
  EXPECT_DOUBLE_EQ(bytes({grouped, DType::kBf16}), 2.0 * (3 * 32 + 3 * 32 * 16 + 3 * 16));
}

// A product of 8 x 16 x 32: operands in 8 or 4 bits, the result in 16. Factors: a byte for 16 elements of NVFP4 and for
// 32 of MXFP8, four for 128 in blocks.
TEST(OperatorWork, ProductsOfFewBitsAreWrittenInSixteen) {
  const double operands = 8 * 32 + 16 * 32, result = 2 * 8 * 16;
  Gemm gemm{.m = 8, .n = 16, .k = 32};
  EXPECT_DOUBLE_EQ(bytes({gemm, DType::kFp8}), operands + result);
  EXPECT_DOUBLE_EQ(bytes({gemm, DType::kFp4}), operands * (0.5 + 1.0 / 16) + result);
  gemm.epilogue = Epilogue::kAccumulateFp32;  // reads and writes the sum in fp32
  EXPECT_DOUBLE_EQ(bytes({gemm, DType::kFp8}), operands + 4 * result);
  gemm.epilogue = Epilogue::kNone;
  gemm.scaling = Scaling::kBlock;
  EXPECT_DOUBLE_EQ(bytes({gemm, DType::kFp8}), operands * (33.0 / 32) + result);
  const GroupedGemm grouped{.experts = 1, .rows = 8, .n = 16, .k = 32, .scaling = Scaling::kBlock};
  EXPECT_DOUBLE_EQ(bytes({grouped, DType::kFp8}), operands * (33.0 / 32) + result);
}

TEST(OperatorWork, ASkewedRouterLeavesExpertsIdle) {
  MixtureOfExperts op{.tokens = 64, .hidden = 1024, .intermediate = 512, .experts = 128, .top_k = 2};
  const double expert = 3 * 1024 * 512 * 2, tokens = 64 * 1024 * 2;
  const auto weights = [&] { return (work_of({op, DType::kBf16}).read / B - tokens) / expert; };
  EXPECT_DOUBLE_EQ(weights(), 128);  // balanced: one each
  op.skew = 1;                       // 128 pairs over sum(1/i) = 5.43: the 47th gets 0.501, the 48th 0.49
  EXPECT_DOUBLE_EQ(weights(), 47);
  op.skew = 8;  // one expert takes nearly all, but a token picks two
  EXPECT_DOUBLE_EQ(weights(), 2);
  op.skew = 1e-9;
  EXPECT_NEAR(weights(), 128, 1);
}

TEST(OperatorValidate, NamesEveryWrongDimension) {
  const auto result = validate({Gemm{.m = 0, .n = -5, .k = 8}});
  ASSERT_FALSE(result);
  const std::string text = to_text(result.error());
  EXPECT_NE(text.find("m is 0"), std::string::npos) << text;
  EXPECT_NE(text.find("n is -5"), std::string::npos) << text;
}

TEST(OperatorValidate, RefusesHeadsThatDoNotShareEvenly) {
  EXPECT_FALSE(validate({Attention{.heads = 6, .kv_heads = 4}}));
  EXPECT_TRUE(validate({Attention{.heads = 8, .kv_heads = 4}}));
}

TEST(OperatorValidate, RefusesNotANumber) {
  EXPECT_FALSE(validate({UnknownOperator{.name = "x", .flops = std::nan("") * FLOP}}));
  EXPECT_FALSE(validate({Elementwise{.inputs = -1}}));
  EXPECT_FALSE(validate({Copy{.bytes = -1 * B}}));
  EXPECT_FALSE(validate({Convolution{.in_height = 3, .in_width = 3, .kernel = 5}}));
}

TEST(OperatorText, SaysWhatItIs) {
  EXPECT_EQ(to_text({Gemm{.m = 8192, .n = 9216, .k = 12288}, DType::kBf16}), "gemm 8192x9216x12288 nt bf16");
  EXPECT_EQ(family_of({CrossEntropy{}}), "cross_entropy");
  EXPECT_EQ(name_of(Bound::kLaunch), "launch");
}

}  // namespace
}  // namespace ns_dist
