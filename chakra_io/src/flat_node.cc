#include "flat_node.h"

#include <algorithm>
#include <memory>

#include "ns_dist/internal/printable.h"
#include "ns_dist_et_def.pb.h"
#include "trace_file.h"

namespace ns_dist::chakra {
namespace {

constexpr std::uint64_t kMostUnsigned = std::uint64_t{1} << 62;
constexpr int kDeepestGroup = 100;

std::int64_t from_unsigned(std::uint64_t value) { return static_cast<std::int64_t>(std::min(value, kMostUnsigned)); }
std::int64_t zigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1U) ^ -static_cast<std::int64_t>(value & 1U);
}
std::int64_t low_32(std::uint64_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value)); }

// What an attribute holds, as far as the feeder asks for it.
struct Value {
  IntegerAttribute::State integer = IntegerAttribute::State::kWrong;
  std::int64_t number = 0;
  bool is_text = false;
  std::string_view text;
  DimensionFlags flags = {.state = DimensionFlags::State::kWrong};
};

bool read_flags(std::string_view list, DimensionFlags* out) {
  out->state = DimensionFlags::State::kFlags;
  WireReader reader(list);
  WireField field;
  while (reader.next(&field)) {
    if (field.number != 1) continue;
    if (field.type == 0) {
      out->add(field.value != 0);
    } else if (field.type == 2) {  // packed; each a varint
      bool more = false, nonzero = false;
      for (const char c : field.bytes) {
        nonzero = nonzero || (static_cast<unsigned char>(c) & 0x7fU) != 0;
        more = (static_cast<unsigned char>(c) & 0x80U) != 0;
        if (more) continue;
        out->add(nonzero);
        nonzero = false;
      }
      if (more) return false;
    }
  }
  return reader.ok();
}

// Whether the parser takes a message whose fields 1 to `strings` are strings.
bool is_message(std::string_view message, std::uint32_t strings) {
  WireReader reader(message);
  WireField field;
  while (reader.next(&field)) {
    if (field.type == 2 && field.number <= strings && !is_utf8(field.bytes)) return false;
  }
  return reader.ok();
}

bool read_value(const WireField& field, Value* out) {
  const auto set = [&](std::int64_t number) {
    *out = {};
    out->integer = IntegerAttribute::State::kInteger;
    out->number = number;
  };
  constexpr std::uint32_t kVarint = 0, kEight = 1, kBytes = 2, kFour = 5;
  switch (field.number) {
    case 7:  // int32
      if (field.type == kVarint) set(low_32(field.value));
      break;
    case 9:  // int64
      if (field.type == kVarint) set(static_cast<std::int64_t>(field.value));
      break;
    case 11:  // uint32
      if (field.type == kVarint) set(static_cast<std::int64_t>(field.value & 0xffffffffU));
      break;
    case 13:  // uint64
      if (field.type == kVarint) set(from_unsigned(field.value));
      break;
    case 15:  // sint32
      if (field.type == kVarint) set(zigzag(field.value & 0xffffffffU));
      break;
    case 17:  // sint64
      if (field.type == kVarint) set(zigzag(field.value));
      break;
    case 19:  // fixed32
      if (field.type == kFour) set(static_cast<std::int64_t>(field.value));
      break;
    case 21:  // fixed64
      if (field.type == kEight) set(from_unsigned(field.value));
      break;
    case 23:  // sfixed32
      if (field.type == kFour) set(low_32(field.value));
      break;
    case 25:  // sfixed64
      if (field.type == kEight) set(static_cast<std::int64_t>(field.value));
      break;
    case 27:  // bool
      if (field.type == kVarint) set(field.value != 0 ? 1 : 0);
      break;
    case 3:  // double
      if (field.type == kEight) *out = {};
      break;
    case 5:  // float
      if (field.type == kFour) *out = {};
      break;
    case 29:  // string
    case 31:  // bytes, which the feeder takes for one
      if (field.type == kBytes) {
        if (field.number == 29 && !is_utf8(field.bytes)) return false;
        *out = {};
        out->is_text = true;
        out->text = field.bytes;
      }
      break;
    case 28:  // list of bool
      if (field.type == kBytes) {
        *out = {};
        return read_flags(field.bytes, &out->flags);
      }
      break;
    case 4:
    case 6:
    case 8:
    case 10:
    case 12:
    case 14:
    case 16:
    case 18:
    case 20:
    case 22:
    case 24:
    case 26:
    case 32:
      if (field.type == kBytes) *out = {};
      break;
    case 30:  // list of strings
      if (field.type == kBytes) {
        *out = {};
        return is_message(field.bytes, 1);
      }
      break;
    default:
      break;
  }
  return true;
}

