#include "published_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>

#include "ns_dist/balanced_layout.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/planner.h"
#include "ns_dist/session.h"
#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

constexpr std::int64_t kMost = 10'000'000;  // of any count

std::int64_t count(JsonReader& reader, std::string_view key, std::int64_t fallback, std::int64_t least = 1) {
  return reader.integer(key, least, kMost, Presence::kOptional, fallback);
}

void foreign(JsonReader& reader) {
  reader.accept_unknown_keys();
  reader.treat_null_as_missing();
}

// What rows name: frameworks, and whether the catalog's models of a family ("mpt") drop activations out.
struct Named {
  std::vector<Framework> frameworks;
  std::map<std::string, bool, std::less<>> family_drops_out;
};

// The first word in lower case: "mpt" of "MPT 13b".
std::string first_word(std::string_view text) { return lower_case(text.substr(0, text.find(' '))); }

Model read_collected_model(JsonReader& reader, const Named& named) {
  foreign(reader);
  Model model;
  model.id = model.name = reader.text("name");
  model.layers = reader.integer("layers", 1, kMost);
  model.hidden = reader.integer("hidden", 1, kMost);
  model.heads = reader.integer("heads", 1, kMost);
  model.kv_heads = reader.integer("kv_heads", 1, kMost);
  model.head_dim = reader.integer("head_dim", 1, kMost);
  model.ffn = reader.integer("ffn_hidden", 1, kMost);
  model.gated_mlp = reader.boolean("gated_mlp", false, Presence::kRequired);
  model.vocabulary = reader.integer("vocab", 1, kMost);
  model.sequence = reader.integer("seq", 1, kMost);
  model.tied_embeddings = reader.boolean("tied_embeddings", !model.gated_mlp);  // as GPT's are, and Llama's are not
  // Rows do not tell norm, biases and positions: GPT-like models have LayerNorm, biases and dropout, the others (gated,
  // or with grouped queries) are Llama-like. Dropout is that of the family where the catalog has it.
  model.bias = model.dropout = !model.gated_mlp && model.kv_heads == model.heads;
  model.norm = model.bias ? NormalizationKind::kLayerNorm : NormalizationKind::kRmsNorm;
  model.position = model.bias ? PositionKind::kLearned : PositionKind::kRotary;
  model.position_table = model.bias ? model.sequence : 0;
  const auto family = named.family_drops_out.find(first_word(model.name));
  if (family != named.family_drops_out.end()) model.dropout = family->second;
  if (reader.text("attention", Presence::kOptional) == "MLA") {
    // Nope and value heads are head_dim wide (DeepSeek-V2 and -V3).
    model.mla = LatentAttention{.q_rank = count(reader, "q_lora_rank", 0, 0),
                                .kv_rank = reader.integer("kv_lora_rank", 1, kMost),
                                .nope_head_dim = model.head_dim,
                                .rope_head_dim = reader.integer("qk_rope_head_dim", 1, kMost),
                                .v_head_dim = model.head_dim};
  }
  if (const std::int64_t experts = count(reader, "n_experts", 0, 0); experts > 0) {
    const std::int64_t ffn = count(reader, "moe_ffn_hidden", model.ffn);
    const std::int64_t shared = count(reader, "shared_experts", 0, 0);
    model.moe = Experts{experts, count(reader, "topk", 1), ffn,
                        shared,  shared > 0 ? ffn : 0,     count(reader, "dense_layers", 0, 0)};
  }
  return model;
}

// What a row tells in words alone.
struct Remark {
  std::string_view words, field, text;
};
constexpr Remark kRemarks[] = {
    {"no TP overlap", "plan/blocking_tp", "reductions"},  // of all of Megatron's overlap, its backward gathers are left
    {"no grad-reduce overlap", "plan/overlap_grad_reduce", "off"},
    {"DP overlap, ", "plan/overlap_grad_reduce", "on"},
    {"DP overlap, ", "plan/overlap_param_gather", "on"},
    {", TP overlap", "plan/overlap_tp", "on"},
    {"and PP overlap on", "plan/overlap_p2p", "on"},
    {"CPU-offloaded AdamW", "plan/offload_optimizer", "1"},
    {"torch.compile", "plan/fused_kernels", "on"},
    {"torch.compile", "plan/norm_library", "compiled"},
};

