#include "wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ns_dist/internal/printable.h"

namespace ns_dist {
namespace chakra {
namespace {

using ns_dist_et_def::AttributeProto;

template <class T, class List>
std::vector<T> values_of(const List& list) {
  return {list.values().begin(), list.values().end()};
}

TraceValue value_of(const AttributeProto& attribute) {
  switch (attribute.value_case()) {
    case AttributeProto::kDoubleVal:
      return attribute.double_val();
    case AttributeProto::kDoubleList:
      return values_of<double>(attribute.double_list());
    case AttributeProto::kFloatVal:
      return static_cast<double>(attribute.float_val());
    case AttributeProto::kFloatList:
      return values_of<double>(attribute.float_list());
    case AttributeProto::kInt32Val:
      return std::int64_t{attribute.int32_val()};
    case AttributeProto::kInt32List:
      return values_of<std::int64_t>(attribute.int32_list());
    case AttributeProto::kInt64Val:
      return std::int64_t{attribute.int64_val()};
    case AttributeProto::kInt64List:
      return values_of<std::int64_t>(attribute.int64_list());
    case AttributeProto::kUint32Val:
      return std::uint64_t{attribute.uint32_val()};
    case AttributeProto::kUint32List:
      return values_of<std::uint64_t>(attribute.uint32_list());
    case AttributeProto::kUint64Val:
      return std::uint64_t{attribute.uint64_val()};
    case AttributeProto::kUint64List:
      return values_of<std::uint64_t>(attribute.uint64_list());
    case AttributeProto::kSint32Val:
      return std::int64_t{attribute.sint32_val()};
    case AttributeProto::kSint32List:
      return values_of<std::int64_t>(attribute.sint32_list());
    case AttributeProto::kSint64Val:
      return std::int64_t{attribute.sint64_val()};
    case AttributeProto::kSint64List:
      return values_of<std::int64_t>(attribute.sint64_list());
    case AttributeProto::kFixed32Val:
      return std::uint64_t{attribute.fixed32_val()};
    case AttributeProto::kFixed32List:
      return values_of<std::uint64_t>(attribute.fixed32_list());
    case AttributeProto::kFixed64Val:
      return std::uint64_t{attribute.fixed64_val()};
    case AttributeProto::kFixed64List:
      return values_of<std::uint64_t>(attribute.fixed64_list());
    case AttributeProto::kSfixed32Val:
      return std::int64_t{attribute.sfixed32_val()};
    case AttributeProto::kSfixed32List:
      return values_of<std::int64_t>(attribute.sfixed32_list());
    case AttributeProto::kSfixed64Val:
      return std::int64_t{attribute.sfixed64_val()};
    case AttributeProto::kSfixed64List:
      return values_of<std::int64_t>(attribute.sfixed64_list());
    case AttributeProto::kBoolVal:
      return attribute.bool_val();
    case AttributeProto::kBoolList:
      return values_of<bool>(attribute.bool_list());
    case AttributeProto::kStringVal:
      return attribute.string_val();
    case AttributeProto::kStringList:
      return values_of<std::string>(attribute.string_list());
    case AttributeProto::kBytesVal:
      return attribute.bytes_val();
    case AttributeProto::kBytesList:
      return values_of<std::string>(attribute.bytes_list());
    case AttributeProto::VALUE_NOT_SET:
      break;
  }
  return std::monostate{};
}

// One overload a type of TraceValue, so that a new type does not compile until it has its place here.
struct SetValue {
  AttributeProto* out;
  void operator()(std::monostate) const {}
  void operator()(bool value) const { out->set_bool_val(value); }
  void operator()(std::int64_t value) const { out->set_int64_val(value); }
  void operator()(std::uint64_t value) const { out->set_uint64_val(value); }
  void operator()(double value) const { out->set_double_val(value); }
  // A string that is no UTF-8 is one that no parser takes.
  void operator()(const std::string& value) const {
    is_utf8(value) ? out->set_string_val(value) : out->set_bytes_val(value);
  }
  void operator()(const std::vector<bool>& values) const {
    auto* list = out->mutable_bool_list();
    for (const bool value : values) list->add_values(value);
  }
  void operator()(const std::vector<std::int64_t>& values) const {
    out->mutable_int64_list()->mutable_values()->Add(values.begin(), values.end());
  }
  void operator()(const std::vector<std::uint64_t>& values) const {
    out->mutable_uint64_list()->mutable_values()->Add(values.begin(), values.end());
  }
  void operator()(const std::vector<double>& values) const {
    out->mutable_double_list()->mutable_values()->Add(values.begin(), values.end());
  }
  void operator()(const std::vector<std::string>& values) const {
    auto* list = std::all_of(values.begin(), values.end(), [](const std::string& value) { return is_utf8(value); })
                     ? out->mutable_string_list()->mutable_values()
                     : out->mutable_bytes_list()->mutable_values();
    list->Add(values.begin(), values.end());
  }
};

TraceTensors tensors_of(const ns_dist_et_def::IOInfo& info) { return {info.values(), info.shapes(), info.types()}; }

void set_tensors(const TraceTensors& tensors, ns_dist_et_def::IOInfo* out) {
  out->set_values(tensors.values);
  out->set_shapes(tensors.shapes);
  out->set_types(tensors.types);
}

constexpr std::array<std::string_view, 8> kTypeNames = {"INVALID_NODE",   "METADATA_NODE", "MEM_LOAD_NODE",
                                                        "MEM_STORE_NODE", "COMP_NODE",     "COMM_SEND_NODE",
                                                        "COMM_RECV_NODE", "COMM_COLL_NODE"};

}  // namespace

void to_proto(const TraceNode& node, ns_dist_et_def::Node* out) {
  out->Clear();
  out->set_id(node.id);
  out->set_name(node.name);
  out->set_type(static_cast<ns_dist_et_def::NodeType>(node.type));
  out->mutable_ctrl_deps()->Add(node.ctrl_deps.begin(), node.ctrl_deps.end());
  out->mutable_data_deps()->Add(node.data_deps.begin(), node.data_deps.end());
  out->set_start_time_micros(node.start_micros);
  out->set_duration_micros(node.duration_micros);
  if (node.inputs != TraceTensors()) set_tensors(node.inputs, out->mutable_inputs());
  if (node.outputs != TraceTensors()) set_tensors(node.outputs, out->mutable_outputs());
  for (const TraceAttribute& attribute : node.attributes) {
    AttributeProto* added = out->add_attr();
    added->set_name(attribute.name);
    std::visit(SetValue{added}, attribute.value);
  }
}

Result<void> check_texts(const TraceNode& node) {
  const auto no_utf8 = [](const std::string& what) {
    return fail({ErrorCode::kInvalidInput, what + " is no UTF-8", "", "text in UTF-8"});
  };
  if (!is_utf8(node.name)) return no_utf8("its name");
  for (const auto& [tensors, what] : {std::pair(&node.inputs, "inputs"), std::pair(&node.outputs, "outputs")}) {
    for (const std::string* text : {&tensors->values, &tensors->shapes, &tensors->types}) {
      if (!is_utf8(*text)) return no_utf8(fmt::format("a text of its {}", what));
    }
  }
  for (const TraceAttribute& attribute : node.attributes) {
    if (!is_utf8(attribute.name)) {
      return no_utf8(fmt::format("the name of its attribute \"{}\"", printable(attribute.name)));
    }
  }
  return {};
}

Result<TraceNode> from_proto(const ns_dist_et_def::Node& node) {
  const int type = node.type();
  if (type < 0 || type >= static_cast<int>(kTypeNames.size())) {
    return fail({ErrorCode::kInvalidInput, fmt::format("unknown node type {}", type), "", "a type from 0 to 7"});
  }
  TraceNode out;
  out.id = node.id();
  out.name = node.name();
  out.type = static_cast<TraceNodeType>(type);
  out.data_deps.assign(node.data_deps().begin(), node.data_deps().end());
  out.ctrl_deps.assign(node.ctrl_deps().begin(), node.ctrl_deps().end());
  out.start_micros = node.start_time_micros();
  out.duration_micros = node.duration_micros();
  out.inputs = tensors_of(node.inputs());
  out.outputs = tensors_of(node.outputs());
  out.attributes.reserve(static_cast<std::size_t>(node.attr_size()));
  for (const AttributeProto& attribute : node.attr()) out.attributes.push_back({attribute.name(), value_of(attribute)});
  return out;
}

void append_varint(std::uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>((value & 0x7f) | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void append_tag(std::uint32_t number, std::uint32_t type, std::string* out) {
  append_varint((std::uint64_t{number} << 3U) | type, out);
}

void append_bytes(std::uint32_t number, std::string_view bytes, std::string* out) {
  append_tag(number, 2, out);
  append_varint(bytes.size(), out);
  *out += bytes;
}

void append_message(const google::protobuf::MessageLite& message, std::string* out) {
  static_cast<void>(message.AppendToString(out));  // false where a required field is missing: there are none
}

void append_frame(const google::protobuf::MessageLite& message, std::string* out) {
  append_varint(message.ByteSizeLong(), out);
  append_message(message, out);
}

std::string metadata_frame() {
  ns_dist_et_def::GlobalMetadata metadata;
  metadata.set_version("1.0.0");  // as Chakra's own generator writes it; the feeder does not read it
  std::string out;
  append_frame(metadata, &out);
  return out;
}

}  // namespace chakra

std::string_view name_of(TraceNodeType type) { return chakra::kTypeNames[static_cast<std::size_t>(type)]; }

}  // namespace ns_dist
