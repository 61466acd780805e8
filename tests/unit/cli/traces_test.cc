// The commands on Chakra traces: is what we export what others read, and does it take the time that we say?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "ns_dist/version.h"
#include "support/answered.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kAstra = " --network-model astra --contention off --compute-slowdown off ";

// Exports need no touching: without overlap, what ASTRA-Sim's rules make of the files is the step of the astra model.
TEST(Traces, TheReplayOfAnExportIsTheStepOfTheAstraModel) {
  const char* plans[] = {
      "--tp 4 --pp 2 --dp 2 --global-batch 4",                                     // two levels
      "--tp 2 --pp 4 --dp 2 --global-batch 4",                                     // messages that cross a node's edge
      "--tp 4 --global-batch 2",                                                   // a part of a node
      "--tp 4 --dp 3 --global-batch 3",                                            // ranks that fill no nodes
      "--tp 4 --dp 2 --global-batch 2 --gpu mi300x",                               // FullyConnected
      "--tp 4 --dp 4 --global-batch 4 --cluster frontier",                         // and a network
      "--tp 4 --dp 4 --zero 0 --global-batch 4 --cluster a100-pcie-80gb-bridged",  // three levels
      "--tp 2 --pp 2 --dp 4 --global-batch 8 --cluster a100-pcie-80gb-bridged",    //
      "--tp 2 --pp 2 --dp 4 --global-batch 8 --order pp-ep-dp-cp-tp",              // pipelines innermost
      "--tp 4 --pp 4 --global-batch 4 --schedule gpipe --sequence-parallel off",   //
      "--tp 2 --pp 4 --global-batch 8 --schedule dualpipe --overlap none",         // pairs of mirrored stages
  };
  for (const std::string plan : plans) {
    const ScratchFolder folder;
    const std::string work = "--model gpt2 " + plan + kAstra;
    const double step = json::parse(answered(work + "--json", folder.path()).out)["step_time_s"];
    answered("export " + work + "--output traces", folder.path());
    const json replayed = json::parse(answered("replay traces --json", folder.path()).out);
    EXPECT_NEAR(replayed["step_time_s"].get<double>() / step, 1, 1e-6) << plan;
    answered("export " + work + "--encoding durations --output micros", folder.path());
    EXPECT_NEAR(
        json::parse(answered("replay micros/trace --json", folder.path()).out)["step_time_s"].get<double>() / step, 1,
        1e-3)
        << plan;
  }
}

// The difference between ASTRA-Sim's answer and our step has two parts: with its formulas and without overlap, none.
TEST(Traces, ExportSaysWhatAstraSimWillAnswer) {
  const ScratchFolder folder;
  const std::string work = "--model gpt2 --tp 2 --pp 2 --dp 2 --global-batch 8 ";
  const CommandResult printed = answered("export " + work + "--overlap all --output nccl", folder.path());
  EXPECT_THAT(printed.out, ContainsRegex("ASTRA-Sim will answer [0-9.]+ ms with its congestion-unaware network; our "
                                         "step takes [0-9.]+ ms\n +[+-].* ms .*\n"
                                         " +[+-].* ms  its network formulas"));
  const json nccl = json::parse(read_text(folder.path() / "nccl" / "manifest.json"));
  const json there = nccl["astra_sim"];
  EXPECT_EQ(there["step_time_s"], json::parse(answered("replay nccl --json", folder.path()).out)["step_time_s"]);
  EXPECT_NEAR(
      there["step_time_s"].get<double>(),
      nccl["step_time_s"].get<double>() + there["by_slots_s"].get<double>() + there["by_formulas_s"].get<double>(),
      1e-12);
  EXPECT_GT(there["by_slots_s"], 1e-5);  // overlap is lost
  EXPECT_GT(std::fabs(there["by_formulas_s"].get<double>()), 1e-4);

  answered("export " + work + kAstra + "--encoding roofline --output astra", folder.path());
  const json astra = json::parse(read_text(folder.path() / "astra" / "manifest.json"));
  EXPECT_NEAR(astra["astra_sim"]["by_slots_s"].get<double>(), 0, 2e-6);
  EXPECT_NEAR(astra["astra_sim"]["by_formulas_s"].get<double>(), 0, 2e-6);
}

