// Does the page say what the report says, to everybody, and nothing else?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::size_t kMostBytes = 500'000;

struct Page {
  std::string html, summary;
  json report;  // of --json
};

Page page_of(const std::string& job, const std::filesystem::path& folder) {
  const CommandResult made = run_command("ns-dist " + job + " --report page.html", folder);
  EXPECT_EQ(made.code, 0) << job << "\n" << made.err;
  EXPECT_THAT(made.err, IsEmpty()) << job;
  const CommandResult plain = run_command("ns-dist " + job + " --json", folder);
  return {read_text(folder / "page.html"), made.out, json::parse(plain.out)};
}
Page page_of(const std::string& job) { return page_of(job, ScratchFolder().path()); }

json block_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"report\">";
  const std::size_t from = html.find(begin) + begin.size();
  return json::parse(html.substr(from, html.find("</script>", from) - from));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// What a summary shows right of `name`, up to two blanks or a bracket.
std::string shown(const std::string& summary, const std::string& name) {
  std::smatch match;
  std::regex_search(summary, match, std::regex(name + " +([^ ].*?)(  |  \\(|,|\n)"));
  return match.size() > 1 ? match[1].str() : "not in the summary: " + name;
}

TEST(ReportPage, HoldsTheAnswerOfJsonAndTheNumbersOfTheSummary) {
  for (const char* job : {"--tp 8 --pp 16 --dp 8", "--model llama3-8b --gpu h200-sxm --dp 8 --global-batch 64",
                          "--model mixtral-8x7b --ep 8 --dp 8 --pp 2 --global-batch 128",
                          "--tp 8 --pp 8 --dp 2 --schedule zb-h1 --global-batch 64 --recompute full"}) {
    const Page page = page_of(job);
    EXPECT_EQ(block_of(page.html), page.report) << job;
    EXPECT_THAT(page.html, HasSubstr(shown(page.summary, "step time") + " <small>"));
    std::smatch interval;
    ASSERT_TRUE(std::regex_search(page.summary, interval, std::regex("90 % interval (.*) to (.*)\\)")));
    EXPECT_THAT(page.html, HasSubstr("90 % interval " + interval[1].str() + " to " + interval[2].str()));
    EXPECT_THAT(page.html, HasSubstr(shown(page.summary, "throughput")));
    std::smatch utilization;
    const std::regex both("(MFU .* %) \\((.* %) with causal attention\\)"),
        alike("utilization +(MFU .* % with causal attention, .* % with full)[;,]");
    if (page.report["mfu"].get<double>() > 1.1 * page.report["mfu_causal"].get<double>()) {
      ASSERT_TRUE(std::regex_search(page.summary, utilization, alike));
      EXPECT_THAT(page.html, HasSubstr("<b class=\"\">" + utilization[1].str() + "</b>"));
    } else {
      ASSERT_TRUE(std::regex_search(page.summary, utilization, both));
      EXPECT_THAT(page.html, HasSubstr("<b class=\"\">" + utilization[1].str() + "</b>"));
      EXPECT_THAT(page.html, HasSubstr("; " + utilization[2].str() + " without what a causal mask hides"));
    }
    const bool recomputes = page.report["hfu"].get<double>() > page.report["mfu"].get<double>() + 0.0005;
    for (const std::string* text : {&page.html, &page.summary}) {
      EXPECT_EQ(text->find("HFU") != std::string::npos, recomputes) << job;
    }
    std::smatch added;
    ASSERT_TRUE(std::regex_search(page.summary, added, std::regex("\n +of it (.* %)\n")));
    EXPECT_THAT(page.html, HasSubstr("Of it " + added[1].str() + ":"));
    EXPECT_THAT(page.html, HasSubstr(" for 1e12 tokens"));
    for (const char* part :
         {"compute", "recomputation", "tensor-parallel communication", "context-parallel communication",
          "expert-parallel communication", "pipeline messages", "data-parallel communication", "pipeline bubble",
          "optimizer", "waiting for launches", "other"}) {
      EXPECT_THAT(page.html, HasSubstr(part)) << job;
    }
    const json& stages = page.report["memory"]["per_stage"];
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const std::string row = "<span>stage " + std::to_string(stage) + "</span>";
      EXPECT_EQ(count(page.html, row), 1u) << job << ": " << row;
    }
    EXPECT_EQ(count(page.html, ">stage " + std::to_string(stages.size() - 1) + "</text>"), 1u) << "in the timeline";
    for (const json& work : page.report["critical_path"]) {
      EXPECT_THAT(page.html, HasSubstr("<td>" + work["name"].get<std::string>() + "</td>")) << job;
    }
    for (const json& file : page.report["provenance"]["inputs"]) {
      EXPECT_THAT(page.html, HasSubstr(file["hash"].get<std::string>()));
    }
    EXPECT_LT(page.html.size(), kMostBytes);
  }
}

