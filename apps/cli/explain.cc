#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/kernel_table.h"
#include "ns_dist/simulator.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

using Dimensions = std::vector<std::int64_t>;

struct Request {
  std::string subject, shape;
  std::string dtype = "bf16", pass = "forward", layout, mode = "sustained";
  std::string gpu = "h100-sxm-80gb", cluster, ranks = "8", stride = "1", nodes, window = "0", kv_heads;
  std::optional<std::string> network_model, algorithm, protocol, calibration, kernel_calibration;
  std::string flops, read = "0 B", written = "0 B";
  bool no_causal = false, rms = false, block_scaled = false, bias = false;
  double inputs = 2, outputs = 1, imbalance = 1;
  bool json = false;
};

GemmLayout layout_of(const Request& request) {
  if (request.layout == "nn") return GemmLayout::kNN;
  if (request.layout == "tn") return GemmLayout::kTN;
  return request.layout == "tt" ? GemmLayout::kTT : GemmLayout::kNT;
}

Result<OperatorKind> gemm(const Request& request, const Dimensions& d) {
  const std::size_t skip = d.size() - 3;
  return Gemm{.batch = skip == 1 ? d[0] : 1,
              .m = d[skip],
              .n = d[skip + 1],
              .k = d[skip + 2],
              .layout = layout_of(request),
              .epilogue = request.bias ? Epilogue::kBias : Epilogue::kNone,
              .scaling = request.block_scaled ? Scaling::kBlock : Scaling::kTensor};
}

Result<OperatorKind> attention(const Request& request, const Dimensions& d) {
  Attention op{.batch = d[0],
               .heads = d[1],
               .kv_heads = d[1],
               .query_length = d[2],
               .key_length = d[2],
               .head_dim = d[3],
               .value_dim = d[3],
               .causal = !request.no_causal};
  if (!request.kv_heads.empty()) {
    NS_TRY(op.kv_heads, read_count(request.kv_heads, "--kv-heads"));
  }
  NS_TRY(op.window, read_count(request.window, "--window", 0));
  return op;
}

Result<OperatorKind> softmax(const Request&, const Dimensions& d) { return Softmax{.rows = d[0], .columns = d[1]}; }

Result<OperatorKind> normalization(const Request& request, const Dimensions& d) {
  return Normalization{
      .kind = request.rms ? NormalizationKind::kRmsNorm : NormalizationKind::kLayerNorm, .rows = d[0], .columns = d[1]};
}

Result<OperatorKind> elementwise(const Request& request, const Dimensions& d) {
  for (const double streams : {request.inputs, request.outputs}) {
    if (std::isfinite(streams) && streams >= 0 && streams <= 1000) continue;
    return fail({ErrorCode::kUsage,
                 fmt::format("{} is out of range", streams),
                 "--inputs, --outputs",
                 "a number from 0 to 1000",
                 "",
                 {}});
  }
  double elements = 1;
  for (const std::int64_t dimension : d) elements *= static_cast<double>(dimension);
  if (elements > 9e15) {
    return fail(
        {ErrorCode::kUsage, fmt::format("{:.3g} elements are too many", elements), "SHAPE", "at most 9e15", "", {}});
  }
  return Elementwise{
      .elements = static_cast<std::int64_t>(elements), .inputs = request.inputs, .outputs = request.outputs};
}

Result<OperatorKind> embedding(const Request&, const Dimensions& d) {
  return Embedding{.tokens = d[0], .hidden = d[1], .vocabulary = d[2]};
}

Result<OperatorKind> cross_entropy(const Request&, const Dimensions& d) {
  return CrossEntropy{.rows = d[0], .columns = d[1]};
}

Result<OperatorKind> optimizer(const Request&, const Dimensions& d) { return OptimizerStep{.parameters = d[0]}; }

Result<OperatorKind> grouped_gemm(const Request& request, const Dimensions& d) {
  return GroupedGemm{.experts = d[0], .rows = d[1], .n = d[2], .k = d[3], .layout = layout_of(request)};
}

Result<OperatorKind> moe(const Request&, const Dimensions& d) {
  return MixtureOfExperts{.tokens = d[0], .hidden = d[1], .intermediate = d[2], .experts = d[3], .top_k = d[4]};
}