// The number that follows `words` in `text`; nothing where they are not there.
std::string_view number_behind(std::string_view text, std::string_view words) {
  const std::size_t found = text.find(words);
  if (found == std::string_view::npos) return {};
  const std::string_view rest = text.substr(found + words.size());
  return rest.substr(0, rest.find_first_not_of("0123456789."));
}

// Graphs of a recipe's "cuda_graph=IMPLEMENTATION/PARTS, dispatcher=": none, those of the whole iteration, those of the
// modules that are named, or all that can be recorded of a layer (Megatron-Core's default).
CudaGraphs recorded_graphs(std::string_view notes, const Model& model) {
  constexpr std::string_view kKey = "cuda_graph=";
  const std::size_t found = notes.find(kKey);
  if (found == std::string_view::npos) return {};
  std::string_view text = notes.substr(found + kKey.size());
  text = text.substr(0, text.find(", dispatcher="));
  const std::size_t slash = std::min(text.find('/'), text.size());
  const std::string_view parts = text.substr(slash);
  if (first_word(text.substr(0, slash)) == "none") return {};
  if (parts.find("full_iteration") != std::string_view::npos) return {.step = true};
  CudaGraphs graphs;
  for (std::size_t i = 0; i < names_of<LayerModule>().size(); ++i) {
    const auto module = static_cast<LayerModule>(i);
    if (parts.find(fmt::format("'{}'", name_of(module))) != std::string_view::npos) graphs.modules |= set_of(module);
  }
  return graphs.any() ? graphs : graphs_of_layers(model);
}