// Is a bar as wide as its part's share of the step?
TEST(ReportPage, TheBarsOfPartsAreSharesOfTheStep) {
  const Page page = page_of("--tp 8 --pp 4 --dp 2 --global-batch 64");
  const std::size_t from = page.html.find("<div class=\"bars\">");
  const std::string bars = page.html.substr(from, page.html.find("</div>", from) - from);
  const std::regex bar("([0-9.]+) %</span><span class=\"track\"><i class=\"[a-z]+\" style=\"width:([0-9.]+)%\"");
  double sum = 0;
  for (std::sregex_iterator match(bars.begin(), bars.end(), bar), end; match != end; ++match) {
    EXPECT_NEAR(std::stod((*match)[1].str()), std::stod((*match)[2].str()), 0.06);
    sum += std::stod((*match)[2].str());
  }
  EXPECT_NEAR(sum, 100, 0.1);
}

// Does the page begin with what a meeting decides on, and fold what only some readers look up?
TEST(ReportPage, BeginsWithTheAnswer) {
  const std::string html =
      page_of("--tp 8 --pp 4 --dp 2 --global-batch 64 --what-if 'launch-cost x2' --tokens 1T").html;
  std::size_t last = 0;
  for (const char* heading :
       {"class=\"answer\"", ">The whole training<", ">Warnings<", ">What would help most", ">What if?<",
        ">Where the time goes", ">How far off are such forecasts?<", ">What each stage does when<",
        ">Memory of a GPU, by stage<", ">Longest on the critical path<", ">Where it comes from<", ">Repeat it<"}) {
    const std::size_t at = html.find(heading);
    ASSERT_NE(at, std::string::npos) << heading;
    EXPECT_GT(at, last) << heading;
    last = at;
  }
  for (const char* folded : {"In numbers", "Activations at the peak, by kind", "Memory over the step", "Every input"}) {
    EXPECT_THAT(html, HasSubstr("<details>\n<summary>" + std::string(folded) + "</summary>"));
  }
}

// Is a change told as a share of the step, with the step then, and is it said where it may make the step longer?
TEST(ReportPage, SaysWhatAChangeDoesToTheStep) {
  const Page page = page_of("--tp 8 --pp 16 --dp 8");
  const double step = page.report["step_time_s"];
  std::size_t unsure = 0;
  ASSERT_FALSE(page.report["improvements"].empty());
  for (const json& each : page.report["improvements"]) {
    const double saves = each["saves_s"];
    char share[32];
    std::snprintf(share, sizeof share, "%+.1f %%", -100 * saves / step);
    EXPECT_THAT(page.html, HasSubstr(share));
    EXPECT_THAT(page.summary, HasSubstr(share));
    if (!each["at_most"] && each["saves_low_s"] < 0) ++unsure;
  }
  EXPECT_GT(unsure, 0u);
  EXPECT_EQ(count(page.html, "), not sure</td>"), unsure);
  EXPECT_THAT(page.summary, HasSubstr("What would help most: change of the step (90 % interval"));
}

