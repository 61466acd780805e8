#include "ns_dist/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

namespace ns_dist {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBuffer = kMebibyte;

struct Registry {
  std::recursive_mutex lock;
  std::set<fs::path> unfinished;
};

// Never destroyed: a thread may remove what is unfinished while the program ends.
Registry& registry() {
  static auto* const kRegistry = new Registry;
  return *kRegistry;
}

void forget(const fs::path& path) {
  const std::scoped_lock guard(registry().lock);
  registry().unfinished.erase(path);
}

std::string name_of(const fs::path& path) {
  return is_standard_output(path) ? std::string("standard output") : path.string();
}

Error unwritable(const fs::path& path, int why) {
  return {ErrorCode::kInvalidInput, fmt::format("cannot be written: {}", std::strerror(why)), name_of(path),
          why == ENOSPC || why == EFBIG || why == EDQUOT ? "a place with room left" : "a path that can be written"};
}

// The file that a chain of links ends at, whether or not it is there.
fs::path without_links(fs::path path) {
  constexpr int kLongestChain = 40;
  std::error_code none;
  for (int i = 0; i < kLongestChain && fs::is_symlink(fs::symlink_status(path, none)); ++i) {
    const fs::path to = fs::read_symlink(path, none);
    if (none) break;
    path = path.parent_path() / to;  // `to` alone where it is absolute
  }
  return path;
}

// The open descriptor that `path` is another name of: standard output, or the file that it goes to. Opened once more,
// it would have a position of its own, and one would overwrite the other.
std::optional<int> own_descriptor(const fs::path& path) {
  if (is_standard_output(path)) return STDOUT_FILENO;
  struct stat at = {}, own = {};
  if (::stat(path.c_str(), &at) != 0) return std::nullopt;
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::fstat(descriptor, &own) == 0 && own.st_dev == at.st_dev && own.st_ino == at.st_ino) return descriptor;
  }
  return std::nullopt;
}

}  // namespace

