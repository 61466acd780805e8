#include "ns_dist/precision.h"

#include <gtest/gtest.h>

#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

// What TransformerEngine's checks of the compute capability say, and AMD's matrix cores.
TEST(Precision, GenerationsRunTheFormatsThatTheirLibrariesHave) {
  struct Case {
    const char* gpu;
    bool fp8_block, mxfp8, nvfp4;
  };
  const Catalog catalog = Catalog::built_in();
  for (const Case& c :
       {Case{"l40s", false, false, false}, Case{"h100", true, false, false}, Case{"b200", true, true, true},
        Case{"gb300", true, true, true}, Case{"rtx-pro-6000", true, false, true}, Case{"mi300x", true, false, false},
        Case{"mi355x", true, true, false}}) {
    const auto gpu = catalog.gpu(c.gpu);
    ASSERT_TRUE(gpu) << c.gpu;
    EXPECT_EQ(reason_against(*gpu, Precision::kFp8Block).empty(), c.fp8_block) << c.gpu;
    EXPECT_EQ(reason_against(*gpu, Precision::kMxFp8).empty(), c.mxfp8) << c.gpu;
    EXPECT_EQ(reason_against(*gpu, Precision::kNvFp4).empty(), c.nvfp4) << c.gpu;
    EXPECT_EQ(reason_against(*gpu, Precision::kBf16), "") << c.gpu;
  }
  Gpu unknown;
  unknown.vendor = "other";
  EXPECT_EQ(reason_against(unknown, Precision::kMxFp8), "");
  unknown.vendor = "amd", unknown.architecture = "x";
  EXPECT_EQ(reason_against(unknown, Precision::kMxFp8), "");
}

}  // namespace
}  // namespace ns_dist
