#include "ns_dist/csv_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "ns_dist/files.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/trimmed.h"
#include "ns_dist/internal/with_commas.h"

namespace ns_dist {
namespace {

Error error_at(std::string where, std::string message, std::string expected = "", std::string hint = "") {
  return {ErrorCode::kInvalidInput, std::move(message), std::move(where), std::move(expected), std::move(hint)};
}

Error unclosed_quote(std::string where) {
  return error_at(std::move(where), "a quote is not closed on its line",
                  "fields without line breaks, in quotes where they hold commas");
}

// Limits of what is kept in memory. A table of measurements has less than a tenth of them; CsvStream reads any number
// of rows.
constexpr std::size_t kLargestTable = 256 * kMebibyte;  // unpacked
constexpr std::size_t kMostRows = 5'000'000, kMostColumns = 1000;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // spreadsheets mark UTF-8 so

// A file or a pipe, plain or gzipped; standard input by the name "-".
Result<gzFile> opened(const std::filesystem::path& path) {
  const bool standard = path == "-";
  const int file = standard ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (struct stat status = {}; file >= 0 && ::fstat(file, &status) == 0 && S_ISDIR(status.st_mode)) {
    ::close(file);
    return fail({ErrorCode::kInvalidInput, "this is a folder", path.string(), "a file of CSV, plain or gzipped"});
  }
  if (const gzFile opened = file < 0 ? nullptr : gzdopen(file, "rb"); opened != nullptr) return opened;
  return fail({ErrorCode::kNotFound, fmt::format("cannot be opened: {}", std::strerror(errno)), path.string(),
               "CSV, plain or gzipped"});
}

bool is_blank(char c) { return c == ' ' || c == '\t'; }

// Without the blanks and the quotes around it.
std::string_view value_of(std::string_view field) {
  field = trimmed(field);
  if (field.size() >= 2 && field.front() == '"' && field.back() == '"') field = field.substr(1, field.size() - 2);
  return field;
}

// Hands over the fields of a line as they stand there. Whether every quote is closed; where one is not, the last field
// reaches to the end of the line.
template <class OnField>
bool split(std::string_view line, const OnField& on_field) {
  std::size_t begin = 0;
  bool closed = true;
  while (true) {
    std::size_t start = begin;
    while (start < line.size() && is_blank(line[start])) ++start;
    std::size_t end = begin;
    if (start < line.size() && line[start] == '"') {
      end = line.find('"', start + 1);
      while (end != std::string_view::npos && end + 1 < line.size() && line[end + 1] == '"')
        end = line.find('"', end + 2);
      closed = end != std::string_view::npos;
      if (closed) end = line.find(',', end);
    } else {
      end = line.find(',', begin);
    }
    if (end == std::string_view::npos) end = line.size();
    on_field(line.substr(begin, end - begin));
    if (end >= line.size()) return closed;
    begin = end + 1;
  }
}

}  // namespace

std::filesystem::path table_path(const std::filesystem::path& folder, std::string_view name) {
  for (const char* extension : {".csv", ".csv.gz"}) {
    const auto candidate = folder / (std::string(name) + extension);
    std::error_code ignored;
    if (std::filesystem::is_regular_file(candidate, ignored)) return candidate;
  }
  return {};
}

Result<CsvTable> CsvTable::read(const std::filesystem::path& path) {
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  NS_TRY(const gzFile opened_file, opened(path));
  const std::unique_ptr<gzFile_s, Close> file(opened_file);
  std::string text;
  std::vector<char> buffer(1 << 20);
  while (true) {
    const int count = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    if (count < 0) return fail(error_at(path.string(), "cannot be unpacked", "CSV, plain or gzipped"));
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > kLargestTable) {
      return fail(error_at(path.string(), "is too large",
                           fmt::format("a table of at most {} MiB, unpacked", kLargestTable / kMebibyte)));
    }
  }
  int status = Z_OK;
  gzerror(file.get(), &status);
  if (status != Z_OK && status != Z_STREAM_END)
    return fail(error_at(path.string(), "is cut short", "a whole gzip file"));
  return parse(std::move(text), path.string());
}

void CsvTable::find_rows(std::int64_t lines_before) {
  const std::string_view all = text_;
  std::size_t begin = lines_before == 0 && all.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  std::int64_t line = lines_before;
  while (begin < all.size()) {
    std::size_t end = all.find('\n', begin);
    if (end == std::string_view::npos) end = all.size();
    std::size_t size = end - begin;
    if (size > 0 && all[begin + size - 1] == '\r') --size;
    ++line;
    if (size > 0) rows_.push_back({begin, size, line});
    if (rows_.size() > kMostRows + 1) return;  // parse() refuses them
    begin = end + 1;
  }
}

