#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "arguments.h"
#include "commands.h"
#include "explanation_text.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/fields.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/operator_forms.h"
#include "ns_dist/precision.h"
#include "ns_dist/simulator.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

struct ExplainRequest {
  std::string subject, shape;
  std::string dtype = "bf16", pass = "forward", layout, library, value_dim, mode = "sustained";
  std::string ranks, stride = "1", nodes, window = "0", kv_heads;
  std::optional<std::string> gpu, cluster, network_model, algorithm, protocol, calibration, kernel_calibration;
  std::string flops, read = "0 B", written = "0 B";
  bool no_causal = false, rms = false, by_element = false;
  std::optional<double> inputs, outputs;
  double imbalance = 1;
  bool json = false;
};

Result<Bytes> read_bytes(std::string_view text, std::string_view flag, Bytes least) {
  auto bytes = parse_quantity<Bytes>(text);
  if (bytes && (*bytes < least || *bytes > 1e6 * units::TB)) {
    bytes = fail({ErrorCode::kUsage, fmt::format("\"{}\" is out of range", text), "",
                  fmt::format("{} to 1000000 TB", to_text(least))});
  }
  if (!bytes) {
    bytes.error().code = ErrorCode::kUsage;
    bytes.error().where = flag;
  }
  return bytes;
}