// `notes` of the row may hold the words of kRemarks, which the keys of `parallel` overrule, and a recipe's
// "dispatcher=deepep" or "hybridep", which serve undivided experts, its "pad-to-capacity CF=1.0", or its graphs.
void read_parallel(JsonReader& reader, std::string_view notes, std::int64_t gpus_per_node, CollectedRun& run) {
  foreign(reader);
  ScenarioSpec& spec = run.spec;
  const std::int64_t tp = reader.integer("tp", 1, kMost);
  spec.set("plan/tp", tp);
  run.chunks_untold = reader.is_text("vpp");  // "unstated"
  const std::int64_t pp = reader.integer("pp", 1, kMost, Presence::kRequired, 1),
                     vpp = run.chunks_untold ? 1 : count(reader, "vpp", 1);
  spec.set("plan/pp", pp);
  if (!reader.is_null("vpp")) spec.set("plan/vpp", vpp);  // where it is not told, a schedule may have its own
  const std::int64_t dp = reader.integer("dp", 1, kMost, Presence::kRequired, 1), cp = count(reader, "cp", 1),
                     ep = count(reader, "ep", 1);
  spec.set("plan/dp", dp);
  spec.set("plan/cp", cp);
  spec.set("plan/ep", ep);
  if (run.model.moe) {
    // Experts of a token-drop recipe are padded to the mean, and only an all-to-all serves them (Megatron-Bridge,
    // training/utils/moe_token_drop.py).
    const bool drops = notes.find("token-drop variant") != std::string_view::npos;
    const bool one_copy = !drops && (notes.find("dispatcher=deepep") != std::string_view::npos ||
                                     notes.find("dispatcher=hybridep") != std::string_view::npos);
    if (one_copy) spec.set("plan/expert_dispatch", ExpertDispatch::kDeepEp);
    const std::string_view capacity = drops ? "1" : number_behind(notes, "pad-to-capacity CF=");
    if (!capacity.empty()) spec.set("plan/expert_capacity", capacity);
    // Experts that are spread over more ranks than there are replicas cannot be divided either.
    if (one_copy || (dp * cp) % ep != 0) spec.set("plan/etp", 1);
  }
  // Layers that fill the pipeline only together with the embedding and the loss: Megatron-LM counts these as layers
  // then (account_for_embedding_in_pipeline_split).
  const std::int64_t layers = run.model.layers, positions = std::max<std::int64_t>(1, pp * vpp);
  if (layers % positions != 0 && (layers + 2) % positions == 0) {
    spec.set("plan/account_embedding", true).set("plan/account_loss", true);
  } else if (const std::int64_t most = (layers + pp - 1) / pp, rest = layers - most * (pp - 1);
             layers % positions != 0 && rest > 0 && vpp == 1 && !run.chunks_untold && !reader.is_null("vpp")) {
    // Megatron-Core takes no uneven stages but the first and the last (decoder_last_pipeline_num_layers).
    spec.set("plan/last_stage_layers", rest);
  }
  const bool distributed = reader.boolean("distributed_optimizer", false);
  const bool sharded = reader.boolean("fsdp", false);
  if (reader.is_text("zero_stage") && reader.text("zero_stage").starts_with("HSDP")) {
    spec.set("plan/zero", ZeroStage::kParameters).set("plan/shard", gpus_per_node);
  } else {
    spec.set("plan/zero", static_cast<ZeroStage>(reader.integer("zero_stage", 0, 3, Presence::kOptional,
                                                                sharded       ? 3
                                                                : distributed ? 1
                                                                              : 0)));
  }
  spec.set("plan/sequence_parallel", reader.boolean("sp", false) && tp > 1);
  if (const CudaGraphs graphs = recorded_graphs(notes, run.model); graphs.any()) spec.set("host/cuda_graphs", graphs);
  for (const Remark& remark : kRemarks) {
    if (notes.find(remark.words) != std::string_view::npos) spec.set(remark.field, remark.text);
  }
  for (const char* key : {"blocking_tp", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p"}) {
    if (reader.is_boolean(key)) spec.set(fmt::format("plan/{}", key), reader.boolean(key, false));
  }
  if (reader.has("cp_comm") && !reader.text("cp_comm", Presence::kOptional).empty()) {
    spec.set("plan/cp_comm", reader.enumerator<ContextExchange>("cp_comm"));
  }
  if (reader.has("grad_accumulation") && !reader.text("grad_accumulation", Presence::kOptional).empty()) {
    spec.set("plan/grad_accumulation", reader.enumerator<GradAccumulation>("grad_accumulation"));
  }
}

void read_peer(JsonReader& reader, CollectedRun& run) {
  foreign(reader);
  constexpr double kMostSeconds = 1e9, kMostMemory = 1e6;  // s, GiB
  run.peer = reader.text("tool");
  run.peer_step = reader.number("iteration_time_s", 0, kMostSeconds, Presence::kOptional, 0) * units::s;
  run.peer_memory = reader.number("memory_gib", 0, kMostMemory, Presence::kOptional, 0) * units::GiB;
}

// Of "tflops_per_gpu" those that count a model's FLOP: "model", "model (causal attention)", "model (...)", not
// "model+recompute".
void read_measured(JsonReader& reader, CollectedRun& run) {
  foreign(reader);
  constexpr double kLargest = 1e6, kFastest = 1e5;  // GB, TFLOP/s
  run.memory = reader.number("memory_gib_per_gpu", 0, kLargest, Presence::kOptional, 0) * units::GiB;
  if (!(run.memory > Bytes())) {
    run.memory = reader.number("memory_gb_per_gpu", 0, kLargest, Presence::kOptional, 0) * units::GB;
  }
  run.memory_kind = reader.text("memory_kind", Presence::kOptional);
  const std::string kind = reader.text("tflops_kind", Presence::kOptional);
  if (kind == "model" || kind.starts_with("model (")) {
    run.rate = reader.number("tflops_per_gpu", 0, kFastest, Presence::kOptional, 0) * units::TFLOP / units::s;
    run.rate_is_causal = kind.find("causal") != std::string::npos;
  }
}

void read_norm(JsonReader& reader, CollectedRun& run, bool across_nodes) {
  foreign(reader);
  ScenarioSpec& spec = run.spec;
  constexpr double kLongestStep = 1e6, kFastest = 1e6;  // s, GB/s
  const Presence step = run.rate > FlopsPerSecond() ? Presence::kOptional : Presence::kRequired;
  run.measured = reader.number("step_time_s", 1e-6, kLongestStep, step, 0) * units::s;
  spec.set("machine/gpu", reader.text("gpu"));
  if (const std::string schedule = reader.text("schedule"); schedule != "none") spec.set("plan/schedule", schedule);
  const std::string recompute = reader.text("recompute");
  for (const Recompute known : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (recompute == name_of(known)) spec.set("plan/recompute", known);
  }
  const std::string dtype = reader.text("dtype");  // "bf16", "fp8", "mxfp8", ...
  const auto known = enumerator_from_name<Precision>(dtype);
  spec.set("training/dtype", known);
  if (!known) reader.note("dtype", fmt::format("\"{}\" is not a number format", dtype));
  const double bandwidth = reader.number("inter_gbs_per_gpu", 0, kFastest, Presence::kOptional, 0);
  if (bandwidth > 0 && across_nodes) {
    spec.set("machine/inter_bandwidth", bandwidth * units::GB / units::s);
  }
}

// "modules:layernorm,moe_act" as our plans have it; nothing where a module is not known.
std::optional<std::string> recomputed_modules(std::string_view text) {
  constexpr std::string_view kModules = "modules:";
  if (!text.starts_with(kModules)) return std::nullopt;
  std::string ours = fmt::format("selective:{}", text.substr(kModules.size()));
  Recomputation read;
  return read_field({.name = "recompute"}, ours, read) ? std::optional(std::move(ours)) : std::nullopt;
}

// The framework that a row names: its table first, then its title, then its notes. Of several names the
// longest holds; nothing where none is named.
const Framework* framework_of(std::span<const Framework> frameworks, std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    const Framework* found = nullptr;
    std::size_t longest = 0;
    for (const Framework& framework : frameworks) {
      for (const std::string& alias : framework.named_as) {
        if (alias.size() <= longest || text.find(alias) == std::string_view::npos) continue;
        longest = alias.size();
        found = &framework;
      }
    }
    if (found != nullptr) return found;
  }
  return nullptr;
}

