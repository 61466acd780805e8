#include "arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "commands.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/printable.h"
#include "ns_dist/kernel_calibration.h"
#include "report_page.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

Error usage(std::string message, std::string_view flag, std::string expected, std::string hint = "") {
  return {ErrorCode::kUsage, std::move(message), std::string(flag), std::move(expected), std::move(hint)};
}

constexpr const char* kAlone = "the flag alone, without a value";

struct Section {
  std::string_view group;  // what field names begin with
  const char* heading;
};
constexpr Section kSections[] = {{"model", "What is trained"},
                                 {"framework", "What is trained"},
                                 {"training", "What is trained"},
                                 {"machine", "On what"},
                                 {"plan", "How it is spread: ranks = tp x cp x pp x dp"},
                                 {"host", "The host: what launches kernels, and its memory"},
                                 {"network", "How collectives are forecast"},
                                 {"kernels", "How kernels are forecast"},
                                 {"stragglers", "Ranks that are slower than others"},
                                 {"facility", "What electricity it takes"},
                                 {"settings", "How the step is simulated"}};

// What says how one collective is forecast. Other fields of "network" are about those of a step.
constexpr std::string_view kOfCollectives[] = {"network/model", "network/algorithm", "network/protocol",
                                               "network/calibration"};

void add_field_flag(CLI::App& app, FieldTexts& texts, const FieldDescription& description, const char* heading) {
  const std::string text =
      fmt::format("{} [{}]", with_flags(description.field.help), with_flags(description.default_text));
  std::optional<std::string>& value = texts[description.field.name];
  // What CLI11 has for a switch without a value is an empty text.
  const auto set = [&value](const std::string& given) { value = given.empty() ? "on" : given; };
  app.add_option_function<std::string>(description.flag, set, text)
      ->type_name(description.values)
      ->expected(description.is_switch ? 0 : 1, 1)
      ->group(heading);
}

bool exists(const std::string& path) {
  std::error_code none;  // a name that is too long is no file
  return std::filesystem::exists(path, none);
}

// Where the file of --from ends: before "#2", unless a file is called so.
std::size_t end_of_file(const std::string& from) {
  const std::size_t mark = from.rfind('#');
  return mark == std::string::npos || exists(from) ? from.size() : mark;
}