// What the command line gives of an operator, by the names of columns.
class GivenFields final : public OperatorFields {
 public:
  std::string_view text(std::string_view name) const override {
    const auto found = values_.find(name);
    return found == values_.end() ? std::string_view() : std::string_view(found->second);
  }
  void set(std::string_view name, std::string value) { values_.insert_or_assign(std::string(name), std::move(value)); }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

// Flags of some subjects only: the column that each fills. "": of any collective.
struct OwnFlag {
  const char* flag;
  std::string_view column;
};
constexpr std::array<OwnFlag, 22> kOwnFlags = {{{"--layout", "layout"},   {"--library", "library"},
                                                {"--value-dim", "d_v"},   {"--kv-heads", "h_kv"},
                                                {"--window", "window"},   {"--no-causal", "causal"},
                                                {"--rms", "rms"},         {"--inputs", "inputs"},
                                                {"--outputs", "outputs"}, {"--flops", "flops"},
                                                {"--read", "read_bytes"}, {"--written", "written_bytes"},
                                                {"--cluster", ""},        {"--ranks", ""},
                                                {"--stride", ""},         {"--nodes", ""},
                                                {"--network-model", ""},  {"--calibration", ""},
                                                {"--algorithm", ""},      {"--protocol", ""},
                                                {"--imbalance", ""},      {"--by-element", "by_element"}}};
constexpr std::array<const char*, 4> kOperatorFlags = {"--dtype", "--mode", "--pass", "--kernel-calibration"};

bool reads(const OperatorForm& form, std::string_view column) {
  const std::vector<std::string_view> options = words_of(form.options);
  return std::find(options.begin(), options.end(), column) != options.end();
}

// Error: a flag was given that this subject does not read. `form` is null for a collective.
Result<void> check_flags(const CLI::App& app, const std::string& subject, const OperatorForm* form) {
  const auto refuse = [&](std::string_view flag, std::string expected) -> Result<void> {
    return fail({ErrorCode::kUsage, "is not a flag of " + subject, std::string(flag), std::move(expected)});
  };
  for (const OwnFlag& own : kOwnFlags) {
    if (app.count(own.flag) == 0) continue;
    if (own.column.empty()) {
      if (form != nullptr) return refuse(own.flag, "only with collectives");
    } else if (form == nullptr || !reads(*form, own.column)) {
      std::vector<std::string_view> of;
      for (const OperatorForm& other : operator_forms()) {
        if (reads(other, own.column)) of.push_back(other.family);
      }
      return refuse(own.flag, fmt::format("only with {}", fmt::join(of, " ")));
    }
  }
  for (const char* flag : kOperatorFlags) {
    if (form == nullptr && app.count(flag) > 0) return refuse(flag, "only with operators");
  }
  return {};
}

// Reads "8192x4096" into the columns of its dimensions.
Result<void> read_shape(const OperatorForm& form, const std::string& shape, GivenFields& fields) {
  const std::string example = fmt::format("as in: explain {} {}", form.family, form.example);
  std::vector<std::string> given;
  const std::vector<std::string_view> sizes = split_at(shape, "x");
  for (const std::string_view size : sizes) {
    auto dimension = read_count(size, "SHAPE", 1, sizes.size() == 1 ? kLargestAlone : kLargestDimension);
    if (!dimension) {
      dimension.error().hint = fmt::format("write {}, {}", form.shape, example);
      return fail(dimension.error());
    }
    given.push_back(std::to_string(*dimension));
  }
  // Dimensions in brackets are all given, or left out and 1.
  std::vector<std::string_view> all = words_of(form.dimensions), required = all;
  std::erase_if(required, [](std::string_view name) { return name.starts_with('['); });
  const std::vector<std::string_view>& names = given.size() == required.size() ? required : all;
  if (given.size() != names.size()) {
    return fail({ErrorCode::kUsage,
                 fmt::format("\"{}\" has {} dimension{}", shape, given.size(), given.size() == 1 ? "" : "s"), "SHAPE",
                 std::string(form.shape), example});
  }
  for (const std::string_view name : all) {
    if (name.starts_with('[')) fields.set(name.substr(1, name.size() - 2), "1");
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names[i];
    fields.set(name.starts_with('[') ? name.substr(1, name.size() - 2) : name, std::move(given[i]));
  }
  return {};
}

// Nobody wrote how large the subject is. `example`: what to explain.
tl::unexpected<Error> without_shape(std::string_view expected, std::string_view example) {
  return fail({ErrorCode::kUsage, "its size is missing", "SHAPE", std::string(expected),
               fmt::format("as in: explain {}", example)});
}

// The operator of the request: its shape, and the flags that were given, by the columns that they fill.
Result<OperatorKind> operator_of(const OperatorForm& form, const ExplainRequest& request) {
  const bool has_size = !form.dimensions.empty() || form.family == "copy";  // an unknown kernel has a name at most
  if (has_size && request.shape.empty()) {
    return without_shape(form.shape, fmt::format("{} {}", form.family, form.example));
  }
  GivenFields fields;
  fields.set("dtype", request.dtype);
  if (!form.dimensions.empty()) {
    NS_TRY_VOID(read_shape(form, request.shape, fields));
  } else if (form.family == "copy") {
    NS_TRY(const Bytes bytes, read_bytes(request.shape, "SHAPE", 1 * units::B));
    fields.set("bytes", fmt::format("{}", bytes / units::B));
  } else {
    fields.set("name", request.shape);
  }
  fields.set("layout", request.layout);
  fields.set("causal", request.no_causal ? "0" : "");
  fields.set("rms", request.rms ? "1" : "");
  fields.set("by_element", request.by_element ? "1" : "");
  if (!request.kv_heads.empty()) {
    NS_TRY(const std::int64_t heads, read_count(request.kv_heads, "--kv-heads"));
    fields.set("h_kv", std::to_string(heads));
  }
  if (!request.value_dim.empty()) {
    NS_TRY(const std::int64_t dimension, read_count(request.value_dim, "--value-dim"));
    fields.set("d_v", std::to_string(dimension));
  }
  if (!request.library.empty()) {
    if (!enumerator_from_name<Library>(request.library)) {
      return fail({ErrorCode::kUsage, fmt::format("\"{}\" is unknown", request.library), "--library",
                   fmt::format("{}", fmt::join(names_of<Library>(), ", "))});
    }
    fields.set("library", request.library);
  }
  NS_TRY(const std::int64_t window, read_count(request.window, "--window", 0));
  fields.set("window", std::to_string(window));
  for (const auto& [flag, column, streams] :
       {std::tuple("--inputs", "inputs", request.inputs), std::tuple("--outputs", "outputs", request.outputs)}) {
    if (!streams) continue;
    if (!(*streams >= 0 && *streams <= 1000)) {
      return fail({ErrorCode::kUsage, fmt::format("{} is out of range", *streams), flag, "a number from 0 to 1000"});
    }
    fields.set(column, fmt::format("{}", *streams));
  }
  if (reads(form, "flops")) {
    if (request.flops.empty()) {
      return fail({ErrorCode::kUsage, "the work of the kernel is missing", "--flops",
                   "its work, and the bytes it moves",
                   "as in: explain unknown my_kernel --flops \"2 TFLOP\" --read \"1 GB\" --written \"1 GB\""});
    }
    auto flops = parse_quantity<Flops>(request.flops);
    if (!flops) {
      flops.error().code = ErrorCode::kUsage;
      flops.error().where = "--flops";
      return fail(flops.error());
    }
    NS_TRY(const Bytes read, read_bytes(request.read, "--read", Bytes()));
    NS_TRY(const Bytes written, read_bytes(request.written, "--written", Bytes()));
    fields.set("flops", fmt::format("{}", *flops / units::FLOP));
    fields.set("read_bytes", fmt::format("{}", read / units::B));
    fields.set("written_bytes", fmt::format("{}", written / units::B));
  }
  OperatorKind kind = form.make(fields, request.subject);
  if (!fields.problem().empty()) {
    return fail({ErrorCode::kUsage, fields.problem(), "SHAPE", std::string(fields.expected())});
  }
  // Sizes that contradict each other: the members that an error names are the shape's and its flags'.
  if (auto valid = validate({kind, DType::kBf16}); !valid) {
    Error error = std::move(valid).error();
    error.code = ErrorCode::kUsage, error.where = "SHAPE";
    for (Error& more : error.also) more.where = "SHAPE";
    return fail(std::move(error));
  }
  return kind;
}

// --dtype: formats of tensors, and of products and attention also those with a scale for each block.
Result<DType> format_of(const OperatorForm& form, std::string_view text) {
  const std::span<const std::string_view> plain = names_of<DType>();
  std::vector<std::string_view> formats(plain.begin(), plain.end());
  const bool product = form.family == "gemm" || form.family == "grouped_gemm";
  const bool by_block = product || form.family == "attention";
  if (by_block) formats.insert(formats.end(), {"fp8-block", "mxfp8"});
  if (product) formats.emplace_back("nvfp4");
  const auto format = read_format(text);
  const bool fits = format && (!format->scaled_by_block || product || (by_block && format->dtype == DType::kFp8));
  if (!fits) {
    const std::string near = nearest_name(text, {formats.begin(), formats.end()});
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is not one of its values", text), "--dtype",
                 fmt::format("one of {}, or another name of one of them", fmt::join(formats, ", ")),
                 did_you_mean(near)});
  }
  return format->dtype;
}

