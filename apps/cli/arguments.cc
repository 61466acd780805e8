#include "arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "terminal.h"

namespace ns_dist::cli {
namespace {

Error usage(std::string message, std::string_view flag, std::string expected, std::string hint = "") {
  return {ErrorCode::kUsage, std::move(message), std::string(flag), std::move(expected), std::move(hint), {}};
}

// Reads the flags that were given and collects what is wrong with them.
class SpecReader {
 public:
  using Text = std::optional<std::string>;

  void count(std::string_view flag, const Text& text, std::optional<std::int64_t>& value) {
    if (text) take(read_count(*text, flag), value);
  }
  void bandwidth(std::string_view flag, const Text& text, std::optional<BytesPerSecond>& value) {
    if (!text) return;
    auto parsed = parse_quantity<BytesPerSecond>(*text);
    if (!parsed) {
      parsed.error().code = ErrorCode::kUsage;
      parsed.error().where = flag;
    } else if (!(*parsed > BytesPerSecond()) || *parsed > kFastest) {
      parsed = fail(usage(fmt::format("\"{}\" is no bandwidth of a link", *text), flag, "above 0 and at most 1000 TB/s",
                          "write, for example, \"50 GB/s\""));
    }
    take(std::move(parsed), value);
  }
  template <class T>
  void take(Result<T> result, std::optional<T>& value) {
    if (result) {
      value = *std::move(result);
    } else {
      errors_.push_back(std::move(result.error()));
    }
  }
  void refuse(Error error) { errors_.push_back(std::move(error)); }

  Result<void> verdict() {
    if (errors_.empty()) return {};
    return fail(join(std::move(errors_)));
  }

 private:
  static constexpr BytesPerSecond kFastest = 1000 * units::TB / units::s;
  std::vector<Error> errors_;
};

// The position of `text` among `names`, or an error that lists them.
Result<std::size_t> read_choice(std::string_view text, std::string_view flag, const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return i;
  }
  const std::string near = nearest_name(text, names);
  return fail(usage(fmt::format("\"{}\" is none of its values", text), flag,
                    fmt::format("one of {}", fmt::join(names, ", ")),
                    near.empty() ? "" : fmt::format("did you mean \"{}\"?", near)));
}

void read_overlap(SpecReader& reader, const std::string& text, ScenarioSpec& spec) {
  spec.overlap_grad_reduce = spec.overlap_param_gather = spec.overlap_p2p = text == "all";
  if (text == "none" || text == "all") return;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const auto which = read_choice(rest.substr(0, comma), "--overlap", {"grad-reduce", "param-gather", "p2p"});
    if (!which) {
      Error error = which.error();
      error.expected = "none, all, or some of grad-reduce,param-gather,p2p";
      return reader.refuse(std::move(error));
    }
    (*which == 0 ? spec.overlap_grad_reduce : *which == 1 ? spec.overlap_param_gather : spec.overlap_p2p) = true;
    if (comma == std::string_view::npos) return;
    rest = rest.substr(comma + 1);
  }
}

