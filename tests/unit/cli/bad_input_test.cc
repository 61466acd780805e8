// Every way to say something wrong gets an answer that names the place and what to write instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::ContainsRegex;
using ::testing::IsEmpty;

struct BadInput {
  const char* arguments;
  int code;
  const char* message;  // extended regular expression
};

void expect_refused(const BadInput& input, const CommandResult& result) {
  EXPECT_EQ(result.code, input.code) << input.arguments << "\n" << result.err;
  EXPECT_THAT(result.err, ContainsRegex(input.message)) << input.arguments;
  EXPECT_THAT(result.out, IsEmpty()) << input.arguments;
  EXPECT_EQ(result.err.rfind("ns-dist: ", 0), 0u) << input.arguments;
}

TEST(BadInput, IsRefusedWithThePlaceAndTheRemedy) {
  constexpr BadInput kInputs[] = {
      // Names.
      {"--model gpt3-175", 1, "--model: unknown model .*did you mean \"gpt3-175b\""},
      {"--model plan/tp", 1, "--model: \"plan/tp\" is neither a file nor a model"},  // what the user wrote is no field
      {"validate --publication Korthikanti", 2, "--publication.*with --data FILE"},
      {"--gpu h1000", 1, "--gpu: unknown GPU .*did you mean \"h100"},
      {"--cluster dgx-h10", 1, "--cluster: unknown cluster .*did you mean \"dgx-h100\""},
      {"--inter pcie4-x16 --dp 16", 1, "--inter: PCI Express 4.0 x16 joins the GPUs of one node.*write --intra"},
      {"--inter ib-ndrr", 1, "--inter: unknown fabric .*did you mean \"ib-ndr\""},
      {"--schedule 1f1", 2, "schedule.*1f1.*did you mean \"1f1b\""},
      {"--model ''", 2, "--model: its value is empty; expected ID\\|FILE"},
      {"--model no/such/file.json", 1,
       "--model: \"no/such/file.json\" cannot be read; expected an id of .*No such file"},
      {"--model /proc", 1, "--model: the folder \"/proc\" has no config.json; expected an id of .*or a folder with"},
      {"--gpu no/such.json", 1, "--gpu: \"no/such.json\" cannot be read; expected an id of `ns-dist list gpus`"},
      {"validate --runs no/such.json", 1,
       "--runs: \"no/such.json\" cannot be read; expected the name of a file in configs/runs"},
      {"validate --runs korthikanti", 1, "--runs: unknown .*did you mean \"korthikanti-2022\""},
      {"simulat", 2, "unknown command \"simulat\".*did you mean \"simulate\""},
      {"--tpp 8", 2, "unknown flag \"--tpp\".*did you mean --tp"},
      {"--batch 8", 2, "unknown flag \"--batch\".*did you mean --global-batch[?]"},
      {"--tensor-model-parallel-size 8", 2, "did you mean --tp[?]"},
      {"--fsdp", 2, "did you mean --framework fsdp[?]"},
      {"--qlora", 2, "did you mean --lora-rank 16 --frozen-weights nf4[?]"},
      {"--gradient-checkpointing", 2, "did you mean --recompute full[?]"},
      {"--model somebody/nothing-7b", 1, "neither a file nor a model of the catalog; .*config.json and give its path"},
      {"--model llama3-8b --gpu 'NVIDIA H300'", 1, "did you mean \"h100\""},
      {"search --gpus 8 --nnodes 2", 2, "unknown flag \"--nnodes\"; expected the flags of `ns-dist search --help`"},
      {"--gpus 12", 2, "--gpus: 12 GPUs do not fill nodes of 8; .*; write 8 or 16"},
      {"--global-batch 1,000", 2, "write --global-batch 1000, without commas"},
      {"--global-batch 8,16", 2, "one value: a search tries several"},
      {"--deadline=1d", 2, "unknown flag \"--deadline\".*`ns-dist search` has --deadline"},
      {"search --gpus 8 --what-if 'flops x2'", 2,
       "write --what-if behind the command of an answer: `ns-dist simulate`"},
      {"export --output x --sensitivity", 2, "unknown flag \"--sensitivity\".*`ns-dist simulate` has --sensitivity"},
      {"kernels --input x --spare-nodes 2", 2, "unknown flag \"--spare-nodes\".*`ns-dist simulate` has --spare-nodes"},
      {"simulate extra", 2, "unknown argument \"extra\""},
      {"list gpu", 2, "did you mean \"gpus\""},
      {"list ''", 2, "nothing called \"\" can be listed; expected one of gpus, models"},
      {"--algorithm rin", 2, "--algorithm: \"rin\" is not one of its values; expected one of auto, ring, tree"},
      {"--protocol ll127", 2, "--protocol: \"ll127\" is not one of its values.*auto, ll, ll128, simple; did you mean"},
      {"--network-model simgrid", 2, "--network-model: \"simgrid\" is not one of its values.*one of nccl, astra"},
      {"--schedule 2f2b", 2, "--schedule: \"2f2b\" is not one of its values; expected one of gpipe, 1f1b, "},
      {"search --gpus 8 --schedule gpipe,2f2b", 2, "--schedule: \"2f2b\" is not one of its values"},
      {"explain all_reduce 1MiB --algorithm rin", 2, "--algorithm: \"rin\" is not one of its values"},
      {"--pipeline-layout foo", 2, "--pipeline-layout: \"f\" is no part of a model"},
      {"--network-model astra --algorithm ring", 1, "--algorithm: \"ring\" is NCCL's.*expected auto"},
      {"--calibration no/such.json", 1, "--calibration: \"no/such.json\" cannot be read; expected a network calib"},
      {"--order tp-xp", 2, "--order: \"xp\" is no parallel dimension; expected tp, cp, ep, dp and pp joined"},
      {"--order tp-dp-tp", 2, "--order: tp is named twice"},
      {"--pp 2 --order tp-dp", 1, "--order: pp 2 has no place in \"tp-dp\".*add pp"},
      {"--model mixtral-8x7b --ep 2 --dp 2 --order tp-ep-pp-dp", 1, "--order: ep is not beside dp"},
      // Numbers.
      {"--tp 8x", 2, "--tp: \"8x\" is not a whole number; expected a whole number from 1 to 1,000,000,000"},
      {"--tp 1e3", 2, "--tp: \"1e3\" is not a whole number"},
      {"--tp 8.0", 2, "--tp: \"8.0\" is not a whole number"},
      {"--tp NaN", 2, "--tp: \"NaN\" is not a whole number"},
      {"--tp ''", 2, "--tp: its value is empty; expected N"},
      {"--tp 0", 2, "--tp: 0 is out of range; expected a whole number from 1"},
      {"--tp -8", 2, "--tp: -8 is out of range"},
      {"--pp 2000000000", 2, "--pp: 2000000000 is out of range"},
      {"--dp 99999999999999999999999", 2, "--dp: 99999999999999999999999 is out of range"},
      {"--micro-batch 0 --global-batch -1", 2, "--micro-batch: 0 is out of range"},
      {"--micro-batch 0 --global-batch -1", 2, "--global-batch: -1 is out of range"},
      {"--tp", 2, "--tp"},
      {"--tp 8 --tp 4", 2, "--tp: it is given more than once; expected one value"},
      {"--tp 1000000000 --pp 1000000000", 1, "more than 10000000 ranks"},
      {"--seq 1000000000", 2, "--seq"},
      {"--global-batch 1000000000", 2, "--global-batch"},
      // Quantities.
      {"--inter-bandwidth 50", 2, "--inter-bandwidth: \"50\" has no unit.*TB/s"},
      {"--inter-bandwidth '50 GB'", 2, "--inter-bandwidth: \"50 GB\".*bandwidth"},
      {"--intra-bandwidth 'nan GB/s'", 2, "--intra-bandwidth"},
      {"--intra-bandwidth '0 GB/s'", 2, "--intra-bandwidth: \"0 GB/s\".*1 MB/s"},
      {"--intra-bandwidth '-5 GB/s'", 2, "--intra-bandwidth: \"-5 GB/s\".*1 MB/s"},
      {"--intra-bandwidth '1e300 GB/s'", 2, "--intra-bandwidth"},
      // Words.
      {"--dtype fp12", 2, "--dtype: \"fp12\".*fp32, tf32, fp16, bf16, fp8"},
      {"--zero 4", 2, "--zero: \"4\".*0, 1, 2, 3"},
      {"--recompute half", 2, "--recompute: \"half\".*none, selective, .*full"},
      {"--flash-attention yes", 2, "--flash-attention: \"yes\".*off, on"},
      {"--overlap none,all", 2, "--overlap: \"none\" stands alone, and \"none,all\" is a list; expected none, all, or"},
      {"--overlap p2p,dp", 2, "--overlap: \"dp\".*grad-reduce,param-gather,p2p"},
      {"--dtype nvfp4", 1, "--dtype: h100-sxm-80gb has no rate for nvfp4; .*; write --dtype fp8\n$"},
      {"--dtype fp8 --gpu a100", 1, "a100-sxm-80gb has no rate for fp8; .*; write --dtype bf16\n$"},
      {"--gpu v100", 1, "--dtype: v100-sxm2-32gb has no rate for bf16; expected one of fp32, fp16; write --dtype fp16"},
      {"--gpu a100 --dtype fp8", 1, "--dtype: .*one of fp32, tf32, fp16, bf16; write --dtype bf16"},
      {"help serch", 2, "unknown command \"serch\".*did you mean \"search\""},
      // Plans that contradict the model, the machine or the batch.
      {"--tp 7", 1, "--tp: tp 7 does not divide the 96 attention heads"},
      {"--model gpt2 --tp 3", 1,
       "--tp: tp 3 does not divide the 1024 tokens.*or --tp 4, or --sequence-parallel off\n$"},
      {"--tp 8 --pp 7 --vpp 20", 1, "--vpp: 140 parts of the pipeline are more than the 96 layers.*at most 13"},
      {"--model llama3-8b --pp 64 --schedule zb-v --global-batch 256", 1, "--pp: 128 parts of .*use --pp 16\n$"},
      {"--model gpt2 --tp 2 --dp 2 --global-batch 8 --pipeline-layout 'Et*3|(tt|)*29m|L'", 1,
       "^ns-dist: --pipeline-layout: a layout of 61 layers, and GPT-2.* has 12; expected 12 layers; write 12 t\n$"},
      {"--model qwen3-235b-a22b --tp 7", 1, "^(.*--tp: tp 7 .*use --tp 4 or --tp 8\n){4}$"},
      {"--tp 8 --pp 8 --schedule zb-h1 --vpp 2", 1, "--vpp.*--vpp 1"},
      {"--tp 8 --pp 4 --first-stage-layers 95", 1, "--first-stage-layers"},
      {"--tp 8 --pp 4 --stage-speed 1,1", 1, "--stage-speed: 2 speeds for 4 pipeline stages"},
      {"--tp 8 --pp 4 --slow-rank 4:1.2", 1, "--slow-rank"},
      {"--tp 8 --pp 97", 1, "--pp"},
      {"--tp 8 --pp 16 --dp 7 --nodes 128 --gpus-per-node 8", 1,
       "tp 8 x cp 1 x pp 16 x dp 7 = 896 ranks, but 128 nodes x 8 GPUs = 1024 GPUs.*--dp 8.*--nodes 112"},
      {"--tp 8 --pp 12 --nodes 128", 1, "= 96 does not divide 128 nodes x 8 GPUs.*--nodes 96"},
      {"--gpu gb200 --tp 4 --pp 4 --dp 8 --nodes 16", 1, "write --nodes 2, or --gpus-per-node 8\n$"},
      {"--gpu gb200 --tp 8 --pp 16 --nodes 100", 1,
       "divide 100 nodes x 72 GPUs.*--nodes 96, or --gpus-per-node 64, or"},
      {"--nodes 999999999", 1, "at most 10000000 GPUs"},
      {"--tp 8 --pp 16 --dp 5", 1, "--global-batch: 1536 sequences are not divisible.*1535 or --global-batch 1540"},
      {"--tp 8 --pp 16 --dp 8 --micro-batch 5", 1, "--global-batch.*not divisible"},
      // Files.
      {"--from no_such_report.json", 1, "--from: \"no_such_report.json\" cannot be read"},
      {"--tp 8 --trace no/such/folder/trace.json --global-batch 8", 1,
       "--trace: \"no/such/folder/trace.json\" cannot be wr"},
      {"--tp 8 --csv no/such/folder/trace.csv --global-batch 8", 1,
       "--csv: \"no/such/folder/trace.csv\" cannot be written"},
      {"export --tp 8", 2, "--output is required"},
      {"export --model gpt2 --global-batch 4 --output /proc/no_such_folder", 1, "/proc/no_such_folder"},
      {"export --tp 8 --pp 16 --dp 32 --output out", 1,
       "out: 4,096 traces of [0-9.]+ GiB would be written; expected at most 4.0 GiB, or --large; write --large, or "
       "--merge-kernels .*, --no-operators, a smaller --dp"},
      {"export --output out --encoding morse", 2, "--encoding: \"morse\".*one of roofline, durations"},
      {"kernels --gpu h100", 2, "--input: no table and no operator is given; expected a CSV file; or an operator"},
      {"collectives", 2, "--input: no table and no collective is given; expected a CSV file; or a collective"},
      {"calibrate", 2, "--kernels, --collectives: no measurements are given; expected one of them, with --output"},
      // One operator, one collective.
      {"explain", 2, "nothing to explain.*gemm"},
      {"explain gemm", 2, "SHAPE: its size is missing; expected .*MxNxK; as in: explain gemm 8192x8192x8192"},
      {"kernels softmax --dtype fp16", 2, "SHAPE: its size is missing; expected .*; as in: explain softmax "},
      {"explain all_reduce", 2, "SHAPE: its size is missing; expected bytes with their unit; as in: .* 64MiB"},
      {"explain gem 1x1x1", 2, "did you mean \"gemm\""},
      {"kernels gem 8x8x8", 2, "^ns-dist: SUBJECT: nothing is called \"gem\".*did you mean \"gemm\""},
      {"explain gemm 8192x8192", 2, "SHAPE: .*MxNxK.*explain gemm 8192x8192x8192"},
      {"explain gemm 8192xNaNx1", 2, "SHAPE: \"NaN\" is not a whole number"},
      {"explain gemm 0x1x1", 2, "SHAPE: 0 is out of range"},
      {"explain gemm 99999999999x1x1", 2, "SHAPE: 99999999999 is out of range"},
      {"explain gemm 8x8x8 --gpu p4 --dtype bf16", 1, "p4.*bf16"},
      {"explain all_reduce 64", 2, "SHAPE: \"64\" has no unit"},
      {"explain all_reduce 64MiB --ranks 1", 2, "--ranks: 1 is out of range"},
      {"explain all_reduce 64MiB --ranks 16 --algorithm rings", 2, "rings"},
      {"explain gemm 8x8x8 --pass backward", 2, "--pass: gemm has no backward pass; .*gradients are gemms"},
      {"explain moe 8x8x8x8x9", 2, "SHAPE: moe: top_k is 9; expected at most experts"},
      {"explain attention 1x32x64x64 --kv-heads 7", 2,
       "SHAPE: attention: heads is 32; expected a multiple of kv_heads"},
      {"explain barrier 64MiB", 2,
       "SHAPE: \"64MiB\" is a size, and a barrier has none; expected nothing; as in: explain"},
      {"collectives barrier 0", 2, "SHAPE: \"0\" is a size, and a barrier has none"},
      {"explain all_reduce 0B", 2, "SHAPE: \"0B\" is out of range; expected 1 B to 1000000 TB"},
      {"kernels --input /proc", 1, "/proc: this is a folder; expected a file of CSV, plain or gzipped"},
      {"calibrate --gpu h100 --collectives /proc --output /dev/null", 1, "/proc: this is a folder"},
      {"explain moe 8x8x8x8x2 --pass backward", 2, "--pass: moe has no backward pass"},
      {"explain optimizer 8 --pass backward", 2, "--pass: optimizer has no backward pass"},
      {"explain gemm 8x8x8 --window 5", 2, "--window: is not a flag of gemm; expected only with attention"},
      {"explain softmax 8x8 --layout tt", 2, "--layout: is not a flag of softmax; expected only with gemm"},
      {"explain gemm 8x8x8 --ranks 16", 2, "--ranks: is not a flag of gemm; expected only with collectives"},
      {"explain gemm 8x8x8 --imbalance nan", 2, "--imbalance: is not a flag of gemm; expected only with collectives"},
      {"explain elementwise 8x8 --inputs two", 2, "--inputs: \"two\" cannot be read; expected a number"},
      {"explain gemm 8x8x8 --json=maybe", 2, "--json: \"maybe\" cannot be read; expected the flag alone"},
      {"explain gemm 8x8x8 --dtype", 2, "--dtype: its value is missing; expected TYPE"},
      {"explain all_reduce 64MiB --dtype fp8", 2, "--dtype: is not a flag of all_reduce"},
      {"explain softmax 8x8 --dtype fp8_block", 2, "--dtype: \"fp8_block\""},
      {"explain softmax 8x8 --dtype fp8-block", 2, "--dtype: \"fp8-block\".*bf16, fp8"},
      {"explain gemm 8x8x8 --dtype nvfp8", 2, "--dtype: \"nvfp8\".*fp8, fp4, fp8-block, mxfp8, nvfp4"},
      {"explain attention 1x8x8x64 --dtype nvfp4", 2, "--dtype: \"nvfp4\".*fp8, fp4, fp8-block, mxfp8, or"},
      {"kernels mine.csv", 2, "SUBJECT: \"mine.csv\" is a table; .*write ns-dist kernels --input mine.csv, or"},
      {"explain gemm 8x8x8 --dtype nvfp4", 1, "h100-sxm-80gb has no rate for nvfp4.*choose fp8"},
      {"explain geluu 8x8", 2, "nothing is called \"geluu\".*did you mean \"gelu\""},
      {"explain layernrm 8x8", 2, "did you mean \"layernorm\""},
      {"explain unknown mine", 2, "--flops: the work of the kernel is missing.*--read"},
      // Fits.
      {"fit --data /proc/no_such --output x", 1, "--data: \"/proc/no_such\" is not there; expected a folder"},
      {"fit --data /dev/null --output x", 1, "--data: \"/dev/null\" is a file"},
      {"fit --data /tmp --output x --predictor bogus", 2, "--predictor: \"bogus\".*gemm_fp8.*convolution.*clusters"},
      {"fit --data /tmp --output x --predictor collectives --threads 2", 2, "--threads: is not a flag of collectives"},
      {"fit --data /tmp --data /var --output x --predictor clusters", 2,
       "--data: collectives are read from one folder"},
      {"fit --data /tmp --output no/such/weights", 1, "--output: \"no/such/weights\" cannot be written"},
  };
  for (const BadInput& input : kInputs) {
    expect_refused(input, run_command("ns-dist " + std::string(input.arguments)));
  }
}