// "NVLink3 600 GB/s bidir (4 NVLinks per pair) + NVSwitch": links that join a GPU to its neighbor in a ring, where a
// row tells that these are not all of them. Zero otherwise.
BytesPerSecond pair_bandwidth(std::string_view text) {
  constexpr std::string_view kPerPair = " NVLinks per pair";
  constexpr BytesPerSecond kLink = 25.0 * units::GB / units::s;  // NVLink 2 to 4, one direction
  const std::size_t end = text.find(kPerPair);
  if (end == std::string_view::npos) return {};
  std::size_t begin = end;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  const auto links = read_whole_number(text.substr(begin, end - begin), 1, 18);
  return links ? static_cast<double>(*links) * kLink : BytesPerSecond();
}

CollectedRun read_row(JsonReader& reader, const Named& named) {
  CollectedRun run;
  run.id = reader.text("id");
  run.key = reader.text("config_key");
  std::string table;
  reader.object("source", [&](JsonReader& source) {
    foreign(source);
    run.publication = source.text("title");
    table = source.text("table", Presence::kOptional);
  });
  ScenarioSpec& spec = run.spec;
  const std::string notes = reader.text("notes", Presence::kOptional);
  if (const Framework* framework = framework_of(named.frameworks, {table, run.publication, notes})) {
    spec.set("framework", framework->id);
    // A row that sums them in fp32 does so where its framework sums them in low precision: fused, or in kernels.
    if (reader.text("precision", Presence::kOptional).find("fp32 grad accumulation") != std::string::npos) {
      for (const Assignment& each : framework->set) {
        if (each.field != "plan/grad_accumulation") continue;
        const auto how = enumerator_from_name<GradAccumulation>(each.text);
        if (!how || sums_in_fp32(*how)) continue;
        spec.set("plan/grad_accumulation", is_fused(*how) ? GradAccumulation::kFused : GradAccumulation::kFp32);
      }
    }
  }
  // What it replaces in any framework (Liger-Kernel, transformers/monkey_patch.py).
  if (notes.find("Liger") != std::string::npos) {
    spec.set("plan/loss_library", Library::kLiger).set("plan/norm_library", Library::kCompiled);
    spec.set("plan/fused_kernels", true);
  }
  reader.object("model", [&](JsonReader& model) { run.model = read_collected_model(model, named); });
  if (notes.find("MTP") != std::string::npos) {  // a layer more that predicts one token further
    run.model.prediction_layers = 1;
    spec.set("training/mtp", true);
  }
  const std::int64_t node = count(reader, "gpus_per_node", 8);
  reader.object("parallel", [&](JsonReader& parallel) { read_parallel(parallel, notes, node, run); });
  if (const BytesPerSecond pair = pair_bandwidth(reader.text("intra_node_link", Presence::kOptional));
      pair > BytesPerSecond()) {
    spec.set("machine/intra_bandwidth", pair);
  }
  spec.set("machine/gpus_per_node", node);
  const bool across_nodes = reader.integer("n_gpus", 1, kMost) > node;
  reader.object(
      "measured", [&](JsonReader& measured) { read_measured(measured, run); }, Presence::kOptional);
  reader.object(
      "peer_prediction", [&](JsonReader& peer) { read_peer(peer, run); }, Presence::kOptional);
  reader.object("norm", [&](JsonReader& norm) { read_norm(norm, run, across_nodes); });
  // "fp8 (fine-grained)": a factor for each small block (DeepSeek-V3, arXiv 2412.19437, s.3.3.2).
  if (reader.text("precision", Presence::kOptional).find("fp8 (fine-grained") != std::string::npos) {
    spec.set("training/dtype", Precision::kFp8Block);
  }
  if (const auto modules = recomputed_modules(reader.text("recompute", Presence::kOptional))) {
    spec.set("plan/recompute", std::string_view(*modules));
  }
  run.micro_batch_untold = reader.is_null("micro_batch");
  if (!run.micro_batch_untold) spec.set("training/micro_batch", reader.integer("micro_batch", 1, kMost));
  spec.set("training/global_batch", reader.integer("global_batch", 1, kMost));
  spec.set("training/sequence", run.model.sequence);
  run.work =
      fmt::format("{}, {} layers of {}, {} tokens; {} GPUs; batch {}", run.model.name, run.model.layers,
                  run.model.hidden, run.model.sequence, count(reader, "n_gpus", 1), count(reader, "global_batch", 1));
  for (const Assignment& assignment : spec.assignments) {
    if (assignment.field == "machine/gpu" || assignment.field == "training/dtype" || assignment.field == "framework") {
      run.work += "; " + assignment.text;
    }
  }
  // Where the row does not tell, the framework's default holds.
  if (reader.is_boolean("flash_attention")) {
    spec.set("plan/flash_attention", reader.boolean("flash_attention", false));
  }
  return run;
}