// What the formulas make of the step is closer to ours with the network fitted to its collectives.
TEST(Traces, AFittedNetworkBringsTheReplayToOurStep) {
  for (const std::string plan : {"--tp 4 --pp 2 --dp 2 --global-batch 8", "--tp 2 --pp 2 --dp 4 --global-batch 8",
                                 "--tp 4 --dp 4 --global-batch 4 --cluster frontier"}) {
    const ScratchFolder folder;
    const std::string work =
        "--model gpt2 " + plan + " --overlap none --contention off --compute-slowdown off --encoding roofline ";
    const auto off_of = [&](const std::string& flags, const char* name) {
      const CommandResult printed = answered("export " + work + flags + "--output " + name, folder.path());
      EXPECT_EQ(printed.out.find("network.yml is fitted") != std::string::npos, !flags.empty());
      const double step = json::parse(read_text(folder.path() / name / "manifest.json"))["step_time_s"];
      const json replayed = json::parse(answered(std::string("replay ") + name + " --json", folder.path()).out);
      return replayed["step_time_s"].get<double>() / step - 1;
    };
    const double before = off_of("", "sheet"), after = off_of("--fit-network ", "fitted");
    EXPECT_LT(std::fabs(after), 0.02) << plan << ": " << before << " before";
    EXPECT_LT(std::fabs(after), std::fabs(before)) << plan;
    const json fit = json::parse(read_text(folder.path() / "fitted" / "manifest.json"))["network_fit"];
    EXPECT_LT(fit["error"], fit["error_before"]) << plan;
  }
}

TEST(Traces, ReplaySpeaksAsAstraSimDoes) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --dp 2 --global-batch 2 --output t", folder.path());
  const CommandResult result = answered(
      "replay --workload-configuration=t/trace --system-configuration=t/system.json "
      "--network-configuration=t/network.yml --comm-group-configuration=t/comm_groups.json "
      "--remote-memory-configuration=t/remote_memory.json",
      folder.path());
  const json ranks = json::parse(answered("replay t --json", folder.path()).out)["ranks"];
  for (const json& rank : ranks) {
    const auto finish = rank["finish_ns"].get<std::int64_t>();
    EXPECT_THAT(result.out, HasSubstr("sys[" + rank["rank"].dump() + "] finished, " + std::to_string(finish) +
                                      " cycles, exposed communication " +
                                      std::to_string(finish - rank["kernel_ns"].get<std::int64_t>()) + " cycles.\n"));
  }
}

TEST(Traces, ReplayWritesTimelines) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --pp 2 --global-batch 2 --output t", folder.path());
  const json report = json::parse(answered("replay t --json --csv t.csv --trace t.json", folder.path()).out);
  const std::string csv = read_text(folder.path() / "t.csv");
  EXPECT_EQ(csv.substr(0, csv.find('\n')), "rank,node,name,type,start_ns,end_ns");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), report["nodes"].get<std::int64_t>() + 1);
  double latest = 0;
  std::int64_t spans = 0;
  const json timeline = json::parse(read_text(folder.path() / "t.json"));
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    latest = std::max(latest, event["ts"].get<double>() + event["dur"].get<double>());
  }
  EXPECT_EQ(spans, report["nodes"].get<std::int64_t>());
  EXPECT_NEAR(latest * 1e-6, report["step_time_s"].get<double>(), 2e-9);
  // What is found beside the traces is read, too.
  for (const char* name : {"network.yml", "system.json", "comm_groups.json", "trace.1.et"}) {
    const std::string before = read_text(folder.path() / "t" / name);
    for (const char* flag : {"--csv t/", "--trace t/"}) {
      refused(std::string("replay t ") + flag + name, folder.path(), 2, "is the file that is read");
    }
    EXPECT_EQ(read_text(folder.path() / "t" / name), before);
  }
}

TEST(Traces, ReplayOnlyHasNoFormulas) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --output t", folder.path());
  EXPECT_EQ(json::parse(answered("replay t --json", folder.path()).out)["communication"], "astra");
  json system = json::parse(read_text(folder.path() / "t" / "system.json"));
  system["replay-only"] = 1;
  std::ofstream(folder.path() / "only.json") << system;
  EXPECT_EQ(json::parse(answered("replay t --system only.json --json", folder.path()).out)["communication"],
            "recorded");
  EXPECT_THAT(answered("replay t --system only.json", folder.path()).out,
              HasSubstr("communication takes the times that the traces hold"));
}

// Ranks that end together: the text and the JSON name the same one.
TEST(Traces, ReplayNamesOneLastRank) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 4 --global-batch 2 --output t", folder.path());
  const json report = json::parse(answered("replay t --json", folder.path()).out);
  EXPECT_EQ(report["ranks"][0]["finish_ns"], report["ranks"][3]["finish_ns"]);
  EXPECT_THAT(answered("replay t", folder.path()).out, HasSubstr("rank " + report["last_rank"].dump() + " ends last"));
  EXPECT_EQ(report["ranks"][report["last_rank"].get<std::size_t>()]["finish_ns"].get<double>() * 1e-9,
            report["step_time_s"].get<double>());
}