TEST(BadInput, FilesNameThePlaceOfTheirMistakes) {
  const ScratchFolder folder;
  const std::string source = std::string(NS_DIST_SOURCE_DIR) + "/configs/";
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder.path() / name, std::ios::binary) << text;
  };
  const std::string gpu = read_text(source + "gpus/h100-sxm-80gb.json");
  const std::string model = read_text(source + "models/gpt3-175b.json");
  const auto replaced = [](std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
  };
  write("empty.json", "");
  write("truncated.json", gpu.substr(0, gpu.size() / 2));
  write("unit.json", replaced(gpu, "\"3.35 TB/s\"", "\"3.35\""));
  write("type.json", replaced(model, "\"layers\": 96", "\"layers\": \"many\""));
  write("negative.json", replaced(model, "\"hidden\": 12288", "\"hidden\": -12288"));
  write("key.json", replaced(model, "\"layers\"", "\"layer\""));
  const std::string cluster = read_text(source + "clusters/dgx-h100.json");
  write("fabric.json", replaced(cluster, "\"ib-ndr\"", "\"no/such\""));
  write("size.json", replaced(cluster, "\"size\": 8", "\"size\": \"8\""));
  write("bare.json", replaced(gpu, "\"50 MiB\"", "50"));
  write("nothing.json", "{}");
  write("header.csv", "gpu,coll,ranks,bytes\nh100,all_reduce,8,8\n");
  write("machine.json", replaced(gpu, "\"dgx-h100\"", "\"no/such\""));
  const std::string runs = read_text(source + "runs/korthikanti-2022.json");
  write("no_model.json", replaced(runs, "\"megatron-22b\"", "\"megatron-23b\""));
  const std::string experts = read_text(source + "models/deepseek-v3.json");
  write("shared.json", replaced(experts, "\"shared_expert_ffn\": 2048", "\"shared_expert_ffn\": 0"));
  write("list.json", "[1, 2, 3]");
  write("keys.json", replaced(model, "\"kv_heads\": 96", "\"kv_heads\": 7"));
  write("no_runs.json", "[]");
  std::filesystem::create_directory(folder.path() / "weights");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  write("deep.json", "{\"schema\": " + deep + ", \"inputs\": {}}");
  write("wordy.json", "{\"schema\": \"" + std::string(1'000'000, 'x') + "\"}");
  write("rows.csv", "gpu,op,b,h\nh100,softmax,8,8\n");
  write("library.csv", "gpu,op,b,h,library,latency_ms\nh100,layernorm,8,8,flash-9,0.1\n");
  write("binary.json", std::string("\xff\xfe\0\x01", 4));
  constexpr BadInput kInputs[] = {
      {"--gpu empty.json", 1, "empty.json:1:1"},
      {"--gpu truncated.json", 1, "truncated.json:[0-9]+:[0-9]+: "},
      {"--gpu unit.json", 1, "unit.json#/memory/bandwidth: \"3.35\" has no unit"},
      {"--gpu bare.json", 1,
       "bare.json#/l2_cache: 50 is a bare number; expected an amount of data with its unit; write it like \"80 GiB\""},
      {"--cluster size.json", 1, "^ns-dist: size.json#/levels/0/size: \"8\" is not a whole number[^\n]*\n$"},
      {"--model nothing.json", 1, "nothing.json#: key \"schema\" is missing; expected \"schema\": \"ns-dist/model/1\""},
      {"collectives --input header.csv", 1, "header.csv:1: no column \"collective\""},
      {"--model type.json", 1, "type.json#/layers: \"many\" is not a whole number"},
      {"--model negative.json", 1, "negative.json#/hidden: .*-12288"},
      {"--model key.json", 1, "key.json#/layer: .*layers"},
      {"--model list.json", 1, "list.json"},
      {"--model keys.json", 1, "keys.json#/kv_heads: 7 does not divide 96 heads; expected a divisor of 96"},
      {"--model weights", 1, "--model: the folder \"weights/\" has no config.json; expected an id of "},
      {"--model shared.json", 1,
       "shared.json#/moe/shared_expert_ffn: 1 shared experts have no width; expected a whole"},
      {"--cluster fabric.json", 1, "fabric.json#/levels/1/fabric: \"no/such\" cannot be read; expected an id of "},
      {"--gpu machine.json", 1, "machine.json#/usual_cluster: \"no/such\" cannot be read; expected an id of "},
      {"validate --runs no_model.json", 1, "no_model.json#/runs/0/model: unknown model .*\"megatron-22b\""},
      {"--model deep.json", 1, "deep.json#/schema/0/0/[^ ]*: nested deeper"},
      {"--gpu binary.json", 1, "binary.json:1:1"},
      {"--gpu deep.json", 1, "deep.json#/schema/0/0/[^ ]*: nested deeper"},
      {"--cluster deep.json", 1, "deep.json#/schema/0/0/[^ ]*: nested deeper"},
      {"--calibration deep.json", 1, "deep.json#/schema/0/0/[^ ]*: nested deeper"},
      {"--kernel-calibration deep.json", 1, "deep.json#/schema/0/0/[^ ]*: nested deeper"},
      {"--calibration wordy.json", 1, "wordy.json#/schema: \"x{100}\\.\\.\\.\" is not what is read here"},
      {"--kernel-calibration wordy.json", 1, "wordy.json#/schema: \"x{100}\\.\\.\\.\" is not what is read here"},
      {"calibrate --gpu h100 --kernels library.csv --output c.json", 1,
       "library.csv:2: library is \"flash-9\"; expected one of [a-z, -]*eager"},
      {"kernels --input rows.csv --kernel-calibration deep.json", 1, "deep.json#/schema/0/0/[^ ]*: nested deeper"},
      {"validate --data list.json --calibration deep.json", 1,
       "^ns-dist: [^\n]*deep.json#/schema/0/0/[^ ]*: nested deeper[^\n]*\n$"},
      {"validate --data list.json --kernel-calibration none.json", 1, "\"none.json\" cannot be read"},
      {"validate --data list.json --rows best", 2,
       "--rows: \"best\" is no kind of rows; expected recommended, other or all"},
      {"validate --data no_runs.json", 1,
       "--data: no published run of no_runs.json is chosen; expected a file with rows"},
      {"--from truncated.json", 1, "truncated.json:[0-9]+:[0-9]+: "},
      {"--from deep.json", 1, "deep.json#/schema/0/0/[^ ]*: nested deeper"},
      {"--from type.json", 1, "type.json#/schema: this is no report, but has the format \"ns-dist/model/1\""},
  };
  for (const BadInput& input : kInputs) {
    expect_refused(input, run_command("ns-dist " + std::string(input.arguments), folder.path()));
  }
}

