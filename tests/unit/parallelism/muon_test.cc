#include "muon.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "ns_dist/memory.h"
#include "ns_dist/parameters.h"
#include "ns_dist/planner.h"
#include "parallelism_models.h"
#include "support/planned_graph.h"
#include "weight_matrices.h"

namespace ns_dist {
namespace {

using namespace units;

Totals update_of(const Model& model, const ParallelPlan& plan, const Training& training = {8, 1, 512}) {
  return totals_of(model, plan, training);
}
double update_flops(const Totals& totals) { return totals.product_flops("optimizer."); }

// One Newton-Schulz iteration of m x n, m <= n: X X^T, A^2 and B X.
double flops(double rows, double columns) {
  const double m = std::min(rows, columns), n = std::max(rows, columns);
  return 5 * (4 * m * m * n + 2 * m * m * m);
}

// Queries, keys and values are three matrices of one weight; gate and value of an MLP are one.
double flops_of_layer(const Model& model) {
  const auto hidden = static_cast<double>(model.hidden), ffn = static_cast<double>(model.ffn);
  const auto keys = static_cast<double>(model.kv_heads * model.head_dim);
  return flops(hidden, hidden) + 2 * flops(keys, hidden) + flops(hidden, hidden) + flops(2 * ffn, hidden) +
         flops(hidden, ffn);
}

TEST(Muon, ProductsOfAllMatricesInClosedForm) {
  const Model model = llama(2, 512, 8, 4, 1536);
  ParallelPlan plan{.optimizer = OptimizerKind::kMuon};
  EXPECT_DOUBLE_EQ(update_flops(update_of(model, plan)), 2 * flops_of_layer(model));
  plan.muon_steps = 10;  // twice as many
  EXPECT_DOUBLE_EQ(update_flops(update_of(model, plan)), 4 * flops_of_layer(model));
  plan.optimizer = OptimizerKind::kAdam;
  EXPECT_EQ(update_flops(update_of(model, plan)), 0);
}

// Each rank gathers 4 bytes an element and does all, sums Gram matrices of 2 bytes an element, or does its own part.
TEST(Muon, RanksThatShareAMatrix) {
  const Model model = llama(1, 512, 8, 8, 2048);
  ParallelPlan plan{.tp = 4, .sequence_parallel = true, .optimizer = OptimizerKind::kMuon};
  const double weights = 4 * 512 * 512 + 3 * 512 * 2048;
  const Totals whole = update_of(model, plan);
  EXPECT_DOUBLE_EQ(update_flops(whole), flops_of_layer(model));
  EXPECT_DOUBLE_EQ(whole.bytes.at("optimizer.muon.all_gather"), 4 * weights);
  plan.muon_tp = MuonSplit::kDistributed;
  const Totals shared = update_of(model, plan);
  // Outputs are split but for the last products of attention and MLP, whose inputs are: all sums run over 512 x 512.
  const double square = 512.0 * 512, products = 4 * square * weights / 512 / 4 + 6 * 2 * 512 * square;
  EXPECT_DOUBLE_EQ(update_flops(shared), 5 * products);
  EXPECT_DOUBLE_EQ(shared.bytes.at("optimizer.muon.gram.all_reduce"), 5 * 6 * 2 * square);
  EXPECT_FALSE(shared.bytes.contains("optimizer.muon.all_gather"));
  plan.muon_tp = MuonSplit::kBlockwise;
  const Totals own = update_of(model, plan);
  const double attention = 4 * flops(128, 512), mlp = flops(1024, 512) + flops(512, 512);
  EXPECT_DOUBLE_EQ(update_flops(own), attention + mlp);
  EXPECT_FALSE(own.bytes.contains("optimizer.muon.gram.all_reduce"));
}

// Embedding, logits and norms stay with Adam; so does the input projection of Mamba (Megatron-Core, mamba_mixer.py).
TEST(Muon, WhichWeightsAreMatrices) {
  Model model = llama(3, 512, 8, 8, 2048);
  const double layers = 3 * (4 * 512 * 512 + 3 * 512 * 2048);
  EXPECT_DOUBLE_EQ(matrix_parameters(model, {}), layers);
  EXPECT_DOUBLE_EQ(model_parameters(model).total() - layers, 2 * 512 * 32000 + (2 * 3 + 1) * 512);
  EXPECT_DOUBLE_EQ(matrix_parameters(model, {.lora_rank = 8}),
                   adapter_parameters(model, {.lora_rank = 8}));  // adapters are matrices
  // A layer that predicts a further token is one more, behind a projection of two hidden states.
  model.prediction_layers = 1;
  EXPECT_DOUBLE_EQ(matrix_parameters(model, {}), layers);
  EXPECT_DOUBLE_EQ(matrix_parameters(model, {}, true), layers * 4 / 3 + 2 * 512 * 512);
  EXPECT_DOUBLE_EQ(matrix_parameters(model, {.lora_rank = 8}, true), adapter_parameters(model, {.lora_rank = 8}, true));
  model.prediction_layers = 0;
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  EXPECT_DOUBLE_EQ(matrix_parameters(model, {}), 3 * (4 * 512 * 512 + 8 * (3 * 512 * 1024) + 8 * 512));
}

// One moment less of 4 bytes; ranks own whole matrices.
TEST(Muon, KeepsOneMoment) {
  const Model model = llama(4, 512, 8, 8, 2048);
  const auto optimizer = [&](const ParallelPlan& plan) {
    const auto budget = memory_budget(model, plan, {8, 1, 512, Precision::kBf16});
    EXPECT_TRUE(budget) << (budget ? "" : to_text(budget.error()));
    return budget ? budget->fullest().optimizer / B : 0;
  };
  ParallelPlan adam{.zero = ZeroStage::kNone}, muon = adam;
  muon.optimizer = OptimizerKind::kMuon;
  EXPECT_DOUBLE_EQ(optimizer(adam) - optimizer(muon), 4 * matrix_parameters(model, {}));
  muon.optimizer_state = MomentType::kBf16;
  adam.optimizer_state = MomentType::kBf16;
  EXPECT_DOUBLE_EQ(optimizer(adam) - optimizer(muon), 2 * matrix_parameters(model, {}));
}

// Of 4 layers with 4 matrices each on 4 ranks, each has one of each kind, so nothing is padded.
TEST(MatrixShares, OfMatricesThatDivideEvenly) {
  const Matrices matrices = {{{1536, 512, SplitSide::kRows, false, {512, 512, 512}}, 4},
                             {{512, 512, SplitSide::kColumns, false}, 4},
                             {{4096, 512, SplitSide::kRows, false}, 4},
                             {{512, 2048, SplitSide::kColumns, false}, 4}};
  const MatrixShares shares = share_matrices(matrices, {.dp = 4, .optimizer = OptimizerKind::kMuon});
  EXPECT_EQ(shares.owned, (1536 + 512 + 4096 + 2048) * 512);
  EXPECT_DOUBLE_EQ(shares.padding, 1);
  std::set<std::int64_t> rows;
  for (const auto& [matrix, count] : shares.updated) {
    EXPECT_EQ(count, 1);
    rows.insert(matrix.rows * matrix.columns);
  }
  EXPECT_EQ(rows.size(), 4u);
  const MatrixShares all = share_matrices(matrices, {.dp = 4, .zero = ZeroStage::kNone});
  EXPECT_EQ(all.owned, 4 * shares.owned);
}

// Of more ranks than matrices some have nothing, and buffers are as if all had the largest.
TEST(MatrixShares, OfMoreRanksThanMatrices) {
  const Matrices matrices = {{{1024, 512}, 2}, {{512, 512}, 1}};
  ParallelPlan plan{.dp = 16, .optimizer = OptimizerKind::kMuon};
  const MatrixShares shares = share_matrices(matrices, plan);
  EXPECT_EQ(shares.owned, 1024 * 512);
  EXPECT_EQ(shares.updated, (Matrices{{{1024, 512}, 1}}));
  EXPECT_DOUBLE_EQ(shares.padding, 16 * 1024.0 / (2 * 1024 + 512));
  plan.muon_buffers = MuonBuffers::kWhole;
  EXPECT_DOUBLE_EQ(share_matrices(matrices, plan).padding, 1);
}

// One matrix of 2 x 1024 x 512 among smaller ones: the rank that has it gets no more.
TEST(MatrixShares, LargestWorkFirst) {
  const Matrices matrices = {{{512, 512}, 4}, {{2048, 512}, 1}};
  const MatrixShares shares = share_matrices(matrices, {.dp = 2, .optimizer = OptimizerKind::kMuon});
  EXPECT_EQ(shares.owned, 2048 * 512);
  EXPECT_DOUBLE_EQ(shares.padding, 1);
}

// Padded: every rank's part of the buffers is the largest one's. Whole: gradients of all are summed on all.
TEST(Muon, Buffers) {
  const Model model = llama(1, 512, 8, 8, 2048);
  ParallelPlan plan{.dp = 8, .optimizer = OptimizerKind::kMuon};
  const double others = model_parameters(model).total() - matrix_parameters(model, {});
  const double largest = 2 * 2048 * 512;  // gate and value
  EXPECT_DOUBLE_EQ(update_of(model, plan).bytes.at("gradients.reduce_scatter"), 4 * (others + 8 * largest));
  const auto gradients = [&] { return memory_budget(model, plan, {8, 1, 512, Precision::kBf16})->fullest(); };
  EXPECT_DOUBLE_EQ(gradients().gradients / B, 4 * (others + 8 * largest));
  EXPECT_DOUBLE_EQ(gradients().padding / B, (4 + 2) * (8 * largest - matrix_parameters(model, {})));
  plan.muon_buffers = MuonBuffers::kWhole;
  const Totals whole = update_of(model, plan);
  EXPECT_DOUBLE_EQ(whole.bytes.at("gradients.all_reduce"), 4 * model_parameters(model).total());
  EXPECT_FALSE(whole.bytes.contains("gradients.reduce_scatter"));
  EXPECT_EQ(gradients().padding, Bytes());
}

// Where no buffer is divided, the rank that updates the largest table has little else: that of the embeddings of all
// layers.
TEST(Muon, OneRankHasTheLargestTable) {
  Model model = llama(3, 512, 8, 8, 1024);
  model.per_layer_embeddings = PerLayerEmbeddings{.width = 64, .vocabulary = 262144};
  const ParallelPlan plan{.dp = 8, .optimizer = OptimizerKind::kMuon, .muon_buffers = MuonBuffers::kWhole};
  const Bytes optimizer = memory_budget(model, plan, {8, 1, 512, Precision::kBf16})->fullest().optimizer;
  EXPECT_DOUBLE_EQ(optimizer / B, 12 * 3.0 * 64 * 262144);
}

// DeepSpeed's ZeRO-2: equal parts of all matrices, and one matrix more, whose momentum is whole.
TEST(MatrixShares, OfFlatParts) {
  const Matrices matrices = {{{1024, 512}, 8}, {{512, 512}, 8}};
  const ParallelPlan plan{.dp = 4, .zero = ZeroStage::kGradients, .optimizer = OptimizerKind::kMuon};
  const MatrixShares shares = share_matrices(matrices, plan);
  EXPECT_EQ(shares.owned, 2 * (1024 + 512) * 512);
  EXPECT_EQ(shares.beyond, 1024 * 512);
  EXPECT_EQ(shares.updated, (Matrices{{{1024, 512}, 3}, {{512, 512}, 2}}));
  EXPECT_TRUE(shares.in_parts.empty());
  EXPECT_EQ(shares.padding, 1);
}

// FSDP2: a part of each matrix, of which some are gathered; a layer's experts stay if there is one for each rank.
TEST(MatrixShares, OfPartsOfEachMatrix) {
  const WeightMatrix dense{512, 512}, expert{1024, 512, SplitSide::kNone, true};
  const Matrices matrices = {{dense, 12}, {expert, 3 * 8}};  // three layers of 8 experts
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2};
  plan.optimizer = OptimizerKind::kMuon;
  const auto together = [&](std::int64_t experts) {
    WeightMatrix tensor = expert;
    tensor.batch = experts;
    return tensor;
  };
  const MatrixShares few = share_matrices(matrices, plan, 3, 8);
  EXPECT_EQ(few.in_parts, (Matrices{{dense, 12}}));
  EXPECT_EQ(few.gathered, (Matrices{{dense, 3}}));
  EXPECT_EQ(few.updated, (Matrices{{together(2), 3}}));
  EXPECT_EQ(few.buckets, 2);
  EXPECT_EQ(few.imbalance, 1);  // eight matrices of two layers
  EXPECT_EQ(few.owned, 3 * 512 * 512 + 6 * 1024 * 512);
  // Of 16 ranks, 8 have an expert of each layer to make orthogonal, and 12 a matrix of the others.
  plan.dp = 16;
  const MatrixShares many = share_matrices(matrices, plan, 3, 8);
  EXPECT_EQ(many.in_parts, (Matrices{{dense, 12}, {together(8), 3}}));
  EXPECT_EQ(many.gathered, (Matrices{{dense, 1}, {expert, 3}}));
  EXPECT_EQ(many.imbalance, 2);  // 8 matrices on 16 ranks
  EXPECT_EQ(many.expert_imbalance, 2);
  EXPECT_TRUE(many.updated.empty());
  EXPECT_EQ(many.owned, (12 * 512 * 512 + 24 * 1024 * 512) / 16.0);
}

// FSDP2: each rank sends its part of all matrices to those that gather them, and gets it back; 4 bytes an element. The
// last layers travel beside nothing. Products are those of the rank's share.
TEST(Muon, PartsTravelToTheRanksThatGatherThem) {
  const Model model = llama(8, 512, 8, 8, 2048);
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2};
  plan.optimizer = OptimizerKind::kMuon;
  const Totals update = update_of(model, plan);
  const double part = 4 * matrix_parameters(model, {}) / 4;
  for (const char* way : {"optimizer.muon.momentum.all_to_all", "optimizer.muon.orthogonal.all_to_all"}) {
    EXPECT_DOUBLE_EQ(update.bytes.at(way), part) << way;
    EXPECT_EQ(update.nodes.at(way), 4) << way;  // two layers at a time
  }
  EXPECT_DOUBLE_EQ(update_flops(update), 2 * flops_of_layer(model));  // of 8 layers on 4 ranks
  EXPECT_EQ(update.nodes.at("optimizer.muon.nesterov"), 8 * 4);       // a part of each matrix
  const auto optimizer = [&](OptimizerKind kind) {
    plan.optimizer = kind;
    return memory_budget(model, plan, {8, 1, 512, Precision::kBf16})->fullest().optimizer / B;
  };
  EXPECT_DOUBLE_EQ(optimizer(OptimizerKind::kAdam) - optimizer(OptimizerKind::kMuon), part);
}