// The step at which the GPUs do the model's FLOP at the row's rate; zero where the row cannot be planned.
Seconds step_at_rate(const CollectedRun& run, const Catalog& catalog) {
  const auto scenario = scenario_of(run, catalog);
  if (!scenario) return {};
  const auto ranks = rank_count(scenario->plan);
  if (!ranks) return {};
  const StepFlops flops = step_flops(scenario->model, scenario->plan, scenario->training);
  return (run.rate_is_causal ? flops.causal : flops.model) / (static_cast<double>(*ranks) * run.rate);
}

// What a row does not tell, its authors had tuned, so that one of the fastest plans ran. Of the micro-batches and
// chunks that the row's batch and layers allow and that fit (if none does, that need the least memory), those whose
// step the forecast cannot tell from the fastest one's are as likely as each other: the row gets the middle one of
// them. The fastest itself would be too fast, because the least of several forecasts is one that errs downwards. What
// cannot be planned is none of them; of none, the row stays as it is.
void choose_untold(CollectedRun& run, const Catalog& catalog) {
  struct Candidate {
    Bytes beyond;  // memory beyond the GPU's
    Prediction prediction;
    ScenarioSpec spec;
  };
  std::vector<Candidate> candidates;
  const auto told = scenario_of(run, catalog);
  if (!told) return;
  const std::int64_t batch_of_replica = told->training.global_batch / told->plan.dp;
  const std::int64_t layers_of_stage = run.model.layers / told->plan.pp;
  const std::int64_t most_micro = run.micro_batch_untold ? batch_of_replica : 1;
  const std::int64_t most_chunks = run.chunks_untold ? layers_of_stage : 1;
  for (std::int64_t micro = 1; micro <= most_micro; micro *= 2) {
    for (std::int64_t chunks = 1; chunks <= most_chunks; ++chunks) {
      if (batch_of_replica % micro != 0 || layers_of_stage % chunks != 0) continue;
      CollectedRun candidate = run;
      if (run.micro_batch_untold) candidate.spec.set("training/micro_batch", micro);
      if (run.chunks_untold) candidate.spec.set("plan/vpp", chunks);
      const auto scenario = scenario_of(candidate, catalog);
      auto prediction = scenario.and_then([](const Scenario& each) {
        return Session::make(each).and_then([&](const Session& session) { return predict(each, session); });
      });
      if (!prediction) continue;
      const Bytes beyond = max(Bytes(), prediction->memory.device() - scenario->cluster.gpu.memory);
      if (!candidates.empty() && beyond > candidates.front().beyond) continue;
      if (!candidates.empty() && beyond < candidates.front().beyond) candidates.clear();
      candidates.push_back({beyond, *std::move(prediction), std::move(candidate.spec)});
    }
  }
  if (candidates.empty()) return;
  std::ranges::stable_sort(candidates, {}, [](const Candidate& each) { return each.prediction.step; });
  const auto is_slower = [&](const Candidate& each) {
    return step_difference(*told, candidates.front().prediction, each.prediction).low > Seconds();
  };
  const auto as_fast = std::ranges::find_if(candidates, is_slower) - candidates.begin();
  run.spec = candidates[static_cast<std::size_t>(as_fast - 1) / 2].spec;
}

