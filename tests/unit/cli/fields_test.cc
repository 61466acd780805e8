// A field of the table is a flag, a key of reports and of runs' files, and is refused with its flag when it is wrong.
// Nothing here names a field: what is true of the table is true of the next field.
#include "ns_dist/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ns_dist/catalog.h"
#include "ns_dist/scenario.h"
#include "support/run_command.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// Assignments of texts that the field accepts, other than its default.
std::vector<Assignment> changes_of(const FieldDescription& description) {
  std::vector<std::string> texts = split(description.values, '|');
  texts.insert(texts.end(), {"2", "some text", "0:1.5", "1,0.5", "full:2", "selective:core_attn,mlp", "7 us", "0.5",
                             "5 GB/s", "gpipe", "dp-tp-cp-pp", "Et|tL", "astra", "ring", "simple"});
  std::vector<Assignment> found;
  for (const std::string& text : texts) {
    const Assignment assignment{std::string(description.field.name), text};
    Scenario scenario = small_scenario();
    if (assign(scenario, assignment) && scenario != small_scenario()) found.push_back(assignment);
  }
  return found;
}

// Fields that `assign` can set; the others name what `resolve` looks up.
bool is_looked_up(const FieldDescription& description) {
  Scenario scenario = small_scenario();
  const auto done = assign(scenario, {std::string(description.field.name), ""});
  return !done && done.error().message == "cannot be set here";
}

TEST(Fields, AreFlagsWithHelpAndDefault) {
  const std::string help = run_command("ns-dist simulate --help").out;
  for (const FieldDescription& description : scenario_fields()) {
    EXPECT_THAT(help, HasSubstr("\n  " + description.flag + " ")) << description.field.name;
    EXPECT_FALSE(description.field.help.empty()) << description.flag;
    EXPECT_FALSE(description.default_text.empty()) << description.flag;
  }
}

TEST(Fields, AreKeysOfReportsAndRepeat) {
  for (const FieldDescription& description : scenario_fields()) {
    if (is_looked_up(description)) continue;
    const std::vector<Assignment> changes = changes_of(description);
    EXPECT_FALSE(changes.empty()) << description.field.name;
    for (const Assignment& change : changes) {
      Scenario scenario = small_scenario();
      ASSERT_TRUE(assign(scenario, change));
      const std::string text = write_scenario(scenario);
      const json inputs = json::parse(text);
      EXPECT_TRUE(inputs.contains(json::json_pointer("/" + std::string(description.field.name)))) << change.field;
      const auto again = read_scenario(text, "report.json");
      ASSERT_TRUE(again) << to_text(again.error());
      EXPECT_EQ(*again, scenario) << change.field << " " << change.text;
    }
  }
}

TEST(Fields, AreKeysOfRunsFiles) {
  const std::string path = std::string(NS_DIST_SOURCE_DIR) + "/configs/runs/korthikanti-2022.json";
  const json file = json::parse(read_text(path));
  for (const FieldDescription& description : scenario_fields()) {
    const std::string name(description.field.name), key(description.field.key());
    if (!name.starts_with("plan/") && !name.starts_with("training/")) continue;
    for (const Assignment& change : changes_of(description)) {
      Scenario scenario = small_scenario();
      ASSERT_TRUE(assign(scenario, change));
      json value = json::parse(write_scenario(scenario))[json::json_pointer("/" + name)];
      if (name == "plan/zero") value = std::stoi(change.text);  // a number in these files
      json changed = file;
      changed["runs"][0][key] = value;
      const auto runs = read_runs(changed.dump(), "runs.json");
      ASSERT_TRUE(runs) << to_text(runs.error());
      const ScenarioSpec spec = spec_of(runs->runs[0]);
      Scenario told = small_scenario(), expected = small_scenario();
      for (const Assignment& assignment : spec.assignments) {
        if (assignment.field != name) continue;
        ASSERT_TRUE(assign(told, assignment));
      }
      ASSERT_TRUE(assign(expected, change));
      EXPECT_EQ(told, expected) << name << " " << change.text;
    }
  }
}

