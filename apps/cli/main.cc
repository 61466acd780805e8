// ns-dist: words become a question, the question an answer. Everything that is thrown ends here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "interrupts.h"
#include "ns_dist/catalog.h"
#include "terminal.h"

namespace {

using namespace ns_dist;
using namespace ns_dist::cli;

constexpr std::string_view kHelp = R"(ns-dist: what one training step of a large language model takes on a cluster

Copy one of these
  ns-dist --tp 8 --pp 16 --dp 8
  ns-dist --model llama2-70b --gpu a100 --nodes 16 --tp 8 --pp 4 --json
  ns-dist explain gemm 8192x8192x8192 --gpu h100

Commands; `ns-dist COMMAND --help` shows flags, defaults and units
{}
Most used flags of simulate, the default command
  --model, --gpu, --cluster     what is trained on what: ids of `ns-dist list`, or JSON files
  --nodes N                     size of the cluster; otherwise as large as the plan needs
  --tp --pp --dp N              tensor-parallel ranks, pipeline stages, data-parallel replicas
  --global-batch --micro-batch  sequences of a step, of a pass
  --recompute --zero --vpp      memory against time
  --passes forward              a forward pass alone
  --json, --report FILE         one JSON object; one HTML page for a meeting
  --trace FILE                  a timeline for ui.perfetto.dev

Exit codes: 0 answered, 1 the input is at fault, 2 usage, 70 a bug of ours
)";

void print_help() {
  std::string commands;
  for (const Command& command : kCommands) commands += fmt::format("  {:<12}{}\n", command.name, command.summary);
  std::fputs(fmt::format(fmt::runtime(kHelp), commands).c_str(), stdout);
}

int run(int argc, const char* const* argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  const bool asks_for_help = first == "help";
  if (first == "--help" || first == "-h" || (asks_for_help && argc == 2)) {
    print_help();
    return kAnswered;
  }
  if (first == "--version") return version_command(0, nullptr);
  if (first.empty() || first.starts_with('-')) return simulate_command(argc - 1, argv + 1);
  std::vector<std::string> names;
  const std::string_view wanted = asks_for_help ? argv[2] : first;
  constexpr const char* kHelpFlag = "--help";
  for (const Command& command : kCommands) {
    if (command.name == wanted) return asks_for_help ? command.run(1, &kHelpFlag) : command.run(argc - 2, argv + 2);
    names.emplace_back(command.name);
  }
  const std::string near = nearest_name(wanted, names);
  return report_error({ErrorCode::kUsage, fmt::format("unknown command \"{}\"", wanted), "",
                       fmt::format("{}, or flags of simulate", fmt::join(names, ", ")), did_you_mean(near)});
}

}  // namespace

int main(int argc, char** argv) {
  watch_signals();
  try {
    const int code = run(argc, argv);
    // A write before the last one may have failed, too.
    const bool written = std::ferror(stdout) == 0;
    if (std::fflush(stdout) == 0 && written) return code;
    end_if_nobody_reads();
    std::fputs("ns-dist: standard output cannot be written\n", stderr);
    return kInputAtFault;
  } catch (const std::bad_alloc&) {
    std::fputs("ns-dist: memory is exhausted; expected a plan or a file that fits into it\n", stderr);
    return kInputAtFault;
  } catch (const std::exception& error) {
    std::fputs(fmt::format("ns-dist: a bug of ours: {}\n", error.what()).c_str(), stderr);
  }
  return kOurBug;
}