TEST(Traces, ReplayNamesWhatIsMissing) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --output t", folder.path());
  refused("replay ", folder.path(), 2, "the traces are missing");
  refused("replay t --workload-configuration t/trace", folder.path(), 2, "named twice");
  refused("replay t --system a --system-configuration b", folder.path(), 2,
          "--system-configuration: its file is named twice: --system is the same flag");
  refused("replay t --network-configuration=a --network=b", folder.path(), 2, "--network-configuration: .* twice");
  refused("replay t --groups a --comm-group-configuration b", folder.path(), 2, "--comm-group-configuration: .* twice");
  refused("replay nothing", folder.path(), 1, "nothing: no ");
  refused("replay t --network no.yml", folder.path(), 1, "no.yml: cannot be read.*--network.*--recorded");
  refused("replay t --system t/network.yml", folder.path(), 1, "t/network.yml");
  refused("replay t --csv no/such/folder.csv", folder.path(), 1, "no/such/folder.csv");
  std::ofstream(folder.path() / "four.yml") << "topology: [Ring]\nnpus_count: [4]\nbandwidth: [1]\nlatency: [1]\n";
  refused("replay t --network four.yml", folder.path(), 1, "the network has 4 NPUs, and there are traces of 2 ranks");
  std::filesystem::remove(folder.path() / "t" / "trace.1.et");
  std::filesystem::remove(folder.path() / "t" / "manifest.json");
  std::ofstream(folder.path() / "one.yml") << "topology: [Ring]\nnpus_count: [2]\nbandwidth: [1]\nlatency: [1]\n";
  refused("replay t --recorded", folder.path(), 1, "rank 0, node [0-9]+ .*no member|cannot|group|waits");
}

// What replay refuses is a mistake for lint, too.
TEST(Traces, LintReadsTheNetworkAndTheSystemAsReplayDoes) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --encoding roofline --output t", folder.path());
  const json system = json::parse(read_text(folder.path() / "t" / "system.json"));
  for (const char* key : {"all-reduce-implementation", "peak-perf", "local-mem-bw"}) {
    json without = system;
    without.erase(key);
    std::ofstream(folder.path() / "without.json") << without;
    for (const char* command : {"lint", "replay"}) {
      const CommandResult result =
          run_command(std::string("ns-dist ") + command + " t --system without.json", folder.path());
      EXPECT_EQ(result.code, 1) << command << key;
      EXPECT_THAT(result.out + result.err, HasSubstr(key)) << command;
    }
  }
  json misspelled = system;
  misspelled["endpoint-dealy"] = 3;
  std::ofstream(folder.path() / "odd.json") << misspelled;
  EXPECT_THAT(answered("lint t --system odd.json", folder.path()).out,
              HasSubstr("note: odd.json#/endpoint-dealy: nobody reads it: did you mean \"endpoint-delay\"?"));
  std::ofstream(folder.path() / "four.yml") << "topology: [Ring]\nnpus_count: [4]\nbandwidth: [1]\nlatency: [1]\n";
  const CommandResult four = run_command("ns-dist lint t --network four.yml", folder.path());
  EXPECT_EQ(four.code, 1);
  EXPECT_THAT(four.out, HasSubstr("rank 2: the network has 4 NPUs, and there are traces of 2 ranks"));
}

// What has no closed form runs in ASTRA-Sim. The key, and the two ways out.
TEST(Traces, ReplayNamesTheKeyWithoutAForm) {
  const ScratchFolder folder;
  answered("export --model gpt2 --dp 16 --global-batch 16 --output t", folder.path());
  const json system = json::parse(read_text(folder.path() / "t" / "system.json"));
  for (const auto& [key, value, what] :
       {std::tuple<const char*, json, const char*>("preferred-dataset-splits", 4, "several chunks .*; expected 1; "),
        std::tuple<const char*, json, const char*>("all-gather-implementation", {"ring", "oneRing"},
                                                   "the algorithm \"oneRing\"; expected ring, direct")}) {
    json other = system;
    other[key] = value;
    std::ofstream(folder.path() / "other.json") << other;
    const std::string place = "other.json#/" + std::string(key) + ": ";
    refused(
        "replay t --system other.json", folder.path(), 1,
        (place + "rank [0-9]+, node [0-9]+ .*: no closed form is known for " + what + ".*or write --recorded").c_str());
    EXPECT_THAT(answered("lint t --system other.json", folder.path()).out,
                ContainsRegex("note: `ns-dist replay` runs rank 0, node [0-9]+ with --recorded alone: " + place));
    answered("replay t --system other.json --recorded", folder.path());
  }
}

// What lint says that ASTRA-Sim stops at, replay says, too; with recorded times it speaks of the traces alone.
TEST(Traces, ReplayAnswersWhereAstraSimDoes) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --output t", folder.path());
  json system = json::parse(read_text(folder.path() / "t" / "system.json"));
  system["peak-perf"] = 1e9;  // each kernel less than a ns
  std::ofstream(folder.path() / "fast.json") << system;
  const char* const why = "the first kernel takes less than 1 ns by the roofline: ASTRA-Sim stops";
  for (const char* command : {"lint", "replay"}) {
    const CommandResult result =
        run_command(std::string("ns-dist ") + command + " t --system fast.json", folder.path());
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_THAT(result.out + result.err, HasSubstr(why)) << command;
  }
  answered("replay t --system fast.json --recorded", folder.path());
}

