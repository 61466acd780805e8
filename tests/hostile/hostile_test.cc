// Can a command line or a file hurt us? Every line of command_lines.txt ends with exit code 0, 1 or 2, by no signal, in
// 100 seconds of the processor and less than 1 GB of address space; an answer in JSON has a finite step.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support/run_command.h"

namespace ns_dist {
namespace {

const std::filesystem::path kHere = std::filesystem::path(NS_DIST_SOURCE_DIR) / "tests" / "hostile";

// Sanitizers reserve terabytes of addresses. They are slow, and so is code that is not optimized.
#ifdef NS_DIST_SLOW_BUILD
constexpr const char* kLimits = "ulimit -c 0; timeout -s KILL 600 ";
#else
// Seconds of the processor, not of the clock. The slowest line takes 4 on a fast machine: others may take many times
// as long, and only what does not end is stopped.
constexpr const char* kLimits =
    "export MALLOC_ARENA_MAX=2; ulimit -c 0; ulimit -v 1000000; ulimit -t 100; timeout -s KILL 600 ";
#endif

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// `text` packed, `times` times: members of one gzip file (RFC 1952, section 2.2).
void write_packed(const std::filesystem::path& path, const std::string& begin, const std::string& text, int times) {
  for (const std::string& part : {begin, text}) {
    const gzFile file = gzopen(path.c_str(), "ab1");
    gzwrite(file, part.data(), static_cast<unsigned>(part.size()));
    gzclose(file);
  }
  const std::string head = begin.empty() ? "" : read_text(path);
  std::filesystem::remove(path);
  const gzFile file = gzopen(path.c_str(), "wb1");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const std::string member = read_text(path);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (!head.empty()) out << head;
  for (int i = 0; i < times; ++i) out << member;
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

// What is too large, or too plain, to lie in files/.
void make_files(const std::filesystem::path& folder) {
  std::filesystem::copy(kHere / "files", folder, std::filesystem::copy_options::recursive);
  const std::string deep = repeated("[", 200'000) + repeated("]", 200'000);
  const std::string long_word(1'000'000, 'x');
  write(folder / "deep.json", deep);
  write(folder / "deep_schema.json", R"({"schema": )" + deep + "}");
  write(folder / "deep_objects.json", repeated(R"({"inputs":)", 100'000) + "1" + repeated("}", 100'000));
  write(folder / "wordy.json", R"({"schema": ")" + long_word + R"(", "id": ")" + long_word + R"("})");
  write(folder / "many_keys.json", [] {
    std::string text = "{";
    for (int i = 0; i < 200'000; ++i) text += "\"k" + std::to_string(i) + "\": 1,";
    return text + "\"schema\": \"ns-dist/gpu/1\"}";
  }());
  write(folder / "large.json", "{" + std::string(20 << 20, ' ') + "}");
  write(folder / "zero_bytes.json", std::string(4096, '\0'));
  write(folder / "one_line.csv", "gpu,op,m,n,k\n" + long_word);
  write(folder / "commas.csv", std::string(2'000'000, ','));
  write(folder / "long_fields.csv", "gpu,op,m,n,k\n" + repeated(long_word + ",gemm,1,1,1\n", 3));
  write(folder / "bad_rows.csv", "gpu,op,m,n,k\n" + repeated("h100,nothing,1,1,1\n", 20'000));
  write(folder / "blank.csv", "gpu,op,m,n,k\n" + std::string(8 << 20, '\n'));
  write(folder / "bad_collectives.csv", "gpu,collective,ranks,bytes\n" + repeated("h100,all_reduce,-1,x\n", 20'000));
  write_packed(folder / "zeros.csv.gz", "", std::string(64 << 20, '\0'), 64);  // 4 GiB
  write_packed(folder / "newlines.csv.gz", "gpu,op,m,n,k\n", std::string(64 << 20, '\n'), 8);
  write_packed(folder / "rows.csv.gz", "collective,ranks,bytes,latency_ms\n", repeated("1,1,1,1\n", 8 << 20), 8);
  write_packed(folder / "zeros.0.et.gz", "", std::string(64 << 20, '\0'), 8);
  std::filesystem::create_directories(folder / "traces");
  write(folder / "traces" / "trace.0.et", std::string("\xff\xff\xff\xff\x07", 5) + std::string(100, 'x'));
  std::filesystem::create_directories(folder / "looped");
  std::filesystem::create_symlink("loop.json", folder / "looped" / "loop.json");
  std::filesystem::create_symlink("looped", folder / "looped" / "a");
}

void expect_finite(const std::string& line, const std::string& out) {
  const auto json = nlohmann::json::parse(out, nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("step_time_s")) return;
  for (const char* key : {"step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "mfu"}) {
    ASSERT_TRUE(json[key].is_number()) << line << "\n" << key << ": " << json[key];
    EXPECT_TRUE(std::isfinite(json[key].get<double>())) << line << "\n" << key;
  }
  EXPECT_GT(json["step_time_s"].get<double>(), 0) << line;
}

// No byte that a terminal obeys, and no flood.
void expect_tame(const std::string& line, const std::string& text) {
  EXPECT_LT(text.size(), 200'000u) << line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    ASSERT_TRUE((byte >= 0x20 && byte != 0x7F) || byte == '\n') << line << "\nbyte " << int{byte} << " on stderr";
  }
}

// Every `parts`-th line, beginning with line `part`.
void run_lines(const std::string& name, int part = 0, int parts = 1) {
  const ScratchFolder folder;
  make_files(folder.path());
  std::istringstream lines(read_text(kHere / name));
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    if (count++ % parts != part) continue;
    // "before | ns-dist ...": the limits are those of ns-dist.
    std::string command = line;
    const std::size_t at = command.find("ns-dist");
    ASSERT_NE(at, std::string::npos) << line;
    command.replace(at, 7, "{ " + std::string(kLimits) + "ns-dist");
    const CommandResult result = run_command(command + "; }", folder.path());
    EXPECT_TRUE(result.code >= 0 && result.code <= 2) << line << "\nexit code " << result.code << "\n" << result.err;
    EXPECT_TRUE(result.code == 0 || !(result.err + result.out).empty()) << line << "\nrefused without a word";
    expect_tame(line, result.err);
    if (result.code == 0) expect_finite(line, result.out);
  }
  EXPECT_GT(count, 20);
}

TEST(Hostile, CommandLinesAreAnsweredOrRefused) { run_lines("command_lines.txt"); }

constexpr int kParts = 9;
class HostileFiles : public ::testing::TestWithParam<int> {};
TEST_P(HostileFiles, AreAnsweredOrRefused) { run_lines("files.txt", GetParam(), kParts); }
INSTANTIATE_TEST_SUITE_P(Parts, HostileFiles, ::testing::Range(0, kParts));

// Every number of a report, replaced by what no machine has: refused, or a finite answer.
TEST(Hostile, EditedReportsAreAnsweredOrRefused) {
  const ScratchFolder folder;
  const auto report = nlohmann::ordered_json::parse(
      run_command("ns-dist --model gpt2 --tp 2 --pp 2 --dp 2 --global-batch 8 --json").out);
  std::vector<nlohmann::ordered_json::json_pointer> numbers;
  const nlohmann::ordered_json inputs = report["inputs"].flatten();
  for (const auto& [place, value] : inputs.items()) {
    const bool quantity = value.is_string() && !value.get<std::string>().empty() &&
                          std::isdigit(static_cast<unsigned char>(value.get<std::string>().front())) != 0 &&
                          value.get<std::string>().find(' ') != std::string::npos;
    if (value.is_number() || quantity) numbers.emplace_back(place);
  }
  ASSERT_GT(numbers.size(), 40u);
  const nlohmann::ordered_json hostile_numbers[] = {0, -1, 1e308, 1e-308, 1e9, 999'999'937};
  int accepted = 0, asked = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    nlohmann::ordered_json edited = report;
    nlohmann::ordered_json& value = edited["inputs"][numbers[i]];
    const auto& other = hostile_numbers[i % std::size(hostile_numbers)];
    if (value.is_string()) {
      const std::string text = value.get<std::string>();
      value = (i % 2 == 0 ? "1e300" : "1e-300") + text.substr(text.find(' '));
    } else {
      value = other;
    }
    write(folder.path() / "report.json", edited.dump());
    const std::string line = numbers[i].to_string() + " = " + value.dump();
    const CommandResult result = run_command(std::string(kLimits) + "ns-dist --from report.json --json", folder.path());
    ++asked;
    accepted += result.code == 0;
    EXPECT_TRUE(result.code == 0 || result.code == 1) << line << "\nexit code " << result.code << "\n" << result.err;
    if (result.code == 0) expect_finite(line, result.out);
    EXPECT_TRUE(!value.is_string() || result.code == 1) << line;
  }
  EXPECT_LT(accepted, asked / 2);
}

#ifdef __SANITIZE_ADDRESS__
// A report ends a program with a code of its own: with 1 it would count as a refusal above.
TEST(Hostile, ReportsOfSanitizersAreNoRefusals) {
  if (std::getenv("GTEST_TOTAL_SHARDS") == nullptr) GTEST_SKIP() << "ctest sets the code";
  volatile std::size_t past = 1;
  EXPECT_EXIT(
      {
        const auto one = std::make_unique<char[]>(past);
        std::exit(*(one.get() + past));
      },
      ::testing::ExitedWithCode(99), "runtime error|AddressSanitizer");
  volatile int most = std::numeric_limits<int>::max();
  EXPECT_EXIT({ std::exit(most + 1); }, ::testing::ExitedWithCode(99), "signed integer overflow");
}
#endif

}  // namespace
}  // namespace ns_dist
