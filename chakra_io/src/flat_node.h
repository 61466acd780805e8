// A node as the feeder looks at it: read from its bytes without making an object of each attribute.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "ns_dist/chakra_io.h"

namespace ns_dist::chakra {

// One field of a protobuf message.
struct WireField {
  std::uint32_t number = 0, type = 0;  // wire type: 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes
  std::uint64_t value = 0;             // of types 0, 1 and 5
  std::string_view bytes;              // of type 2
  std::size_t begin = 0, end = 0;      // of the whole field in the message
};

// Walks over the fields of a message. Groups are passed over.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : message_(message) {}
  bool next(WireField* field);  // false at the end, and where the bytes are none of a message
  bool ok() const { return ok_; }

 private:
  bool varint(std::uint64_t* value);
  bool skip_group(std::uint32_t number);
  bool field(WireField* field);
  std::string_view message_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

// Of an attribute's bytes.
std::string_view name_of_attribute(std::string_view message);

struct IntegerAttribute {
  enum class State : std::uint8_t { kMissing, kInteger, kWrong };
  State state = State::kMissing;
  std::int64_t value = 0;  // unsigned ones at most 2^62
  friend bool operator==(const IntegerAttribute&, const IntegerAttribute&) = default;
};

// The attribute involved_dim.
struct DimensionFlags {
  enum class State : std::uint8_t { kMissing, kFlags, kWrong };
  static constexpr std::size_t kKept = 64;
  State state = State::kMissing;
  std::uint64_t set = 0;  // bit i: flag i, of those that are kept
  std::size_t count = 0;  // of all flags

  void add(bool flag) {
    if (count < kKept && flag) set |= std::uint64_t{1} << count;
    ++count;
  }
  friend bool operator==(const DimensionFlags&, const DimensionFlags&) = default;
};

struct FlatNode {
  std::uint64_t id = 0, duration_micros = 0;
  std::string_view name;
  int type = 0;
  std::vector<std::uint64_t> parents;  // of both kinds
  IntegerAttribute is_cpu_op, num_ops, tensor_size, comm_type, comm_size, comm_src, comm_dst, comm_tag, comm_priority;
  enum class Text : std::uint8_t { kMissing, kText, kWrong };
  Text has_group = Text::kMissing;
  std::string_view group;  // pg_name
  DimensionFlags involved;
  bool old_schema = false;  // fields of Chakra 0.0.3 and before
};

// Reads the bytes of a node. Views point into them. False where they are no message of that type; damage in fields that
// a FlatNode does not have may pass.
bool decode(std::string_view message, FlatNode* out);
// Views point into `node`.
void flatten(const TraceNode& node, FlatNode* out);

// Reads a file, plain or gzipped, until `visit` says false. `node` is memory that is used again and again. Errors: as
// read_trace, but any type of node is read.
Result<void> read_flat(const std::filesystem::path& path, FlatNode* node,
                       const std::function<bool(const FlatNode&)>& visit);

}  // namespace ns_dist::chakra