Result<CsvTable> CsvTable::parse(std::string text, std::string where) {
  CsvTable table;
  table.text_ = std::move(text);
  table.where_ = std::move(where);
  const std::string_view start = table.text_;
  if (start.starts_with("\xFF\xFE") || start.starts_with("\xFE\xFF")) {
    return fail(error_at(table.where_, "is text in UTF-16", "CSV in UTF-8"));
  }
  const std::size_t end = start.find_first_of("\r\n");
  const bool ends_by_return = end != std::string_view::npos && start[end] == '\r' && end + 1 < start.size();
  if (ends_by_return && start.find('\n', end) == std::string_view::npos) {
    return fail(
        error_at(table.where_, "has lines that end with a carriage return alone", "lines that end with LF or CRLF"));
  }
  table.find_rows(0);
  if (table.rows_.empty()) return fail(error_at(table.where_, "is empty", "a header line and rows"));
  if (table.rows_.size() > kMostRows + 1) {
    return fail(error_at(table.where_, "has too many rows", fmt::format("at most {}", kMostRows)));
  }
  const std::string_view names = table.text(0);
  if (static_cast<std::size_t>(std::count(names.begin(), names.end(), ',')) >= kMostColumns) {
    return fail(error_at(table.where_ + ":1", "has too many columns", fmt::format("at most {}", kMostColumns)));
  }
  if (!split(table.text(0), [&](std::string_view name) { table.columns_.emplace_back(value_of(name)); })) {
    return fail(unclosed_quote(table.where_ + ":1"));
  }
  table.rows_.erase(table.rows_.begin());
  std::set<std::string> seen;
  for (const std::string& name : table.columns_) {
    if (!seen.insert(name).second) {
      return fail(error_at(table.where_ + ":1", fmt::format("column \"{}\" appears twice", shortened(name)),
                           "a name for each column in the first line, all different"));
    }
  }
  return table;
}

struct CsvStream::File {
  gzFile file = nullptr;
  double size = 0;  // bytes, packed
  bool ended = false;
  ~File() {
    if (file != nullptr) gzclose(file);
  }
};

CsvStream::CsvStream() : file_(std::make_unique<File>()) {}
CsvStream::CsvStream(CsvStream&&) noexcept = default;
CsvStream::~CsvStream() = default;

// Until `rest_` holds a line break after `size` bytes, or the file ends.
Result<void> CsvStream::fill(std::size_t size) {
  const std::string& where = header_.where_;
  while (!file_->ended && rest_.find('\n', size) == std::string::npos) {
    constexpr std::size_t kStep = kMebibyte, kLongestLine = 64 * kMebibyte;
    if (rest_.size() > size + kLongestLine) {
      return fail(error_at(where, "has a line of more than 64 MiB", "rows, each on a line of its own"));
    }
    const std::size_t before = rest_.size();
    rest_.resize(before + kStep);
    const int count = gzread(file_->file, rest_.data() + before, static_cast<unsigned>(kStep));
    if (count < 0) return fail(error_at(where, "cannot be unpacked", "CSV, plain or gzipped"));
    rest_.resize(before + static_cast<std::size_t>(count));
    file_->ended = count == 0;
  }
  int status = Z_OK;
  gzerror(file_->file, &status);
  if (status != Z_OK && status != Z_STREAM_END) return fail(error_at(where, "is cut short", "a whole gzip file"));
  return {};
}

Result<CsvStream> CsvStream::open(const std::filesystem::path& path) {
  CsvStream stream;
  stream.header_.where_ = path.string();
  NS_TRY(stream.file_->file, opened(path));
  std::error_code unknown;
  const auto size = std::filesystem::file_size(path, unknown);
  if (!unknown) stream.file_->size = static_cast<double>(size);
  // Blank lines may stand before the header.
  while (true) {
    NS_TRY_VOID(stream.fill(0));
    const std::size_t end = std::min(stream.rest_.find('\n'), stream.rest_.size());
    std::string line = stream.rest_.substr(0, end);
    const bool is_last = end == stream.rest_.size();
    stream.rest_.erase(0, end + (is_last ? 0 : 1));
    if (!is_last && (line.empty() || line == "\r" || line == kByteOrderMark)) {
      ++stream.lines_;
      continue;
    }
    NS_TRY(stream.header_, CsvTable::parse(std::move(line), path.string()));
    return stream;
  }
}

