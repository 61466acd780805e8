// A trace file as frames, plain or gzipped: a varint length and that many bytes each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist::chakra {

// Where bytes come from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::size_t read(char* to, std::size_t most) = 0;  // 0: the end
  virtual std::string failure() const { return {}; }         // why the end came; empty: it is one
  virtual bool unpacks() const { return false; }             // gzipped bytes arrive unpacked
};

std::unique_ptr<ByteSource> source_of(std::istream& in);
// Error: a file that cannot be opened, or is none.
Result<std::unique_ptr<ByteSource>> source_of(const std::filesystem::path& path);

class FrameReader {
 public:
  FrameReader(ByteSource& source, std::string where);

  // False at the end of the file. Frame 0 is the metadata. The bytes hold until the next call.
  Result<bool> next(std::string_view* frame);
  // The whole last frame with its length.
  std::string_view raw() const { return {buffer_.data() + frame_begin_, position_ - frame_begin_}; }

  Error error(std::string message) const;
  Error error_in_frame(std::string message);  // names the frame that was read last

 private:
  bool fill(std::size_t wanted);  // at least so many bytes after position_

  ByteSource& source_;
  std::string where_;
  std::vector<char> buffer_;
  std::size_t position_ = 0, filled_ = 0, frame_begin_ = 0;
  std::uint64_t base_ = 0;  // offset in the file of the buffer's first byte
  std::uint64_t start_ = 0, frames_ = 0;
};

// Copies a trace, plain or gzipped by the name, frame by frame; `patch` gets each node with its number in the file, and
// returns whether `out` takes its place. Errors: those of FrameReader; a file that cannot be written; one and the same
// file.
Result<void> rewrite_trace(
    const std::filesystem::path& from, const std::filesystem::path& to,
    const std::function<bool(std::string_view node, std::size_t index, std::string* out)>& patch);

}  // namespace ns_dist::chakra