// Is the GPU's waiting for the host told from other things, in all answers, and do the parts still sum to the step?
TEST(ReportPage, NamesTheWaitForLaunches) {
  const Page page = page_of("--model gpt3-125m --gpu h100 --global-batch 64");
  const json& parts = page.report["breakdown_s"];
  double sum = 0;
  for (const auto& [key, seconds] : parts.items()) sum += seconds.get<double>();
  const double step = page.report["step_time_s"];
  EXPECT_NEAR(sum, step, 1e-9 * step);
  const double launches = page.report["waiting_for_launches_s"];
  EXPECT_GT(launches, 0.5 * step);
  EXPECT_LT(parts["other"].get<double>() - launches, 0.05 * step);
  EXPECT_GE(parts["other"], launches);
  EXPECT_THAT(page.summary, HasSubstr("  waiting for launches "));
  EXPECT_THAT(page.html, HasSubstr("<i class=\"launches\""));
  EXPECT_THAT(page.summary, ::testing::ContainsRegex("at most [0-9.]+ Wh a step"));
  const json graphs = page_of("--model gpt3-125m --gpu h100 --global-batch 64 --cuda-graphs on").report;
  EXPECT_EQ(graphs["waiting_for_launches_s"], 0);
}

// Is little that is extrapolated no warning, and much of it a strong one with what to do?
TEST(ReportPage, WarnsByHowMuchIsExtrapolated) {
  const auto warned = [](const Page& page) {
    for (const json& warning : page.report["warnings"]) {
      if (warning["code"] == "extrapolated") return warning["message"].get<std::string>();
    }
    return std::string();
  };
  const Page little = page_of("--model llama3-8b --gpu h100 --dp 64 --zero 2 --global-batch 512");
  EXPECT_THAT(warned(little), ::testing::MatchesRegex("[1-4] % of the step is extrapolated .*"));
  const std::size_t warnings = little.summary.find("\nWarnings\n"), told = little.summary.find(" is extrapolated");
  EXPECT_LT(told, warnings);
  EXPECT_EQ(little.summary.find(" is extrapolated", told + 1), std::string::npos);
  EXPECT_EQ(count(little.html, "<li>" + warned(little)), 0u);
  EXPECT_EQ(count(little.html, "<p class=\"soft\">" + warned(little)), 1u);

  const Page much = page_of("--model deepseek-v3 --gpu h800 --nodes 256 --ep 64 --pp 16");
  EXPECT_THAT(warned(much), ::testing::MatchesRegex("much of the step, [2-9][0-9] %, .*ns-dist calibrate .*"));
  EXPECT_LT(much.summary.find("\nWarnings\n"), much.summary.find(warned(much)));
  EXPECT_EQ(count(much.html, "<li>" + warned(much)), 1u);
}

