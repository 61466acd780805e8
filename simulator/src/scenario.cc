#include "ns_dist/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "machine.h"
#include "ns_dist/files.h"
#include "ns_dist/hash.h"
#include "ns_dist/pipeline_schedule.h"
#include "plan_defaults.h"
#include "scenario_fields.h"
#include "stragglers.h"

namespace ns_dist {
namespace {

constexpr std::size_t kLargestCalibration = 16 * kMebibyte;

// Replaces the corrections of collectives and of kernels by those that `spec` names.
Result<void> use_calibrations(Scenario& scenario, const References& spec) {
  if (spec.calibration) {
    scenario.network.calibration.reset();
    if (*spec.calibration != "none") {
      InputFile file;
      NS_TRY(const NetworkCalibration exact, load_network_calibration(*spec.calibration, &file));
      // As a report will hold it: numbers are written with four decimals.
      NS_TRY(scenario.network.calibration, read_network_calibration(to_json(exact), *spec.calibration));
      scenario.files.push_back(std::move(file));
    }
  }
  if (spec.kernel_calibration) {
    scenario.kernel_calibration.reset();
    if (*spec.kernel_calibration != "none") {
      InputFile file;
      NS_TRY(scenario.kernel_calibration, load_kernel_calibration(*spec.kernel_calibration, &file));
      scenario.files.push_back(std::move(file));
    }
  }
  return {};
}

// The defaults of the framework, for all that the spec does not set.
Result<void> use_framework(const Framework& framework, Scenario& scenario, FieldNames& given) {
  scenario.framework = framework.id;
  scenario.compared_with = framework.compared_with;
  scenario.fixed_shapes = std::any_of(framework.set.begin(), framework.set.end(),
                                      [](const auto& each) { return each.field == "host/cuda_graphs"; });
  const auto wrong = [](Error error, const std::string& where) {
    error.message = fmt::format("{}: {}", error.where, error.message);
    error.where = where;
    return fail(std::move(error));
  };
  for (const auto& each : framework.set) {
    if (!given.insert(each.field).second) continue;
    if (auto done = assign(scenario, each); !done) return wrong(std::move(done).error(), each.where);
  }
  // Of excluded words the field alone is checked: "mlp" of "selective:mlp" is no value.
  Scenario trial = scenario;
  const auto check_limit = [&trial](const FieldLimit& limit) -> Result<void> {
    if (is_fact(limit.field)) return {};
    for (const std::string& value : limit.values) NS_TRY_VOID(assign(trial, {limit.field, value}));
    return find_field(limit.field) != nullptr ? Result<void>() : assign(trial, {limit.field, ""});
  };
  for (const auto& limit : framework.only) {
    auto done = check_limit(limit);
    for (const FieldLimit& condition : limit.when) {
      if (done) done = check_limit(condition);
    }
    if (!done) return wrong(std::move(done).error(), limit.where);
  }
  scenario.framework_only.assign(framework.only.begin(), framework.only.end());
  return {};
}

// What `framework` sets and nobody has changed since.
std::vector<Assignment> still_set(const Framework& framework, const Scenario& scenario) {
  std::vector<Assignment> set;
  for (const Assignment& assignment : framework.set) {
    Scenario same = scenario;
    if (assign(same, assignment) && same == scenario) set.push_back(assignment);
  }
  return set;
}

// It goes back to its default: the next framework decides.
void leave_framework(const Framework& old, Scenario& scenario, const FieldNames& given) {
  static const Scenario kDefaults;
  for (const Assignment& assignment : still_set(old, scenario)) {
    if (given.contains(assignment.field)) continue;
    (void)assign(scenario, {assignment.field, value_text(kDefaults, assignment.field)});
  }
}

// The framework that `spec` names, or that of `base`; adds the fields that it sets to `given`.
Result<void> find_framework(const References& spec, const Catalog& catalog, const Scenario* base, Scenario& scenario,
                            FieldNames& given) {
  if (base != nullptr && !spec.framework) {
    const auto same = catalog.framework(base->framework);
    if (!same) return {};
    for (const Assignment& assignment : still_set(*same, scenario)) given.insert(assignment.field);
    return {};
  }
  const std::string_view name = spec.framework ? std::string_view(*spec.framework) : kDefaultFramework;
  NS_TRY(const Framework framework, named_by("framework", catalog.framework(name)));
  if (base != nullptr) {  // a framework that is not in this catalog leaves what it set
    if (const auto old = catalog.framework(base->framework)) leave_framework(*old, scenario, given);
  }
  return use_framework(framework, scenario, given);
}

// The model that `spec` names, or that of `base`, and its sequences; its first layers alone if the scenario says so.
Result<void> find_model(const References& spec, const Catalog& catalog, const Scenario* base, Scenario& scenario,
                        const FieldNames& given) {
  // A sequence that a report's user named stays with another model.
  const bool names_sequence =
      given.contains("training/sequence") || (base != nullptr && base->named.names.contains("training/sequence"));
  if (base == nullptr || spec.model) {
    NS_TRY(scenario.model,
           named_by("model", catalog.model(spec.model ? std::string_view(*spec.model) : kDefaultModel)));
    if (!names_sequence) scenario.training.sequence = scenario.model.sequence;
  } else if (base->training.layers > 0 && base->training.layers != scenario.training.layers) {
    auto whole = catalog.model(base->model.id);
    if (!whole) {  // a report has the shortened model alone
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("the report has the first {} layers of its model alone", base->training.layers),
                   "training/layers", "the same number", "give the model, too"});
    }
    scenario.model = *std::move(whole);
  }
  if (scenario.training.layers > 0) {
    NS_TRY(scenario.model, named_by("training/layers", first_layers(scenario.model, scenario.training.layers)));
  }
  if (names_sequence) scenario.model.longest_sequence = false;
  return {};
}