// A rank that has other collectives than its peer: ASTRA-Sim ends with exit code 0 and says nothing.
TEST(Traces, ReplaySaysWhoWaitsForWhom) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --output a", folder.path());
  answered("export --model gpt2 --tp 2 --global-batch 4 --output b", folder.path());
  std::filesystem::copy_file(folder.path() / "b" / "trace.1.et", folder.path() / "a" / "trace.1.et",
                             std::filesystem::copy_options::overwrite_existing);
  const CommandResult result = run_command("ns-dist replay a", folder.path());
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, ContainsRegex("a/trace: [01] of 2 ranks run to their end\n  rank [01], node [0-9]+ "));
  EXPECT_THAT(result.err, ContainsRegex("collective number [0-9]+ of group 1"));
  const json report = json::parse(run_command("ns-dist replay a --json", folder.path()).out);
  EXPECT_LT(report["finished"].get<int>(), 2);
  EXPECT_FALSE(report["problems"].empty());
}

TEST(Traces, LintFindsNothingInExportsAndMistakesInDamage) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --pp 2 --dp 2 --global-batch 4 --overlap all --output t", folder.path());
  EXPECT_THAT(answered("lint t", folder.path()).out, HasSubstr("nothing wrong; every rank runs to its end"));
  const json whole = json::parse(answered("lint t/trace --json --no-run", folder.path()).out);
  EXPECT_EQ(whole["problem_count"], 0);
  EXPECT_EQ(whole["notes"].size(), 0u);
  EXPECT_EQ(whole["ran"], false);
  // Gzipped ones are read, too.
  ASSERT_EQ(run_command("gzip t/trace.3.et", folder.path()).code, 0);
  const json packed = json::parse(answered("lint t --json", folder.path()).out);
  EXPECT_EQ(packed["problem_count"], 0);
  EXPECT_EQ(packed["nodes"], whole["nodes"]);
  EXPECT_THAT(packed["notes"].dump(), HasSubstr("gunzip"));
  ASSERT_EQ(run_command("gunzip t/trace.3.et.gz", folder.path()).code, 0);

  std::filesystem::resize_file(folder.path() / "t" / "trace.5.et",
                               std::filesystem::file_size(folder.path() / "t" / "trace.5.et") - 5);
  const CommandResult cut = run_command("ns-dist lint t", folder.path());
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT(cut.out, ContainsRegex("rank 5: t/trace.5.et, byte [0-9]+: the file ends [0-9]+ bytes into a frame"));
  std::ofstream(folder.path() / "t" / "comm_groups.json") << "{\"1\": [0]}";
  EXPECT_THAT(run_command("ns-dist lint t", folder.path()).out, ContainsRegex("rank 0, node [0-9]+ .*group 1 has one"));
  const CommandResult missing = run_command("ns-dist lint nothing_here", folder.path());
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("nothing_here: no traces here"));
  const CommandResult one = run_command("ns-dist lint t/trace.0.et", folder.path());
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(one.err, HasSubstr("t/trace.0.et: this is the trace of one rank"));
  EXPECT_THAT(one.err, HasSubstr("write t/trace"));
}

// A mistake that is the same everywhere is shown a few times, with its remedy.
TEST(Traces, AMissingFileOfGroupsIsToldOnce) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --output t", folder.path());
  std::filesystem::remove(folder.path() / "t" / "comm_groups.json");
  const CommandResult lint = run_command("ns-dist lint t", folder.path());
  EXPECT_EQ(lint.code, 1);
  EXPECT_THAT(lint.out, HasSubstr("\nnote: no communicator groups were read: name their file (comm_groups.json)"));
  int shown = 0;
  const std::string same = "group 1 is not defined";
  for (std::size_t at = lint.out.find(same); at != std::string::npos; at = lint.out.find(same, at + 1)) ++shown;
  EXPECT_EQ(shown, 3);
  EXPECT_THAT(run_command("ns-dist replay t", folder.path()).err, HasSubstr("with --groups FILE\n"));
}

TEST(Traces, MergedKernelsEndAtTheSameTimes) {
  const ScratchFolder folder;
  const std::string work = "export --model gpt2 --tp 2 --pp 2 --dp 2 --global-batch 4 --encoding roofline --output ";
  answered(work + "plain", folder.path());
  answered(work + "merged --merge-kernels", folder.path());
  const json plain = json::parse(answered("replay plain --json", folder.path()).out);
  const json merged = json::parse(answered("replay merged --json", folder.path()).out);
  for (std::size_t rank = 0; rank < 8; ++rank) {
    const json &one = plain["ranks"][rank], &other = merged["ranks"][rank];
    EXPECT_NEAR(one["finish_ns"].get<double>(), other["finish_ns"].get<double>(),
                1);  // rounded once or kernel by kernel
    EXPECT_NEAR(one["communication_ns"].get<double>(), other["communication_ns"].get<double>(), 2);
    EXPECT_NEAR(one["kernel_ns"].get<double>(), other["kernel_ns"].get<double>(), 2);  // sums of rounded nanoseconds
  }
  EXPECT_LT(merged["nodes"].get<int>(), 0.8 * plain["nodes"].get<int>());
  const json manifest = json::parse(read_text(folder.path() / "merged" / "manifest.json"));
  EXPECT_EQ(manifest["nodes"], merged["nodes"]);
  EXPECT_EQ(manifest["provenance"]["version"], std::string(version()));
  const json again = json::parse(answered("--from merged/manifest.json --json", folder.path()).out);
  EXPECT_EQ(again["step_time_s"], manifest["step_time_s"]) << "the manifest tells the plan";
  EXPECT_EQ(manifest["ranks"], 8);
}