// A layer of another kind is counted once.
TEST(MatrixShares, OfASingleLayer) {
  const WeightMatrix usual{512, 512}, first{4096, 512};
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2};
  plan.optimizer = OptimizerKind::kMuon;
  EXPECT_EQ(share_matrices({{usual, 4 * 16}, {first, 1}}, plan, 16).gathered, (Matrices{{usual, 4 * 4}, {first, 1}}));
}

// More ranks than two pairs of layers have matrices do not help: each group of four layers waits for its largest
// matrix.
TEST(Muon, ManyRanksWaitForTheLargestMatrix) {
  const Model model = llama(16, 512, 8, 8, 2048);
  ParallelPlan plan{.dp = 64, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2};
  plan.optimizer = OptimizerKind::kMuon;
  EXPECT_DOUBLE_EQ(update_flops(update_of(model, plan, {64, 1, 512})), 4 * flops(2 * 2048, 512));
}

// The last two of six layers are waited for as four are. Where three of four layers have a matrix, two layers have two.
TEST(MatrixShares, OfLayersThatDoNotFillTheirBuckets) {
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2};
  plan.optimizer = OptimizerKind::kMuon;
  const WeightMatrix matrix{512, 512};
  EXPECT_EQ(share_matrices({{matrix, 6 * 4}}, plan, 6).gathered, (Matrices{{matrix, 2 * 4}}));
  EXPECT_EQ(share_matrices({{matrix, 12}}, plan, 16).imbalance, 4 / 2.0);
}

