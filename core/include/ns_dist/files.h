// Reading with a limit on size, and writing so that a file is complete or does not exist.
//
//   NS_TRY(const std::string text, read_text("gpu.json", 16 * kMebibyte));
//   NS_TRY(OutputFile file, OutputFile::open("rows.csv.gz"));
//   file.write("gpu,op\n");
//   NS_TRY_VOID(file.finish());  // rows.csv.gz is there now
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "ns_dist/result.h"

namespace ns_dist {

inline constexpr std::size_t kMebibyte = std::size_t{1} << 20;  // bytes

// Whether an output of this name goes to standard output: "", "-", /dev/stdout, /dev/fd/1, /proc/self/fd/1.
bool is_standard_output(const std::filesystem::path& path);

// All of a file or a pipe; of standard input where the path is "-". Errors, with the path as their place: it is not
// there, is a folder, cannot be read, or has more than `most` bytes.
Result<std::string> read_text(const std::filesystem::path& path, std::size_t most);

// The same for a path that a flag or a field holds. Errors have `place` (the flag or the field) as their place, and
// name the path in the message.
Result<std::string> read_text(const std::filesystem::path& path, std::size_t most, std::string_view place,
                              std::string_view expected);

// Files and folders that are not whole yet. They are removed with this object, and by remove_unfinished().
class Unfinished {
 public:
  // A folder that was not there before. Empty: it cannot be made; errno says why.
  static std::optional<Unfinished> folder(const std::filesystem::path& path);
  Unfinished(Unfinished&& other) noexcept;
  Unfinished& operator=(Unfinished&& other) noexcept;
  ~Unfinished();

  const std::filesystem::path& path() const { return path_; }
  // Gives it the name `to`; what had this name is replaced. False: it cannot; errno says why.
  bool move_to(const std::filesystem::path& to);

 private:
  friend class OutputFile;
  explicit Unfinished(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

// Removes the unfinished files and folders of all threads. Call it when the program ends by a signal. It keeps a lock,
// so no new file can be begun afterwards. Do not call it in a signal handler; a thread that waits for signals may call
// it.
void remove_unfinished();

// While the returned lock exists, remove_unfinished() waits. Hold it during several moves that belong together.
std::unique_lock<std::recursive_mutex> uninterrupted();

// A file that is written in pieces and appears under its name when it is finished. Until then it has a name that
// begins with ".ns-dist-" in the same folder, so a program that is killed leaves the old file, or the new one. A path
// that ends in .gz is packed. A symbolic link is followed to the file that it names. Pipes, devices, and standard
// output are written as they are.
class OutputFile {
 public:
  // Errors: `path` cannot be written. Nothing has changed until finish().
  static Result<OutputFile> open(const std::filesystem::path& path);
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();  // without finish(): as if it had never been opened

  void write(std::string_view bytes);  // check() and finish() report its errors
  std::uint64_t size() const;          // bytes given to write()
  // Errors: the path, and why it cannot be written: a full disk, a closed pipe.
  Result<void> check() const;
  Result<void> finish();

 private:
  struct State;
  explicit OutputFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A file of one text.
Result<void> write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace ns_dist