struct Explained {
  Explanation explanation;
  Gpu gpu;
  Operator op;
};

Result<Explained> explain_operator(const OperatorForm& form, const ExplainRequest& request) {
  NS_TRY(OperatorKind kind, operator_of(form, request));
  NS_TRY(const DType dtype, format_of(form, request.dtype));
  if (auto passed = set_pass(kind, request.pass == "backward" ? Pass::kBackward : Pass::kForward); !passed) {
    passed.error().code = ErrorCode::kUsage, passed.error().where = "--pass";
    return fail(passed.error());
  }
  NS_TRY(const Gpu gpu, named_by("--gpu", Catalog::standard().gpu(request.gpu.value_or("h100-sxm-80gb"))));
  if (const auto named = read_enumerator<Precision>(request.dtype)) {
    const std::string_view reason = reason_against(gpu, *named);
    if (!reason.empty()) warn(fmt::format("{} does not run on {}: {}", name_of(*named), gpu.name, reason));
  }
  NS_TRY(const ComputeModelOptions options, read_kernel_options(request.mode, request.kernel_calibration.value_or("")));
  NS_TRY(const auto model, make_compute_model(gpu, options));
  const Operator op{kind, dtype};
  NS_TRY(Explanation explanation, model->explain(op));
  return Explained{std::move(explanation), gpu, op};
}

