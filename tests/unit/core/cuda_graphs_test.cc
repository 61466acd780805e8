#include "ns_dist/cuda_graphs.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

// The MLP of a model whose first layer has no experts; of one whose layers all have them there is none.
TEST(CudaGraphs, RecordTheDenseLayersOfAModelWithExperts) {
  Model model;
  model.layers = 4;
  EXPECT_TRUE(graphs_of_layers(model).records(LayerModule::kMlp));
  model.moe = Experts{};
  EXPECT_FALSE(graphs_of_layers(model).records(LayerModule::kMlp));
  EXPECT_TRUE(graphs_of_layers(model).records(LayerModule::kMoeRouter));
  model.moe->first_dense_layers = 1;
  EXPECT_TRUE(graphs_of_layers(model).records(LayerModule::kMlp));
}

}  // namespace
}  // namespace ns_dist
