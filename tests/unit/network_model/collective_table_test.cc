#include "ns_dist/collective_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

#include "support/clusters.h"

namespace ns_dist {
namespace {

using namespace units;

Result<Cluster> resolve(std::string_view gpu, std::string_view cluster) {
  if (cluster == "dgx" || gpu == "a100") return test::dgx_a100();
  return fail({ErrorCode::kNotFound, "unknown", ""});
}

CsvTable table(const std::string& text) { return *CsvTable::parse(text, "rows.csv"); }

Result<CollectiveRow> read(const std::string& columns, const std::string& fields) {
  const CsvTable rows = table(columns + "\n" + fields + "\n");
  NS_TRY(const CollectiveReader reader, CollectiveReader::of(rows));
  return reader.row(0);
}

TEST(CollectiveTable, ReadsTheMeasuredDatasColumns) {
  const auto row = read("gpu,collective,ranks,gpus_per_node,bytes,latency_ms,lib,dtype",
                        "a100,all_gather,8,8,1048576,0.026,nccl,int8");
  ASSERT_TRUE(row) << to_text(row.error());
  EXPECT_EQ(row->gpu, "a100");
  EXPECT_EQ(row->kind, CollectiveKind::kAllGather);
  EXPECT_EQ(row->ranks, 8);
  EXPECT_EQ(row->size, 1 * MiB);
  EXPECT_TRUE(row->integer);
  EXPECT_DOUBLE_EQ(*row->latency_ms, 0.026);
}

TEST(CollectiveTable, NamesWhatIsWrongAndWhere) {
  EXPECT_FALSE(CollectiveReader::of(table("gpu,collective,ranks\n")));
  EXPECT_FALSE(CollectiveReader::of(table("collective,ranks,bytes\n")));
  for (const char* fields : {"dgx,all_reduce,8", "dgx,allreduce,8,1", "dgx,all_reduce,1,1", "dgx,all_reduce,x,1",
                             "dgx,all_reduce,8,0", "dgx,all_reduce,8,nan", ",all_reduce,8,1", ","}) {
    const auto row = read("cluster,collective,ranks,bytes", fields);
    ASSERT_FALSE(row);
    EXPECT_EQ(row.error().where, "rows.csv:2");
  }
}

// Twice the smallest double, as a time, makes a relative error that is no number.
TEST(CollectiveTable, TakesNoTimeThatIsNone) {
  for (const char* time : {"0", "-1", "nan", "1e-320", "9e-10", "2e9", "1e308", "fast"}) {
    const auto row = read("cluster,collective,ranks,bytes,latency_ms", "dgx,all_reduce,8,1024," + std::string(time));
    ASSERT_TRUE(row) << time;
    EXPECT_FALSE(row->latency_ms) << time;
    EXPECT_EQ(row->bad_latency, time);
  }
  for (const char* time : {"1e-9", "0.026", "1e9"}) {
    EXPECT_TRUE(
        read("cluster,collective,ranks,bytes,latency_ms", "dgx,all_reduce,8,1024," + std::string(time))->latency_ms)
        << time;
  }
}

// A field too many would shift the columns behind it.
TEST(CollectiveTable, RefusesRowsThatItCannotDivide) {
  const std::string columns = "cluster,note,collective,ranks,bytes";
  EXPECT_TRUE(read(columns, "dgx,\"8, not 16\",all_reduce,8,1024"));
  const auto longer = read(columns, "dgx,8, not 16,all_reduce,8,1024");
  ASSERT_FALSE(longer);
  EXPECT_EQ(to_text(longer.error()),
            "rows.csv:2: 6 fields; expected 5, as in the header; put fields with commas in quotes");
  const auto open = read("cluster,collective,ranks,bytes,note", "dgx,all_reduce,8,1024,\"two\nlines\"");
  ASSERT_FALSE(open);
  EXPECT_NE(to_text(open.error()).find("rows.csv:2: a quote is not closed on its line"), std::string::npos);
}

TEST(CollectiveTable, KnowsTheNamesOfNumbers) {
  const auto row = [](std::string_view dtype) {
    return read("cluster,collective,ranks,bytes,dtype", "dgx,all_reduce,8,1024," + std::string(dtype));
  };
  for (const char* name : {"int8", "uint8", "int32", "uint32", "int64", "uint64"}) EXPECT_TRUE(row(name)->integer);
  // nccl-tests', ours, PyTorch's; none.
  for (const char* name : {"half", "bfloat16", "float", "double", "f8e4m3", "fp32", "BF16", "mxfp8", "float16", ""}) {
    ASSERT_TRUE(row(name)) << name;
    EXPECT_FALSE(row(name)->integer) << name;
  }
  for (const char* name : {"int3", "integer", "b16", "halve"}) {
    ASSERT_FALSE(row(name)) << name;
    EXPECT_EQ(to_text(row(name).error()).rfind(std::string("rows.csv:2: dtype \"") + name + "\" is unknown", 0), 0u);
    EXPECT_NE(to_text(row(name).error()).find("uint64, fp64, double"), std::string::npos);
  }
}

TEST(CollectiveTable, ABarrierNeedsNoBytes) {
  const auto row = [](const std::string& kind, const std::string& bytes) {
    return read("cluster,collective,ranks,bytes", "dgx," + kind + ",8," + bytes);
  };
  ASSERT_TRUE(row("barrier", ""));
  EXPECT_EQ(row("barrier", "")->size, Bytes());
  EXPECT_EQ(row("barrier", "0")->size, Bytes());
  EXPECT_NE(to_text(row("barrier", "-1").error()).find("expected nothing, or a number from 0"), std::string::npos);
  EXPECT_NE(to_text(row("all_reduce", "").error()).find("bytes \"\"; expected a number from 1"), std::string::npos);
}

TEST(CollectiveTable, ATableWithoutAMachineIsOfTheOneGiven) {
  const CsvTable rows = table("collective,ranks,bytes\nall_reduce,8,1024\n");
  EXPECT_EQ(CollectiveReader::of(rows, "a100")->row(0)->gpu, "a100");
  EXPECT_EQ(CollectiveReader::of(rows, "", "dgx")->row(0)->cluster, "dgx");
  const CsvTable named = table("system,collective,ranks,bytes\nmine,all_reduce,8,1024\n");
  const auto row = CollectiveReader::of(named, "a100")->row(0);
  EXPECT_EQ(row->cluster, "mine");
  EXPECT_EQ(row->gpu, "");
  const CsvTable blank = table("gpu,collective,ranks,bytes\n,all_reduce,8,1024\n");  // a cell is as good as a column
  EXPECT_EQ(CollectiveReader::of(blank, "a100")->row(0)->gpu, "a100");
  EXPECT_FALSE(CollectiveReader::of(blank)->row(0));
}

// Without gpus_per_node nodes are full, the last one perhaps not: as `explain` has it.
TEST(CollectiveTable, RanksFillNodeAfterNode) {
  CollectiveForecaster forecaster(resolve);
  CollectiveRow row{"a100", "", CollectiveKind::kAllReduce, 16, 0, 1 * MiB, false, std::nullopt};
  const auto full = forecaster.forecast(row);
  row.gpus_per_node = 8;
  EXPECT_EQ(forecaster.forecast(row)->forecast.latency, full->forecast.latency);
  row.gpus_per_node = 0, row.ranks = 12;
  EXPECT_TRUE(forecaster.forecast(row));
  EXPECT_EQ(forecaster.collective(row)->group, (RankGroup{0, {{12, 1}}}));
}

// Rows of one system with two GPUs are of two machines, in whatever order they stand.
TEST(CollectiveTable, FitsTheGpusOfASystemApart) {
  const auto row = [](const char* gpu, double ms) {
    return CollectiveRow{gpu, "lab", CollectiveKind::kAllReduce, 8, 8, 64 * MiB, false, ms};
  };
  const Catalog catalog = Catalog::standard();
  const auto system = [&](auto gpu, auto name) { return catalog.measured_machine(gpu, name); };
  std::vector<CollectiveRow> rows = {row("h100", 1), row("a100", 2)};
  const auto one = fit_rows(rows, system);
  std::swap(rows[0], rows[1]);
  const auto other = fit_rows(rows, system);
  ASSERT_TRUE(one && other);
  EXPECT_EQ(one->curves.size(), 2);
  EXPECT_EQ(to_json(*one), to_json(*other));
}

// What a table of forecasts takes, a fit takes, too: ranks that do not fill their last node, barriers without bytes.
TEST(CollectiveTable, FitsEveryRowThatIsForecast) {
  const Catalog catalog = Catalog::standard();
  const auto dgx = [&](auto, auto) { return catalog.cluster("dgx-h100"); };
  std::vector<CollectiveRow> rows = {{"", "dgx-h100", CollectiveKind::kAllReduce, 12, 0, 1 * MiB, false, 0.1},
                                     {"", "dgx-h100", CollectiveKind::kBarrier, 8, 0, 0 * B, false, 0.012}};
  const auto fitted = fit_rows(rows, dgx, {.for_one_cluster = true, .base = &builtin_network_calibration()});
  ASSERT_TRUE(fitted) << to_text(fitted.error());
  NetworkModelOptions with;
  with.calibration = std::make_shared<const NetworkCalibration>(before_builtin(*fitted));
  CollectiveForecaster corrected(dgx, with);
  for (const CollectiveRow& row : rows) {
    EXPECT_NEAR(corrected.forecast(row)->forecast.latency / ms, *row.latency_ms, 0.05 * *row.latency_ms);
  }
  rows[1].gpus_per_node = 3;
  const auto refused = fit_rows(rows, dgx, {.places = {"mine.csv:2", "mine.csv:3"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "mine.csv:3");
}

TEST(CollectiveTable, ReadsHowUnevenAnAllToAllIs) {
  const std::string columns = "cluster,collective,ranks,bytes,imbalance";
  const auto uneven = read(columns, "dgx,all_to_all,8,1048576,1.5");
  ASSERT_TRUE(uneven) << to_text(uneven.error());
  EXPECT_EQ(uneven->imbalance, 1.5);
  EXPECT_EQ(read(columns, "dgx,all_reduce,8,1048576,")->imbalance, 1);
  EXPECT_TRUE(read(columns, "dgx,all_reduce,8,1048576,1"));
  for (const std::string_view wrong : {"0.9", "8.1", "-1", "nan", "x"}) {
    EXPECT_FALSE(read(columns, "dgx,all_to_all,8,1048576," + std::string(wrong))) << wrong;
  }
  EXPECT_FALSE(read(columns, "dgx,all_gather,8,1048576,1.5"));

  CollectiveForecaster forecaster(resolve);
  CollectiveRow row = *uneven;
  row.size = 1 * GiB;
  const Seconds busy = forecaster.forecast(row)->forecast.latency;
  row.imbalance = 1;
  EXPECT_GT(busy, 1.3 * forecaster.forecast(row)->forecast.latency);
}

TEST(CollectiveTable, ForecastsAndNamesTheAlgorithm) {
  CollectiveForecaster forecaster(resolve);
  CollectiveRow row{"a100", "", CollectiveKind::kAllReduce, 8, 8, 1 * GiB, false, std::nullopt};
  const auto answer = forecaster.forecast(row);
  ASSERT_TRUE(answer) << to_text(answer.error());
  EXPECT_EQ(answer->algorithm, "ring");
  EXPECT_EQ(answer->protocol, "simple");
  EXPECT_NEAR(answer->busbw_gbs, 1.75 * (1 * GiB / answer->forecast.latency) / (GB / s), 1e-9);
  EXPECT_EQ(to_fields(*answer).size(), collective_answer_columns().size());
  row.gpu = "b9000";
  EXPECT_FALSE(forecaster.forecast(row));
  row = {"a100", "", CollectiveKind::kAllReduce, 16, 16, 1 * GiB, false, std::nullopt};
  EXPECT_FALSE(forecaster.forecast(row)) << "16 ranks in a node of 8";
}

TEST(CollectiveTable, SystemThatOnlyACalibrationKnowsIsTheGpusUsualCluster) {
  NetworkCalibration calibration;
  CalibrationCurve curve;
  curve.cluster = "lab";
  curve.fabric = "network";
  curve.kind = CollectiveKind::kAllReduce;
  curve.ranks = 16;
  curve.ranks_per_node = 8;
  curve.log_ratio.assign(23, std::log(2.0));
  calibration.curves = {curve};
  NetworkModelOptions options;
  options.calibration = std::make_shared<NetworkCalibration>(calibration);
  const Catalog catalog = Catalog::standard();
  CollectiveForecaster forecaster([&](auto gpu, auto system) { return catalog.measured_machine(gpu, system); },
                                  options);
  const auto at = [&](const std::string& cluster) {
    return forecaster.forecast({"a100", cluster, CollectiveKind::kAllReduce, 16, 8, 64 * MiB, false, std::nullopt});
  };
  ASSERT_TRUE(at("lab"));
  EXPECT_NEAR(at("lab")->forecast.latency / at("")->forecast.latency, 2, 1e-9);
}

TEST(CollectiveTable, BusBandwidthIsThatOfNcclTests) {
  // nccl-tests, doc/PERFORMANCE.md: all-reduce 2 (n - 1) / n, all-gather and others (n - 1) / n, broadcast 1.
  EXPECT_DOUBLE_EQ(bus_bandwidth_gbs(CollectiveKind::kAllReduce, 8, 1 * GB, 1 * s), 1.75);
  EXPECT_DOUBLE_EQ(bus_bandwidth_gbs(CollectiveKind::kAllToAll, 4, 1 * GB, 1 * s), 0.75);
  EXPECT_DOUBLE_EQ(bus_bandwidth_gbs(CollectiveKind::kBroadcast, 8, 1 * GB, 1 * s), 1);
}

TEST(CollectiveTable, ErrorsAreCountedBySystemCollectiveAndSize) {
  CollectiveErrorTable table;
  CollectiveRow row{"a100", "", CollectiveKind::kAllReduce, 8, 8, 2 * MiB, false, 1.0};
  const auto add = [&](Seconds forecast) {
    CollectiveAnswer answer;
    answer.forecast.latency = forecast, answer.forecast.low = 0.85 * forecast, answer.forecast.high = 1.15 * forecast;
    answer.gpu = "a100-sxm-80gb";
    table.add(row, answer);
  };
  add(1.1 * ms);
  add(0.8 * ms);  // up to 0.92 ms
  row.latency_ms.reset();
  add(5 * ms);
  const auto lines = table.lines();
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front().system, "a100-sxm-80gb") << "of whatever name";
  EXPECT_EQ(lines.back().system, "all");
  for (const auto& line : lines) {
    EXPECT_EQ(line.rows, 2u);
    EXPECT_NEAR(line.mean, 0.15, 1e-12);
    EXPECT_NEAR(line.bias, -0.05, 1e-12);
    EXPECT_NEAR(line.largest, 0.2, 1e-12);
    EXPECT_EQ(line.inside, 0.5);
  }
}

}  // namespace
}  // namespace ns_dist