Result<CsvTable> CsvStream::next() {
  while (true) {
    NS_TRY_VOID(fill(kMebibyte));
    const std::size_t end = file_->ended ? rest_.size() : rest_.rfind('\n') + 1;
    CsvTable piece;
    piece.where_ = header_.where_;
    piece.columns_ = header_.columns_;
    piece.text_ = rest_.substr(0, end);
    rest_.erase(0, end);
    piece.find_rows(lines_);
    lines_ += std::count(piece.text_.begin(), piece.text_.end(), '\n');
    // A piece of blank lines is not the end.
    if (!piece.rows_.empty() || piece.text_.empty() || (file_->ended && rest_.empty())) return piece;
  }
}

double CsvStream::share() const {
  return file_->size > 0 ? std::min(1.0, static_cast<double>(gzoffset(file_->file)) / file_->size) : 0;
}

std::optional<std::size_t> CsvTable::column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found == columns_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - columns_.begin());
}

Result<void> CsvTable::fields(std::size_t row, std::vector<std::string_view>& out) const {
  out.clear();
  std::size_t count = 0;
  const bool closed = split(text(row), [&](std::string_view field) {
    if (++count <= columns_.size()) out.push_back(value_of(field));
  });
  if (closed && count <= columns_.size()) return {};
  std::string where = fmt::format("{}:{}", where_, line(row));
  if (!closed) return fail(unclosed_quote(std::move(where)));
  return fail(error_at(std::move(where), fmt::format("{} fields", count),
                       fmt::format("{}, as in the header", columns_.size()), "put fields with commas in quotes"));
}

AnsweredCsv::AnsweredCsv(const CsvTable& header, std::span<const std::string_view> answers)
    : columns_(header.columns()), answers_(answers) {
  for (const std::string& column : columns_) {
    kept_.push_back(std::find(answers.begin(), answers.end(), column) == answers.end());
  }
}

std::vector<std::string> AnsweredCsv::replaced() const {
  std::vector<std::string> replaced;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (!kept_[c]) replaced.push_back(columns_[c]);
  }
  return replaced;
}

std::string AnsweredCsv::header() const {
  std::string line;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const bool quoted = columns_[c].find(',') != std::string::npos;
    if (kept_[c]) line += (quoted ? '"' + columns_[c] + '"' : columns_[c]) + ',';
  }
  return line + fmt::format("{}\n", fmt::join(answers_, ","));
}

void AnsweredCsv::append_row(const CsvTable& piece, std::size_t row, std::string& out) const {
  std::size_t column = 0;
  const auto append = [&](std::string_view field) {
    if (column < kept_.size() && kept_[column]) (out += field) += ',';
    ++column;
  };
  const bool closed = split(piece.text(row), append);
  if (!closed && column <= kept_.size() && kept_[column - 1]) out.insert(out.size() - 1, 1, '"');
  while (column < kept_.size()) append("");
}

std::optional<double> usable_latency(std::string_view text) {
  const auto latency = number_from<double>(text);
  return latency && *latency >= 1e-9 && *latency <= 1e9 ? latency : std::nullopt;
}

Error bad_latency(std::string_view text, std::string where) {
  return {ErrorCode::kInvalidInput, fmt::format("latency_ms is \"{}\"", shortened(text)), std::move(where),
          "a positive number of ms from 1e-9 to 1e9, or nothing"};
}

Result<double> measured_ms(const std::optional<double>& latency_ms, std::string_view bad, std::string where) {
  if (latency_ms) return *latency_ms;
  Error error = bad_latency(bad, std::move(where));
  if (bad.empty()) error.message = "no latency_ms";
  error.expected = "a positive number of ms from 1e-9 to 1e9";
  error.hint = "measure it, or leave the row out";
  return fail(std::move(error));
}

void LeftOutRows::add(std::string what, std::string where) {
  ++rows_.try_emplace(std::move(what), 0, std::move(where)).first->second.first;
}

std::vector<std::string> LeftOutRows::notes() const {
  std::vector<std::string> notes;
  for (const auto& [what, rows] : rows_) {
    const auto& [count, first] = rows;
    notes.push_back(fmt::format("{} {}: left out, the first at {}", counted(count, "row"), what, first));
  }
  return notes;
}

std::string csv_cell(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  if (text.find_first_of("\",") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace ns_dist