TEST(Traces, ExportTouchesNoForeignFolder) {
  const ScratchFolder folder;
  const std::string work = "export --model gpt2 --global-batch 2 --output t ";
  answered(work + "--dp 2", folder.path());
  answered(work + "--dp 2", folder.path());  // the same again
  refused(work, folder.path(), 1, "t: holds traces up to rank 1, and this plan has 1 ranks.*--force");
  refused(work + "--dp 2 --prefix ../x", folder.path(), 2, "--prefix: \"../x\" is no beginning");
  refused(work + "--dp 2 --prefix ''", folder.path(), 2, "--prefix");
  std::ofstream(folder.path() / "t" / "thesis.tex") << "mine";
  refused(work + "--dp 2", folder.path(), 1, "t: holds files that are no export's: thesis.tex.*--force");
  EXPECT_THAT(answered(work + "--force", folder.path()).out, HasSubstr("ASTRA-Sim runs two ranks or more"));
  EXPECT_EQ(read_text(folder.path() / "t" / "thesis.tex"), "mine");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "t" / "trace.1.et"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "t" / "network.yml")) << "that of two ranks";
  // A compressed trace of the same rank would make two of it.
  std::filesystem::rename(folder.path() / "t" / "trace.0.et", folder.path() / "t" / "trace.0.et.gz");
  std::filesystem::remove(folder.path() / "t" / "thesis.tex");
  refused(work, folder.path(), 1, "t: holds compressed traces up to rank 0.*--force");
  answered(work + "--force", folder.path());
  answered("lint t", folder.path());
}

// Another prefix takes the place of the traces that an export left.
TEST(Traces, AnExportOfAnotherNameReplacesTheEarlierOne) {
  const ScratchFolder folder;
  const std::string work = "export --model gpt2 --global-batch 2 --output t ";
  answered(work + "--dp 2", folder.path());
  std::ofstream(folder.path() / "t" / "others.0.et") << "mine";
  refused(work + "--prefix new", folder.path(), 1, "t: holds files that are no export's: others.0.et");
  std::filesystem::remove(folder.path() / "t" / "others.0.et");
  answered(work + "--prefix new", folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "t" / "trace.0.et"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "t" / "trace.1.et"));
  answered("lint t", folder.path());
  // A name that is no text in UTF-8 is a name, too.
  answered(work + "--prefix $'\\xff'", folder.path());
}

// Files of the names of an export that nobody exported stay.
TEST(Traces, NamesOfAnExportMayBeAnothers) {
  const ScratchFolder folder;
  answered("export --model gpt2 --global-batch 2 --dp 2 --gpu h100 --output t", folder.path());
  const std::vector<const char*> names = {"README.md", "system.json", "network.yml", "manifest.json", "trace.0.et"};
  std::filesystem::create_directory(folder.path() / "f");
  for (const char* name : names) std::ofstream(folder.path() / "f" / name) << "mine";
  refused("export --model gpt2 --global-batch 2 --dp 2 --output f", folder.path(), 1,
          "f: holds files that are no export's: README.md and 4 more; expected an empty folder");
  refused("annotate t --gpu h100 --output f", folder.path(), 1, "f: holds files that are no export's");
  for (const char* name : names) EXPECT_EQ(read_text(folder.path() / "f" / name), "mine") << name;
  answered("annotate t --gpu h100 --output f --force", folder.path());
  EXPECT_EQ(read_text(folder.path() / "f" / "README.md"), "mine");
  EXPECT_NE(read_text(folder.path() / "f" / "network.yml"), "mine");
  refused("annotate t --gpu h100 --output f", folder.path(), 1, "f: holds files that are no export's: README.md;");
}

// An export that is as large as wanted says what it writes, also where nobody watches.
TEST(Traces, ExportSaysWhatItWrites) {
  const ScratchFolder folder;
  const std::string work = "export --model gpt2 --global-batch 2 --dp 2 --output ";
  EXPECT_EQ(answered(work + "t", folder.path()).err, "");
  const CommandResult large = run_command("ns-dist " + work + "l --large", folder.path());
  EXPECT_EQ(large.code, 0);
  EXPECT_THAT(large.err, ::testing::MatchesRegex("writing 2 traces, [0-9.]+ [KM]?i?B\n"));
}