IntegerAttribute* integer_of(FlatNode* node, std::string_view name) {
  switch (name.size()) {
    case 7:
      return name == "num_ops" ? &node->num_ops : nullptr;
    case 8:
      return name == "comm_src"   ? &node->comm_src
             : name == "comm_dst" ? &node->comm_dst
             : name == "comm_tag" ? &node->comm_tag
                                  : nullptr;
    case 9:
      return name == "is_cpu_op"   ? &node->is_cpu_op
             : name == "comm_type" ? &node->comm_type
             : name == "comm_size" ? &node->comm_size
                                   : nullptr;
    case 11:
      return name == "tensor_size" ? &node->tensor_size : nullptr;
    case 13:
      return name == "comm_priority" ? &node->comm_priority : nullptr;
    default:
      return nullptr;
  }
}

void set_attribute(std::string_view name, const Value& value, FlatNode* node) {
  if (IntegerAttribute* attribute = integer_of(node, name)) {
    if (attribute->state != IntegerAttribute::State::kMissing) return;  // the first of a name holds
    attribute->state = value.integer;
    attribute->value = value.number;
  } else if (name == "pg_name") {
    if (node->has_group != FlatNode::Text::kMissing) return;
    node->has_group = value.is_text ? FlatNode::Text::kText : FlatNode::Text::kWrong;
    node->group = value.text;
  } else if (name == "involved_dim") {
    if (node->involved.state == DimensionFlags::State::kMissing) node->involved = value.flags;
  }
}

bool read_attribute(std::string_view message, FlatNode* node) {
  std::string_view name;
  Value value;
  WireReader reader(message);
  WireField field;
  while (reader.next(&field)) {
    if (field.number <= 2 && field.type == 2) {  // its name, a comment
      if (!is_utf8(field.bytes)) return false;
      if (field.number == 1) name = field.bytes;
    } else if (!read_value(field, &value)) {
      return false;
    }
  }
  if (!reader.ok()) return false;
  set_attribute(name, value, node);
  return true;
}

bool read_parents(const WireField& field, std::vector<std::uint64_t>* parents) {
  if (field.type == 0) {
    parents->push_back(field.value);
    return true;
  }
  if (field.type != 2) return true;
  std::uint64_t value = 0;
  unsigned shift = 0;
  for (const char c : field.bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (shift > 63) return false;
    value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
    shift += 7;
    if ((byte & 0x80U) != 0) continue;
    parents->push_back(value);
    value = 0;
    shift = 0;
  }
  return shift == 0;
}

}  // namespace

bool WireReader::varint(std::uint64_t* value) {
  *value = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (at_ == message_.size()) return false;
    const auto byte = static_cast<unsigned char>(message_[at_++]);
    *value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
    if ((byte & 0x80U) == 0) return true;
  }
  return false;
}

bool WireReader::field(WireField* out) {
  out->begin = at_;
  std::uint64_t tag = 0;
  if (!varint(&tag) || tag > 0xffffffffU || tag >> 3U == 0) return false;
  out->number = static_cast<std::uint32_t>(tag >> 3U);
  out->type = static_cast<std::uint32_t>(tag & 7U);
  out->value = 0;
  out->bytes = {};
  const std::size_t left = message_.size() - at_;
  switch (out->type) {
    case 0:
      if (!varint(&out->value)) return false;
      break;
    case 1:
    case 5: {
      const std::size_t size = out->type == 1 ? 8 : 4;
      if (left < size) return false;
      for (std::size_t i = 0; i < size; ++i) {
        out->value |= static_cast<std::uint64_t>(static_cast<unsigned char>(message_[at_ + i])) << (8 * i);
      }
      at_ += size;
      break;
    }
    case 2: {
      std::uint64_t size = 0;
      if (!varint(&size) || size > message_.size() - at_) return false;
      out->bytes = message_.substr(at_, size);
      at_ += size;
      break;
    }
    case 3:
    case 4:
      break;
    default:
      return false;
  }
  out->end = at_;
  return true;
}

