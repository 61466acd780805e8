#include <cstdio>
#include <utility>

#include "arguments.h"
#include "commands.h"
#include "evidence.h"
#include "explanation_text.h"
#include "ns_dist/simulator.h"
#include "terminal.h"

namespace ns_dist::cli {

int explain_step_command(int argc, const char* const* argv) {
  CLI::App app{"How did a step's time come about: what is added to its kernels, and what its interval is made of.",
               "explain step"};
  set_up(app);
  WorkFlags flags;
  add_work_flags(app, flags);
  bool json = false;
  app.add_flag("--json", json, "print one JSON object")->group("What comes back");
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto scenario = read_scenario_of(flags);
  if (!scenario) return report_error(scenario.error());
  const auto session = Session::make(*scenario);
  if (!session) return report_error(session.error());
  const auto prediction = predict(*scenario, *session);
  if (!prediction) return report_error(prediction.error());
  Explanation explanation = explain(*scenario, *prediction, *session);
  for (ExplanationStep& step : evidence_steps(evidence_for(*scenario))) explanation.steps.push_back(std::move(step));
  std::fputs(rendered(explanation, json).c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