Result<Scenario> read_base(const std::string& path) {
  constexpr std::uintmax_t kLargest = std::uintmax_t{64} << 20;
  std::error_code status;
  const std::uintmax_t size =
      std::filesystem::is_regular_file(path, status) ? std::filesystem::file_size(path, status) : 0;
  std::ifstream file(path, std::ios::binary);
  if (status || !file || size == 0 || size > kLargest) {
    return fail({ErrorCode::kNotFound,
                 fmt::format("\"{}\" cannot be read", path),
                 "--from",
                 "a report of ns-dist simulate --json",
                 "",
                 {}});
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return read_scenario(text, path);
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

Result<std::int64_t> read_count(std::string_view text, std::string_view flag, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = status != std::errc::invalid_argument && end == text.data() + text.size();
  const bool in_range = whole && status == std::errc() && value >= least && value <= most;
  if (in_range) return value;
  return fail(usage(whole ? fmt::format("{} is out of range", text) : fmt::format("\"{}\" is not a whole number", text),
                    flag, fmt::format("a whole number from {} to {}", least, with_commas(most)),
                    whole ? "" : fmt::format("write digits only, as in {} 8", flag)));
}

Result<unsigned> read_threads(const std::string& text) {
  if (text.empty()) return std::max(1U, std::thread::hardware_concurrency());
  NS_TRY(const std::int64_t threads, read_count(text, "--threads", 1, 1024));
  return static_cast<unsigned>(threads);
}

Result<Mode> read_mode(std::string_view text) {
  if (const auto mode = mode_from_name(text)) return *mode;
  return fail({ErrorCode::kUsage, fmt::format("\"{}\" is not a mode", text), "--mode", "burst or sustained", "", {}});
}

Result<bool> read_switch(std::string_view text, std::string_view flag) {
  NS_TRY(const std::size_t which, read_choice(text, flag, {"off", "on"}));
  return which == 1;
}

Result<DType> read_dtype(std::string_view text, std::string_view flag) {
  static const std::vector<std::string> kNames = {"fp32", "tf32", "fp16", "bf16", "fp8"};
  NS_TRY(const std::size_t which, read_choice(text, flag, kNames));
  return *dtype_from_name(kNames[which]);
}

void add_work_flags(CLI::App& app, WorkFlags& flags) {
  const auto add = [&app](const char* group, const char* name, std::optional<std::string>& value, const char* type,
                          const char* text) {
    return app.add_option(name, value, text)->type_name(type)->group(group);
  };
  const char* work = "What is trained";
  add(work, "--model", flags.model, "ID|FILE",
      "ns-dist list models, our JSON or a Hugging Face config.json [gpt3-175b]");
  add(work, "--global-batch", flags.global_batch, "N", "sequences a step [1536]");
  add(work, "--micro-batch", flags.micro_batch, "N", "sequences a pass [1]");
  add(work, "--seq", flags.sequence, "N", "tokens a sequence [the model's own]");
  add(work, "--dtype", flags.dtype, "TYPE", "fp32, tf32, fp16, bf16, fp8 [bf16]");
  const char* machine = "On what";
  add(machine, "--gpu", flags.gpu, "ID|FILE", "ns-dist list gpus, or JSON [h100-sxm-80gb]");
  add(machine, "--cluster", flags.cluster, "ID|FILE", "ns-dist list clusters, or JSON [the GPU's usual machine]");
  add(machine, "--nodes", flags.nodes, "N", "nodes [as many as the plan needs]");
  add(machine, "--gpus-per-node", flags.gpus_per_node, "N", "GPUs of a node [the machine's own]");
  add(machine, "--intra", flags.intra, "ID", "fabric inside a node, ns-dist list fabrics [the machine's own]");
  add(machine, "--inter", flags.inter, "ID", "fabric between nodes [the machine's own]");
  add(machine, "--intra-bandwidth", flags.intra_bandwidth, "RATE", "of a GPU, one direction, as in \"450 GB/s\"");
  add(machine, "--inter-bandwidth", flags.inter_bandwidth, "RATE", "of a GPU, one direction, as in \"50 GB/s\"");
  const char* plan = "How it is spread: ranks = tp x cp x pp x dp";
  add(plan, "--tp", flags.tp, "N", "tensor-parallel ranks [1]");
  add(plan, "--pp", flags.pp, "N", "pipeline stages [1]");
  add(plan, "--dp", flags.dp, "N", "data-parallel replicas [1; with --nodes, as many as fill them]");
  add(plan, "--cp", flags.cp, "N", "context-parallel ranks [1]");
  add(plan, "--ep", flags.ep, "N", "expert-parallel ranks, a part of dp [1]");
  add(plan, "--vpp", flags.vpp, "N", "model chunks of a stage [1]");
  add(plan, "--schedule", flags.schedule, "NAME", "ns-dist list schedules [1f1b; interleaved with --vpp]");
  add(plan, "--zero", flags.zero, "0|1|2|3", "what replicas share: 1 optimizer, 2 gradients too, 3 weights too [1]");
  add(plan, "--recompute", flags.recompute, "WHAT", "none, selective, full [none]");
  add(plan, "--sequence-parallel", flags.sequence_parallel, "on|off", "[on with --tp]")->expected(0, 1);
  add(plan, "--flash-attention", flags.flash_attention, "on|off", "[on]");
  add(plan, "--grad-accumulation", flags.grad_accumulation, "WHAT",
      "fused into the products, or a kernel of its own in fp32 or low precision [fused]");
  add(plan, "--blocking-tp", flags.blocking_tp, "on|off",
      "backward, tensor-parallel collectives wait for products and products for them [off]");
  add(plan, "--overlap", flags.overlap, "LIST", "none, all, or of grad-reduce,param-gather,p2p [p2p if interleaved]");
  add(plan, "--order", flags.order, "DIMS", "neighbouring ranks first: any order, ep beside dp [tp-cp-ep-dp-pp]");
  const char* network = "How collectives are forecast";
  add(network, "--network-model", flags.network_model, "NAME", "nccl, or astra: ASTRA-Sim's formulas [nccl]");
  add(network, "--algorithm", flags.algorithm, "NAME", "ns-dist list algorithms [the fastest]");
  add(network, "--protocol", flags.protocol, "NAME", "ns-dist list protocols [the fastest]");
  add(network, "--calibration", flags.calibration, "FILE",
      "corrections measured on this cluster, as ns-dist calibrate writes them; none [none]");
  add(network, "--contention", flags.contention, "on|off", "what overlaps on a link shares it [on]");
  add(network, "--compute-slowdown", flags.compute_slowdown, "on|off",
      "kernels beside collectives have fewer SMs and less memory bandwidth [on]");
  add("How kernels are forecast", "--kernel-calibration", flags.kernel_calibration, "FILE",
      "corrections measured on this GPU, as ns-dist calibrate writes them; none [none]");
  add("Again", "--from", flags.from, "REPORT", "the work of a report written with --json; other flags change it");
}

Result<ScenarioSpec> read_spec(const WorkFlags& flags) {
  ScenarioSpec spec;
  SpecReader reader;
  spec.model = flags.model, spec.gpu = flags.gpu, spec.cluster = flags.cluster;
  spec.intra = flags.intra, spec.inter = flags.inter, spec.schedule = flags.schedule;
  spec.order = flags.order, spec.network_model = flags.network_model, spec.algorithm = flags.algorithm;
  spec.protocol = flags.protocol, spec.calibration = flags.calibration;
  spec.kernel_calibration = flags.kernel_calibration;
  reader.count("--nodes", flags.nodes, spec.nodes);
  reader.count("--gpus-per-node", flags.gpus_per_node, spec.gpus_per_node);
  reader.count("--tp", flags.tp, spec.tp);
  reader.count("--pp", flags.pp, spec.pp);
  reader.count("--dp", flags.dp, spec.dp);
  reader.count("--cp", flags.cp, spec.cp);
  reader.count("--ep", flags.ep, spec.ep);
  reader.count("--vpp", flags.vpp, spec.vpp);
  reader.count("--micro-batch", flags.micro_batch, spec.micro_batch);
  reader.count("--global-batch", flags.global_batch, spec.global_batch);
  reader.count("--seq", flags.sequence, spec.sequence);
  reader.bandwidth("--intra-bandwidth", flags.intra_bandwidth, spec.intra_bandwidth);
  reader.bandwidth("--inter-bandwidth", flags.inter_bandwidth, spec.inter_bandwidth);
  if (flags.dtype) reader.take(read_dtype(*flags.dtype, "--dtype"), spec.dtype);
  if (flags.zero) {
    reader.take(read_choice(*flags.zero, "--zero", {"0", "1", "2", "3"}).map([](std::size_t i) {
      return static_cast<ZeroStage>(i);
    }),
                spec.zero);
  }
  if (flags.recompute) {
    reader.take(read_choice(*flags.recompute, "--recompute", {"none", "selective", "full"}).map([](std::size_t i) {
      return static_cast<Recompute>(i);
    }),
                spec.recompute);
  }
  if (flags.grad_accumulation) {
    reader.take(
        read_choice(*flags.grad_accumulation, "--grad-accumulation", {"fused", "fp32", "low"}).map([](std::size_t i) {
          return static_cast<GradAccumulation>(i);
        }),
        spec.grad_accumulation);
  }
  if (flags.sequence_parallel) {
    const std::string& text = *flags.sequence_parallel;
    reader.take(read_switch(text.empty() ? "on" : text, "--sequence-parallel"), spec.sequence_parallel);
  }
  if (flags.flash_attention) {
    reader.take(read_switch(*flags.flash_attention, "--flash-attention"), spec.flash_attention);
  }
  if (flags.blocking_tp) reader.take(read_switch(*flags.blocking_tp, "--blocking-tp"), spec.blocking_tp);
  if (flags.contention) reader.take(read_switch(*flags.contention, "--contention"), spec.contention);
  if (flags.compute_slowdown) {
    reader.take(read_switch(*flags.compute_slowdown, "--compute-slowdown"), spec.compute_slowdown);
  }
  if (flags.overlap) read_overlap(reader, *flags.overlap, spec);
  if (auto verdict = reader.verdict(); !verdict) return fail(verdict.error());
  return spec;
}

Result<Scenario> read_scenario_of(const WorkFlags& flags) {
  NS_TRY(const ScenarioSpec spec, read_spec(flags));
  const Catalog catalog = Catalog::standard();
  if (!flags.from) return resolve(spec, catalog);
  NS_TRY(const Scenario base, read_base(*flags.from));
  return resolve(spec, catalog, &base);
}

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  // CLI11 wants the arguments in a vector in reverse order.
  std::vector<std::string> arguments(argv, argv + argc);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return kAnswered;
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = app.remaining();
    const std::string first = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    const std::string near = nearest_name(first, flags_of(app));
    return report_error(usage(fmt::format("unknown {} \"{}\"", first.starts_with('-') ? "flag" : "argument", first),
                              app.get_name(), fmt::format("the flags of `ns-dist {} --help`", app.get_name()),
                              near.empty() ? "" : fmt::format("did you mean {}?", near)));
  } catch (const CLI::ParseError& error) {
    std::string what = error.what();
    if (const std::size_t twice = what.find("At Most 1 required"); twice != std::string::npos) {
      what = what.substr(0, twice) + "given more than once";
    }
    return report_error(usage(what, app.get_name(), fmt::format("the flags of `ns-dist {} --help`", app.get_name())));
  }
}

void set_up(CLI::App& app) {
  app.get_formatter()->column_width(30);
  app.get_formatter()->label("OPTIONS", "FLAGS");
  app.get_option("--help")->description("print this help");
}

}  // namespace ns_dist::cli
