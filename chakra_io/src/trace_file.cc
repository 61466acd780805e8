#include "trace_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <istream>

#include "ns_dist/files.h"
#include "wire.h"

namespace ns_dist::chakra {
namespace {

// Real nodes have hundreds of bytes; ASTRA-Sim's feeder takes any length. The limit keeps a hostile length from
// claiming memory.
constexpr std::uint64_t kLongestFrame = std::uint64_t{64} << 20;
constexpr std::size_t kStep = std::size_t{1} << 18;

class StreamSource final : public ByteSource {
 public:
  explicit StreamSource(std::istream& in) : in_(*in.rdbuf()) {}
  std::size_t read(char* to, std::size_t most) override {
    return static_cast<std::size_t>(std::max<std::streamsize>(0, in_.sgetn(to, static_cast<std::streamsize>(most))));
  }

 private:
  std::streambuf& in_;
};

// zlib reads plain files as they are.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(gzFile file) : file_(file) { gzbuffer(file_, static_cast<unsigned>(kStep)); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { gzclose(file_); }
  std::size_t read(char* to, std::size_t most) override {
    const int got = gzread(file_, to, static_cast<unsigned>(std::min(most, std::size_t{1} << 30)));
    if (got > 0) return static_cast<std::size_t>(got);
    int status = Z_OK;
    const char* why = gzerror(file_, &status);
    if (status != Z_OK && status != Z_STREAM_END) {
      failure_ = status == Z_BUF_ERROR ? "the gzip file is cut short" : fmt::format("the file cannot be read: {}", why);
    }
    return 0;
  }
  std::string failure() const override { return failure_; }
  bool unpacks() const override { return true; }

 private:
  gzFile file_;
  std::string failure_;
};

}  // namespace

std::unique_ptr<ByteSource> source_of(std::istream& in) { return std::make_unique<StreamSource>(in); }

Result<std::unique_ptr<ByteSource>> source_of(const std::filesystem::path& path) {
  std::error_code ignored;
  gzFile file = std::filesystem::is_regular_file(path, ignored) ? gzopen(path.c_str(), "rb") : nullptr;
  if (file == nullptr) {
    return fail({ErrorCode::kNotFound, "cannot open the trace", path.string(), "a readable file"});
  }
  return std::make_unique<FileSource>(file);
}

FrameReader::FrameReader(ByteSource& source, std::string where)
    : source_(source), where_(std::move(where)), buffer_(kStep) {}

bool FrameReader::fill(std::size_t wanted) {
  while (filled_ - position_ < wanted) {
    if (frame_begin_ > 0) {  // keep the frame from its length on
      std::memmove(buffer_.data(), buffer_.data() + frame_begin_, filled_ - frame_begin_);
      filled_ -= frame_begin_;
      position_ -= frame_begin_;
      base_ += frame_begin_;
      frame_begin_ = 0;
    }
    // A step at a time: a length is not believed before its bytes are there.
    if (buffer_.size() - filled_ < kStep) buffer_.resize(std::max(buffer_.size() * 2, filled_ + kStep));
    const std::size_t got = source_.read(buffer_.data() + filled_, buffer_.size() - filled_);
    if (got == 0) return false;
    filled_ += got;
  }
  return true;
}

Result<bool> FrameReader::next(std::string_view* frame) {
  frame_begin_ = position_;
  start_ = base_ + position_;
  std::uint64_t length = 0;
  for (int shift = 0;; shift += 7) {
    if (position_ == filled_ && !fill(1)) {
      if (const std::string why = source_.failure(); !why.empty()) return fail(error(why));
      if (shift == 0) return false;
      return fail(error("the file ends inside a frame's length"));
    }
    const auto byte = static_cast<unsigned char>(buffer_[position_++]);
    length |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
    if ((byte & 0x80U) == 0) break;
    if (shift == 28) return fail(error("a frame's length has more than five bytes"));
  }
  // RFC 1952, 2.3.1: ID1 = 0x1f, ID2 = 0x8b
  if (start_ == 0 && length == 0x1f && !source_.unpacks() && fill(1) &&
      static_cast<unsigned char>(buffer_[position_]) == 0x8b) {
    Error compressed = error("the file is compressed with gzip, which ASTRA-Sim's feeder does not read");
    compressed.hint = "unpack it with gunzip";
    return fail(std::move(compressed));
  }
  // A brace is also the length of a frame of 123 bytes, whose first field's tag is a line feed.
  const auto opens_json = [&] {
    const char first = buffer_[position_], second = buffer_[position_ + 1];
    const bool space = first == ' ' || first == '\r' || first == '\n' || first == '\t';
    return first == '"' || (space && (second == ' ' || second == '\n' || second == '\t' || second == '"'));
  };
  if (start_ == 0 && length == '{' && fill(2) && opens_json()) {
    Error text = error("the file is JSON, as Chakra's old feeder read it");
    text.hint = "write it as protobuf with Chakra's tools of version 0.0.4 or later";
    return fail(std::move(text));
  }
  if (length > kLongestFrame) {
    return fail(error(fmt::format("a frame of {} bytes is longer than the limit of {}", length, kLongestFrame)));
  }
  if (!fill(length)) {
    if (const std::string why = source_.failure(); !why.empty()) return fail(error(why));
    return fail(error(fmt::format("the file ends {} bytes into a frame of {}", filled_ - position_, length)));
  }
  *frame = {buffer_.data() + position_, static_cast<std::size_t>(length)};
  position_ += length;
  ++frames_;
  return true;
}

Error FrameReader::error(std::string message) const {
  const std::string place =
      frames_ == 0 ? std::string("its metadata") : fmt::format("node number {} of the file", frames_ - 1);
  return {ErrorCode::kInvalidInput, std::move(message), fmt::format("{}, byte {}", where_, start_),
          fmt::format("Chakra frames (varint length, then a protobuf message); this one would be {}", place)};
}

Error FrameReader::error_in_frame(std::string message) {
  --frames_;
  Error out = error(std::move(message));
  ++frames_;
  return out;
}

Result<void> rewrite_trace(
    const std::filesystem::path& from, const std::filesystem::path& to,
    const std::function<bool(std::string_view node, std::size_t index, std::string* out)>& patch) {
  std::error_code failed;
  if (std::filesystem::equivalent(from, to, failed)) {
    return fail({ErrorCode::kInvalidInput, "is the trace that is read", to.string(), "another file"});
  }
  NS_TRY(const std::unique_ptr<ByteSource> source, source_of(from));
  FrameReader frames(*source, from.string());
  NS_TRY(OutputFile out, OutputFile::open(to));
  std::string_view frame;
  NS_TRY([[maybe_unused]] const bool metadata, frames.next(&frame));
  out.write(frames.raw());
  std::string patched, whole;
  for (std::size_t index = 0;; ++index) {
    NS_TRY(const bool more, frames.next(&frame));
    if (!more) break;
    if (patch(frame, index, &patched)) {
      whole.clear();
      append_varint(patched.size(), &whole);
      whole += patched;
      out.write(whole);
    } else {
      out.write(frames.raw());
    }
    NS_TRY_VOID(out.check());
  }
  return out.finish();
}

}  // namespace ns_dist::chakra