// WCAG 2.2, relative luminance and contrast (1.4.3, 1.4.11).
double luminance(const std::string& color) {
  const auto linear = [&](std::size_t at) {
    const double value = std::stoi(color.substr(at, 2), nullptr, 16) / 255.0;
    return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(1) + 0.7152 * linear(3) + 0.0722 * linear(5);
}
double contrast(const std::string& a, const std::string& b) {
  const auto [low, high] = std::minmax({luminance(a), luminance(b)});
  return (high + 0.05) / (low + 0.05);
}

// Can everybody see each color on white and on the dark page, and read the numbers on it?
TEST(ReportPage, ColorsAreSeenOnBothPapers) {
  const std::string html = page_of("--tp 8 --pp 4 --dp 2 --global-batch 64").html;
  const auto value = [&](const std::string& name) {
    const std::size_t at = html.find("--" + name + ": #");
    return html.substr(at + name.size() + 4, 7);
  };
  std::set<std::string> colors;
  for (const char* name :
       {"compute", "forward", "backward", "recompute", "tp", "cp", "ep", "pp", "dp", "bubble", "optimizer", "launches",
        "other", "weights", "gradients", "states", "activations", "buffers"}) {
    colors.insert(value(name));
  }
  const std::regex kind("background:(#[0-9a-f]{6})");
  for (std::sregex_iterator match(html.begin(), html.end(), kind), end; match != end; ++match) {
    colors.insert((*match)[1].str());
  }
  EXPECT_GT(colors.size(), 15u);
  for (const std::string& color : colors) {
    EXPECT_GE(contrast(color, "#ffffff"), 3) << color;
    EXPECT_GE(contrast(color, "#14181e"), 3) << color;
  }
  EXPECT_THAT(html, AllOf(HasSubstr("--paper: #ffffff"), HasSubstr("--paper: #14181e")));
  EXPECT_GE(contrast(value("forward"), "#101820"), 4.5);
  EXPECT_GE(contrast(value("backward"), "#ffffff"), 4.5);
  EXPECT_GE(contrast(value("recompute"), "#ffffff"), 4.5);
  EXPECT_THAT(html, Not(HasSubstr(": 0 B)"))) << "a kind that a stage does not have";
}

// Are the step and the ends of its interval where they belong on an axis that begins at zero?
TEST(ReportPage, TheIntervalIsDrawnToScale) {
  const Page page = page_of("--tp 8 --pp 4 --dp 2 --global-batch 64");
  const auto left = [&](const std::string& mark) {
    std::smatch match;
    const std::regex place("class=\"" + mark + "\" style=\"left:([0-9.]+)%");
    return std::regex_search(page.html, match, place) ? std::stod(match[1].str()) : 0;
  };
  const double step = page.report["step_time_s"], low = page.report["step_time_low_s"],
               high = page.report["step_time_high_s"];
  EXPECT_NEAR(left("low") / left("dot"), low / step, 1e-3);
  EXPECT_NEAR(left("range") / left("dot"), low / step, 1e-3);
  EXPECT_NEAR(left("high") / left("dot"), high / step, 1e-3);
  EXPECT_LT(left("high"), 90) << "there is room for its label";
}

// 1F1B on four stages: stage i holds the most in its first backward pass, when 4 - i are live.
TEST(ReportPage, ShowsMemoryByKindAndOverTheStep) {
  const Page page = page_of("--tp 8 --pp 4 --dp 2 --global-batch 64");
  const json& memory = page.report["memory"];
  const json& stages = memory["per_stage"];
  for (std::size_t i = 0; i < 4; ++i) {
    double sum = 0;
    for (const auto& [kind, bytes] : stages[i]["activations_by_kind"].items()) sum += bytes.get<double>();
    EXPECT_EQ(sum, stages[i]["activations"]);
    EXPECT_EQ(stages[i]["peak"]["pass"], "B0");
    EXPECT_EQ(stages[i]["peak"]["live_passes"], 4 - i);
    EXPECT_LT(stages[i]["total"], stages[i]["reserved"]);
    EXPECT_LT(stages[i]["reserved"], stages[i]["device"]);
  }
  const std::size_t fullest = memory["peak_stage"];
  EXPECT_EQ(memory["reserved_bytes"], stages[fullest]["reserved"]);
  EXPECT_EQ(memory["device_bytes"], stages[fullest]["device"]);
  const json& over_time = memory["over_time"];
  EXPECT_EQ(over_time["passes_of_step"], 2 * 32);
  ASSERT_EQ(over_time["pass"].size(), over_time["activations"].size());
  ASSERT_EQ(over_time["number"].size(), over_time["activations"].size());
  double highest = 0;
  for (const json& bytes : over_time["most"]) highest = std::max(highest, bytes.get<double>());
  EXPECT_EQ(highest, stages[fullest]["activations"]);
  EXPECT_EQ(over_time["activations"].back(), over_time["transient"]);
  for (const char* text : {"attention core", "softmax statistics", "in B0, with 4 passes live",
                           "in B0, with 1 pass live", "Memory behind each pass", "nvidia-smi"}) {
    EXPECT_THAT(page.html, HasSubstr(text));
  }
  EXPECT_THAT(page.summary, HasSubstr("activations at the peak, of " + std::to_string(4 - fullest) + " passes: mlp"));

  const Page again = page_of("--tp 8 --pp 4 --dp 2 --global-batch 64 --recompute full");
  const json& held = again.report["memory"];
  EXPECT_EQ(held["per_stage"][0]["peak"]["pass"], "B0");
  EXPECT_EQ(held["per_stage"][0]["peak"]["live_passes"], 4);
  EXPECT_THAT(again.html, AllOf(HasSubstr("in B0, with 4 passes live"), HasSubstr("what is computed again")));
  highest = 0;
  for (const json& bytes : held["over_time"]["most"]) highest = std::max(highest, bytes.get<double>());
  EXPECT_EQ(highest, held["per_stage"][held["peak_stage"].get<std::size_t>()]["activations"]);

  const Page forward = page_of("--tp 8 --pp 4 --dp 2 --global-batch 64 --passes forward");
  EXPECT_TRUE(forward.report["memory"]["over_time"].is_null());
  EXPECT_THAT(forward.html, Not(HasSubstr("Memory behind each pass")));
}

TEST(ReportPage, NoTextBreaksOut) {
  const ScratchFolder folder;
  json config = json::parse(read_text(std::filesystem::path(NS_DIST_SOURCE_DIR) / "configs/models/gpt2.json"));
  const std::string name = "</script><img src=x onerror=alert(1)>\"'&{{title}}";
  config["name"] = name;
  std::ofstream(folder.path() / "it's <b>.json") << config;
  const Page page = page_of("--model \"it's <b>.json\" --tp 1", folder.path());
  EXPECT_EQ(page.report["inputs"]["model"]["name"], name);
  EXPECT_EQ(block_of(page.html), page.report);
  EXPECT_THAT(page.html, Not(HasSubstr("<img")));
  EXPECT_THAT(page.html, Not(HasSubstr("<b>.json")));
  EXPECT_EQ(count(page.html, "<script"), 1u);
  EXPECT_EQ(count(page.html, "</script"), 1u);
  EXPECT_THAT(page.html, HasSubstr("<h1>One training step of &lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&quot;"
                                   "&#39;&amp;{{title}} on 1 × "));
  EXPECT_THAT(page.html, HasSubstr("default-src 'none'"));
}

TEST(ReportPage, NeedsNothingElse) {
  const std::string html = page_of("--tp 2 --pp 2 --global-batch 16").html;
  for (const char* from_elsewhere : {"http:", "https:", "src=", "href=", "url(", "@import", "<link", "<iframe"}) {
    EXPECT_THAT(html, Not(HasSubstr(from_elsewhere)));
  }
}

// Is it said first that a plan cannot run, and what can, before a step time that nobody will see?
TEST(ReportPage, SaysFirstThatAPlanDoesNotFit) {
  const std::string job = "--model llama3.1-405b --gpu a100 --tp 8 --pp 8 --dp 2 --global-batch 256";
  const Page page = page_of(job);
  ASSERT_FALSE(page.report["memory"]["fits"]);
  const std::string remedy = page.report["memory"]["remedy"]["flags"];
  const std::string& html = page.html;
  EXPECT_LT(html.find("This plan does not fit: "), html.find("<div class=\"step"));
  EXPECT_LT(html.find("would fit with <code>" + remedy), html.find("<div class=\"step"));
  EXPECT_THAT(html, HasSubstr("a step if memory were no limit"));
  const std::string& summary = page.summary;
  EXPECT_LT(summary.find("does not fit"), summary.find("would fit: " + remedy));
  EXPECT_LT(summary.find("would fit: " + remedy), summary.find("step time"));
  EXPECT_THAT(summary, HasSubstr("  if memory were no limit (90 % interval"));
  // A limit is no help for what cannot run.
  const json& improvements = page.report["improvements"];
  EXPECT_TRUE(std::any_of(improvements.begin(), improvements.end(), [](const json& each) { return each["at_most"]; }));
  EXPECT_THAT(html, Not(HasSubstr("at most -")));
  EXPECT_THAT(summary, Not(HasSubstr("at most -")));
  EXPECT_THAT(run_command("ns-dist explain step " + job).out, HasSubstr("does not fit"));

  const std::string small = "--model gpt2 --global-batch 16";
  const Page fitting = page_of(small);
  EXPECT_THAT(fitting.html, AllOf(Not(HasSubstr("does not fit:")), Not(HasSubstr("no limit"))));
  EXPECT_LT(fitting.summary.find("step time"), fitting.summary.find("memory  "));
  EXPECT_THAT(run_command("ns-dist explain step " + small).out, Not(HasSubstr("does not fit")));
}

// Is a stage marked as too full where it does not fit, and nowhere else? Some keep less than a GPU has, but leave
// no room for NCCL's buffers.
TEST(ReportPage, TheMemoryChartAgreesWithTheVerdict) {
  const Page page = page_of("--model deepseek-v3 --gpu h100 --tp 1 --pp 16 --ep 64 --dp 64 --global-batch 4096");
  ASSERT_FALSE(page.report["memory"]["fits"]);
  const double capacity = page.report["memory"]["capacity_bytes"];
  const json& stages = page.report["memory"]["per_stage"];
  int unfit = 0, beside = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const double total = stages[i]["total"], reserved = stages[i]["reserved"], device = stages[i]["device"];
    const double needed = total + device - reserved;
    const std::string begin = "<span>stage " + std::to_string(i) + "</span>";
    const std::size_t at = page.html.find(begin);
    const std::string row = page.html.substr(at, page.html.find('\n', at) - at);
    EXPECT_EQ(count(row, "number bad"), needed > capacity ? 1u : 0u) << row;
    EXPECT_EQ(count(row, "class=\"beside\""), 1u) << row;
    unfit += needed > capacity ? 1 : 0;
    beside += needed > capacity && total <= capacity ? 1 : 0;
  }
  EXPECT_EQ(count(page.html, "number bad"), static_cast<std::size_t>(unfit));
  EXPECT_GT(beside, 0);
}