// What people ask first, taken off the steps: "work 1.100 TFLOP, 686 of 989 TFLOP/s; least traffic 384 MiB, ...", in
// units that data sheets have. Features of the model, which they ask last, become the last steps.
std::string take_facts(Explained& explained) {
  auto& [explanation, gpu, op] = explained;
  const Work work = work_of(op);
  const Forecast& forecast = explanation.forecast;
  const double teraflops = work.flops / units::TFLOP, seconds = forecast.latency / units::s;
  const Bytes traffic = work.read + work.written;
  const FlopsPerSecond peak = std::holds_alternative<Gemm>(op.kind) ? gpu.matrix_peak(op.dtype) : FlopsPerSecond();
  const auto rounded = [](double value) { return with_commas(std::llround(value)); };
  std::string text;
  if (teraflops > 0) {
    text += fmt::format(
        "work {}, {:.3g}{} TFLOP/s; ",
        teraflops >= 1 ? fmt::format("{:#.4g} TFLOP", teraflops) : fmt::format("{:#.4g} GFLOP", 1e3 * teraflops),
        teraflops / seconds,
        peak > FlopsPerSecond() ? fmt::format(" of {:.3g}", peak / (units::TFLOP / units::s)) : "");
  }
  text += fmt::format("least traffic {}, {} of {} GB/s; floor {}", bytes_text(traffic),
                      rounded(traffic / units::GB / seconds), rounded(gpu.memory_bandwidth / (units::GB / units::s)),
                      duration_text(forecast.floor));
  std::vector<ExplanationStep>& steps = explanation.steps;
  for (const ExplanationStep& step : steps) {
    if (step.name == "power_w") text += fmt::format("; power {:.0f} W", std::strtod(step.value.c_str(), nullptr));
  }
  std::erase_if(steps, [](const ExplanationStep& step) {
    return step.name == "flops" || step.name == "least_traffic_B" || step.name == "floor_s" || step.name == "power_w";
  });
  std::stable_partition(steps.begin(), steps.end(), [](const ExplanationStep& step) { return step.note != "feature"; });
  return text;
}

// The machine of a collective, with the nodes that were asked for or, filled one after the other, as many as the ranks
// reach.
Result<Scenario> machine_of(const ExplainRequest& request, std::int64_t ranks, std::int64_t stride) {
  ScenarioSpec spec;
  spec.set("machine/gpu", request.gpu).set("machine/cluster", request.cluster);
  spec.set("network/model", request.network_model).set("network/algorithm", request.algorithm);
  spec.set("network/protocol", request.protocol).set("network/calibration", request.calibration);
  NS_TRY(spec, readable(std::move(spec)));
  if (!request.nodes.empty()) {
    NS_TRY(const std::int64_t nodes, read_count(request.nodes, "--nodes"));
    spec.set("machine/nodes", nodes);
    return resolve(spec, Catalog::standard());
  }
  NS_TRY(Scenario least, resolve(spec, Catalog::standard()));  // one node, or all of a machine of known size
  const std::int64_t reach = (ranks - 1) * stride + 1, node = least.cluster.gpus_per_node();
  if (reach <= least.cluster.gpu_count()) return least;
  spec.set("plan/dp", (reach + node - 1) / node * node);
  auto opened = resolve(spec, Catalog::standard());
  if (opened) return opened;
  return fail({ErrorCode::kInfeasible,
               fmt::format("{} ranks with a stride of {} need {} GPUs, but {} has {}", ranks, stride, reach,
                           least.cluster.name, least.cluster.gpu_count()),
               "--ranks, --stride", "ranks on the GPUs of the machine",
               "write fewer ranks, or a cluster whose outermost level has no size"});
}