// What `read(json, path, plan)` reads of the report that --from names.
template <class Read>
auto read_from(const WorkFlags& flags, const Read& read) -> decltype(read(*flags.from, *flags.from, std::size_t{1})) {
  std::string path = *flags.from;
  std::size_t plan = 1;  // of a search's answer
  if (const std::size_t mark = end_of_file(path); mark < path.size()) {
    NS_TRY(const std::int64_t number, read_count(std::string_view(path).substr(mark + 1), "--from", 1, 1'000));
    plan = static_cast<std::size_t>(number);
    path.resize(mark);
  }
  if (!flags.report) {
    NS_TRY(flags.report,
           read_text(path, 64 * kMebibyte, "--from", "a report of ns-dist simulate --json, or a page of --report"));
  }
  return read(report_in_page(*flags.report), path, plan);
}

Result<Scenario> read_base(const WorkFlags& flags) { return read_from(flags, read_scenario); }

// What to write for a flag that simulate or search has, and this command not. "": neither has it.
std::string elsewhere(std::string_view command, std::string_view flag) {
  const auto among = [flag](const std::vector<std::string>& flags) {
    return std::find(flags.begin(), flags.end(), flag) != flags.end();
  };
  if (command == "search" && among(simulate_flags())) {
    return fmt::format("write {} behind the command of an answer: `ns-dist simulate` has it", flag);
  }
  if (among(simulate_flags())) return fmt::format("`ns-dist simulate` has {}", flag);
  if (!among(search_flags())) return "";
  return fmt::format("`ns-dist search` has {}", flag);
}

// Flags of launchers of training (Megatron-LM, torchrun, torchtitan, DeepSpeed, Trainer), and of habit, with what to
// write here.
constexpr std::pair<std::string_view, std::string_view> kFlagsOfOthers[] = {
    {"--tensor-model-parallel-size", "--tp"},
    {"--pipeline-model-parallel-size", "--pp"},
    {"--context-parallel-size", "--cp"},
    {"--expert-model-parallel-size", "--ep"},
    {"--expert-tensor-parallel-size", "--etp"},
    {"--data-parallel-size", "--dp"},
    {"--num-layers-per-virtual-pipeline-stage", "--vpp"},
    {"--num-virtual-stages-per-pipeline-rank", "--vpp"},
    {"--batch", "--global-batch"},
    {"--batch-size", "--global-batch"},
    {"--gbs", "--global-batch"},
    {"--mbs", "--micro-batch"},
    {"--sequence", "--seq"},
    {"--sequence-length", "--seq"},
    {"--num-layers", "--layers"},
    {"--nnodes", "--nodes"},
    {"--nproc-per-node", "--gpus-per-node"},
    {"--nproc_per_node", "--gpus-per-node"},
    {"--recompute-granularity", "--recompute"},
    {"--activation-checkpointing", "--recompute"},
    {"--use-distributed-optimizer", "--zero 1"},
    {"--fsdp", "--framework fsdp"},
    {"--gradient-checkpointing", "--recompute full"},
    {"--gradient_checkpointing", "--recompute full"},
    {"--gradient-accumulation-steps", "--micro-batch"},
    {"--gradient_accumulation_steps", "--micro-batch"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--per_device_train_batch_size", "--micro-batch"},
    {"--seq-len", "--seq"},
    {"--max-seq-length", "--seq"},
    {"--max-length", "--seq"},
    {"--packing", "--document-tokens"},
    {"--torch-compile", "--framework transformers-compile"},
    {"--torch_compile", "--framework transformers-compile"},
    {"--lora-r", "--lora-rank"},
    {"--lora", "--lora-rank 16"},
    {"--qlora", "--lora-rank 16 --frozen-weights nf4"},
    {"--load-in-4bit", "--lora-rank 16 --frozen-weights nf4-single"},
    {"--load_in_4bit", "--lora-rank 16 --frozen-weights nf4-single"},
    {"--optim", "--optimizer-state"},
    {"--precision", "--dtype"},
    {"--bf16", "--dtype bf16"},
    {"--fp16", "--dtype fp16"},
    {"--fp8", "--dtype fp8"},
};

// What `flag` of another program is among `flags`; "": nothing, or not known.
std::string as_ours(std::string_view flag, const std::vector<std::string>& flags) {
  for (const auto& [theirs, ours] : kFlagsOfOthers) {
    const std::string_view name = ours.substr(0, ours.find(' '));
    if (theirs == flag && std::find(flags.begin(), flags.end(), name) != flags.end()) return std::string(ours);
  }
  return "";
}

// A flag whose value is empty, or missing where the next flag stands: CLI11 takes that flag for the value, and the next
// word after "--csv=". A value that begins like a flag is written as --csv=--json.
std::optional<Error> without_value(const CLI::App& app, const std::vector<std::string>& words) {
  const auto flag_of = [&app](const std::string& word) {
    return word.starts_with("--") ? app.get_option_no_throw(word.substr(0, word.find('='))) : nullptr;
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    const CLI::Option* option = flag_of(words[i]);
    if (option == nullptr) continue;
    const auto refuse = [option](const char* what) {
      return usage(what, option->get_name(),
                   option->get_items_expected_max() == 0 ? kAlone : std::string(option->get_type_name()),
                   option->get_description());
    };
    if (words[i].ends_with('=')) return refuse("its value is empty");
    const bool follows = option->get_items_expected_max() > 0 && words[i].find('=') == std::string::npos;
    if (!follows || i + 1 == words.size()) continue;
    if (words[i + 1].empty()) return refuse("its value is empty");
    if (option->get_items_expected_min() == 0) continue;
    if (flag_of(words[i + 1]) != nullptr) return refuse("its value is missing");
    ++i;
  }
  return std::nullopt;
}

// What CLI11 says of a word that it cannot use, as in "--tp: 1 required N missing", "Could not convert: --json = x" and
// "--tp: At Most 1 required but received 2".
Error refused(std::string what, const CLI::App& app) {
  constexpr std::string_view kMissing = ": 1 required ", kUnreadable = "Could not convert: ";
  if (const std::size_t at = what.find(kMissing); at != std::string::npos && what.ends_with(" missing")) {
    const std::size_t value = at + kMissing.size();
    return usage("its value is missing", what.substr(0, at), what.substr(value, what.rfind(' ') - value));
  }
  if (const std::size_t at = what.find(" = "); what.starts_with(kUnreadable) && at != std::string::npos) {
    const std::string flag = what.substr(kUnreadable.size(), at - kUnreadable.size());
    const CLI::Option* option = app.get_option_no_throw(flag);
    const bool alone = option != nullptr && option->get_items_expected_max() == 0;
    return usage(fmt::format("\"{}\" cannot be read", what.substr(at + 3)), flag, alone ? kAlone : "a number");
  }
  if (const std::size_t twice = what.find("At Most 1 required"); twice != std::string::npos) {
    return usage("it is given more than once", what.substr(0, what.find(':')), "one value: keep one of them");
  }
  return usage(std::move(what), app.get_name(), fmt::format("the flags of `ns-dist {} --help`", app.get_name()));
}

}  // namespace

Result<ScenarioSpec> readable(ScenarioSpec spec) {
  if (auto values = check_values(spec); !values) {
    values.error().code = ErrorCode::kUsage;
    return fail(std::move(values.error()));
  }
  return spec;
}

Result<ScenarioSpec> read_spec(const FieldTexts& texts) {
  ScenarioSpec spec;
  for (const FieldDescription& description : scenario_fields()) {
    if (const auto text = texts.find(description.field.name); text != texts.end()) {
      spec.set(description.field.name, text->second);
    }
  }
  return readable(std::move(spec));
}

void warn(const std::string& text) {
  std::fputs(fmt::format("ns-dist: warning: {}\n", with_flags(text)).c_str(), stderr);
}

namespace {

// Bandwidths that the report's user had set belong to its machine: another one has its own.
void warn_of_left_links(const Scenario& base, const Scenario& changed, const Catalog& catalog) {
  const auto usual = catalog.cluster(base.cluster.id);
  const std::vector<FabricLevel>& own = base.cluster.levels;
  if (base.cluster.id == changed.cluster.id || !usual || usual->levels.size() != own.size()) return;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Fabric &set = own[i].fabric, &known = usual->levels[i].fabric;
    const char* field = i < base.cluster.node_levels() ? "machine/intra_bandwidth" : "machine/inter_bandwidth";
    if (set.id != known.id || set.bandwidth == known.bandwidth || changed.named.names.contains(field)) continue;
    warn(fmt::format("the report's {} of {} is left behind with its machine: {} sets that of {}", set.name,
                     to_text(set.bandwidth), field, changed.cluster.name));
  }
}

}  // namespace

Result<std::int64_t> read_count(std::string_view text, std::string_view flag, std::int64_t least, std::int64_t most) {
  const auto value = read_whole_number(text, least, most);
  if (value) return *value;
  return fail(usage(value.error().message, flag, value.error().expected,
                    is_whole_number(text) ? "" : fmt::format("write digits only, as in {} 8", flag)));
}

Result<unsigned> read_threads(const std::string& text) {
  if (text.empty()) return std::max(1U, std::thread::hardware_concurrency());
  NS_TRY(const std::int64_t threads, read_count(text, "--threads", 1, 1024));
  return static_cast<unsigned>(threads);
}

Result<Mode> read_mode(std::string_view text) { return of_flag("--mode", read_enumerator<Mode>(text)); }

Result<ComputeModelOptions> read_kernel_options(std::string_view mode, const std::string& calibration) {
  ComputeModelOptions options;
  NS_TRY(options.mode, read_mode(mode));
  if (calibration.empty()) return options;
  NS_TRY(KernelCalibration measured, load_kernel_calibration(calibration));
  if (measured.mode != options.mode) {
    return fail({ErrorCode::kUsage,
                 fmt::format("measured on {} kernels, and {} ones are asked for", name_of(measured.mode), mode),
                 "--kernel-calibration", fmt::format("a correction of {} kernels", mode),
                 fmt::format("add --mode {}", name_of(measured.mode))});
  }
  options.calibration = std::make_shared<const KernelCalibration>(std::move(measured));
  return options;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

void add_work_flags(CLI::App& app, WorkFlags& flags, std::string_view but) {
  for (const Section& section : kSections) {
    for (const FieldDescription& description : scenario_fields()) {
      const std::string_view name = description.field.name;
      if (name == but) {
        flags.texts[name];  // never given
        continue;
      }
      if (name.substr(0, name.find('/')) == section.group) {
        add_field_flag(app, flags.texts, description, section.heading);
      }
    }
  }
  app.add_option("--from", flags.from,
                 "the work of a report or of its page, or with FILE#2 of a search's second plan; flags change it")
      ->type_name("REPORT")
      ->group("Again");
}

void add_collective_model_flags(CLI::App& app, FieldTexts& texts, const char* heading) {
  for (const FieldDescription& description : scenario_fields()) {
    if (std::ranges::find(kOfCollectives, description.field.name) == std::end(kOfCollectives)) continue;
    add_field_flag(app, texts, description, heading);
  }
}

std::vector<std::string> inputs_of(const WorkFlags& flags, const TrainingFlags& training) {
  std::vector<std::string> all = {training.prices.value_or("")};
  for (const auto& [field, text] : flags.texts) {
    if (text) all.push_back(*text);
  }
  if (flags.from) all.push_back(flags.from->substr(0, end_of_file(*flags.from)));
  return all;
}

Result<std::optional<Scenario>> read_base_of(const WorkFlags& flags) {
  if (!flags.from) return std::optional<Scenario>();
  NS_TRY(Scenario base, read_base(flags));
  return std::optional<Scenario>(std::move(base));
}

Result<std::map<std::string, std::string>> read_asked_of(const WorkFlags& flags) {
  if (!flags.from) return std::map<std::string, std::string>();
  return read_from(flags, read_asked);
}

Result<Scenario> read_scenario_of(const WorkFlags& flags) {
  NS_TRY(const ScenarioSpec spec, read_spec(flags.texts));
  const Catalog catalog = Catalog::standard();
  if (!flags.from) return resolve(spec, catalog);
  NS_TRY(const Scenario base, read_base(flags));
  auto changed = resolve(spec, catalog, &base);
  if (changed) warn_of_left_links(base, *changed, catalog);
  return changed;
}

void warn_of(const Scenario& scenario) {
  for (const std::string& text : warnings_of(scenario.model)) warn(fmt::format("{}: {}", scenario.model.name, text));
  warn_of(scenario.cluster);
}

void warn_of(const Cluster& cluster) {
  if (const std::string text = warning_of(cluster); !text.empty()) warn(text);
}

void warn_of_others(const NetworkSettings& network, const std::set<std::string>& clusters) {
  if (!network.calibration) return;
  const std::vector<std::string> ids(clusters.begin(), clusters.end());
  if (const std::string text = measured_elsewhere(*network.calibration, ids); !text.empty()) warn(text);
}

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (auto error = without_value(app, arguments)) return report_error(*error);
  // CLI11 wants the arguments in a vector in reverse order.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help("ns-dist").c_str(), stdout);
    return kAnswered;
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = app.remaining();
    const std::string first = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    std::string hint = elsewhere(app.get_name(), first);
    if (hint.empty()) {
      const std::vector<std::string> flags = flags_of(app);
      std::string near = as_ours(first, flags);
      if (near.empty()) near = nearest_name(first, flags);
      if (!near.empty()) hint = fmt::format("did you mean {}?", near);
    }
    return report_error(usage(fmt::format("unknown {} \"{}\"", first.starts_with('-') ? "flag" : "argument", first),
                              app.get_name(), fmt::format("the flags of `ns-dist {} --help`", app.get_name()),
                              std::move(hint)));
  } catch (const CLI::ParseError& error) {
    return report_error(refused(error.what(), app));
  }
}

std::string command_line(std::string_view program, int argc, const char* const* argv, const CLI::App& app,
                         std::initializer_list<std::string_view> without, std::string_view group) {
  std::string command(program);
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string name = argument.substr(0, argument.find('='));
    const CLI::Option* option = app.get_option_no_throw(name);
    const bool listed = std::find(without.begin(), without.end(), name) != without.end();
    if (option != nullptr && (listed || option->get_group() == group)) {
      if (option->get_items_expected_max() > 0 && name == argument) ++i;
      continue;
    }
    command += ' ' + shell_word(argument);
  }
  return command;
}

void set_up(CLI::App& app) {
  app.get_formatter()->column_width(30);
  app.get_formatter()->label("OPTIONS", "FLAGS");
  app.get_option("--help")->description("print this help");
}

}  // namespace ns_dist::cli