bool WireReader::skip_group(std::uint32_t number) {
  std::vector<std::uint32_t> open = {number};
  WireField inside;
  while (!open.empty()) {
    if (at_ == message_.size() || !field(&inside)) return false;
    if (inside.type == 3) open.push_back(inside.number);
    if (open.size() > kDeepestGroup) return false;
    if (inside.type == 4) {
      if (inside.number != open.back()) return false;
      open.pop_back();
    }
  }
  return true;
}

std::string_view name_of_attribute(std::string_view message) {
  std::string_view name;
  WireReader reader(message);
  WireField field;
  while (reader.next(&field)) {
    if (field.number == ns_dist_et_def::AttributeProto::kNameFieldNumber && field.type == 2) name = field.bytes;
  }
  return name;
}

bool WireReader::next(WireField* out) {
  if (!ok_ || at_ == message_.size()) return false;
  ok_ = field(out) && out->type != 4;
  if (ok_ && out->type == 3) {
    ok_ = skip_group(out->number);
    out->end = at_;
  }
  return ok_;
}

bool decode(std::string_view message, FlatNode* out) {
  std::vector<std::uint64_t> parents = std::move(out->parents);
  parents.clear();
  *out = {};
  out->parents = std::move(parents);
  WireReader reader(message);
  WireField field;
  while (reader.next(&field)) {
    switch (field.number) {
      case 1:
        if (field.type == 0) out->id = field.value;
        break;
      case 2:
        if (field.type != 2) break;
        if (!is_utf8(field.bytes)) return false;
        out->name = field.bytes;
        break;
      case 3:
        if (field.type == 0) out->type = static_cast<std::int32_t>(static_cast<std::uint32_t>(field.value));
        break;
      case 4:
      case 5:
        if (!read_parents(field, &out->parents)) return false;
        break;
      case 7:
        if (field.type == 0) out->duration_micros = field.value;
        break;
      case 8:  // what goes in, and what comes out
      case 9:
        if (field.type == 2 && !is_message(field.bytes, 3)) return false;
        break;
      case 10:
        if (field.type == 2 && !read_attribute(field.bytes, out)) return false;
        break;
      case 11:
        out->old_schema = out->old_schema || field.type == 2;
        break;
      default:
        break;
    }
  }
  return reader.ok();
}

void flatten(const TraceNode& node, FlatNode* out) {
  *out = {};
  out->id = node.id;
  out->duration_micros = node.duration_micros;
  out->name = node.name;
  out->type = static_cast<int>(node.type);
  out->parents = node.data_deps;
  out->parents.insert(out->parents.end(), node.ctrl_deps.begin(), node.ctrl_deps.end());
  for (const TraceAttribute& attribute : node.attributes) {
    Value value;
    const auto set = [&](std::int64_t number) {
      value.integer = IntegerAttribute::State::kInteger;
      value.number = number;
    };
    if (const auto* number = std::get_if<std::int64_t>(&attribute.value)) {
      set(*number);
    } else if (const auto* flag = std::get_if<bool>(&attribute.value)) {
      set(*flag ? 1 : 0);
    } else if (const auto* natural = std::get_if<std::uint64_t>(&attribute.value)) {
      set(from_unsigned(*natural));
    } else if (const auto* text = std::get_if<std::string>(&attribute.value)) {
      value.is_text = true;
      value.text = *text;
    } else if (const auto* flags = std::get_if<std::vector<bool>>(&attribute.value)) {
      value.flags.state = DimensionFlags::State::kFlags;
      for (const bool each : *flags) value.flags.add(each);
    }
    set_attribute(attribute.name, value, out);
  }
}

Result<void> read_flat(const std::filesystem::path& path, FlatNode* node,
                       const std::function<bool(const FlatNode&)>& visit) {
  NS_TRY(const std::unique_ptr<ByteSource> source, source_of(path));
  FrameReader frames(*source, path.string());
  std::string_view frame;
  NS_TRY(const bool has_metadata, frames.next(&frame));
  if (!has_metadata) return fail(frames.error("the file is empty"));
  WireReader metadata(frame);
  WireField field;
  while (metadata.next(&field)) continue;
  if (!metadata.ok()) return fail(frames.error_in_frame("the first frame is no GlobalMetadata"));
  while (true) {
    NS_TRY(const bool more, frames.next(&frame));
    if (!more) return {};
    if (!decode(frame, node)) return fail(frames.error_in_frame("the frame is no Chakra node"));
    if (!visit(*node)) return {};
  }
}

}  // namespace ns_dist::chakra