bool is_standard_output(const fs::path& path) {
  constexpr std::array<const char*, 5> kNames = {"", "-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"};
  const fs::path name = path.is_absolute() ? path.lexically_normal() : path;  // "./-" is a file
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

namespace {

// Why a file has no text: an error of the system, or more than is read.
struct Unread {
  int why = 0;  // errno; 0: it is too large
  Error error(std::size_t most) const {
    if (why == 0)
      return {ErrorCode::kInvalidInput, "is too large", "", fmt::format("at most {} MiB", most / kMebibyte)};
    if (why == EISDIR) return {ErrorCode::kInvalidInput, "this is a folder", "", "a file"};
    return {ErrorCode::kNotFound, fmt::format("cannot be read: {}", std::strerror(why)), "", "a file"};
  }
};

tl::expected<std::string, Unread> text_of(const fs::path& path, std::size_t most) {
  const int file = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return tl::unexpected(Unread{errno});
  std::string text;
  ssize_t count = 0;
  do {
    const std::size_t before = text.size();
    text.resize(before + std::min(kBuffer, most - before + 1));
    do {
      count = ::read(file, text.data() + before, text.size() - before);
    } while (count < 0 && errno == EINTR);
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  } while (count > 0 && text.size() <= most);
  const int why = errno;
  ::close(file);
  if (count < 0) return tl::unexpected(Unread{why});
  if (text.size() > most) return tl::unexpected(Unread{});
  return text;
}

}  // namespace

Result<std::string> read_text(const fs::path& path, std::size_t most) {
  auto text = text_of(path, most);
  if (text) return *std::move(text);
  Error error = text.error().error(most);
  error.where = path == "-" ? "standard input" : path.string();
  return fail(std::move(error));
}

Result<std::string> read_text(const fs::path& path, std::size_t most, std::string_view place,
                              std::string_view expected) {
  auto text = text_of(path, most);
  if (text) return *std::move(text);
  const Unread& unread = text.error();
  Error error = unread.error(most);
  const bool of_system = unread.why != 0 && unread.why != EISDIR;
  error.hint = of_system ? std::strerror(unread.why) : std::move(error.message);
  error.message = fmt::format("\"{}\" cannot be read", path.string());
  error.expected = unread.why == 0 ? fmt::format("{}, {}", expected, error.expected) : std::string(expected);
  error.where = place;
  return fail(std::move(error));
}

std::optional<Unfinished> Unfinished::folder(const fs::path& path) {
  const std::scoped_lock guard(registry().lock);
  if (::mkdir(path.c_str(), 0777) != 0) return std::nullopt;
  registry().unfinished.insert(path);
  return Unfinished(path);
}

Unfinished::Unfinished(Unfinished&& other) noexcept : path_(std::exchange(other.path_, {})) {}

Unfinished& Unfinished::operator=(Unfinished&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

Unfinished::~Unfinished() {
  if (path_.empty()) return;
  const std::scoped_lock guard(registry().lock);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  forget(path_);
}

bool Unfinished::move_to(const fs::path& to) {
  const std::scoped_lock guard(registry().lock);
  if (std::rename(path_.c_str(), to.c_str()) != 0) return false;
  forget(std::exchange(path_, {}));
  return true;
}

void remove_unfinished() {
  registry().lock.lock();
  std::error_code ignored;
  for (const fs::path& path : registry().unfinished) fs::remove_all(path, ignored);
}

std::unique_lock<std::recursive_mutex> uninterrupted() { return std::unique_lock(registry().lock); }

struct OutputFile::State {
  fs::path path, target;
  std::optional<Unfinished> unfinished;  // none: written in place
  int file = -1;
  gzFile packed = nullptr;  // owns `file`
  std::string buffer;
  std::uint64_t size = 0;
  int failure = 0;  // errno

  ~State() { close(); }

  void flush() {
    std::string_view rest = buffer;
    while (!rest.empty() && failure == 0) {
      errno = 0;
      const std::size_t piece = std::min(rest.size(), kBuffer);
      const ssize_t count = packed != nullptr ? gzwrite(packed, rest.data(), static_cast<unsigned>(piece))
                                              : ::write(file, rest.data(), piece);
      if (count > 0) {
        rest.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno != EINTR) {
        failure = errno != 0 ? errno : EIO;
      }
    }
    buffer.clear();
  }

  void close() {
    errno = 0;
    const bool good = packed != nullptr ? gzclose(packed) == Z_OK : file < 0 || ::close(file) == 0;
    if (!good && failure == 0) failure = errno != 0 ? errno : EIO;
    packed = nullptr;
    file = -1;
  }
};

OutputFile::OutputFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;

Result<OutputFile> OutputFile::open(const fs::path& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  struct stat status = {};
  if (const auto own = own_descriptor(path)) {
    state->file = ::fcntl(*own, F_DUPFD_CLOEXEC, 0);
  } else if (const bool found = ::stat(path.c_str(), &status) == 0; !found && errno != ENOENT) {
    return fail(unwritable(path, errno));  // a name too long, or links in a circle: known now, not when all is written
  } else if (found && !S_ISREG(status.st_mode)) {
    state->file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    const bool there = S_ISREG(status.st_mode);
    state->target = without_links(path);
    if (there && ::access(path.c_str(), W_OK) != 0) return fail(unwritable(path, errno));
    static std::uint64_t counter = 0;
    const std::scoped_lock guard(registry().lock);
    fs::path name;
    do {
      name = state->target.parent_path() / fmt::format(".ns-dist-{}-{}", ::getpid(), counter++);
      state->file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (state->file < 0 && errno == EEXIST);
    if (state->file >= 0) {
      state->unfinished = Unfinished(name);
      registry().unfinished.insert(name);
      if (there) ::fchmod(state->file, status.st_mode & 07777U);
    }
  }
  if (state->file < 0) return fail(unwritable(path, errno));
  if (path.extension() == ".gz") {
    state->packed = gzdopen(state->file, "wb");
    if (state->packed == nullptr) return fail(unwritable(path, ENOMEM));
  }
  return OutputFile(std::move(state));
}

void OutputFile::write(std::string_view bytes) {
  state_->size += bytes.size();
  state_->buffer.append(bytes);
  if (state_->buffer.size() >= kBuffer) state_->flush();
}

std::uint64_t OutputFile::size() const { return state_->size; }

Result<void> OutputFile::check() const {
  if (state_->failure == 0) return {};
  return fail(unwritable(state_->path, state_->failure));
}

Result<void> OutputFile::finish() {
  state_->flush();
  state_->close();
  NS_TRY_VOID(check());
  if (!state_->unfinished) return {};
  if (!state_->unfinished->move_to(state_->target)) return fail(unwritable(state_->path, errno));
  state_->unfinished.reset();
  return {};
}

Result<void> write_text(const fs::path& path, std::string_view text) {
  NS_TRY(OutputFile file, OutputFile::open(path));
  file.write(text);
  return file.finish();
}

}  // namespace ns_dist