TEST(ReportPage, OneStageHasATimeline) {
  const Page page = page_of("--model gpt2 --global-batch 512");
  EXPECT_EQ(count(page.html, ">stage 0</text>"), 1u);
  EXPECT_EQ(count(page.html, ">stage 1</text>"), 0u);
  // Microbatches that repeat are drawn once, and the page says how many are not.
  ASSERT_GT(page.report["folding"]["copies"], 0);
  EXPECT_THAT(page.html, HasSubstr(page.report["folding"]["copies"].dump() + " more times"));
}

TEST(ReportPage, ManyStagesStaySmall) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const ScratchFolder folder;
    json config = json::parse(read_text(std::filesystem::path(NS_DIST_SOURCE_DIR) / "configs/models/gpt2.json"));
    config["layers"] = 128;
    config.erase("published_parameters"), config["sources"] = "made up";
    std::ofstream(folder.path() / "deep.json") << config;
    const Page page =
        page_of(std::string("--model deep.json --pp 128 --global-batch 256 --schedule ") + schedule, folder.path());
    EXPECT_EQ(page.report["memory"]["per_stage"].size(), 128u);
    EXPECT_LT(page.html.size(), kMostBytes);
    EXPECT_THAT(page.html, HasSubstr("of 128 stages are drawn"));
    const std::string fullest = page.report["memory"]["peak_stage"].dump();
    EXPECT_THAT(page.html, HasSubstr("<span>stage " + fullest + "</span>"));
    EXPECT_THAT(page.html, HasSubstr("<span>stage 127</span>"));
  }
}