// DeepSpeed's ZeRO-2: two ranks that share one matrix update it once each.
TEST(MatrixShares, OfOneMatrixOnTwoRanks) {
  const ParallelPlan plan{.dp = 2, .zero = ZeroStage::kGradients, .optimizer = OptimizerKind::kMuon};
  const MatrixShares shares = share_matrices({{{1024, 512}, 1}}, plan);
  EXPECT_EQ(shares.updated, (Matrices{{{1024, 512}, 1}}));
  EXPECT_EQ(shares.beyond, 1024 * 512 / 2);
}

// Bytes that kernels read and write, and FLOPs of their products.
Work work_of(const std::vector<Call>& calls) {
  Work sum;
  for (const Call& call : calls) {
    const Operator& op = std::get<Operator>(call.what);
    const Work each = work_of(op);
    sum.read += each.read, sum.written += each.written;
    const Gemm* gemm = std::get_if<Gemm>(&op.kind);
    if (gemm) sum.flops += 2.0 * static_cast<double>(gemm->batch * gemm->m * gemm->n * gemm->k) * FLOP;
  }
  return sum;
}

// A rank's part of the momentum is read with its gradient, twice: for its own sake, and for the step along both
// (Nesterov). What a rank gathers is copied out of what came, and into what goes back. All is fp32.
TEST(Muon, PartsAreReadAndCopied) {
  const Model model = llama(1, 512, 8, 8, 2048);
  const ParallelPlan plan{.optimizer = OptimizerKind::kMuon};
  const Shape shape(model, plan, {1, 1, 512});
  const double all = 1024 * 512, part = all / 4;
  const WeightMatrix matrix{1024, 512};
  const MuonParts parts = muon_parts(shape, matrix, 4, DType::kFp32, DType::kFp32);
  const Work momentum = work_of(parts.momentum), update = work_of(parts.update);
  EXPECT_EQ(momentum.read, 4 * (2 + 2) * part * B);
  EXPECT_EQ(momentum.written, 4 * (1 + 1) * part * B);
  EXPECT_EQ(update.read, 4 * (1 + 2) * part * B);  // decay; weight and step
  EXPECT_EQ(update.written, 4 * (1 + 1) * part * B);
  // Of a whole matrix, what is not of its orthogonalization: momentum, decay and step.
  const Work whole = work_of(muon_update(shape, matrix, DType::kFp32, DType::kFp32)),
             orthogonal = work_of(parts.orthogonal);
  EXPECT_EQ(orthogonal.read - whole.read, 4 * (2 - 5) * all * B);
  EXPECT_EQ(orthogonal.written - whole.written, 4 * (2 - 3) * all * B);
  EXPECT_EQ(orthogonal.flops, whole.flops);
}

