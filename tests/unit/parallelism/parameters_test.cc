// Do the catalog's models have the parameters that were published?
#include "ns_dist/parameters.h"

#include <gtest/gtest.h>

#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

TEST(Parameters, ModelsHaveThePublishedParameters) {
  const Catalog catalog = Catalog::standard();
  int checked = 0;
  for (const CatalogEntry& entry : catalog.list(CatalogKind::kModel)) {
    const Model model = *catalog.model(entry.id);
    if (model.published_parameters <= 0) continue;
    ++checked;
    EXPECT_NEAR(model_parameters(model).total() / model.published_parameters, 1, model.published_parameters_tolerance)
        << model.id;
    if (model.published_active_parameters > 0) {
      // One token passes top_k experts. Some publish active parameters without the input embedding, or without the
      // output projection, too, and all round them harder than totals.
      Model visited = model;
      visited.moe->experts = visited.moe->top_k;
      const ModelParameters active = model_parameters(visited);
      EXPECT_LE(model.published_active_parameters, active.total() * 1.03) << model.id;
      EXPECT_GE(model.published_active_parameters, (active.total() - active.embedding - active.output) * 0.97)
          << model.id;
    }
  }
  EXPECT_GE(checked, 60);
}

// Elements of all tensors of the released checkpoints but those of multi-token prediction, less one bias for each
// expert of a layer that has no table of tokens' experts (the first three have): no gradient trains it.
TEST(Parameters, DeepSeekV4HasThoseOfItsCheckpoints) {
  const Catalog catalog = Catalog::standard();
  EXPECT_EQ(model_parameters(*catalog.model("deepseek-v4-flash")).total(), 284'332'240'471.0 - 40 * 256);
  EXPECT_EQ(model_parameters(*catalog.model("deepseek-v4-pro")).total(), 1'572'997'201'763.0 - 58 * 384);
}

}  // namespace
}  // namespace ns_dist