// The flags of a command that stand in its help, each with a value or without: "  --csv FILE   write the timeline".
std::vector<std::string> flags_in(const std::string& help) {
  std::vector<std::string> found;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  --", 0) == 0) found.push_back(line.substr(2, line.find_first_of(" \n", 2) - 2));
  }
  return found;
}

TEST(BadInput, NoFlagHasAnEmptyValue) {
  for (const std::string command : {"simulate", "search", "kernels", "collectives", "export", "annotate", "lint",
                                    "replay", "fit", "calibrate", "explain", "validate", "list"}) {
    const std::vector<std::string> flags = flags_in(run_command("ns-dist " + command + " --help").out);
    EXPECT_FALSE(flags.empty()) << command;
    for (const std::string& flag : flags) {
      const std::string with_equals = command + " " + flag + "=";
      expect_refused({with_equals.c_str(), 2, "^ns-dist: --[a-z0-9-]*: its value is empty; expected [^;]"},
                     run_command("ns-dist " + with_equals));
    }
  }
  constexpr BadInput kInputs[] = {
      {"--csv ''", 2, "--csv: its value is empty; expected FILE"},
      {"--tp 4 --contention ''", 2, "--contention: its value is empty; expected on\\|off; what overlaps"},
      {"--csv= --json", 2, "--csv: its value is empty"},
      {"--json=", 2, "--json: its value is empty; expected the flag alone"},
      {"search --gpus '' --tp 8", 2, "--gpus: its value is empty; expected LIST"},
      {"explain gemm 8x8x8 --layout ''", 2, "--layout: its value is empty; expected LAYOUT"},
      // The next flag is no value.
      {"--csv --json", 2, "--csv: its value is missing; expected FILE"},
      {"--trace --tp=8", 2, "--trace: its value is missing; expected FILE"},
      {"--contention '' --json", 2, "--contention: its value is empty"},
  };
  for (const BadInput& input : kInputs) {
    expect_refused(input, run_command("ns-dist " + std::string(input.arguments)));
  }
}

TEST(BadInput, ASwitchAloneIsOn) {
  const auto step = [](const std::string& flag) {
    return run_command("ns-dist --model gpt2 --global-batch 8 --json " + flag).out;
  };
  EXPECT_EQ(step("--fused-permutation"), step("--fused-permutation on"));
  EXPECT_EQ(step("--empty-cache --tp 2"), step("--tp 2 --empty-cache on"));
  EXPECT_NE(step("--empty-cache"), step("--empty-cache off"));
}

// Long answers are written in several pieces; the first that fails counts.
TEST(BadInput, AFullDiskIsNoAnswer) {
  for (const char* command :
       {"--tp 8 --pp 16 --dp 8", "--tp 8 --pp 16 --dp 8 --json", "list models", "simulate --help"}) {
    const CommandResult result = run_command(std::string("ns-dist ") + command + " >/dev/full");
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_THAT(result.err, ContainsRegex("standard output cannot be written")) << command;
  }
}

}  // namespace
}  // namespace ns_dist