// Traces whose kernels do not tell what they compute keep their durations: that is told, and what would scale them.
TEST(Traces, AnnotateTellsWhatItKeeps) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --no-operators --output t", folder.path());
  EXPECT_THAT(run_command("ns-dist annotate t --gpu b200 --output kept", folder.path()).err,
              HasSubstr("% of the recorded time is kept as it was"));
  const CommandResult scaled = answered("annotate t --gpu b200 --recorded-on h100 --output scaled", folder.path());
  EXPECT_EQ(scaled.err, "");
  EXPECT_THAT(scaled.out, HasSubstr("network.yml is a copy"));
}

// Where the host launches kernels more slowly than a GPU runs them, the other GPU's waits follow from its own kernels:
// what an export for that GPU says, but for the network, which stays.
TEST(Traces, AnnotateWaitsAsLongAsTheOtherGpuDoes) {
  const ScratchFolder folder;
  const auto step_of = [&](const std::string& traces) {
    double last = 0;
    const json replayed = json::parse(answered("replay " + traces + " --json", folder.path()).out);
    for (const json& rank : replayed["ranks"]) last = std::max(last, rank["finish_ns"].get<double>());
    return last;
  };
  for (const std::string& merged : {std::string(), std::string(" --merge-kernels")}) {
    const std::string work = "export --model gpt3-13b --tp 4 --pp 2 --global-batch 4 --force" + merged + " --output ";
    for (const std::string gpu : {"h100", "a100", "b200"}) {
      answered(work + gpu + " --gpu " + gpu, folder.path());
    }
    for (const std::string from : {"h100", "a100"}) {
      for (const std::string to : {"h100", "a100", "b200"}) {
        const json report = json::parse(
            answered("annotate " + from + " --gpu " + to + " --force --json --output new", folder.path()).out);
        EXPECT_GT(report["ways"]["host's launches"]["kernels"].get<int>(), 0);
        EXPECT_EQ(report["waits_kept"], 0);
        EXPECT_NEAR(step_of("new") / step_of(to), 1, 0.06) << from << " to " << to << merged;
      }
    }
    answered("annotate h100 --gpu h100 --force --output new", folder.path());
    EXPECT_NEAR(step_of("new") / step_of("h100"), 1, 1e-5);
    EXPECT_THAT(answered("lint new", folder.path()).out, HasSubstr("nothing wrong"));
  }
}

// Annotated for the GPU that it was exported for, a plan takes as long: also where collectives slow the kernels beside
// them, and where those of several streams run in an order that only ASTRA-Sim's one slot asks for.
TEST(Traces, AnnotateForTheSameGpuChangesNothing) {
  const ScratchFolder folder;
  const auto replayed = [&](const std::string& traces) {
    return json::parse(answered("replay " + traces + " --json", folder.path()).out)["step_time_s"].get<double>();
  };
  for (const char* plan : {"--model gpt3-1.3b --layers 4 --tp 2 --dp 4 --zero 2 --global-batch 16",
                           "--model llama3-8b --layers 4 --dp 8 --zero 3 --global-batch 8 --seq 1024",
                           "--model mixtral-8x7b --layers 2 --tp 2 --ep 4 --dp 8 --global-batch 16 --seq 1024"}) {
    answered(std::string("export --force --output a ") + plan, folder.path());
    const json report = json::parse(answered("annotate a --gpu h100 --force --json --output b", folder.path()).out);
    EXPECT_GT(report["ways"]["host's launches"]["kernels"].get<int>(), 0) << plan;
    EXPECT_NEAR(replayed("b") / replayed("a"), 1, 1e-6) << plan;
  }
}

// A GPU without the number format keeps the durations and says why; the folder says what the traces were exported from.
TEST(Traces, AnnotateSaysWhichKernelsAGpuCannotRun) {
  const ScratchFolder folder;
  answered("export --model gpt2 --layers 2 --dtype fp8 --dp 2 --global-batch 2 --output t", folder.path());
  const CommandResult result = run_command("ns-dist annotate t --gpu a100 --json --output u", folder.path());
  EXPECT_THAT(result.err, HasSubstr("some kernels cannot be forecast for NVIDIA A100 SXM4 80GB: a100-sxm-80gb: "
                                    "a100-sxm-80gb has no rate for fp8"));
  EXPECT_GT(json::parse(result.out)["ways"]["kept"]["kernels"].get<int>(), 0);
  answered("annotate u --gpu b200 --output v", folder.path());
  const auto manifest = [&](const char* traces) {
    return json::parse(read_text(folder.path() / traces / "manifest.json"));
  };
  EXPECT_EQ(manifest("t")["inputs"]["training"]["dtype"], "fp8");
  EXPECT_EQ(manifest("u")["exported"], manifest("t"));
  EXPECT_EQ(manifest("v")["exported"], manifest("t"));
}