// Whether `spec` names another entry in place of this file's, by the folder in which a catalog keeps it. What a user's
// file elsewhere is for is not known.
bool replaces(const References& spec, std::string_view file) {
  const std::string folder = std::filesystem::path(file).parent_path().filename().string();
  if (folder == "models") return spec.model.has_value();
  return (spec.gpu || spec.cluster) && (folder == "gpus" || folder == "clusters" || folder == "fabrics");
}

std::vector<InputFile> files_of(const References& spec, const Catalog& catalog, const Scenario* base) {
  std::map<std::string, std::string> by_path;
  if (base != nullptr) {
    for (const InputFile& file : base->files) {
      if (!replaces(spec, file.path)) by_path[file.path] = file.hash;
    }
  }
  for (const InputFile& file : catalog.inputs()) by_path[file.path] = file.hash;
  std::vector<InputFile> files;
  files.reserve(by_path.size());
  for (const auto& [path, hash] : by_path) files.push_back({path, hash});
  return files;
}

}  // namespace

Result<KernelCalibration> load_kernel_calibration(const std::string& path, InputFile* file) {
  NS_TRY(const std::string text, read_text(path, kLargestCalibration, "kernels/calibration",
                                           "a kernel calibration, as ns-dist calibrate writes it"));
  if (file != nullptr) *file = {path, hash_text(text)};
  return read_kernel_calibration(text, path);
}

Result<NetworkCalibration> load_network_calibration(const std::string& path, InputFile* file) {
  NS_TRY(const std::string text, read_text(path, kLargestCalibration, "network/calibration",
                                           "a network calibration, as ns-dist calibrate writes it"));
  if (file != nullptr) *file = {path, hash_text(text)};
  return read_network_calibration(text, path);
}

bool sets_what_follows(const Scenario& scenario) {
  return !scenario.framework.empty() && scenario.framework != kDefaultFramework;
}

Result<Scenario> resolve(const ScenarioSpec& said, const Catalog& catalog, const Scenario* base) {
  Scenario scenario = base != nullptr ? *base : Scenario();
  References spec;
  NS_TRY_VOID(assign_all(said, scenario, spec));
  NS_TRY(const ScenarioSpec set, spelled_out(said));
  FieldNames given;
  for (const Assignment& assignment : set.assignments) given.insert(assignment.field);
  // What the base named holds, but for the machine that another one replaces, and a size that is given otherwise.
  const bool replaces = given.contains("machine/gpu") || given.contains("machine/cluster");
  const bool resizes = given.contains("machine/gpus") || given.contains("machine/nodes");
  std::erase_if(scenario.named.names, [=](const std::string& name) {
    const bool is_size = name == "machine/gpus" || name == "machine/nodes";
    return (replaces && name.starts_with("machine/")) || (resizes && is_size);
  });
  scenario.named.names.insert(given.begin(), given.end());
  for (const Assignment& assignment : said.assignments) scenario.named.names.insert(assignment.field);
  for (const std::string& name : given) scenario.named.chosen.erase(name);
  if (given.contains("host/launch_cost") && !given.contains("host/launch_spread")) {
    scenario.host.launch_spread = kOwnLaunchSpread;
  }
  NS_TRY_VOID(find_framework(spec, catalog, base, scenario, given));
  follow_fields(scenario.plan, scenario.named.names, given, base != nullptr ? &base->plan : nullptr);
  // Tokens travel beside another microbatch there, not beside their own shared experts (Megatron-Core,
  // transformer_config.py: moe_shared_expert_overlap is to be disabled under overlap_moe_expert_parallel_comm).
  const bool anew = base == nullptr || spec.framework || given.contains("plan/schedule");
  if (anew && !scenario.named.names.contains("plan/overlap_ep") && traits_of(scenario.plan).hides_tokens) {
    scenario.plan.overlap_ep = false;
  }
  NS_TRY_VOID(find_model(spec, catalog, base, scenario, given));
  NS_TRY(scenario.cluster,
         find_machine(spec, catalog, base, scenario.plan, scenario.training, given.contains("plan/dp")));
  follow_machine(scenario, given, base);
  NS_TRY_VOID(check_stragglers(scenario));
  scenario.files = files_of(spec, catalog, base);
  NS_TRY_VOID(use_calibrations(scenario, spec));
  return scenario;
}

TrainingClock training_clock(const Scenario& scenario, std::int64_t ranks) {
  TrainingConstants constants = scenario.constants;
  constants.experts = experts_factor(constants, scenario.plan);
  const CalibratedShares calibrated =
      scenario.kernel_calibration ? CalibratedShares(*scenario.kernel_calibration) : CalibratedShares();
  return TrainingClock(scenario.cluster.gpu, calibrated, ranks, constants);
}

double experts_factor(const TrainingConstants& constants, const ParallelPlan& plan) {
  const double share = std::min(1.0, std::log2(static_cast<double>(plan.ep)) / 2);
  return constants.experts_alone + share * (constants.experts - constants.experts_alone);
}

}  // namespace ns_dist
