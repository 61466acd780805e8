// Does a trace come back as it was written, and is every damaged one refused with its place?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

TraceNode rich_node() {
  TraceNode node;
  node.id = std::numeric_limits<std::uint64_t>::max();
  node.name = "attention.qkv layer=3";
  node.type = TraceNodeType::kCollective;
  node.data_deps = {0, 1, 300};
  node.ctrl_deps = {2};
  node.start_micros = 5;
  node.duration_micros = std::uint64_t{1} << 40;
  node.inputs = {"[1]", "[[2, 3]]", "['Tensor']"};
  node.outputs = {"", "[4]", ""};
  node.attributes = {{"none", std::monostate{}},
                     {"flag", false},
                     {"least", std::numeric_limits<std::int64_t>::min()},
                     {"most", std::numeric_limits<std::uint64_t>::max()},
                     {"real", -0.1},
                     {"text", std::string("with \0 inside", 13)},
                     {"flags", std::vector<bool>{true, false}},
                     {"signed", std::vector<std::int64_t>{-1, 0, 1}},
                     {"unsigned", std::vector<std::uint64_t>{7}},
                     {"reals", std::vector<double>{0.5, 1e300}},
                     {"texts", std::vector<std::string>{"", "a"}}};
  return node;
}

Result<std::vector<TraceNode>> read_bytes(const std::string& bytes) {
  std::istringstream in(bytes);
  std::vector<TraceNode> nodes;
  NS_TRY_VOID(read_trace(in, "some.et", [&](TraceNode&& node) -> Result<void> {
    nodes.push_back(std::move(node));
    return {};
  }));
  return nodes;
}

std::string written(const std::vector<TraceNode>& nodes) {
  const ScratchFolder folder;
  EXPECT_TRUE(write_trace(folder.path() / "x.et", nodes));
  return read_text(folder.path() / "x.et");
}

TEST(Reader, GivesBackWhatWasWritten) {
  TraceNode second;
  second.id = 1;
  const std::vector<TraceNode> nodes = {rich_node(), second};
  const auto read = read_bytes(written(nodes));
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(*read, nodes);
}