// What the host computes by itself is told, and is another one's on another machine.
TEST(Traces, AnnotateTellsTheHostsOwnWork) {
  const ScratchFolder folder;
  answered("export --model gpt2 --dp 2 --global-batch 2 --offload-optimizer 1 --output t", folder.path());
  const CommandResult result = run_command("ns-dist annotate t --gpu b200 --json --output new", folder.path());
  EXPECT_THAT(result.err, HasSubstr("% of the recorded time is the host's own work"));
  const json host = json::parse(result.out)["ways"]["host's work"];
  EXPECT_GT(host["kernels"].get<int>(), 0);
  EXPECT_EQ(host["recorded_ms"], host["now_ms"]);
}

// The manifest says how many traces belong together.
TEST(Traces, AMissingLastRankIsNoticed) {
  const ScratchFolder folder;
  answered("export --model gpt2 --dp 2 --global-batch 2 --output t", folder.path());
  std::filesystem::remove(folder.path() / "t" / "trace.1.et");
  for (const char* command : {"lint t", "replay t", "annotate t --gpu h100 --output u"}) {
    refused(command, folder.path(), 1, "the trace of rank 1 is missing; expected 2 ranks, as manifest.json says");
  }
}

// Recorded durations are not lost: the folder that is read is not the one that is written, however it is named.
TEST(Traces, AnnotateLeavesWhatItReads) {
  const ScratchFolder folder;
  answered("export --model gpt2 --global-batch 2 --dp 2 --output t", folder.path());
  const std::string before = read_text(folder.path() / "t" / "trace.0.et");
  for (const char* output : {"t", "t/", "./t/../t"}) {
    refused("annotate t --gpu b200 --force --output " + std::string(output), folder.path(), 2,
            "--output: \"[t./]*\" is the folder that is read; expected another folder");
  }
  refused("annotate trace --gpu b200 --output .", folder.path() / "t", 2, "--output: \".\" is the folder that is read");
  EXPECT_EQ(read_text(folder.path() / "t" / "trace.0.et"), before);
  answered("annotate t --gpu b200 --output other", folder.path());
  EXPECT_NE(read_text(folder.path() / "other" / "trace.0.et"), before);
}

// What is repaired goes by way of no file that is there already.
TEST(Traces, RepairTouchesNoOtherFile) {
  const ScratchFolder folder;
  answered("export --model gpt2 --global-batch 2 --output t", folder.path());
  std::ofstream(folder.path() / "annotated_out.et") << "mine";
  answered("annotate t/trace.0.et --gpu h100 --repair --output out.et", folder.path());
  EXPECT_EQ(read_text(folder.path() / "annotated_out.et"), "mine");
  std::filesystem::copy_file(folder.path() / "t" / "trace.0.et", folder.path() / "annotated_in.et");
  answered("annotate annotated_in.et --gpu h100 --repair --output in.et", folder.path());
  EXPECT_EQ(read_text(folder.path() / "in.et"), read_text(folder.path() / "out.et"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 5) << "nothing else is left";
  refused("annotate t/trace.0.et --gpu h100 --repair --output no/out.et", folder.path(), 1, "no/out.et");
}

// The trace of one rank is that of a run on all ranks.
TEST(Traces, AnnotateCountsTheRanksBesideOneTrace) {
  const ScratchFolder folder;
  answered("export --model gpt2 --global-batch 8 --dp 8 --gpu h100 --output t", folder.path());
  answered("annotate t --gpu h100 --output all", folder.path());
  answered("annotate t/trace.3.et --gpu h100 --output one.et", folder.path());
  EXPECT_EQ(read_text(folder.path() / "one.et"), read_text(folder.path() / "all" / "trace.3.et"));
}

// What a plan makes of its kernels, uneven experts or a slow stage, is in annotated traces, too: on the same GPU they
// take as long as exported.
TEST(Traces, AnnotateKeepsWhatThePlanMakesOfKernels) {
  const std::string moe = "--model mixtral-8x7b --layers 2 --global-batch 4 ";
  const std::string dense = "--model gpt2 --tp 2 --pp 2 --global-batch 4 ";
  for (const std::string& plan :
       {moe + "--tp 2 --ep 4 --dp 4 --expert-imbalance 1.5", moe + "--tp 2 --ep 1 --dp 2", moe + "--tp 2 --ep 4 --dp 4",
        dense + "--slow-rank 0:1.3", dense + "--stage-speed 1,0.8"}) {
    for (const std::string& merged : {std::string(), std::string(" --merge-kernels --encoding roofline")}) {
      const ScratchFolder folder;
      const std::string work = "export " + plan + " --gpu h100" + merged;
      answered(work + " --output t", folder.path());
      answered("annotate t --gpu h100 --output new", folder.path());
      const json old = json::parse(answered("replay t --json", folder.path()).out)["ranks"];
      const json now = json::parse(answered("replay new --json", folder.path()).out)["ranks"];
      for (std::size_t rank = 0; rank < old.size(); ++rank) {
        EXPECT_NEAR(now[rank]["kernel_ns"].get<double>() / old[rank]["kernel_ns"].get<double>(), 1, 1e-5)
            << plan << merged << ", rank " << rank;
      }
    }
  }
}

// Without operators, the kernels of both encodings are scaled by the GPUs' rooflines, and waits stay.
TEST(Traces, AnnotateScalesNoWaits) {
  const ScratchFolder folder;
  for (const std::string encoding : {"roofline", "durations"}) {
    answered("export --model gpt2 --tp 2 --global-batch 2 --gpu h100 --no-operators --encoding " + encoding +
                 " --output " + encoding,
             folder.path());
    const json report =
        json::parse(answered("annotate " + encoding + " --gpu a100 --recorded-on h100 --json --output new_" + encoding,
                             folder.path())
                        .out);
    EXPECT_GT(report["waits_kept"].get<int>(), 0) << encoding;
    const json &kept = report["ways"]["kept"], &scaled = report["ways"]["ratio of rooflines"];
    EXPECT_EQ(kept["kernels"], report["waits_kept"]);
    EXPECT_EQ(kept["now_ms"], kept["recorded_ms"]);
    // Memory bandwidths differ by 1.64, matrix rates by 3.17.
    const double ratio = scaled["now_ms"].get<double>() / scaled["recorded_ms"].get<double>();
    EXPECT_GT(ratio, 1.6) << encoding;
    EXPECT_LT(ratio, encoding == "roofline" ? 1.7 : 3.2);
  }
}

// New microseconds under a system json that asks for a roofline: ASTRA-Sim would not read them.
TEST(Traces, AnnotateWarnsOfARoofline) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --encoding durations --output t", folder.path());
  EXPECT_EQ(answered("annotate t --gpu h100 --output new", folder.path()).err, "");
  json system = json::parse(read_text(folder.path() / "t" / "system.json"));
  system["roofline-enabled"] = 1;
  std::ofstream(folder.path() / "t" / "system.json") << system;
  const CommandResult warned = run_command("ns-dist annotate t --gpu h100 --output roofline", folder.path());
  EXPECT_EQ(warned.code, 0);
  EXPECT_THAT(warned.err, ContainsRegex("warning: system.json has \"roofline-enabled\": 1.* of [0-9,]+ kernels"));
}