Result<OperatorKind> convolution(const Request&, const Dimensions& d) {
  return Convolution{.batch = d[0],
                     .in_channels = d[1],
                     .in_height = d[2],
                     .in_width = d[3],
                     .out_channels = d[4],
                     .kernel = d[5],
                     .stride = d[6],
                     .padding = d[5] / 2};
}

Result<Bytes> read_bytes(std::string_view text, std::string_view flag, Bytes least) {
  auto bytes = parse_quantity<Bytes>(text);
  if (bytes && (*bytes < least || *bytes > 1e6 * units::TB)) {
    bytes = fail({ErrorCode::kUsage, fmt::format("\"{}\" is out of range", text), "", "at most 1000000 TB", "", {}});
  }
  if (!bytes) {
    bytes.error().code = ErrorCode::kUsage;
    bytes.error().where = flag;
  }
  return bytes;
}

Result<OperatorKind> copy(const Request& request, const Dimensions&) {
  NS_TRY(const Bytes bytes, read_bytes(request.shape, "SHAPE", 1 * units::B));
  return Copy{bytes};
}

Result<OperatorKind> unknown(const Request& request, const Dimensions&) {
  if (request.flops.empty()) {
    return fail({ErrorCode::kUsage,
                 "nothing says what it does",
                 "--flops",
                 "its work, and the bytes it moves",
                 "as in: explain unknown my_kernel --flops \"2 TFLOP\" --read \"1 GB\" --written \"1 GB\"",
                 {}});
  }
  auto flops = parse_quantity<Flops>(request.flops);
  if (!flops) {
    flops.error().code = ErrorCode::kUsage;
    flops.error().where = "--flops";
    return fail(flops.error());
  }
  NS_TRY(const Bytes read, read_bytes(request.read, "--read", Bytes()));
  NS_TRY(const Bytes written, read_bytes(request.written, "--written", Bytes()));
  return UnknownOperator{request.shape, *flops, read, written};
}

// How the shape of each operator family is written. 0 dimensions: the shape is read by the maker.
struct Family {
  std::string_view name, shape, example;
  std::size_t least, most;
  Result<OperatorKind> (*make)(const Request&, const Dimensions&);
  std::int64_t largest = std::int64_t{1} << 31;  // dimension
};

