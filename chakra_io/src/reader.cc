#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <fstream>
#include <istream>

#include "wire.h"

namespace ns_dist {
namespace {

using namespace chakra;  // this room's own

// Real nodes have hundreds of bytes; ASTRA-Sim's feeder takes any length. The limit keeps a hostile length from
// claiming memory.
constexpr std::uint64_t kLongestFrame = std::uint64_t{64} << 20;

// Splits a stream into frames.
class FrameReader {
 public:
  FrameReader(std::istream& in, const std::string& where) : in_(*in.rdbuf()), where_(where) {}

  // False at the end of the file. Frame 0 is the metadata.
  Result<bool> next(std::string* frame) {
    start_ = offset_;
    std::uint64_t length = 0;
    for (int shift = 0;; shift += 7) {
      const int byte = in_.sbumpc();
      if (byte == std::char_traits<char>::eof()) {
        if (shift == 0) return false;
        return fail(error("the file ends inside a frame's length"));
      }
      ++offset_;
      length |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) break;
      if (shift == 28) return fail(error("a frame's length has more than five bytes"));
    }
    if (start_ == 0 && length == 0x1f && in_.sgetc() == 0x8b) {  // RFC 1952, 2.3.1: ID1 = 0x1f, ID2 = 0x8b
      Error compressed = error("the file is compressed with gzip, which ASTRA-Sim's feeder does not read");
      compressed.hint = "unpack it with gunzip";
      return fail(std::move(compressed));
    }
    if (length > kLongestFrame) {
      return fail(error(fmt::format("a frame of {} bytes is longer than the limit of {}", length, kLongestFrame)));
    }
    frame->clear();
    while (frame->size() < length) {  // a step at a time: a length is not believed before its bytes are there
      const std::size_t had = frame->size();
      const std::size_t step = std::min<std::size_t>(length - had, std::size_t{1} << 20);
      frame->resize(had + step);
      const std::streamsize got = in_.sgetn(frame->data() + had, static_cast<std::streamsize>(step));
      offset_ += static_cast<std::uint64_t>(got);
      if (got != static_cast<std::streamsize>(step)) {
        return fail(error(
            fmt::format("the file ends {} bytes into a frame of {}", had + static_cast<std::uint64_t>(got), length)));
      }
    }
    ++frames_;
    return true;
  }

  Error error(std::string message) const {
    const std::string place =
        frames_ == 0 ? std::string("its metadata") : fmt::format("node number {} of the file", frames_ - 1);
    return {ErrorCode::kInvalidInput,
            std::move(message),
            fmt::format("{}, byte {}", where_, start_),
            fmt::format("Chakra frames (varint length, then a protobuf message); this one would be {}", place),
            "",
            {}};
  }

  // Errors name the frame that was read last.
  Error error_in_frame(std::string message) {
    --frames_;
    Error out = error(std::move(message));
    ++frames_;
    return out;
  }

 private:
  std::streambuf& in_;
  const std::string& where_;
  std::uint64_t offset_ = 0, start_ = 0, frames_ = 0;
};

Error cannot_open(const std::filesystem::path& path) {
  return {ErrorCode::kNotFound, "cannot open the trace", path.string(), "a readable file", "", {}};
}

}  // namespace

Result<void> read_trace(std::istream& in, const std::string& where,
                        const std::function<Result<void>(TraceNode&&)>& visit) {
  const google::protobuf::LogSilencer silent;  // protobuf prints what it cannot parse; we return it
  FrameReader frames(in, where);
  std::string frame;
  NS_TRY(const bool has_metadata, frames.next(&frame));
  if (!has_metadata) return fail(frames.error("the file is empty"));
  ChakraProtoMsg::GlobalMetadata metadata;
  if (!metadata.ParseFromString(frame)) return fail(frames.error_in_frame("the first frame is no GlobalMetadata"));

  ChakraProtoMsg::Node message;
  while (true) {
    NS_TRY(const bool more, frames.next(&frame));
    if (!more) return {};
    if (!message.ParseFromString(frame)) return fail(frames.error_in_frame("the frame is no Chakra node"));
    Result<TraceNode> node = from_proto(message);
    if (!node) {
      Error error = std::move(node).error();
      error.where = frames.error_in_frame("").where;
      return fail(std::move(error));
    }
    NS_TRY_VOID(visit(*std::move(node)));
  }
}

Result<void> read_trace(const std::filesystem::path& path, const std::function<Result<void>(TraceNode&&)>& visit) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return fail(cannot_open(path));
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(cannot_open(path));
  return read_trace(in, path.string(), visit);
}

Result<std::vector<TraceNode>> read_trace(const std::filesystem::path& path) {
  std::vector<TraceNode> nodes;
  const auto keep = [&nodes](TraceNode&& node) -> Result<void> {
    nodes.push_back(std::move(node));
    return {};
  };
  NS_TRY_VOID(read_trace(path, keep));
  return nodes;
}

}  // namespace ns_dist