// The subject of an operator's explanation names its GPU; that of a collective names no machine, so it is added.
Result<Explanation> explain_collective(CollectiveKind kind, const ExplainRequest& request) {
  const char* const usual = kind == CollectiveKind::kSendRecv ? "2" : "8";
  NS_TRY(const std::int64_t ranks, read_count(request.ranks.empty() ? usual : request.ranks, "--ranks", 2, kMostRanks));
  NS_TRY(const std::int64_t stride, read_count(request.stride, "--stride", 1, kMostRanks));
  Bytes size;
  if (kind != CollectiveKind::kBarrier) {
    if (request.shape.empty()) return without_shape("bytes with their unit", fmt::format("{} 64MiB", name_of(kind)));
    NS_TRY(size, read_bytes(request.shape, "SHAPE", 1 * units::B));
  } else if (!request.shape.empty()) {
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is a size, and a barrier has none", request.shape), "SHAPE",
                 "nothing", "as in: explain barrier --ranks 16"});
  }
  if (ranks > kMostRanks / stride) {
    return fail({ErrorCode::kUsage, fmt::format("{} ranks with a stride of {}", ranks, stride), "--ranks, --stride",
                 fmt::format("a machine of at most {} GPUs", kMostRanks)});
  }
  NS_TRY(const Scenario scenario, machine_of(request, ranks, stride));
  warn_of(scenario.cluster);
  const std::string machine =
      fmt::format("{} x {}, {}", scenario.cluster.gpu_count() / scenario.cluster.gpus_per_node(), scenario.cluster.name,
                  scenario.cluster.gpu.id);
  warn_of_others(scenario.network, {scenario.cluster.id});
  NetworkModelOptions options = network_options(scenario.network);
  options.strict = true;
  if (!request.nodes.empty()) options.ranks = scenario.cluster.gpu_count();
  NS_TRY(const auto model, make_network_model(scenario.cluster, options));
  if (!(request.imbalance >= 1) || (request.imbalance > 1 && kind != CollectiveKind::kAllToAll) ||
      request.imbalance > static_cast<double>(ranks)) {
    return fail({ErrorCode::kUsage,
                 fmt::format("an imbalance of {:g} for {} of {} ranks", request.imbalance, name_of(kind), ranks),
                 "--imbalance",
                 kind == CollectiveKind::kAllToAll ? fmt::format("1 (even) to {}, the ranks", ranks)
                                                   : std::string("1: only all_to_all is uneven"),
                 "as in: ns-dist explain all_to_all 64MiB --imbalance 1.5"});
  }
  NS_TRY(Explanation explanation,
         model->explain(Collective{kind, size, RankGroup{0, {{ranks, stride}}}, false, request.imbalance}));
  if (const std::size_t at = explanation.subject.find(to_text(size));
      !request.shape.empty() && at != std::string::npos) {
    explanation.subject.replace(at, to_text(size).size(), request.shape);  // as it was typed
  }
  explanation.subject += " on " + machine;
  return explanation;
}

std::string subjects() {
  std::string text;
  for (const OperatorForm& form : operator_forms()) {
    text += fmt::format("  {:<16}{:<42}{} {}\n", form.family, form.shape, form.family, form.example);
  }
  for (const std::string_view name : names_of<CollectiveKind>()) {
    const auto kind = enumerator_from_name<CollectiveKind>(name);
    text += fmt::format("  {:<16}{:<42}{} {}\n", name, kind == CollectiveKind::kBarrier ? "" : "BYTES with unit", name,
                        kind == CollectiveKind::kBarrier    ? "--ranks 16"
                        : kind == CollectiveKind::kSendRecv ? "64MiB --ranks 2"
                                                            : "64MiB --ranks 16");
  }
  return text;
}

