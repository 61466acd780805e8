#include "tables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "terminal.h"

namespace ns_dist::cli {

Progress::Progress(std::string_view what, std::size_t steps)
    : what_(what), steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::at(std::size_t step) {
  if (steps_ > 0) share(static_cast<double>(step) / static_cast<double>(steps_));
}

void Progress::share(double done) {
  const int percent = static_cast<int>(100 * done);
  if (!terminal_ || percent == shown_) return;
  shown_ = percent;
  constexpr int kWidth = 40;
  const auto filled = static_cast<std::size_t>(kWidth * percent / 100);
  std::fputs(
      fmt::format("\r{} {}{} {:3} %", what_, std::string(filled, '#'), std::string(kWidth - filled, '.'), percent)
          .c_str(),
      stderr);
}

void Progress::done() {
  if (terminal_ && shown_ >= 0) std::fputs("\r\033[K", stderr);
}

Result<void> write_text(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (file) return {};
  return fail(
      {ErrorCode::kInvalidInput, fmt::format("\"{}\" cannot be written", path), "--output", "a writable path", "", {}});
}

UsualCluster usual_clusters(const Catalog& catalog) {
  return [&catalog](std::string_view gpu) -> Result<Cluster> {
    NS_TRY(const Gpu found, catalog.gpu(gpu));
    NS_TRY(Cluster cluster, catalog.cluster(found.usual_cluster));
    cluster.gpu = found;
    return cluster;
  };
}

int report_rows(const std::vector<Error>& mistakes, std::size_t rows) {
  if (mistakes.empty()) return kAnswered;
  constexpr std::size_t kShown = 20;
  for (std::size_t i = 0; i < mistakes.size() && i < kShown; ++i) {
    std::fputs(fmt::format("ns-dist: {}\n", to_text(mistakes[i])).c_str(), stderr);
  }
  std::fputs(fmt::format("ns-dist: {} of {} rows could not be forecast{}\n", mistakes.size(), rows,
                         mistakes.size() > kShown ? fmt::format("; the first {} are above", kShown) : "")
                 .c_str(),
             stderr);
  return kInputAtFault;
}

}  // namespace ns_dist::cli
