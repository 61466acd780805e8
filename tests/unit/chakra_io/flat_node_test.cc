// Does the feeder's view of a node, read from bytes, agree with protobuf's?
#include "flat_node.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "silent_protobuf.h"
#include "trace_file.h"
#include "unit/chakra_io/traces.h"
#include "wire.h"

namespace ns_dist::chakra {
namespace {

std::string bytes_of(const TraceNode& node) {
  ns_dist_et_def::Node message;
  to_proto(node, &message);
  return message.SerializeAsString();
}

void expect_same(const FlatNode& a, const FlatNode& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.duration_micros, b.duration_micros);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(std::multiset<std::uint64_t>(a.parents.begin(), a.parents.end()),
            std::multiset<std::uint64_t>(b.parents.begin(), b.parents.end()));
  for (const auto member :
       {&FlatNode::is_cpu_op, &FlatNode::num_ops, &FlatNode::tensor_size, &FlatNode::comm_type, &FlatNode::comm_size,
        &FlatNode::comm_src, &FlatNode::comm_dst, &FlatNode::comm_tag, &FlatNode::comm_priority}) {
    EXPECT_EQ(a.*member, b.*member);
  }
  EXPECT_EQ(a.has_group, b.has_group);
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.involved, b.involved);
}

// Random messages, whole and damaged: what protobuf reads is read as the same. What it refuses may be read where the
// damage lies in what nobody asks for.
TEST(FlatNode, AgreesWithProtobuf) {
  std::uint64_t seed = 7;
  const auto random = [&seed](std::uint64_t below) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (seed >> 33U) % below;
  };
  const char* names[] = {"is_cpu_op", "num_ops", "tensor_size",  "comm_type",     "comm_size", "comm_src", "comm_dst",
                         "comm_tag",  "pg_name", "involved_dim", "comm_priority", "other",     ""};
  int refused = 0, read = 0;
  for (int round = 0; round < 20000; ++round) {
    TraceNode node;
    node.id = random(2) != 0 ? random(300) : ~random(5);
    node.name = std::string(random(5), static_cast<char>('a' + random(20))) + (random(4) == 0 ? "\xc3\xa9" : "");
    node.type = static_cast<TraceNodeType>(random(8));
    for (std::uint64_t i = random(4); i > 0; --i) node.data_deps.push_back(random(1000));
    for (std::uint64_t i = random(3); i > 0; --i) node.ctrl_deps.push_back(random(1000));
    node.duration_micros = random(100000);
    for (std::uint64_t i = random(5); i > 0; --i) {
      TraceValue value;
      switch (random(9)) {
        case 0:
          value = random(2) != 0;
          break;
        case 1:
          value = static_cast<std::int64_t>(random(1000)) - 500;
          break;
        case 2:
          value = ~random(1000);
          break;
        case 3:
          value = 0.5;
          break;
        case 4:
          value = std::string("12");
          break;
        case 5:
          value = std::vector<bool>(random(4), random(2) != 0);
          if (random(3) == 0) value = std::vector<bool>{true, false, random(2) != 0};
          break;
        case 6:
          value = std::vector<std::int64_t>{1, 2};
          break;
        case 7:
          value = std::string("1\xff");
          break;
        default:
          break;
      }
      node.attributes.push_back({names[random(std::size(names))], value});
    }
    std::string bytes = bytes_of(node);
    const bool damaged = random(2) != 0 && !bytes.empty();
    if (damaged) {
      const std::size_t at = random(bytes.size());
      if (random(2) != 0) {
        bytes.resize(at);
      } else {
        bytes[at] = static_cast<char>(random(256));
      }
    }
    ns_dist_et_def::Node message;
    const SilentProtobuf silent;
    const bool fine = message.ParseFromString(bytes);
    FlatNode flat;
    const bool decoded = decode(bytes, &flat);
    ASSERT_TRUE(decoded || !fine) << round;
    decoded ? ++read : ++refused;
    if (!fine || message.type() < 0 || message.type() > 7) continue;
    FlatNode expected;
    const TraceNode parsed = *from_proto(message);
    flatten(parsed, &expected);
    expect_same(flat, expected);
    if (HasFailure()) return;
  }
  EXPECT_GT(read, 10000);
  EXPECT_GT(refused, 1000);
}

TEST(FlatNode, KnowsTheWidthsOfIntegers) {
  ns_dist_et_def::Node message;
  const auto add = [&message](const char* name) {
    auto* attribute = message.add_attr();
    attribute->set_name(name);
    return attribute;
  };
  add("num_ops")->set_sint64_val(-5);
  add("tensor_size")->set_fixed32_val(4'000'000'000U);
  add("comm_size")->set_sfixed64_val(-7);
  add("comm_src")->set_int32_val(-1);
  add("comm_dst")->set_sint32_val(-9);
  add("comm_tag")->set_fixed64_val(~0ULL);
  add("comm_type")->set_float_val(1);
  add("comm_size")->set_int64_val(3);  // the first of a name holds
  FlatNode flat;
  const std::string bytes = message.SerializeAsString();
  ASSERT_TRUE(decode(bytes, &flat));
  EXPECT_EQ(flat.num_ops.value, -5);
  EXPECT_EQ(flat.tensor_size.value, 4'000'000'000);
  EXPECT_EQ(flat.comm_size.value, -7);
  EXPECT_EQ(flat.comm_src.value, -1);
  EXPECT_EQ(flat.comm_dst.value, -9);
  EXPECT_EQ(flat.comm_tag.value, std::int64_t{1} << 62);
  EXPECT_EQ(flat.comm_type.state, IntegerAttribute::State::kWrong);
}

TEST(TraceFile, GzippedTracesAreReadAsThePlainOnes) {
  const ScratchFolder folder;
  std::vector<TraceNode> nodes;
  for (std::uint64_t id = 1; id <= 20000; ++id) {
    TraceNode node;
    node.id = id;
    node.name = "kernel " + std::to_string(id);
    node.type = TraceNodeType::kCompute;
    nodes.push_back(node);
  }
  ASSERT_TRUE(write_trace(folder.path() / "plain.et", nodes));
  const std::string bytes = read_text(folder.path() / "plain.et");
  const std::string packed = folder.path() / "packed.et.gz";
  gzFile out = gzopen(packed.c_str(), "wb");
  ASSERT_EQ(gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
  gzclose(out);
  const auto read = read_trace(packed);
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(*read, nodes);

  const std::string packed_bytes = read_text(packed);
  std::ofstream(packed, std::ios::binary | std::ios::trunc) << packed_bytes.substr(0, packed_bytes.size() / 2);
  const auto cut = read_trace(packed);
  ASSERT_FALSE(cut);
  EXPECT_NE(to_text(cut.error()).find("cut short"), std::string::npos) << to_text(cut.error());
}

TEST(TraceFile, SaysWhatTheJsonOfTheOldFeederIs) {
  std::istringstream in("{\n  \"workload_graph\": []\n}");
  const auto read = read_trace(in, "old.json", [](TraceNode&&) -> Result<void> { return {}; });
  ASSERT_FALSE(read);
  EXPECT_NE(to_text(read.error()).find("the file is JSON"), std::string::npos);
}

}  // namespace
}  // namespace ns_dist::chakra
