#include "ns_dist/kernel_table.h"

#include <gtest/gtest.h>

#include "support/gpus.h"

namespace ns_dist {
namespace {

CsvTable table(const std::string& text) {
  auto parsed = CsvTable::parse(text, "t.csv");
  EXPECT_TRUE(parsed) << (parsed ? "" : to_text(parsed.error()));
  return *std::move(parsed);
}

TEST(KernelTable, ReadsGemms) {
  const CsvTable csv =
      table("gpu,op,dtype,b,m,n,k,latency_ms\r\nh100,bmm,fp16,4,8,16,32,0.5\n\nh100,linear,fp8_block,1,8,16,32.0,\n");
  const KernelReader reader(csv);
  ASSERT_EQ(csv.row_count(), 2u);
  EXPECT_EQ(csv.line(1), 4);
  const auto first = reader.row(0);
  ASSERT_TRUE(first) << to_text(first.error());
  EXPECT_EQ(first->work,
            (Operator{Gemm{.batch = 4, .m = 8, .n = 16, .k = 32, .layout = GemmLayout::kNN}, DType::kFp16}));
  EXPECT_EQ(first->latency_ms, 0.5);
  const auto second = reader.row(1);
  ASSERT_TRUE(second) << to_text(second.error());
  EXPECT_EQ(std::get<Gemm>(second->work.kind).scaling, Scaling::kBlock);
  EXPECT_FALSE(second->latency_ms);
}

TEST(KernelTable, ReadsAttentionAndExperts) {
  const CsvTable csv = table(
      "gpu,op,dtype,b,s,h,h_kv,d,causal,window,num_tokens,hidden,inter,topk,experts,tp,distribution\n"
      "x,attention,bf16,2,128,8,2,64,0,16,,,,,,,\n"
      "x,moe,bf16,,,,,,,,10,64,128,2,8,4,power_law_1.2\n");
  const KernelReader reader(csv);
  const auto attention = reader.row(0);
  ASSERT_TRUE(attention) << to_text(attention.error());
  EXPECT_EQ(std::get<Attention>(attention->work.kind).kv_heads, 2);
  EXPECT_FALSE(std::get<Attention>(attention->work.kind).causal);
  const auto moe = reader.row(1);
  ASSERT_TRUE(moe) << to_text(moe.error());
  EXPECT_EQ(std::get<MixtureOfExperts>(moe->work.kind).intermediate, 32);
  EXPECT_DOUBLE_EQ(std::get<MixtureOfExperts>(moe->work.kind).skew, 1.2);
}

TEST(KernelTable, TellsFrameworksAndDoubtfulRows) {
  const CsvTable csv = table(
      "gpu,op,b,h,framework,outlier,over_peak\n"
      "x,softmax,2,3,trtllm,0,0.0\n"
      "x,softmax,2,3,vllm,1,0\n"
      "x,softmax,2,3,,,1.0\n");
  const KernelReader reader(csv);
  const std::vector<KernelRow> rows = {*reader.row(0), *reader.row(1), *reader.row(2)};
  EXPECT_EQ(rows[0].framework, "trtllm");
  EXPECT_EQ(rows[2].framework, "");
  EXPECT_FALSE(rows[0].doubtful);
  EXPECT_TRUE(rows[1].doubtful);
  EXPECT_TRUE(rows[2].doubtful);
}

TEST(KernelTable, KeepsCommasInQuotes) {
  const CsvTable csv = table("name,gpu,op,b,h\n\"f<4, float>\",x,softmax,2,3\n");
  const auto row = KernelReader(csv).row(0);
  ASSERT_TRUE(row) << to_text(row.error());
  EXPECT_EQ(std::get<Softmax>(row->work.kind).columns, 3);
}

TEST(KernelTable, NamesTheLineOfABadRow) {
  const CsvTable csv = table(
      "gpu,op,dtype,m,n,k,latency_ms\nx,linear,bf16,0,2,2,1\nx,frobnicate,bf16,1,2,2,1\nx,linear,int3,1,2,2,1\n"
      "x,linear,bf16,1,two,2,1\n,linear,bf16,1,2,2,1\nx,linear,bf16,1,2,1e300,1\n"
      "x,linear,bf16,1,2,2,-1\n");
  const KernelReader reader(csv);
  const char* reasons[] = {"m is 0", "frobnicate", "int3", "two", "no GPU", "1e300"};
  for (std::size_t i = 0; i < std::size(reasons); ++i) {
    const auto row = reader.row(i);
    ASSERT_FALSE(row) << i;
    const std::string text = to_text(row.error());
    EXPECT_NE(text.find(reasons[i]), std::string::npos) << text;
    EXPECT_NE(text.find("t.csv:" + std::to_string(i + 2)), std::string::npos) << text;
  }
  EXPECT_TRUE(KernelReader(csv, "h100").row(4));
  const auto unmeasured = reader.row(6);
  ASSERT_TRUE(unmeasured) << to_text(unmeasured.error());
  EXPECT_EQ(unmeasured->bad_latency, "-1");
  EXPECT_FALSE(unmeasured->latency_ms);
}

// Gradients of products are products of their own; a row that calls one "wgrad" is no forward one.
TEST(KernelTable, RefusesGradientsAndDimensionsThatAreNone) {
  const CsvTable csv = table(
      "gpu,op,b,h,m,n,k,pass\nx,gemm,,,8,8,8,wgrad\nx,layernorm,2,3,,,,dgrad\nx,add,-2,-3,,,,fwd\nx,copy,2,0,,,,\n"
      "x,add,2,3,,,,fwd\n");
  const KernelReader reader(csv);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_FALSE(reader.row(i)) << i;
  EXPECT_TRUE(reader.row(4));
}

TEST(KernelTable, TakesThePassOfWhatHasOne) {
  const CsvTable csv = table(
      "gpu,op,b,m,n,k,s,h,d,cin,cout,ksize,isize,stride,pad,pass\nx,softmax,2,,,,,3,,,,,,,,bwd\n"
      "x,rmsnorm,2,,,,,3,,,,,,,,backward\nx,emb,2,,,,,3,,,,,,,,bwd\nx,attention,1,,,,64,3,64,,,,,,,bwd\n"
      "x,conv,1,,,,,,,8,8,3,16,1,1,bwd\nx,cross_entropy,2,,,,,3,,,,,,,,bwd\nx,softmax,2,,,,,3,,,,,,,,forward\n"
      "x,softmax,2,,,,,3,,,,,,,,sideways\nx,gemm,,8,8,8,,,,,,,,,,sideways\nx,gemm,,8,8,8,,,,,,,,,,bwd\n"
      "x,add,2,,,,,3,,,,,,,,bwd\nx,gemm,,8,8,8,,,,,,,,,,fwd\n");
  const KernelReader reader(csv);
  for (std::size_t i = 0; i < 7; ++i) {
    const auto row = reader.row(i);
    ASSERT_TRUE(row) << to_text(row.error());
    const Pass pass = std::visit(
        [](const auto& op) {
          if constexpr (requires { op.pass; }) return op.pass;
          return Pass::kForward;
        },
        row->work.kind);
    EXPECT_EQ(pass, i < 6 ? Pass::kBackward : Pass::kForward) << i;
  }
  const char* reasons[] = {"t.csv:9: pass is \"sideways\"; expected fwd, bwd", "t.csv:10: pass is \"sideways\"",
                           "t.csv:11: gemm has no backward pass; expected forward; its gradients are gemms",
                           "t.csv:12: elementwise has no backward pass"};
  for (std::size_t i = 0; i < std::size(reasons); ++i) {
    const auto row = reader.row(7 + i);
    ASSERT_FALSE(row) << i;
    EXPECT_NE(to_text(row.error()).find(reasons[i]), std::string::npos) << to_text(row.error());
  }
  EXPECT_TRUE(reader.row(11));
}

TEST(KernelTable, ReadsWhatSpreadsheetsWrite) {
  const CsvTable csv =
      table("\xEF\xBB\xBFgpu, op ,dtype, b,h\r\nx, softmax, \"fp32\" , 2,\t3 \nx,softmax,bf16,2,3,4\n");
  EXPECT_EQ(csv.columns(), (std::vector<std::string>{"gpu", "op", "dtype", "b", "h"}));
  const KernelReader reader(csv);
  const auto row = reader.row(0);
  ASSERT_TRUE(row) << to_text(row.error());
  EXPECT_EQ(row->work, (Operator{Softmax{.rows = 2, .columns = 3}, DType::kFp32}));
  const auto longer = reader.row(1);
  ASSERT_FALSE(longer);
  EXPECT_NE(to_text(longer.error()).find("t.csv:3: 6 fields; expected 5"), std::string::npos);
}

TEST(KernelTable, KnowsEveryOperatorThatItNames) {
  for (const std::string& name : operator_names()) {
    const CsvTable csv = table(
        "gpu,op,b,s,h,d,m,n,k,num_tokens,hidden,inter,topk,experts,cin,cout,ksize,isize,stride,pad,flops,read_bytes\n"
        "x," +
        name + ",8,64,8,64,8,8,8,8,8,8,2,8,8,8,3,16,1,1,1e9,1e6\n");
    const auto row = KernelReader(csv).row(0);
    EXPECT_TRUE(row) << name << ": " << (row ? "" : to_text(row.error()));
  }
}

TEST(KernelTable, SaysWhichColumnIsMissing) {
  const auto refused = [](const std::string& text, const char* gpu) {
    const auto checked = check_kernel_columns(table(text), gpu);
    return checked ? "" : to_text(checked.error());
  };
  EXPECT_EQ(refused("gpu,op\n", ""), "");
  EXPECT_EQ(refused("op\n", "x"), "");
  EXPECT_NE(refused("op,m\n", "").find("t.csv:1: no column \"gpu\""), std::string::npos);
  EXPECT_NE(refused("gpu;op;m\n", "").find("no column \"op\""), std::string::npos);
  EXPECT_NE(refused("gpu;op;m\n", "").find("the columns are: gpu;op;m; separate them by commas"), std::string::npos);
  EXPECT_EQ(refused("\x01\xff\x1b[31m\n", "").find('\x1b'), std::string::npos);
}

TEST(KernelTable, ReplacesEarlierAnswers) {
  const CsvTable csv =
      table("gpu,op,\"a,b\",forecast_ms,b,low_ms\nx,softmax, 1,9,2,8\nx,softmax\nx,softmax,1,2,3,4,5\n");
  KernelForecasts none;
  none.forecasts.resize(3);
  EXPECT_EQ(csv_header(csv) + csv_rows(csv, none),
            "gpu,op,\"a,b\",b,forecast_ms,low_ms,high_ms,utilization,bound,tile,waves,method,extrapolated,"
            "forecast_power_w\nx,softmax, 1,2,,,,,,,,,,\nx,softmax,,,,,,,,,,,,\nx,softmax,1,3,,,,,,,,,,\n");
  EXPECT_EQ(AnsweredCsv(csv, kernel_answer_columns()).replaced(), (std::vector<std::string>{"forecast_ms", "low_ms"}));
}

TEST(KernelTable, RefusesAQuoteThatIsNotClosed) {
  const CsvTable csv = table("gpu,op,b,h,note\nx,softmax,2,3,\"two\nlines\"\nx,softmax,2,3,\"one, line\"\n");
  const auto open = KernelReader(csv).row(0);
  ASSERT_FALSE(open);
  EXPECT_NE(to_text(open.error()).find("t.csv:2: a quote is not closed on its line"), std::string::npos);
  EXPECT_FALSE(KernelReader(csv).row(1));
  EXPECT_TRUE(KernelReader(csv).row(2));
}

// A row that cannot be read says nothing of which framework measured a GPU.
TEST(KernelTable, PreferenceReadsWholeRowsOnly) {
  const CsvTable csv = table("gpu,framework,op,b,h\nx,first,softmax,2,3,4\nx,second,softmax,2,3\n");
  const PreferredFrameworks preferred(csv, {"first", "second"});
  EXPECT_FALSE(preferred.passes_over(*KernelReader(csv).row(1)));
}

TEST(KernelForecaster, KeepsTheErrorsOfAllPieces) {
  const std::string text = "gpu,op,b,h,latency_ms\nx,softmax,1024,1024,0.02\nx,softmax,1024,2048,0.02\n";
  const auto gpu = [](std::string_view) -> Result<Gpu> { return a100(); };
  KernelForecaster pieces({}, gpu);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(pieces.forecast(table(text)));
  KernelForecaster once({}, gpu);
  ASSERT_TRUE(once.forecast(table(text)));
  ASSERT_EQ(once.errors().size(), 2u);
  ASSERT_EQ(pieces.errors().size(), 2u);
  const KernelErrors few = once.errors().back(), many = pieces.errors().back();
  EXPECT_EQ(many.rows, 10'000u);
  EXPECT_NEAR(many.mean, few.mean, 1e-9);
  EXPECT_NEAR(many.bias, few.bias, 1e-9);
  EXPECT_NEAR(many.median, few.median, 1e-4 + 1e-3 * few.median);
  EXPECT_NEAR(many.p90, few.p90, 1e-4 + 1e-3 * few.p90);
  EXPECT_EQ(many.largest, few.largest);
  EXPECT_EQ(many.inside, few.inside);
}

// Two spellings of one GPU are one row of the errors.
TEST(KernelForecaster, ErrorsAreThoseOfAGpuHoweverItIsSpelled) {
  KernelForecaster forecaster({}, [](std::string_view) -> Result<Gpu> { return a100(); });
  ASSERT_TRUE(forecaster.forecast(
      table("gpu,op,b,h,latency_ms\na100,softmax,1024,1024,0.02\na100-sxm,softmax,1024,1024,0.02\n")));
  const std::vector<KernelErrors> errors = forecaster.errors();
  ASSERT_EQ(errors.size(), 2u) << "its softmax, and all";
  EXPECT_EQ(errors[0].gpu, a100().id);
  EXPECT_EQ(errors[0].rows, 2u);
}

}  // namespace
}  // namespace ns_dist
