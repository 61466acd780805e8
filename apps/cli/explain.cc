#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "explain_subjects.h"
#include "explanation_text.h"
#include "ns_dist/fields.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/lower_case.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

// Error: a flag was given that this subject does not read. `form` is null for a collective.
Result<void> check_flags(const CLI::App& app, const std::string& subject, const OperatorForm* form) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string flag = option->get_name();
    const std::vector<std::string_view> families = families_with(flag);
    std::string expected;
    if (!families.empty()) {
      const bool of_subject =
          form != nullptr && std::find(families.begin(), families.end(), form->family) != families.end();
      if (!of_subject) expected = fmt::format("only with {}", fmt::join(families, " "));
    } else if (option->get_group() == kOperatorFlags && form == nullptr) {
      expected = "only with operators";
    } else if (option->get_group() == kCollectiveFlags && form != nullptr) {
      expected = "only with collectives";
    }
    if (!expected.empty()) return fail({ErrorCode::kUsage, "is not a flag of " + subject, flag, std::move(expected)});
  }
  return {};
}

// The subject of the request, explained. Errors also: it is none.
Result<Explained> explained(const CLI::App& app, const ExplainRequest& request) {
  if (const OperatorForm* form = find_operator_form(request.subject)) {
    NS_TRY_VOID(check_flags(app, request.subject, form));
    return explain_operator(*form, request);
  }
  if (const auto kind = enumerator_from_name<CollectiveKind>(request.subject)) {
    NS_TRY_VOID(check_flags(app, request.subject, nullptr));
    return explain_collective(*kind, request);
  }
  std::vector<std::string> names = {"step"};
  for (const OperatorForm& form : operator_forms()) names.emplace_back(form.family);
  for (const std::string_view name : names_of<CollectiveKind>()) names.emplace_back(name);
  std::string expected = fmt::format("one of {}", fmt::join(names, ", "));
  if (request.subject.ends_with(".csv") || request.subject.ends_with(".csv.gz")) {
    return fail(
        {ErrorCode::kUsage, fmt::format("\"{}\" is a table", request.subject), "SUBJECT", std::move(expected),
         fmt::format("write ns-dist kernels --input {0}, or ns-dist collectives --input {0}", request.subject)});
  }
  for (std::string& name : operator_names()) names.push_back(std::move(name));
  return fail(
      {ErrorCode::kUsage,
       request.subject.empty() ? "nothing to explain" : fmt::format("nothing is called \"{}\"", request.subject),
       "SUBJECT", std::move(expected),
       did_you_mean(nearest_name(request.subject, names), "as in: ns-dist explain gemm 8192x8192x8192")});
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

}  // namespace

tl::unexpected<Error> without_shape(std::string_view expected, std::string_view example) {
  return fail({ErrorCode::kUsage, "its size is missing", "SHAPE", std::string(expected),
               fmt::format("as in: explain {}", example)});
}

Result<Bytes> read_bytes(std::string_view text, std::string_view flag, Bytes least) {
  auto bytes = parse_quantity<Bytes>(text);
  if (bytes && (*bytes < least || *bytes > 1e6 * units::TB)) {
    bytes = fail({ErrorCode::kUsage, fmt::format("\"{}\" is out of range", text), "",
                  fmt::format("{} to 1000000 TB", to_text(least))});
  }
  return of_flag(flag, std::move(bytes));
}

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
    text += fmt::format("  tiles of {} in {}\n", forecast.tile, counted(forecast.waves, "wave"));
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
  app.add_option("subject", request.subject, "step, or an operator or a collective from the table below")
      ->type_name("");
  app.add_option("shape", request.shape, "its size, as the table below has it")->type_name("");
  app.add_option("--gpu", request.gpu, "ns-dist list gpus, or JSON [h100-sxm-80gb]")->type_name("ID|FILE");
  app.add_flag("--json", request.json, "print one JSON object");
  add_operator_flags(app, request);
  add_collective_flags(app, request);
  app.footer("Subjects and their shapes\n" +
             fmt::format("  {:<16}{:<42}{}\n", "step", "the flags of simulate", "step --tp 8 --pp 16") + subjects() +
             aliases());
  // `explain collective all_reduce 64MiB` reads well too.
  if (argc > 0 && std::string_view(argv[0]) == "collective") --argc, ++argv;
  if (const auto done = parse(app, argc, argv)) return *done;

  request.subject = lower_case(request.subject);  // `shape` may be the name of an unknown operator
  const auto answer = explained(app, request);
  if (!answer) return report_error(answer.error());
  std::fputs(rendered(answer->explanation, request.json, answer->facts).c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