TEST(Fields, RunsFilesHaveAMachineAHostAndOneMeasurement) {
  const auto read_one = [](const std::string& keys) {
    return read_runs(R"({"schema": "ns-dist/runs/1", "id": "a", "name": "A", "sources": {"/runs": "log"},
                         "runs": [{"id": "b", "model": "opt-125m", "gpu": "h100-sxm-80gb")" +
                         keys + "}]}",
                     "a.json");
  };
  const auto runs = read_one(R"(, "inter_bandwidth": "25 GB/s", "intra_bandwidth": "200 GB/s", "cuda_graphs": "on",
                                "tokens_per_s_per_gpu": 12.5)");
  ASSERT_TRUE(runs) << to_text(runs.error());
  EXPECT_EQ(runs->runs.front().tokens_per_s_per_gpu, 12.5);
  const auto scenario = resolve(spec_of(runs->runs.front()), Catalog::built_in());
  ASSERT_TRUE(scenario) << to_text(scenario.error());
  EXPECT_EQ(scenario->plan.tp, 1);
  EXPECT_TRUE(scenario->host.cuda_graphs.step);
  const auto mistake_of = [&](const std::string& keys) {
    const auto read = read_one(keys);
    return read ? "none" : to_text(read.error());
  };
  EXPECT_EQ(mistake_of("").find("a.json#/runs/0: the measurement is missing; expected \"step_time\" or "), 0)
      << mistake_of("");
  const std::string twice = mistake_of(R"(, "step_time": "1 s", "tokens_per_s_per_gpu": 3)");
  EXPECT_EQ(twice.find("a.json#/runs/0: the measurement is there twice; expected \"step_time\" or "), 0) << twice;
  EXPECT_NE(mistake_of(R"(, "tokens_per_s_per_gpu": -1)").find("tokens_per_s_per_gpu"), std::string::npos);
}

// The file that the planning page shows for steps of one's own: a GPU alone stands for its usual cluster.
TEST(Fields, TheRunsOfThePlanningPageAreForecast) {
  const std::string page = read_text(std::string(NS_DIST_SOURCE_DIR) + "/docs/planning.md");
  const std::size_t begin = page.find("```json\n") + 8;
  const ScratchFolder folder;
  std::ofstream(folder.path() / "my-runs.json") << page.substr(begin, page.find("```", begin) - begin);
  const CommandResult checked = run_command("ns-dist validate --runs my-runs.json --json", folder.path());
  ASSERT_EQ(checked.code, 0) << checked.err;
  const json suite = json::parse(checked.out)["suites"][0];
  EXPECT_EQ(suite["rows"], 1);
  EXPECT_TRUE(suite["mistakes"].empty());
  json without = json::parse(read_text(folder.path() / "my-runs.json"));
  without.erase("gpu");
  EXPECT_NE(to_text(read_runs(without.dump(), "mine.json").error()).find("mine.json#/runs/0: key \"gpu\" is missing"),
            std::string::npos);
}

TEST(Fields, RefuseWhatTheyCannotBe) {
  for (const FieldDescription& description : scenario_fields()) {
    const CommandResult result = run_command("ns-dist " + description.flag + " '?'");
    EXPECT_THAT(result.code, ::testing::AnyOf(1, 2)) << description.flag;
    EXPECT_THAT(result.err, ContainsRegex("ns-dist: " + description.flag + ": .*[?]")) << description.flag;
  }
}

TEST(Fields, UnknownOnesNameTheNearest) {
  Scenario scenario = small_scenario();
  const auto wrong = assign(scenario, {"plan/tpp", "8"});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(to_text(wrong.error()), HasSubstr("plan/tpp: there is no such field"));
  EXPECT_THAT(to_text(wrong.error()), HasSubstr("did you mean \"plan/tp\"?"));
}

TEST(Fields, DifferencesAreWhatMakesOnePlanTheOther) {
  Scenario from, to;
  from.plan.pp = to.plan.pp = 2;
  to.plan.tp = 8;
  to.plan.recompute = Recompute::kFull;
  to.plan.overlap_p2p = true;
  const std::vector<Assignment> changes = differences(from.plan, to.plan);
  EXPECT_EQ(to_flags(changes, from), "--tp 8 --recompute full --overlap-p2p on");
  EXPECT_EQ(to_flags(std::vector{Assignment{"plan/overlap_p2p", "off"}}, to), "--overlap-p2p off");
  const std::vector<Assignment> two = {{"plan/overlap_grad_reduce", "on"}, {"plan/overlap_tp", "on"}};
  EXPECT_EQ(to_flags(two, to), "--overlap grad-reduce,p2p,tp") << "p2p stays";
  for (const Assignment& change : changes) ASSERT_TRUE(assign_field(from.plan, change).value());
  EXPECT_EQ(from.plan, to.plan);
}

TEST(Fields, DoesAListOfOverlapsNameWhatChangesNothing) {
  const std::vector<Assignment> changes = {{"plan/overlap_grad_reduce", "on"}, {"plan/overlap_param_gather", "on"}};
  Scenario one_stage;
  one_stage.plan.dp = 8;
  one_stage.plan.overlap_p2p = one_stage.plan.overlap_tp = one_stage.plan.overlap_ep = true;
  EXPECT_EQ(to_flags(changes, one_stage), "--overlap grad-reduce,param-gather");
  Scenario named = one_stage;
  named.named.names.insert("plan/overlap_tp");
  EXPECT_EQ(to_flags(changes, named), "--overlap grad-reduce,param-gather,tp") << "its user named it";
}

// A flag of its own holds against --overlap: what was named so is changed by its own flag. A list that was named is
// replaced.
TEST(Fields, AnOverlapThatWasNamedHasItsOwnFlag) {
  Scenario plan;
  plan.plan.pp = 2;
  const std::vector<Assignment> changes = {{"plan/overlap_p2p", "on"}, {"plan/tp", "8"}, {"plan/overlap_tp", "on"}};
  EXPECT_EQ(to_flags(changes, plan, {{"plan/overlap_grad_reduce"}}), "--tp 8 --overlap p2p,tp");
  EXPECT_EQ(to_flags(changes, plan, {{"plan/overlap_p2p"}}), "--overlap-p2p on --tp 8 --overlap-tp on");
  EXPECT_EQ(to_flags(std::span(changes).first(1), plan, {{"plan/overlap"}}), "--overlap p2p");
}

TEST(Fields, OneThatStandsForOthersIsSpelledOut) {
  ScenarioSpec spec;
  spec.set("plan/overlap_p2p", true).set("plan/overlap", "tp,grad-reduce").set("plan/overlap_tp", false);
  const auto all = spelled_out(spec);
  ASSERT_TRUE(all) << to_text(all.error());
  const auto last = [&](std::string_view field) {
    std::string text;
    for (const Assignment& each : all->assignments) text = each.field == field ? each.text : text;
    return text;
  };
  EXPECT_EQ(all->assignments.size(), find_field("plan/overlap")->stands_for.size() + 2);
  EXPECT_EQ(last("plan/overlap_grad_reduce"), "on");
  EXPECT_EQ(last("plan/overlap_p2p"), "off");
  EXPECT_EQ(last("plan/overlap_tp"), "off") << "named later";
  const auto scenario = resolve(spec, Catalog::built_in());
  ASSERT_TRUE(scenario) << to_text(scenario.error());
  EXPECT_TRUE(scenario->plan.overlap_grad_reduce);
  EXPECT_FALSE(scenario->plan.overlap_p2p || scenario->plan.overlap_tp);
  for (const char* wrong : {"", "tp,", "p2p,all", "dp"}) {
    const auto none = spelled_out(ScenarioSpec().set("plan/overlap", std::string_view(wrong)));
    ASSERT_FALSE(none) << wrong;
    EXPECT_THAT(to_text(none.error()), HasSubstr("plan/overlap: ")) << wrong;
  }
}

TEST(Fields, StragglersMustHaveAStage) {
  const auto refusal = [](const char* arguments) {
    return run_command("ns-dist --tp 8 --pp 4 " + std::string(arguments)).err;
  };
  EXPECT_THAT(refusal("--slow-rank 4:1.2"), HasSubstr("--slow-rank: there is no pipeline stage 4; expected a stage"));
  EXPECT_THAT(refusal("--slow-rank 1:0.5"), HasSubstr("write, for example, --slow-rank 3:1.2"));
  EXPECT_THAT(refusal("--stage-speed 1,0.9"), HasSubstr("--stage-speed: 2 speeds for 4 pipeline stages"));
  EXPECT_THAT(refusal("--stage-speed 1,,1,1"), HasSubstr("--stage-speed: \"\" cannot be used"));
}

}  // namespace
}  // namespace ns_dist
