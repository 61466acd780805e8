#include <memory>

#include "silent_protobuf.h"
#include "trace_file.h"
#include "wire.h"

namespace ns_dist {
namespace {

using namespace chakra;  // this module's own

Result<void> read_frames(FrameReader& frames, const std::function<Result<void>(TraceNode&&)>& visit) {
  const SilentProtobuf silent;
  std::string_view frame;
  NS_TRY(const bool has_metadata, frames.next(&frame));
  if (!has_metadata) return fail(frames.error("the file is empty"));
  const auto parse = [&frame](google::protobuf::MessageLite* message) {
    return message->ParseFromArray(frame.data(), static_cast<int>(frame.size()));
  };
  ns_dist_et_def::GlobalMetadata metadata;
  if (!parse(&metadata)) return fail(frames.error_in_frame("the first frame is no GlobalMetadata"));

  ns_dist_et_def::Node message;
  while (true) {
    NS_TRY(const bool more, frames.next(&frame));
    if (!more) return {};
    if (!parse(&message)) return fail(frames.error_in_frame("the frame is no Chakra node"));
    Result<TraceNode> node = from_proto(message);
    if (!node) {
      Error error = std::move(node).error();
      error.where = frames.error_in_frame("").where;
      return fail(std::move(error));
    }
    NS_TRY_VOID(visit(*std::move(node)));
  }
}

}  // namespace

Result<void> read_trace(std::istream& in, const std::string& where,
                        const std::function<Result<void>(TraceNode&&)>& visit) {
  const std::unique_ptr<ByteSource> source = source_of(in);
  FrameReader frames(*source, where);
  return read_frames(frames, visit);
}

Result<void> read_trace(const std::filesystem::path& path, const std::function<Result<void>(TraceNode&&)>& visit) {
  NS_TRY(const std::unique_ptr<ByteSource> source, source_of(path));
  FrameReader frames(*source, path.string());
  return read_frames(frames, visit);
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