std::string aliases() {
  std::string text;
  for (const OperatorForm& form : operator_forms()) {
    if (!form.aliases.empty()) text += fmt::format("  {:<16}{}\n", form.family, form.aliases);
  }
  return "Other names of operators\n" + text;
}

// Error: `value` is no name of the enumeration.
template <class Enum>
Result<void> check_name(std::string_view flag, const std::string& value) {
  if (enumerator_from_name<Enum>(value)) return {};
  return fail({ErrorCode::kUsage, fmt::format("\"{}\" is not one of its values", value), std::string(flag),
               fmt::format("one of {}", fmt::join(names_of<Enum>(), ", "))});
}

void add_flags(CLI::App& app, ExplainRequest& request) {
  app.add_option("subject", request.subject, "step, or an operator or a collective from the table below")
      ->type_name("");
  app.add_option("shape", request.shape, "its size, as the table below has it")->type_name("");
  const char* kernels = "Operators";
  app.add_option("--gpu", request.gpu, "ns-dist list gpus, or JSON [h100-sxm-80gb]")->type_name("ID|FILE");
  app.add_option(
         "--dtype", request.dtype,
         "fp64, fp32, tf32, fp16, bf16, fp8, fp4; of products and attention, fp8-block and mxfp8; of products, nvfp4; "
         "or PyTorch's names [bf16]")
      ->type_name("TYPE")
      ->group(kernels);
  app.add_option("--mode", request.mode,
                 "burst: one kernel alone; sustained: back to back, as steps run them [sustained]")
      ->type_name("WHICH")
      ->group(kernels);
  app.add_option("--pass", request.pass, "forward, backward [forward]")->type_name("WHICH")->group(kernels);
  app.add_option("--layout", request.layout, "nn, nt, tn, tt of a gemm's operands [nt]")
      ->type_name("LAYOUT")
      ->group(kernels);
  app.add_option(
         "--library", request.library,
         "whose attention (cudnn, flash-1, flash-2, flash-3, serving, compiled, eager), normalization (cudnn, serving, "
         "compiled, eager), softmax (eager) or cross-entropy (flash-2, liger) [default]")
      ->type_name("NAME")
      ->group(kernels);
  app.add_option("--value-dim", request.value_dim, "of attention's values [as of its keys]")
      ->type_name("N")
      ->group(kernels);
  app.add_option("--kv-heads", request.kv_heads, "heads of keys and values [as many as heads]")
      ->type_name("N")
      ->group(kernels);
  app.add_option("--window", request.window, "tokens that attention looks back [0: all]")
      ->type_name("N")
      ->group(kernels);
  app.add_flag("--no-causal", request.no_causal, "attention to later tokens too")->group(kernels);
  app.add_flag("--rms", request.rms, "RMSNorm instead of LayerNorm")->group(kernels);
  app.add_option("--inputs", request.inputs, "tensors that an elementwise operator reads [those of its name, else 2]")
      ->type_name("N")
      ->group(kernels);
  app.add_option("--outputs", request.outputs, "tensors that it writes [1]")->type_name("N")->group(kernels);
  app.add_flag("--by-element", request.by_element, "its threads handle each element alone: views, broadcasts, casts")
      ->group(kernels);
  app.add_option("--flops", request.flops, "of an unknown operator, as in \"2 TFLOP\"")
      ->type_name("WORK")
      ->group(kernels);
  app.add_option("--read", request.read, "that it reads, as in \"64 MiB\" [0 B]")->type_name("BYTES")->group(kernels);
  app.add_option("--written", request.written, "that it writes [0 B]")->type_name("BYTES")->group(kernels);
  const char* network = "Collectives";
  app.add_option("--cluster", request.cluster, "ns-dist list clusters, or JSON [the GPU's usual one]")
      ->type_name("ID|FILE")
      ->group(network);
  app.add_option("--ranks", request.ranks, "ranks that take part [8; of send_recv 2]")->type_name("N")->group(network);
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
}

}  // namespace