// Of six experts on four ranks the busiest has two.
TEST(MatrixShares, OfExpertsThatRanksDoNotDivide) {
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2};
  plan.optimizer = OptimizerKind::kMuon;
  WeightMatrix expert{1024, 512, SplitSide::kNone, true};
  const MatrixShares shares = share_matrices({{expert, 3 * 6}}, plan, 3, 6);
  expert.batch = 2;
  EXPECT_EQ(shares.updated, (Matrices{{expert, 3}}));
}

// Expert parallelism leaves a rank two of eight experts, which four replicas share: two of these gather one each.
TEST(Muon, ExpertsOfARankTravelToSomeOfItsReplicas) {
  Model model = llama(2, 512, 8, 8, 2048);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  ParallelPlan plan{.dp = 16, .ep = 4, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2};
  plan.optimizer = OptimizerKind::kMuon;
  const auto program = plan_program(model, plan, {16, 1, 512});
  ASSERT_TRUE(program) << to_text(program.error());
  int found = 0;
  for (std::size_t i = 0; i < program->works.size(); ++i) {
    if (!program->works[i].name.starts_with("optimizer.muon.experts.")) continue;
    const Collective& exchange = std::get<Collective>(program->works[i].work);
    EXPECT_EQ(exchange.group.size(), 4);
    EXPECT_EQ(exchange.imbalance, 4 / 2.0);
    ++found;
  }
  EXPECT_EQ(found, 2);  // there and back
}