TEST(ReportPage, IsItsOwnRecipe) {
  const ScratchFolder folder;
  const Page page = page_of("--tp 4 --pp 4 --dp 2 --model llama2-13b --vpp 2", folder.path());
  EXPECT_EQ(json::parse(run_command("ns-dist --from page.html --json", folder.path()).out), page.report);
  EXPECT_THAT(page.html,
              HasSubstr("<code class=\"command\">ns-dist --tp 4 --pp 4 --dp 2 --model llama2-13b --vpp 2</code>"));
  // Where the answer goes is no part of the question, and the bytes are the same in every folder.
  const ScratchFolder elsewhere;
  run_command("ns-dist simulate --tp 4 --trace t.json --pp 4 --json --dp 2 --report=b.html --model llama2-13b --vpp 2",
              elsewhere.path());
  EXPECT_EQ(read_text(elsewhere.path() / "b.html"), page.html);
}

TEST(ReportPage, RefusesAPathThatCannotBeWritten) {
  const ScratchFolder folder;
  const CommandResult refused = run_command("ns-dist --model gpt2 --report nowhere/page.html", folder.path());
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.out, IsEmpty());
  EXPECT_THAT(refused.err, HasSubstr("--report"));
  EXPECT_THAT(refused.err, HasSubstr("nowhere/page.html"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(run_command("ns-dist --model gpt2 --report /dev/full", folder.path()).code, 1);
}

// Where xmllint is there. It knows the elements of HTML 4 only.
TEST(ReportPage, IsHtml) {
  if (run_command("command -v xmllint").code != 0) GTEST_SKIP() << "no xmllint";
  const ScratchFolder folder;
  page_of("--tp 2 --pp 4 --dp 2 --global-batch 64", folder.path());
  const CommandResult parsed =
      run_command("xmllint --html --noout page.html 2>&1 | grep error | grep -v 'Tag [a-z]* invalid'", folder.path());
  EXPECT_THAT(parsed.out, IsEmpty());
}

}  // namespace
}  // namespace ns_dist
