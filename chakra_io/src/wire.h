// Trace nodes as bytes: protobuf messages in frames.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ns_dist/chakra_io.h"
#include "ns_dist_et_def.pb.h"

namespace ns_dist::chakra {

// Contract: check_texts of the node.
void to_proto(const TraceNode& node, ns_dist_et_def::Node* out);
// Error: a text that the format has no other type for is no UTF-8; its place is left to the caller.
Result<void> check_texts(const TraceNode& node);

// Error: a type that the format does not know; its place is left to the caller.
Result<TraceNode> from_proto(const ns_dist_et_def::Node& node);

void append_varint(std::uint64_t value, std::string* out);
// What precedes a field, of the wire types of WireField.
void append_tag(std::uint32_t number, std::uint32_t type, std::string* out);
// A whole field of bytes.
void append_bytes(std::uint32_t number, std::string_view bytes, std::string* out);

void append_message(const google::protobuf::MessageLite& message, std::string* out);
// Length, then message.
void append_frame(const google::protobuf::MessageLite& message, std::string* out);

// The frame that opens every trace.
std::string metadata_frame();

}  // namespace ns_dist::chakra