// DeepSpeed's ZeRO-2: a momentum of 4 bytes of a rank's part of the matrices, and of one matrix more.
TEST(Muon, FlatPartsKeepTheMomentumOfOneMatrixMore) {
  const Model model = llama(8, 512, 8, 8, 2048);
  const auto optimizer = [&](OptimizerKind kind) {
    ParallelPlan plan{.dp = 4, .zero = ZeroStage::kGradients, .optimizer = kind};
    return memory_budget(model, plan, {8, 1, 512, Precision::kBf16})->fullest().optimizer / B;
  };
  const double part = matrix_parameters(model, {}) / 4, largest = 2 * 2048 * 512;  // gate and value
  EXPECT_DOUBLE_EQ(optimizer(OptimizerKind::kAdam) - optimizer(OptimizerKind::kMuon), 4 * (part - largest));
}

// Experts of one tensor are multiplied together, each with its own matrix.
TEST(Muon, ExpertsOfOneTensorAreAsManyProducts) {
  const Model model = llama(1, 512, 8, 8, 2048);
  const ParallelPlan plan{.optimizer = OptimizerKind::kMuon};
  const Shape shape(model, plan, {1, 1, 512});
  WeightMatrix expert{1024, 512, SplitSide::kNone, true};
  expert.batch = 8;
  const std::vector<Call> calls = muon_update(shape, expert, DType::kFp32, DType::kFp32);
  EXPECT_EQ(work_of(calls).flops, 8 * flops(1024, 512) * FLOP);
}