// Layers that the model chunks of a row cannot share evenly, its authors divided so that no stage waits long for
// another, where the row says nothing of it and their framework can.
void choose_division(CollectedRun& run, const Catalog& catalog) {
  const auto told = scenario_of(run, catalog);
  if (!told) return;
  const ParallelPlan& plan = told->plan;
  const bool can = std::ranges::none_of(told->framework_only, [](const FieldLimit& limit) {
    return limit.field == "plan/pipeline_layout" && limit.allows("even");  // and nothing else
  });
  const auto even = divide_layers(told->model, plan);
  if (plan.pp == 1 || !divides_evenly(plan) || !can || !even || even->front().count == even->back().count) return;
  const auto session = Session::make(*told);
  if (!session) return;
  const std::vector<std::string> layouts = balanced_layouts(*told, *session);
  if (!layouts.empty()) run.spec.set("plan/pipeline_layout", std::string_view(layouts.back()));
}

using nlohmann::ordered_json;

// The member, or null.
ordered_json member(const ordered_json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : ordered_json();
}

// "A100-SXM4 (80GB not stated)": the first word, without the number of the socket's generation.
std::string gpu_of(const ordered_json& text) {
  if (!text.is_string()) return "";
  std::string gpu = first_word(text.get<std::string>());
  if (const std::size_t socket = gpu.find("sxm"); socket != std::string::npos) gpu.resize(socket + 3);
  return gpu;
}