std::string rendered(const Explanation& explanation, bool json, const std::string& facts) {
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
    return dump_json(object, 2);
  }
  const Style style = style_of(stdout);
  std::string text = fmt::format("{}\n", style.bold(explanation.subject));
  text += fmt::format("  {}  (90 % interval {} to {}), {:.0f} % of what physics allows, {} bound\n",
                      style.bold(duration_text(forecast.latency)), duration_text(forecast.low),
                      duration_text(forecast.high), 100 * forecast.utilization, name_of(forecast.bound));
  if (!forecast.tile.empty()) {
    text += fmt::format("  tiles of {} in {} wave{}\n", forecast.tile, forecast.waves, forecast.waves == 1 ? "" : "s");
  }
  if (!facts.empty()) text += fmt::format("  {}\n", facts);
  text += "\n";
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

int explain_command(int argc, const char* const* argv) {
  if (argc > 0 && std::string_view(argv[0]) == "step") return explain_step_command(argc - 1, argv + 1);
  CLI::App app{
      "How did a number come about: one operator on a GPU, one collective on a cluster, or with the flags of simulate "
      "a step.",
      "explain"};
  set_up(app);
  ExplainRequest request;
  add_flags(app, request);
  app.footer("Subjects and their shapes\n" +
             fmt::format("  {:<16}{:<42}{}\n", "step", "the flags of simulate", "step --tp 8 --pp 16") + subjects() +
             aliases());
  // `explain collective all_reduce 64MiB` reads well too.
  if (argc > 0 && std::string_view(argv[0]) == "collective") --argc, ++argv;
  if (const auto done = parse(app, argc, argv)) return *done;

  // Names have any case. `shape` may be the name of an unknown operator.
  for (std::string* name : {&request.subject, &request.pass, &request.mode, &request.layout, &request.library}) {
    *name = lower_case(*name);
  }
  for (const Result<void>& good :
       {check_name<Pass>("--pass", request.pass), check_name<Mode>("--mode", request.mode),
        request.layout.empty() ? Result<void>() : check_name<GemmLayout>("--layout", request.layout)}) {
    if (!good) return report_error(good.error());
  }
  std::vector<std::string> names = {"step"};
  std::optional<Result<Explanation>> explanation;
  std::string facts;
  if (const OperatorForm* form = find_operator_form(request.subject)) {
    if (auto fits = check_flags(app, request.subject, form); !fits) return report_error(fits.error());
    auto explained = explain_operator(*form, request);
    if (!explained) return report_error(explained.error());
    if (!request.json) facts = take_facts(*explained);
    explanation = std::move(explained->explanation);
  }
  for (const OperatorForm& form : operator_forms()) names.emplace_back(form.family);
  for (const std::string_view name : names_of<CollectiveKind>()) names.emplace_back(name);
  if (const auto kind = enumerator_from_name<CollectiveKind>(request.subject)) {
    if (auto fits = check_flags(app, request.subject, nullptr); !fits) return report_error(fits.error());
    explanation = explain_collective(*kind, request);
  }
  if (!explanation) {
    const std::string expected = fmt::format("one of {}", fmt::join(names, ", "));
    for (std::string& name : operator_names()) names.push_back(std::move(name));
    const std::string near = nearest_name(request.subject, names);
    const bool is_table = request.subject.ends_with(".csv") || request.subject.ends_with(".csv.gz");
    if (is_table) {
      return report_error(
          {ErrorCode::kUsage, fmt::format("\"{}\" is a table", request.subject), "SUBJECT", expected,
           fmt::format("write ns-dist kernels --input {0}, or ns-dist collectives --input {0}", request.subject)});
    }
    return report_error(
        {ErrorCode::kUsage,
         request.subject.empty() ? "nothing to explain" : fmt::format("nothing is called \"{}\"", request.subject),
         "SUBJECT", expected, did_you_mean(near, "as in: ns-dist explain gemm 8192x8192x8192")});
  }
  if (!*explanation) return report_error(explanation->error());
  std::fputs(rendered(**explanation, request.json, facts).c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