// Without an update nothing is a matrix: memory is that of Adam.
TEST(Muon, OfPassesWithoutAnUpdateTakesNoMemoryAway) {
  const Model model = llama(4, 512, 8, 8, 2048);
  for (const Passes passes : {Passes::kGradients, Passes::kForward}) {
    for (const int zero : {0, 1, 2, 3}) {
      ParallelPlan plan{.passes = passes, .dp = 4, .zero = static_cast<ZeroStage>(zero)};
      if (zero == 3) plan.zero_library = ZeroLibrary::kFsdp2;
      const Bytes adam = memory_budget(model, plan, {8, 1, 512, Precision::kBf16})->peak();
      plan.optimizer = OptimizerKind::kMuon;
      EXPECT_EQ(memory_budget(model, plan, {8, 1, 512, Precision::kBf16})->peak(), adam) << zero;
    }
  }
}

TEST(Muon, RefusesWhatSplitsMatrices) {
  const Model model = llama(1, 512, 8, 8, 2048);
  const auto refused = [&](const ParallelPlan& plan) {
    const auto program = plan_program(model, plan, {8, 1, 512, Precision::kBf16});
    return program ? std::string() : program.error().where + ": " + program.error().hint;
  };
  ParallelPlan split{.dp = 2, .zero = ZeroStage::kParameters, .optimizer = OptimizerKind::kMuon};
  const std::string remedy = "plan/zero: use plan/zero=2, plan/zero_library=fsdp2, or plan/optimizer=adam";
  EXPECT_EQ(refused(split), remedy);
  split.zero_library = ZeroLibrary::kFsdp;
  EXPECT_EQ(refused(split), remedy);
  split.zero_library = ZeroLibrary::kFsdp2;
  EXPECT_EQ(refused(split), "");
  split.zero = ZeroStage::kGradients, split.zero_library = ZeroLibrary::kDefault;
  EXPECT_EQ(refused(split), "");
  EXPECT_EQ(refused({.optimizer = OptimizerKind::kMuon, .offload_optimizer = {0.5}}),
            "plan/offload_optimizer: leave plan/offload_optimizer out, or use plan/optimizer=adam");
  EXPECT_EQ(refused({.dp = 2, .optimizer = OptimizerKind::kMuon}), "");
}

}  // namespace
}  // namespace ns_dist
