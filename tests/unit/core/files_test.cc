#include "ns_dist/files.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

TEST(Files, StandardOutputHasSeveralNames) {
  for (const char* name : {"", "-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev//stdout", "/dev/fd/../fd/1"}) {
    EXPECT_TRUE(is_standard_output(name)) << name;
  }
  for (const char* name : {"./-", "--", "stdout", "/dev/null", "/dev/fd/2", "/dev/stderr"}) {
    EXPECT_FALSE(is_standard_output(name)) << name;
  }
}

}  // namespace
}  // namespace ns_dist