// The format's strings are UTF-8, and its parsers refuse files with others; values have another type for them.
TEST(Reader, ReadsTextsThatAreNoUtf8) {
  TraceNode node = rich_node();
  node.attributes = {{"text", std::string("\xff")}, {"texts", std::vector<std::string>{"a", "\xff"}}};
  ::testing::internal::CaptureStderr();
  const auto read = read_bytes(written({node}));
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(*read, std::vector{node});
  const ScratchFolder folder;
  const auto refused = [&](const TraceNode& wrong) {
    const auto result = write_trace(folder.path() / "x.et", std::vector{rich_node(), wrong});
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "x.et"));
    return result ? "" : to_text(result.error()).substr(folder.path().string().size());
  };
  node.id = 3;
  node.name = "\xff";
  EXPECT_EQ(refused(node), "/x.et, node 3: its name is no UTF-8; expected text in UTF-8");
  node = rich_node();
  node.inputs.shapes = "\xff";
  EXPECT_THAT(refused(node), HasSubstr("a text of its inputs is no UTF-8"));
  node = rich_node();
  node.outputs.types = "\xff";
  EXPECT_THAT(refused(node), HasSubstr("a text of its outputs is no UTF-8"));
  node = rich_node();
  node.attributes[3].name = "a\xff";
  EXPECT_THAT(refused(node), HasSubstr("the name of its attribute \"a\\xff\" is no UTF-8"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// protoc is the format's own encoder: every scalar type and list that it can write arrives in its widest C++ type.
TEST(Reader, ReadsEveryValueTypeOfTheFormat) {
  const ScratchFolder folder;
  const char* const lists[][2] = {{"double", "reals"},     {"float", "reals"},     {"int32", "signed"},
                                  {"int64", "signed"},     {"uint32", "unsigned"}, {"uint64", "unsigned"},
                                  {"sint32", "signed"},    {"sint64", "signed"},   {"fixed32", "unsigned"},
                                  {"fixed64", "unsigned"}, {"sfixed32", "signed"}, {"sfixed64", "signed"}};
  std::ofstream text(folder.path() / "node.txt");
  text << "id: 7 type: COMP_NODE\n";
  for (const auto& [type, kind] : lists) {
    text << "attr { name: \"" << type << "\" " << type << "_val: 3 }\n";
    text << "attr { name: \"" << type << "s\" " << type << "_list { values: [1, 2] } }\n";
  }
  text << "attr { name: \"bool\" bool_val: true } attr { name: \"bools\" bool_list { values: [true, false] } }\n"
       << "attr { name: \"string\" string_val: \"a\" } attr { name: \"strings\" string_list { values: [\"b\"] } }\n"
       << "attr { name: \"bytes\" bytes_val: \"\\377\" } attr { name: \"bytess\" bytes_list { values: [\"c\"] } }\n";
  text.close();
  const std::string command = "cd '" + folder.path().string() + "' && protoc --encode=ChakraProtoMsg.Node -I '" +
                              NS_DIST_SOURCE_DIR "/chakra_io/proto' et_def.proto < node.txt > node.bin";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string node = read_text(folder.path() / "node.bin");
  ASSERT_LT(node.size(), std::size_t{1} << 14);  // so its length has two bytes
  const std::string length = {static_cast<char>((node.size() & 0x7f) | 0x80), static_cast<char>(node.size() >> 7)};
  const auto read = read_bytes(std::string(1, '\0') + length + node);
  ASSERT_TRUE(read) << to_text(read.error());
  ASSERT_EQ(read->size(), 1U);

  const auto value = [&](const std::string& name) {
    const TraceValue* found = read->front().attribute(name);
    return found == nullptr ? TraceValue() : *found;
  };
  for (const auto& [type, kind] : lists) {
    const std::string name = type;
    if (std::string(kind) == "reals") {
      EXPECT_EQ(value(name), TraceValue(3.0)) << name;
      EXPECT_EQ(value(name + "s"), TraceValue(std::vector<double>{1, 2})) << name;
    } else if (std::string(kind) == "signed") {
      EXPECT_EQ(value(name), TraceValue(std::int64_t{3})) << name;
      EXPECT_EQ(value(name + "s"), TraceValue(std::vector<std::int64_t>{1, 2})) << name;
    } else {
      EXPECT_EQ(value(name), TraceValue(std::uint64_t{3})) << name;
      EXPECT_EQ(value(name + "s"), TraceValue(std::vector<std::uint64_t>{1, 2})) << name;
    }
  }
  EXPECT_EQ(value("bool"), TraceValue(true));
  EXPECT_EQ(value("bools"), TraceValue(std::vector<bool>{true, false}));
  EXPECT_EQ(value("string"), TraceValue(std::string("a")));
  EXPECT_EQ(value("strings"), TraceValue(std::vector<std::string>{"b"}));
  EXPECT_EQ(value("bytes"), TraceValue(std::string("\xff")));
  EXPECT_EQ(value("bytess"), TraceValue(std::vector<std::string>{"c"}));
}

TEST(Reader, AFileThatIsCutIsRefusedUnlessItIsCutBetweenNodes) {
  const std::vector<TraceNode> nodes = {rich_node(), rich_node(), rich_node()};
  const std::string whole = written(nodes);
  const std::size_t metadata = written({}).size();
  const std::size_t frame = (whole.size() - metadata) / nodes.size();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto read = read_bytes(whole.substr(0, size));
    const bool between = size >= metadata && (size - metadata) % frame == 0;
    ASSERT_EQ(read.has_value(), between) << size;
    if (read) {
      EXPECT_EQ(read->size(), (size - metadata) / frame);
    } else {
      EXPECT_THAT(read.error().where, HasSubstr("some.et, byte "));
    }
  }
}

TEST(Reader, ErrorsNameByteAndNode) {
  const std::string head = written({rich_node()});
  const auto cut = read_bytes(head + std::string("\x05zzz"));
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().where, "some.et, byte " + std::to_string(head.size()));
  EXPECT_THAT(cut.error().message, HasSubstr("ends 3 bytes into a frame of 5"));
  EXPECT_THAT(cut.error().expected, HasSubstr("node number 1"));

  const auto garbage = read_bytes(head + std::string("\x02\xff\xff"));
  ASSERT_FALSE(garbage);
  EXPECT_EQ(garbage.error().where, "some.et, byte " + std::to_string(head.size()));
  EXPECT_THAT(garbage.error().message, HasSubstr("no Chakra node"));
  EXPECT_THAT(garbage.error().expected, HasSubstr("node number 1"));

  const auto type = read_bytes(head + std::string("\x02\x18\x08"));  // field 3 (type) = 8
  ASSERT_FALSE(type);
  EXPECT_THAT(type.error().message, HasSubstr("type 8"));
  EXPECT_EQ(type.error().where, "some.et, byte " + std::to_string(head.size()));
}

TEST(Reader, HostileLengthsClaimNoMemory) {
  const auto long_frame = read_bytes(std::string("\0\xff\xff\xff\xff\x0f", 6));  // 4 GiB
  ASSERT_FALSE(long_frame);
  EXPECT_THAT(long_frame.error().message, HasSubstr("longer than the limit"));
  const auto long_varint = read_bytes(std::string("\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11));
  ASSERT_FALSE(long_varint);
  EXPECT_THAT(long_varint.error().message, HasSubstr("more than five bytes"));
}

TEST(Reader, RefusesEmptyCompressedAndMissingFiles) {
  EXPECT_THAT(read_bytes("").error().message, HasSubstr("empty"));
  EXPECT_THAT(read_bytes("\x1f\x8b\x08").error().hint, HasSubstr("gunzip"));
  const ScratchFolder folder;
  EXPECT_EQ(read_trace(folder.path() / "no.et").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_trace(folder.path()).error().code, ErrorCode::kNotFound);  // a folder is no trace
}

TEST(Reader, AnErrorOfTheVisitorStopsTheReading) {
  std::istringstream in(written({rich_node(), rich_node()}));
  int visited = 0;
  const auto read = read_trace(in, "some.et", [&](TraceNode&&) -> Result<void> {
    ++visited;
    return fail({ErrorCode::kInvalidInput, "enough", ""});
  });
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().message, "enough");
  EXPECT_EQ(visited, 1);
}

TEST(Writer, APlaceThatCannotBeWrittenIsAnError) {
  const ScratchFolder folder;
  const auto done = write_trace(folder.path() / "missing" / "x.et", {});
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().where, HasSubstr("x.et"));
}

}  // namespace
}  // namespace ns_dist