constexpr std::array<Family, 13> kFamilies = {{
    {"gemm", "[BATCHx]MxNxK", "8192x8192x8192", 3, 4, gemm},
    {"attention", "BATCHxHEADSxTOKENSxDIM", "1x32x4096x128", 4, 4, attention},
    {"softmax", "ROWSxCOLUMNS", "65536x2048", 2, 2, softmax},
    {"normalization", "ROWSxCOLUMNS", "8192x4096", 2, 2, normalization},
    {"elementwise", "ELEMENTS, or dimensions to multiply", "8192x4096", 1, 4, elementwise, 9'000'000'000'000'000},
    {"embedding", "TOKENSxHIDDENxVOCABULARY", "8192x4096x32000", 3, 3, embedding},
    {"cross_entropy", "ROWSxCOLUMNS", "8192x32000", 2, 2, cross_entropy},
    {"optimizer", "PARAMETERS", "125000000", 1, 1, optimizer, 9'000'000'000'000'000},
    {"grouped_gemm", "EXPERTSxROWSxNxK", "8x8192x14336x4096", 4, 4, grouped_gemm},
    {"moe", "TOKENSxHIDDENxFFNxEXPERTSxTOPK", "4096x4096x14336x8x2", 5, 5, moe},
    {"copy", "BYTES with unit", "64MiB", 0, 0, copy},
    {"convolution", "BATCHxINxHEIGHTxWIDTHxOUTxKERNELxSTRIDE", "32x64x56x56x64x3x1", 7, 7, convolution},
    {"unknown", "NAME, with --flops [--read --written]", "my_kernel", 0, 0, unknown},
}};

// Names that ns-dist kernels reads too.
struct Alias {
  std::string_view name, family;
};
constexpr std::array<Alias, 8> kAliases = {{{"linear", "gemm"},
                                            {"matmul", "gemm"},
                                            {"bmm", "gemm"},
                                            {"layernorm", "normalization"},
                                            {"rmsnorm", "normalization"},
                                            {"emb", "embedding"},
                                            {"conv", "convolution"},
                                            {"adam", "optimizer"}}};

std::string_view family_named(std::string_view subject) {
  for (const Alias& alias : kAliases) {
    if (alias.name == subject) return alias.family;
  }
  return subject;
}

// Flags that say something of some subjects only.
struct OwnFlag {
  const char* flag;
  std::string_view of;  // names of families with blanks around them; "": of any collective
};
constexpr std::array<OwnFlag, 18> kOwnFlags = {{{"--layout", " gemm grouped_gemm "},
                                                {"--kv-heads", " attention "},
                                                {"--window", " attention "},
                                                {"--no-causal", " attention "},
                                                {"--rms", " normalization "},
                                                {"--inputs", " elementwise "},
                                                {"--outputs", " elementwise "},
                                                {"--flops", " unknown "},
                                                {"--read", " unknown "},
                                                {"--written", " unknown "},
                                                {"--cluster", ""},
                                                {"--ranks", ""},
                                                {"--stride", ""},
                                                {"--nodes", ""},
                                                {"--network-model", ""},
                                                {"--calibration", ""},
                                                {"--algorithm", ""},
                                                {"--protocol", ""}}};
constexpr std::array<const char*, 4> kOperatorFlags = {"--dtype", "--mode", "--pass", "--kernel-calibration"};

// Error: a flag was given that says nothing of this subject. `family` is empty for a collective.
Result<void> check_flags(const CLI::App& app, const std::string& subject, std::string_view family) {
  const auto refuse = [&](std::string_view flag, std::string expected) -> Result<void> {
    return fail({ErrorCode::kUsage, "says nothing of " + subject, std::string(flag), std::move(expected), "", {}});
  };
  for (const OwnFlag& own : kOwnFlags) {
    if (app.count(own.flag) == 0) continue;
    const bool fits = own.of.empty()
                          ? family.empty()
                          : !family.empty() && own.of.find(fmt::format(" {} ", family)) != std::string_view::npos;
    if (fits) continue;
    const std::string_view of = own.of.empty() ? "collectives" : own.of.substr(1, own.of.size() - 2);
    return refuse(own.flag, fmt::format("only with {}", of));
  }
  for (const char* flag : kOperatorFlags) {
    if (family.empty() && app.count(flag) > 0) return refuse(flag, "only with operators");
  }
  return {};
}

constexpr std::array kCollectives = {
    CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
    CollectiveKind::kBroadcast, CollectiveKind::kReduce,    CollectiveKind::kGather,        CollectiveKind::kScatter,
    CollectiveKind::kBarrier,   CollectiveKind::kSendRecv};

Result<Dimensions> read_shape(const Family& family, const std::string& shape) {
  Dimensions dimensions;
  std::string_view rest = shape;
  while (family.most > 0) {
    const std::size_t end = rest.find('x');
    auto dimension = read_count(rest.substr(0, end), "SHAPE", 1, family.largest);
    if (!dimension) {
      dimension.error().hint = fmt::format("write {} as in: explain {} {}", family.shape, family.name, family.example);
      return fail(dimension.error());
    }
    dimensions.push_back(*dimension);
    if (end == std::string_view::npos) break;
    rest = rest.substr(end + 1);
  }
  if (dimensions.size() >= family.least && dimensions.size() <= family.most) return dimensions;
  return fail({ErrorCode::kUsage,
               fmt::format("\"{}\" has {} dimensions", shape, dimensions.size()),
               "SHAPE",
               std::string(family.shape),
               fmt::format("as in: explain {} {}", family.name, family.example),
               {}});
}

Result<Explanation> explain_operator(const Family& family, Request request) {
  NS_TRY(const Dimensions dimensions, read_shape(family, request.shape));
  if (family.name == "gemm" && request.dtype == "fp8_block") request.dtype = "fp8", request.block_scaled = true;
  NS_TRY(const DType dtype, read_dtype(request.dtype, "--dtype"));
  // What the names of ns-dist kernels say beyond their family.
  if (request.subject == "bmm" && request.layout.empty()) request.layout = "nn";
  if (request.subject == "rmsnorm") request.rms = true;
  request.bias = request.subject == "linear" && dtype == DType::kFp32;
  NS_TRY(OperatorKind kind, family.make(request, dimensions));
  if (auto passed = set_pass(kind, request.pass == "backward" ? Pass::kBackward : Pass::kForward); !passed) {
    passed.error().code = ErrorCode::kUsage, passed.error().where = "--pass";
    return fail(passed.error());
  }
  auto found = Catalog::standard().gpu(request.gpu);
  if (!found && found.error().where.empty()) found.error().where = "--gpu";
  NS_TRY(const Gpu gpu, std::move(found));
  ComputeModelOptions options;
  NS_TRY(options.mode, read_mode(request.mode));
  if (request.kernel_calibration) {
    NS_TRY(KernelCalibration calibration, load_kernel_calibration(*request.kernel_calibration));
    NS_TRY_VOID(check_mode(calibration.mode, options.mode));
    options.calibration = std::make_shared<const KernelCalibration>(std::move(calibration));
  }
  NS_TRY(const auto model, make_compute_model(gpu, options));
  return model->explain(Operator{kind, dtype});
}

// The subject of an operator's explanation names its GPU; that of a collective names no machine, so it is added.
Result<Explanation> explain_collective(CollectiveKind kind, const Request& request) {
  NS_TRY(const std::int64_t ranks, read_count(request.ranks, "--ranks", 2, kMostRanks));
  NS_TRY(const std::int64_t stride, read_count(request.stride, "--stride", 1, kMostRanks));
  Bytes size;
  if (kind != CollectiveKind::kBarrier) {
    NS_TRY(size, read_bytes(request.shape, "SHAPE", 1 * units::B));
  }
  if (ranks > kMostRanks / stride) {
    return fail({ErrorCode::kUsage,
                 fmt::format("{} ranks, {} apart", ranks, stride),
                 "--ranks, --stride",
                 fmt::format("a machine of at most {} GPUs", kMostRanks),
                 "",
                 {}});
  }
  // The machine: as many nodes as ranks that far apart need.
  ScenarioSpec spec;
  if (request.cluster.empty()) {
    spec.set("machine/gpu", request.gpu);
  } else {
    spec.set("machine/cluster", request.cluster);
  }
  if (request.nodes.empty()) {
    spec.set("plan/tp", ranks * stride);
  } else {
    NS_TRY(const std::int64_t nodes, read_count(request.nodes, "--nodes"));
    spec.set("machine/nodes", nodes);
  }
  spec.set("network/model", request.network_model).set("network/algorithm", request.algorithm);
  spec.set("network/protocol", request.protocol).set("network/calibration", request.calibration);
  NS_TRY(const Scenario scenario, resolve(spec, Catalog::standard()));
  const std::string machine =
      fmt::format("{} x {}, {}", scenario.cluster.gpu_count() / scenario.cluster.gpus_per_node(), scenario.cluster.name,
                  scenario.cluster.gpu.id);
  NetworkModelOptions options = network_options(scenario.network);
  options.strict = true;
  NS_TRY(const auto model, make_network_model(scenario.cluster, options));
  if (!(request.imbalance >= 1) || (request.imbalance > 1 && kind != CollectiveKind::kAllToAll) ||
      request.imbalance > static_cast<double>(ranks)) {
    return fail({ErrorCode::kUsage,
                 fmt::format("an imbalance of {:g} for a {} of {} ranks", request.imbalance, name_of(kind), ranks),
                 "--imbalance",
                 kind == CollectiveKind::kAllToAll ? fmt::format("1 (even) to {}, the ranks", ranks)
                                                   : std::string("1: only all_to_all is uneven"),
                 "as in: ns-dist explain all_to_all 64MiB --imbalance 1.5",
                 {}});
  }
  NS_TRY(Explanation explanation,
         model->explain(Collective{kind, size, RankGroup{0, {{ranks, stride}}}, false, request.imbalance}));
  explanation.subject += " on " + machine;
  return explanation;
}

std::string rendered(const Explanation& explanation, bool json) {
  const Forecast& forecast = explanation.forecast;
  if (json) {
    nlohmann::ordered_json steps = nlohmann::ordered_json::array();
    for (const ExplanationStep& step : explanation.steps) {
      steps.push_back({{"name", step.name}, {"value", step.value}, {"note", step.note}});
    }
    const nlohmann::ordered_json object = {{"subject", explanation.subject},
                                           {"latency_s", forecast.latency / units::s},
                                           {"low_s", forecast.low / units::s},
                                           {"high_s", forecast.high / units::s},
                                           {"floor_s", forecast.floor / units::s},
                                           {"utilization", forecast.utilization},
                                           {"bound", name_of(forecast.bound)},
                                           {"tile", forecast.tile},
                                           {"waves", forecast.waves},
                                           {"method", forecast.method},
                                           {"extrapolated", forecast.extrapolated},
                                           {"steps", steps}};
    return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  const Style style = style_of_standard_output();
  std::string text = fmt::format("{}\n", style.bold(explanation.subject));
  text += fmt::format("  {}  (90 % interval {} to {}), {:.0f} % of what physics allows, {} bound\n\n",
                      style.bold(duration_text(forecast.latency)), duration_text(forecast.low),
                      duration_text(forecast.high), 100 * forecast.utilization, name_of(forecast.bound));
  std::size_t name_width = 0, value_width = 0;
  for (const ExplanationStep& step : explanation.steps) {
    name_width = std::max(name_width, step.name.size());
    value_width = std::max(value_width, step.value.size());
  }
  for (const ExplanationStep& step : explanation.steps) {
    std::string line =
        fmt::format("  {:<{}}  {:<{}}  {}", step.name, name_width, step.value, value_width, style.dim(step.note));
    if (step.note.empty()) line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  if (forecast.extrapolated) text += "\n  This lies outside what the method was fitted on.\n";
  return text;
}

std::string subjects() {
  std::string text;
  for (const Family& family : kFamilies) {
    text += fmt::format("  {:<16}{:<42}{} {}\n", family.name, family.shape, family.name, family.example);
  }
  for (const CollectiveKind kind : kCollectives) {
    text += fmt::format("  {:<16}{:<42}{} {}\n", name_of(kind),
                        kind == CollectiveKind::kBarrier ? "" : "BYTES with unit", name_of(kind),
                        kind == CollectiveKind::kBarrier    ? "--ranks 16"
                        : kind == CollectiveKind::kSendRecv ? "64MiB --ranks 2"
                                                            : "64MiB --ranks 16");
  }
  return text;
}

std::string aliases() {
  std::string text;
  for (const Alias& alias : kAliases) text += fmt::format("{}{}", text.empty() ? "" : ", ", alias.name);
  return fmt::format("Also, as ns-dist kernels calls them: {}\n", text);
}

Error check_word(std::string_view flag, const std::string& value, const std::vector<std::string>& words) {
  return {ErrorCode::kUsage,
          fmt::format("\"{}\" is none of its values", value),
          std::string(flag),
          fmt::format("one of {}", fmt::join(words, ", ")),
          "",
          {}};
}

}  // namespace

int explain_command(int argc, const char* const* argv) {
  CLI::App app{"How did a number come about: one operator on a GPU, or one collective on a cluster.", "explain"};
  set_up(app);
  Request request;
  app.add_option("subject", request.subject, "an operator or a collective, from the table below")->type_name("");
  app.add_option("shape", request.shape, "its size, as the table below has it")->type_name("");
  const char* kernels = "Operators";
  app.add_option("--gpu", request.gpu, "ns-dist list gpus, or JSON [h100-sxm-80gb]")->type_name("ID|FILE");
  app.add_option("--dtype", request.dtype, "fp32, tf32, fp16, bf16, fp8; of a gemm, fp8_block [bf16]")
      ->type_name("TYPE")
      ->group(kernels);
  app.add_option("--mode", request.mode, "burst: one kernel alone; sustained: as in a step [sustained]")
      ->type_name("WHICH")
      ->group(kernels);
  app.add_option("--pass", request.pass, "forward, backward [forward]")->type_name("WHICH")->group(kernels);
  app.add_option("--layout", request.layout, "nn, nt, tn, tt of a gemm's operands [nt]")
      ->type_name("LAYOUT")
      ->group(kernels);
  app.add_option("--kv-heads", request.kv_heads, "heads of keys and values [as many as heads]")
      ->type_name("N")
      ->group(kernels);
  app.add_option("--window", request.window, "tokens that attention looks back [0: all]")
      ->type_name("N")
      ->group(kernels);
  app.add_flag("--no-causal", request.no_causal, "attention to later tokens too")->group(kernels);
  app.add_flag("--rms", request.rms, "RMSNorm instead of LayerNorm")->group(kernels);
  app.add_option("--inputs", request.inputs, "tensors that an elementwise operator reads [2]")
      ->type_name("N")
      ->group(kernels);
  app.add_option("--outputs", request.outputs, "tensors that it writes [1]")->type_name("N")->group(kernels);
  app.add_option("--flops", request.flops, "of an unknown operator, as in \"2 TFLOP\"")
      ->type_name("WORK")
      ->group(kernels);
  app.add_option("--read", request.read, "that it reads, as in \"64 MiB\" [0 B]")->type_name("BYTES")->group(kernels);
  app.add_option("--written", request.written, "that it writes [0 B]")->type_name("BYTES")->group(kernels);
  const char* network = "Collectives";
  app.add_option("--cluster", request.cluster, "ns-dist list clusters, or JSON [the GPU's usual one]")
      ->type_name("ID|FILE")
      ->group(network);
  app.add_option("--ranks", request.ranks, "ranks that take part [8]")->type_name("N")->group(network);
  app.add_option("--stride", request.stride, "from one rank to the next [1]")->type_name("N")->group(network);
  app.add_option("--imbalance", request.imbalance, "all_to_all: bytes of the busiest rank's port over the mean [1]")
      ->type_name("RATIO")
      ->group(network);
  app.add_option("--nodes", request.nodes, "nodes of the machine [as many as the ranks need]")
      ->type_name("N")
      ->group(network);
  app.add_option("--network-model", request.network_model, "nccl, or astra: ASTRA-Sim's formulas [nccl]")
      ->type_name("NAME")
      ->group(network);
  app.add_option("--calibration", request.calibration, "corrections measured on this cluster [none]")
      ->type_name("FILE")
      ->group(network);
  app.add_option("--kernel-calibration", request.kernel_calibration, "corrections measured on this GPU [none]")
      ->type_name("FILE");
  app.add_option("--algorithm", request.algorithm, "ns-dist list algorithms [the fastest]")
      ->type_name("NAME")
      ->group(network);
  app.add_option("--protocol", request.protocol, "ns-dist list protocols [the fastest]")
      ->type_name("NAME")
      ->group(network);
  app.add_flag("--json", request.json, "print one JSON object");
  app.footer("Subjects and their shapes\n" + subjects() + aliases());
  // `explain collective all_reduce 64MiB` reads well too.
  if (argc > 0 && std::string_view(argv[0]) == "collective") --argc, ++argv;
  if (const auto done = parse(app, argc, argv)) return *done;

  if (request.pass != "forward" && request.pass != "backward") {
    return report_error(check_word("--pass", request.pass, {"forward", "backward"}));
  }
  if (request.mode != "burst" && request.mode != "sustained") {
    return report_error(check_word("--mode", request.mode, {"burst", "sustained"}));
  }
  if (!request.layout.empty() && request.layout != "nn" && request.layout != "nt" && request.layout != "tn" &&
      request.layout != "tt") {
    return report_error(check_word("--layout", request.layout, {"nn", "nt", "tn", "tt"}));
  }
  std::vector<std::string> names;
  std::optional<Result<Explanation>> explanation;
  const std::string_view wanted = family_named(request.subject);
  for (const Family& family : kFamilies) {
    names.emplace_back(family.name);
    if (family.name != wanted) continue;
    if (auto fits = check_flags(app, request.subject, family.name); !fits) return report_error(fits.error());
    explanation = explain_operator(family, request);
  }
  for (const CollectiveKind kind : kCollectives) {
    names.emplace_back(name_of(kind));
    if (name_of(kind) != wanted) continue;
    if (auto fits = check_flags(app, request.subject, ""); !fits) return report_error(fits.error());
    explanation = explain_collective(kind, request);
  }
  if (!explanation) {
    const std::string expected = fmt::format("one of {}", fmt::join(names, ", "));
    for (const Alias& alias : kAliases) names.emplace_back(alias.name);
    std::string near = nearest_name(request.subject, names);
    const std::string word = fmt::format(" {} ", request.subject);
    for (const KernelShape& shape : kernel_shapes()) {
      if (fmt::format(" {} ", shape.names).find(word) == std::string::npos) continue;
      near = shape.dimensions.starts_with("m n k")                   ? "gemm"
             : shape.names.find("rmsnorm") != std::string_view::npos ? "rmsnorm"
                                                                     : "elementwise";
    }
    return report_error(
        {ErrorCode::kUsage,
         request.subject.empty() ? "nothing to explain" : fmt::format("nothing is called \"{}\"", request.subject),
         "explain",
         expected,
         near.empty() ? "as in: ns-dist explain gemm 8192x8192x8192" : fmt::format("did you mean \"{}\"?", near),
         {}});
  }
  if (!*explanation) return report_error(explanation->error());
  std::fputs(rendered(**explanation, request.json).c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