// A sweep of one publication, whose rows have only what differs, as rows of a collection: an object with `source`,
// `gpu`, `gpus_per_node`, `common` and `rows`. What is missing is noticed when the rows are read.
ordered_json rows_of_sweep(const ordered_json& sweep) {
  const ordered_json common = member(sweep, "common"), rows = member(sweep, "rows");
  ordered_json all = ordered_json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ordered_json& row = rows[i];
    const ordered_json hidden = member(row, "hidden"), heads = member(row, "heads");
    const bool known = hidden.is_number_integer() && heads.is_number_integer() && heads.get<std::int64_t>() > 0;
    const std::string id = fmt::format("row-{}", i);
    all.push_back({{"id", id},
                   {"config_key", id},
                   {"recommended", true},
                   {"source", {{"title", member(sweep, "source")}}},
                   {"notes", member(common, "framework")},
                   {"model",
                    {{"name", fmt::format("{} layers of {}", member(row, "layers").dump(), hidden.dump())},
                     {"layers", member(row, "layers")},
                     {"hidden", hidden},
                     {"heads", heads},
                     {"kv_heads", heads},
                     {"head_dim", known ? ordered_json(hidden.get<std::int64_t>() / heads.get<std::int64_t>()) : heads},
                     {"ffn_hidden", hidden.is_number_integer() ? ordered_json(4 * hidden.get<std::int64_t>()) : hidden},
                     {"gated_mlp", member(common, "gated_mlp")},
                     {"vocab", member(common, "vocab")},
                     {"seq", member(row, "seq")},
                     {"tied_embeddings", true}}},
                   {"gpus_per_node", member(sweep, "gpus_per_node")},
                   {"n_gpus", member(row, "n_gpus")},
                   {"micro_batch", member(row, "mbs")},
                   {"global_batch", member(row, "gbs")},
                   {"flash_attention", member(common, "flash_attention")},
                   {"parallel", {{"tp", member(row, "tp")}, {"pp", member(row, "pp")}, {"dp", member(row, "dp")}}},
                   {"norm",
                    {{"gpu", gpu_of(member(sweep, "gpu"))},
                     {"dtype", member(common, "precision").dump().find("fp16") != std::string::npos ? "fp16" : "bf16"},
                     {"schedule", member(common, "schedule")},
                     {"recompute", member(common, "recompute")},
                     {"step_time_s", member(row, "iteration_time_s")}}}});
  }
  return all;
}

// Whether its publication's title holds one of `titles`, or there are none.
bool is_of(const CollectedRun& run, std::span<const std::string> titles) {
  return titles.empty() || std::any_of(titles.begin(), titles.end(), [&](const std::string& title) {
           return run.publication.find(title) != std::string::npos;
         });
}

}  // namespace

Result<std::vector<CollectedRun>> read_run_collection(const std::filesystem::path& file, const Catalog& catalog,
                                                      std::vector<Error>& mistakes, const WantedRuns& wanted) {
  Named named;
  for (const CatalogEntry& entry : catalog.list(CatalogKind::kFramework)) {
    NS_TRY(Framework framework, catalog.framework(entry.id));
    named.frameworks.push_back(std::move(framework));
  }
  for (const CatalogEntry& entry : catalog.list(CatalogKind::kModel)) {
    NS_TRY(const Model model, catalog.model(entry.id));
    if (!model.family.empty()) named.family_drops_out.emplace(model.family, model.dropout);
  }
  NS_TRY(const std::string text, read_text(file, kLongestJson));
  NS_TRY(ordered_json root, parse_json(text, file.string()));
  if (root.is_object() && member(root, "rows").is_array()) root = rows_of_sweep(root);
  if (!root.is_array()) {
    return fail({ErrorCode::kInvalidInput, "not an array", file.string(),
                 "an array of published runs, or a sweep with its rows"});
  }
  std::vector<CollectedRun> runs;
  for (std::size_t i = 0; i < root.size(); ++i) {
    std::vector<Error> errors;
    JsonReader reader(root[i], file.string(), errors, fmt::format("/{}", i));
    foreign(reader);
    const bool recommended = reader.boolean("recommended", false);
    const bool is_wanted = wanted.rows == RunRows::kAll || recommended == (wanted.rows == RunRows::kRecommended);
    if (errors.empty() && !is_wanted) continue;
    CollectedRun run = read_row(reader, named);
    if (errors.empty()) {
      if (!is_of(run, wanted.titles)) continue;
      if (run.micro_batch_untold || run.chunks_untold) choose_untold(run, catalog);
      choose_division(run, catalog);
      if (!(run.measured > Seconds())) run.measured = step_at_rate(run, catalog);
      runs.push_back(std::move(run));
    } else {
      mistakes.push_back(join(std::move(errors)));
    }
  }
  return runs;
}

Result<Scenario> base_of(const CollectedRun& run, const Catalog& catalog) {
  NS_TRY(Scenario base, resolve(ScenarioSpec{}, catalog));
  base.model = run.model;
  return base;
}

Result<Scenario> scenario_of(const CollectedRun& run, const Catalog& catalog) {
  NS_TRY(const Scenario base, base_of(run, catalog));
  return resolve(run.spec, catalog, &base);
}

}  // namespace ns_dist
