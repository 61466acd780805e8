#include "ns_dist/operator_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace ns_dist {
namespace {

class Given final : public OperatorFields {
 public:
  explicit Given(std::map<std::string, std::string, std::less<>> values) : values_(std::move(values)) {}
  std::string_view text(std::string_view name) const override {
    const auto found = values_.find(name);
    return found == values_.end() ? std::string_view() : std::string_view(found->second);
  }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

TEST(OperatorForms, EachRowMakesTheAlternativeOfItsPlace) {
  for (std::size_t i = 0; i < operator_forms().size(); ++i) {
    const OperatorForm& form = operator_forms()[i];
    std::map<std::string, std::string, std::less<>> values = {
        {"bytes", "8"}, {"flops", "8"}, {"read_bytes", "8"}, {"topk", "2"}};
    for (const std::string_view name : words_of(form.dimensions)) {
      values.emplace(name.starts_with('[') ? name.substr(1, name.size() - 2) : name, "8");
    }
    Given fields(values);
    const Operator op{form.make(fields, form.family)};
    EXPECT_EQ(fields.problem(), "") << form.family;
    EXPECT_EQ(op.kind.index(), i) << form.family;
    EXPECT_EQ(family_of(op), form.family);
    EXPECT_TRUE(validate(op)) << form.family;
  }
}

TEST(OperatorForms, EveryNameIsOfOneRow) {
  std::vector<std::string> names = operator_names();
  for (const std::string& name : names) EXPECT_NE(find_operator_form(name), nullptr) << name;
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(find_operator_form("rmsnorm")->family, "normalization");
  EXPECT_EQ(find_operator_form("norm"), nullptr);
  EXPECT_EQ(find_operator_form(""), nullptr);
}

TEST(OperatorForms, FieldsKeepTheFirstMistake) {
  Given fields({{"m", "8.0"}, {"n", "8.5"}, {"k", "two"}, {"layout", "xy"}});
  EXPECT_EQ(fields.whole("m"), 8);
  EXPECT_EQ(fields.whole("b", 3), 3);
  EXPECT_EQ(fields.problem(), "");
  find_operator_form("gemm")->make(fields, "gemm");
  EXPECT_EQ(fields.problem(), "n is \"8.5\"");
  Given layouts({{"m", "8"}, {"n", "8"}, {"k", "8"}, {"layout", "xy"}});
  find_operator_form("gemm")->make(layouts, "gemm");
  EXPECT_EQ(layouts.problem(), "layout is \"xy\"");
  EXPECT_EQ(layouts.expected(), "nn, nt, tn or tt; or in cuBLAS' capitals TN, NN or NT");
}

// Ours, PyTorch's, nccl-tests', in any case; the elements, and whether products have a scale for each block.
TEST(OperatorForms, KnowsTheNamesOfFormats) {
  for (const DType dtype : kAllDTypes) {
    ASSERT_TRUE(read_format(name_of(dtype))) << name_of(dtype);
    EXPECT_EQ(read_format(name_of(dtype))->dtype, dtype);
    EXPECT_FALSE(read_format(name_of(dtype))->scaled_by_block) << name_of(dtype);
  }
  for (const auto& [word, dtype] : {std::pair{"half", DType::kFp16},
                                    {"Float16", DType::kFp16},
                                    {"bfloat16", DType::kBf16},
                                    {"float", DType::kFp32},
                                    {"double", DType::kFp64},
                                    {"f8e4m3", DType::kFp8},
                                    {"float8_e5m2", DType::kFp8},
                                    {"MXFP8", DType::kFp8},
                                    {"fp8_block", DType::kFp8},
                                    {"nvfp4", DType::kFp4}}) {
    ASSERT_TRUE(read_format(word)) << word;
    EXPECT_EQ(read_format(word)->dtype, dtype) << word;
  }
  for (const char* word : {"fp8-block", "mxfp8", "nvfp4"}) EXPECT_TRUE(read_format(word)->scaled_by_block) << word;
  for (const char* word : {"", "fp12", "b16", "int8"}) EXPECT_FALSE(read_format(word)) << word;
}

// As the shape of a command line: at most 2^31, or 9e15 where it is the only dimension.
TEST(OperatorForms, RefusesAbsurdDimensions) {
  const auto problem = [](std::string_view op, std::map<std::string, std::string, std::less<>> values) {
    Given fields(values);
    find_operator_form(op)->make(fields, op);
    return fields.problem();
  };
  EXPECT_EQ(problem("gemm", {{"m", "2147483648"}, {"n", "8"}, {"k", "8"}}), "");
  EXPECT_EQ(problem("gemm", {{"m", "2147483649"}, {"n", "8"}, {"k", "8"}}), "m is \"2147483649\"");
  EXPECT_EQ(problem("softmax", {{"b", "1e15"}, {"h", "1e15"}}), "b is \"1e15\"");
  EXPECT_EQ(problem("add", {{"b", "9e15"}}), "");
  EXPECT_EQ(problem("add", {{"b", "9e15"}, {"h", "2"}}), "b is \"9e15\"");
  EXPECT_EQ(problem("optimizer", {{"b", "9e15"}, {"h", "1"}}), "");
  EXPECT_EQ(problem("copy", {{"bytes", "1e19"}}), "bytes is \"1e19\"");
  EXPECT_EQ(problem("unknown", {{"flops", "1e25"}, {"read_bytes", "8"}}), "flops is \"1e25\"");
}

TEST(OperatorForms, OnlyOperatorsWithAPassHaveABackward) {
  for (const OperatorForm& form : operator_forms()) {
    Given fields({});
    OperatorKind kind = form.make(fields, form.family);
    const auto set = set_pass(kind, Pass::kBackward);
    EXPECT_EQ(set.has_value(), form.instead_of_backward.empty()) << form.family;
    EXPECT_TRUE(set_pass(kind, Pass::kForward));
  }
}

// What a table can say of an operator comes back from the row that says it.
// A known pointwise operator has streams of its own, which a table may set otherwise.
TEST(OperatorForms, PointwiseOperatorsReadTheirStreams) {
  const auto made = [](std::map<std::string, std::string, std::less<>> values) {
    values.insert({{"b", "8"}, {"h", "16"}});
    Given fields(std::move(values));
    return std::get<Elementwise>(find_operator_form("add")->make(fields, "relu"));
  };
  EXPECT_EQ(made({}).inputs, 1);
  EXPECT_EQ(made({}).outputs, 1);
  EXPECT_EQ(made({{"inputs", "5"}, {"outputs", "3"}}).inputs, 5);
  EXPECT_EQ(made({{"inputs", "5"}, {"outputs", "3"}}).outputs, 3);
}

TEST(OperatorForms, WritesWhatItReads) {
  const Library cudnn = Library::kCudnn;
  Attention latent{.batch = 2, .heads = 16, .kv_heads = 4, .query_length = 512, .key_length = 2048, .head_dim = 192};
  latent.value_dim = 128, latent.causal = false, latent.window = 64, latent.library = cudnn;
  latent.deterministic = true, latent.pass = Pass::kBackward;
  Attention blocks = latent;
  blocks.scaling = Scaling::kBlock;
  const std::vector<Operator> ops = {
      {Gemm{.m = 8, .n = 16, .k = 24}, DType::kFp32},
      {Gemm{.batch = 3, .m = 8, .n = 16, .k = 24, .layout = GemmLayout::kTN, .epilogue = Epilogue::kAccumulateFp32}},
      {Gemm{.m = 8, .n = 16, .k = 24, .layout = GemmLayout::kNN, .epilogue = Epilogue::kAccumulate}},
      {Gemm{.m = 8, .n = 16, .k = 24, .scaling = Scaling::kBlock, .quantizes = true}, DType::kFp8},
      {Gemm{.m = 8, .n = 16, .k = 24}, DType::kFp8},
      {Gemm{.m = 8, .n = 16, .k = 24, .scaling = Scaling::kBlock}, DType::kFp4},
      {latent},
      {blocks, DType::kFp8},
      {Softmax{.rows = 8, .columns = 16, .pass = Pass::kBackward, .library = Library::kEager}},
      {Normalization{.rows = 8, .columns = 16, .pass = Pass::kBackward, .library = Library::kCompiled}},
      {Normalization{.kind = NormalizationKind::kRmsNorm, .rows = 8, .columns = 16, .library = Library::kServing}},
      {Elementwise{.name = "swiglu", .elements = 64, .inputs = 2, .flops_per_element = 5}},
      {Elementwise{.elements = 64, .inputs = 2.5, .outputs = 1.5}},
      {Embedding{.tokens = 8, .hidden = 16, .vocabulary = 1000, .pass = Pass::kBackward}},
      {CrossEntropy{.rows = 8, .columns = 16, .pass = Pass::kBackward, .library = Library::kFlash2}},
      {OptimizerStep{123}},
      {GroupedGemm{.experts = 4, .rows = 64, .n = 16, .k = 24, .one_kernel = true}},
      {GroupedGemm{.experts = 4, .rows = 64, .n = 16, .k = 24, .scaling = Scaling::kBlock}, DType::kFp8},
      {GroupedGemm{.experts = 4,
                   .rows = 64,
                   .n = 16,
                   .k = 24,
                   .layout = GemmLayout::kTN,
                   .epilogue = Epilogue::kAccumulateFp32}},
      {MixtureOfExperts{.tokens = 8, .hidden = 16, .intermediate = 24, .experts = 4, .top_k = 2, .skew = 1.2}},
      {Copy{1 * units::MB}},
      {Convolution{.batch = 2,
                   .in_channels = 3,
                   .in_height = 32,
                   .in_width = 64,
                   .out_channels = 8,
                   .kernel = 3,
                   .stride = 2,
                   .padding = 1,
                   .pass = Pass::kBackward}},
      {UnknownOperator{"mine", 5 * units::FLOP, 6 * units::B, 7 * units::B}}};
  for (const Operator& op : ops) {
    std::map<std::string, std::string, std::less<>> values;
    for (auto& [column, text] : columns_of(op)) values.emplace(column, text);
    Given fields(values);
    const OperatorForm* form = find_operator_form(values.at("op"));
    ASSERT_NE(form, nullptr) << to_text(op);
    ASSERT_TRUE(read_format(values.at("dtype"))) << to_text(op);
    EXPECT_EQ(read_format(values.at("dtype"))->dtype, op.dtype) << to_text(op);
    Operator read{form->make(fields, values.at("op")), op.dtype};
    EXPECT_EQ(fields.problem(), "") << to_text(op);
    ASSERT_TRUE(set_pass(read.kind, values["pass"] == "bwd" ? Pass::kBackward : Pass::kForward));
    EXPECT_EQ(read, op) << to_text(op) << " instead of " << to_text(read);
  }
}

}  // namespace
}  // namespace ns_dist
