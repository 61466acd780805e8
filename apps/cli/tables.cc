#include "tables.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "terminal.h"

namespace ns_dist::cli {
namespace {

Error unwritable(const std::string& path) {
  return {
      ErrorCode::kInvalidInput, fmt::format("\"{}\" cannot be written", path), "--output", "a writable path", "", {}};
}

}  // namespace

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
  return fail(unwritable(path));
}

Result<void> write_table(const std::string& path, std::string_view text) {
  if (!path.ends_with(".gz")) return write_text(path, text);
  constexpr std::size_t kPiece = std::size_t{1} << 30;  // gzwrite counts in int
  const gzFile file = gzopen(path.c_str(), "wb");
  bool good = file != nullptr;
  while (good && !text.empty()) {
    const auto piece = static_cast<unsigned>(std::min(text.size(), kPiece));
    good = gzwrite(file, text.data(), piece) == static_cast<int>(piece);
    text.remove_prefix(piece);
  }
  if (file != nullptr && gzclose(file) != Z_OK) good = false;
  if (good) return {};
  return fail(unwritable(path));
}

TableWriter::TableWriter(const std::string& path) : path_(path), written_(path) {
  if (path.empty()) return;
  // Pieces go to a file beside it: an answer that was there stays until the new one is whole.
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  const bool is_plain = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
  if (is_plain && !std::filesystem::is_symlink(path, ignored)) written_ += ".part";
  if (path.ends_with(".gz")) {
    packed_ = gzopen(written_.c_str(), "wb");
  } else {
    file_ = std::fopen(written_.c_str(), "wb");
  }
  good_ = packed_ != nullptr || file_ != nullptr;
}

TableWriter::~TableWriter() {
  if (packed_ == nullptr && file_ == nullptr) return;
  if (packed_ != nullptr) gzclose(packed_);
  if (file_ != nullptr) std::fclose(file_);
  if (written_ != path_) std::remove(written_.c_str());
}

void TableWriter::write(std::string_view text) {
  if (!good_ || text.empty()) return;
  if (packed_ != nullptr) {
    good_ = gzwrite(packed_, text.data(), static_cast<unsigned>(text.size())) == static_cast<int>(text.size());
  } else {
    // Standard output is checked by main().
    const std::size_t count = std::fwrite(text.data(), 1, text.size(), path_.empty() ? stdout : file_);
    good_ = path_.empty() || count == text.size();
  }
}

Result<void> TableWriter::finish() {
  if (path_.empty()) return {};
  if (packed_ != nullptr && gzclose(packed_) != Z_OK) good_ = false;
  if (file_ != nullptr && std::fclose(file_) != 0) good_ = false;
  packed_ = nullptr;
  file_ = nullptr;
  if (written_ != path_ && good_) good_ = std::rename(written_.c_str(), path_.c_str()) == 0;
  if (good_) return {};
  if (written_ != path_) std::remove(written_.c_str());
  return fail(unwritable(path_));
}

Result<void> check_output(const std::string& path, const std::vector<std::string>& inputs) {
  if (path.empty()) return {};
  std::error_code ignored;
  for (const std::string& input : inputs) {
    if (path != input && !std::filesystem::equivalent(path, input, ignored)) continue;
    return fail({ErrorCode::kUsage,
                 fmt::format("\"{}\" is the file that is read", path),
                 "--output",
                 "another file",
                 "it would be overwritten",
                 {}});
  }
  const auto status = std::filesystem::symlink_status(path, ignored);
  const bool there = std::filesystem::exists(status);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status)) return {};
  if (!std::ofstream(path, std::ios::binary | std::ios::app)) return fail(unwritable(path));
  if (!there) std::filesystem::remove(path, ignored);
  return {};
}

Result<void> check_mode(Mode measured, Mode asked) {
  if (measured == asked) return {};
  return fail({ErrorCode::kUsage,
               fmt::format("measured on {} kernels, and {} ones are asked for", name_of(measured), name_of(asked)),
               "--kernel-calibration",
               fmt::format("a correction of {} kernels", name_of(asked)),
               fmt::format("add --mode {}", name_of(measured)),
               {}});
}

UsualCluster usual_clusters(const Catalog& catalog) {
  return [&catalog](std::string_view gpu) -> Result<Cluster> {
    NS_TRY(const Gpu found, catalog.gpu(gpu));
    NS_TRY(Cluster cluster, catalog.cluster(found.usual_cluster));
    cluster.gpu = found;
    return cluster;
  };
}

namespace {

constexpr std::size_t kShownMistakes = 20;

int report(const std::vector<Error>& first, std::size_t mistakes, std::size_t rows) {
  if (mistakes == 0) return kAnswered;
  for (std::size_t i = 0; i < first.size() && i < kShownMistakes; ++i) {
    std::fputs(fmt::format("ns-dist: {}\n", to_text(with_flags(first[i]))).c_str(), stderr);
  }
  std::fputs(fmt::format("ns-dist: {} of {} rows could not be forecast{}\n", mistakes, rows,
                         mistakes > kShownMistakes ? fmt::format("; the first {} are above", kShownMistakes) : "")
                 .c_str(),
             stderr);
  return kInputAtFault;
}

}  // namespace

void RowMistakes::add(std::vector<Error> mistakes, std::size_t rows) {
  rows_ += rows;
  mistakes_ += mistakes.size();
  for (Error& mistake : mistakes) {
    if (first_.size() == kShownMistakes) break;
    first_.push_back(std::move(mistake));
  }
}

int RowMistakes::report() const { return cli::report(first_, mistakes_, rows_); }

int report_rows(const std::vector<Error>& mistakes, std::size_t rows) {
  return report(mistakes, mistakes.size(), rows);
}

}  // namespace ns_dist::cli