// Traces of one GPU become those of another: what an export for that GPU says.
TEST(Traces, AnnotateGivesTheStepOfTheOtherGpu) {
  const ScratchFolder folder;
  const std::string work =
      "export --model gpt2 --tp 2 --global-batch 2 --cluster dgx-a100 --cuda-graphs on --merge-kernels ";
  const std::string kernels = std::string(kAstra) + "--encoding roofline ";
  answered(work + kernels + "--output old", folder.path());
  const CommandResult result = answered("annotate old --gpu h100 --output new", folder.path());
  EXPECT_THAT(result.out, ContainsRegex("operator attribute +[0-9,]+ +100.0 %"));
  answered("export --model gpt2 --tp 2 --global-batch 2 --gpu h100 --cuda-graphs on --merge-kernels" + kernels +
               "--output h100",
           folder.path());
  const json ours = json::parse(answered("replay h100 --json", folder.path()).out)["ranks"];
  const json annotated = json::parse(answered("replay new --json", folder.path()).out)["ranks"];
  for (std::size_t rank = 0; rank < 2; ++rank) {  // each kernel is told in whole nanoseconds
    EXPECT_NEAR(annotated[rank]["kernel_ns"].get<double>() / ours[rank]["kernel_ns"].get<double>(), 1, 1e-5);
  }
  EXPECT_THAT(answered("lint new", folder.path()).out, HasSubstr("nothing wrong"));

  // One file, gzipped; a GPU whose attributes are gone scales by the rooflines.
  answered(work + kernels + "--no-operators --output plain", folder.path());
  const json ways = json::parse(
      answered("annotate plain/trace.0.et --gpu h100 --recorded-on a100 --json --output one.et.gz", folder.path()).out);
  EXPECT_GT(ways["ways"]["ratio of rooflines"]["kernels"].get<int>(), 0);
  EXPECT_EQ(ways["ways"]["operator attribute"]["kernels"], 0);
  refused("annotate old --output x", folder.path(), 2, "--gpu is required");
  refused("annotate old --gpu h1000 --output x", folder.path(), 1, "--gpu: unknown GPU");
  refused("annotate old --gpu h100 --recorded-on a1000 --output x", folder.path(), 1, "--recorded-on: unknown GPU");
  refused("annotate nothing --gpu h100 --output x", folder.path(), 1, "nothing: no traces here");
  refused("annotate old/trace.0.et --gpu h100 --output old/trace.0.et", folder.path(), 2, "old/trace.0.et");
  refused("annotate old/network.yml --gpu h100 --output x.et", folder.path(), 1, "old/network.yml, byte");
}

}  // namespace
}  // namespace ns_dist
